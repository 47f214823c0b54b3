//! The little of URIs that is needed: percent encoding (RFC 3986, section 2.1).

/// `text` with every byte encoded that is neither unreserved nor in `keep`.
pub fn encoded(text: &str, keep: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ if byte.is_ascii() && keep.contains(byte as char) => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoding_comes_back() {
        assert_eq!(encoded("vm-1.a_b", ""), "vm-1.a_b");
        assert_eq!(encoded("a/../b c?", ""), "a%2F..%2Fb%20c%3F");
        assert_eq!(encoded("/a/ü", "/"), "/a/%C3%BC");
    }
}
