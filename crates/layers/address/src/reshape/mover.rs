//! Moves the bytes of a volume from one layout to another while requests go on.
//!
//! ```text
//!      0 ──────────── position ──── window ───────────── size
//!      │ lie as in `to`  │  being copied │  lie as in `from`  │      upwards; downwards it is the mirror image
//! ```
//!
//! One window after the other is copied: changes of it wait; its bytes are read, written to their new
//! location, and flushed; then the new position is recorded; then requests use the new location. So a crash
//! at any moment leaves every byte at a location that the recorded position names, and the move goes on from
//! there.
//!
//! Invariant: **nothing is written to a location whose byte has not been moved**, not even one of the same
//! window. A window is cut where that would happen, so that no spare room is needed: the old bytes of a
//! window stay good until the position has moved past it, and reads need not wait for it. A window is never
//! empty, because of the order ([`super::Shape`]): when a volume gets wider, every unit moves to the old
//! location of an earlier unit.
//!
//! The module deliberately knows nothing about kinds of layers: only two layouts over the same children.

use super::layout::{Layout, Location, Span};
use lamina_block::{
    Buf, Children, Durability, Env, Error, ExtentState, Healed, Io, Job, Judge, Op, Pending, Request, Result,
    Signal, Step, Zero, all,
};
use lamina_kit::fan_out;
use lamina_kit::flaw::flawed;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

/// The fewest windows of a move, as far as these lengths in bytes allow: requests to a window wait, so that
/// it is a small part of a small device too.
const WINDOWS: u64 = 64;
const LENGTHS: RangeInclusive<u64> = 16 << 10..=4 << 20;

/// The longest window of a move of `size` bytes, and the longest part of a request that is done at once:
/// bytes, whole blocks.
fn longest(size: u64) -> u64 {
    let least = *LENGTHS.start();
    (size / WINDOWS / least * least).clamp(least, *LENGTHS.end())
}

/// A run of bytes that moves as one.
pub(super) struct Piece {
    pub at: Range<u64>,
    from: Location,
    to: Location,
}

/// The bytes that are copied before the position moves on.
pub(super) struct Window {
    pub at: Range<u64>,
    pub pieces: Vec<Piece>,
}

/// A request under way.
struct InFlight {
    at: Range<u64>,
    changes: bool,
    /// How many windows had been moved when the request began.
    windows_moved: u64,
}

/// A move under way.
pub struct Move {
    env: Rc<dyn Env>,
    children: Children,
    from: Layout,
    to: Layout,
    up: bool,
    /// See [`longest`].
    longest: u64,
    /// All bytes before it (upwards) or from it on (downwards) are at their new location.
    pub(super) position: Cell<u64>,
    /// The window; changes of it wait.
    window: RefCell<Range<u64>>,
    /// The error of a failed record, while it is not known which position was recorded: changes of the window
    /// fail until then.
    unverified: RefCell<Option<Error>>,
    in_flight: RefCell<BTreeMap<u64, InFlight>>,
    next: Cell<u64>,
    windows_moved: Cell<u64>,
    /// The window, the error or the requests in flight have changed.
    changed: Signal,
    /// All bytes that move.
    total: u64,
}

impl Move {
    /// A move that has come to `position`.
    pub fn new(
        env: &Rc<dyn Env>,
        children: &Children,
        (from, to): (Layout, Layout),
        up: bool,
        position: u64,
    ) -> Rc<Move> {
        let total = from.differs(&to, 0..from.size());
        let longest = longest(from.size());
        Rc::new(Move {
            longest,
            env: Rc::clone(env),
            children: children.clone(),
            from,
            to,
            up,
            position: Cell::new(position),
            window: RefCell::new(0..0),
            unverified: RefCell::default(),
            in_flight: RefCell::default(),
            next: Cell::new(0),
            windows_moved: Cell::new(0),
            changed: Signal::new(),
            total,
        })
    }

    /// The position of the move.
    pub fn position(&self) -> u64 {
        self.position.get()
    }

