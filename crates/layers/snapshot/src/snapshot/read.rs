//! Reads of the volume and of its snapshots: finds the physical extents of a version, and hands requests on
//! to them.

use super::core::Core;
use super::state::{PhysicalExtent, State};
use lamina_block::{Extent, ExtentState, Healed, Io, Judge, Op, Place, Request, Result, Step, all};
use lamina_kit::fan_out::Runs;
use lamina_metadata::extents::{FANOUT, Root};
use std::ops::Range;
use std::rc::Rc;

/// The version to read: the volume as it is, or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Now,
    Snapshot(Root),
}

/// The location of a range, as far as it is known without waiting.
pub(super) enum Whole {
    /// The range lies in one piece on the child.
    At(u64),
    /// The range has no physical extents.
    Nowhere,
    /// Neither, or not known.
    Parts,
}

impl Core {
    /// The physical extent of an extent of a version, if that is known without waiting.
    #[inline]
    pub fn physical(
        &self,
        state: &State,
        version: Version,
        extent: u64,
    ) -> Option<Result<Option<PhysicalExtent>>> {
        match version {
            Version::Now => Some(self.look(state, extent)?.map(|location| location.at)),
            Version::Snapshot(root) => {
                let found = self.tree.peek(root, extent)?;
                Some(found.map(|found| state.versions.resolve(extent, found.entry)))
            }
        }
    }

    pub fn root_of(&self, version: Version) -> Root {
        match version {
            Version::Now => self.head().root,
            Version::Snapshot(root) => root,
        }
    }

    /// The location of all of `at`. `locate` gives that of an extent.
    #[inline]
    pub fn whole(
        &self,
        state: &State,
        at: &Range<u64>,
        mut locate: impl FnMut(u64) -> Option<Result<Option<u64>>>,
    ) -> Result<Whole> {
        let head = state.versions.head();
        let shift = head.shift;
        let (first, last) = (at.start >> shift, (at.end - 1) >> shift);
        let Some(begin) = locate(first).transpose()? else { return Ok(Whole::Parts) };
        for extent in first + 1..=last {
            let follows = begin.map(|begin| begin + (extent - first));
            if locate(extent).transpose()? != Some(follows) {
                return Ok(Whole::Parts);
            }
        }
        Ok(match begin {
            Some(begin) => Whole::At(state.versions.address(begin) + (at.start & (head.extent() - 1))),
            None => Whole::Nowhere,
        })
    }

    /// A read of a version.
    #[inline]
    pub fn read(self: &Rc<Self>, version: Version, io: &mut Io) -> Step {
        let state = self.state();
        let locate = |extent| {
            self.physical(&state, version, extent).map(|at| at.map(|at| at.map(|physical| physical.number)))
        };
        let whole = self.whole(&state, &io.at, locate);
        drop(state);
        match whole {
            Ok(Whole::At(to)) => {
                io.move_to(to);
                Step::Forward(Rc::clone(self.grace.way()))
            }
            Ok(Whole::Nowhere) => {
                if let Op::Read(into) = &io.op {
                    into.fill(0);
                }
                Step::Done(Ok(()))
            }
            Ok(Whole::Parts) => {
                let (me, io) = (Rc::clone(self), io.take());
                Step::control(async move { me.read_parts(version, io).await })
            }
            Err(e) => e.into(),
        }
    }

    /// The place of byte `at` of a version.
    pub async fn places(self: Rc<Self>, version: Version, at: u64) -> Result<Vec<Place>> {
        let extent = at >> self.shift();
        self.get(|| self.root_of(version), extent).await?;
        let state = self.state();
        let physical = self.physical(&state, version, extent).transpose()?.flatten();
        let within = at & (state.versions.head().extent() - 1);
        let address = |physical: PhysicalExtent| state.versions.address(physical.number) + within;
        Ok(physical.map(|physical| Place::data(&self.child, address(physical))).into_iter().collect())
    }

    /// Another copy of `at` of a version, from below: of a part in one piece there.
    pub async fn heal(
        self: Rc<Self>,
        version: Version,
        at: Range<u64>,
        is_right: Judge,
    ) -> Result<Option<Healed>> {
        for extent in at.start >> self.shift()..=(at.end - 1) >> self.shift() {
            self.get(|| self.root_of(version), extent).await?;
        }
        let whole = {
            let state = self.state();
            let locate = |extent| {
                self.physical(&state, version, extent)
                    .map(|at| at.map(|at| at.map(|physical| physical.number)))
            };
            self.whole(&state, &at, locate)?
        };
        match whole {
            Whole::At(to) => self.grace.way().heal(to..to + (at.end - at.start), is_right).await,
            Whole::Nowhere | Whole::Parts => Ok(None),
        }
    }

