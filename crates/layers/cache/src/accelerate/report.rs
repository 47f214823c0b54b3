//! What the device shows: figures, alerts, and the work in the background that brings the store up to date.
//!
//! Whoever looks pays: but for the ages of writes and the hits of late, which nobody could know afterwards,
//! everything is worked out when it is asked for.

use super::failure::SideResult;
use super::policy::Destage;
use super::{Accelerate, add};
use crate::flash::{SLOT, Side};
use futures_util::future::{Either, select};
use lamina_block::{Figure, Job, JobState, Notice, Steering, Time, Unit};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// What is not on the store, or a recovery point, is too old then. While the store works, flow control keeps
/// the backlog within two minutes.
const OLD: Duration = Duration::from_secs(300);

/// What is shown, in the order of the columns.
pub(crate) const FIGURES: &[Figure] = {
    use Unit::{Bytes, BytesPerSecond, Count, Ratio, Seconds, Text};
    const DIRTY: &[&str] = &["/dirty_bytes"];
    &[
        Figure::shown("/policy", Text, "When writes are acknowledged.").column("POLICY"),
        Figure::gauge("cached_bytes", "/cached_bytes", Bytes, "Data of the volume on the flash.")
            .column("CACHED"),
        Figure::gauge("share_bytes", "/share_bytes", Bytes, "Share of the volume when others want theirs.")
            .column("SHARE"),
        Figure::gauge("recent_hit_ratio", "/recent_hit_rate", Ratio, "Hits of reads in the last minute.")
            .column("HITS")
            .nullable(),
        Figure::shown("/hit_rate", Ratio, "Hits of reads since the start.")
            .column("OVERALL")
            .only_if(&["/hit_bytes", "/missed_bytes"]),
        Figure::counter("hit_bytes_total", "/hit_bytes", Bytes, "Read from the flash, in whole blocks."),
        Figure::counter("missed_bytes_total", "/missed_bytes", Bytes, "Not on the flash when asked for."),
        Figure::counter(
            "bypassed_bytes_total",
            "/bypassed_bytes",
            Bytes,
            "Missed, and kept from filling the flash.",
        ),
        Figure::counter(
            "remote_bytes_total",
            "/remote_bytes",
            Bytes,
            "Missed, and read from the flash of the host that had the volume before.",
        ),
        Figure::counter("filled_bytes_total", "/filled_bytes", Bytes, "Put on the flash after a read."),
        Figure::counter("written_bytes_total", "/written_bytes", Bytes, "Written, in whole blocks."),
        Figure::counter("destaged_bytes_total", "/destaged_bytes", Bytes, "Brought to the store."),
        Figure::counter("batches_total", "/batches", Count, "Batches that were brought to the store."),
        Figure::counter(
            "unreadable_bytes_total",
            "/unreadable_bytes",
            Bytes,
            "Read from the store because the flash could not.",
        ),
        Figure::gauge("dirty_bytes", "/dirty_bytes", Bytes, "Data that the store lacks.").column("DIRTY"),
        Figure::gauge("dirty_writes", "/dirty_writes", Count, "Writes that the store does not have."),
        Figure::gauge(
            "oldest_dirty_seconds",
            "/oldest_dirty_seconds",
            Seconds,
            "Age of the oldest write that the store does not have.",
        )
        .column("OLDEST")
        .only_if(DIRTY),
        Figure::gauge(
            "clean_seconds",
            "/seconds_to_clean",
            Seconds,
            "Time until the store has everything, at the speed of the last batches.",
        )
        .column("CLEAN IN")
        .only_if(DIRTY)
        .nullable(),
        Figure::gauge(
            "replay_left_bytes",
            "/replaying/left_bytes",
            Bytes,
            "Found when it was opened, and still not on the store.",
        )
        .nullable(),
        Figure::gauge("flow_writes_ratio", "/flow/writes", Ratio, "Dirty writes, of what is too much."),
        Figure::gauge("flow_bytes_ratio", "/flow/bytes", Ratio, "Dirty bytes, of what is too much."),
        Figure::gauge("flow_time_ratio", "/flow/time", Ratio, "Time until clean, of what is too much."),
        Figure::gauge(
            "flow_pressure_ratio",
            "/flow/pressure",
            Ratio,
            "How much writes are held back: the largest of the three, above eight tenths.",
        )
        .column("PRESSURE"),
        Figure::counter("delayed_writes_total", "/flow/delayed", Count, "Writes that were held back."),
        Figure::gauge(
            "store_bytes_per_second",
            "/flow/store_bytes_per_second",
            BytesPerSecond,
            "How fast the store takes dirty data.",
        ),
        Figure::gauge(
            "recovery_point_age_seconds",
            "/recovery_point/age_seconds",
            Seconds,
            "How long ago the volume was what the store is now.",
        )
        .column("RECOVERY POINT")
        .nullable(),
        Figure::gauge(
            "recovery_point_lag_bytes",
            "/recovery_point/lag_bytes",
            Bytes,
            "Bytes of the volume that the store does not have.",
        )
        .nullable(),
        Figure::gauge(
            "lost_bytes",
            "/lost/bytes",
            Bytes,
            "Unprotected dirty data on a flash that has failed.",
        )
        .nullable(),
        Figure::gauge(
            "peers",
            "/peers/there",
            Count,
            "Other hosts that have each write before it is acknowledged.",
        )
        .nullable(),
        Figure::gauge("peers_wanted", "/peers/wanted", Count, "Other hosts that are to have it.").nullable(),
        Figure::counter("peers_joined_total", "/peers/joined", Count, "Times that another host has joined.")
            .nullable(),
        Figure::counter("peers_lost_total", "/peers/lost", Count, "Times that one of them was lost.")
            .nullable(),
        Figure::gauge(
            "peer_lag_writes",
            "/peers/lag_writes",
            Count,
            "Writes, and fills after reads, since the last one that the slowest peer has.",
        )
        .nullable(),
        Figure::gauge(
            "peer_silent_seconds",
            "/peers/silent_seconds",
            Seconds,
            "For how long a peer has owed an answer.",
        )
        .nullable(),
        Figure::gauge(
            "unprotected_bytes",
            "/unprotected_bytes",
            Bytes,
            "Acknowledged, on the flash of this host alone, and not on the store.",
        ),
        Figure::gauge(
            "quarantine_bytes",
            "/quarantine_bytes",
            Bytes,
            "Blocks that stay until late writes of another host can come no more.",
        ),
    ]
};

