//! Comparing all that legs hold, while requests go on; and what was found to be wrong, then or when it was read.
//!
//! A chunk is locked, read from all legs and compared. What cannot be read is written anew from what can; what differs is
//! mended only if it is known which is right. How far it is, is kept now and then: it goes on after a restart.

use super::Legs;
use lamina_block::{ErrorKind, Job, Result};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Bytes that are compared at once.
const CHUNK: u64 = if cfg!(test) { 16 << 10 } else { 256 << 10 };
/// How far it is, is kept so often.
const KEEP_EVERY: Duration = Duration::from_secs(10);
/// So many places are remembered.
const PLACES: usize = 32;

/// What was found to be wrong since the device was opened.
#[derive(Default)]
pub struct Findings {
    /// Ranges of a leg that were wrong, and were written anew.
    pub healed: Cell<u64>,
    /// Ranges where legs differ and nothing says which is right.
    pub different: Cell<u64>,
    /// Blocks that a leg cannot read and the others do not have.
    pub lost: Cell<u64>,
    places: RefCell<VecDeque<Value>>,
    /// What the scrub under way has not found: the counts when it began.
    before: Cell<[u64; 3]>,
    /// What the last scrub found that came to its end.
    last: Cell<Option<[u64; 3]>>,
}

impl Findings {
    /// Remembers where, and says so.
    pub fn note(&self, device: &str, leg: &str, at: &Range<u64>, what: &str) {
        tracing::warn!(%device, %leg, start = at.start, end = at.end, "{what}");
        let mut places = self.places.borrow_mut();
        if places.len() == PLACES {
            places.pop_front();
        }
        places.push_back(json!({ "leg": leg, "start": at.start, "end": at.end, "what": what }));
    }

    fn counts(&self) -> [u64; 3] {
        [self.healed.get(), self.different.get(), self.lost.get()]
    }

    /// Notes what was found before a scrub.
    fn begin(&self) {
        self.before.set(self.counts());
    }

    /// What was found since it began.
    fn end(&self) -> [u64; 3] {
        let (before, now) = (self.before.get(), self.counts());
        let found = std::array::from_fn(|i| now[i] - before[i]);
        self.last.set(Some(found));
        found
    }

    pub(super) fn info(&self) -> Value {
        let mut info = named(self.counts());
        info["places"] = self.places.borrow().iter().cloned().collect();
        info["last_scrub"] = self.last.get().map_or(Value::Null, named);
        info
    }
}

fn named([healed, different, lost]: [u64; 3]) -> Value {
    json!({ "healed": healed, "different": different, "lost": lost })
}

impl Legs {
    /// Begins to compare, or goes on where it was interrupted.
    pub(super) fn start_scrub(self: &Rc<Self>, trust: Option<usize>) {
        let Some(content) = self.content().filter(|_| self.scrub.borrow().is_none() && !self.closing.get())
        else {
            return;
        };
        let from = self.scrubbed.get().unwrap_or(0);
        self.scrubbed.set(Some(from));
        let job = Job::new(&self.env, "scrub", self.size(), None);
        job.set_progress(from, self.size());
        self.scrub.replace(Some(Rc::clone(&job)));
        self.findings.begin();
        let me = Rc::clone(self);
        self.tasks.spawn(&*self.env, async move {
            while let Err(e) = me.scrub(&content, &job, trust).await {
                if me.closing.get() {
                    break;
                }
                if e.kind() == ErrorKind::Cancelled {
                    me.scrubbed.set(None);
                    me.changed();
                    break;
                }
                tracing::warn!(device = %me.name, error = %e, "a scrub is paused");
                job.fail(&e);
                let _ = job.turn(0).await;
            }
            me.scrub.replace(None);
            me.moved.notify();
        });
    }

    async fn scrub(&self, content: &Rc<dyn super::Content>, job: &Job, trust: Option<usize>) -> Result<()> {
        let mut kept = self.env.now();
        while let Some(from) = self.scrubbed.get().filter(|from| *from < self.size()) {
            let at = from..(from + CHUNK).min(self.size());
            job.turn(at.end - at.start).await?;
            let before = self.env.now();
            let lock = self.locks.lock(&at).await;
            Rc::clone(content).compare(at.clone(), trust).await?;
            drop(lock);
            self.scrubbed.set(Some(at.end));
            job.set_progress(at.end, self.size());
            if self.is_asked() {
                self.env.sleep(self.env.now().since(before)).await;
            }
            if self.env.now().since(kept) >= KEEP_EVERY {
                kept = self.env.now();
                self.recording.change();
                self.record().await?;
            }
        }
        self.scrubbed.set(None);
        self.changed();
        let [healed, different, lost] = self.findings.end();
        let [healed_total, different_total, lost_total] = self.findings.counts();
        tracing::info!(
            device = %self.name, healed, different, lost, healed_total, different_total, lost_total,
            "a scrub has ended; totals are since the device was opened"
        );
        self.record().await
    }
}
