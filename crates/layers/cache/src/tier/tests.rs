//! Tests of whole tiers: what holds for all placements, and what `heat` is for.

use super::*;
use crate::testing::xorshift;
use std::collections::{BTreeMap, BTreeSet};

const PLACEMENTS: [Placement; 4] =
    [Placement::Static(30), Placement::RandomToSsd, Placement::Lru, Placement::Heat];

fn ask(is_write: bool, blocks: Range<u64>) -> Ask {
    Ask { is_write, bytes: blocks.start * BLOCK..blocks.end * BLOCK }
}

/// A tier, and what is believed of it by its plans alone.
struct Check {
    tier: Tier,
    plan: Plan,
    /// Blocks that may have a copy, and whether it is dirty.
    copies: BTreeMap<u64, bool>,
}

impl Check {
    fn new(blocks: usize, placement: Placement) -> Check {
        Check { tier: Tier::new(blocks, placement), plan: Plan::default(), copies: BTreeMap::new() }
    }

    /// Asks, checks the plan, and says how many blocks the fast device served.
    fn ask(&mut self, ask: &Ask) -> u64 {
        let Check { tier, plan, copies } = self;
        plan.clear();
        tier.ask(ask, plan);
        let served: Vec<u64> = plan.fast.iter().chain(&plan.slow).flat_map(Clone::clone).collect();
        let once: BTreeSet<u64> = served.iter().copied().collect();
        assert_eq!(once, ask.blocks().collect(), "each block is served");
        assert_eq!(served.len(), once.len(), "and once");
        for block in plan.fast.iter().flat_map(Clone::clone) {
            assert!(ask.is_write || copies.contains_key(&block), "{block} was never copied");
            *copies.entry(block).or_default() |= ask.is_write;
        }
        for block in plan.slow.iter().flat_map(Clone::clone) {
            assert_ne!(copies.get(&block), Some(&true), "the home of {block} is old");
        }
        for block in plan.fill.iter().flat_map(Clone::clone) {
            assert!(plan.slow.iter().any(|range| range.contains(&block)) && !ask.is_write);
            copies.insert(block, false);
        }
        for block in plan.destage.iter().flat_map(Clone::clone) {
            assert_eq!(copies.insert(block, false), Some(true), "only dirty blocks are written home");
        }
        assert!(tier.resident() <= tier.memory()[0] / 10, "no more copies than cells");
        count(&plan.fast)
    }

    fn dirty(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        self.copies.iter().filter(|(_, dirty)| **dirty).for_each(|(block, _)| push(&mut ranges, *block));
        ranges
    }

    fn measured(&mut self, kind: Kind, ms: u64) {
        self.tier.measured(Work::Read(kind), 1, Duration::from_millis(ms));
    }
}

#[test]
fn what_is_dirty_is_served_fast_until_it_was_written_home() {
    for placement in PLACEMENTS {
        for blocks in [1, 50, 1000] {
            let (mut check, mut random) = (Check::new(blocks, placement), xorshift(blocks as u64));
            for number in 0..6000 {
                let start = random() % (4 * blocks as u64);
                check.ask(&ask(random() % 3 == 0, start..start + 1 + random() % 6));
                if number % 500 == 0 {
                    assert_eq!(check.tier.dirty(), check.dirty(), "{placement:?}, {blocks} blocks");
                }
                if number % 100 == 0 {
                    check.measured(Kind::Random, 5 + random() % 5);
                }
            }
        }
    }
}

#[test]
fn placements_change_and_nothing_dirty_is_lost() {
    let (mut check, mut random) = (Check::new(300, Placement::Lru), xorshift(9));
    for number in 0..20_000 {
        if number % 1000 == 0 {
            check.tier.place(PLACEMENTS[number / 1000 % PLACEMENTS.len()]);
        }
        let start = random() % 1000;
        check.ask(&ask(random() % 2 == 0, start..start + 1));
    }
    assert_eq!(check.tier.dirty(), check.dirty());
}

/// Hits of a hot set of 400 blocks in the second half, while long sequential reads come through.
fn hot(placement: Placement) -> u64 {
    let (mut check, mut random) = (Check::new(640, placement), xorshift(5));
    let mut hits = 0;
    for number in 0..20_000u64 {
        let start = random() % 400 * 100;
        let hot = check.ask(&ask(false, start..start + 1));
        hits += if number >= 10_000 { hot } else { 0 };
        check.measured(Kind::Random, 8);
        let scan = 1_000_000 + 4 * number;
        check.ask(&ask(false, scan..scan + 4));
        check.measured(Kind::Sequential, 1);
    }
    hits
}

#[test]
fn a_scan_leaves_what_is_hot() {
    let (lru, heat) = (hot(Placement::Lru), hot(Placement::Heat));
    assert!(heat > 9_000 && heat > 2 * lru, "of 10,000: heat {heat}, LRU {lru}");
}

#[test]
fn what_is_only_written_gives_way_to_what_is_read() {
    let (mut check, mut random) = (Check::new(640, Placement::Heat), xorshift(6));
    let mut hits = 0;
    for number in 0..20_000u64 {
        check.ask(&ask(true, 1_000_000 + 2 * number..1_000_001 + 2 * number));
        let start = random() % 400 * 100;
        let hit = check.ask(&ask(false, start..start + 1));
        hits += if number >= 10_000 { hit } else { 0 };
        check.measured(Kind::Random, 8);
    }
    assert!(hits > 8_000, "{hits} of 10,000");
}

#[test]
fn the_tier_says_why() {
    let mut check = Check::new(64, Placement::Heat);
    check.ask(&ask(true, 7..8));
    let standing = check.tier.explain(7);
    assert!(standing.is_dirty && standing.rank.is_some() && standing.least.is_none());
    assert_eq!((standing.extent.writes, standing.extent.reads), (1.0, 0.0));
    assert_eq!(check.tier.explain(8).rank, None);
    check.ask(&ask(false, 1000..1001));
    let top = check.tier.top(5);
    assert_eq!(top.len(), 1, "a write costs the slow device nothing yet");
    assert_eq!(top[0].0, 1000 / monitor::EXTENT);
}

#[test]
fn it_takes_ten_bytes_for_a_block_and_pages() {
    let mut tier = Tier::new(1 << 20, Placement::Heat);
    let mut plan = Plan::default();
    (0..100_000).for_each(|block| tier.ask(&ask(false, block * 7..block * 7 + 1), &mut plan));
    let [cells, pages] = tier.memory();
    assert!(cells <= 10 << 20 && pages <= 16 << 20, "{cells} and {pages} bytes");
}
