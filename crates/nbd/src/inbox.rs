//! Received bytes that are not parsed yet.
//!
//! ```text
//!   receive ──▶ [ direct: rest of a large payload, into its own memory ][ window: whatever comes after it ]
//!   window:     | given away or consumed | start .. end: not yet understood | free |
//! ```
//!
//! One receive brings as many messages as the socket holds. Payloads are handed out as slices of the window, without
//! copying; the window is then replaced, not overwritten, while a slice is still in use. A payload that has not arrived
//! whole is received straight into memory of its own.
//!
//! Invariant: bytes that were handed out are never written again. Memory: one window of at most [`WINDOW_MAX`] bytes,
//! plus the windows that slices hold on to ([`Inbox::retired`]), plus what the caller gives to [`Inbox::direct`].

use lamina_block::{Buf, Pool};
use std::rc::Rc;

/// The first window, in bytes.
const WINDOW_MIN: usize = 16 << 10;
/// The largest window, in bytes: the default buffer of a Unix socket.
const WINDOW_MAX: usize = 256 << 10;
/// A window with less space than this is not received into.
const ROOM_MIN: usize = 4 << 10;

/// The receiving end of a connection, without the connection.
pub struct Inbox {
    pool: Pool,
    window: Buf,
    start: usize,
    end: usize,
    /// The size of the next window.
    size: usize,
    direct: Option<Direct>,
    /// Windows that were given up because slices of them are in use.
    retired: Vec<Buf>,
}

struct Direct {
    into: Buf,
    got: usize,
}

impl Inbox {
    /// Nothing received yet.
    pub fn new(pool: &Pool) -> Inbox {
        Inbox {
            pool: pool.clone(),
            window: Buf::empty(),
            start: 0,
            end: 0,
            size: WINDOW_MIN,
            direct: None,
            retired: Vec::new(),
        }
    }

    /// Bytes that can be looked at now. None, while a payload is being received directly.
    pub fn available(&self) -> usize {
        self.end - self.start
    }

    /// Copies the first available bytes. Panics if there are not as many.
    pub fn peek(&self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.available());
        self.window.read(self.start, bytes);
    }

    /// Drops `n` available bytes. Panics if there are not as many.
    pub fn consume(&mut self, n: usize) {
        assert!(n <= self.available());
        self.start += n;
    }

    /// Hands out the next `n` bytes without copying them. Panics if there are not as many.
    pub fn take(&mut self, n: usize) -> Buf {
        let part = self.window.slice(self.start..self.start + n);
        self.consume(n);
        part
    }

    /// The next `into.len()` bytes go into `into`: now the available ones, the rest as they are received.
    /// [`Inbox::filled`] tells when it is full.
    pub fn direct(&mut self, into: Buf) {
        let now = self.available().min(into.len());
        into.copy_from(&self.window.slice(self.start..self.start + now));
        self.consume(now);
        self.direct = Some(Direct { into, got: now });
    }

    /// The memory given to [`Inbox::direct`], once it is full.
    pub fn filled(&mut self) -> Option<Buf> {
        self.direct.take_if(|direct| direct.got == direct.into.len()).map(|direct| direct.into)
    }

    /// Bytes still to come for memory given to [`Inbox::direct`], which cannot be written, go into other memory, to be
    /// thrown away.
    pub fn divert(&mut self) {
        if let Some(Direct { into, got }) = &mut self.direct {
            (*into, *got) = (self.pool.take(into.len() - *got), 0);
        }
    }

    /// True while bytes are missing from what was given to [`Inbox::direct`].
    pub fn is_filling(&self) -> bool {
        self.direct.is_some()
    }

    /// Where to receive next. Not empty.
    pub fn target(&mut self) -> Buf {
        self.make_room();
        let space = self.window.slice(self.end..self.window.len());
        match &self.direct {
            Some(direct) => {
                let mut target = direct.into.slice(direct.got..direct.into.len());
                target.append(space);
                target
            }
            None => space,
        }
    }

    /// Takes note of `n` bytes received into the last [`Inbox::target`].
    pub fn received(&mut self, n: usize) {
        let mut rest = n;
        if let Some(direct) = &mut self.direct {
            let there = rest.min(direct.into.len() - direct.got);
            direct.got += there;
            rest -= there;
        }
        self.end += rest;
        assert!(self.end <= self.window.len());
        if self.end == self.window.len() {
            self.size = (self.size * 2).min(WINDOW_MAX);
        }
    }

    /// Bytes of windows that slices keep alive.
    pub fn retired(&mut self) -> usize {
        if !self.retired.is_empty() {
            self.retired.retain(in_use);
        }
        self.retired.iter().map(Buf::len).sum()
    }

    fn make_room(&mut self) {
        let (start, end) = (self.start, self.end);
        if !in_use(&self.window) && self.window.len() >= self.size {
            // The window has no other user: move the rest, less than a message, to its beginning.
            if start > 0 {
                self.window.copy_from(&self.window.slice(start..end));
            }
        } else if self.window.len() - end >= ROOM_MIN {
            return;
        } else {
            let next = self.pool.take(self.size.max(end - start + ROOM_MIN));
            next.copy_from(&self.window.slice(start..end));
            let last = std::mem::replace(&mut self.window, next);
            if in_use(&last) {
                self.retired.push(last);
            }
        }
        (self.start, self.end) = (0, end - start);
    }
}

