//! The contents of the sequential zones of a simulated disk.
//!
//! Invariant: a zone has no gaps. At power loss it is cut off anywhere between what is durable and what was written,
//! also by writes under way; a zone that was reset since may be as it was before. Like that, a reset that was not
//! flushed counts as a write that was not.

use crate::media::Loss;
use fastrand::Rng;
use lamina_block::{Buf, Result, WritePointers, ZoneChange, Zones};
use std::ops::Range;
use std::rc::Rc;

/// What was written to a zone since it was reset.
#[derive(Clone, Default, PartialEq)]
struct Contents {
    /// The number of resets before.
    resets: u64,
    /// From the beginning of the zone.
    bytes: Rc<Vec<u8>>,
    /// So many of them are durable.
    durable: usize,
}

/// A zone: what it holds, and what it may be again, if it was reset and that is not durable.
#[derive(Clone, Default, PartialEq)]
struct Zone {
    now: Contents,
    before: Option<Contents>,
}

/// What was complete when a flush began: of each zone the number of resets, and its bytes.
pub(crate) struct ZoneMark(Vec<(u64, usize)>);

/// All sequential zones of a disk.
#[derive(Clone, PartialEq)]
pub(crate) struct ZoneMedia {
    pointers: WritePointers,
    list: Vec<Zone>,
}

impl Contents {
    /// Cut off where a power loss may.
    fn cut(self, loss: Loss, block: usize, rng: &mut Rng) -> Contents {
        let len = match loss {
            Loss::All => self.durable,
            Loss::Nothing => self.bytes.len(),
            Loss::Torn => self.durable + rng.usize(0..=(self.bytes.len() - self.durable) / block) * block,
            Loss::Writes => {
                if rng.bool() {
                    self.durable
                } else {
                    self.bytes.len()
                }
            }
        };
        let bytes = if len == self.bytes.len() { self.bytes } else { Rc::new(self.bytes[..len].to_vec()) };
        Contents { bytes, durable: len, ..self }
    }
}

impl ZoneMedia {
    /// Zones that are not written; with `junk` some are, by another owner, in part or whole.
    pub(crate) fn new(zones: Zones, junk: Option<u32>) -> ZoneMedia {
        let rng = &mut Rng::with_seed(junk.unwrap_or_default().into());
        let mut list = vec![Zone::default(); zones.count as usize];
        if let Some(junk) = junk {
            // So many in part as may be.
            let open = if zones.open_max == 0 { zones.count } else { zones.open_max };
            for (number, zone) in (0..).zip(&mut list) {
                let len = match number < open {
                    true => rng.u64(0..=zones.capacity / 4096) * 4096,
                    false => [0, zones.capacity][rng.usize(0..2)],
                };
                let bytes = Rc::new(vec![junk as u8 | 1; len as usize]);
                zone.now = Contents { resets: 0, bytes, durable: len as usize };
            }
        }
        let pointers = WritePointers::new(zones, list.iter().map(|zone| zone.now.bytes.len() as u64));
        ZoneMedia { pointers, list }
    }

    pub(crate) fn pointers(&self) -> &WritePointers {
        &self.pointers
    }

    /// A write arrives; see [`WritePointers::begin`].
    pub(crate) fn begin(&mut self, at: &Range<u64>) -> Result<Option<u32>> {
        self.pointers.begin(at)
    }

    /// A piece of a write takes effect.
    pub(crate) fn append(&mut self, zone: u32, from: &Buf) {
        Rc::make_mut(&mut self.list[zone as usize].now.bytes).extend(from.to_vec());
    }

    /// A write has ended, well or not, durable at once or not.
    pub(crate) fn end(&mut self, zone: u32, is_durable: bool) {
        let of = &mut self.list[zone as usize];
        self.pointers.end(zone, of.now.bytes.len() as u64);
        if is_durable {
            (of.now.durable, of.before) = (of.now.bytes.len(), None);
        }
    }

    /// A zone is reset or finished.
    pub(crate) fn change(&mut self, zone: u32, change: ZoneChange) {
        let (of, capacity) = (&mut self.list[zone as usize], self.pointers.zones().capacity as usize);
        match change {
            ZoneChange::Reset => {
                let before = std::mem::take(&mut of.now);
                of.now.resets = before.resets + 1;
                of.before.get_or_insert(before);
            }
            ZoneChange::Finish => Rc::make_mut(&mut of.now.bytes).resize(capacity, 0),
        }
        self.pointers.end(zone, of.now.bytes.len() as u64);
    }

