//! Background work: clears intents that are not needed any more, starts resyncs, checks the table, and closes
//! it.

use super::{PAGE, Sums};
use lamina_block::{Class, Error, Finding, Io, Job, JobState, Result};
use lamina_kit::flaw::flawed;
use std::ops::Range;
use std::rc::Rc;

impl Sums {
    /// A range was intended, or needs a resync: background work will follow.
    pub(super) fn tidy_later(&self) {
        if self.closed.get() || self.is_read_only() || self.tidying.replace(true) {
            return;
        }
        let (me, env, idle) = (self.me.clone(), Rc::clone(&self.env), self.idle);
        self.env.spawn(Box::pin(async move {
            loop {
                env.sleep(idle).await;
                let Some(sums) = me.upgrade().filter(|sums| !sums.closed.get()) else { return };
                sums.resync_in_background();
                let task = sums.tasks.begin();
                if let Err(e) = sums.tidy().await {
                    tracing::warn!(device = %sums.name, "intents could not be cleared, and will be later: {e}");
                }
                drop(task);
                if sums.intent.is_empty() {
                    return sums.tidying.set(false);
                }
            }
        }));
    }

    /// Begins the job that resyncs.
    pub(super) fn resync_in_background(self: &Rc<Self>) {
        let bytes = self.needs_resync_bytes();
        if bytes == 0 || self.is_read_only() || self.sum_cancelled.get() {
            return;
        }
        self.begin("sum", bytes, None, async |sums: &Rc<Sums>, job: &Job| {
            let summed = sums.sum_anew(job).await;
            sums.sum_cancelled.set(job.state() == JobState::Cancelled);
            summed
        });
    }

    /// Clears the intent of regions without writes since the last time.
    async fn tidy(&self) -> Result<()> {
        let good = |at: &Range<u64>| !self.locks.is_locked(at) && !self.needs_resync_at(at);
        let quiet = self.intent.quiet(good);
        if quiet.is_empty() {
            return Ok(());
        }
        if !flawed("data may be lost that digests speak of") {
            self.child.submit(Io::flush()).await?;
        }
        if !flawed("digests may be lost of data that is there") {
            self.store.commit().await?;
        }
        self.intent.clear(quiet, &self.area, good).await
    }

    /// Ends the background work, and clears the intent if possible. No request is under way.
    pub async fn close(&self) -> Result<()> {
        if self.closed.replace(true) {
            return Ok(());
        }
        self.jobs.borrow().iter().for_each(|job| job.cancel());
        self.tasks.ended().await;
        if self.is_read_only() {
            return Ok(());
        }
        // The first pass notes which regions were used lately; in the second pass none was.
        let tidied = match self.tidy().await {
            Ok(()) => self.tidy().await,
            failed => failed,
        };
        let closed = self.store.close().await;
        tidied.and(closed)
    }

    /// Fails unless the child alone shows the same bytes.
    pub fn detach(&self) -> Result<()> {
        match self.head.data {
            0 => Ok(()),
            _ => Err(Error::invalid(
                "the table lies in front of the data, so the device below does not show the same bytes: copy \
                 the device \
                 to another one instead",
            )),
        }
    }

    /// Checks that the table can be read. Lost digests can be made again from the blocks, whose earlier bytes
    /// they do not verify.
    pub async fn check(&self, repair: bool) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let repair = repair && !self.is_read_only();
        for page in 0..self.table.object().len().div_ceil(PAGE) {
            if !self.table.object().is_damaged(page).await? {
                continue;
            }
            let first = page * self.table.page();
            let at = first * self.block()..((first + self.table.page()) * self.block()).min(self.head.size);
            if repair {
                // First all blocks of the page need a resync, on disk too.
                self.intent.mark(&at, &self.area).await?;
                self.mark_for_resync(&at);
                self.table.object().restore(page, &[]).await?;
            }
            let what = format!("the digests of bytes {} to {} are damaged", at.start, at.end);
            findings.push(repaired(repair, what, "they are made again from the present blocks"));
        }
        let marks = self.table.marks.borrow().clone();
        for mark in marks {
            for page in 0..mark.len().div_ceil(PAGE) {
                if !mark.is_damaged(page).await? {
                    continue;
                }
                if repair {
                    let len = (mark.len() - page * PAGE).min(PAGE) as usize;
                    mark.restore(page, &vec![0xFF; len]).await?;
                }
                let what = format!("page {page} of the changes since a mark is damaged");
                findings.push(repaired(repair, what, "all its blocks count as changed"));
            }
        }
        if findings.is_empty() {
            findings.push(Finding::new(
                Class::Good,
                format!("the digests of {} blocks can be read", self.blocks()),
            ));
        }
        Ok(findings)
    }
}

fn repaired(repaired: bool, what: String, how: &str) -> Finding {
    match repaired {
        true => Finding::new(Class::Repaired, format!("{what}: {how}")),
        false => Finding::new(Class::Repairable, what),
    }
}
