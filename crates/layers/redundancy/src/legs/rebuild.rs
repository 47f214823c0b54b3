//! Copies the stale bytes of legs, and makes legs agree after a crash, while requests go on.
//!
//! The next chunk that is stale on any leg is locked and copied. Several chunks are copied at once, so that
//! legs are read and written at the same time; while clients send requests only one shorter chunk is copied
//! at a time, and the rebuild rests as long as that took. A stale leg gets all writes meanwhile. The position
//! of a leg that had no bytes is recorded now and then; the intent has the stale regions of the others.

use super::{Content, LegState, Legs};
use futures_util::future::join_all;
use lamina_block::{Durability, Error, ErrorKind, Io, Job, JobState, Result, Time};
use std::cell::Cell;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;
use std::time::Duration;

/// The most bytes that are copied at once: half a region of the intent, within these bounds.
const CHUNK: RangeInclusive<u64> = 8 << 10..=512 << 10;
/// As [`CHUNK`], while clients send requests, and a quarter of a region: a request may have to wait for so
/// many bytes on each leg.
const CHUNK_ASKED: RangeInclusive<u64> = 4 << 10..=128 << 10;
/// So many chunks are copied at once while there are no requests.
const WORKERS: usize = 8;
/// For so long after a request others may follow.
const GIVE_WAY: Duration = Duration::from_millis(20);
/// The position is recorded so often.
const KEEP_EVERY: Duration = Duration::from_secs(5);
/// The progress is counted so often.
const COUNT_EVERY: Duration = Duration::from_millis(50);

/// A rebuild under way.
struct Run {
    legs: Rc<Legs>,
    content: Rc<dyn Content>,
    job: Rc<Job>,
    total: Cell<u64>,
    counted: Cell<Time>,
    /// The beginnings of the chunks that are being copied.
    begun: [Cell<u64>; WORKERS],
    kept: Cell<Time>,
    /// Why some bytes could not be copied.
    stuck: std::cell::RefCell<Option<Error>>,
}

impl Legs {
    /// True if there is anything to repair, or the end of a repair to record.
    pub(super) fn has_work(&self) -> bool {
        self.ask(|state| state.rebuild.may_begin() && state.has_work())
    }

    /// Begins a rebuild, if one is needed.
    pub(super) fn rebuild(self: &Rc<Self>) {
        let Some(content) = self.content().filter(|_| self.has_work() && !self.is_closing()) else { return };
        self.change(|state| state.rebuild.begin());
        let (total, limit) =
            (self.ask(|state| state.repair_bytes()), self.ask(|state| state.rebuild.limit()));
        let job = Job::new(&self.env, "rebuild", total, limit);
        self.rebuild.replace(Some(Rc::clone(&job)));
        let (legs, kept) = (Rc::clone(self), Cell::new(self.env.now()));
        let run = Run {
            legs,
            content,
            job,
            total: Cell::new(total),
            counted: Cell::new(kept.get()),
            begun: Default::default(),
            kept,
            stuck: Default::default(),
        };
        self.tasks.spawn(&*self.env, async move {
            run.all().await;
            let legs = Rc::clone(&run.legs);
            let (is_cancelled, limit) = (run.job.state() == JobState::Cancelled, run.job.limit());
            legs.change(|state| state.rebuild.end(is_cancelled, limit));
            legs.rebuild.replace(None);
            legs.wake();
            legs.moved.notify();
        });
    }

    /// The next bytes from `from` on that are to be copied at once.
    fn next_chunk(&self, from: u64) -> Option<Range<u64>> {
        let region = self.intent.shape().region;
        let most = match self.is_asked() {
            true => (region / 4).clamp(*CHUNK_ASKED.start(), *CHUNK_ASKED.end()),
            false => (region / 2).clamp(*CHUNK.start(), *CHUNK.end()),
        };
        self.ask(|state| state.next_repair(from, most))
    }

    /// True while clients send requests.
    pub(super) fn is_asked(&self) -> bool {
        self.env.now().since(self.last.get()) < GIVE_WAY && self.last.get() > Time(0)
    }
}

