//! Writes, zeroes and discards that are not handed on in place.
//!
//! A first write into an extent that a snapshot has, or that has no physical extent, goes to a new one,
//! together with the rest of the old one. The extent is locked meanwhile. The old physical extent stays as it
//! is.

use super::core::Core;
use super::read::Version;
use super::state::{Action, Covers, Location, PhysicalExtent, Wait};
use lamina_block::{Buf, Cause, Durability, Error, ErrorKind, Io, Op, Request, Result, Zero, all, wait};
use lamina_kit::fan_out::Runs;
use lamina_metadata::extents::{Entry, FANOUT, levels_for};
use std::ops::Range;
use std::rc::Rc;

/// The most extents that are changed at once.
const PIECE: u64 = 32;

/// Room in the map for entries of one leaf.
struct Reserved {
    core: Rc<Core>,
    extent: u64,
    entries: usize,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.core.change(|state| state.overlay.end_reservation(self.extent, self.entries));
        self.core.moved.notify();
    }
}

/// New physical extents that have no owner yet.
struct Given {
    core: Rc<Core>,
    extents: Vec<u64>,
}

impl Drop for Given {
    fn drop(&mut self) {
        // No request is on its way to them: the write that got them has waited for the earlier requests.
        self.core.space.borrow().release(&self.extents);
        self.core.moved.notify();
    }
}

impl Core {
    /// Carries out a write, a zeroing or a discard.
    pub async fn alter(self: Rc<Self>, io: Io) -> Result<()> {
        if let Op::Zero(Zero { fast: true, .. }) = io.op {
            self.check_fast(&io.at)?;
        }
        let mut at = io.at.start;
        while at < io.at.end {
            let first = at >> self.shift();
            let mut last = (first / FANOUT * FANOUT + FANOUT).min(first + PIECE);
            if !matches!(io.op, Op::Write(..)) {
                // Extents without a physical extent need no change, however many there are.
                let end = self.extents_of(io.at.end);
                let from = self.next(Version::Now, first, end).await?;
                if from > first {
                    at = (from << self.shift()).min(io.at.end);
                    continue;
                }
                last = (first / FANOUT * FANOUT + FANOUT).min(first + PIECE);
            }
            let end = (last << self.shift()).min(io.at.end);
            self.alter_piece(&io, at..end).await?;
            at = end;
        }
        let forced = match io.op {
            Op::Write(_, durability) => durability == Durability::Fua,
            Op::Zero(how) => how.durability == Durability::Fua,
            Op::Read(_) | Op::Discard | Op::Flush => false,
        };
        let visible = !matches!(io.op, Op::Discard) && !self.lasts(&self.state(), &io.at);
        if !forced && !visible {
            return Ok(());
        }
        let _waits = wait(Cause::Metadata);
        self.flush().await
    }

    /// Zeroing is fast where whole extents are unmapped. At the ends of the range the child must be fast.
    fn check_fast(&self, at: &Range<u64>) -> Result<()> {
        let whole = (at.start | at.end) & (self.extent() - 1) == 0;
        match whole || self.child.geometry().zero {
            true => Ok(()),
            false => Err(Error::unsupported("zeroing is not fast here").at(at.clone()).on(self.child.name())),
        }
    }

    /// Changes extents of one leaf, at most [`PIECE`].
    async fn alter_piece(self: &Rc<Self>, io: &Io, at: Range<u64>) -> Result<()> {
        let extents = at.start >> self.shift()..((at.end - 1) >> self.shift()) + 1;
        let locked = self.locks.lock(&extents).await;
        let _room = self.reserve(&extents).await?;
        let mut given = Given { core: Rc::clone(self), extents: Vec::new() };
        // Until there is nothing to wait for: the actions are still right when requests are submitted.
        let actions = loop {
            let locations = self.locations(extents.start..=extents.end - 1).await?;
            let actions: Vec<Action> = extents
                .clone()
                .zip(&locations)
                .map(|(extent, location)| self.action(io, &at, extent, *location))
                .collect();
            let copies = actions.iter().any(|action| matches!(action, Action::Copy(Some(_))));
            let needed = actions.iter().filter(|action| action.is_new()).count();
            if copies && self.atomic() && self.grace.is_draining() {
                // Requests may still be writing to the extents to be copied.
                self.grace.drained().await;
            } else if given.extents.len() < needed {
                // An extent that no snapshot has is free again after the next commit.
                let moves = {
                    let state = self.state();
                    let returns = |location: &Location| {
                        location.at.is_some_and(|physical| state.versions.is_own(physical.born))
                    };
                    actions
                        .iter()
                        .zip(&locations)
                        .all(|(action, location)| !action.is_new() || returns(location))
                };
                given.extents.push(self.allocate(moves).await?);
            } else {
                break actions;
            }
        };
        self.carry_out(io, &at, extents.start, &actions, &mut given).await?;
        drop(locked);
        Ok(())
    }

