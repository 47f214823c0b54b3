//! Zoned devices: the sequential zones of a host-managed one (ZBC, ZAC, ZNS; `linux/blkzoned.h`), and the rules for
//! those who write to them.
//!
//! ```text
//!      0              first          + size         + size                    size of the device
//!      │ conventional │ written ▲    │ zone 1       │ …        │ conventional │
//!                               └ write pointer
//! ```
//!
//! Rules within the sequential zones; elsewhere there are none:
//! * A write begins at the write pointer of its zone, ends within the capacity of the zone, and is submitted when the
//!   earlier write to the same zone has completed.
//! * At most `open_max` zones are written in part.
//! * A discard of a whole zone *resets* the zone: nothing of it is written any more. A discard from the write pointer
//!   to the end of the capacity *finishes* the zone, which counts as written whole. Any other discard does nothing.
//! * What lies behind the write pointer reads as zeroes and is a hole ([`crate::Layer::extents`]); what lies before it
//!   is data. So a layer above finds the pointer by asking for extents.
//! * A write that failed leaves the pointer anywhere between its beginning and its end.
//! * Resets and finishes are durable after a flush, as writes are. A power loss cuts a zone off anywhere between what
//!   was flushed and what was written; there are no gaps.
//!
//! A layer has no zones unless it says so ([`crate::Layer::zones`]). Only a layer that makes exactly one request below
//! of each request, at an address that is moved by the same number of bytes, may hand zones on.

use crate::{Error, ErrorKind, Extent, ExtentState, Result};
use std::ops::Range;

/// The sequential zones of a device, which lie side by side. All sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// Where the first sequential zone begins.
    pub first: u64,
    /// How many sequential zones there are.
    pub count: u32,
    /// From the beginning of a zone to that of the next one; a multiple of the logical block.
    pub size: u64,
    /// What can be written of a zone, from its beginning: at most `size`, and a multiple of the logical block.
    pub capacity: u64,
    /// So many zones may be written in part at a time; 0: any number.
    pub open_max: u32,
}

/// What a discard does to a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneChange {
    /// Nothing of it is written any more.
    Reset,
    /// All of it counts as written.
    Finish,
}

impl Zones {
    /// All sequential zones.
    pub const fn range(&self) -> Range<u64> {
        self.first..self.first + self.count as u64 * self.size
    }

    /// Where a zone begins.
    pub const fn start(&self, zone: u32) -> u64 {
        self.first + zone as u64 * self.size
    }

    /// The part of a zone that can be written.
    pub const fn usable(&self, zone: u32) -> Range<u64> {
        self.start(zone)..self.start(zone) + self.capacity
    }

    /// The zone that an address lies in; `None` if the address is conventional.
    pub fn of(&self, at: u64) -> Option<u32> {
        self.range().contains(&at).then(|| ((at - self.first) / self.size) as u32)
    }

    /// The same for a device of `size` bytes whose addresses begin at `offset` of this one; `None` if a zone does not
    /// lie within it.
    pub fn part(self, offset: u64, size: u64) -> Option<Zones> {
        let Range { start, end } = self.range();
        (offset <= start && end - offset <= size).then(|| Zones { first: start - offset, ..self })
    }

    /// `at`, cut where zones begin and end, with the zone of each piece.
    fn pieces(self, at: Range<u64>) -> impl Iterator<Item = (Option<u32>, Range<u64>)> {
        let mut from = at.start;
        std::iter::from_fn(move || {
            let zone = self.of(from);
            let border = match zone {
                Some(zone) => self.start(zone) + self.size,
                None if from < self.first => self.first,
                None => at.end,
            };
            let piece = from..border.min(at.end);
            from = piece.end;
            (!piece.is_empty()).then_some((zone, piece))
        })
    }
}

/// A write pointer, in bytes from the beginning of its zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pointer {
    at: u64,
    /// A write to the zone is under way.
    is_busy: bool,
}

/// The write pointers of all zones, and the rules that depend on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePointers {
    zones: Zones,
    list: Vec<Pointer>,
}

fn breach(kind: ErrorKind, at: &Range<u64>, what: String) -> Error {
    Error::new(kind, what).at(at.clone())
}

impl WritePointers {
    /// Pointers at these places, in bytes from the beginning of their zones; zones without one are not written.
    pub fn new(zones: Zones, at: impl IntoIterator<Item = u64>) -> WritePointers {
        let given = at.into_iter().map(|at| Pointer { at: at.min(zones.capacity), is_busy: false });
        let mut list: Vec<Pointer> = given.collect();
        list.resize(zones.count as usize, Pointer::default());
        WritePointers { zones, list }
    }

