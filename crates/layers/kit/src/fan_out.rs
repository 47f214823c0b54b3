//! One request that goes to several children: their geometry taken together, its parts, and its end.

use lamina_block::{Children, Error, Geometry, Io, Node, Op, OpKind, Request, Result, Step, all};
use std::ops::Range;
use std::rc::Rc;

/// The geometry of `children` taken together, with the size of the first.
pub fn geometry(children: &Children) -> Geometry {
    let mut shapes = children.iter().map(|child| child.geometry());
    let first = shapes.next().expect("the graph gives a layer as many children as it asks for");
    shapes.fold(first, Geometry::and)
}

/// Completes when all of `parts` have. Parts that complete at once, as memory does, cost no future; if all
/// do, there is no future.
#[inline]
pub fn together(parts: impl Iterator<Item = Request>) -> Step {
    let (mut result, mut waiting) = (Ok(()), Vec::new());
    for mut part in parts {
        match part.ready() {
            Some(Ok(())) => {}
            Some(Err(e)) => result = result.and(Err(e)),
            None => waiting.push(part),
        }
    }
    match waiting.is_empty() {
        true => Step::Done(result),
        false => Step::control(async move { result.and(all(waiting).await) }),
    }
}

/// Flushes all of `children`.
#[inline]
pub fn flush(children: &Children) -> Step {
    together(children.iter().map(|child| child.submit(Io::flush())))
}

/// A fast zeroing happens on all children or on none: fails while nothing has changed yet, if one of
/// `children` would refuse it.
#[inline]
pub fn refuse_fast_zero<'a>(io: &Io, mut children: impl Iterator<Item = &'a Rc<Node>>) -> Result<()> {
    match io.op {
        Op::Zero(how) if how.fast => match children.find(|child| !child.geometry().zero) {
            Some(slow) => {
                Err(Error::unsupported("zeroing is not fast here").at(io.at.clone()).on(slow.name()))
            }
            None => Ok(()),
        },
        Op::Zero(_) | Op::Read(_) | Op::Write(..) | Op::Discard | Op::Flush => Ok(()),
    }
}

/// True if `inner` lies in `outer`.
#[inline]
pub fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// True for a flush, which has no address.
#[inline]
pub fn is_flush(io: &Io) -> bool {
    io.op.kind() == OpKind::Flush
}

/// Parts of a request, each with its address. Parts that follow each other on both sides become one.
#[derive(Default)]
pub struct Runs {
    all: Vec<(Range<u64>, u64)>,
}

impl Runs {
    /// `part` goes to `to`.
    #[inline]
    pub fn add(&mut self, part: &Range<u64>, to: u64) {
        match self.all.last_mut() {
            Some((last, there)) if last.end == part.start && *there + (last.end - last.start) == to => {
                last.end = part.end;
            }
            Some(_) | None => self.all.push((part.clone(), to)),
        }
    }

    /// The parts, in order of addition.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, u64)> + use<'_> {
        self.all.iter().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::{Layer, Manage, Passthrough, Zero};
    use lamina_sim::Simulation;
    use std::cell::Cell;

    /// A disk that counts zeroings, and refuses them if it is slow.
    struct Disk {
        geometry: Geometry,
        asked: Rc<Cell<u64>>,
    }

    impl Layer for Disk {
        fn geometry(&self) -> Geometry {
            self.geometry
        }

        fn submit(self: Rc<Self>, _: &mut Io) -> Step {
            self.asked.set(self.asked.get() + 1);
            Step::Done(if self.geometry.zero { Ok(()) } else { Err(Error::offline("away")) })
        }

        fn passthrough(&self) -> Passthrough {
            Passthrough::None
        }
    }

    impl Manage for Disk {}

    /// Disks of these sizes and blocks, of which only the first can zero, and a count of the zeroings.
    fn disks(shapes: &[(u64, u32)]) -> (Children, Rc<Cell<u64>>) {
        let (env, asked) = (Simulation::new(0).env(), Rc::new(Cell::new(0)));
        let disk = |(number, (size, block)): (usize, &(u64, u32))| {
            let geometry = Geometry { block: *block, zero: number == 0, ..Geometry::new(*size) };
            Node::new("disk", "disk", env.clone(), Rc::new(Disk { geometry, asked: Rc::clone(&asked) }))
        };
        (shapes.iter().enumerate().map(disk).collect(), asked)
    }

    #[test]
    fn a_shape_has_the_size_of_the_first_and_the_longest_block() {
        let (children, _) = disks(&[(1 << 20, 512), (1 << 21, 4096)]);
        let shape = geometry(&children);
        assert_eq!((shape.size, shape.block), (1 << 20, 4096));
    }

    #[test]
    fn parts_that_follow_on_both_sides_are_one() {
        let mut runs = Runs::default();
        for (part, to) in [(0..4, 100), (4..8, 104), (8..12, 200), (12..16, 196), (17..20, 200)] {
            runs.add(&part, to);
        }
        assert!(runs.iter().eq([(0..8, 100), (8..12, 200), (12..16, 196), (17..20, 200)]));
    }

    #[test]
    fn a_fan_out_ends_with_all_of_its_parts() {
        let (children, asked) = disks(&[(1 << 20, 512); 3]);
        assert!(matches!(flush(&children), Step::Done(Err(_))), "two of them fail");
        assert_eq!(asked.get(), 3, "all are asked");
        assert!(matches!(flush(&vec![Rc::clone(&children[0])]), Step::Done(Ok(()))));
    }

    #[test]
    fn a_fast_zeroing_is_for_all_or_none() {
        let (children, asked) = disks(&[(1 << 20, 512); 2]);
        let zero = |fast| Io::zero(0..512, Zero { fast, ..Zero::default() });
        assert!(refuse_fast_zero(&zero(true), children[..1].iter()).is_ok());
        assert!(refuse_fast_zero(&zero(true), children.iter()).is_err());
        assert!(refuse_fast_zero(&zero(false), children.iter()).is_ok());
        assert_eq!(asked.get(), 0);
    }
}
