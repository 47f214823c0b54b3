//! `cats`: cache-aware table scheduling (Geist, Jones, Westall, *Predicting Disk Scheduling Performance with Virtual
//! Machines*, section 3).
//!
//! The first of these rules that applies chooses:
//!
//! 1. *Age.* While the oldest request is older than `age-limit`, every eighth choice is the oldest request, so that
//!    neither hits nor a place that is always near can starve others.
//! 2. *Hits.* The oldest read that the *shadow cache* (`shadow.rs`) predicts to be a hit.
//! 3. *Writes that waited.* While the oldest write is older than `write-delay`, a batch of up to `write-batch` writes
//!    goes after as many reads; in C-SCAN order.
//! 4. *Reads that waited.* While the oldest read is older than `read-delay`, the next read in C-SCAN order.
//! 5. *Reads.* The next of the sequence with the least total response time (`table.rs`). The sequence stays valid while
//!    no read comes and none goes out of turn. Of more than `table` waiting reads, the oldest are in the table.
//! 6. *Writes*, in C-SCAN order.
//!
//! Before 5 and 6 the arm stands for up to `busdriver-delay` if that pays (`bus.rs`).
//!
//! A request with N older ones before it waits for at most `age-limit`, and 8 (N + 1) services and busdriver delays. A
//! decision after an arrival takes 6 µs (median; 11 µs at the 99th percentile) with 64 waiting reads, and 50 µs (94 µs)
//! with 256, the bound by default, where 1,000 take 84 µs; without an arrival 3 and 10 µs: the check for hits
//! (`examples/decision_time.rs`, on one core of a shared machine).
//!
//! The policy deliberately does not measure the drive: costs and the cache come from the model. Without a model there
//! is no busdriver delay, and no shadow cache unless `cache` describes the drive's.

mod bus;
mod line;
mod shadow;
mod table;

use super::aged::{Head, PACE};
use super::keys::Keys;
use super::policy::{Choice, Hits, Policy, Queued};
use super::waiting::{Place, Waiting, place};
use bus::Riders;
use lamina_block::{Interval, Time};
use lamina_drive::{Cache, Model, Op};
use line::Line;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Value, json};
use shadow::Shadow;
use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU32;
use std::time::Duration;

/// The parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Parameters {
    /// The paper's READDELAY: the age of the oldest read from which on reads go in C-SCAN order.
    pub read_delay: Interval,
    /// How long the arm stands for a client's next request, at most; 0 never.
    pub busdriver_delay: Interval,
    /// The age of the oldest write from which on writes go between reads.
    pub write_delay: Interval,
    /// Writes that go together then, and reads between.
    pub write_batch: NonZeroU32,
    /// The most reads of a table, 1 to 1024: a decision takes time and memory in proportion to its square.
    #[serde(deserialize_with = "within_bounds")]
    pub table: NonZeroU32,
    /// The on-board cache, as the paper describes it; absent: the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
}

fn within_bounds<'de, D: Deserializer<'de>>(d: D) -> Result<NonZeroU32, D::Error> {
    let value = NonZeroU32::deserialize(d)?;
    if value.get() as usize > table::REQUESTS_MAX {
        return Err(de::Error::custom(format!("table {value} is not in 1..={}", table::REQUESTS_MAX)));
    }
    Ok(value)
}

impl Default for Parameters {
    /// Delays are the paper's (section 5); the rest is ours.
    fn default() -> Parameters {
        Parameters {
            read_delay: Interval(Duration::from_millis(100)),
            busdriver_delay: Interval(Duration::from_millis(7)),
            write_delay: Interval(Duration::from_millis(500)),
            write_batch: NonZeroU32::MIN.saturating_add(15),
            table: NonZeroU32::MIN.saturating_add(255),
            cache: None,
        }
    }
}

