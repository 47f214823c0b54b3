//! `concat`: devices end to end.
//!
//! In a persistent hierarchy the location of each byte is recorded with it: from then on the order in `over`
//! means nothing, and a byte moves only when its device is taken away. In other hierarchies, the locations
//! follow from `over` whenever the layer is built.
//!
//! ```text
//!      0 ───────────────────────────── size     here
//!      │     a     │   b   │     c     │
//!      0 ───────── a.size                       below
//!                  0 ───── b.size
//!                          0 ───────── c.size
//! ```
//!
//! Keys:
//! * `over`: the devices, in order. All but the last must be a whole number of the largest logical block among them.
//!
//! A request inside one device is handed on; a request that crosses a border is done in parts, all at once.
//! The layer deliberately balances nothing: that is `stripe`.
//!
//! The device changes while it is served (only in a persistent hierarchy, but for the first two):
//! * The last device grows: so does this one, at once. The growth of other devices is used by `resize`.
//! * A name is added to `over`: the device is added at the end, at once.
//! * A name is taken out of `over`: its data is moved to free space on the others, and then the device is
//!   detached. A device that replaces it in the same change gets its data; the size stays. The rest of a
//!   larger one is used by `resize`.
//! * `resize` without a size uses all free space; `resize SIZE force=true` makes the device smaller, and the
//!   bytes beyond are lost. So a device is removed without another: make it smaller first, then take out the
//!   name.
//!
//! New space may have old bytes. Moving is a job (`move`) that can be watched, slowed, paused and cancelled;
//! a move goes on after a restart or a crash, and after `move` if it was cancelled. A request waits for at
//! most 4 MiB to be moved.

use crate::reshape::{Band, Joined, Layout, Location, Plan, Shape, Spread, VERBS, Way};
use lamina_block::{
    Build, Bytes, Children, Config, Error, ErrorKind, Extent, Growth, Io, Made, Pending, Request, Result,
    Step, Traits,
};
use lamina_kit::fan_out;
use serde::Deserialize;
use std::ops::Range;
use std::rc::Rc;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {}

impl Config for Keys {
    const KIND: &'static str = "concat";
    const SUMMARY: &'static str = "devices end to end";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=usize::MAX;
    const TRAITS: Traits = Traits {
        keeps: true,
        growth: Growth::Last,
        appends: true,
        verbs: VERBS,
        elsewhere: &["jbod", "span", "raid-linear"],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Spread::build(Concat, with).await? as Made) })
    }
}

/// The kind: it has no keys.
pub struct Concat;

/// Appends all free bytes of `children` to `layout`.
fn append_free(layout: &Layout, children: &Children, which: impl Iterator<Item = usize>) -> Result<Layout> {
    let block = u64::from(fan_out::geometry(children).block);
    let mut longer = layout.clone();
    for number in which {
        let child = &children[number];
        for free in layout.free(number, child.geometry().size) {
            if !longer.size().is_multiple_of(block) {
                let name = child.name();
                return Err(Error::invalid(format!(
                    "over: {name} would not begin at a block of {block} bytes"
                )));
            }
            let tail = Location { child: number, there: free.start };
            longer
                .push(Band::plain(free.end - free.start, tail))
                .map_err(|e| Error::invalid(format!("over: {}", e.message())))?;
        }
    }
    Ok(longer)
}

/// Takes `len` bytes from the front of `free`, in whole blocks as long as there are any, as bands after `to`.
fn take(to: &mut Layout, free: &mut Vec<(usize, Range<u64>)>, mut len: u64) -> Result<()> {
    while let Some((child, range)) = free.first_mut().filter(|_| len > 0) {
        let now = len.min(range.end - range.start);
        to.push(Band::plain(now, Location { child: *child, there: range.start }))?;
        (range.start, len) = (range.start + now, len - now);
        if range.is_empty() {
            free.remove(0);
        }
    }
    Ok(())
}

impl Shape for Concat {
    const KIND: &'static str = "concat";
    type Way = Ends;

    fn begin(&self, children: &Children) -> Result<Layout> {
        append_free(&Layout::default(), children, 0..children.len())
    }

    fn accepts(&self, layout: &Layout) -> Result<()> {
        match layout.bands().iter().all(|band| band.on.len() == 1 && band.unit == 0) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Corrupt, "the kept layout is not that of a concat")),
        }
    }

    fn widest(&self, layout: &Layout, children: &Children) -> Result<Layout> {
        let stretched = layout.stretch(layout.stretches(children));
        // A tail that is no whole block can only be the last.
        append_free(&stretched, children, 0..children.len()).or(Ok(stretched))
    }

    fn join(&self, layout: &Layout, children: &Children, spare: &[usize]) -> Result<Joined> {
        append_free(layout, children, spare.iter().copied()).map(Joined::Longer)
    }

    /// The bands of `gone` go to free space elsewhere, first to devices without data; all others stay.
    fn plan_evacuation(
        &self,
        layout: &Layout,
        children: &Children,
        gone: &[usize],
        spare: &[usize],
    ) -> Result<Plan> {
        let block = u64::from(fan_out::geometry(children).block);
        let others = (0..children.len()).filter(|child| !gone.contains(child) && !spare.contains(child));
        let mut free = Vec::new();
        for child in spare.iter().copied().chain(others) {
            let whole = |range: Range<u64>| range.start.next_multiple_of(block)..range.end / block * block;
            let ranges = layout.free(child, children[child].geometry().size).into_iter().map(whole);
            free.extend(ranges.filter(|range| range.start < range.end).map(|range| (child, range)));
        }
        let moves = |band: &&Band| gone.contains(&band.on[0].child);
        let need: u64 = layout.bands().iter().filter(moves).map(|band| band.len).sum();
        let room = free.iter().fold(0u64, |sum, (_, range)| sum.saturating_add(range.end - range.start));
        if room < need {
            return Err(no_room(layout.size(), need, room, children, gone));
        }
        let mut to = Layout::default();
        for band in layout.bands() {
            match moves(&band) {
                true => take(&mut to, &mut free, band.len)?,
                false => to.push(band.clone())?,
            }
        }
        Ok(Plan { to, up: true })
    }
}