    /// Bytes that have been moved, and all that move.
    pub fn progress(&self) -> (u64, u64) {
        let (position, size) = (self.position.get(), self.from.size());
        let done = if self.up { 0..position } else { position..size };
        (self.from.differs(&self.to, done), self.total)
    }
}

// The window.
impl Move {
    /// The runs next to `next` that move together, in the direction of the move; `None` at the end.
    fn spans(&self, next: u64) -> Option<(Range<u64>, Span, Span)> {
        if next == if self.up { self.from.size() } else { 0 } {
            return None;
        }
        let inside = if self.up { next } else { next - 1 };
        let (from, to) = (self.from.span(inside), self.to.span(inside));
        let at = match self.up {
            true => next..from.at.end.min(to.at.end),
            false => from.at.start.max(to.at.start)..next,
        };
        Some((at, from, to))
    }

    /// The next window; `None` if all bytes are at their new location.
    pub(super) fn next_window(&self) -> Result<Option<Window>> {
        let (mut next, mut begin) = (self.position.get(), None);
        let mut pieces: Vec<Piece> = Vec::new();
        while let Some((at, from, to)) = self.spans(next) {
            if from.location(at.start) == to.location(at.start) {
                next = if self.up { at.end } else { at.start };
                continue;
            }
            let begin = *begin.get_or_insert(next);
            let room = self.longest.saturating_sub(next.abs_diff(begin));
            let fits = match self.up {
                true => at.start..at.end.min(at.start.saturating_add(room)),
                false => at.start.max(at.end.saturating_sub(room))..at.end,
            };
            let good = self.without_overlap(&fits, to.location(fits.start), begin);
            if good.is_empty() {
                break;
            }
            next = if self.up { good.end } else { good.start };
            let is_cut = good != at;
            let (from, to) = (from.location(good.start), to.location(good.start));
            pieces.push(Piece { at: good, from, to });
            if is_cut {
                break;
            }
        }
        if !self.up {
            pieces.reverse();
        }
        match (pieces.first(), pieces.last()) {
            (Some(first), Some(last)) => Ok(Some(Window { at: first.at.start..last.at.end, pieces })),
            _ if begin.is_none() => Ok(None),
            _ => Err(Error::invalid(
                "the kept layouts cannot follow each other: a byte would overwrite another",
            )),
        }
    }

    /// The part of `at`, in the direction of the move, that can be written to `to` while nothing from `begin`
    /// on has been moved.
    fn without_overlap(&self, at: &Range<u64>, to: Location, begin: u64) -> Range<u64> {
        if flawed("a window overlaps what has not been moved") {
            return at.clone();
        }
        let (len, mut good) = (at.end - at.start, at.clone());
        let mut done = 0;
        while done < len {
            let (run, occupant) = self.from.holds(Location { there: to.there + done, ..to });
            let run = run.min(len - done);
            match occupant {
                Some(byte) if self.up && byte + run > begin => {
                    return at.start..at.start + done + begin.saturating_sub(byte);
                }
                Some(byte) if !self.up && byte < begin => {
                    good.start = at.start + done + run.min(begin - byte);
                }
                Some(_) | None => {}
            }
            done += run;
        }
        good
    }

