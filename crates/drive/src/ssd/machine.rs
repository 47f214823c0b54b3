//! An SSD at work.

use super::blocks::LogBlocks;
use super::latencies::Table;
use super::{Garbage, ResidualOp, Ssd};
use crate::chance::Chance;
use crate::machine::{MS, Nanos, Served, US, moment};
use crate::quantiles::Distribution;
use crate::{Op, Request, SECTOR};
use lamina_block::{Bytes, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// An SSD at work. Times are nanoseconds.
pub(crate) struct Machine {
    read_overhead: Nanos,
    write_overhead: Nanos,
    read: Nanos,
    program: Nanos,
    suspend: Option<Nanos>,
    per_command: Nanos,
    per_byte: Nanos,
    page: u64,
    protected: bool,
    residuals: Vec<(ResidualOp, Bytes, Distribution)>,
    latencies: Option<Table>,
    /// When requests that were begun end, as many as are under way at a time; nothing without measured latencies.
    under_way: BinaryHeap<Reverse<Time>>,
    depth: usize,
    dies: Vec<Die>,
    /// When the bus is free.
    bus: Nanos,
    buffer: Buffer,
    collector: Option<Collector>,
    log_blocks: Option<LogBlocks>,
    /// When all programs end.
    programmed: Nanos,
}

/// A die: until when its reads and its programs take.
#[derive(Clone, Copy, Default)]
struct Die {
    read: Nanos,
    program: Nanos,
}

impl Die {
    /// When it has nothing to do.
    fn free(&self) -> Nanos {
        self.read.max(self.program)
    }
}

/// The buffer of writes.
struct Buffer {
    size: u64,
    /// Bytes that are not programmed yet, and those of them that do not fill a page.
    used: u64,
    open: u64,
    /// When programs end, ascending, and how many bytes leave the buffer then.
    leaving: VecDeque<(Nanos, u64)>,
}

/// Garbage collection.
struct Collector {
    /// What collecting a block takes a die, and what it yields.
    time: Nanos,
    gain: f64,
    /// Erased bytes: now, at most, and below how many garbage is collected.
    erased: f64,
    most: f64,
    low: f64,
    /// Idle time of dies that was too short for a block.
    rest: Nanos,
}

impl Machine {
    pub(crate) fn new(model: &Ssd, size: u64) -> Machine {
        let residual =
            |entry: &super::Residual| (entry.op, entry.up_to, Distribution::new(&entry.quantiles_us, US));
        Machine {
            read_overhead: model.read_overhead_us * US,
            write_overhead: model.write_overhead_us * US,
            read: model.read_us * US,
            program: model.program_us * US,
            suspend: model.suspend_us.map(|us| us * US),
            per_command: model.command_us * US,
            per_byte: 1e9 / model.bus_rate.0 as f64,
            page: model.page.0,
            protected: model.protected,
            residuals: model.residuals.iter().map(residual).collect(),
            latencies: Table::new(&model.latencies),
            under_way: BinaryHeap::new(),
            depth: model.depth as usize,
            dies: vec![Die::default(); model.dies as usize],
            bus: 0.0,
            buffer: Buffer { size: model.buffer.0, used: 0, open: 0, leaving: VecDeque::new() },
            collector: model.garbage.as_ref().map(|garbage| Collector::new(garbage, model, size)),
            log_blocks: model.block_map.as_ref().map(|map| LogBlocks::new(map, model)),
            programmed: 0.0,
        }
    }

    pub(crate) fn begin(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        self.catch_up(now);
        let measured = self.measured(now, request, chance);
        let at = match request.op {
            Op::Read => match measured {
                Some(latency) => now + latency + self.held(now, request),
                None => self.read(now, request),
            },
            Op::Write => self.write(now, request, measured),
            Op::Flush if self.protected => now + measured.unwrap_or(self.write_overhead),
            Op::Flush => self.flush(now, measured),
            Op::Discard => {
                if let Some(collector) = &mut self.collector {
                    collector.erase(request.bytes() as f64);
                }
                now + self.write_overhead
            }
        };
        let residual = self.residual(request).map_or(0.0, |distribution| chance.of(distribution));
        let at = (at + residual).max(now);
        if self.latencies.is_some() && self.under_way.len() < self.depth {
            self.under_way.push(Reverse(moment(at)));
        }
        Served { at, hit: false, media: request.op == Op::Read }
    }

    /// What `request` takes by the measured latencies, with those that are under way at `now`.
    fn measured(&self, now: Nanos, request: &Request, chance: &mut Chance) -> Option<Nanos> {
        let table = self.latencies.as_ref()?;
        let others = self.under_way.iter().filter(|end| end.0 > moment(now)).count();
        table.latency(request.op, request.bytes(), others + 1, chance)
    }

    /// How long programs of the dies make a read wait that is begun at `now`.
    fn held(&self, now: Nanos, request: &Request) -> Nanos {
        let (first, count) = self.pages(request);
        let waits = share(count, self.dies.len() as u64).map(|(i, _)| {
            let die = self.dies[self.die_of(first + i)];
            self.read_begin(&Die { read: now, ..die }, now).0 - now
        });
        waits.fold(0.0, Nanos::max)
    }

    /// Programs end, and an idle drive collects garbage, until `now`.
    pub(crate) fn catch_up(&mut self, now: Nanos) {
        self.buffer.leave(now);
        while self.under_way.peek().is_some_and(|end| end.0 <= moment(now)) {
            self.under_way.pop();
        }
        if let Some(collector) = &mut self.collector {
            collector.idle(now - self.programmed, self.dies.len());
            self.programmed = self.programmed.max(now);
        }
    }

    fn residual(&self, request: &Request) -> Option<&Distribution> {
        let of_op = |entry: &&(ResidualOp, Bytes, Distribution)| entry.0.is(request.op);
        let longer = |entry: &&(ResidualOp, Bytes, Distribution)| entry.1.0 >= request.bytes();
        let mut entries = self.residuals.iter().filter(of_op);
        entries.clone().find(longer).or_else(|| entries.next_back()).map(|entry| &entry.2)
    }

    /// What `request` is expected to take if begun at `now`.
    pub(crate) fn cost(&self, now: Nanos, request: &Request) -> Nanos {
        let bus = |ready: Nanos, bytes: u64| self.bus.max(ready) + self.transfer(bytes);
        let measured = self.measured(now, request, &mut Chance::Expected);
        let overhead = measured.unwrap_or(self.write_overhead);
        let end = match request.op {
            Op::Read if measured.is_some() => now + overhead + self.held(now, request),
            Op::Read => {
                let (first, count) = self.pages(request);
                let ready = now + self.read_overhead;
                let dies = share(count, self.dies.len() as u64);
                let ends = dies.map(|(i, pages)| self.read_end(self.die_of(first + i), ready, pages));
                let read = ends.fold(ready, Nanos::max);
                let last = self.page.min(request.bytes()) as f64 * self.per_byte;
                bus(ready + self.read, request.bytes()).max(read + last)
            }
            Op::Write => {
                let arrived = measured.map(|latency| now + latency);
                let room = self.buffer.room(now, request.bytes());
                arrived.unwrap_or_else(|| bus(now + overhead, request.bytes())).max(room)
            }
            Op::Flush if self.protected => now + overhead,
            Op::Flush => self.programmed.max(now) + overhead,
            Op::Discard => now + self.write_overhead,
        };
        end - now + self.residual(request).map_or(0.0, |distribution| distribution.mean)
    }

    /// What a command with so many bytes takes the bus.
    fn transfer(&self, bytes: u64) -> Nanos {
        self.per_command + bytes as f64 * self.per_byte
    }

    /// The number of a request's first page, and of its pages.
    fn pages(&self, request: &Request) -> (u64, u64) {
        let first = u128::from(request.lbn) * u128::from(SECTOR) / u128::from(self.page);
        let end = (u128::from(request.end()) * u128::from(SECTOR)).div_ceil(u128::from(self.page));
        // Sectors of 512 bytes: the number of a page is not greater than that of a sector.
        (first as u64, (end - first).max(1) as u64)
    }

    fn die_of(&self, page: u64) -> usize {
        (page % self.dies.len() as u64) as usize
    }

    /// When the next read of a die can begin, and what it adds to the programs of the die.
    fn read_begin(&self, die: &Die, ready: Nanos) -> (Nanos, Nanos) {
        let begin = die.read.max(ready);
        if die.program <= begin {
            return (begin, 0.0);
        }
        match self.suspend {
            Some(suspend) => (begin + suspend, suspend),
            // The page that is being programmed ends, and others wait.
            None if self.program > 0.0 => (begin + (die.program - begin) % self.program, 0.0),
            None => (begin, 0.0),
        }
    }

    /// When a die has read so many pages.
    fn read_end(&self, die: usize, ready: Nanos, pages: u64) -> Nanos {
        self.read_begin(&self.dies[die], ready).0 + pages as f64 * self.read
    }

    fn read(&mut self, now: Nanos, request: &Request) -> Nanos {
        let (first, count) = self.pages(request);
        let ready = now + self.read_overhead;
        let mut read = ready;
        for (i, pages) in share(count, self.dies.len() as u64) {
            let die = self.die_of(first + i);
            let (begin, suspended) = self.read_begin(&self.dies[die], ready);
            let end = begin + pages as f64 * self.read;
            if self.dies[die].program > begin {
                self.dies[die].program += suspended + end - begin;
                self.programmed = self.programmed.max(self.dies[die].program);
            }
            self.dies[die].read = end;
            read = read.max(end);
        }
        // The bus takes pages as they come, and the last one after all.
        self.bus = self.bus.max(ready + self.read) + self.transfer(request.bytes());
        self.bus.max(read + self.page.min(request.bytes()) as f64 * self.per_byte)
    }

    fn write(&mut self, now: Nanos, request: &Request, measured: Option<Nanos>) -> Nanos {
        let bytes = request.bytes();
        let arrived = measured.map_or_else(
            || {
                self.bus = self.bus.max(now + self.write_overhead) + self.transfer(bytes);
                self.bus
            },
            |latency| now + latency,
        );
        let merges = self.log_blocks.as_mut().map_or(0.0, |blocks| blocks.write(request.lbn, bytes));
        if merges > 0.0 {
            self.merge(arrived, merges);
        }
        self.buffer.used += bytes;
        self.buffer.open += bytes;
        let pages = self.buffer.open / self.page;
        self.buffer.open %= self.page;
        self.program(arrived, pages, self.page);
        arrived.max(self.buffer.make_room())
    }

    /// All dies copy blocks for so long.
    fn merge(&mut self, now: Nanos, time: Nanos) {
        for die in &mut self.dies {
            die.program = die.free().max(now) + time;
            self.programmed = self.programmed.max(die.program);
        }
    }

    fn flush(&mut self, now: Nanos, measured: Option<Nanos>) -> Nanos {
        let open = std::mem::take(&mut self.buffer.open);
        if open > 0 {
            self.program(now, 1, open);
        }
        self.programmed.max(now) + measured.unwrap_or(self.write_overhead)
    }

    /// Gives pages to the dies that are free first; `bytes` of each leave the buffer when it is programmed. Blocks of
    /// garbage that have to be collected for them go first.
    fn program(&mut self, now: Nanos, pages: u64, bytes: u64) {
        let collector = self.collector.as_mut();
        if let Some((blocks, time)) = collector.map(|c| (c.take((pages * self.page) as f64), c.time)) {
            self.give(now, blocks, time);
        }
        let mut left = pages;
        while left > 0 {
            let some = left.min(pages.div_ceil(self.dies.len() as u64));
            let end = self.give(now, 1, some as f64 * self.program);
            self.programmed = self.programmed.max(end);
            self.buffer.leaves_at(end, some * bytes);
            left -= some;
        }
    }

    /// Gives work to the dies that are free first, in as many shares as there are dies at most, and returns when the
    /// last is done.
    fn give(&mut self, now: Nanos, count: u64, time: Nanos) -> Nanos {
        let (share, mut left, mut end) = (count.div_ceil(self.dies.len() as u64), count, now);
        while left > 0
            && let Some(die) = self.dies.iter_mut().min_by(|a, b| a.free().total_cmp(&b.free()))
        {
            die.program = die.free().max(now) + left.min(share) as f64 * time;
            end = end.max(die.program);
            left -= left.min(share);
        }
        end
    }
}

/// Shares `count` among `among`: numbers from 0 of those that get some, and how much each gets.
fn share(count: u64, among: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..count.min(among)).map(move |i| (i, (count - i).div_ceil(among)))
}