/// What is said of a volume below that.
pub(super) const NOTICES: &[Notice] = &[
    Notice::new("/store_trouble", "the store of {device} takes nothing: {}"),
    Notice::new("/fenced", "{device} is fenced: {}"),
    Notice::new("/peers/waits", "{device} has too few peers, and its writes wait for the store: {}"),
    Notice::new("/flash_trouble", "the flash of {device} is not used: {}"),
    Notice::new("/lost/bytes", "{device} is stopped: {} would be lost without its flash"),
    Notice::new(
        "/lost/unknown",
        "{device} is stopped: the amount that would be lost without its flash is unknown",
    ),
    Notice::new(
        "/alerts/lagging",
        "the store of {device} does not have writes that are {/oldest_dirty_seconds} old",
    ),
    Notice::new(
        "/alerts/recovery_point_old",
        "without its flash {device} would be as it was {/recovery_point/age_seconds} ago",
    ),
    Notice::new("/promise", "{device}: {}"),
];

/// What is remembered in order to be shown.
#[derive(Default)]
pub struct Report {
    recent: RefCell<Recent>,
    ages: RefCell<Ages>,
    drain: Watched,
    replay: Watched,
    /// Blocks of the batch under way that the store has taken.
    pub sent: Cell<u64>,
}

/// A job that is shown as long as somebody waits for its end.
#[derive(Default)]
struct Watched {
    job: RefCell<Weak<Job>>,
    /// Blocks that had been brought to the store when it began.
    before: Cell<u64>,
}

impl Watched {
    fn job(&self) -> Option<Rc<Job>> {
        self.job.borrow().upgrade()
    }

    fn begin(&self, job: &Rc<Job>, before: u64) {
        self.job.replace(Rc::downgrade(job));
        self.before.set(before);
    }
}

/// Which part of the reads the flash answered lately: in this half of a minute, and in the one before.
#[derive(Default)]
struct Recent {
    began: Time,
    /// Blocks that were there, and all that were asked for.
    now: [u64; 2],
    before: [u64; 2],
}

impl Recent {
    const HALF: Duration = Duration::from_secs(30);

    fn turn(&mut self, now: Time) {
        let past = now.since(self.began);
        if past >= Recent::HALF {
            self.before = if past < 2 * Recent::HALF { self.now } else { [0; 2] };
            (self.now, self.began) = ([0; 2], now);
        }
    }

    fn count(&mut self, now: Time, is_hit: bool, blocks: u64) {
        self.turn(now);
        self.now[0] += if is_hit { blocks } else { 0 };
        self.now[1] += blocks;
    }

