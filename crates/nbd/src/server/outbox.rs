//! Replies that wait to be sent: headers packed in one piece of memory, data appended without copying, all sent by
//! one call.

use crate::wire::{self, Chunk, Descriptor, ErrorBody, SimpleReply, chunk};
use lamina_block::{Buf, Pool};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// Memory that headers are packed into, in bytes.
const HEADERS: usize = 16 << 10;
/// The most segments that are sent by one call; the kernel takes 1024.
const SEGMENTS_MAX: usize = 512;
/// The longest error message sent, in bytes.
const MESSAGE_MAX: usize = 512;

/// Replies in order.
pub struct Outbox {
    pool: Pool,
    headers: Buf,
    used: usize,
    batch: Batch,
    /// Batches that have as many segments as one call takes.
    full: VecDeque<Batch>,
}

/// The batch of one call.
#[derive(Default)]
pub struct Batch {
    /// The bytes.
    pub bytes: Buf,
    /// The memory that they were charged with; see [`lamina_block::Budget`].
    pub cost: usize,
}

impl Outbox {
    /// Nothing to send.
    pub fn new(pool: &Pool) -> Outbox {
        Outbox {
            pool: pool.clone(),
            headers: Buf::empty(),
            used: 0,
            batch: Batch::default(),
            full: VecDeque::new(),
        }
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.batch.bytes.is_empty() && self.full.is_empty()
    }

    /// The next batch to send.
    pub fn take(&mut self) -> Option<Batch> {
        self.full.pop_front().or_else(|| (!self.is_empty()).then(|| std::mem::take(&mut self.batch)))
    }

    /// A simple reply: good, or an error of [`crate::errno`]; `data` after a read.
    pub fn simple(&mut self, cookie: u64, error: u32, data: Buf, cost: usize) {
        let reply = SimpleReply {
            magic: wire::SIMPLE_REPLY_MAGIC.into(),
            error: error.into(),
            cookie: cookie.into(),
        };
        self.push(reply.as_bytes(), data, cost);
    }

    /// The whole of a read in one chunk.
    pub fn data(&mut self, cookie: u64, offset: u64, data: Buf, cost: usize) {
        let mut header = [0; Chunk::LEN + 8];
        header[..Chunk::LEN].copy_from_slice(done(chunk::OFFSET_DATA, cookie, 8 + data.len()).as_bytes());
        header[Chunk::LEN..].copy_from_slice(&offset.to_be_bytes());
        self.push(&header, data, cost);
    }

    /// A structured reply without data.
    pub fn none(&mut self, cookie: u64, cost: usize) {
        self.push(done(chunk::NONE, cookie, 0).as_bytes(), Buf::empty(), cost);
    }

    /// A structured reply that says what went wrong.
    pub fn error(&mut self, cookie: u64, error: u32, message: &str, cost: usize) {
        let message = &message.as_bytes()[..message.floor_char_boundary(MESSAGE_MAX)];
        let body = ErrorBody { error: error.into(), message_len: (message.len() as u16).into() };
        let mut bytes = done(chunk::ERROR, cookie, ErrorBody::LEN + message.len()).as_bytes().to_vec();
        bytes.extend(body.as_bytes());
        bytes.extend(message);
        self.push(&bytes, Buf::empty(), cost);
    }

    /// A block status: a chunk for each context.
    pub fn status(&mut self, cookie: u64, contexts: &[(u32, Vec<Descriptor>)], cost: usize) {
        let mut bytes = Vec::new();
        for (i, (context, runs)) in contexts.iter().enumerate() {
            let runs = runs.as_bytes();
            let mut header = done(chunk::BLOCK_STATUS, cookie, 4 + runs.len());
            if i + 1 < contexts.len() {
                header.flags = 0.into();
            }
            bytes.extend(header.as_bytes());
            bytes.extend(context.to_be_bytes());
            bytes.extend(runs);
        }
        self.push(&bytes, Buf::empty(), cost);
    }

    fn push(&mut self, header: &[u8], data: Buf, cost: usize) {
        if self.headers.len() - self.used < header.len() {
            self.headers = self.pool.take(HEADERS.max(header.len()));
            self.used = 0;
        }
        self.headers.write(self.used, header);
        let end = self.used + header.len();
        self.batch.bytes.append(self.headers.slice(self.used..end));
        self.used = end;
        self.batch.bytes.append(data);
        self.batch.cost += cost;
        if self.batch.bytes.segments().len() >= SEGMENTS_MAX {
            self.full.push_back(std::mem::take(&mut self.batch));
        }
    }
}

/// The header of a reply of one chunk.
fn done(kind: u16, cookie: u64, len: usize) -> Chunk {
    Chunk {
        magic: wire::STRUCTURED_REPLY_MAGIC.into(),
        flags: chunk::FLAG_DONE.into(),
        kind: kind.into(),
        cookie: cookie.into(),
        len: (len as u32).into(),
    }
}
