//! Asking for another copy of bytes that are not what was written.

use crate::Buf;
use std::rc::Rc;

/// Says whether bytes are those that were written, as a checksum does. Called with all bytes that were asked for.
pub type Judge = Rc<dyn Fn(&Buf) -> bool>;

/// What a layer that has several copies answers.
pub struct Healed {
    /// What was written. Nobody else changes this memory.
    pub bytes: Buf,
    /// So many copies, or parts of what they are computed from, were something else, and were written anew. They are as
    /// durable as any write: after a flush.
    pub copies: usize,
}