    /// Nothing if nothing was asked for.
    fn rate(&mut self, now: Time) -> Option<f64> {
        self.turn(now);
        let [hits, all] = [0, 1].map(|n| self.now[n] + self.before[n]);
        (all > 0).then(|| hits as f64 / all as f64)
    }
}

/// When writes came, without a time in each of perhaps hundreds of thousands of records: the serial number
/// that was next, now and then. A write is at most as old as that says.
#[derive(Default)]
struct Ages {
    marks: VecDeque<(u64, Time)>,
    /// No two are nearer to each other; the more there are, the further: of a long time it matters less how
    /// exact it is.
    apart: Duration,
}

impl Ages {
    const APART: Duration = Duration::from_millis(100);
    const MOST: usize = 1024;

    /// What is written from `now` on has this serial number or a later one. Those before `oldest` are never
    /// asked for again.
    fn note(&mut self, serial: u64, now: Time, oldest: Option<u64>) {
        self.forget(oldest.unwrap_or(serial));
        if self.marks.back().is_some_and(|(_, last)| now.since(*last) < self.apart) {
            return;
        }
        self.marks.push_back((serial, now));
        if self.marks.len() > Ages::MOST {
            let mut n = 0;
            self.marks.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.apart *= 2;
        }
    }

    fn forget(&mut self, before: u64) {
        while self.marks.get(1).is_some_and(|(first, _)| *first <= before) {
            self.marks.pop_front();
        }
        if self.marks.len() <= 1 {
            self.apart = Ages::APART;
        }
    }

    /// Since when the oldest write is there, which has this serial number.
    fn since(&mut self, oldest: u64) -> Option<Time> {
        self.forget(oldest);
        self.marks.front().filter(|(first, _)| *first <= oldest).map(|(_, time)| *time)
    }
}

impl Accelerate {
    /// Blocks were read that the flash had, or had not.
    pub(super) fn count_read(&self, is_hit: bool, blocks: u64) {
        self.report.recent.borrow_mut().count(self.env.now(), is_hit, blocks);
    }

    pub(super) fn count_miss(&self, blocks: u64) {
        self.count_read(false, blocks);
        add(&self.tally.misses, blocks);
    }

    /// A write begins.
    pub(super) fn note_write(&self) {
        let (next, oldest) = (self.volume.serial.get() + 1, self.oldest_serial());
        self.report.ages.borrow_mut().note(next, self.env.now(), oldest);
    }

    /// Blocks that have been brought to the store.
    fn brought(&self) -> u64 {
        self.tally.destaged.get() + self.report.sent.get()
    }

    /// Blocks that have not.
    fn left(&self) -> u64 {
        self.volume.dirty.get().saturating_sub(self.report.sent.get())
    }

    /// Shows how what was found at the beginning, and is not on the store, gets there.
    pub(super) fn watch_replay(&self) {
        if self.is_drained() {
            return;
        }
        // How old it is nobody knows: not younger than that.
        self.report.ages.borrow_mut().note(0, self.env.now(), None);
        let (writes, found, upto) =
            (self.volume.queue.borrow().len(), self.volume.dirty.get(), self.volume.serial.get());
        let (name, bytes) = (&self.name, found * SLOT as u64);
        tracing::info!(device = %name, writes, bytes, "writes were found that the store does not have");
        let job = Job::shown(&self.env, "replay", bytes, Steering::Nothing);
        self.report.replay.begin(&job, self.brought());
        self.spawn(move |me| async move {
            let is_there = || me.is_drained() || me.progress.get().durable() >= upto;
            me.moved.until(|| me.closed.get() || me.is_detached() || is_there()).await;
            if is_there() && !me.is_detached() {
                tracing::info!(device = %me.name, "the store has the writes that were found");
            }
            drop(job);
        });
    }

    /// Waits until the store has everything; that is a job, which ends before that if it is cancelled. Fails
    /// if the store takes nothing for too long.
    pub(super) async fn drained(&self) -> SideResult<()> {
        if self.is_drained() {
            return Ok(());
        }
        let job = self.drain_job();
        let told = async {
            job.cancelled().await;
            self.moved.notify();
            std::future::pending::<Infallible>().await
        };
        let asked = self.progress.get().batch();
        let is_stuck = |me: &Accelerate| me.is_all_bad() && me.volume.bad.were_met_since(asked);
        let mut told = pin!(told);
        loop {
            let waits =
                self.wait_for(|me| me.is_drained() || is_stuck(me) || job.state() == JobState::Cancelled);
            match select(pin!(waits), &mut told).await {
                Either::Left((ended, _)) => ended?,
                Either::Right((never, _)) => match never {},
            }
            match self.volume.bad.first(None) {
                _ if self.is_drained() => return Ok(()),
                Some((side, e)) if is_stuck(self) => return Err(self.bad_block(side, e)),
                // Unless it is cancelled, something has changed meanwhile.
                _ => job.turn(0).await?,
            }
        }
    }

