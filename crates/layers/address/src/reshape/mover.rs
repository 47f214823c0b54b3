//! Moves the bytes of a volume from one layout to another while requests go on.
//!
//! ```text
//!      0 ──────────── position ──── window ───────────── size
//!      │ lie as in `to`  │  being copied │  lie as in `from`  │      upwards; downwards it is the mirror image
//! ```
//!
//! One window after the other is copied: changes of it wait; what it holds is read, written where it is to lie, and
//! flushed; then the new position is kept; then requests find it in its new place. So a crash at any moment leaves
//! every byte in a place that the kept position names, and the move goes on from there.
//!
//! Invariant: **nothing is written where a byte lies that has not been moved**, not even one of the same window. A
//! window is cut where that would happen, so that no spare room is needed: the old bytes of a window stay good until
//! the position has moved past it, and reads need not wait for it. That a window is never empty follows from the order
//! ([`super::Shape`]): when a volume gets wider, every unit moves to a place that a unit before it has left.
//!
//! It deliberately knows nothing about kinds of layers: two layouts over the same children are all there is.

use super::layout::{Layout, Place, Span};
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

/// Windows that a move has at least, as far as these lengths in bytes allow: requests to a window wait, so that it is a small
/// part of a small device too.
const WINDOWS: u64 = 64;
const LENGTHS: RangeInclusive<u64> = 16 << 10..=4 << 20;

/// The longest window of a move of `size` bytes, and the longest part of a request that is done at once: bytes, whole blocks.
fn longest(size: u64) -> u64 {
    let least = *LENGTHS.start();
    (size / WINDOWS / least * least).clamp(least, *LENGTHS.end())
}

/// A run of bytes that moves as one.
pub(super) struct Piece {
    pub at: Range<u64>,
    from: Place,
    to: Place,
}

/// What is copied before the position moves on.
pub(super) struct Window {
    pub at: Range<u64>,
    pub pieces: Vec<Piece>,
}

/// A request under way.
struct Flying {
    at: Range<u64>,
    changes: bool,
    /// How many windows had been moved when it began.
    turn: u64,
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
    /// All bytes before it (upwards) or from it on (downwards) lie where they are to.
    pub(super) position: Cell<u64>,
    /// Changes of it wait.
    window: RefCell<Range<u64>>,
    /// Whether the window's new position was kept is not known: changes of it fail until it is.
    doubt: RefCell<Option<Error>>,
    flying: RefCell<BTreeMap<u64, Flying>>,
    next: Cell<u64>,
    turn: Cell<u64>,
    /// The window, the doubt or what is under way has changed.
    changed: Signal,
    /// Bytes that move in all.
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
            doubt: RefCell::default(),
            flying: RefCell::default(),
            next: Cell::new(0),
            turn: Cell::new(0),
            changed: Signal::new(),
            total,
        })
    }

    /// How far it is.
    pub fn position(&self) -> u64 {
        self.position.get()
    }

    /// Bytes that have been moved, and that are moved in all.
    pub fn progress(&self) -> (u64, u64) {
        let (position, size) = (self.position.get(), self.from.size());
        let done = if self.up { 0..position } else { position..size };
        (self.from.differs(&self.to, done), self.total)
    }
}

// The window.
impl Move {
    /// What lies together next to `next`, in the direction of the move; `None` at the end.
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

