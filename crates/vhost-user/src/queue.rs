//! A running queue: takes chains from the available ring, lets the node do them, returns them in the used ring.
//!
//! ```text
//!  kick ──▶ turn(): walk, parse, submit ──at once──▶ used entry ───┐
//!                                       └─pending─▶ task ─▶ used entry ─┴─▶ publish(): interrupt
//! ```
//!
//! Invariants: at most as many chains are in flight as the queue has entries; a used entry is published after its data,
//! its status, and the marks of the migration's log; a chain that was taken is in the in-flight region before the node
//! hears of it; a chain for which its export has no memory ([`Taker`]) stays in the ring until there is some. A chain
//! that cannot be answered stops the queue: it takes no more chains until the front-end has stopped it, and requests in
//! flight complete.

mod pending;

use crate::chain::{Broken, Chain};
use crate::dirty::DirtyLog;
use crate::inflight::Tracker;
use crate::memory::Memory;
use crate::request::{self, Parsed, Rules, Status};
use crate::ring::Ring;
use crate::{store, truncation};
use futures_util::FutureExt;
use lamina_block::{Env, Node, Result, Signal, Taker};
use lamina_host::Bell;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};
use virtio_bindings::virtio_blk::VIRTIO_BLK_ID_BYTES;
use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

/// Pieces of guest memory that are walked before others run: as many as a ring full of usual requests has.
const SPANS_A_TURN: usize = 32 << 10;

/// The parts of a queue.
pub(crate) struct Parts {
    /// For logs: which queue of which export.
    pub name: String,
    pub env: Rc<dyn Env>,
    pub node: Rc<Node>,
    pub ring: Ring,
    pub memory: Rc<Memory>,
    pub tracker: Option<Tracker>,
    /// From where to take chains, unless there is a tracker, which knows better.
    pub base: u16,
    pub event_index: bool,
    pub rules: Rules,
    pub serial: [u8; VIRTIO_BLK_ID_BYTES as usize],
    pub log: Option<Rc<DirtyLog>>,
    /// The memory for its requests.
    pub space: Taker,
}

/// The next step after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing is available; the guest will kick.
    Idle,
    /// There is more, but others want to run.
    More,
    /// There are more chains, and no memory for them: wait for [`Queue::space`].
    Full,
    /// The queue takes nothing any more.
    Stopped,
}

/// A running queue.
pub(crate) struct Queue {
    name: String,
    env: Rc<dyn Env>,
    node: Rc<Node>,
    ring: RefCell<Rc<Ring>>,
    memory: RefCell<Rc<Memory>>,
    tracker: Option<Tracker>,
    event_index: Cell<bool>,
    rules: Cell<Rules>,
    serial: [u8; VIRTIO_BLK_ID_BYTES as usize],
    log: RefCell<Option<Rc<DirtyLog>>>,
    call: RefCell<Option<Bell>>,
    error: RefCell<Option<Bell>>,
    /// Heads that a predecessor left in flight, to be done before anything new.
    repeat: RefCell<VecDeque<u16>>,
    chain: RefCell<Chain>,
    next_available: Cell<u16>,
    /// Where the next used entry goes.
    next_used: Cell<u16>,
    /// Up to where the guest knows of used entries.
    published: Cell<u16>,
    in_flight: Cell<u32>,
    /// Requests that failed.
    failed: Cell<u64>,
    /// Heads in the used ring that are not published; only kept for a tracker.
    batch: RefCell<Vec<u16>>,
    /// Takes nothing any more: stopped, or broken by the guest.
    stopped: Cell<bool>,
    /// No caller waits for requests in flight.
    abandoned: Cell<bool>,
    /// Takes nothing for now.
    held: Cell<bool>,
    /// How many mappings had been lost when this was looked at last, by all devices together.
    lost: Cell<usize>,
    /// Its own memory is among them.
    robbed: Cell<bool>,
    pub space: Taker,
    /// A used entry waits to be published.
    pub completed: Signal,
    publish_due: Cell<bool>,
    /// The last chain in flight was published.
    pub drained: Signal,
    /// Its task must look around, though the guest did not kick. Never said through the guest's eventfd: others may
    /// read that.
    pub roused: Signal,
}

/// A chain that the node works on.
struct Taken {
    head: u16,
    status: NonNull<u8>,
    /// Bytes of data that a success has written.
    written: u32,
    /// Its share of the memory for requests.
    cost: usize,
    /// Guest ranges to mark in the migration's log, the status among them.
    dirty: SmallVec<[(u64, u32); 2]>,
}

