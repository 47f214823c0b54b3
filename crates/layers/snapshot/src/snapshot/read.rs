//! Reads of the volume and of its snapshots: where the extents of a version lie, and handing requests on to there.

use super::core::Core;
use super::state::{Spot, State};
use lamina_block::{Extent, ExtentState, Healed, Io, Judge, Op, Request, Result, Step, all};
use lamina_kit::fan_out::Runs;
use lamina_metadata::extents::{FANOUT, Root};
use std::ops::Range;
use std::rc::Rc;

/// What is read: the volume as it is, or a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Now,
    Kept(Root),
}

/// What can be said about a range without waiting.
pub(super) enum Whole {
    /// It lies in one piece on the child.
    At(u64),
    /// It is nowhere.
    Nowhere,
    /// Neither.
    Parts,
}

impl Core {
    /// Where an extent of a version lies, if that is known without waiting.
    #[inline]
    fn spot(&self, state: &State, version: Version, extent: u64) -> Option<Result<Option<Spot>>> {
        match version {
            Version::Now => Some(self.look(state, extent)?.map(|place| place.at)),
            Version::Kept(root) => {
                let found = self.tree.peek(root, extent)?;
                Some(found.map(|found| state.versions.meaning(extent, found.entry)))
            }
        }
    }

    fn root_of(&self, version: Version) -> Root {
        match version {
            Version::Now => self.head().root,
            Version::Kept(root) => root,
        }
    }

    /// Where all of `at` lies. `spot` says it of an extent.
    #[inline]
    pub fn whole(
        &self,
        state: &State,
        at: &Range<u64>,
        mut spot: impl FnMut(u64) -> Option<Result<Option<u64>>>,
    ) -> Result<Whole> {
        let head = state.versions.head();
        let shift = head.shift;
        let (first, last) = (at.start >> shift, (at.end - 1) >> shift);
        let Some(begin) = spot(first).transpose()? else { return Ok(Whole::Parts) };
        for extent in first + 1..=last {
            let follows = begin.map(|begin| begin + (extent - first));
            if spot(extent).transpose()? != Some(follows) {
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
        let spot =
            |extent| self.spot(&state, version, extent).map(|at| at.map(|at| at.map(|spot| spot.extent)));
        let whole = self.whole(&state, &io.at, spot);
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

    /// Another copy of `at` of a version, from below: of what lies in one piece there.
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
            let spot =
                |extent| self.spot(&state, version, extent).map(|at| at.map(|at| at.map(|spot| spot.extent)));
            self.whole(&state, &at, spot)?
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
            // Submitted before anything is waited for, so that the extents are still what they are.
            at = self.read_some(version, &io, at..end, &mut requests)?;
        }
        all(requests).await
    }

    /// Submits reads from the start of `at` on, as far as the map is in memory; how far that was.
    fn read_some(&self, version: Version, io: &Io, at: Range<u64>, into: &mut Vec<Request>) -> Result<u64> {
        let state = self.state();
        let shift = state.versions.head().shift;
        let mut runs = Runs::default();
        let mut from = at.start;
        while from < at.end {
            let extent = from >> shift;
            let end = ((extent + 1) << shift).min(at.end);
            let Some(spot) = self.spot(&state, version, extent) else { break };
            match spot? {
                Some(spot) => {
                    runs.add(&(from..end), state.versions.address(spot.extent) + (from - (extent << shift)));
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

    /// What a range of a version holds.
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
            while let Some(spot) = self.spot(&state, version, from >> shift).filter(|_| from < at.end) {
                let end = (((from >> shift) + 1) << shift).min(at.end);
                let state = if spot?.is_some() { ExtentState::Data } else { ExtentState::Hole };
                Extent::push(&mut runs, end - from, state);
                from = end;
            }
        }
        Ok(runs)
    }

    /// The first extent from `from` on that may lie somewhere, or `to`.
    pub async fn next(&self, version: Version, from: u64, to: u64) -> Result<u64> {
        let adopted = self.head().adopted;
        let new = match version {
            Version::Now => self.state().overlay.next(from),
            Version::Kept(_) => None,
        };
        let to = new.map_or(to, |new| to.min(new));
        if from < adopted || from >= to {
            return Ok(from);
        }
        loop {
            let sweeps = self.state().garbage.sweeps();
            let found = self.tree.next(self.root_of(version), from, to).await;
            // Otherwise it may have been on its way through pages that were given to somebody else meanwhile.
            if sweeps == self.state().garbage.sweeps() {
                return found;
            }
        }
    }

    /// Where a write of an extent may go in its place. What cannot be written there is not known without waiting.
    #[inline]
    pub fn writable(&self, state: &State, extent: u64) -> Option<Result<Option<u64>>> {
        let place = match self.look(state, extent)? {
            Ok(place) => place,
            Err(e) => return Some(Err(e)),
        };
        let own = state.own(place, self.atomic())?;
        (!self.locks.is_locked(&(extent..extent + 1))).then_some(Ok(Some(own.extent)))
    }
}
