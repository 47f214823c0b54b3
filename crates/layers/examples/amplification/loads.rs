//! Loads of single blocks that are written: generated, and from traces.

use super::trace::{self, Trace};

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

/// Blocks of `0..blocks`, each as often as any other.
pub fn uniform(blocks: u32) -> impl Iterator<Item = u32> {
    let mut random = random();
    std::iter::repeat_with(move || (random() * f64::from(blocks)) as u32)
}

/// The block of rank r is written in proportion to 1/r; ranks are scattered over the addresses.
pub fn zipf(blocks: u32) -> impl Iterator<Item = u32> {
    let mut random = random();
    let mut places: Vec<u32> = (0..blocks).collect();
    for last in (1..places.len()).rev() {
        places.swap(last, (random() * (last + 1) as f64) as usize);
    }
    let (mut sum, last) = (0.0, places.len().saturating_sub(1));
    let upto: Vec<f64> = (1..=blocks)
        .map(|rank| {
            sum += 1.0 / f64::from(rank);
            sum
        })
        .collect();
    let rank = move |at: f64| upto.partition_point(|upto| *upto <= at).min(last);
    std::iter::repeat_with(move || places[rank(random() * sum)])
}

/// The blocks that a trace writes, in their order, with numbers from 0 on in the order of their addresses.
pub fn writes(trace: &Trace) -> (u32, Vec<u32>) {
    let writes = trace.requests.iter().filter(|request| request.is_write);
    let all: Vec<u64> = writes.flat_map(trace::Request::blocks).collect();
    let mut places = all.clone();
    places.sort_unstable();
    places.dedup();
    assert!(places.len() <= trace.footprint, "what is written is part of what is used");
    let number = |block: &u64| places.partition_point(|place| place < block) as u32;
    (places.len() as u32, all.iter().map(number).collect())
}
