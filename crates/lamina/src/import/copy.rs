//! Copies one NBD export into another, and writes what differs.

use crate::bench::target;
use crate::exit::Failure;
use futures_util::future::try_join_all;
use lamina_block::{Durability, Env, Extent, ExtentState, Io, Node, Zero};
use lamina_graph::Hierarchy;
use lamina_host::{Host, Options, Reactor};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

/// Bytes whose allocation is asked for at once.
const SPAN: u64 = 64 << 20;
/// Bytes that are read at once from each side.
const PIECE: u64 = 1 << 20;
/// Spans that are copied at the same time.
const SPANS: usize = 8;
/// Bytes that are compared, and written if they differ, at least.
const BLOCK: u64 = 4096;

/// Makes the first `size` bytes of an export those of another one; returns the bytes that were written. They are
/// durable.
pub fn copy(from: &str, to: &str, size: u64) -> Result<u64, Failure> {
    opened(&[from, to], async move |host, nodes| {
        let [from, to] = nodes else { return Err(Failure::failed("two devices were opened")) };
        if from.geometry().size < size {
            return Err(Failure::failed(format!(
                "the image has {size} bytes, of which whole blocks can be read: {}",
                from.geometry().size
            )));
        }
        let copy = Copy {
            host,
            from: Rc::clone(from),
            to: Rc::clone(to),
            size,
            next: Cell::new(0),
            written: Cell::new(0),
        };
        try_join_all((0..SPANS).map(|_| copy.work())).await.map_err(Failure::failed)?;
        to.submit(Io::flush()).await.map_err(Failure::failed)?;
        Ok(copy.written.get())
    })
}

/// Whether anything but zeroes may be in the first `size` bytes of an export.
pub fn has_data(uri: &str, size: u64) -> Result<bool, Failure> {
    opened(&[uri], async move |_, nodes| {
        let mut start = 0;
        while start < size {
            let end = size.min(start + SPAN);
            let runs = nodes[0].extents(start..end).await.map_err(Failure::failed)?;
            if runs.iter().any(|run| run.state == ExtentState::Data) {
                return Ok(true);
            }
            start = end;
        }
        Ok(false)
    })
}

/// Does `work` with the devices of NBD servers.
fn opened<T>(
    uris: &[&str],
    work: impl AsyncFnOnce(Rc<Host>, &[Rc<Node>]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let target = target::servers(uris)?;
    let reactor = Reactor::new(Options::default())
        .map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))?;
    let host = reactor.env();
    reactor.run(async move {
        let env = Rc::clone(&host) as Rc<dyn Env>;
        let built = Hierarchy::build(target.plan, env).await;
        let hierarchy = built.map_err(|report| Failure::File(crate::files::shown(&report)))?;
        let nodes: Vec<_> = target.devices.iter().filter_map(|name| hierarchy.node(name)).collect();
        let done = work(host, &nodes).await;
        let closed = hierarchy.close().await.map_err(Failure::failed);
        let done = done?;
        closed?;
        Ok(done)
    })
}

struct Copy {
    host: Rc<Host>,
    from: Rc<Node>,
    to: Rc<Node>,
    size: u64,
    /// Where the next span begins.
    next: Cell<u64>,
    written: Cell<u64>,
}

impl Copy {
    /// Copies spans, until there are no more.
    async fn work(&self) -> lamina_block::Result<()> {
        while self.next.get() < self.size {
            let start = self.next.replace(self.next.get() + SPAN);
            self.span(start..self.size.min(start + SPAN)).await?;
        }
        Ok(())
    }

    async fn span(&self, at: Range<u64>) -> lamina_block::Result<()> {
        let (from, to) = (self.from.extents(at.clone()).await?, self.to.extents(at.clone()).await?);
        let mut start = at.start;
        while start < at.end {
            let piece = start..at.end.min(start + PIECE);
            let within = piece.start - at.start..piece.end - at.start;
            start = piece.end;
            match (is_empty(&from, &within), is_empty(&to, &within)) {
                (true, true) => {}
                (empty, _) => self.piece(piece, empty).await?,
            }
        }
        Ok(())
    }

    /// Copies what differs in `at`; `empty`: it is to be zeroes.
    async fn piece(&self, at: Range<u64>, empty: bool) -> lamina_block::Result<()> {
        let len = (at.end - at.start) as usize;
        let (new, old) = (self.host.pool().take(len), self.host.pool().take(len));
        match empty {
            true => new.fill(0),
            false => self.from.submit(Io::read(at.start, new.clone())).await?,
        }
        self.to.submit(Io::read(at.start, old.clone())).await?;
        for (part, zero) in
            differing(&new.to_vec(), &old.to_vec(), BLOCK.max(self.to.geometry().block.into()) as usize)
        {
            let to = at.start + part.start as u64..at.start + part.end as u64;
            self.written.set(self.written.get() + (to.end - to.start));
            let io = match zero {
                true => Io::zero(to, Zero { unmap: true, ..Zero::default() }),
                false => Io::write(to.start, new.slice(part), Durability::Cached),
            };
            self.to.submit(io).await?;
        }
        Ok(())
    }
}

/// Whether nothing but zeroes is in a part of what `runs` describe.
fn is_empty(runs: &[Extent], part: &Range<u64>) -> bool {
    let mut end = 0;
    runs.iter().all(|run| {
        let start = end;
        end += run.len;
        run.state != ExtentState::Data || end <= part.start || start >= part.end
    })
}

/// Blocks that differ, in runs, and whether all of a run are zeroes in `new`; otherwise none is.
fn differing(new: &[u8], old: &[u8], block: usize) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for (number, (new, old)) in new.chunks(block).zip(old.chunks(block)).enumerate() {
        if new == old {
            continue;
        }
        let (start, zero) = (number * block, new.iter().all(|byte| *byte == 0));
        match runs.last_mut() {
            Some((run, is)) if run.end == start && *is == zero => run.end = start + new.len(),
            _ => runs.push((start..start + new.len(), zero)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_differ_are_found_in_runs() {
        let old = [1, 1, 1, 1, 1, 1, 0, 0, 5, 5];
        let new = [1, 1, 2, 1, 1, 3, 0, 0, 0, 0];
        assert_eq!(differing(&new, &old, 2), [(2..6, false), (8..10, true)]);
        assert_eq!(differing(&[0, 0, 0, 0, 7], &[1, 0, 7, 0, 0], 2), [(0..4, true), (4..5, false)]);
        assert!(differing(&old, &old, 4).is_empty());
    }

    #[test]
    fn parts_of_holes_are_empty() {
        let run = |len, state| Extent { len, state };
        let runs = [run(4, ExtentState::Hole), run(2, ExtentState::Data), run(4, ExtentState::Zero)];
        for (part, empty) in [(0..4, true), (0..5, false), (5..6, false), (6..10, true), (3..7, false)] {
            assert_eq!(is_empty(&runs, &part), empty, "{part:?}");
        }
    }
}
