//! Replays a trace over models of a fast and a slow device, in virtual time.
//!
//! ```text
//!      trace ──depth at a time──▶ policy ──plan──┬─ fast, slow ──▶ clients wait
//!                                                └─ fill, fetch, destage ──▶ background: a device that no client
//!                                                                            waits for takes the next
//! ```
//!
//! Closed loop, no time to think: a client's next request comes when the one before has ended. Moves take their time on
//! both devices. A slow device does one move at a time, and not while a client waits for it; but a move that was begun
//! ends first. A client waits as long as more than [`BACKLOG`] moves wait, so that no policy gets ahead of its device.
//!
//! What is left out: a block that is on the fast device in part counts as there, for all policies alike.

use super::plan::{Ask, Plan, Policy, count};
use super::trace::{BLOCK, Request as Asked, Trace};
use lamina_block::Time;
use lamina_drive::{Drive, Model, Op, Request, SECTOR};
use std::collections::VecDeque;
use std::ops::Range;

/// Moves that may wait for the slow device before clients do.
const BACKLOG: usize = 256;
/// Moves that a fast device does at a time.
const FAST_MOVES: usize = 8;

/// What a policy makes of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Score {
    /// From the first request that counts to the end of the last, in seconds.
    pub seconds: f64,
    /// The same until all moves are done and all dirty blocks are at home.
    pub drained: f64,
    /// Blocks asked for, and those of them that the fast device served.
    pub asked: u64,
    pub hits: u64,
    /// Blocks copied to the fast device, and blocks written home.
    pub filled: u64,
    pub destaged: u64,
}

impl Score {
    /// Bytes moved between the devices.
    pub fn moved(&self) -> u64 {
        (self.filled + self.destaged) * BLOCK
    }
}

/// What a request under way at a device is for.
#[derive(Clone, Copy)]
enum Job {
    /// A client waits for it.
    Client(usize),
    Move,
}

struct Device {
    drive: Drive,
    sectors: u64,
    moves_max: usize,
    /// By the number of the request.
    under_way: Vec<(u64, Job)>,
    moves: VecDeque<(Op, Range<u64>, Job)>,
    next: u64,
}

impl Device {
    fn new(model: &Model, moves_max: usize) -> Device {
        let (sectors, drive) = (model.sectors(), model.drive(1));
        Device { drive, sectors, moves_max, under_way: Vec::new(), moves: VecDeque::new(), next: 0 }
    }

    fn submit(&mut self, now: Time, op: Op, blocks: &Range<u64>, job: Job) {
        let per_block = BLOCK / SECTOR;
        let sectors = (blocks.end - blocks.start) * per_block;
        // The fast device has its blocks anywhere: what its model asks of addresses is to differ.
        let lbn = (blocks.start * per_block) % (self.sectors - sectors);
        self.drive.submit(now, self.next, Request { op, lbn, sectors: sectors as u32 });
        self.under_way.push((self.next, job));
        self.next += 1;
    }

    /// Begins moves if no client waits.
    fn go_on(&mut self, now: Time) {
        let is_client = |job: &Job| matches!(job, Job::Client(..));
        while self.under_way.len() < self.moves_max
            && !(self.moves_max == 1 && self.under_way.iter().any(|(_, job)| is_client(job)))
            && let Some((op, blocks, job)) = self.moves.pop_front()
        {
            self.submit(now, op, &blocks, job);
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.moves.is_empty()
    }
}

/// Replays of traces.
pub struct Engine<'a> {
    policy: &'a mut dyn Policy,
    capacity: usize,
    fast: Device,
    slow: Device,
    now: Time,
    /// Requests of each client under way at devices.
    clients: Vec<usize>,
    plan: Plan,
    score: Score,
}