    /// The zones.
    pub fn zones(&self) -> Zones {
        self.zones
    }

    /// The write pointer of a zone, in bytes from its beginning.
    pub fn get(&self, zone: u32) -> u64 {
        self.list[zone as usize].at
    }

    /// Zones that are written in part, or are about to be.
    pub fn open(&self) -> u32 {
        let is_open = |of: &&Pointer| of.is_busy || of.at > 0 && of.at < self.zones.capacity;
        self.list.iter().filter(is_open).count() as u32
    }

    /// A write is about to begin: the zone that it goes to, `None` if it is all conventional. [`WritePointers::end`]
    /// has to follow.
    ///
    /// `Invalid` if it breaks a rule, `NoSpace` if the zone is full, `Busy` if too many zones would be open: nothing
    /// has changed then.
    pub fn begin(&mut self, at: &Range<u64>) -> Result<Option<u32>> {
        let Some(zone) = self.zones.of(at.start) else {
            let is_conventional = self.zones.of(at.end - 1).is_none()
                && (at.end <= self.zones.first || at.start >= self.zones.range().end);
            return if is_conventional { Ok(None) } else { Err(self.crossing(at)) };
        };
        let (usable, pointer) = (self.zones.usable(zone), self.list[zone as usize]);
        let place = usable.start + pointer.at;
        if pointer.is_busy {
            let what = format!("another write to zone {zone} is under way: its write pointer is not known");
            return Err(breach(ErrorKind::Invalid, at, what));
        }
        if pointer.at == self.zones.capacity {
            let what =
                format!("zone {zone} is full: its write pointer is at its end, {place}; reset it first");
            return Err(breach(ErrorKind::NoSpace, at, what));
        }
        if at.start != place {
            let what =
                format!("the write does not begin at the write pointer of zone {zone}, which is at {place}");
            return Err(breach(ErrorKind::Invalid, at, what));
        }
        if at.end > usable.end {
            return Err(self.crossing(at));
        }
        let limit = self.zones.open_max;
        if limit > 0 && pointer.at == 0 && self.open() >= limit {
            let what =
                format!("zone {zone} cannot be opened: {limit} zones are, and the device allows no more");
            return Err(breach(ErrorKind::Busy, at, what));
        }
        self.list[zone as usize].is_busy = true;
        Ok(Some(zone))
    }

    fn crossing(&self, at: &Range<u64>) -> Error {
        let zone = self.zones.pieces(at.clone()).find_map(|(zone, _)| zone);
        let what = match zone.map(|zone| (zone, self.zones.usable(zone))) {
            Some((zone, Range { start, end })) => {
                format!("the write does not lie within zone {zone}, which has {start}..{end}")
            }
            None => "the write does not lie within a zone".into(),
        };
        breach(ErrorKind::Invalid, at, what)
    }

    /// A write has ended, or the zone has changed: its pointer is `at` now, in bytes from its beginning.
    pub fn end(&mut self, zone: u32, at: u64) {
        self.list[zone as usize] = Pointer { at: at.min(self.zones.capacity), is_busy: false };
    }

    /// What a discard changes. `Invalid` if a write to one of these zones is under way.
    pub fn discarded(&self, at: &Range<u64>) -> Result<Vec<(u32, ZoneChange)>> {
        let mut changes = Vec::new();
        for (zone, piece) in self.zones.pieces(at.clone()) {
            let Some(zone) = zone else { continue };
            let (usable, pointer) = (self.zones.usable(zone), self.list[zone as usize]);
            let is_to_end = piece.end >= usable.end;
            let change = match piece.start {
                start if is_to_end && start == usable.start => ZoneChange::Reset,
                start if is_to_end && start == usable.start + pointer.at => ZoneChange::Finish,
                _ => continue,
            };
            if pointer.is_busy {
                let what = format!("a write to zone {zone} is under way: the zone cannot be discarded");
                return Err(breach(ErrorKind::Invalid, at, what));
            }
            let is_done = match change {
                ZoneChange::Reset => pointer.at == 0,
                ZoneChange::Finish => pointer.at == self.zones.capacity,
            };
            if !is_done {
                changes.push((zone, change));
            }
        }
        Ok(changes)
    }

    /// What was written and what was not, side by side: conventional bytes count as written.
    pub fn extents(&self, at: &Range<u64>) -> Vec<Extent> {
        let mut extents = Vec::new();
        for (zone, piece) in self.zones.pieces(at.clone()) {
            let pointer = zone.map_or(piece.end, |zone| self.zones.start(zone) + self.get(zone));
            let written = pointer.clamp(piece.start, piece.end);
            Extent::push(&mut extents, written - piece.start, ExtentState::Data);
            Extent::push(&mut extents, piece.end - written, ExtentState::Hole);
        }
        extents
    }

