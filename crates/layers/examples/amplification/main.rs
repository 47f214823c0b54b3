//! Write amplification of `sequentialize`: its classes and its choice of segments, by themselves.
//!
//! `cargo run --release -p lamina-layers --example amplification -- [FOLDER]`: loads of single blocks (uniform, Zipf
//! 1.0), and the writes of two traces of the folder, each repeated, on a log of 600 segments of which 85 or 90 percent
//! count. Printed is what is written for each block of the users' in the second half of the load, beside a log that
//! collects the segment with the most garbage and has one class (greedy). Heads, pages of the map and checkpoints are
//! not counted: the layer's own figures have these.

#[path = "../hit_rates/trace.rs"]
mod trace;

use lamina_layers::cache::sequentialize::classes::Classes;
use lamina_layers::cache::sequentialize::segments::Segments;
use std::path::Path;
use std::{env, io};
use trace::Trace;

/// Segments of the log.
const SEGMENTS: u32 = 600;
/// Free segments at which collection begins.
const FREE: u32 = 8;
/// Percent of the log that count.
const USED: [u64; 2] = [85, 90];
/// Blocks of the generated loads, and how often each is written on average.
const BLOCKS: u32 = 600 * 128;
const TURNS: u64 = 40;
/// The traces, and how often each is repeated.
const TRACES: [(&str, u64); 2] = [("cloudphysics-vm-hour1", 4), ("spc-financial1-10k", 60)];

/// What is chosen by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Greed,
    Lamina,
}

/// A log in which every block has been written once.
struct Log {
    by: By,
    slots: u32,
    map: Vec<Option<(u32, u32)>>,
    segments: Segments,
    classes: Classes,
    open: [Option<u32>; 6],
    clock: u64,
    copied: u64,
}

impl Log {
    fn new(by: By, blocks: u32, used: u64) -> Log {
        let slots = (u64::from(blocks) * 100 / used).div_ceil(u64::from(SEGMENTS)) as u32;
        let segments = Segments::new(SEGMENTS, slots);
        let map = vec![None; blocks as usize];
        Log { by, slots, map, segments, classes: Classes::new(6), open: [None; 6], clock: 0, copied: 0 }
    }

    /// Appends a block, and gives up its former place.
    fn append(&mut self, class: u8, block: u32, time: u64) {
        let open = self.open[usize::from(class)].filter(|open| self.segments.get(*open).end < self.slots);
        let number = open.unwrap_or_else(|| {
            self.open[usize::from(class)].into_iter().for_each(|full| self.segments.close(full));
            self.segments.open(class, time).expect("collection keeps some free")
        });
        self.open[usize::from(class)] = Some(number);
        let at = self.segments.get(number).end;
        self.segments.get_mut(number).end += 1;
        if let Some((segment, at)) = self.map[block as usize].replace((number, at)) {
            self.segments.left(segment, at);
        }
        self.segments.came(number, at, block, time);
    }

    fn write(&mut self, block: u32) {
        let time = self.map[block as usize].map(|(segment, _)| self.segments.get(segment).time);
        let class = match self.by {
            By::Greed => 0,
            By::Lamina => self.classes.of_user(time.map(|time| self.clock.saturating_sub(time))),
        };
        self.append(class, block, self.clock);
        self.clock += 1;
        while self.segments.free() < FREE {
            self.collect();
        }
    }

    fn collect(&mut self) {
        let empty: Vec<u32> = self.segments.emptied(u64::MAX).collect();
        if !empty.is_empty() {
            self.segments.begin_freeing(&empty);
            return self.segments.end_freeing(&empty, true);
        }
        let victim = match self.by {
            By::Greed => self.greedy(),
            By::Lamina => self.segments.victim(self.clock, false),
        };
        let victim = victim.expect("there is garbage");
        let of = self.segments.get(victim);
        let (class, time) = (of.class, of.time);
        let age = self.clock.saturating_sub(time);
        self.classes.collected(class, age);
        let to = if self.by == By::Greed { 0 } else { self.classes.of_copy(class, age) };
        let live: Vec<u32> = self.segments.owners(victim).map(|(_, block)| block).collect();
        self.copied += live.len() as u64;
        live.into_iter().for_each(|block| self.append(to, block, time));
    }