    /// Moves an extent to a new physical extent as it is.
    pub async fn move_away(self: &Rc<Self>, extent: u64) -> Result<()> {
        let locked = self.locks.lock(&(extent..extent + 1)).await;
        let _room = self.reserve(&(extent..extent + 1)).await?;
        let mut given = Given { core: Rc::clone(self), extents: vec![self.allocate(true).await?] };
        self.load(extent).await?;
        let location = self.look(&self.state(), extent).transpose()?;
        let Some(source) = location.and_then(|location| location.at) else { return Ok(()) };
        let at = (extent << self.shift()).min(self.head().size);
        let nothing = Io::zero(at..at, Zero::default());
        self.carry_out(&nothing, &(at..at), extent, &[Action::Copy(Some(source))], &mut given).await?;
        drop(locked);
        Ok(())
    }

    /// The action for an extent. Its lock is the caller's.
    fn action(&self, io: &Io, at: &Range<u64>, extent: u64, location: Location) -> Action {
        let state = self.state();
        let head = state.versions.head();
        let start = extent << head.shift;
        let covers = Covers::new(at, start..start + head.extent(), head.size);
        Action::new(&io.op, covers, location.at, state.own(location, self.atomic()))
    }

    /// Reserves room in the map for extents of one leaf.
    async fn reserve(self: &Rc<Self>, extents: &Range<u64>) -> Result<Reserved> {
        let (first, entries) = (extents.start, (extents.end - extents.start) as usize);
        loop {
            let found = self.load(first).await?;
            let own = found.leaf.is_some_and(|born| self.state().versions.is_own(born));
            let levels = levels_for(first).max(self.head().root.levels);
            let pages = if own { 0 } else { u32::from(levels) + 1 };
            let bounds = self.bounds();
            if self.change(|state| state.overlay.reserve(first, entries, pages, bounds)) {
                return Ok(Reserved { core: Rc::clone(self), extent: first, entries });
            }
            let moved = self.moved.wait();
            let wait = self.state().wait_for_room();
            match wait {
                Wait::Round => self.flush().await?,
                Wait::Others => moved.await,
                Wait::Garbage if self.may_reclaim() => moved.await,
                Wait::Garbage => {
                    let message = "the map has no room left for new entries: delete snapshots";
                    return Err(Error::new(ErrorKind::NoSpace, message));
                }
            }
        }
    }

    /// A new physical extent. One that replaces another may be taken from the reserve for that.
    async fn allocate(self: &Rc<Self>, moves: bool) -> Result<u64> {
        let mut asked = false;
        loop {
            let moved = self.moved.wait();
            let space = Rc::clone(&self.space.borrow());
            let spare = self.state().versions.spare(self.atomic());
            if moves || space.free_extents() > spare {
                match space.alloc(self.policy).await {
                    Err(e) if e.kind() == ErrorKind::NoSpace => {}
                    result => return result,
                }
            }
            let wait = self.state().wait_for_extent(asked);
            match wait {
                Wait::Others => {
                    self.let_go();
                    moved.await;
                }
                Wait::Round => {
                    asked = true;
                    self.flush().await?;
                }
                Wait::Garbage if self.may_reclaim() => moved.await,
                Wait::Garbage => {
                    let message = "no extent is free: delete snapshots, or make the device below larger";
                    return Err(Error::new(ErrorKind::NoSpace, message));
                }
            }
        }
    }