impl Queue {
    /// A queue that takes up where its predecessor ended. A sentence if the in-flight region cannot be read.
    pub fn new(parts: Parts) -> std::result::Result<Rc<Queue>, String> {
        let used = parts.ring.used_index();
        let (repeat, base) = match &parts.tracker {
            Some(tracker) => {
                let heads = tracker.recover(used)?;
                // Each chain ever taken is used or in flight.
                let base = used.wrapping_add(heads.len() as u16);
                (heads.into(), base)
            }
            None => (VecDeque::new(), parts.base),
        };
        Ok(Rc::new(Queue {
            name: parts.name,
            env: parts.env,
            node: parts.node,
            ring: RefCell::new(Rc::new(parts.ring)),
            memory: RefCell::new(parts.memory),
            tracker: parts.tracker,
            event_index: Cell::new(parts.event_index),
            rules: Cell::new(parts.rules),
            serial: parts.serial,
            log: RefCell::new(parts.log),
            call: RefCell::new(None),
            error: RefCell::new(None),
            repeat: RefCell::new(repeat),
            chain: RefCell::new(Chain::default()),
            next_available: Cell::new(base),
            next_used: Cell::new(used),
            published: Cell::new(used),
            in_flight: Cell::new(0),
            failed: Cell::new(0),
            batch: RefCell::default(),
            stopped: Cell::new(false),
            abandoned: Cell::new(false),
            held: Cell::new(false),
            lost: Cell::new(0),
            robbed: Cell::new(false),
            space: parts.space,
            completed: Signal::new(),
            publish_due: Cell::new(false),
            drained: Signal::new(),
            roused: Signal::new(),
        }))
    }

    /// How many chains a predecessor left in flight and are not yet taken up.
    pub fn to_repeat(&self) -> usize {
        self.repeat.borrow().len()
    }

    /// The index of the next chain to take: for a front-end that stops a drained queue.
    pub fn next_available(&self) -> u16 {
        self.next_available.get()
    }

    /// Chains taken and not published.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Takes nothing any more.
    pub fn stop(&self) {
        self.stopped.set(true);
        self.space.wake();
        self.roused.notify();
        self.completed.notify();
    }

    /// The front-end is gone: chains of many zeroes and discards are not brought to an end. They stay in flight for a
    /// successor, which begins them again.
    pub fn abandon(&self) {
        self.abandoned.set(true);
    }

    /// Takes no chains until [`Queue::release`]; requests in flight go on.
    pub fn hold(&self) {
        self.held.set(true);
    }

    /// Takes chains again, with the next turn.
    pub fn release(&self) {
        self.held.set(false);
        self.roused.notify();
    }

    /// True if nothing is taken any more.
    pub fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// Replaces the way to interrupt the guest, and interrupts it: earlier notices may have been lost.
    pub fn set_call(&self, call: Option<Bell>) {
        if let Some(call) = &call {
            call.ring();
        }
        *self.call.borrow_mut() = call;
    }

    /// Replaces how the front-end hears that the queue is broken.
    pub fn set_error(&self, error: Option<Bell>) {
        *self.error.borrow_mut() = error;
    }

    /// Replaces the tables' place and the memory. Chains in flight keep the memory they have.
    pub fn set_memory(&self, ring: Ring, memory: Rc<Memory>) {
        *self.ring.borrow_mut() = Rc::new(ring);
        *self.memory.borrow_mut() = memory;
    }

    /// Replaces the migration's log. No request may be in flight: its writes would not be marked.
    pub fn set_log(&self, log: Option<Rc<DirtyLog>>) {
        debug_assert!(self.in_flight.get() == 0);
        *self.log.borrow_mut() = log;
    }

    /// Replaces what the guest and the front-end have agreed on.
    pub fn set_rules(&self, rules: Rules, event_index: bool) {
        self.rules.set(rules);
        self.event_index.set(event_index);
    }

