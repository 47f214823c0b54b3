//! Whole small files: keys, and text that is no secret. Reading may block, and runs on a helper thread.

use crate::secret;
use lamina_block::{Error, Result};
use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

/// The bytes of a regular file of at most `max` bytes, which are a key or a passphrase.
pub(crate) fn read_key(path: &Path, max: usize) -> Result<Vec<u8>> {
    read(path, max, |meta| secret::guard(path, meta))
}

/// The text of a regular file of at most `max` bytes.
pub(crate) fn read_text(path: &Path, max: usize) -> Result<String> {
    let no_text = |_| Error::invalid(format!("{} is no text: it is not UTF-8", path.display()));
    String::from_utf8(read(path, max, |_| {})?).map_err(no_text)
}

/// The bytes of a regular file of at most `max` bytes; `before` is called when it is open. The memory is taken once, so
/// that no copies of a secret stay behind.
fn read(path: &Path, max: usize, before: impl FnOnce(&Metadata)) -> Result<Vec<u8>> {
    let failed = |e: std::io::Error| {
        Error::new(Error::from(std::io::Error::from(e.kind())).kind(), format!("{}: {e}", path.display()))
    };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if !meta.is_file() {
        return Err(Error::invalid(format!("{} is no regular file", path.display())));
    }
    let file = File::open(path).map_err(failed)?;
    before(&meta);
    let long = || Error::invalid(format!("{} is longer than {max} bytes", path.display()));
    let len = usize::try_from(meta.len()).ok().filter(|len| *len <= max).ok_or_else(long)?;
    let mut bytes = Vec::with_capacity(len + 1);
    // One more, to see that the file did not grow meanwhile.
    file.take(len as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > max { Err(long()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_regular_files_up_to_a_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        std::fs::write(&path, b"secret").unwrap();
        assert_eq!(read_key(&path, 6).unwrap(), b"secret");
        assert_eq!(read_text(&path, 6).unwrap(), "secret");
        assert!(read_text(&path, 5).unwrap_err().message().contains("longer than 5"));
        assert!(read_text(folder.path(), 5).unwrap_err().message().contains("no regular file"));
        assert!(read_text(&folder.path().join("none"), 5).is_err());
        std::fs::write(&path, [0xFF]).unwrap();
        assert!(read_text(&path, 5).unwrap_err().message().contains("not UTF-8"));
    }
}