    /// Moves the next window, when `job` allows it. `keep` makes the new position durable. False if there is
    /// nothing left to move.
    ///
    /// After an error the window is where it was, and this may be called again. Only if `keep` failed is it
    /// not known which position was recorded, and `keep` is called twice: then changes of the window fail
    /// until it succeeds.
    pub async fn step(&self, job: &Job, keep: impl Fn(u64) -> Pending) -> Result<bool> {
        let Some(window) = self.next_window()? else { return Ok(false) };
        let bytes = window.pieces.iter().map(|piece| piece.at.end - piece.at.start).sum();
        job.turn(bytes).await?;
        self.lock(window.at.clone()).await;
        let position = if self.up { window.at.end } else { window.at.start };
        if flawed("the position before the copy") {
            keep(position).await?;
        }
        let copied = self.copy(&window, bytes).await;
        if let Err(e) = copied {
            if self.unverified.borrow().is_none() {
                self.unlock();
            }
            return Err(e);
        }
        let kept = match keep(position).await {
            Ok(()) => Ok(()),
            // A passing error should not be noticed.
            Err(_) => keep(position).await,
        };
        match kept {
            Ok(()) => self.unverified.take(),
            Err(e) => {
                *self.unverified.borrow_mut() = Some(e.clone());
                self.changed.notify();
                return Err(e);
            }
        };
        self.position.set(position);
        self.windows_moved.set(self.windows_moved.get() + 1);
        self.unlock();
        let (done, total) = self.progress();
        job.set_progress(done, total);
        // The window's old locations may be overwritten from now on: not while they are being read.
        let windows_moved = self.windows_moved.get();
        if flawed("reads of the old place are not waited for") {
            return Ok(true);
        }
        self.drain(|in_flight| {
            in_flight.windows_moved < windows_moved && overlaps(&in_flight.at, &window.at)
        })
        .await;
        Ok(true)
    }

    async fn lock(&self, at: Range<u64>) {
        self.window.replace(at.clone());
        if flawed("changes under way are not waited for") {
            return;
        }
        self.drain(|in_flight| in_flight.changes && overlaps(&in_flight.at, &at)).await;
    }

    fn unlock(&self) {
        self.window.replace(0..0);
        self.changed.notify();
    }

    /// Waits until no request is in flight that `matters`.
    async fn drain(&self, matters: impl Fn(&InFlight) -> bool) {
        self.changed.until(|| !self.in_flight.borrow().values().any(&matters)).await;
    }

    /// Copies a window of `bytes`; the copy is durable when this ends.
    async fn copy(&self, window: &Window, bytes: u64) -> Result<()> {
        let data = self.data(&window.pieces).await;
        let memory = self.env.pool().take(bytes as usize);
        let (mut reads, mut writes, mut zeroes, mut next) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for Piece { at, from, to } in &window.pieces {
            let len = at.end - at.start;
            let bytes = memory.slice(next..next + len as usize);
            next += len as usize;
            let source = from.there..from.there + len;
            if data.iter().any(|(child, data)| *child == from.child && overlaps(data, &source)) {
                gather(&mut reads, *from, bytes.clone());
                gather(&mut writes, *to, bytes);
            } else {
                zeroes.push((*to, len));
            }
        }
        let read = |(location, into): (Location, Buf)| {
            self.children[location.child].submit(Io::read(location.there, into))
        };
        all(reads.into_iter().map(read)).await?;
        let write = |(location, from): (Location, Buf)| {
            self.children[location.child].submit(Io::write(location.there, from, Durability::Cached))
        };
        let zero = |(location, len): (Location, u64)| {
            let how = Zero { unmap: true, ..Zero::default() };
            self.children[location.child].submit(Io::zero(location.there..location.there + len, how))
        };
        all(writes.into_iter().map(write).chain(zeroes.into_iter().map(zero))).await?;
        let mut touched: Vec<usize> = window.pieces.iter().map(|piece| piece.to.child).collect();
        touched.sort_unstable();
        touched.dedup();
        all(touched.into_iter().map(|child| self.children[child].submit(Io::flush()))).await
    }

    /// The ranges of data in the sources of `pieces`. Unknown ranges are taken for data.
    async fn data(&self, pieces: &[Piece]) -> Vec<(usize, Range<u64>)> {
        let mut sources: Vec<(usize, Range<u64>)> = Vec::new();
        for Piece { at, from, .. } in pieces {
            let source = from.there..from.there + (at.end - at.start);
            match sources.iter_mut().rev().find(|(child, _)| *child == from.child) {
                Some((_, before)) if before.end == source.start => before.end = source.end,
                Some(_) | None => sources.push((from.child, source)),
            }
        }
        let mut data = Vec::new();
        for (child, source) in sources {
            let Ok(runs) = self.children[child].extents(source.clone()).await else {
                data.push((child, source));
                continue;
            };
            let mut start = source.start;
            for run in runs {
                if run.state == ExtentState::Data {
                    data.push((child, start..start + run.len));
                }
                start += run.len;
            }
        }
        data
    }
}