    /// Takes what is available, at most as many chains as the queue has entries, and publishes what completed.
    pub fn turn(self: &Rc<Self>) -> Turn {
        let ring = Rc::clone(&*self.ring.borrow());
        let memory = Rc::clone(&*self.memory.borrow());
        if self.held.get() {
            return Turn::Idle;
        }
        let mut budget = ring.size();
        let mut spans = 0;
        self.suppress_kicks(&ring);
        let turn = loop {
            if !self.repeat_left(&ring, &memory) {
                break Turn::Full;
            }
            let available = ring.available_index();
            let waiting = available.wrapping_sub(self.next_available.get());
            if self.stopped.get() {
                break Turn::Stopped;
            }
            if waiting as u32 + self.in_flight.get() > ring.size() as u32 {
                self.fail("more chains are available than the queue has entries");
                break Turn::Stopped;
            }
            if waiting == 0 {
                self.publish_now(&ring);
                if self.ask_for_kick(&ring) {
                    break Turn::Idle;
                }
                continue;
            }
            let mut is_full = false;
            for _ in 0..waiting.min(budget) {
                let at = self.next_available.get();
                self.next_available.set(at.wrapping_add(1));
                is_full = !self.take(&ring, &memory, ring.available_head(at), true);
                if is_full {
                    self.next_available.set(at);
                }
                spans += self.chain.borrow().spans();
                if self.stopped.get() || is_full || spans > SPANS_A_TURN {
                    break;
                }
            }
            if is_full {
                break Turn::Full;
            }
            budget = budget.saturating_sub(waiting);
            if budget == 0 || spans > SPANS_A_TURN {
                break Turn::More;
            }
        };
        self.publish_now(&ring);
        turn
    }

    /// Stops the queue if its memory is not the guest's any more. To be asked after a turn.
    pub fn check_memory(&self) {
        if self.has_lost_memory() && !self.stopped.get() {
            self.fail("the front-end has shrunk the file of the guest's memory");
        }
    }

    /// True if there are zeroes now where its memory was.
    #[inline]
    fn has_lost_memory(&self) -> bool {
        let lost = truncation::lost();
        if self.lost.replace(lost) != lost && self.memory.borrow().is_lost() {
            self.robbed.set(true);
        }
        self.robbed.get()
    }

    /// Takes up what a predecessor left in flight. False if there is no memory for all of them now.
    fn repeat_left(self: &Rc<Self>, ring: &Ring, memory: &Rc<Memory>) -> bool {
        while !self.stopped.get() {
            let Some(head) = self.repeat.borrow().front().copied() else { return true };
            if !self.take(ring, memory, head, false) {
                return false;
            }
            self.repeat.borrow_mut().pop_front();
        }
        true
    }

    /// Takes one chain. `new` unless the in-flight region has it already. False if there is no memory for the chain
    /// now: then nothing has happened.
    #[inline(always)]
    fn take(self: &Rc<Self>, ring: &Ring, memory: &Rc<Memory>, head: u16, new: bool) -> bool {
        let mut chain = self.chain.borrow_mut();
        if let Err(broken) = chain.walk(ring, memory, head) {
            self.give_up(broken);
            return true;
        }
        let parsed = request::parse(&chain, memory, self.rules.get());
        let cost = parsed.cost();
        if !self.space.take(cost, 0) {
            return false;
        }
        if new && let Some(tracker) = &self.tracker {
            tracker.take(head);
        }
        self.in_flight.set(self.in_flight.get() + 1);
        let mut taken = Taken { head, status: chain.status(), written: 0, cost, dirty: SmallVec::new() };
        if self.log.borrow().is_some() {
            match parsed {
                // Nothing else is written, and the rest of the chain may name any amount.
                Parsed::Answer(_) => taken.dirty.extend(chain.status_address()),
                Parsed::Io(..) | Parsed::Several(_) | Parsed::Serial => taken.dirty.extend(chain.writable()),
            }
        }
        match parsed {
            Parsed::Io(io, written) if Node::is_long(&io) => {
                taken.written = written;
                let request = Rc::clone(&self.node).submit_in_pieces(io);
                self.wait_for(request.map(Some), taken, chain.status_owner(memory));
            }
            Parsed::Io(io, written) => {
                taken.written = written;
                let mut request = self.node.submit(io);
                match request.ready() {
                    Some(result) => {
                        self.note(&result);
                        self.complete(ring, &taken, Status::from(&result));
                    }
                    None => self.wait_for(request.map(Some), taken, chain.status_owner(memory)),
                }
            }
            Parsed::Several(ios) => {
                let request = Rc::clone(self).several(ios);
                self.wait_for(request, taken, chain.status_owner(memory));
            }
            Parsed::Serial => {
                let space = chain.data_in(memory);
                let len = space.len().min(self.serial.len());
                space.write(0, &self.serial[..len]);
                taken.written = len as u32;
                self.complete(ring, &taken, Status::Ok);
            }
            Parsed::Answer(status) => self.complete(ring, &taken, status),
        }
        true
    }