    /// Submits the requests of a piece, and notes the new physical extents when all have completed.
    async fn carry_out(
        self: &Rc<Self>,
        io: &Io,
        at: &Range<u64>,
        first: u64,
        actions: &[Action],
        given: &mut Given,
    ) -> Result<()> {
        let extent = self.extent();
        let bytes = |number: u64| {
            let start = number << self.shift();
            at.start.max(start)..at.end.min(start + extent)
        };
        let (mut there, mut elsewhere) = (Runs::default(), Runs::default());
        let (mut sources, mut copies, mut moved) = (Vec::new(), Vec::new(), Vec::new());
        let mut new = given.extents.iter().copied();
        for (number, action) in (first..).zip(actions) {
            let (part, start) = (bytes(number), number << self.shift());
            match action {
                Action::Leave => {}
                Action::InPlace(place) => there.add(&part, self.address(*place) + (part.start - start)),
                Action::Unmap => moved.push((number, Entry::Hole)),
                Action::Replace | Action::Copy(_) => {
                    let Some(place) = new.next() else { continue };
                    moved.push((number, Entry::At { place, born: self.head().epoch }));
                    let to = self.address(place);
                    if let Action::Copy(source) = action {
                        let copy = self.env.pool().take(extent as usize);
                        sources.extend(self.fetch(*source, &copy));
                        copies.push((part.start - start, part, copy, to));
                    } else {
                        elsewhere.add(&part, to);
                    }
                }
            }
        }
        let way = Rc::clone(self.grace.way());
        let mut first_requests: Vec<Request> =
            there.iter().map(|(part, to)| way.submit(cached(io, part, to))).collect();
        first_requests.extend(sources);
        all(first_requests).await?;
        let way = self.grace.way();
        let mut requests: Vec<Request> =
            elsewhere.iter().map(|(part, to)| way.submit(cached(io, part, to))).collect();
        for (within, part, copy, to) in copies {
            patch(io, &part, &copy.slice(within as usize..(within + part.end - part.start) as usize));
            requests.push(self.grace.way().submit(Io::write(to, copy, Durability::Cached)));
        }
        all(requests).await?;
        drop(new);
        self.note(moved, given);
        Ok(())
    }

    /// Reads an extent into `copy`; without a source, zeroes.
    fn fetch(&self, source: Option<PhysicalExtent>, copy: &Buf) -> Option<Request> {
        let from = source.map(|physical| self.address(physical.number));
        // Beyond the end of the child's last extent, which may not be whole, there are zeroes.
        let len = from.map_or(0, |from| self.extent().min(self.child.geometry().size.saturating_sub(from)));
        copy.slice(len as usize..copy.len()).fill(0);
        let from = from.filter(|_| len > 0)?;
        Some(self.grace.way().submit(Io::read(from, copy.slice(0..len as usize))))
    }

    /// Sets the new entries of extents.
    fn note(self: &Rc<Self>, moved: Vec<(u64, Entry)>, given: &mut Given) {
        for (extent, entry) in moved {
            if let Entry::At { place, .. } = entry {
                given.extents.retain(|extent| *extent != place);
            }
            self.change(|state| state.set(extent, entry));
            self.set_timer();
        }
        self.let_go();
    }
}

/// Copies the change of a request into a buffer.
fn patch(io: &Io, part: &Range<u64>, into: &Buf) {
    match &io.op {
        Op::Write(from, _) => {
            let from = from.slice((part.start - io.at.start) as usize..(part.end - io.at.start) as usize);
            into.copy_from(&from);
        }
        Op::Zero(_) => into.fill(0),
        Op::Read(_) | Op::Discard | Op::Flush => {}
    }
}

/// A part of a request; it becomes durable with a flush.
fn cached(io: &Io, part: Range<u64>, to: u64) -> Io {
    let mut io = io.part(part, to);
    match &mut io.op {
        Op::Write(_, durability) => *durability = Durability::Cached,
        Op::Zero(how) => how.durability = Durability::Cached,
        Op::Read(_) | Op::Discard | Op::Flush => {}
    }
    io
}
