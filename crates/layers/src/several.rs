//! What layers over several children share.

use lamina_block::{Children, Error, Geometry, Io, Node, Op, OpKind, Request, Result, Step, all};
use std::ops::Range;
use std::rc::Rc;

/// The shape of `children` taken together, with the size of the first.
pub fn geometry(children: &Children) -> Geometry {
    let mut shapes = children.iter().map(|child| child.geometry());
    let first = shapes.next().expect("the graph gives a layer as many children as it asks for");
    shapes.fold(first, Geometry::and)
}

/// Completes when all of `parts` have. Parts that complete at once, as memory does, cost no future; and when all do,
/// there is none.
pub fn together(parts: impl Iterator<Item = Request>) -> Step {
    let (mut result, mut waiting) = (Ok(()), Vec::new());
    for mut part in parts {
        match part.ready() {
            Some(ended) => result = result.and(ended),
            None => waiting.push(part),
        }
    }
    match waiting.is_empty() {
        true => Step::Done(result),
        false => Step::control(async move { result.and(all(waiting).await) }),
    }
}

/// Flushes all of `children`.
pub fn flush(children: &Children) -> Step {
    together(children.iter().map(|child| child.submit(Io::flush())))
}

/// A fast zeroing happens on all children or on none: refuses it while nothing has changed yet, if one of `children`
/// would refuse it.
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
pub fn contains(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// True for a flush, which has no place.
pub fn is_flush(io: &Io) -> bool {
    io.op.kind() == OpKind::Flush
}