// Requests.
impl Move {
    /// Decides what happens to a request that is no flush while bytes move.
    pub fn submit(self: &Rc<Self>, io: &mut Io) -> Step {
        if let Err(e) = fan_out::refuse_fast_zero(io, self.children.iter()) {
            return e.into();
        }
        match &io.op {
            // A discard may be left undone, and would take long where the units are small.
            Op::Discard if io.len() > self.longest => Step::Done(Ok(())),
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => {
                Step::control(Rc::clone(self).request(io.take()))
            }
        }
    }

    async fn request(self: Rc<Self>, io: Io) -> Result<()> {
        let changes = match io.op {
            Op::Read(_) | Op::Flush => false,
            Op::Write(..) | Op::Zero(_) | Op::Discard => true,
        };
        let mut next = io.at.start;
        while next < io.at.end {
            let part = next..io.at.end.min(next + self.longest);
            next = part.end;
            let _flying = self.enter(&part, changes).await?;
            all(self.split(&io, part)).await?;
        }
        Ok(())
    }

    /// Another copy of `at`, if it lies on one child: the copy may be written there, so this is a change.
    pub async fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        let _flying = self.enter(&at, true).await?;
        let span = self.span(at.start);
        if span.at.end < at.end {
            return Ok(None);
        }
        let Location { child, there } = span.location(at.start);
        self.children[child].heal(there..there + (at.end - at.start), is_right).await
    }

    /// Waits until `at` may be changed (or read, which is always allowed), and counts the request as in
    /// flight.
    async fn enter(&self, at: &Range<u64>, changes: bool) -> Result<Entered<'_>> {
        while changes && self.is_locked(at) {
            if let Some(e) = &*self.unverified.borrow() {
                return Err(e.clone());
            }
            self.changed.wait().await;
        }
        let number = self.next.replace(self.next.get() + 1);
        let in_flight = InFlight { at: at.clone(), changes, windows_moved: self.windows_moved.get() };
        self.in_flight.borrow_mut().insert(number, in_flight);
        Ok(Entered(self, number))
    }

    fn is_locked(&self, at: &Range<u64>) -> bool {
        if flawed("changes do not wait for the window") {
            return false;
        }
        overlaps(&self.window.borrow(), at)
    }

    /// The run that byte `at` lies in now.
    pub(super) fn span(&self, at: u64) -> Span {
        let position = self.position.get();
        let is_moved = if self.up { at < position } else { at >= position };
        let mut span = if is_moved { self.to.span(at) } else { self.from.span(at) };
        if at < position {
            span.at.end = span.at.end.min(position);
        }
        span
    }

    /// Submits the parts of `at`.
    fn split<'a>(&'a self, io: &'a Io, at: Range<u64>) -> impl Iterator<Item = Request> + 'a {
        let mut next = at.start;
        std::iter::from_fn(move || {
            let span = (next < at.end).then(|| self.span(next))?;
            let part = next..span.at.end.min(at.end);
            next = part.end;
            let Location { child, there } = span.location(part.start);
            Some(self.children[child].submit(io.part(part, there)))
        })
    }
}

/// A request under way, until it is dropped.
struct Entered<'a>(&'a Move, u64);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.in_flight.borrow_mut().remove(&self.1);
        self.0.changed.notify();
    }
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Adds memory for `location` to `parts`, to the last one of the device if it follows.
fn gather(parts: &mut Vec<(Location, Buf)>, location: Location, bytes: Buf) {
    match parts.iter_mut().rev().find(|(before, _)| before.child == location.child) {
        Some((before, memory)) if before.there + memory.len() as u64 == location.there => {
            memory.append(bytes)
        }
        Some(_) | None => parts.push((location, bytes)),
    }
}