/// Why `need` bytes cannot be moved off the children `gone`, and what would help.
fn no_room(size: u64, need: u64, room: u64, children: &Children, gone: &[usize]) -> Error {
    let names: Vec<&str> = gone.iter().map(|child| children[*child].name()).collect();
    let less = match size.saturating_sub(need - room) {
        0 => String::new(),
        less => format!(", or make it smaller (resize {less} force=true; the bytes beyond are lost)"),
    };
    Error::new(
        ErrorKind::NoSpace,
        format!(
            "{} of it are on {}, and the others have {} free; add a device in the same change{less}",
            Bytes(need),
            names.join(", "),
            Bytes(room)
        ),
    )
}

/// Bands one after the other.
pub struct Ends {
    /// Where each band begins.
    starts: Vec<u64>,
    /// The location of each band.
    locations: Vec<Location>,
}

impl Ends {
    /// The range of a band. That of the last one has no end.
    fn span(&self, band: usize) -> Range<u64> {
        self.starts[band]..self.starts.get(band + 1).copied().unwrap_or(u64::MAX)
    }

    /// The bands that `at` touches: the child of each, the range here, and the address there.
    fn parts(&self, at: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>, u64)> {
        let first = self.starts.partition_point(|start| *start <= at.start) - 1;
        let touched = (first..self.starts.len()).take_while(move |band| self.starts[*band] < at.end);
        touched.map(move |band| {
            let (span, location) = (self.span(band), self.locations[band]);
            let part = at.start.max(span.start)..at.end.min(span.end);
            let there = location.there + (part.start - span.start);
            (location.child, part, there)
        })
    }

    fn split(&self, io: &Io, children: &Children) -> impl Iterator<Item = Request> {
        let parts = self.parts(io.at.clone());
        parts.map(|(child, part, there)| children[child].submit(io.part(part, there)))
    }
}

impl Way for Ends {
    fn new(layout: &Layout, _children: &Children) -> Ends {
        Ends {
            starts: layout.starts().to_vec(),
            locations: layout.bands().iter().map(|band| band.on[0]).collect(),
        }
    }

    // A call of its own would cost 5% of a request through it (docs/price-of-layers.md).
    #[inline(always)]
    fn submit(&self, io: &mut Io, children: &Children) -> Step {
        let first = self.starts.partition_point(|start| *start <= io.at.start) - 1;
        let span = self.span(first);
        if fan_out::contains(&span, &io.at) {
            let location = self.locations[first];
            io.move_to(location.there + (io.at.start - span.start));
            return Step::Forward(Rc::clone(&children[location.child]));
        }
        let touched = self.parts(io.at.clone()).map(|(child, ..)| &children[child]);
        if let Err(e) = fan_out::refuse_fast_zero(io, touched) {
            return e.into();
        }
        fan_out::together(self.split(io, children))
    }

    fn extents(self: Rc<Self>, at: Range<u64>, children: Children) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let mut merged = Vec::new();
            for (child, part, there) in self.parts(at) {
                for run in children[child].extents(there..there + (part.end - part.start)).await? {
                    Extent::push(&mut merged, run.len, run.state);
                }
            }
            Ok(merged)
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({}), 3)
    }

    #[test]
    fn a_request_across_borders_reaches_every_device() {
        let (a, b, c) = (memory("64KiB"), memory("512B"), memory("64KiB"));
        let all = over("concat", json!({}), &[&a, &b, &c]);
        assert_eq!(all.geometry().size, (128 << 10) + 512);
        let bytes = pattern(4096);
        submit(&all, Io::write((64 << 10) - 1024, Buf::from_vec(bytes.clone()), Durability::Fua)).unwrap();
        assert_eq!(read(&all, (64 << 10) - 1024, 4096), bytes);
        assert_eq!(read(&a, (64 << 10) - 1024, 1024), bytes[..1024]);
        assert_eq!(read(&b, 0, 512), bytes[1024..1536]);
        assert_eq!(read(&c, 0, 2560), bytes[1536..]);
        submit(&all, Io::zero(0..(128 << 10) + 512, Zero { fast: true, ..Zero::default() })).unwrap();
        assert_eq!(read(&b, 0, 512), [0; 512]);
        assert_eq!(extents(&all, 512..1024), [hole(512)]);
    }

    #[test]
    fn flush_reaches_every_device() {
        let (a, b) = (memory("64KiB"), memory("64KiB"));
        let all = over("concat", json!({}), &[&a, &b]);
        let flushes = || [&a, &b, &all].map(|node| node.stats().of(OpKind::Flush).completed.get());
        let before = flushes();
        submit(&all, Io::flush()).unwrap();
        assert_eq!(flushes(), before.map(|n| n + 1));
    }

    #[test]
    fn a_border_inside_a_block_is_refused() {
        let (a, b) = (memory("512B"), built("memory", json!({"size": "64KiB", "block": 4096})));
        assert!(refused("concat", json!({}), &[&a, &b]).contains("4096"));
        assert_eq!(over("concat", json!({}), &[&b, &a]).geometry().size, 64 << 10);
    }
}
