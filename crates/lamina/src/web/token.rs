//! The token of the page: a secret that whoever looks at it has to know.

use crate::exit::Failure;
use std::fmt;
use std::path::Path;
use subtle::ConstantTimeEq;

/// The shortest token, in characters: no one guesses it over a network.
const LENGTH_MIN: usize = 16;
/// The longest, so that it fits into a header.
const LENGTH_MAX: usize = 1024;

/// The token. It is never printed.
pub struct Token(String);

impl Token {
    /// The first line of a file, without the space around it.
    pub fn read(path: &Path) -> Result<Token, Failure> {
        let wrong = |e: &dyn fmt::Display| Failure::usage(format!("--web-token {}: {e}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(&e))?;
        let token = text.trim();
        if !(LENGTH_MIN..=LENGTH_MAX).contains(&token.len()) || !token.chars().all(|c| c.is_ascii_graphic()) {
            return Err(wrong(&format!(
                "the file must have one line of {LENGTH_MIN} to {LENGTH_MAX} visible ASCII characters, such as \
                 `openssl rand -hex 32` prints"
            )));
        }
        Ok(Token(token.to_owned()))
    }

    /// True if `told` is the token. The time that takes tells nothing but whether the length is right.
    pub fn is(&self, told: &str) -> bool {
        self.0.as_bytes().ct_eq(told.as_bytes()).into()
    }

    #[cfg(test)]
    pub fn of(text: &str) -> Token {
        Token(text.into())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_the_token() {
        let token = Token::of("0123456789abcdef");
        assert!(token.is("0123456789abcdef"));
        for other in ["", "0123456789abcde", "0123456789abcdef0", "1123456789abcdef", "0123456789abcdeF"] {
            assert!(!token.is(other), "{other:?}");
        }
    }

    #[test]
    fn a_file_has_one_line_that_cannot_be_guessed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            Token::read(&path)
        };
        assert!(read("0123456789abcdef\n").is_ok_and(|token| token.is("0123456789abcdef")));
        let long = "x".repeat(LENGTH_MAX + 1);
        for wrong in
            ["", "short\n", "0123456789abcde\n", "0123456789 abcdef\n", "0123456789abcdef\nsecond\n", &long]
        {
            let said = read(wrong).expect_err("no token").into_message();
            assert!(said.contains("16 to 1024 visible ASCII characters"), "{said}");
            assert!(wrong.is_empty() || !said.contains(wrong.trim()), "the message has the token: {said}");
        }
        let said = Token::read(&folder.path().join("none")).expect_err("no file").into_message();
        assert!(said.starts_with("--web-token ") && said.contains("No such file"), "{said}");
    }
}