/// The policy.
pub struct Cats {
    parameters: Parameters,
    age_limit: Duration,
    model: Option<Model>,
    line: Option<Line>,
    shadow: Option<Shadow>,
    reads: Waiting,
    writes: Waiting,
    /// The last request that moved the arm.
    head: Head,
    /// Reads in the order of the last table, if that is still valid.
    sequence: VecDeque<Place>,
    riders: Riders,
    /// Choices since the last one by age.
    chosen: u32,
    /// Writes that are left of a batch, and reads since the last one.
    batch: u32,
    reads_between: u32,
    /// Reads in the drive that were predicted to be hits.
    predicted: HashSet<u64>,
    hits: Hits,
    /// When the last request ended.
    ended: Time,
    tables: u64,
    waits: u64,
    /// Until when the arm stood, or stands.
    stands: Option<Time>,
}

impl Cats {
    /// Nothing waits, the arm is at the first sector, and the cache is empty.
    pub fn new(keys: &Keys, model: Option<&Model>) -> Cats {
        Cats {
            parameters: keys.cats.clone(),
            age_limit: keys.age_limit.0,
            model: model.cloned(),
            line: model.map(Line::of),
            shadow: Shadow::new(keys.cats.cache.as_ref(), model),
            reads: Waiting::default(),
            writes: Waiting::default(),
            head: Head::default(),
            sequence: VecDeque::new(),
            riders: Riders::default(),
            chosen: PACE,
            batch: 0,
            reads_between: 0,
            predicted: HashSet::new(),
            hits: Hits::default(),
            ended: Time(0),
            tables: 0,
            waits: 0,
            stands: None,
        }
    }

    fn is_hit(&self, queued: &Queued) -> bool {
        self.shadow.as_ref().is_some_and(|shadow| shadow.is_hit(&queued.request))
    }

    /// Rule 1: the oldest request, if its age counts now.
    fn overdue(&self, now: Time) -> Option<Queued> {
        let oldest = [&self.reads, &self.writes]
            .into_iter()
            .filter_map(Waiting::oldest)
            .min_by_key(|queued| queued.id);
        oldest.filter(|oldest| self.chosen >= PACE && now.since(oldest.arrived) > self.age_limit).copied()
    }

    /// Rule 2: the oldest predicted hit.
    fn predicted_hit(&self) -> Option<Queued> {
        let shadow = self.shadow.as_ref()?;
        self.reads
            .iter()
            .filter(|queued| shadow.is_hit(&queued.request))
            .min_by_key(|queued| queued.id)
            .copied()
    }

    /// Rule 3: the next write of a batch, if one is under way or due.
    fn overdue_write(&mut self, now: Time) -> Option<Queued> {
        let size = self.parameters.write_batch.get();
        let is_late = is_older(&self.writes, now, self.parameters.write_delay.0);
        if self.batch == 0 && is_late && self.reads_between >= size {
            self.batch = size;
        }
        if self.batch == 0 {
            return None;
        }
        let next = self.cscan(&self.writes);
        self.batch = if next.is_some() { self.batch - 1 } else { 0 };
        self.reads_between = 0;
        next
    }

    /// Rule 4: the next read in C-SCAN order, if the oldest has waited for long.
    fn late_read(&self, now: Time) -> Option<Queued> {
        let is_late = is_older(&self.reads, now, self.parameters.read_delay.0);
        is_late.then(|| self.cscan(&self.reads)).flatten()
    }

    /// Rule 5: the next read of the table.
    fn table_read(&mut self) -> Option<Queued> {
        if self.sequence.is_empty() && !self.reads.is_empty() {
            self.sequence = self.table();
            self.tables += 1;
        }
        self.reads.get(*self.sequence.front()?).copied()
    }

    fn table(&self) -> VecDeque<Place> {
        let most = self.parameters.table.get() as usize;
        let mut places: Vec<Place> = if self.reads.len() <= most {
            self.reads.iter().map(place).collect()
        } else {
            self.reads.by_age().take(most).collect()
        };
        places.sort_unstable();
        let lbns: Vec<u64> = places.iter().map(|(lbn, _)| *lbn).collect();
        table::order(self.head.sector, &lbns).into_iter().map(|index| places[index]).collect()
    }

    fn cscan(&self, waiting: &Waiting) -> Option<Queued> {
        waiting.at_or_after(self.head.place).or_else(|| waiting.lowest()).copied()
    }

