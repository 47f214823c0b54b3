//! The mechanics: an arm, platters that turn, a cache.

use crate::cache::Cache;
use crate::geometry::Geometry;
use crate::spec::{Order, ReadAhead, Spec};
use std::collections::VecDeque;
use std::fmt::Write;
use std::ops::Range;
use std::rc::Rc;

/// Reading on after a request.
#[derive(Clone)]
struct Ahead {
    /// The sectors that would follow.
    wanted: Range<u64>,
    /// When the first of them began to pass.
    since: f64,
    /// What a sector takes to pass.
    each: f64,
}

/// A disk at work. Times are microseconds.
#[derive(Clone)]
pub struct Disk {
    spec: Spec,
    geometry: Rc<Geometry>,
    cache: Cache,
    now: f64,
    cylinder: u32,
    head: u32,
    ahead: Option<Ahead>,
    /// Writes that the buffer holds, oldest first, and since when the arm is free for them.
    waiting: VecDeque<Range<u64>>,
    free: f64,
    rng: fastrand::Rng,
}

impl Disk {
    pub fn new(spec: Spec) -> Disk {
        let geometry = Rc::new(Geometry::new(&spec));
        let cache = Cache::new(spec.segments, spec.segment_sectors, spec.lru);
        let rng = fastrand::Rng::with_seed(spec.seed);
        let waiting = VecDeque::new();
        Disk { spec, geometry, cache, now: 0.0, cylinder: 0, head: 0, ahead: None, waiting, free: 0.0, rng }
    }

    /// A request, `think` after the last answer. Returns what it took.
    pub fn ask(&mut self, write: bool, lbn: u64, sectors: u64, think: f64) -> Result<f64, String> {
        let (block, is_emulated) = (self.spec.extras.block, self.spec.extras.emulated);
        let is_whole = lbn.is_multiple_of(block) && sectors.is_multiple_of(block);
        if !is_whole && !is_emulated {
            return Err(format!("{sectors} at {lbn} are no whole sectors of {block}"));
        }
        let wanted = lbn / block..lbn.saturating_add(sectors).div_ceil(block);
        if sectors == 0 || wanted.end > self.geometry.sectors {
            return Err(format!("sectors {wanted:?} of {}", self.geometry.sectors));
        }
        let arrival = self.now + think;
        let begin = arrival + self.spec.overhead + self.spec.extras.jitter * self.rng.f64();
        if write && !is_whole {
            // The rest of the sectors has to be known first.
            self.now = self.read(begin, &wanted);
        }
        let begin = begin.max(self.now);
        self.now = if write { self.write(begin, &wanted) } else { self.read(begin, &wanted) };
        self.free = self.free.max(self.now);
        Ok(self.now - arrival)
    }

    fn read(&mut self, begin: f64, wanted: &Range<u64>) -> f64 {
        self.destage(begin, 0);
        let ready = self.read_on(begin, wanted);
        if self.cache.has(wanted) {
            return begin.max(ready) + self.spec.hit + self.spec.bus * (wanted.end - wanted.start) as f64;
        }
        self.ahead = None;
        let end = self.pass(begin.max(self.free), wanted, 0.0);
        if self.spec.extras.keeps_reads {
            self.fill(wanted, end);
        }
        end + self.spec.bus
    }

    fn write(&mut self, begin: f64, wanted: &Range<u64>) -> f64 {
        self.destage(begin, 0);
        self.read_on(begin, wanted);
        self.ahead = None;
        self.cache.forget(wanted);
        let sectors = wanted.end - wanted.start;
        if sectors > self.spec.extras.buffer {
            // What waits goes first.
            self.destage(f64::MAX, 0);
            return self.pass(begin.max(self.free), wanted, self.spec.write_settle);
        }
        let begin = begin.max(self.destage(begin, sectors));
        self.free = if self.waiting.is_empty() { self.free.max(begin) } else { self.free };
        self.waiting.push_back(wanted.clone());
        begin + self.spec.hit + self.spec.bus * sectors as f64
    }

    /// Writes what waits until the next write would begin after `until`, and then as much as makes room for `room`
    /// sectors. Returns the end of the last.
    fn destage(&mut self, until: f64, room: u64) -> f64 {
        let used = |waiting: &VecDeque<Range<u64>>| waiting.iter().map(|w| w.end - w.start).sum::<u64>();
        let mut end = 0.0;
        while self.free < until || used(&self.waiting) + room > self.spec.extras.buffer {
            let Some(oldest) = self.waiting.pop_front() else { break };
            end = self.pass(self.free, &oldest, self.spec.write_settle);
            self.free = end;
        }
        end
    }

