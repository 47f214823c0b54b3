//! A hard disk at work.

use super::Rotational;
use super::buffer::Buffer;
use super::geometry::{Geometry, Place};
use super::residuals::{ByWait, Differences};
use super::seek::SeekTimes;
use crate::chance::Chance;
use crate::machine::{MS, Nanos, Served};
use crate::phase::{Spin, fraction};
use crate::{Op, Request, SECTOR, SegmentCache};

/// Margin by which a sector is not missed: positions are added up in fractions of nanoseconds and told in whole ones.
const MARGIN: Nanos = 2.0;

/// A hard disk at work. Times are nanoseconds.
pub(crate) struct Machine {
    rotation: Nanos,
    overhead: Nanos,
    completion: Nanos,
    /// What each sector of a read takes to the host, from when the medium had the first one on.
    read_sector: Nanos,
    /// What a segment of the cache takes on the bus: what the host lacks of a read when the medium is done is no more.
    lag_max: Nanos,
    head_switch: Nanos,
    settle: Nanos,
    spread: Nanos,
    hit: Nanos,
    /// What a write takes that finds room in the buffer.
    buffered: Nanos,
    /// What each byte takes on the bus.
    per_byte: Nanos,
    residuals: Differences,
    seek: SeekTimes,
    geometry: Geometry,
    sectors: u64,
    /// The rotation of the platters, if known.
    spin: Option<Spin>,
    /// Where the arm is: cylinder and head.
    arm: (f64, f64),
    /// When the arm has nothing to do, reading ahead apart.
    free: Nanos,
    /// When the last request ended that moved the arm, as the host is told.
    last_told: Nanos,
    cache: Option<SegmentCache>,
    whole_tracks: bool,
    ahead: Option<Ahead>,
    buffer: Buffer,
}

/// Reading ahead into a segment of the cache.
#[derive(Clone, Copy)]
struct Ahead {
    slot: usize,
    /// A sector that is read, and when its begin passed the head.
    from: u64,
    since: Nanos,
    /// The sector before which reading ends.
    limit: u64,
}

/// What comes on top of positioning.
#[derive(Clone, Copy, Default)]
struct Access {
    /// What positioning takes longer.
    settle: Nanos,
    /// Before when, counted from the begin of the seek, data are not there to be written.
    data: Nanos,
    /// By how much the arm arrives late; early if negative.
    late: Nanos,
}

/// What the end of a transfer says.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    /// The turns of the platters then.
    pub turns: f64,
    /// From when the last sector has passed until then.
    behind: Nanos,
    /// The least that a request with this transfer can take. Half of the constant parts may be errors of the model: one
    /// that takes less is a hit that was not expected.
    pub least: Nanos,
}

/// A transfer, planned.
struct Transfer {
    /// When the last sector has passed.
    end: Nanos,
    /// By how much the host has a read later.
    lag: Nanos,
    /// How long the first one is waited for since the arm arrived.
    wait: Nanos,
    last: Place,
}

impl Machine {
    pub(crate) fn new(model: &Rotational, sectors: u64) -> Machine {
        let (seek, buffer) = (SeekTimes::new(&model.seek), model.write_buffer.as_ref());
        let per_byte = model.bus_rate.map_or(0.0, |rate| 1e9 / rate.0 as f64);
        let segment =
            model.cache.as_ref().map(|cache| f64::from(cache.segment_sectors) * SECTOR as f64 * per_byte);
        Machine {
            rotation: model.rotation_ms * MS,
            overhead: model.overhead_ms * MS,
            completion: model.completion_ms * MS,
            read_sector: model.read_sector_ms * MS,
            head_switch: model.head_switch_ms * MS,
            settle: model.write_settle_ms * MS,
            spread: model.arrival_spread_ms * MS,
            hit: model.hit_ms * MS,
            buffered: buffer.and_then(|buffer| buffer.hit_ms).unwrap_or(model.hit_ms) * MS,
            lag_max: segment.filter(|lag| *lag > 0.0).unwrap_or(f64::INFINITY),
            per_byte,
            residuals: Differences::new(&model.residuals),
            geometry: Geometry::new(model, &seek, sectors),
            seek,
            sectors,
            spin: None,
            arm: (0.0, 0.0),
            free: 0.0,
            last_told: f64::NEG_INFINITY,
            cache: model.cache.as_ref().map(SegmentCache::new),
            whole_tracks: model.whole_tracks,
            ahead: None,
            buffer: Buffer::new(buffer.map_or(0, |buffer| buffer.size.0 / SECTOR)),
        }
    }

