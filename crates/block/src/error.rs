//! The errors of requests, with their places.

use std::fmt;
use std::ops::Range;

/// The result of a request or of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// The classes of failure that a caller can act on. Exports translate them to their protocol's codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The medium could not read or write the range (EIO).
    Media,
    /// There is no space for the data (ENOSPC). Nothing was written.
    NoSpace,
    /// The device may not be written (EPERM, EROFS).
    ReadOnly,
    /// Another host or generation owns the device; nothing may be written any more.
    Fenced,
    /// The device is gone, closed, or its peer cannot be reached.
    Offline,
    /// No answer within the time allowed.
    TimedOut,
    /// The device is in use, or changes just now; nothing was done. A later attempt may succeed (EBUSY).
    Busy,
    /// The request itself is wrong: out of range, misaligned, of the wrong length (EINVAL).
    Invalid,
    /// The device cannot do this at all, or not in the way asked for (EOPNOTSUPP).
    Unsupported,
    /// The work was cancelled before it was done.
    Cancelled,
    /// Bytes were read that cannot be what was written: a checksum, a magic number or a version is wrong.
    Corrupt,
    /// The memory of the request cannot be accessed (EFAULT): its owner has taken it away. The error says nothing about
    /// a device. That request alone fails, and is not tried again; a write may have been done in part.
    BadMemory,
    /// The device has lost its end: it has fewer bytes than it had when it was opened (EIO). The device does nothing
    /// more until it is opened anew, and its data then cannot be trusted.
    Truncated,
}

/// An error: its class, its place, and its text. One pointer in size, because most results are good.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    message: String,
    device: Option<Box<str>>,
    at: Option<Range<u64>>,
}

impl Error {
    /// An error of `kind`; `message` has the cause and, where there is one, the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), device: None, at: None }))
    }

    /// The request is wrong in itself.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// The device cannot do this.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// The device or its peer is gone.
    pub fn offline(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Offline, message)
    }

    /// Something else uses the device, or changes it just now.
    pub fn busy(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy, message)
    }

    /// The medium failed.
    pub fn media(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Media, message)
    }

    /// True if only the memory of the request is at fault: no device, and no other request.
    pub fn is_of_memory(&self) -> bool {
        self.kind() == ErrorKind::BadMemory
    }

    /// The class of the failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message, without the place.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The name of the device that reported it first.
    pub fn device(&self) -> Option<&str> {
        self.0.device.as_deref()
    }

    /// The byte range that failed, in the address space of [`Error::device`].
    pub fn range(&self) -> Option<&Range<u64>> {
        self.0.at.as_ref()
    }

    /// Adds the range that failed, unless one is known.
    pub fn at(mut self, range: Range<u64>) -> Error {
        self.0.at.get_or_insert(range);
        self
    }

    /// Adds the device that failed, unless one is known: the error names the deepest device.
    pub fn on(mut self, device: &str) -> Error {
        self.0.device.get_or_insert_with(|| device.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.0.device {
            write!(f, "{device}: ")?;
        }
        f.write_str(&self.0.message)?;
        if let Some(at) = &self.0.at {
            write!(f, " (bytes {}..{})", at.start, at.end)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    /// Keeps the class that a caller can act on: ENOSPC, EROFS, EOPNOTSUPP, EFAULT, time-outs, lost
    /// peers; the rest is media.
    fn from(e: std::io::Error) -> Error {
        use std::io::ErrorKind as K;
        // The standard library has no class for this. Its number is the same on all architectures of Linux.
        const EFAULT: i32 = 14;
        if e.raw_os_error() == Some(EFAULT) {
            let message = "the memory of the request cannot be accessed: its owner has taken it away";
            return Error::new(ErrorKind::BadMemory, message);
        }
        let kind = match e.kind() {
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::NoSpace,
            K::ReadOnlyFilesystem | K::PermissionDenied => ErrorKind::ReadOnly,
            K::Unsupported => ErrorKind::Unsupported,
            K::TimedOut => ErrorKind::TimedOut,
            K::InvalidInput => ErrorKind::Invalid,
            K::AddrInUse => ErrorKind::Busy,
            K::NotFound
            | K::NotConnected
            | K::BrokenPipe
            | K::ConnectionReset
            | K::ConnectionRefused
            | K::ConnectionAborted
            | K::UnexpectedEof => ErrorKind::Offline,
            _ => ErrorKind::Media,
        };
        Error::new(kind, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deepest_device_and_range_win() {
        let e = Error::media("unreadable").on("disk").at(0..512).on("stripe").at(4096..8192);
        assert_eq!(e.to_string(), "disk: unreadable (bytes 0..512)");
    }

    #[test]
    fn is_one_pointer() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn system_errors_keep_their_class() {
        let no_space = std::io::Error::from_raw_os_error(28);
        assert_eq!(Error::from(no_space).kind(), ErrorKind::NoSpace);
        let bad_sector = std::io::Error::from_raw_os_error(5);
        assert_eq!(Error::from(bad_sector).kind(), ErrorKind::Media);
        let bad_address = std::io::Error::from_raw_os_error(14);
        assert_eq!(Error::from(bad_address).kind(), ErrorKind::BadMemory);
    }
}