    fn greedy(&self) -> Option<u32> {
        let open = self.open[0];
        let closed = self.segments.iter().filter(|(number, of)| of.sequence > 0 && Some(*number) != open);
        closed.min_by_key(|(_, of)| of.live).map(|(number, _)| number)
    }
}

/// Blocks written for each block of the users', in the second half of `load`.
fn amplification(by: By, blocks: u32, used: u64, load: &[u32]) -> f64 {
    let mut log = Log::new(by, blocks, used);
    let (first, second) = load.split_at(load.len() / 2);
    (0..blocks).chain(first.iter().copied()).for_each(|block| log.write(block));
    let before = log.copied;
    second.iter().for_each(|block| log.write(*block));
    1.0 + (log.copied - before) as f64 / second.len() as f64
}

/// Numbers below 1, the same every time (splitmix64).
fn random() -> impl FnMut() -> f64 {
    let mut state = 7u64;
    move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) as f64 / 2f64.powi(64)
    }
}

fn uniform() -> Vec<u32> {
    let mut random = random();
    (0..TURNS * u64::from(BLOCKS)).map(|_| (random() * f64::from(BLOCKS)) as u32).collect()
}

/// The block of rank r is written in proportion to 1/r; ranks are scattered over the addresses.
fn zipf() -> Vec<u32> {
    let mut random = random();
    let mut blocks: Vec<u32> = (0..BLOCKS).collect();
    for last in (1..blocks.len()).rev() {
        blocks.swap(last, (random() * (last + 1) as f64) as usize);
    }
    let mut sum = 0.0;
    let upto: Vec<f64> = (1..=BLOCKS)
        .map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        })
        .collect();
    let rank = |at: f64| upto.partition_point(|upto| *upto <= at).min(BLOCKS as usize - 1);
    (0..TURNS * u64::from(BLOCKS)).map(|_| blocks[rank(random() * sum)]).collect()
}

/// The blocks that a trace writes, in their order, with numbers from 0 on in the order of their addresses.
fn writes(trace: &Trace, times: u64) -> (u32, Vec<u32>) {
    let writes = trace.requests.iter().filter(|request| request.is_write);
    let all: Vec<u64> = writes.flat_map(trace::Request::blocks).collect();
    let mut places = all.clone();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() <= trace.footprint, "what is written is part of what is used");
    let number = |block: &u64| places.partition_point(|place| place < block) as u32;
    let once: Vec<u32> = all.iter().map(number).collect();
    let load = (0..times).flat_map(|_| once.iter().copied()).collect();
    (places.len() as u32, load)
}

fn row(name: &str, blocks: u32, load: &[u32]) {
    let of = |by| USED.map(|used| format!("{:.2}", amplification(by, blocks, used, load))).join(" / ");
    println!("| {name} | {} | {} |", of(By::Greed), of(By::Lamina));
}

fn main() -> io::Result<()> {
    println!("| 85 / 90 % | greedy | sequentialize |\n|---|---|---|");
    row("uniform", BLOCKS, &uniform());
    row("Zipf 1.0", BLOCKS, &zipf());
    let Some(folder) = env::args().nth(1) else { return Ok(()) };
    for (name, times) in TRACES {
        let file = Path::new(&folder).join(format!("{name}.csv.gz"));
        let Some(trace) = Trace::read(&file)? else { continue };
        let (blocks, load) = writes(&trace, times);
        row(&format!("{} × {times}", trace.name), blocks, &load);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_which_little_counts_copies_little() {
        let load: Vec<u32> = (0..20_000).map(|turn| turn * 7 % 2000).collect();
        let of = |by| amplification(by, 2000, 50, &load);
        assert!((1.0..1.2).contains(&of(By::Greed)) && (1.0..1.2).contains(&of(By::Lamina)));
    }
}