    /// The cache takes what was read, and begins to read on.
    fn fill(&mut self, read: &Range<u64>, end: f64) {
        self.cache.insert(read.clone());
        let room = read.end.max(read.start + self.spec.segment_sectors);
        let last = (read.end + self.spec.prefetch).min(room).min(self.geometry.sectors);
        match self.spec.read_ahead {
            ReadAhead::Instant => self.cache.grow(read.end, last),
            ReadAhead::Passing => {
                let (track, _) = self.geometry.place(read.end - 1);
                let each = self.spec.turn / f64::from(track.slots);
                self.ahead = Some(Ahead { wanted: read.end..last, since: end, each });
            }
        }
    }

    /// Reads on until `until`, or, if all of `wanted` is under way, until that is there: the moment is returned.
    fn read_on(&mut self, until: f64, wanted: &Range<u64>) -> f64 {
        let Some(ahead) = &self.ahead else { return until };
        let passed = ((until - ahead.since) / ahead.each).max(0.0) as u64;
        let mut end = (ahead.wanted.start + passed).min(ahead.wanted.end);
        let mut ready = until;
        if wanted.start >= ahead.wanted.start && wanted.start <= end && wanted.end <= ahead.wanted.end {
            end = end.max(wanted.end);
            ready = ready.max(ahead.since + (wanted.end - ahead.wanted.start) as f64 * ahead.each);
        }
        let at = self.geometry.place(end.max(1) - 1).0;
        (self.cylinder, self.head) = (at.cylinder, at.head);
        self.cache.grow(ahead.wanted.start, end);
        ready
    }

    /// What the arm takes to a track.
    fn arm(&self, cylinder: u32, head: u32) -> f64 {
        let (alpha, beta, gamma) = self.spec.seek;
        let d = f64::from(self.cylinder.abs_diff(cylinder));
        let switch = if head == self.head { 0.0 } else { self.spec.head_switch };
        if d == 0.0 { switch } else { switch.max(alpha + beta * d.sqrt() + gamma * d) }
    }

    /// The moment at which the last of `wanted` has passed under its head.
    fn pass(&mut self, begin: f64, wanted: &Range<u64>, settle: f64) -> f64 {
        let mut now = begin;
        let mut settle = settle;
        for lbn in wanted.clone() {
            let (track, angle) = self.geometry.place(lbn);
            now += self.arm(track.cylinder, track.head) + settle;
            settle = 0.0;
            (self.cylinder, self.head) = (track.cylinder, track.head);
            // A sector that has just been reached, up to rounding, is not missed.
            let wait = (angle - now / self.spec.turn + 1e-9).rem_euclid(1.0) - 1e-9;
            now += (wait + 1.0 / f64::from(track.slots)) * self.spec.turn;
        }
        now
    }

    /// What there is to find, as lines of `key value`.
    pub fn truth(&self) -> String {
        let (spec, mut text) = (&self.spec, String::new());
        let mut line = |key: &str, value: String| writeln!(text, "{key} {value}").is_ok();
        let (extras, block) = (&spec.extras, spec.extras.block);
        line("sectors", (self.geometry.sectors * block).to_string());
        line("block", block.to_string());
        line("emulated", u8::from(extras.emulated).to_string());
        line("skews", format!("{:?}", extras.skews));
        line("band", extras.band.to_string());
        line("jitter-us", extras.jitter.to_string());
        line("remapped", extras.remapped.to_string());
        line("keeps-reads", u8::from(extras.keeps_reads).to_string());
        line("buffer", (extras.buffer * block).to_string());
        line("write-settle-us", format!("{:.3}", spec.write_settle));
        line("turn-us", format!("{:.6}", spec.turn));
        line("heads", spec.heads.to_string());
        line("cylinders", self.geometry.cylinders.to_string());
        line("order", format!("{:?}", spec.order));
        line("serpentine", u8::from(spec.order == Order::Serpentine).to_string());
        line("spares", spec.spares.to_string());
        line("defects", spec.defects.to_string());
        line("overhead-us", format!("{:.3}", spec.overhead));
        line("seek-us", format!("{:.3} {:.6} {:.9}", spec.seek.0, spec.seek.1, spec.seek.2));
        line("head-switch-us", format!("{:.3}", spec.head_switch));
        line("hit-us", format!("{:.3}", spec.overhead + spec.hit + spec.bus));
        line("bus-us", format!("{:.6}", spec.bus));
        line("segments", spec.segments.to_string());
        line("segment-sectors", (spec.segment_sectors * block).to_string());
        line("prefetch", (spec.prefetch * block).to_string());
        line("read-ahead", format!("{:?}", spec.read_ahead));
        for (zone, (first, cylinder)) in spec.zones.iter().zip(&self.geometry.zones) {
            let (sectors, a, b) = (zone.sectors, zone.track_skew, zone.cylinder_skew);
            line("zone", format!("{} {} {cylinder} {a} {b}", first * block, u64::from(sectors) * block));
        }
        text
    }
}
