//! The error numbers of the protocol, and the kinds of error that they stand for.

use lamina_block::{Error, ErrorKind};

/// Not permitted: the export is read-only.
pub const EPERM: u32 = 1;
/// The medium failed.
pub const EIO: u32 = 5;
/// No memory.
pub const ENOMEM: u32 = 12;
/// The request is wrong.
pub const EINVAL: u32 = 22;
/// No space.
pub const ENOSPC: u32 = 28;
/// Too large.
pub const EOVERFLOW: u32 = 75;
/// Not supported, or not fast.
pub const ENOTSUP: u32 = 95;
/// The server goes down.
pub const ESHUTDOWN: u32 = 108;

/// The number for an error. `ENOTSUP` is allowed only in answer to a fast zero, so everything else that is not
/// supported is `EINVAL`.
pub fn of(kind: ErrorKind, fast_zero: bool) -> u32 {
    match kind {
        ErrorKind::Media
        | ErrorKind::Offline
        | ErrorKind::TimedOut
        | ErrorKind::Busy
        | ErrorKind::Corrupt
        | ErrorKind::Truncated
        | ErrorKind::Cancelled
        | ErrorKind::BadMemory => EIO,
        ErrorKind::NoSpace => ENOSPC,
        ErrorKind::ReadOnly | ErrorKind::Fenced => EPERM,
        ErrorKind::Invalid => EINVAL,
        ErrorKind::Unsupported if fast_zero => ENOTSUP,
        ErrorKind::Unsupported => EINVAL,
    }
}

/// The error that a server's number means; `message` is what the server said, if anything.
pub fn error(number: u32, message: &str) -> Error {
    let (kind, name) = match number {
        EPERM => (ErrorKind::ReadOnly, "not permitted"),
        EIO => (ErrorKind::Media, "input/output error"),
        ENOMEM => (ErrorKind::Media, "out of memory"),
        ENOSPC => (ErrorKind::NoSpace, "no space left"),
        EOVERFLOW => (ErrorKind::Invalid, "too large"),
        ENOTSUP => (ErrorKind::Unsupported, "not supported"),
        ESHUTDOWN => (ErrorKind::Offline, "the server is shutting down"),
        // The protocol asks to take what is not known for EINVAL.
        _ => (ErrorKind::Invalid, "invalid request"),
    };
    match message {
        "" => Error::new(kind, format!("the NBD server answered: {name}")),
        said => Error::new(kind, format!("the NBD server answered: {name}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_wire_in_its_class() {
        let kinds = [
            (ErrorKind::Media, ErrorKind::Media),
            (ErrorKind::Corrupt, ErrorKind::Media),
            (ErrorKind::Truncated, ErrorKind::Media),
            (ErrorKind::Offline, ErrorKind::Media),
            (ErrorKind::TimedOut, ErrorKind::Media),
            (ErrorKind::Busy, ErrorKind::Media),
            (ErrorKind::Cancelled, ErrorKind::Media),
            (ErrorKind::BadMemory, ErrorKind::Media),
            (ErrorKind::NoSpace, ErrorKind::NoSpace),
            (ErrorKind::ReadOnly, ErrorKind::ReadOnly),
            (ErrorKind::Fenced, ErrorKind::ReadOnly),
            (ErrorKind::Invalid, ErrorKind::Invalid),
            (ErrorKind::Unsupported, ErrorKind::Invalid),
        ];
        for (sent, received) in kinds {
            assert_eq!(error(of(sent, false), "").kind(), received, "{sent:?}");
        }
        assert_eq!(error(of(ErrorKind::Unsupported, true), "").kind(), ErrorKind::Unsupported);
    }
}