    async fn read_parts(self: Rc<Self>, version: Version, io: Io) -> Result<()> {
        let shift = self.shift();
        let mut requests: Vec<Request> = Vec::new();
        let mut at = io.at.start;
        while at < io.at.end {
            let first = at >> shift;
            let end = (((first / FANOUT + 1) * FANOUT) << shift).min(io.at.end);
            self.get(|| self.root_of(version), first).await?;
            // Submitted before any wait, so that the extents cannot change.
            at = self.read_some(version, &io, at..end, &mut requests)?;
        }
        all(requests).await
    }

    /// Submits reads from the start of `at` on, as far as the map is in memory; returns how far that was.
    fn read_some(&self, version: Version, io: &Io, at: Range<u64>, into: &mut Vec<Request>) -> Result<u64> {
        let state = self.state();
        let shift = state.versions.head().shift;
        let mut runs = Runs::default();
        let mut from = at.start;
        while from < at.end {
            let extent = from >> shift;
            let end = ((extent + 1) << shift).min(at.end);
            let Some(physical) = self.physical(&state, version, extent) else { break };
            match physical? {
                Some(physical) => {
                    runs.add(
                        &(from..end),
                        state.versions.address(physical.number) + (from - (extent << shift)),
                    );
                }
                None => {
                    if let Op::Read(buf) = &io.op {
                        buf.slice((from - io.at.start) as usize..(end - io.at.start) as usize).fill(0);
                    }
                }
            }
            from = end;
        }
        drop(state);
        let way = self.grace.way();
        into.extend(runs.iter().map(|(part, to)| way.submit(io.part(part, to))));
        Ok(from)
    }

    /// The data and holes of a range of a version.
    pub async fn runs(self: Rc<Self>, version: Version, at: Range<u64>) -> Result<Vec<Extent>> {
        let shift = self.shift();
        let (mut runs, mut from) = (Vec::new(), at.start);
        while from < at.end {
            let extent = from >> shift;
            let next = self.next(version, extent, ((at.end - 1) >> shift) + 1).await?;
            let end = (next << shift).min(at.end);
            if end > from {
                Extent::push(&mut runs, end - from, ExtentState::Hole);
                from = end;
                continue;
            }
            self.get(|| self.root_of(version), extent).await?;
            let state = self.state();
            while let Some(physical) = self.physical(&state, version, from >> shift).filter(|_| from < at.end)
            {
                let end = (((from >> shift) + 1) << shift).min(at.end);
                let state = if physical?.is_some() { ExtentState::Data } else { ExtentState::Hole };
                Extent::push(&mut runs, end - from, state);
                from = end;
            }
        }
        Ok(runs)
    }

    /// The first extent from `from` on that may have a physical extent, or `to`.
    pub async fn next(&self, version: Version, from: u64, to: u64) -> Result<u64> {
        let adopted = self.head().adopted;
        let to = self.next_waiting(version, from).map_or(to, |new| to.min(new));
        if from < adopted || from >= to {
            return Ok(from);
        }
        self.unswept(async || self.tree.next(self.root_of(version), from, to).await).await
    }

    /// The first extent of a version from `from` on whose entry waits for the map.
    pub fn next_waiting(&self, version: Version, from: u64) -> Option<u64> {
        match version {
            Version::Now => self.state().overlay.next(from),
            Version::Snapshot(_) => None,
        }
    }

    /// The result of a walk through the map during which no page of it was freed.
    pub async fn unswept<T>(&self, walk: impl AsyncFn() -> Result<T>) -> Result<T> {
        loop {
            let sweeps = self.state().garbage.sweeps();
            let found = walk().await;
            // Otherwise the walk may have gone through pages that were freed and reused meanwhile.
            if sweeps == self.state().garbage.sweeps() {
                return found;
            }
        }
    }

    /// The physical extent that may be written in place. `None` if that is not known without waiting.
    #[inline]
    pub fn writable(&self, state: &State, extent: u64) -> Option<Result<Option<u64>>> {
        let location = match self.look(state, extent)? {
            Ok(location) => location,
            Err(e) => return Some(Err(e)),
        };
        let own = state.own(location, self.atomic())?;
        (!self.locks.is_locked(&(extent..extent + 1))).then_some(Ok(Some(own.number)))
    }
}
