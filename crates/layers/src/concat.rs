//! `concat`: devices end to end.
//!
//! A byte never changes its place: where each device begins is fixed when the layer is built. Only the last one may
//! grow under it; of the others, what grows is not used.
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
//! A request inside one device is handed on; one that crosses a border is done in parts, all at once. It deliberately
//! balances nothing: that is `stripe`.

use crate::several;
use lamina_block::{
    Build, Children, Config, Error, Extent, Geometry, Io, Layer, Made, Pending, Request, Result, Step,
};
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

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(Concat::new(with.children)?) as Made) })
    }
}

struct Concat {
    children: Children,
    /// Where each child begins.
    starts: Vec<u64>,
}

impl Concat {
    fn new(children: Children) -> Result<Concat> {
        let block = several::geometry(&children).block as u64;
        let (mut starts, mut end) = (Vec::new(), 0u64);
        for child in &children {
            starts.push(end);
            if !end.is_multiple_of(block) {
                let name = child.name();
                return Err(Error::invalid(format!(
                    "over: {name} would not begin at a block of {block} bytes"
                )));
            }
            end = end
                .checked_add(child.geometry().size)
                .ok_or_else(|| Error::invalid("over: all together they are larger than 2^64 bytes"))?;
        }
        Ok(Concat { children, starts })
    }

    /// The range that a child covers here. Of the last one it has no end.
    fn span(&self, child: usize) -> Range<u64> {
        self.starts[child]..self.starts.get(child + 1).copied().unwrap_or(u64::MAX)
    }

    /// The children that `at` touches, the range of each here, and where it is there.
    fn parts(&self, at: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>, u64)> {
        let first = self.starts.partition_point(|start| *start <= at.start) - 1;
        let touched = (first..self.children.len()).take_while(move |child| self.starts[*child] < at.end);
        touched.map(move |child| {
            let span = self.span(child);
            let part = at.start.max(span.start)..at.end.min(span.end);
            let there = part.start - span.start;
            (child, part, there)
        })
    }

    fn split(&self, io: &Io) -> impl Iterator<Item = Request> {
        let parts = self.parts(io.at.clone());
        parts.map(|(child, part, there)| self.children[child].submit(io.part(part, there)))
    }
}

impl Layer for Concat {
    fn geometry(&self) -> Geometry {
        let last = self.children.len() - 1;
        let size = self.starts[last].saturating_add(self.children[last].geometry().size);
        let together = several::geometry(&self.children);
        together.with_size(size - size % together.block as u64)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if several::is_flush(io) {
            return several::flush(&self.children);
        }
        let first = self.starts.partition_point(|start| *start <= io.at.start) - 1;
        let span = self.span(first);
        if several::contains(&span, &io.at) {
            io.move_to(io.at.start - span.start);
            return Step::Forward(Rc::clone(&self.children[first]));
        }
        let touched = self.parts(io.at.clone()).map(|(child, ..)| &self.children[child]);
        if let Err(e) = several::refuse_fast_zero(io, touched) {
            return e.into();
        }
        several::together(self.split(io))
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let mut merged = Vec::new();
            for (child, part, there) in self.parts(at) {
                for run in self.children[child].extents(there..there + (part.end - part.start)).await? {
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
        submit(&all, Io::flush()).unwrap();
        for node in [&a, &b, &all] {
            assert_eq!(node.stats().of(OpKind::Flush).completed.get(), 1);
        }
    }

    #[test]
    fn a_border_inside_a_block_is_refused() {
        let (a, b) = (memory("512B"), built("memory", json!({"size": "64KiB", "block": 4096})));
        assert!(refused("concat", json!({}), &[&a, &b]).contains("4096"));
        assert_eq!(over("concat", json!({}), &[&b, &a]).geometry().size, 64 << 10);
    }
}