    pub(crate) fn flush_begins(&self) -> ZoneMark {
        let pointer = |zone: u32| self.pointers.get(zone) as usize;
        ZoneMark((0..).zip(&self.list).map(|(zone, of)| (of.now.resets, pointer(zone))).collect())
    }

    /// Makes durable what was complete at `mark`.
    pub(crate) fn flush(&mut self, mark: &ZoneMark) {
        for (zone, (resets, bytes)) in self.list.iter_mut().zip(&mark.0) {
            if zone.now.resets == *resets {
                zone.now.durable = zone.now.durable.max(*bytes);
                zone.before = None;
            } else if let Some(before) = zone.before.as_mut().filter(|before| before.resets == *resets) {
                before.durable = before.durable.max(*bytes);
            }
        }
    }

    /// Reads what was written; the rest of `into` stays as it is.
    pub(crate) fn read(&self, at: &Range<u64>, into: &Buf) {
        let zones = self.pointers.zones();
        for zone in 0..zones.count {
            let start = zones.start(zone);
            let written = start..start + self.pointers.get(zone);
            let part = written.start.max(at.start)..written.end.min(at.end);
            if !part.is_empty() {
                let from = (part.start - start) as usize..(part.end - start) as usize;
                into.write((part.start - at.start) as usize, &self.list[zone as usize].now.bytes[from]);
            }
        }
    }

    /// The contents after the death of the writing process: all that was written, none of it more durable.
    pub(crate) fn orphan(&self) -> ZoneMedia {
        self.with(self.list.clone())
    }

    /// The contents after a power loss; writes tear at `block` bytes.
    pub(crate) fn survive(&self, loss: Loss, block: u32, rng: &mut Rng) -> ZoneMedia {
        let survivor = |zone: &Zone| {
            let is_back = match loss {
                Loss::All => true,
                Loss::Nothing => false,
                Loss::Torn | Loss::Writes => rng.bool(),
            };
            let of = zone.before.as_ref().filter(|_| is_back).unwrap_or(&zone.now).clone();
            Zone { now: of.cut(loss, block as usize, rng), before: None }
        };
        self.with(self.list.iter().map(survivor).collect())
    }

    fn with(&self, list: Vec<Zone>) -> ZoneMedia {
        let at = list.iter().map(|zone| zone.now.bytes.len() as u64);
        ZoneMedia { pointers: WritePointers::new(self.pointers.zones(), at), list }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: Zones = Zones { first: 4096, count: 2, size: 16384, capacity: 16384, open_max: 0 };

    fn put(media: &mut ZoneMedia, value: u8) {
        let at = OF.first + media.pointers().get(0);
        assert_eq!(media.begin(&(at..at + 1024)), Ok(Some(0)));
        media.append(0, &Buf::from_vec(vec![value; 1024]));
        media.end(0, false);
    }

    fn flush(media: &mut ZoneMedia) {
        let mark = media.flush_begins();
        media.flush(&mark);
    }

    /// The bytes of zone 0, one of 512.
    fn get(media: &ZoneMedia) -> Vec<u8> {
        media.list[0].now.bytes.iter().copied().step_by(512).collect()
    }

    #[test]
    fn a_zone_is_cut_off_behind_what_is_durable() {
        let mut media = ZoneMedia::new(OF, None);
        put(&mut media, 1);
        flush(&mut media);
        put(&mut media, 2);
        let rng = &mut Rng::with_seed(1);
        assert_eq!(get(&media.survive(Loss::All, 512, rng)), [1, 1]);
        assert_eq!(get(&media.survive(Loss::Nothing, 512, rng)), [1, 1, 2, 2]);
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..64 {
            let after = media.survive(Loss::Torn, 512, rng);
            assert_eq!(after.pointers().get(0) as usize, get(&after).len() * 512);
            found.insert(get(&after));
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [vec![1, 1], vec![1, 1, 2], vec![1, 1, 2, 2]]);
        assert_eq!(get(&media.orphan()), [1, 1, 2, 2]);
    }

    #[test]
    fn a_reset_that_was_not_flushed_may_be_undone() {
        let mut media = ZoneMedia::new(OF, None);
        put(&mut media, 1);
        flush(&mut media);
        media.change(0, ZoneChange::Reset);
        put(&mut media, 2);
        let rng = &mut Rng::with_seed(1);
        assert_eq!(get(&media), [2, 2]);
        assert_eq!(get(&media.survive(Loss::All, 512, rng)), [1, 1]);
        flush(&mut media);
        assert_eq!(get(&media.survive(Loss::All, 512, rng)), [2, 2]);
        media.change(0, ZoneChange::Finish);
        assert_eq!((get(&media).len(), get(&media.survive(Loss::All, 512, rng)).len()), (32, 2));
    }
}