impl Run {
    /// Copies until no bytes are stale that can be copied.
    async fn all(&self) {
        loop {
            self.legs.change(|state| state.rebuild.rewind());
            let ended = join_all((0..WORKERS).map(|worker| self.work(worker))).await;
            let failed = ended.into_iter().find_map(Result::err).or_else(|| self.stuck.take());
            let result = match failed {
                None => self.finish().await,
                Some(e) => Err(e),
            };
            match result {
                Ok(true) => return,
                Ok(false) => {}
                Err(e) if e.kind() == ErrorKind::Cancelled || self.legs.is_closing() => return,
                Err(e) => {
                    tracing::warn!(device = %self.legs.name, error = %e, "a rebuild is paused");
                    self.job.fail(&e);
                    self.legs.change(|state| state.rebuild.stop());
                    if self.job.turn(0).await.is_err() {
                        return;
                    }
                    self.legs.change(|state| state.rebuild.resume());
                }
            }
        }
    }

    /// Legs without stale bytes are in sync. True if none has stale bytes.
    async fn finish(&self) -> Result<bool> {
        let legs = &self.legs;
        for leg in legs.those(|leg| leg.is_rebuilding() && !leg.has_stale_bytes()) {
            legs.complete(leg).await?;
        }
        Ok(legs.next_chunk(0).is_none())
    }

    async fn work(&self, worker: usize) -> Result<()> {
        let legs = &self.legs;
        self.begun[worker].set(u64::MAX);
        let next = || legs.next_chunk(legs.ask(|state| state.rebuild.cursor()));
        while let Some(at) = next() {
            if worker > 0 && legs.is_asked() {
                legs.env.sleep(GIVE_WAY).await;
                if legs.is_closing() {
                    return Ok(());
                }
                continue;
            }
            legs.change(|state| state.rebuild.advance(at.end));
            self.begun[worker].set(at.start);
            self.job.turn(at.end - at.start).await?;
            let before = legs.env.now();
            if let Err(e) = self.chunk(&at).await
                && let Some(e) = self.units(&at, e).await
            {
                self.stuck.replace(Some(e));
            }
            self.begun[worker].set(u64::MAX);
            self.count();
            if worker == 0 && legs.is_asked() {
                legs.env.sleep(legs.env.now().since(before).min(GIVE_WAY)).await;
            }
            self.keep_position().await?;
        }
        Ok(())
    }

    /// After `at` failed with `e`: repairs those units of it that can be repaired; returns why others cannot.
    async fn units(&self, at: &Range<u64>, e: Error) -> Option<Error> {
        let unit = self.legs.resync_unit();
        if at.end - at.start <= unit {
            return Some(e);
        }
        let mut failed = None;
        for start in (at.start..at.end).step_by(unit as usize) {
            failed = self.chunk(&(start..at.end.min(start + unit))).await.err().or(failed);
        }
        failed
    }

    /// Reports the progress, now and then.
    fn count(&self) {
        let now = self.legs.env.now();
        if now.since(self.counted.get()) >= COUNT_EVERY {
            self.counted.set(now);
            let left = self.legs.ask(|state| state.repair_bytes());
            self.total.set(self.total.get().max(left));
            self.job.set_progress(self.total.get() - left, self.total.get());
        }
    }

    /// Repairs `at` on all legs.
    async fn chunk(&self, at: &Range<u64>) -> Result<()> {
        let legs = &self.legs;
        let _lock = legs.locks.lock(at).await;
        let size = legs.size();
        if legs.ask(|state| state.regions().needs_resync().touches(at)) {
            Rc::clone(&self.content).agree(at.clone()).await?;
            legs.change(|state| {
                state.write(at);
                state.agree(at, size);
            });
        }
        let is_out_of_sync = |leg: &LegState| leg.is_rebuilding() && !leg.is_good(at);
        for leg in legs.those(is_out_of_sync).collect::<Vec<_>>() {
            let bytes = Rc::clone(&self.content).right(at.clone(), leg, Vec::new()).await?;
            legs.writes(at);
            match legs.nodes[leg].submit(Io::write(at.start, bytes, Durability::Cached)).await {
                // The leg may have failed meanwhile, with another write.
                Ok(()) => {
                    legs.change(|state| state.copied(leg, at));
                }
                Err(e) => legs.put_out(leg, &e),
            }
        }
        Ok(())
    }

    /// Records the positions of legs that had no bytes.
    async fn keep_position(&self) -> Result<()> {
        let legs = &self.legs;
        if legs.env.now().since(self.kept.get()) < KEEP_EVERY {
            return Ok(());
        }
        self.kept.set(legs.env.now());
        let begun = self.begun.iter().map(Cell::get).min().unwrap_or(0);
        let positions = legs.ask(|state| state.positions(begun));
        legs.flush().await?;
        for (leg, position) in positions {
            if legs.change(|state| state.of_roles(|roles| roles.advance(leg, position))) {
                legs.recording.change();
            }
        }
        legs.record().await
    }
}
