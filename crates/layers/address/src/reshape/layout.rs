//! The locations of the bytes of a volume on the devices below it: bands of the address space, each on one
//! device or distributed over several in units.
//!
//! ```text
//!      0 ────────────────┬─────────────────────── size      here
//!      │ band, on a      │ band, on b and c in units │
//!      └─▶ a from 1 MiB  └─▶ b from 0, c from 0             below
//! ```
//!
//! Invariant: bands follow each other without gaps, none is empty, and no two bytes have the same location
//! ([`Layout::check`] refuses other layouts, since they may come from a disk).

use lamina_block::{Bytes, Children, Error, ErrorKind, Result};
use std::ops::Range;

/// The largest unit: it fits in the geometry's `optimal`.
pub const UNIT_MAX: u64 = 1 << 31;

/// A location on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The device: its number among the children.
    pub child: usize,
    /// The byte there.
    pub there: u64,
}

/// A run of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Bytes, not zero.
    pub len: u64,
    /// Bytes that lie together on one device, if there are several.
    pub unit: u64,
    /// The devices in rotation, and the address on each of them where the band begins.
    pub on: Vec<Location>,
}

/// A run of bytes that lies together on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The bytes.
    pub at: Range<u64>,
    /// The location of the first byte.
    pub location: Location,
}

impl Span {
    /// The location of byte `at`, which is in the span.
    pub fn location(&self, at: u64) -> Location {
        Location { there: self.location.there + (at - self.at.start), ..self.location }
    }
}

/// The locations of all bytes of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    bands: Vec<Band>,
    /// Where each band begins.
    starts: Vec<u64>,
    size: u64,
}

impl Band {
    /// A band on one device.
    pub fn plain(len: u64, location: Location) -> Band {
        Band { len, unit: 0, on: vec![location] }
    }

    /// The run that byte `within` of the band lies in, both counted from the band's begin.
    fn span(&self, within: u64) -> Span {
        if let [location] = self.on[..] {
            return Span { at: 0..self.len, location };
        }
        let (index, n) = (within / self.unit, self.on.len() as u64);
        let location = self.on[(index % n) as usize];
        let (start, there) = (index * self.unit, location.there + index / n * self.unit);
        let end = self.len.min(start.saturating_add(self.unit));
        Span { at: start..end, location: Location { there, ..location } }
    }

    /// Bytes on the device number `index` of the rotation.
    fn share(&self, index: usize) -> u64 {
        if self.on.len() == 1 {
            return self.len;
        }
        let row = self.unit.saturating_mul(self.on.len() as u64);
        let rest = (self.len % row).saturating_sub(index as u64 * self.unit).min(self.unit);
        self.len / row * self.unit + rest
    }
}

impl Layout {
    /// Adds a band at the end.
    pub fn push(&mut self, band: Band) -> Result<()> {
        let end = self.size.checked_add(band.len);
        let end = end.ok_or_else(|| Error::invalid("all together they are larger than 2^64 bytes"))?;
        self.starts.push(self.size);
        self.size = end;
        self.bands.push(band);
        Ok(())
    }

    /// All bands, in order.
    pub fn bands(&self) -> &[Band] {
        &self.bands
    }

    /// Where each band begins.
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The run that byte `at` lies in.
    pub fn span(&self, at: u64) -> Span {
        let band = self.starts.partition_point(|start| *start <= at) - 1;
        let start = self.starts[band];
        let Span { at, location } = self.bands[band].span(at - start);
        Span { at: start + at.start..start + at.end, location }
    }

    /// The bytes at `location`: the length of their run there, and the byte that it begins with; `None` if
    /// the location is free.
    pub fn holds(&self, location: Location) -> (u64, Option<u64>) {
        let mut free = u64::MAX - location.there;
        for (band, begin) in self.bands.iter().zip(&self.starts) {
            for (index, leg) in band.on.iter().enumerate().filter(|(_, leg)| leg.child == location.child) {
                let share = band.share(index);
                if location.there < leg.there {
                    free = free.min(if share > 0 { leg.there - location.there } else { u64::MAX });
                } else if location.there - leg.there < share {
                    let off = location.there - leg.there;
                    if band.on.len() == 1 {
                        return (share - off, Some(begin + off));
                    }
                    let (row, within) = (off / band.unit, off % band.unit);
                    let at = (row * band.on.len() as u64 + index as u64) * band.unit + within;
                    return ((band.unit - within).min(share - off), Some(begin + at));
                }
            }
        }
        (free, None)
    }

    /// True if some bytes lie on `child`.
    pub fn uses(&self, child: usize) -> bool {
        self.bands.iter().any(|band| band.on.iter().any(|leg| leg.child == child))
    }

    /// The used ranges of `child`, in order.
    fn taken(&self, child: usize) -> Vec<Range<u64>> {
        let legs = self.bands.iter().flat_map(|band| band.on.iter().enumerate().map(move |leg| (band, leg)));
        let mine = legs.filter(|(_, (_, leg))| leg.child == child);
        let mut taken: Vec<_> =
            mine.map(|(band, (index, leg))| leg.there..leg.there + band.share(index)).collect();
        taken.retain(|range| !range.is_empty());
        taken.sort_by_key(|range| range.start);
        taken
    }

