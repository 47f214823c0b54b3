//! Reads that verify the bytes they read, and the jobs that read everything.
//!
//! A read takes no lock: it reads, and compares. If a digest differs, a change may just be under way: the
//! block is locked and read once more; if the digest still differs, the block is wrong, or needs a resync.

use super::change::{PIECE, pieces};
use super::{Sums, add};
use futures_util::future::join_all;
use lamina_block::{Buf, Error, ErrorKind, Io, Job, Judge, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

/// Bytes that a job verifies without a pause.
const STEP: u64 = 512 << 10;

impl Sums {
    /// Reads `at`, and fails with `Corrupt` if a block that it touches has another digest.
    pub async fn read(self: Rc<Self>, at: Range<u64>, into: Buf) -> Result<()> {
        for piece in pieces(&at, PIECE) {
            let part = into.slice((piece.start - at.start) as usize..(piece.end - at.start) as usize);
            let blocks = self.cover(&piece);
            if blocks == piece {
                self.read_blocks(&piece, &part).await?;
                continue;
            }
            let whole = self.env.pool().take((blocks.end - blocks.start) as usize);
            self.read_blocks(&blocks, &whole).await?;
            let from = (piece.start - blocks.start) as usize;
            part.copy_from(&whole.slice(from..from + part.len()));
        }
        Ok(())
    }

    async fn read_blocks(&self, at: &Range<u64>, into: &Buf) -> Result<()> {
        self.child.submit(Io::read(self.below(at.start), into.clone())).await?;
        self.compare(at, into).await
    }

    /// Compares the digests of blocks that were read. Blocks that differ are read again, into the same
    /// memory.
    async fn compare(&self, at: &Range<u64>, bytes: &Buf) -> Result<()> {
        let entries = self.entries(bytes).await;
        let known = self.table.get(self.numbers(at)).await?;
        if entries == known || flawed("what differs is believed") {
            return Ok(());
        }
        let (len, block) = (self.digest().len(), self.block());
        let mut bad: Option<Range<u64>> = None;
        let pairs = entries.chunks_exact(len).zip(known.chunks_exact(len));
        for (i, _) in (0..).zip(pairs).filter(|(_, (entry, known))| entry != known) {
            let this = at.start + i * block..at.start + (i + 1) * block;
            let part = bytes.slice((i * block) as usize..((i + 1) * block) as usize);
            if self.read_again(&this, &part).await? {
                continue;
            }
            match &mut bad {
                Some(bad) if bad.end == this.start => bad.end = this.end,
                Some(_) => {}
                None => bad = Some(this),
            }
        }
        bad.map_or(Ok(()), |at| Err(self.corrupt(at)))
    }

    fn corrupt(&self, at: Range<u64>) -> Error {
        let message =
            format!("these bytes are not those that were written: their {} differs", self.digest().name());
        Error::new(ErrorKind::Corrupt, message).at(at).on(&self.name)
    }

    /// Reads a block again while it is locked; false if its digest differs.
    async fn read_again(&self, at: &Range<u64>, into: &Buf) -> Result<bool> {
        let _lock = self.lock(at).await;
        let own = self.env.pool().take(into.len());
        self.child.submit(Io::read(self.below(at.start), own.clone())).await?;
        let right = self.judge(at, &own).await? || self.heal(at, &own).await?;
        into.copy_from(&own);
        Ok(right)
    }

    /// Reads a block that is locked.
    pub(super) async fn fetch(&self, at: &Range<u64>, into: &Buf) -> Result<()> {
        self.child.submit(Io::read(self.below(at.start), into.clone())).await?;
        match !self.strict || self.judge(at, into).await? || self.heal(at, into).await? {
            true => Ok(()),
            false => Err(self.corrupt(at.clone())),
        }
    }

    /// True if a locked block has its digest. A block that needs a resync gets it now.
    async fn judge(&self, at: &Range<u64>, bytes: &Buf) -> Result<bool> {
        let (entry, number) = (self.entries(bytes).await, self.numbers(at).start);
        if entry == self.table.get(number..number + 1).await? {
            return Ok(true);
        }
        if !self.needs_resync_at(at) {
            self.note(at.start);
            return Ok(false);
        }
        if !self.is_read_only() {
            self.table.put(&self.store, number, &entry).await?;
            add(&self.tally.anew, 1);
        }
        Ok(true)
    }

    /// Asks for another copy of a locked block that is wrong. True if `into` has the right bytes.
    async fn heal(&self, at: &Range<u64>, into: &Buf) -> Result<bool> {
        let Some((bytes, copies)) = self.other_copy(at).await? else { return Ok(false) };
        into.copy_from(&bytes);
        if copies > 0 {
            self.note_healed(at.start);
        }
        Ok(true)
    }

    /// The right bytes of a locked block that needs no resync, if any copy has them; and how many other
    /// copies were wrong, and are right now.
    async fn other_copy(&self, at: &Range<u64>) -> Result<Option<(Buf, usize)>> {
        let (number, me) = (self.numbers(at).start, self.me.clone());
        let known = self.table.get(number..number + 1).await?;
        if !self.strict {
            return Ok(None);
        }
        let judge: Judge = Rc::new(move |bytes: &Buf| {
            let mut entry = Vec::new();
            me.upgrade().is_some_and(|sums| {
                sums.add_entries(bytes, 0..bytes.len(), &mut entry);
                entry == known
            })
        });
        match self.child.heal(self.below(at.start)..self.below(at.end), Rc::clone(&judge)).await {
            Ok(healed) => Ok(healed.filter(|of| judge(&of.bytes)).map(|of| (of.bytes, of.copies))),
            Err(e) => {
                tracing::warn!(device = %self.name, offset = at.start, "another copy could not be asked for: {e}");
                Ok(None)
            }
        }
    }

    /// Verifies all copies of some blocks, if there are several: a read sees only one.
    async fn look_at_copies(&self, at: &Range<u64>) -> Result<()> {
        let look = async |block: Range<u64>| {
            let _lock = self.lock(&block).await;
            // The copy that was read may have been right, or was healed and counted.
            let healed = match self.needs_resync_at(&block) {
                true => None,
                false => self.other_copy(&block).await?,
            };
            if healed.is_some_and(|(_, copies)| copies > 0) {
                self.note(block.start);
                self.note_healed(block.start);
            }
            Ok(())
        };
        join_all(pieces(at, self.block()).map(look)).await.into_iter().collect()
    }

    /// The digest of the block that has byte `at`, as it is now.
    pub async fn digest_at(&self, at: u64) -> Result<Vec<u8>> {
        let block = self.cover(&(at..at + 1));
        if !self.needs_resync_at(&block) {
            let number = self.numbers(&block).start;
            return Ok(self.reveal(&self.table.get(number..number + 1).await?));
        }
        let _lock = self.lock(&block).await;
        let own = self.env.pool().take(self.block() as usize);
        self.child.submit(Io::read(self.below(block.start), own.clone())).await?;
        self.judge(&block, &own).await?;
        Ok(self.reveal(&self.entries(&own).await))
    }

    /// Begins a job, unless one of that name is under way.
    pub fn begin<F>(self: &Rc<Self>, name: &'static str, total: u64, limit: Option<u64>, work: F) -> bool
    where
        F: AsyncFnOnce(&Rc<Sums>, &Job) -> Result<()> + 'static,
    {
        if self.closed.get() || self.jobs.borrow().iter().any(|job| job.name() == name) {
            return false;
        }
        let job = Job::new(&self.env, name, total, limit);
        self.jobs.borrow_mut().push(Rc::clone(&job));
        let me = Rc::clone(self);
        self.tasks.spawn(&*self.env, async move {
            match work(&me, &job).await {
                Err(e) if e.kind() != ErrorKind::Cancelled => {
                    tracing::warn!(device = %me.name, job = name, "the job ended: {e}");
                }
                Ok(()) | Err(_) => {}
            }
            me.jobs.borrow_mut().retain(|known| !Rc::ptr_eq(known, &job));
        });
        true
    }

    /// Begins to read everything and to compare it with the table.
    pub fn look_at_all(self: &Rc<Self>, name: &'static str, limit: Option<u64>) -> bool {
        let size = self.head.size;
        self.begin(name, size, limit, async move |sums: &Rc<Sums>, job: &Job| {
            for piece in pieces(&(0..size), STEP.max(sums.block())) {
                job.step(piece.end - piece.start).await?;
                while let Err(e) = sums.look(&piece).await {
                    job.fail(&e);
                    job.turn(0).await?;
                }
            }
            add(&sums.tally.passes, 1);
            Ok(())
        })
    }

    /// Verifies some blocks. Blocks that are wrong, or cannot be read, are counted, and no error.
    async fn look(&self, at: &Range<u64>) -> Result<()> {
        let buf = self.env.pool().take((at.end - at.start) as usize);
        match self.child.submit(Io::read(self.below(at.start), buf.clone())).await {
            Err(e) if matches!(e.kind(), ErrorKind::Media | ErrorKind::Corrupt) => {
                tracing::warn!(device = %self.name, "bytes cannot be read: {e}");
                add(&self.tally.unreadable, at.end - at.start);
                return Ok(());
            }
            read => read?,
        }
        match self.compare(at, &buf).await {
            // The block was counted where it was found.
            Err(e) if e.kind() == ErrorKind::Corrupt && e.device() == Some(&self.name) => {}
            compared => compared?,
        }
        match self.strict {
            true => self.look_at_copies(at).await,
            false => Ok(()),
        }
    }

    /// Resyncs regions: makes new digests of their blocks. Regions that cannot be read still need a resync,
    /// and are an error at the end.
    pub(super) async fn sum_anew(&self, job: &Job) -> Result<()> {
        let (mut from, mut failed) = (0, Ok(()));
        loop {
            let region = self.needs_resync.borrow().next(from);
            let Some(region) = region else { return failed };
            let marks = self.resync_marks.get();
            let summed = self.sum_region(&region, job).await;
            match &summed {
                Err(e) if e.kind() == ErrorKind::Cancelled => return summed,
                Ok(()) if marks == self.resync_marks.get() => self.needs_resync.borrow_mut().remove(&region),
                Ok(()) => {}
                Err(_) => failed = failed.and(summed),
            }
            from = region.end;
        }
    }

    async fn sum_region(&self, region: &Range<u64>, job: &Job) -> Result<()> {
        for piece in pieces(region, STEP.max(self.block())) {
            job.step(piece.end - piece.start).await?;
            let _lock = self.lock(&piece).await;
            let buf = self.env.pool().take((piece.end - piece.start) as usize);
            self.child.submit(Io::read(self.below(piece.start), buf.clone())).await?;
            let (entries, blocks) = (self.entries(&buf).await, self.numbers(&piece));
            let known = self.table.get(blocks.clone()).await?;
            let len = self.digest().len();
            let pairs = entries.chunks_exact(len).zip(known.chunks_exact(len));
            add(&self.tally.anew, pairs.filter(|(entry, known)| entry != known).count() as u64);
            self.table.put(&self.store, blocks.start, &entries).await?;
        }
        Ok(())
    }
}