    /// All who wait for the store have one.
    fn drain_job(&self) -> Rc<Job> {
        let known = self.report.drain.job().filter(|job| job.state() != JobState::Cancelled);
        known.unwrap_or_else(|| {
            let job = Job::shown(&self.env, "drain", self.left() * SLOT as u64, Steering::Cancel);
            self.report.drain.begin(&job, self.brought());
            job
        })
    }

    /// What goes on, and how far it is now.
    pub(super) fn shown_jobs(&self) -> Vec<Rc<Job>> {
        let (bytes, brought) = (|blocks: u64| blocks * SLOT as u64, self.brought());
        let done = |of: &Watched| bytes(brought.saturating_sub(of.before.get()));
        let (replay, drain) = (&self.report.replay, &self.report.drain);
        let (replaying, draining) = (replay.job(), drain.job());
        if let Some(job) = &replaying {
            // What is written meanwhile may get to the store with it.
            job.set_progress(done(replay).min(job.total()), job.total());
        }
        if let Some(job) = &draining {
            job.set_progress(done(drain), done(drain) + bytes(self.left()));
        }
        replaying.into_iter().chain(draining).collect()
    }

    /// Writes, bytes, and how many bytes may be dirty, for flow control.
    pub(super) fn backlog(&self) -> (usize, u64, u64) {
        let share = self.most_dirty();
        if self.keys.destage == Destage::Late {
            // What is meant to be dirty is no backlog.
            let beyond = self.volume.dirty.get().saturating_sub(self.cache.much_dirty(&self.volume));
            return (0, beyond * SLOT as u64, share / 4 * SLOT as u64);
        }
        (self.volume.queue.borrow().len(), self.volume.dirty.get() * SLOT as u64, share * SLOT as u64)
    }

    fn oldest_serial(&self) -> Option<u64> {
        self.volume.queue.borrow().front().map(|record| record.serial)
    }

    /// How long the oldest write waits for the store; zero if there is none.
    fn oldest(&self) -> Duration {
        let since = self.oldest_serial().and_then(|serial| self.report.ages.borrow_mut().since(serial));
        since.map_or(Duration::ZERO, |since| self.env.now().since(since))
    }

    /// How long it takes until the store has everything, at the speed of the last batches; unknown before the
    /// first one, and while the store takes nothing.
    fn seconds_to_clean(&self) -> Option<f64> {
        let rate = self.flow.borrow().rate();
        match self.left() * SLOT as u64 {
            0 => Some(0.0),
            _ if rate == 0.0 || self.trouble.borrow().is_some() || self.failure.stopped().is_some() => None,
            left => Some(left as f64 / rate),
        }
    }

    /// What was found when the device was opened, and is not on the store yet.
    fn replaying(&self) -> Option<Value> {
        let is_left = |job: &&Rc<Job>| job.name() == "replay";
        let jobs = self.shown_jobs();
        let figures = jobs.iter().find(is_left)?.info();
        let [done, total] = ["done", "total"].map(|name| figures[name].as_u64().unwrap_or(0));
        Some(json!({ "found_bytes": total, "left_bytes": total - done }))
    }

    /// What somebody should look at.
    fn alerts(&self, recovery_point: &Value) -> Value {
        let is_old = |age: &Value| age.as_f64().is_some_and(|age| age >= OLD.as_secs_f64());
        json!({
            "store_trouble": self.store_trouble().is_some(),
            "flash_trouble": self.flash_trouble().is_some(),
            "lagging": self.oldest() >= OLD,
            "stopped": !self.lost().is_null() || self.is_fenced(),
            "recovery_point_old": is_old(&recovery_point["age_seconds"]),
        })
    }