impl<'a> Engine<'a> {
    pub fn new(policy: &'a mut dyn Policy, capacity: usize, models: [&Model; 2], depth: usize) -> Engine<'a> {
        Engine {
            policy,
            capacity,
            fast: Device::new(models[0], FAST_MOVES),
            slow: Device::new(models[1], 1),
            now: Time(0),
            clients: vec![0; depth],
            plan: Plan::default(),
            score: Score::default(),
        }
    }

    /// Replays a trace.
    pub fn run(mut self, trace: &Trace) -> Score {
        let mut requests = trace.requests.iter().peekable();
        loop {
            while let Some(client) = self.clients.iter().position(|under_way| *under_way == 0)
                && self.slow.moves.len() <= BACKLOG
                && let Some(asked) = requests.next()
            {
                self.ask(client, asked);
            }
            let is_last = requests.peek().is_none() && self.clients.iter().all(|under_way| *under_way == 0);
            if is_last || !self.step() {
                break;
            }
        }
        self.score.seconds = self.now.0 as f64 / 1e9;
        self.drain();
        self.score
    }

    fn ask(&mut self, client: usize, asked: &Asked) {
        let mut plan = std::mem::take(&mut self.plan);
        plan.clear();
        let ask = Ask { is_write: asked.is_write, bytes: asked.bytes.clone() };
        self.policy.ask(&ask, &mut plan);
        let (blocks, fast) = (ask.blocks(), count(&plan.fast));
        assert_eq!(fast + count(&plan.slow), blocks.end - blocks.start, "each block is served once");
        assert!(self.policy.resident() <= self.capacity, "the fast device has no more blocks");
        self.score.asked += blocks.end - blocks.start;
        self.score.hits += fast;
        let op = if asked.is_write { Op::Write } else { Op::Read };
        for (device, ranges) in [(&mut self.slow, &plan.slow), (&mut self.fast, &plan.fast)] {
            ranges.iter().for_each(|range| device.submit(self.now, op, range, Job::Client(client)));
        }
        self.clients[client] = plan.slow.len() + plan.fast.len();
        self.moves(&plan);
        self.plan = plan;
    }

    /// What a plan moves goes to the devices.
    fn moves(&mut self, plan: &Plan) {
        self.score.filled += count(&plan.fill) + count(&plan.fetch);
        self.score.destaged += count(&plan.destage);
        for range in plan.fill.iter().chain(&plan.fetch) {
            self.fast.moves.push_back((Op::Write, range.clone(), Job::Move));
        }
        for range in &plan.fetch {
            self.slow.moves.push_back((Op::Read, range.clone(), Job::Move));
        }
        for range in &plan.destage {
            self.fast.moves.push_back((Op::Read, range.clone(), Job::Move));
            self.slow.moves.push_back((Op::Write, range.clone(), Job::Move));
        }
        self.fast.go_on(self.now);
        self.slow.go_on(self.now);
    }

    /// The next end of a request at a device; false if nothing is under way.
    fn step(&mut self) -> bool {
        let next = [&self.fast, &self.slow].into_iter().filter_map(|device| device.drive.next()).min();
        let Some(next) = next else { return false };
        self.now = self.now.max(next);
        for is_slow in [false, true] {
            let device = if is_slow { &mut self.slow } else { &mut self.fast };
            while let Some(ended) = device.drive.completed(self.now) {
                let Some(place) = device.under_way.iter().position(|(id, ..)| *id == ended.id) else {
                    continue;
                };
                if let (_, Job::Client(client)) = device.under_way.swap_remove(place) {
                    self.clients[client] -= 1;
                }
            }
            device.go_on(self.now);
        }
        true
    }

    /// Moves what waits, and writes home what is dirty.
    fn drain(&mut self) {
        for range in self.policy.dirty() {
            self.slow.moves.push_back((Op::Write, range, Job::Move));
        }
        self.slow.go_on(self.now);
        while !(self.slow.is_idle() && self.fast.is_idle()) && self.step() {}
        self.score.drained = self.now.0 as f64 / 1e9;
    }
}
