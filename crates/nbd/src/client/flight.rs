//! Commands that wait for their reply, and its received part.
//!
//! Invariants: a command is answered once; a command whose caller has given up stays until the server has answered,
//! because the server's data are received into its memory; on a new connection every unanswered command is sent again,
//! in the order in which they were first given. [`Flight::fail_all`] reports whether a server may have received failed
//! changes: their outcome is open.

use crate::errno;
use crate::wire::{self, Descriptor, cmd, state};
use lamina_block::{Buf, Error, Extent, ExtentState, Result, Time};
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The most pieces that a server may send of one read out of order.
const PIECES_MAX: usize = 1024;

/// A command on the wire.
#[derive(Clone)]
pub struct Command {
    /// [`cmd`]
    pub command: u16,
    /// [`crate::wire::cmd_flag`]
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// The memory that a write sends, or a read fills.
    pub data: Buf,
}

impl Command {
    /// Whether the command changes the export.
    pub fn changes(&self) -> bool {
        matches!(self.command, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES)
    }
}

/// The parts of a reply beside data.
pub type Runs = Vec<Extent>;

struct Entry {
    command: Command,
    /// Order of submission.
    turn: u64,
    /// Sent on this connection, or being sent.
    sent: bool,
    /// Sent at some time.
    tried: bool,
    /// Its data are being sent. The memory is not handed back before that has ended, whatever the server answers: the
    /// caller may change it then.
    sending: bool,
    /// When a connection was first lost with this unanswered.
    lost: Option<Time>,
    /// Parts of a read that have arrived, relative to its start, in order and apart.
    pieces: Vec<Range<u32>>,
    runs: Runs,
    error: Option<Error>,
    result: Option<Result<Runs>>,
    waker: Option<Waker>,
    abandoned: bool,
}

impl Entry {
    /// A change that the server may have received, or may yet.
    fn is_open(&self) -> bool {
        self.tried && self.command.changes()
    }

    /// Wakes the caller, if the result is ready.
    fn hand_back(&mut self) {
        if self.result.is_some()
            && !self.sending
            && let Some(waker) = self.waker.take()
        {
            waker.wake();
        }
    }
}

#[derive(Default)]
struct Inner {
    entries: Slab<Entry>,
    /// Commands that are not sent yet.
    unsent: VecDeque<usize>,
    turn: u64,
    /// Commands without an answer.
    waiting: usize,
    /// Commands answered so far.
    answered: u64,
}

/// The commands of one connection.
#[derive(Default)]
pub struct Flight(RefCell<Inner>);

/// A reply that does not fit what was asked: the connection cannot be trusted any more.
pub fn odd(what: impl Into<String>) -> Error {
    Error::offline(format!("the server broke the protocol: {}", what.into()))
}

impl Flight {
    /// Queues a command. The number by which its reply is known.
    pub fn add(&self, command: Command) -> usize {
        let inner = &mut *self.0.borrow_mut();
        inner.turn += 1;
        inner.waiting += 1;
        let key = inner.entries.insert(Entry {
            command,
            turn: inner.turn,
            sent: false,
            tried: false,
            sending: false,
            lost: None,
            pieces: Vec::new(),
            runs: Vec::new(),
            error: None,
            result: None,
            waker: None,
            abandoned: false,
        });
        inner.unsent.push_back(key);
        key
    }

