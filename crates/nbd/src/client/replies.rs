//! Replies, read from what was received: simple ones and chunks of structured ones.
//!
//! Data of reads go straight into the memory of their request. Every reply is checked against its request; a reply that
//! does not fit ends the connection.

use super::flight::{Command, Flight, odd};
use crate::inbox::Inbox;
use crate::wire::{self, Chunk, Descriptor, ErrorBody, Hole, SimpleReply, chunk, cmd};
use lamina_block::{Error, Pool, Result};
use zerocopy::FromBytes;

/// The longest error chunk, in bytes.
const ERROR_MAX: usize = 8 << 10;

/// The replies on one connection.
pub struct Replies {
    inbox: Inbox,
    pool: Pool,
    structured: bool,
    context: Option<u32>,
    filling: Option<Filling>,
}

/// The purpose of the bytes that are received now.
#[derive(Clone, Copy)]
enum Filling {
    /// Data of a read; the reply may end with them.
    Data { key: usize, done: bool },
    /// Descriptors.
    Status { key: usize, done: bool },
}

impl Replies {
    /// The replies that come after a negotiation with this outcome.
    pub fn new(inbox: Inbox, pool: &Pool, structured: bool, context: Option<u32>) -> Replies {
        Replies { inbox, pool: pool.clone(), structured, context, filling: None }
    }

    /// The place to receive, and the account of received bytes.
    pub fn inbox(&mut self) -> &mut Inbox {
        &mut self.inbox
    }

    /// The memory that data are being received into cannot be written: that read fails with `e`. The error again, if
    /// there is none.
    pub fn divert(&mut self, flight: &Flight, e: Error) -> Result<()> {
        let Some(Filling::Data { key, .. }) = self.filling else { return Err(e) };
        flight.spoil(key, &e);
        self.inbox.divert();
        Ok(())
    }

    /// Reads one message; false if the message is not complete.
    pub fn step(&mut self, flight: &Flight) -> Result<bool> {
        if let Some(filling) = self.filling {
            let Some(bytes) = self.inbox.filled() else { return Ok(false) };
            self.filling = None;
            match filling {
                Filling::Data { key, done } => finish(flight, key, done)?,
                Filling::Status { key, done } => {
                    let body = bytes.to_vec();
                    self.status(flight, key, &body)?;
                    finish(flight, key, done)?;
                }
            }
            return Ok(true);
        }
        let Some(magic) = self.peek::<4>() else { return Ok(false) };
        match u32::from_be_bytes(magic) {
            wire::SIMPLE_REPLY_MAGIC => self.simple(flight),
            wire::STRUCTURED_REPLY_MAGIC if self.structured => self.chunk(flight),
            other => Err(odd(format!("{other:#010x} instead of a reply"))),
        }
    }

    fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.inbox.available() >= N).then(|| {
            self.inbox.peek(&mut bytes);
            bytes
        })
    }

    fn simple(&mut self, flight: &Flight) -> Result<bool> {
        let Some(bytes) = self.peek::<{ SimpleReply::LEN }>() else { return Ok(false) };
        let reply = SimpleReply::read_from_bytes(&bytes).map_err(|_| odd("a reply"))?;
        let (key, command) = flight.command(reply.cookie.get())?;
        let has_data = matches!(command.command, cmd::READ | cmd::BLOCK_STATUS);
        if self.structured && has_data && reply.error.get() == 0 {
            return Err(odd("a simple reply to a read, after agreeing on structured ones"));
        }
        self.inbox.consume(SimpleReply::LEN);
        if reply.error.get() != 0 {
            flight.fail(key, reply.error.get(), "");
        } else if command.command == cmd::READ {
            self.data(flight, key, &command, command.offset, command.len as usize, true)?;
            return Ok(true);
        }
        finish(flight, key, true)?;
        Ok(true)
    }

    fn chunk(&mut self, flight: &Flight) -> Result<bool> {
        let Some(bytes) = self.peek::<{ Chunk::LEN }>() else { return Ok(false) };
        let header = Chunk::read_from_bytes(&bytes).map_err(|_| odd("a chunk"))?;
        let (key, command) = flight.command(header.cookie.get())?;
        let (len, done) = (header.len.get() as usize, header.flags.get() & chunk::FLAG_DONE != 0);
        match (header.kind.get(), command.command) {
            (chunk::NONE, _) if len == 0 && done => {
                self.inbox.consume(Chunk::LEN);
                finish(flight, key, true)?;
                Ok(true)
            }
            (chunk::OFFSET_DATA, cmd::READ) if len > 8 => {
                let Some(bytes) = self.peek::<{ Chunk::LEN + 8 }>() else { return Ok(false) };
                let offset = bytes.last_chunk().map_or(0, |offset| u64::from_be_bytes(*offset));
                self.inbox.consume(bytes.len());
                self.data(flight, key, &command, offset, len - 8, done)?;
                Ok(true)
            }
            (chunk::OFFSET_HOLE, cmd::READ) if len == Hole::LEN => self.hole(flight, key, &command, done),
            (chunk::BLOCK_STATUS, cmd::BLOCK_STATUS)
                if len >= 4 + Descriptor::LEN
                    && (len - 4).is_multiple_of(Descriptor::LEN)
                    && len <= 4 + Descriptor::LEN * wire::DESCRIPTORS_MAX =>
            {
                self.inbox.consume(Chunk::LEN);
                self.inbox.direct(self.pool.take(len));
                self.filling = Some(Filling::Status { key, done });
                Ok(true)
            }
            (kind, _) if kind & chunk::ERROR_BIT != 0 && (ErrorBody::LEN..=ERROR_MAX).contains(&len) => {
                self.error(flight, key, len, done)
            }
            (kind, _) => Err(odd(format!("a chunk of kind {kind} and {len} bytes that does not fit"))),
        }
    }

    /// `len` bytes of a read follow.
    fn data(
        &mut self,
        flight: &Flight,
        key: usize,
        command: &Command,
        offset: u64,
        len: usize,
        done: bool,
    ) -> Result<()> {
        let Some(start) = offset.checked_sub(command.offset).map(|start| start as usize) else {
            return Err(odd("data before the start of a read"));
        };
        if start.checked_add(len).is_none_or(|end| end > command.data.len()) {
            return Err(odd("data beyond the end of a read"));
        }
        if len > 0 {
            // Lossless: a read's length has 32 bits.
            flight.piece(key, start as u32..(start + len) as u32)?;
        }
        self.inbox.direct(command.data.slice(start..start + len));
        self.filling = Some(Filling::Data { key, done });
        Ok(())
    }

    fn hole(&mut self, flight: &Flight, key: usize, command: &Command, done: bool) -> Result<bool> {
        let Some(bytes) = self.peek::<{ Chunk::LEN + Hole::LEN }>() else { return Ok(false) };
        let hole = Hole::read_from_bytes(&bytes[Chunk::LEN..]).map_err(|_| odd("a hole"))?;
        let (len, start) = (hole.len.get() as usize, hole.offset.get().checked_sub(command.offset));
        let within = start
            .map(|start| start as usize)
            .filter(|start| len > 0 && start.checked_add(len).is_some_and(|end| end <= command.data.len()));
        let Some(start) = within else { return Err(odd("a hole outside of its read")) };
        self.inbox.consume(bytes.len());
        flight.piece(key, start as u32..(start + len) as u32)?;
        command.data.slice(start..start + len).fill(0);
        finish(flight, key, done)?;
        Ok(true)
    }

    fn error(&mut self, flight: &Flight, key: usize, len: usize, done: bool) -> Result<bool> {
        if self.inbox.available() < Chunk::LEN + len {
            return Ok(false);
        }
        self.inbox.consume(Chunk::LEN);
        let body = self.inbox.take(len).to_vec();
        let (head, rest) = ErrorBody::read_from_prefix(&body).map_err(|_| odd("an error"))?;
        let Some(message) = rest.get(..head.message_len.get().into()) else {
            return Err(odd("an error message longer than its chunk"));
        };
        let message: String = String::from_utf8_lossy(message).chars().filter(|c| !c.is_control()).collect();
        flight.fail(key, head.error.get(), &message);
        finish(flight, key, done)?;
        Ok(true)
    }

    fn status(&self, flight: &Flight, key: usize, body: &[u8]) -> Result<()> {
        let Some((id, runs)) = body.split_first_chunk::<4>() else { return Err(odd("a block status")) };
        let runs = <[Descriptor]>::ref_from_bytes(runs).map_err(|_| odd("a block status"))?;
        if Some(u32::from_be_bytes(*id)) != self.context {
            return Err(odd("a block status of a kind that was not asked for"));
        }
        flight.status(key, runs)
    }
}

fn finish(flight: &Flight, key: usize, done: bool) -> Result<()> {
    if done { flight.done(key) } else { Ok(()) }
}
