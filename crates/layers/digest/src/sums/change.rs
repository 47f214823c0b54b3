//! Writes and zeroes: bytes below and digests in the table change together, as readers see it.

use super::Sums;
use lamina_block::{Buf, Durability, Io, Op, Result, Zero};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

/// The most bytes that are copied and digested for one request at a time.
pub const PIECE: u64 = 1 << 20;
/// The most bytes that are zeroed at once.
const ZERO_PIECE: u64 = 64 << 20;

/// `at`, cut at multiples of `len`.
pub fn pieces(at: &Range<u64>, len: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut from, end) = (at.start, at.end);
    std::iter::from_fn(move || {
        let start = from;
        from = ((start / len + 1) * len).min(end);
        (start < end).then_some(start..from)
    })
}

impl Sums {
    /// Carries out a write, a zeroing or a discard.
    pub async fn change(self: Rc<Self>, io: Io) -> Result<()> {
        match io.op {
            Op::Write(from, durability) => self.write(&io.at, &from, durability).await,
            Op::Zero(how) => self.zero(&io.at, how, true).await,
            // The other bytes may stay as they are.
            Op::Discard => self.zero(&io.at, Zero { unmap: true, ..Zero::default() }, false).await,
            Op::Read(_) | Op::Flush => Ok(()),
        }
    }

    async fn write(&self, at: &Range<u64>, from: &Buf, durability: Durability) -> Result<()> {
        for piece in pieces(at, PIECE) {
            let part = (piece.start - at.start) as usize..(piece.end - at.start) as usize;
            self.write_piece(piece, &from.slice(part), durability).await?;
        }
        Ok(())
    }

    async fn write_piece(&self, at: Range<u64>, from: &Buf, durability: Durability) -> Result<()> {
        let blocks = self.cover(&at);
        let lock = if flawed("changes do not wait") { None } else { Some(self.lock(&blocks).await) };
        let whole = self.env.pool().take((blocks.end - blocks.start) as usize);
        self.complete(&blocks, &at, &whole).await?;
        let own = whole.slice((at.start - blocks.start) as usize..(at.end - blocks.start) as usize);
        own.copy_from(from);
        let entries = self.entries(&whole).await;
        self.intend(&blocks).await?;
        let set_needs_resync = |yes| lock.iter().for_each(|lock| lock.needs_resync.set(yes));
        set_needs_resync(true);
        self.child.submit(Io::write(self.below(at.start), own, durability)).await?;
        self.table.put(&self.store, self.numbers(&blocks).start, &entries).await?;
        set_needs_resync(false);
        Ok(())
    }

    /// Reads the rest of those `blocks` that `at` changes in part.
    async fn complete(&self, blocks: &Range<u64>, at: &Range<u64>, whole: &Buf) -> Result<()> {
        let block = self.block();
        let (first, last) = (blocks.start..blocks.start + block, blocks.end - block..blocks.end);
        let part = |of: &Range<u64>| {
            whole.slice((of.start - blocks.start) as usize..(of.end - blocks.start) as usize)
        };
        if at.start > first.start || at.end < first.end {
            self.fetch(&first, &part(&first)).await?;
        }
        if last != first && at.end < last.end {
            self.fetch(&last, &part(&last)).await?;
        }
        Ok(())
    }

    /// Makes the intent to change `blocks` durable. This holds until the next wait.
    async fn intend(&self, blocks: &Range<u64>) -> Result<()> {
        let next = self.intent.ahead(blocks);
        if !self.intent.covers(blocks) {
            // The page that is written now has the next range as well.
            self.intent.mark(blocks, &self.area).await?;
        } else if let Some(next) = next {
            self.prepare(next);
        }
        self.tidy_later();
        Ok(())
    }

    /// Marks the range that a stream of writes will reach next, so that the stream does not wait there.
    fn prepare(&self, next: Range<u64>) {
        let Some(me) = self.me.upgrade().filter(|_| !self.closed.get()) else { return };
        self.tasks.spawn(&*self.env, async move {
            // If this fails, the write to that range will see why.
            let _ = me.intent.mark(&next, &me.area).await;
        });
    }

    /// Zeroes the whole blocks of `at`, and the parts of other blocks at its ends if they must be zeroed.
    async fn zero(&self, at: &Range<u64>, how: Zero, ends: bool) -> Result<()> {
        let block = self.block();
        let inner = at.start.next_multiple_of(block)..at.end / block * block;
        let (head, tail) = match inner.start < inner.end {
            true => (at.start..inner.start, inner.end..at.end),
            false => (at.clone(), 0..0),
        };
        for end in [head, tail].into_iter().filter(|end| ends && !end.is_empty()) {
            let zeroes = self.env.pool().take((end.end - end.start) as usize);
            zeroes.fill(0);
            self.write(&end, &zeroes, how.durability).await?;
        }
        for piece in pieces(&inner, ZERO_PIECE.max(block)) {
            let lock = self.lock(&piece).await;
            self.intend(&piece).await?;
            lock.needs_resync.set(true);
            let below = self.below(piece.start)..self.below(piece.end);
            self.child.submit(Io::zero(below, how)).await?;
            let blocks = self.numbers(&piece);
            let entries = vec![0; (blocks.end - blocks.start) as usize * self.digest().len()];
            self.table.put(&self.store, blocks.start, &entries).await?;
            lock.needs_resync.set(false);
        }
        Ok(())
    }
}