    /// The ranges of `child` that the bytes from `position` on use, in order.
    fn taken_from(&self, child: usize, position: u64) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        for (band, start) in self.bands.iter().zip(&self.starts) {
            let len = position.saturating_sub(*start).min(band.len);
            let before = Band { len, ..band.clone() };
            for (index, leg) in band.on.iter().enumerate().filter(|(_, leg)| leg.child == child) {
                rest.push(leg.there + before.share(index)..leg.there + band.share(index));
            }
        }
        rest.retain(|range| !range.is_empty());
        rest.sort_by_key(|range| range.start);
        rest
    }

    /// True if no byte before `position` in `self` has the location of one from there on in `other`. Both
    /// were [checked](Layout::check) for `children` devices.
    pub fn is_apart(&self, other: &Layout, position: u64, children: usize) -> bool {
        let before = self.cut(position);
        (0..children).all(|child| {
            let mut all = before.taken(child);
            all.extend(other.taken_from(child, position));
            all.sort_by_key(|range| range.start);
            all.windows(2).all(|pair| pair[0].end <= pair[1].start)
        })
    }

    /// The free ranges of `child`, which has `size` bytes, in order.
    pub fn free(&self, child: usize, size: u64) -> Vec<Range<u64>> {
        let mut next = 0;
        let mut free: Vec<_> = self
            .taken(child)
            .into_iter()
            .map(|taken| std::mem::replace(&mut next, taken.end)..taken.start)
            .collect();
        free.push(next..size.max(next));
        free.retain(|range| !range.is_empty());
        free
    }

    /// The same, ending at byte `size`.
    pub fn cut(&self, size: u64) -> Layout {
        let mut cut = Layout::default();
        for (band, start) in self.bands.iter().zip(&self.starts).filter(|(_, start)| **start < size) {
            let len = band.len.min(size - start);
            cut.bands.push(Band { len, ..band.clone() });
            cut.starts.push(*start);
            cut.size = start + len;
        }
        cut
    }

    /// The same with `len` more bytes in the last band, as far as a size allows.
    pub fn stretch(&self, len: u64) -> Layout {
        let (mut more, len) = (self.clone(), len.min(u64::MAX - self.size));
        if let Some(last) = more.bands.last_mut() {
            last.len += len;
            more.size += len;
        }
        more
    }

    /// How many bytes the last band could have more on `children`, counted in whole units where it has
    /// several devices.
    pub fn stretches(&self, children: &Children) -> u64 {
        let Some(last) = self.bands.last() else { return 0 };
        let room = |leg: &Location| {
            let mine = self.taken(leg.child).into_iter();
            let next = mine.map(|taken| taken.start).find(|start| *start > leg.there);
            children[leg.child].geometry().size.min(next.unwrap_or(u64::MAX)).saturating_sub(leg.there)
        };
        let least = last.on.iter().map(room).min().unwrap_or(0);
        let whole = match last.on.len() {
            1 => least,
            n => (least / last.unit * last.unit).saturating_mul(n as u64),
        };
        whole.saturating_sub(last.len)
    }

    /// The bytes of `at` that may have another location in `other`: exact where one device has them, and all
    /// bytes that are distributed in different ways.
    pub fn differs(&self, other: &Layout, at: Range<u64>) -> u64 {
        let (mut next, mut bytes) = (at.start, 0);
        while next < at.end {
            let [mine, theirs] = [self, other].map(|layout| layout.band(next));
            let end = at.end.min(mine.1.end).min(theirs.1.end);
            let same = match (&mine.0.on[..], &theirs.0.on[..]) {
                ([_], [_]) => self.span(next).location(next) == other.span(next).location(next),
                _ => {
                    mine.0.on == theirs.0.on && mine.0.unit == theirs.0.unit && mine.1.start == theirs.1.start
                }
            };
            bytes += if same { 0 } else { end - next };
            next = end;
        }
        bytes
    }

    fn band(&self, at: u64) -> (&Band, Range<u64>) {
        let band = self.starts.partition_point(|start| *start <= at) - 1;
        (&self.bands[band], self.starts[band]..self.starts[band] + self.bands[band].len)
    }

    /// Fails unless this can be the layout of a volume on `children` with blocks of `block` bytes.
    pub fn check(&self, children: &Children, block: u64) -> Result<()> {
        let whole = |number: u64| number.is_multiple_of(block);
        for band in &self.bands {
            let dealt = band.on.len() > 1;
            if band.len == 0 || band.on.is_empty() {
                return Err(corrupt("a band of the kept layout is empty"));
            }
            if dealt && !(band.unit.is_power_of_two() && (block..=UNIT_MAX).contains(&band.unit)) {
                return Err(corrupt(format!("a unit of the kept layout has {} bytes", band.unit)));
            }
            // Also where a short band has reached neither yet: it may become longer.
            let is_again = |(index, leg): (usize, &Location)| {
                band.on[..index].iter().any(|other| other.child == leg.child)
            };
            if band.on.iter().enumerate().any(is_again) {
                return Err(corrupt("a device of the kept layout takes two turns"));
            }
            let ends = |(index, leg): (usize, &Location)| leg.there.checked_add(band.share(index)).is_some();
            if !band.on.iter().enumerate().all(ends) {
                return Err(corrupt("a location in the kept layout is beyond 2^64"));
            }
        }
        // The last band may end anywhere: the size is rounded down to whole blocks.
        if self.bands.is_empty() || !self.starts.iter().all(|start| whole(*start)) {
            return Err(Error::invalid(format!("the kept layout does not fit blocks of {block} bytes")));
        }
        for (number, child) in children.iter().enumerate() {
            let (name, size) = (child.name(), child.geometry().size);
            let mut end = 0;
            for taken in self.taken(number) {
                if taken.start < end {
                    return Err(corrupt(format!("the kept layout uses bytes of {name} twice")));
                }
                if !whole(taken.start) {
                    let message = format!("{name}: the kept layout does not fit blocks of {block} bytes");
                    return Err(Error::invalid(message));
                }
                end = taken.end;
            }
            if end > size {
                let (end, size) = (Bytes(end), Bytes(size));
                return Err(Error::invalid(format!("over: {name} has {size}, and {end} of it are in use")));
            }
        }
        Ok(())
    }
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}