    /// The parts of `at` that were written; the rest reads as zeroes.
    pub fn written(&self, at: &Range<u64>) -> Vec<Range<u64>> {
        let mut from = at.start;
        let mut parts = Vec::new();
        for extent in self.extents(at) {
            let part = from..from + extent.len;
            from = part.end;
            if extent.state == ExtentState::Data {
                parts.push(part);
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Zones = Zones { first: 1000, count: 3, size: 100, capacity: 80, open_max: 2 };

    fn refused(of: &mut WritePointers, at: Range<u64>) -> (ErrorKind, String) {
        let before = of.clone();
        let e = of.begin(&at).expect_err("a rule is broken");
        assert_eq!((&before, e.range()), (&*of, Some(&at)));
        (e.kind(), e.message().to_owned())
    }

    #[test]
    fn a_write_begins_at_the_pointer_of_its_zone() {
        let mut of = WritePointers::new(OF, [0, 30, 80]);
        assert_eq!((of.begin(&(0..1000)), of.begin(&(1300..1400))), (Ok(None), Ok(None)));
        for (at, kind, says) in [
            (1000..1090, ErrorKind::Invalid, "within zone 0, which has 1000..1080"),
            (990..1010, ErrorKind::Invalid, "within zone 0"),
            (900..1400, ErrorKind::Invalid, "within zone 0"),
            (1100..1130, ErrorKind::Invalid, "write pointer of zone 1, which is at 1130"),
            (1140..1150, ErrorKind::Invalid, "write pointer of zone 1, which is at 1130"),
            (1280..1290, ErrorKind::NoSpace, "zone 2 is full"),
        ] {
            let found = refused(&mut of, at.clone());
            assert!(found.0 == kind && found.1.contains(says), "{at:?}: {found:?}");
        }
        assert_eq!(of.begin(&(1130..1140)), Ok(Some(1)));
        assert!(refused(&mut of, 1140..1150).1.contains("another write to zone 1 is under way"));
        assert!(of.discarded(&(1100..1200)).is_err());
        of.end(1, 35);
        assert_eq!((of.get(1), of.begin(&(1135..1180))), (35, Ok(Some(1))));
    }

    #[test]
    fn no_more_zones_are_open_than_allowed() {
        let mut of = WritePointers::new(Zones { open_max: 1, ..OF }, []);
        assert_eq!((of.begin(&(1000..1010)), of.open()), (Ok(Some(0)), 1));
        assert_eq!(refused(&mut of, 1100..1110).0, ErrorKind::Busy);
        of.end(0, 10);
        assert_eq!(refused(&mut of, 1100..1110).0, ErrorKind::Busy);
        assert_eq!(of.discarded(&(1010..1100)), Ok(vec![(0, ZoneChange::Finish)]));
        of.end(0, 80);
        assert_eq!((of.open(), of.begin(&(1100..1110))), (0, Ok(Some(1))));
    }

    #[test]
    fn a_discard_of_a_whole_zone_resets_it() {
        let of = WritePointers::new(OF, [10, 0, 80]);
        let all = of.discarded(&(0..1400));
        assert_eq!(all, Ok(vec![(0, ZoneChange::Reset), (2, ZoneChange::Reset)]));
        for nothing in [0..1000, 1000..1010, 1010..1079, 1005..1100, 1100..1200, 1280..1300, 1300..1400] {
            assert_eq!(of.discarded(&nothing), Ok(vec![]), "{nothing:?}");
        }
        assert_eq!(of.discarded(&(1000..1080)), Ok(vec![(0, ZoneChange::Reset)]));
        assert_eq!(of.discarded(&(1010..1080)), Ok(vec![(0, ZoneChange::Finish)]));
    }

    #[test]
    fn what_is_behind_the_pointer_is_a_hole() {
        let of = WritePointers::new(OF, [10, 0, 80]);
        let runs: Vec<(u64, ExtentState)> =
            of.extents(&(990..1310)).into_iter().map(|extent| (extent.len, extent.state)).collect();
        let (data, hole) = (ExtentState::Data, ExtentState::Hole);
        assert_eq!(runs, [(20, data), (190, hole), (80, data), (20, hole), (10, data)]);
        assert_eq!(of.written(&(1005..1205)), [1005..1010, 1200..1205]);
        assert_eq!(OF.part(1000, 300), Some(Zones { first: 0, ..OF }));
        assert_eq!((OF.part(1001, 400), OF.part(0, 1299)), (None, None));
    }
}
