//! Write amplification of `sequentialize`: its classes and its choice of segments, by themselves.
//!
//! `cargo run --release -p lamina-layers --example amplification -- [FOLDER]`: loads of single blocks (uniform, Zipf
//! 1.0), and the writes of two traces of the folder, each repeated, on a log of 600 segments of which 85 or 90 percent
//! count. Printed is what is written for each block of the users' in the second half of the load, beside a log that
//! collects the segment with the most garbage and has one class (greedy). Heads, pages of the map and checkpoints are
//! not counted: the layer's own figures have these.

mod loads;
#[path = "../hit_rates/trace.rs"]
mod trace;

use lamina_layers::cache::sequentialize::classes::{Classes, Life, life_after};
use lamina_layers::cache::sequentialize::segments::Segments;
use std::path::Path;
use std::{env, io};
use trace::Trace;

/// Segments of the log.
const SEGMENTS: u32 = 600;
/// Free segments at which collection begins: two for each class of copies.
const FREE: u32 = 6;
/// Percent of the log that count.
const USED: [u64; 2] = [85, 90];
/// Blocks of the generated loads, and how often each is written on average.
const BLOCKS: u32 = 600 * 128;
const TURNS: usize = 40;
/// The traces, and how often each is repeated.
const TRACES: [(&str, usize); 2] = [("cloudphysics-vm-hour1", 4), ("spc-financial1-10k", 60)];

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
    lives: Vec<Life>,
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
        let (map, lives) = (vec![None; blocks as usize], vec![0; blocks as usize]);
        Log {
            by,
            slots,
            map,
            lives,
            segments,
            classes: Classes::new(6),
            open: [None; 6],
            clock: 0,
            copied: 0,
        }
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
        let life = &mut self.lives[block as usize];
        *life = life_after(*life, time.map(|time| self.clock.saturating_sub(time)));
        let class = match self.by {
            By::Greed => 0,
            By::Lamina => self.classes.of_user(*life, self.segments.live()),
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
        let time = of.time;
        let age = self.clock.saturating_sub(time);
        let live: Vec<u32> = self.segments.owners(victim).map(|(_, block)| block).collect();
        self.copied += live.len() as u64;
        for block in live {
            let to = match self.by {
                By::Greed => 0,
                By::Lamina => self.classes.of_copy(self.lives[block as usize], age, self.segments.live()),
            };
            self.append(to, block, time);
        }
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

fn row(name: &str, blocks: u32, load: &[u32]) {
    let of = |by| USED.map(|used| format!("{:.2}", amplification(by, blocks, used, load))).join(" / ");
    println!("| {name} | {} | {} |", of(By::Greed), of(By::Lamina));
}

fn main() -> io::Result<()> {
    println!("| 85 / 90 % | greedy | sequentialize |\n|---|---|---|");
    let count = TURNS * BLOCKS as usize;
    row("uniform", BLOCKS, &loads::uniform(BLOCKS).take(count).collect::<Vec<_>>());
    row("Zipf 1.0", BLOCKS, &loads::zipf(BLOCKS).take(count).collect::<Vec<_>>());
    let Some(folder) = env::args().nth(1) else { return Ok(()) };
    for (name, times) in TRACES {
        let file = Path::new(&folder).join(format!("{name}.csv.gz"));
        let Some(trace) = Trace::read(&file)? else { continue };
        let (blocks, load) = loads::writes(&trace);
        row(&format!("{} × {times}", trace.name), blocks, &load.repeat(times));
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
