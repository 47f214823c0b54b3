//! Unix and TCP sockets.

mod listen;
mod stream;

pub(crate) use listen::Bound;
pub(crate) use stream::connect;

use lamina_block::{Error, ErrorKind};
use std::io;

/// A socket's failure: the peer is gone, or was too slow.
fn lost(what: &str, e: io::Error) -> Error {
    let kind = match e.kind() {
        io::ErrorKind::TimedOut => ErrorKind::TimedOut,
        io::ErrorKind::AddrInUse => ErrorKind::Busy,
        _ => ErrorKind::Offline,
    };
    Error::new(kind, format!("{what}: {e}"))
}