    /// The platters are `turns` around at time 0.
    pub(crate) fn spin(&mut self, turns: f64) {
        self.spin = Some(Spin { at: 0.0, turns, per_ns: 1.0 / self.rotation });
    }

    /// The platters turn like that.
    pub(crate) fn spin_as(&mut self, spin: Spin) {
        self.spin = Some(spin);
    }

    /// One rotation of the model.
    pub(crate) fn rotation(&self) -> Nanos {
        self.rotation
    }

    /// What the end of `request` says, if that is the end of a transfer.
    pub(crate) fn ending(&self, request: &Request) -> Ending {
        let place = self.geometry.place(request.lbn);
        let (turns, _) = self.geometry.transfer(&place, request.lbn, request.sectors.max(1).into());
        let behind = self.lag(request, turns) + self.completion;
        Ending {
            turns: self.geometry.angle(&place, request.lbn) + turns + behind / self.rotation,
            behind,
            least: turns * self.rotation + (self.overhead + self.completion) / 2.0,
        }
    }

    /// What `request` takes from when its first sector is under the head, if it needs the medium.
    pub(crate) fn transfer_time(&self, request: &Request) -> Nanos {
        let place = self.geometry.place(request.lbn);
        let (turns, _) = self.geometry.transfer(&place, request.lbn, request.sectors.max(1).into());
        turns * self.rotation + self.lag(request, turns)
    }

    /// By how much the host has a read later than the medium, whose transfer takes `turns`.
    fn lag(&self, request: &Request, turns: f64) -> Nanos {
        match request.op {
            Op::Read => {
                let lag = f64::from(request.sectors) * self.read_sector - turns * self.rotation;
                lag.clamp(0.0, self.lag_max)
            }
            Op::Write | Op::Flush | Op::Discard => 0.0,
        }
    }

    /// The last request, a transfer, in truth ended at `at`.
    pub(crate) fn ended(&mut self, at: Nanos, ending: &Ending) {
        let moved = at - ending.behind - self.free;
        self.free += moved;
        self.last_told = at;
        if let Some(ahead) = &mut self.ahead {
            ahead.since += moved;
        }
    }