    pub(super) fn report(&self) -> Value {
        let bytes = |blocks: u64| blocks * SLOT as u64;
        let (hits, misses) = (self.tally.hits.get(), self.tally.misses.get());
        let recovery_point = self.recovery_point();
        let (writes, dirty) = (self.volume.queue.borrow().len(), bytes(self.volume.dirty.get()));
        let (waiting, late, share) = self.backlog();
        self.flow.borrow_mut().look(waiting, late, share);
        let cluster = self.cluster();
        let mut info = json!({
            "policy": self.policy.get(),
            "cached_bytes": bytes(self.volume.blocks.get()),
            "share_bytes": bytes(self.cache.share(&self.volume)),
            "dirty_bytes": dirty,
            "dirty_writes": writes,
            "seconds_to_clean": self.seconds_to_clean(),
            "oldest_dirty_seconds": self.oldest().as_secs_f64(),
            "replaying": self.replaying(),
            "hit_rate": hits as f64 / (hits + misses).max(1) as f64,
            "recent_hit_rate": self.report.recent.borrow_mut().rate(self.env.now()),
            "hit_bytes": bytes(hits),
            "missed_bytes": bytes(misses),
            "bypassed_bytes": bytes(self.tally.bypassed.get()),
            "remote_bytes": bytes(self.tally.remote.get()),
            "filled_bytes": bytes(self.tally.filled.get()),
            "written_bytes": bytes(self.tally.written.get()),
            "destaged_bytes": bytes(self.tally.destaged.get()),
            "batches": self.tally.batches.get(),
            "generation": self.volume.generation.get(),
            "serial": self.volume.serial.get(),
            "checkpoint": self.volume.checkpoint.get(),
            "store_trouble": self.store_trouble(),
            "flow": self.flow.borrow().info(),
            "alerts": self.alerts(&recovery_point),
            "recovery_point": recovery_point,
            "flash_trouble": self.flash_trouble(),
            "unreadable_bytes": bytes(self.tally.unreadable.get()),
            "bad_bytes": bytes([Side::Flash, Side::Store].map(|side| self.volume.bad.count(side) as u64).iter().sum()),
            "lost": self.lost(),
            "fenced": self.kept.fenced().map(|why| why.to_string()),
            "peers": self.peers.as_ref().map(|peers| peers.report()),
            "quarantine_bytes": bytes(self.volume.quarantine.len() as u64),
            "unprotected_bytes": self.unprotected_bytes(),
            "promise": self.promise(cluster.as_ref()),
            "cluster": cluster,
        });
        self.add_tier(&mut info);
        info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Time {
        Time(0).after(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn the_recent_hit_rate_is_of_the_last_minute() {
        let mut recent = Recent::default();
        assert_eq!(recent.rate(at(1.0)), None);
        recent.count(at(1.0), true, 3);
        recent.count(at(2.0), false, 1);
        assert_eq!(recent.rate(at(29.0)), Some(0.75));
        recent.count(at(31.0), false, 4);
        assert_eq!(recent.rate(at(40.0)), Some(0.375));
        // The first half is too long ago, and then all is.
        assert_eq!(recent.rate(at(62.0)), Some(0.0));
        assert_eq!(recent.rate(at(200.0)), None);
    }

    /// How much older than it is a write may be said to be.
    fn check(ages: &mut Ages, serial: u64, is: Time, exact: Duration) {
        let said = ages.since(serial).expect("known");
        assert!(said <= is && is.since(said) <= exact, "{serial}: {said:?} for {is:?}");
    }

    #[test]
    fn a_write_is_at_most_as_old_as_is_said() {
        let mut ages = Ages::default();
        assert_eq!(ages.since(1), None);
        let time = |serial: u64| at(serial as f64 / 1000.0);
        (1..=10_000).for_each(|serial| ages.note(serial, time(serial), Some(1)));
        assert!(ages.marks.len() <= 101, "{}", ages.marks.len());
        for serial in [1, 500, 1234, 10_000] {
            check(&mut ages, serial, time(serial), Ages::APART);
        }
    }

    #[test]
    fn the_ages_of_a_day_cost_no_memory() {
        let mut ages = Ages::default();
        let time = |serial: u64| at(serial as f64 / 10.0);
        // The store takes nothing for a day.
        (1..=864_000).for_each(|serial| ages.note(serial, time(serial), Some(1)));
        assert!(ages.marks.len() <= Ages::MOST);
        for serial in [1, 12_345, 800_000] {
            check(&mut ages, serial, time(serial), Duration::from_secs(300));
        }
        // And then it is never more than ten writes behind, and nobody looks.
        (864_001..=900_000).for_each(|serial| ages.note(serial, time(serial), Some(serial - 10)));
        check(&mut ages, 899_995, time(899_995), Ages::APART);
    }
}