impl Buffer {
    /// What was programmed by `now` leaves.
    fn leave(&mut self, now: Nanos) {
        while let Some((_, bytes)) = self.leaving.front().copied().filter(|(at, _)| *at <= now) {
            self.used -= bytes;
            self.leaving.pop_front();
        }
    }

    /// `bytes` leave at `at`, or with those before them.
    fn leaves_at(&mut self, at: Nanos, bytes: u64) {
        let last = self.leaving.back().map_or(at, |(last, _)| last.max(at));
        self.leaving.push_back((last, bytes));
    }

    /// When no more is in the buffer than there is room for. What leaves until then has left.
    fn make_room(&mut self) -> Nanos {
        let mut at = 0.0;
        while self.used > self.size
            && let Some((leaves, bytes)) = self.leaving.pop_front()
        {
            self.used -= bytes;
            at = leaves;
        }
        at
    }

    /// When there will be room for `bytes` more, or for as many as there ever is.
    fn room(&self, now: Nanos, bytes: u64) -> Nanos {
        let mut used = self.used;
        let wanted = bytes.min(self.size);
        for (at, leaving) in &self.leaving {
            if used + wanted <= self.size {
                break;
            }
            used -= leaving;
            if used + wanted <= self.size {
                return at.max(now);
            }
        }
        now
    }
}