    /// Does what the drive does by itself until `now`: writes what waits while the arm has nothing to do.
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        // The host has been told of the last end by then, and sends what is next: the arm stays for that. The margin
        // is for moments that the host knows in whole nanoseconds.
        while let Some(begin) = self.idle_since().filter(|begin| *begin < now) {
            self.destage(begin);
        }
        self.sync(now);
    }

    /// Since when the arm could write what waits.
    fn idle_since(&self) -> Option<Nanos> {
        (!self.buffer.is_empty()).then(|| self.free.max(self.last_told + MARGIN))
    }

    pub(crate) fn begin(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        self.catch_up(now);
        match request.op {
            Op::Read => self.read(now, request, chance),
            Op::Write => self.write(now, request, chance),
            Op::Flush => {
                let emptied = self.empty(now);
                Served { at: emptied + self.hit, hit: false, media: false }
            }
            Op::Discard => Served { at: now + self.hit, hit: false, media: false },
        }
    }

    /// What `request` is expected to take if begun at `now`, to which the drive has caught up.
    pub(crate) fn cost(&self, now: Nanos, request: &Request) -> Nanos {
        match request.op {
            Op::Read => {
                let reached = self.reached(now, request);
                if self.holds(request) || reached.is_some_and(|end| end <= now) {
                    return self.hit_cost(request) + self.residuals.hit.mean;
                }
                match reached {
                    Some(end) => self.told(now, end, request) + self.residuals.passing.mean - now,
                    None => self.expected(now, request, &self.residuals.read) - now,
                }
            }
            Op::Write if self.buffer.has_room(request.sectors.into()) => {
                self.buffered + self.bus(request) + self.residuals.buffered.mean
            }
            Op::Write => self.expected(now, request, &self.residuals.write) - now,
            Op::Flush => (self.free - now).max(0.0) + self.hit + self.buffer.ranges() as f64 * self.rotation,
            Op::Discard => self.hit,
        }
    }

    /// Whether cache or buffer have all of `request` at `now`, a read.
    pub(crate) fn is_hit(&self, now: Nanos, request: &Request) -> bool {
        match request.op {
            Op::Read => self.holds(request) || self.reached(now, request).is_some_and(|end| end <= now),
            Op::Write | Op::Flush | Op::Discard => false,
        }
    }

    /// The part of a turn for which `request`, begun at `now`, is expected to wait until its first sector is under the
    /// head; none if it needs no medium.
    pub(crate) fn wait(&self, now: Nanos, request: &Request) -> Option<f64> {
        let is_media = match request.op {
            Op::Read => !self.holds(request) && self.reached(now, request).is_none(),
            Op::Write => !self.buffer.has_room(request.sectors.into()),
            Op::Flush | Op::Discard => false,
        };
        let planned = is_media.then(|| self.plan(now.max(self.free), request, self.access(request)))?;
        Some(planned.wait / self.rotation)
    }

    /// Whether cache or buffer have all of `request`, without what reading ahead had since it was last looked at.
    fn holds(&self, request: &Request) -> bool {
        let (start, end) = (request.lbn, request.end());
        self.cache.as_ref().is_some_and(|cache| cache.holds(start, end))
            || (!self.buffer.is_empty() && self.buffer.holds(start, end))
    }

    fn hit_cost(&self, request: &Request) -> Nanos {
        self.hit + self.bus(request)
    }

    /// What the bytes of a request take on the bus.
    fn bus(&self, request: &Request) -> Nanos {
        self.per_byte * request.bytes() as f64
    }

    /// The access of a request that comes over the bus.
    fn access(&self, request: &Request) -> Access {
        match request.op {
            Op::Write => Access { settle: self.settle, data: self.bus(request), late: 0.0 },
            Op::Read | Op::Flush | Op::Discard => Access::default(),
        }
    }

    fn read(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        if self.is_hit(now, request) {
            self.read_on(now, request);
            let residual = chance.of(&self.residuals.hit);
            return Served {
                at: now + (self.hit_cost(request) + residual).max(0.0),
                hit: true,
                media: false,
            };
        }
        if let Some(end) = self.reached(now, request) {
            self.read_on(now, request);
            self.free = end;
            let at = self.told(now, end, request);
            // The end is at an angle only if neither the bus nor the host made the request longer than the medium.
            let media = at == end + self.completion && self.ending(request).behind == self.completion;
            return self.moved(now, at + chance.of(&self.residuals.passing), media);
        }
        self.stop(now);
        if self.buffer.overlaps(request.lbn, request.end()) {
            self.empty(now);
        }
        let planned = self.transfer(now, request, self.access(request), chance);
        self.read_ahead(request, &planned.last);
        let residual = self.residuals.read.of(planned.wait / self.rotation, chance);
        self.moved(now, self.free + planned.lag + self.completion + residual, true)
    }

    fn write(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        self.enter(request.lbn, request.end());
        let sectors = request.sectors.into();
        if !self.buffer.may_take(sectors) {
            self.stop(now);
            let planned = self.transfer(now, request, self.access(request), chance);
            let residual = self.residuals.write.of(planned.wait / self.rotation, chance);
            return self.moved(now, self.free + self.completion + residual, true);
        }
        let mut at = now;
        while !self.buffer.has_room(sectors) {
            at = self.destage(now).max(at);
        }
        if self.buffer.is_empty() {
            // What comes now is written from now on, not from when the arm became free.
            self.free = self.free.max(at);
        }
        self.buffer.put(request.lbn, request.end());
        at += (self.buffered + self.bus(request) + chance.of(&self.residuals.buffered)).max(0.0);
        Served { at, hit: false, media: false }
    }

    /// The sectors from `start` to before `end` take a segment of the cache, whose number is returned.
    fn enter(&mut self, start: u64, end: u64) -> Option<usize> {
        let slot = self.cache.as_mut()?.put(start, end);
        if self.ahead.is_some_and(|ahead| ahead.slot == slot) {
            self.ahead = None;
        }
        Some(slot)
    }

    /// Reading goes on behind `request`, of which the sector `last` has just passed.
    fn read_ahead(&mut self, request: &Request, last: &Place) {
        let (end, prefetch) = (request.end(), self.cache.as_ref().map_or(0, SegmentCache::prefetch));
        let (start, limit) = match self.whole_tracks {
            // The sectors in front of the request have passed before the rest of the track has.
            true => self.geometry.track(end.saturating_sub(1)),
            false => (request.lbn, end.saturating_add(prefetch).min(self.sectors)),
        };
        let Some(slot) = self.enter(start.min(request.lbn), end) else { return };
        let since = self.free - self.geometry.transfer(last, end.saturating_sub(1), 1).0 * self.rotation;
        if limit > end {
            self.set_ahead(Ahead { slot, from: end.saturating_sub(1), since, limit });
        }
    }

    /// Reading ahead goes like that; the segment makes room for all of it at once.
    fn set_ahead(&mut self, ahead: Ahead) {
        if let Some(cache) = &mut self.cache {
            cache.make_room(ahead.slot, ahead.limit);
        }
        self.ahead = Some(ahead);
    }

    /// Writes everything that waits, from `now` on, and returns when that is done, and what was on its way before.
    fn empty(&mut self, now: Nanos) -> Nanos {
        while !self.buffer.is_empty() {
            self.destage(now);
        }
        self.free.max(now)
    }

    /// Writes one range of the buffer, not before `now`, and returns when that is done.
    fn destage(&mut self, now: Nanos) -> Nanos {
        let Some((start, end)) = self.buffer.take() else { return now };
        self.stop(now.max(self.free));
        // A range is at most the buffer, which is at most 1 GiB.
        let request = Request { op: Op::Write, lbn: start, sectors: (end - start) as u32 };
        let access = Access { settle: self.settle, ..Access::default() };
        self.transfer(now, &request, access, &mut Chance::Expected);
        self.free
    }

    /// A request that needed the arm and was begun at `now` ends at `at`.
    fn moved(&mut self, now: Nanos, at: Nanos, media: bool) -> Served {
        self.last_told = at.max(now);
        Served { at: self.last_told, hit: false, media }
    }

    /// Moves the arm and waits until the sectors have passed, when the arm is free again.
    fn transfer(&mut self, now: Nanos, request: &Request, access: Access, chance: &mut Chance) -> Transfer {
        let late = chance.logistic(self.spread);
        let planned = self.plan(now.max(self.free), request, Access { late, ..access });
        self.arm = (planned.last.cylinder, planned.last.head);
        self.free = planned.end;
        planned
    }

    /// When `request` is expected to end if it needs the arm: residuals count, and chances to lose or win a turn.
    fn expected(&self, now: Nanos, request: &Request, residuals: &ByWait) -> Nanos {
        let planned = self.plan(now.max(self.free), request, self.access(request));
        let mut end =
            planned.end + planned.lag + self.completion + residuals.mean(planned.wait / self.rotation);
        if self.spread > 0.0 && self.spin.is_some() {
            let chance = |margin: Nanos| 1.0 / (1.0 + (margin / self.spread).exp());
            end += self.rotation * (chance(planned.wait) - chance(self.rotation - planned.wait));
        }
        end
    }

    /// The transfer of `request` if it has the arm from `start` on.
    fn plan(&self, start: Nanos, request: &Request, access: Access) -> Transfer {
        let place = self.geometry.place(request.lbn);
        let distance = (place.cylinder - self.arm.0).abs();
        let switch = if place.head == self.arm.1 { 0.0 } else { self.head_switch };
        let moved = self.seek.at(distance).max(switch) + access.settle;
        let arrival = start + self.overhead + moved.max(access.data) + access.late;
        let arrival = arrival.max(start);
        let wait = match self.spin {
            Some(spin) => {
                let ahead = self.geometry.angle(&place, request.lbn) - spin.at(arrival);
                let margin = MARGIN / self.rotation;
                (fraction(ahead + margin) - margin) * self.rotation
            }
            None => self.rotation / 2.0,
        };
        let (turns, last) = self.geometry.transfer(&place, request.lbn, request.sectors.max(1).into());
        let lag = self.lag(request, turns);
        Transfer { end: arrival + wait + turns * self.rotation, lag, wait, last }
    }

    /// When reading ahead has, or will have, the last sector of `request`: if the request begins inside of what is read
    /// or right behind it, and reading has not ended before; or if it begins inside, and reading goes on for the rest.
    fn reached(&self, now: Nanos, request: &Request) -> Option<Nanos> {
        let (ahead, cache) = (self.ahead?, self.cache.as_ref()?);
        let is_inside = (cache.start(ahead.slot)..=ahead.limit).contains(&request.lbn);
        if is_inside && (request.end() <= ahead.limit || self.passed(&ahead, ahead.limit) >= now) {
            return Some(self.passed(&ahead, request.end()));
        }
        let goes_on = is_inside && request.lbn < ahead.limit && !self.whole_tracks;
        goes_on.then(|| self.passed(&self.resumed(now + self.overhead, &ahead), request.end()))
    }

    /// When a request ends of which reading ahead has the last sector at `end`.
    fn told(&self, now: Nanos, end: Nanos, request: &Request) -> Nanos {
        (end + self.completion).max(now + self.hit_cost(request))
    }

    /// When reading ahead has all sectors before `end`.
    fn passed(&self, ahead: &Ahead, end: u64) -> Nanos {
        let place = self.geometry.place(ahead.from);
        let (turns, _) = self.geometry.transfer(&place, ahead.from, end.saturating_sub(ahead.from).max(1));
        ahead.since + turns * self.rotation
    }

    /// Reading ahead goes on behind `request`, if it began in the segment that is filled.
    fn read_on(&mut self, now: Nanos, request: &Request) {
        let (Some(ahead), Some(cache)) = (self.ahead, &self.cache) else { return };
        let limit = request.end().saturating_add(cache.prefetch()).min(self.sectors);
        let is_inside = (cache.start(ahead.slot)..=ahead.limit).contains(&request.lbn);
        if !is_inside || limit <= ahead.limit || self.whole_tracks {
            return;
        }
        let stopped = self.passed(&ahead, ahead.limit);
        if stopped >= now {
            return self.set_ahead(Ahead { limit, ..ahead });
        }
        self.set_ahead(Ahead { limit, ..self.resumed(now, &ahead) });
    }

    /// Reading ahead that had stopped goes on at `at`: the head waits behind the last sector, which comes around once a
    /// turn.
    fn resumed(&self, at: Nanos, ahead: &Ahead) -> Ahead {
        let stopped = self.passed(ahead, ahead.limit);
        let turns = ((at - stopped) / self.rotation).ceil();
        let from = ahead.limit - 1;
        let sector = self.geometry.transfer(&self.geometry.place(from), from, 1).0;
        Ahead { from, since: stopped + (turns - sector) * self.rotation, ..*ahead }
    }

    /// Enters into the cache what reading ahead has by `now`.
    fn sync(&mut self, now: Nanos) {
        let Some(ahead) = self.ahead else { return };
        let end = self.read_by(&ahead, now);
        if let Some(cache) = &mut self.cache {
            cache.extend(ahead.slot, end);
        }
    }

    /// The first sector that reading ahead does not have by `now`.
    fn read_by(&self, ahead: &Ahead, now: Nanos) -> u64 {
        if self.passed(ahead, ahead.limit) <= now {
            return ahead.limit;
        }
        let (mut has, mut lacks) = (ahead.from + 1, ahead.limit);
        while lacks > has + 1 {
            let middle = has + (lacks - has) / 2;
            if self.passed(ahead, middle) <= now {
                has = middle;
            } else {
                lacks = middle;
            }
        }
        has
    }

    /// Ends reading ahead at `now`: the arm is needed.
    fn stop(&mut self, now: Nanos) {
        self.sync(now);
        self.ahead = None;
    }
}
