//! Lines and structs of a trace, with the place where they are, and errors that name it.

use std::fmt;
use std::io::{self, BufRead, Read};

/// Bytes of the longest line; a longer one belongs to no trace.
const LINE_MAX: u64 = 4096;

/// A mistake in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The name of the file.
    pub file: String,
    /// The line, from 1; of a binary trace, the byte at which the record begins, from 0. For the file as a whole, 0.
    pub line: u64,
    /// The mistake, with the expected text.
    pub message: String,
}

impl TraceError {
    pub(crate) fn new(file: &str, line: u64, message: String) -> TraceError {
        TraceError { file: file.to_owned(), line, message }
    }
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file, self.message),
            line => write!(f, "{}:{line}: {}", self.file, self.message),
        }
    }
}

impl std::error::Error for TraceError {}

/// The bytes of a trace, a line or a struct at a time.
pub(crate) struct Lines {
    name: String,
    input: Box<dyn BufRead>,
    line: Vec<u8>,
    /// The number of the present line, or the place of the present struct.
    at: u64,
}

impl Lines {
    pub(crate) fn new(name: &str, input: Box<dyn BufRead>) -> Lines {
        Lines { name: name.to_owned(), input, line: Vec::new(), at: 0 }
    }

    /// The mistake of the present line.
    pub(crate) fn error(&self, expected: String) -> TraceError {
        TraceError::new(&self.name, self.at, format!("expected {expected}"))
    }

    fn failed(&self, e: &io::Error) -> TraceError {
        TraceError::new(&self.name, self.at, format!("the file cannot be read: {e}"))
    }

    /// The next line, without its end; `None` at the end of the file. Bytes that are no UTF-8 are replaced.
    pub(crate) fn line(&mut self) -> Result<Option<String>, TraceError> {
        self.at += 1;
        self.line.clear();
        let limited = (&mut self.input).take(LINE_MAX + 1);
        let read = { limited }.read_until(b'\n', &mut self.line);
        match read.map_err(|e| self.failed(&e))? {
            0 => Ok(None),
            _ if self.line.len() as u64 > LINE_MAX => {
                Err(self.error(format!("a line of at most {LINE_MAX} bytes")))
            }
            _ => Ok(Some(String::from_utf8_lossy(&self.line).trim_end_matches(['\n', '\r']).to_owned())),
        }
    }

    /// Fills `bytes`; `false` at the end of the file. The place is that of their first byte if `begins`.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, TraceError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.input.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(self.error(format!("{} bytes more", bytes.len() - filled))),
                Ok(read) => filled += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(&e)),
            }
        }
        Ok(true)
    }

    /// Passes over `bytes` bytes.
    pub(crate) fn skip(&mut self, bytes: u64) -> Result<(), TraceError> {
        let skipped = io::copy(&mut (&mut self.input).take(bytes), &mut io::sink());
        match skipped.map_err(|e| self.failed(&e))? {
            skipped if skipped == bytes => Ok(()),
            skipped => Err(self.error(format!("{} bytes more", bytes - skipped))),
        }
    }

    /// The present struct, of so many bytes, ends here.
    pub(crate) fn passed(&mut self, bytes: u64) {
        self.at += bytes;
    }
}

/// A decimal number (`12`, `0.000123`) in units of `unit` nanoseconds, as nanoseconds.
pub(crate) fn nanoseconds(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    // Digits beyond the twelfth are below a nanosecond.
    let fraction = fraction.get(..12).unwrap_or(fraction);
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let part = fraction.parse::<u128>().unwrap_or(0) * unit as u128 / 10u128.pow(fraction.len() as u32);
    whole.checked_add(part as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        for (text, unit, wanted) in [
            ("0", 1000, Some(0)),
            ("12", 1000, Some(12_000)),
            ("12.5", 1000, Some(12_500)),
            ("0.000000001", 1_000_000_000, Some(1)),
            ("3.", 1_000_000_000, Some(3_000_000_000)),
            ("1.0000000000000000000000000001", 1_000_000_000, Some(1_000_000_000)),
            ("128166385295514663", 100, Some(12_816_638_529_551_466_300)),
            ("18446744073709551615", 100, None),
            ("", 1, None),
            (".5", 1, None),
            ("-1", 1, None),
            ("1e3", 1, None),
            ("1.2.3", 1, None),
            ("1.ä", 1, None),
        ] {
            assert_eq!(nanoseconds(text, unit), wanted, "{text}");
        }
    }
}