impl Collector {
    fn new(garbage: &Garbage, model: &Ssd, size: u64) -> Collector {
        let block = garbage.block.0 as f64;
        let valid_pages = garbage.valid_fraction * block / model.page.0 as f64;
        let gain = block * (1.0 - garbage.valid_fraction);
        let most = (size as f64 * garbage.over_provisioning).max(block);
        // One block a die has to be erased, so that each can go on; at most half of all.
        let low = (block * f64::from(model.dies)).min(most / 2.0);
        Collector {
            rest: 0.0,
            time: valid_pages * (model.read_us + model.program_us) * US + garbage.erase_ms * MS,
            gain,
            // A drive that was switched on had collected as many as it keeps.
            erased: (most * garbage.erased_fraction).max(low),
            most,
            low,
        }
    }

    /// Takes erased pages for `bytes`, and says how many blocks have to be collected for them.
    fn take(&mut self, bytes: f64) -> u64 {
        self.erased -= bytes;
        if self.erased >= self.low {
            return 0;
        }
        let blocks = ((self.low - self.erased) / self.gain).ceil();
        self.erased += blocks * self.gain;
        blocks as u64
    }

    /// `bytes` need not be moved any more.
    fn erase(&mut self, bytes: f64) {
        self.erased = (self.erased + bytes).min(self.most);
    }

    /// Collects garbage for so long on so many dies; nothing if `time` is negative.
    fn idle(&mut self, time: Nanos, dies: usize) {
        if self.time == 0.0 {
            return self.erase(self.most);
        }
        self.rest += time.max(0.0) * dies as f64;
        let blocks = (self.rest / self.time).floor();
        self.rest -= blocks * self.time;
        self.erase(blocks * self.gain);
    }
}