/// True if a slice of this buffer is still in use.
fn in_use(window: &Buf) -> bool {
    window.segments().first().is_some_and(|segment| Rc::strong_count(segment.owner()) > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `bytes`, at most `piece` at a time.
    fn receive(inbox: &mut Inbox, bytes: &mut &[u8], piece: usize) {
        let target = inbox.target();
        let n = piece.min(target.len()).min(bytes.len());
        target.write(0, &bytes[..n]);
        drop(target);
        inbox.received(n);
        *bytes = &bytes[n..];
    }

    /// Messages of a byte that says their length in units of `unit`, and as many bytes more.
    fn stream(unit: usize) -> Vec<u8> {
        (0..200usize)
            .flat_map(|i| {
                let len = i * 7 % 11;
                std::iter::once(len as u8).chain((0..len * unit).map(move |j| (i * 31 + j) as u8))
            })
            .collect()
    }

    /// Reads a stream of messages cut into pieces, keeping every payload, and puts it together again.
    fn reread(unit: usize, piece: usize, keep: bool) {
        let sent = stream(unit);
        let (mut rest, mut inbox, pool) = (&sent[..], Inbox::new(&Pool::new(1 << 20)), Pool::new(0));
        let (mut read, mut kept): (Vec<u8>, Vec<(usize, Buf)>) = (Vec::new(), Vec::new());
        let mut wanted = None;
        while read.len() < sent.len() {
            let whole = inbox.filled();
            let payload = match (whole, wanted) {
                (Some(whole), _) => whole,
                (None, None) if inbox.available() > 0 => {
                    let mut len = [0];
                    inbox.peek(&mut len);
                    inbox.consume(1);
                    read.extend(len);
                    wanted = Some(usize::from(len[0]) * unit);
                    continue;
                }
                (None, Some(len)) if !inbox.is_filling() && len <= inbox.available() => inbox.take(len),
                (None, Some(len)) if !inbox.is_filling() => {
                    inbox.direct(pool.take(len));
                    continue;
                }
                _ => {
                    receive(&mut inbox, &mut rest, piece);
                    continue;
                }
            };
            wanted = None;
            let at = read.len();
            read.extend(payload.to_vec());
            if keep && !payload.is_empty() {
                kept.push((at, payload));
            }
        }
        assert_eq!(read, sent);
        assert!(keep || inbox.retired() == 0);
        for (at, payload) in &kept {
            assert_eq!(payload.to_vec(), sent[*at..at + payload.len()], "what was handed out has changed");
        }
        drop(kept);
        assert_eq!(inbox.retired(), 0);
    }

    #[test]
    fn streams_come_out_as_they_went_in() {
        for unit in [1, 512, 5000] {
            for piece in [1, 13, 4096, 1 << 20] {
                if piece > 1 || unit == 1 {
                    reread(unit, piece, false);
                    reread(unit, piece, true);
                }
            }
        }
    }

    #[test]
    fn a_window_grows_while_it_is_filled_and_is_used_again() {
        let mut inbox = Inbox::new(&Pool::new(1 << 20));
        let bytes = vec![1; 1 << 20];
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            receive(&mut inbox, &mut rest, 1 << 20);
            inbox.consume(inbox.available());
        }
        assert_eq!(inbox.target().len(), WINDOW_MAX);
        let start = inbox.target().segments()[0].as_ptr();
        assert_eq!(inbox.target().segments()[0].as_ptr(), start);
    }
}