    /// Writes the status and the used entry; the guest will see them with the next [`Queue::publish`].
    #[inline(always)]
    fn complete(&self, ring: &Ring, taken: &Taken, status: Status) {
        self.space.give(taken.cost);
        // Bytes copied from memory that the front-end took away meanwhile were zeroes.
        let status = if status == Status::Ok && self.has_lost_memory() { Status::IoError } else { status };
        // SAFETY: the status byte is in memory that the request kept mapped.
        unsafe { store::put(taken.status, status as u8) };
        let written = if status == Status::Ok { taken.written } else { 0 };
        let index = self.next_used.get();
        let changed = ring.put_used(index, taken.head, written.saturating_add(1));
        self.next_used.set(index.wrapping_add(1));
        if let Some(log) = &*self.log.borrow() {
            for (guest, len) in &taken.dirty {
                log.mark(*guest, *len as u64);
            }
            mark_ring(log, ring, changed, 8);
        }
        if let Some(tracker) = &self.tracker {
            tracker.put(taken.head);
            self.batch.borrow_mut().push(taken.head);
        }
    }

    /// Publishes what completed since the last time.
    pub fn publish(&self) {
        let ring = Rc::clone(&*self.ring.borrow());
        self.publish_now(&ring);
    }

    fn publish_now(&self, ring: &Ring) {
        self.publish_due.set(false);
        let (old, new) = (self.published.get(), self.next_used.get());
        if old == new {
            return;
        }
        ring.publish_used(new);
        self.published.set(new);
        if let Some(log) = &*self.log.borrow() {
            mark_ring(log, ring, 2, 2);
        }
        if let Some(tracker) = &self.tracker {
            let mut batch = self.batch.borrow_mut();
            tracker.published(&batch, new);
            batch.clear();
        }
        self.in_flight.set(self.in_flight.get() - new.wrapping_sub(old) as u32);
        // The used index must be visible before the guest's wish is read: the guest does the opposite.
        fence(Ordering::SeqCst);
        if self.wants_interrupt(ring, old, new)
            && let Some(call) = &*self.call.borrow()
        {
            call.ring();
        }
        if self.in_flight.get() == 0 {
            self.drained.notify();
        }
    }

    fn wants_interrupt(&self, ring: &Ring, old: u16, new: u16) -> bool {
        if self.event_index.get() {
            // True if the index that the guest waits for lies in old..new.
            let behind = new.wrapping_sub(ring.used_event()).wrapping_sub(1);
            behind < new.wrapping_sub(old)
        } else {
            ring.available_flags() & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0
        }
    }

    /// While we look at the ring ourselves, kicks only cost. With event index they are not asked for anyway.
    fn suppress_kicks(&self, ring: &Ring) {
        if !self.event_index.get() {
            ring.set_used_flags(VRING_USED_F_NO_NOTIFY as u16);
        }
    }

    /// Asks for a kick with the next chain. False if a chain has become available meanwhile.
    fn ask_for_kick(&self, ring: &Ring) -> bool {
        let next = self.next_available.get();
        let changed = if self.event_index.get() {
            ring.set_available_event(next)
        } else {
            ring.set_used_flags(0);
            0
        };
        if let Some(log) = &*self.log.borrow() {
            mark_ring(log, ring, changed, 2);
        }
        // The wish must be visible before the index is read again: the guest does the opposite.
        fence(Ordering::SeqCst);
        ring.available_index() == next
    }

    /// Logs the first failed request, and then ever fewer: a guest only hears that there was an error.
    fn note(&self, result: &Result<()>) {
        let Err(e) = result else { return };
        let failed = self.failed.get() + 1;
        self.failed.set(failed);
        if failed.is_power_of_two() {
            tracing::warn!("{}: a request failed, the {failed}. of this queue: {e}", self.name);
        }
    }

    fn give_up(&self, broken: Broken) {
        self.fail(broken.reason());
    }

    /// Stops a queue that the guest has broken, and says so.
    pub fn fail(&self, reason: &str) {
        tracing::warn!("{}: the queue is stopped: {reason}", self.name);
        self.stop();
        if let Some(error) = &*self.error.borrow() {
            error.ring();
        }
    }
}

/// Marks `len` bytes at `offset` of the used ring, if there is a log.
fn mark_ring(log: &DirtyLog, ring: &Ring, offset: u64, len: u64) {
    if let Some(guest) = ring.log {
        log.mark(guest.saturating_add(offset), len);
    }
}