    /// The next window; `None` if everything lies where it is to.
    pub(super) fn next_window(&self) -> Result<Option<Window>> {
        let (mut next, mut begin) = (self.position.get(), None);
        let mut pieces: Vec<Piece> = Vec::new();
        while let Some((at, from, to)) = self.spans(next) {
            if from.place(at.start) == to.place(at.start) {
                next = if self.up { at.end } else { at.start };
                continue;
            }
            let begin = *begin.get_or_insert(next);
            let room = self.longest.saturating_sub(next.abs_diff(begin));
            let fits = match self.up {
                true => at.start..at.end.min(at.start.saturating_add(room)),
                false => at.start.max(at.end.saturating_sub(room))..at.end,
            };
            let good = self.harmless(&fits, to.place(fits.start), begin);
            if good.is_empty() {
                break;
            }
            next = if self.up { good.end } else { good.start };
            let is_cut = good != at;
            let (from, to) = (from.place(good.start), to.place(good.start));
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

    /// As much of `at`, in the direction of the move, as can be written to `to` while nothing from `begin` on has been
    /// moved.
    fn harmless(&self, at: &Range<u64>, to: Place, begin: u64) -> Range<u64> {
        if flawed("a window overlaps what has not been moved") {
            return at.clone();
        }
        let (len, mut good) = (at.end - at.start, at.clone());
        let mut done = 0;
        while done < len {
            let (run, held) = self.from.holds(Place { there: to.there + done, ..to });
            let run = run.min(len - done);
            match held {
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

    /// Moves the next window, when `job` says that it may. `keep` makes the new position durable. False if there is
    /// nothing left to move.
    ///
    /// After an error the window is where it was, and this may be called again. Only if `keep` failed is it not known
    /// which position was kept, and it is asked twice: then changes of the window fail until it succeeds.
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
            if self.doubt.borrow().is_none() {
                self.unlock();
            }
            return Err(e);
        }
        let kept = match keep(position).await {
            Ok(()) => Ok(()),
            // Nobody should have to notice what passes.
            Err(_) => keep(position).await,
        };
        match kept {
            Ok(()) => self.doubt.take(),
            Err(e) => {
                *self.doubt.borrow_mut() = Some(e.clone());
                self.changed.notify();
                return Err(e);
            }
        };
        self.position.set(position);
        self.turn.set(self.turn.get() + 1);
        self.unlock();
        let (done, total) = self.progress();
        job.set_progress(done, total);
        // The window's old places may be written over from now on: not while they are being read.
        let turn = self.turn.get();
        if flawed("reads of the old place are not waited for") {
            return Ok(true);
        }
        self.drain(|flying| flying.turn < turn && overlaps(&flying.at, &window.at)).await;
        Ok(true)
    }

    async fn lock(&self, at: Range<u64>) {
        self.window.replace(at.clone());
        if flawed("changes under way are not waited for") {
            return;
        }
        self.drain(|flying| flying.changes && overlaps(&flying.at, &at)).await;
    }

    fn unlock(&self) {
        self.window.replace(0..0);
        self.changed.notify();
    }

    /// Waits until nothing is under way that `matters`.
    async fn drain(&self, matters: impl Fn(&Flying) -> bool) {
        self.changed.until(|| !self.flying.borrow().values().any(&matters)).await;
    }

    /// Copies a window of `bytes`; durable when it ends.
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
        let read =
            |(place, into): (Place, Buf)| self.children[place.child].submit(Io::read(place.there, into));
        all(reads.into_iter().map(read)).await?;
        let write = |(place, from): (Place, Buf)| {
            self.children[place.child].submit(Io::write(place.there, from, Durability::Cached))
        };
        let zero = |(place, len): (Place, u64)| {
            let how = Zero { unmap: true, ..Zero::default() };
            self.children[place.child].submit(Io::zero(place.there..place.there + len, how))
        };
        all(writes.into_iter().map(write).chain(zeroes.into_iter().map(zero))).await?;
        let mut touched: Vec<usize> = window.pieces.iter().map(|piece| piece.to.child).collect();
        touched.sort_unstable();
        touched.dedup();
        all(touched.into_iter().map(|child| self.children[child].submit(Io::flush()))).await
    }

    /// Where in the sources of `pieces` there is data. What is not known is taken for data.
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
    /// What happens to a request that is no flush while bytes move.
    pub fn submit(self: &Rc<Self>, io: &mut Io) -> Step {
        if let Err(e) = fan_out::refuse_fast_zero(io, self.children.iter()) {
            return e.into();
        }
        match &io.op {
            // It may be left undone, and would take long where the units are small.
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

    /// Another copy of `at`, of what lies on one child: it may be written there, so it is a change.
    pub async fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Result<Option<Healed>> {
        let _flying = self.enter(&at, true).await?;
        let span = self.span(at.start);
        if span.at.end < at.end {
            return Ok(None);
        }
        let Place { child, there } = span.place(at.start);
        self.children[child].heal(there..there + (at.end - at.start), is_right).await
    }

    /// Waits until `at` may be changed (or read, which is always), and counts it as under way.
    async fn enter(&self, at: &Range<u64>, changes: bool) -> Result<Entered<'_>> {
        while changes && self.is_locked(at) {
            if let Some(e) = &*self.doubt.borrow() {
                return Err(e.clone());
            }
            self.changed.wait().await;
        }
        let number = self.next.replace(self.next.get() + 1);
        let flying = Flying { at: at.clone(), changes, turn: self.turn.get() };
        self.flying.borrow_mut().insert(number, flying);
        Ok(Entered(self, number))
    }

    fn is_locked(&self, at: &Range<u64>) -> bool {
        if flawed("changes do not wait for the window") {
            return false;
        }
        overlaps(&self.window.borrow(), at)
    }

    /// The run that byte `at` lies in now.
    fn span(&self, at: u64) -> Span {
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
            let Place { child, there } = span.place(part.start);
            Some(self.children[child].submit(io.part(part, there)))
        })
    }
}

/// A request under way, until it is dropped.
struct Entered<'a>(&'a Move, u64);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.flying.borrow_mut().remove(&self.1);
        self.0.changed.notify();
    }
}

fn overlaps(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Adds memory for `place` to `parts`, to the last one of the device if it follows.
fn gather(parts: &mut Vec<(Place, Buf)>, place: Place, bytes: Buf) {
    match parts.iter_mut().rev().find(|(before, _)| before.child == place.child) {
        Some((before, memory)) if before.there + memory.len() as u64 == place.there => memory.append(bytes),
        Some(_) | None => parts.push((place, bytes)),
    }
}
