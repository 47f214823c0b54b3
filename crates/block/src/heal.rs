//! Asking for another copy of bytes that are not what was written.

use crate::Buf;
use std::rc::Rc;

/// Says whether bytes are those that were written, as a checksum does. Called with all bytes that were asked for.
pub type Judge = Rc<dyn Fn(&Buf) -> bool>;

/// The answer of a layer that has several copies.
pub struct Healed {
    /// The written data. This memory has no other writer.
    pub bytes: Buf,
    /// The number of copies, or of parts for computing them, that differed and were written anew. They are as durable
    /// as any write: after a flush.
    pub copies: usize,
}