    /// Until when the arm stands rather than serve `next`.
    fn wait(&self, now: Time, next: &Queued) -> Option<Time> {
        let cost = self.line.as_ref()?.cost(self.head.sector.abs_diff(next.request.lbn));
        self.riders.wait(now, cost, self.parameters.busdriver_delay.0)
    }

    fn send(&mut self, now: Time, next: &Queued) -> Choice {
        let is_hit = self.is_hit(next);
        let at = place(next);
        if self.sequence.pop_front() != Some(at) {
            self.sequence.clear();
        }
        if let Some(shadow) = &mut self.shadow {
            shadow.dispatched(now, &next.request);
        }
        if is_read(next) {
            self.reads.remove(at);
            self.reads_between = self.reads_between.saturating_add(1);
            self.riders.sent(next.client);
        } else {
            self.writes.remove(at);
        }
        if is_hit {
            self.predicted.insert(next.id);
        } else {
            self.head = Head { place: at, sector: next.request.end() };
        }
        Choice::Send(next.id)
    }
}

fn is_read(queued: &Queued) -> bool {
    match queued.request.op {
        Op::Read => true,
        Op::Write | Op::Flush | Op::Discard => false,
    }
}

fn is_older(waiting: &Waiting, now: Time, limit: Duration) -> bool {
    waiting.oldest().is_some_and(|oldest| now.since(oldest.arrived) > limit)
}

impl Policy for Cats {
    fn arrived(&mut self, request: Queued) {
        if !is_read(&request) {
            return self.writes.insert(request);
        }
        self.sequence.clear();
        if let Some(line) = &self.line {
            let is_hit = self.is_hit(&request);
            self.riders.arrived(request.arrived, request.client, request.request.lbn, is_hit, line);
        }
        self.reads.insert(request);
    }

    fn choose(&mut self, now: Time) -> Choice {
        let overdue = self.overdue(now);
        let is_by_age = overdue.is_some();
        let urgent = overdue.or_else(|| self.predicted_hit()).or_else(|| self.overdue_write(now));
        let next = match urgent.or_else(|| self.late_read(now)) {
            Some(next) => next,
            None => {
                let Some(next) = self.table_read().or_else(|| self.cscan(&self.writes)) else {
                    return Choice::Idle;
                };
                if let Some(until) = self.wait(now, &next) {
                    self.waits += u64::from(self.stands.replace(until) != Some(until));
                    return Choice::Wait(until);
                }
                next
            }
        };
        self.chosen = if is_by_age { 1 } else { self.chosen.saturating_add(1) };
        self.send(now, &next)
    }

    fn completed(&mut self, now: Time, sent: Time, request: &Queued) {
        if is_read(request) {
            self.riders.ended(now, request.client, request.request.end());
        }
        let was_predicted = self.predicted.remove(&request.id);
        if now <= sent {
            // A request that was given up before its turn says nothing about the drive.
            return;
        }
        let began = sent.max(std::mem::replace(&mut self.ended, now));
        if let Some(shadow) = &mut self.shadow {
            shadow.completed(now, sent, &request.request);
        }
        if was_predicted && let Some(hit) = self.line.and_then(|line| line.hit) {
            self.hits.predicted += 1;
            // Half as long again: a hit's time has a part for its length, and ends are noticed a little late.
            self.hits.right += u64::from(now.since(began) <= hit * 3 / 2);
        }
    }

    fn drain(&mut self) -> Vec<Queued> {
        self.sequence.clear();
        self.riders = Riders::default();
        let mut all = [self.reads.drain(), self.writes.drain()].concat();
        all.sort_unstable_by_key(|queued| queued.id);
        all
    }

    fn tune(&mut self, keys: &Keys) {
        let before = std::mem::replace(&mut self.parameters, keys.cats.clone());
        self.age_limit = keys.age_limit.0;
        self.sequence.clear();
        if self.parameters.cache != before.cache {
            self.shadow = Shadow::new(self.parameters.cache.as_ref(), self.model.as_ref());
        }
    }

    fn hits(&self) -> Option<Hits> {
        self.shadow.as_ref().and(self.line.and_then(|line| line.hit)).map(|_| self.hits)
    }

    fn info(&self) -> Value {
        json!({ "tables": self.tables, "waits": self.waits })
    }
}

#[cfg(test)]
mod tests;