    /// Commands without an answer.
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting
    }

    /// Commands answered so far, well or not.
    pub fn answered(&self) -> u64 {
        self.0.borrow().answered
    }

    /// True if nothing waits to be sent.
    pub fn is_sent(&self) -> bool {
        self.0.borrow().unsent.is_empty()
    }

    /// Takes the next command to send.
    pub fn next_unsent(&self) -> Option<(usize, Command)> {
        let inner = &mut *self.0.borrow_mut();
        let key = inner.unsent.pop_front()?;
        let entry = &mut inner.entries[key];
        (entry.sent, entry.tried) = (true, true);
        entry.sending = entry.command.command == cmd::WRITE;
        Some((key, entry.command.clone()))
    }

    /// The data of the write `key` have been sent.
    pub fn sent(&self, key: usize) {
        // The entry may be gone, when its caller gave up and the server was quick.
        if let Some(entry) = self.0.borrow_mut().entries.get_mut(key) {
            entry.sending = false;
            entry.hand_back();
        }
    }

    /// The command with this number, if sent and unanswered.
    pub fn command(&self, cookie: u64) -> Result<(usize, Command)> {
        let inner = self.0.borrow();
        let key = usize::try_from(cookie).unwrap_or(usize::MAX);
        match inner.entries.get(key) {
            Some(entry) if entry.sent && entry.result.is_none() => Ok((key, entry.command.clone())),
            _ => Err(odd("a reply to a request that was not made")),
        }
    }

    /// Takes note of a part of a read.
    pub fn piece(&self, key: usize, part: Range<u32>) -> Result<()> {
        let pieces = &mut self.0.borrow_mut().entries[key].pieces;
        let at = pieces.partition_point(|piece| piece.end <= part.start);
        if pieces.get(at).is_some_and(|next| next.start < part.end) {
            return Err(odd("parts of a read overlap"));
        }
        if at > 0 && pieces[at - 1].end == part.start {
            pieces[at - 1].end = part.end;
        } else if pieces.len() >= PIECES_MAX {
            return Err(odd("a read in too many pieces"));
        } else {
            pieces.insert(at, part);
        }
        Ok(())
    }

    /// Takes note of an error in a reply that may go on.
    pub fn fail(&self, key: usize, number: u32, message: &str) {
        self.0.borrow_mut().entries[key].error.get_or_insert_with(|| errno::error(number, message));
    }

    /// The memory of a read or write cannot be accessed: the command fails with `e` when the server has answered.
    pub fn spoil(&self, key: usize, e: &Error) {
        // The entry may be gone, when its caller gave up and the server was quick.
        if let Some(entry) = self.0.borrow_mut().entries.get_mut(key) {
            entry.error.get_or_insert_with(|| Error::new(e.kind(), e.message()));
        }
    }

    /// Takes note of a block status.
    pub fn status(&self, key: usize, descriptors: &[Descriptor]) -> Result<()> {
        let entry = &mut self.0.borrow_mut().entries[key];
        let mut left = u64::from(entry.command.len);
        if !entry.runs.is_empty() {
            return Err(odd("two block states in one reply"));
        }
        for descriptor in descriptors {
            let len = u64::from(descriptor.len.get());
            if len == 0 {
                return Err(odd("an empty run in a block status"));
            }
            // The last run may go beyond what was asked.
            let state = match descriptor.status.get() & (state::HOLE | state::ZERO) {
                status if status & state::ZERO == 0 => ExtentState::Data,
                status if status & state::HOLE == 0 => ExtentState::Zero,
                _ => ExtentState::Hole,
            };
            Extent::push(&mut entry.runs, len.min(left), state);
            left -= len.min(left);
        }
        Ok(())
    }

    /// The reply is complete.
    pub fn done(&self, key: usize) -> Result<()> {
        let result = {
            let entry = &mut self.0.borrow_mut().entries[key];
            let whole = entry.command.len as usize;
            match (entry.error.take(), entry.command.command) {
                (Some(e), _) => Err(e.at(range(&entry.command))),
                // The pieces are apart and inside the read.
                (None, cmd::READ) if entry.pieces.iter().map(Range::len).sum::<usize>() != whole => {
                    return Err(odd("a read came without all of its data"));
                }
                (None, cmd::BLOCK_STATUS) if entry.runs.is_empty() => {
                    return Err(odd("a block status without a run"));
                }
                (None, _) => Ok(std::mem::take(&mut entry.runs)),
            }
        };
        self.complete(key, result);
        Ok(())
    }

    fn complete(&self, key: usize, result: Result<Runs>) {
        let inner = &mut *self.0.borrow_mut();
        inner.waiting -= 1;
        inner.answered += 1;
        let entry = &mut inner.entries[key];
        if entry.abandoned {
            inner.entries.remove(key);
            return;
        }
        entry.result = Some(result);
        entry.hand_back();
    }

    fn unanswered(&self) -> Vec<usize> {
        let inner = self.0.borrow();
        let mut keys: Vec<_> =
            inner.entries.iter().filter(|(_, entry)| entry.result.is_none()).map(|(key, _)| key).collect();
        keys.sort_by_key(|key| inner.entries[*key].turn);
        keys
    }

    /// The connection is gone at `now`: everything unanswered is to be sent again, but for what was lost with a
    /// connection `reconnect` ago already. Such a command fails with `e`, whatever else the server may have answered
    /// since. True if changes were given up whose outcome is open.
    pub fn rewind(&self, now: Time, reconnect: Duration, e: &Error) -> bool {
        self.stop_sending();
        let mut open = false;
        for key in self.unanswered() {
            let lost = *self.0.borrow_mut().entries[key].lost.get_or_insert(now);
            if now.since(lost) > reconnect {
                open |= self.give_up(key, e);
            }
        }
        let keys = self.unanswered();
        let inner = &mut *self.0.borrow_mut();
        inner.unsent.clear();
        for key in keys {
            let entry = &mut inner.entries[key];
            if entry.abandoned {
                inner.entries.remove(key);
                inner.waiting -= 1;
                continue;
            }
            entry.sent = false;
            entry.pieces.clear();
            entry.runs.clear();
            entry.error = None;
            inner.unsent.push_back(key);
        }
        open
    }

    /// There is no connection on which anything is being sent.
    fn stop_sending(&self) {
        for (_, entry) in &mut self.0.borrow_mut().entries {
            entry.sending = false;
            entry.hand_back();
        }
    }

    /// Answers everything with an error. There is no connection. True if there were changes whose outcome is open.
    pub fn fail_all(&self, e: &Error) -> bool {
        self.stop_sending();
        let keys = self.unanswered();
        self.0.borrow_mut().unsent.clear();
        keys.into_iter().fold(false, |open, key| open | self.give_up(key, e))
    }

    /// Answers a command with an error. True for a change whose outcome is open.
    fn give_up(&self, key: usize, e: &Error) -> bool {
        let (at, open) = {
            let entry = &self.0.borrow().entries[key];
            (range(&entry.command), entry.is_open())
        };
        self.complete(key, Err(e.clone().at(at)));
        open
    }
}

fn range(command: &Command) -> Range<u64> {
    command.offset..command.offset.saturating_add(command.len.into())
}

/// The header of a command.
pub fn header(key: usize, command: &Command) -> wire::Request {
    wire::Request {
        magic: wire::REQUEST_MAGIC.into(),
        flags: command.flags.into(),
        command: command.command.into(),
        cookie: (key as u64).into(),
        offset: command.offset.into(),
        len: command.len.into(),
    }
}

/// Waits for the reply to a command.
pub struct Reply {
    /// Where the command is.
    pub flight: Rc<Flight>,
    /// Its number.
    pub key: usize,
}

impl Future for Reply {
    type Output = Result<Runs>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Runs>> {
        let entry = &mut self.flight.0.borrow_mut().entries[self.key];
        // The entry is removed when this is dropped.
        match entry.result.take_if(|_| !entry.sending) {
            Some(result) => {
                entry.result = Some(Ok(Vec::new()));
                Poll::Ready(result)
            }
            None => {
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let inner = &mut *self.flight.0.borrow_mut();
        let entry = &mut inner.entries[self.key];
        if entry.result.is_some() {
            inner.entries.remove(self.key);
        } else {
            entry.abandoned = true;
        }
    }
}
