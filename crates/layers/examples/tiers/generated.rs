//! Workloads that are generated, so that nothing can be tuned to given traces alone.

use super::trace::{BLOCK, Request, Trace};
use fastrand::Rng;
use lamina_block::Time;
use lamina_workload::web::{Files, Layout, Options};
use lamina_workload::{Action, Web, Workload};
use std::sync::Arc;

/// Requests of each.
const REQUESTS: usize = 200_000;

/// All of them.
pub fn all() -> Vec<Trace> {
    let mut traces = vec![
        zipf("zipf-0.9", 0.9, 0.3),
        zipf("zipf-0.7", 0.7, 0.5),
        scan(),
        phases(),
        uniform("uniform", 0.3),
        log(),
    ];
    traces.extend(web());
    traces
}

fn at(is_write: bool, block: u64, blocks: u64) -> Request {
    Request { is_write, bytes: block * BLOCK..(block + blocks) * BLOCK }
}

/// Popular ones lie anywhere: an odd factor permutes the numbers below a power of two.
fn spread(rank: u64, bits: u32) -> u64 {
    rank.wrapping_mul(0x9E37_79B9_7F4A_7C15 | 1) & ((1 << bits) - 1)
}

/// A rank below 2^bits by Zipf's law, by inversion of its continuous form.
fn rank(random: &mut Rng, bits: u32, skew: f64) -> u64 {
    let n = (1u64 << bits) as f64;
    let e = 1.0 - skew;
    (((n.powf(e) - 1.0) * random.f64() + 1.0).powf(1.0 / e) - 1.0) as u64
}

fn zipf(name: &str, skew: f64, writes: f64) -> Trace {
    let mut random = Rng::with_seed(1);
    let mut request =
        || at(random.f64() < writes, spread(rank(&mut random, 17, skew), 17) * 2, 1 + random.u64(0..2));
    Trace::new(name, (0..REQUESTS).map(|_| request()).collect())
}

fn uniform(name: &str, writes: f64) -> Trace {
    let mut random = Rng::with_seed(2);
    let mut request = || at(random.f64() < writes, random.u64(0..1 << 16) * 4, 1);
    Trace::new(name, (0..REQUESTS).map(|_| request()).collect())
}

/// A hot set that is asked for at random, and scans of 64 KiB a request that come through.
fn scan() -> Trace {
    let mut random = Rng::with_seed(3);
    let (mut place, mut left) = (0, 0);
    let mut request = || {
        if left == 0 && random.u32(0..2000) == 0 {
            (place, left) = (random.u64(0..1 << 20), 1000);
        }
        match left > 0 && random.bool() {
            true => {
                (place, left) = (place + 16, left - 1);
                at(false, (1 << 20) + place, 16)
            }
            false => at(random.f64() < 0.2, spread(rank(&mut random, 14, 0.6), 14) * 8, 1),
        }
    };
    Trace::new("scan", (0..REQUESTS).map(|_| request()).collect())
}

/// A hot set that is another one after each fifth.
fn phases() -> Trace {
    let mut random = Rng::with_seed(4);
    let request = |number: usize| {
        let phase = (5 * number / REQUESTS) as u64;
        let hot = spread(rank(&mut random, 14, 0.8), 14) * 4 + (phase << 17);
        at(random.f64() < 0.3, if random.u32(0..10) == 0 { random.u64(0..1 << 20) } else { hot }, 1)
    };
    Trace::new("phases", (0..REQUESTS).map(request).collect())
}

/// A database: a log that is only appended to, pages that are read and written at random.
fn log() -> Trace {
    let (mut random, mut end) = (Rng::with_seed(5), 0);
    let mut request = || match random.u32(0..4) {
        0 => {
            end += 2;
            at(true, (1 << 20) + end % (1 << 15), 2)
        }
        1 => at(true, spread(rank(&mut random, 16, 0.8), 16) * 2, 2),
        _ => at(false, spread(rank(&mut random, 16, 0.8), 16) * 2, 2),
    };
    Trace::new("log", (0..REQUESTS).map(|_| request()).collect())
}

/// The paper's web file server, direct, in the order in which its processes ask.
fn web() -> Option<Trace> {
    let layout = Layout { files: Some(50_000), ..Layout::default() };
    let files = Arc::new(Files::lay_out(&layout, 1 << 27, 1).ok()?);
    let options = Options { requests: REQUESTS as u64, ..Options::default() };
    let mut web = Web::new(options, files, 1);
    let (mut requests, mut ready) = (Vec::new(), std::collections::BinaryHeap::new());
    (0..web.clients()).for_each(|client| ready.push(std::cmp::Reverse((Time(0), client))));
    while let Some(std::cmp::Reverse((now, client))) = ready.pop() {
        let next = match web.next(client, now) {
            Action::Submit { request, .. } => {
                let bytes = request.lbn * 512..request.end() * 512;
                requests.push(Request { is_write: false, bytes });
                now
            }
            Action::Sleep(time) => now.after(time),
            // Answers come at once: the order of requests is what is wanted.
            Action::WaitFor(_) | Action::Join => now,
            Action::End => continue,
        };
        ready.push(std::cmp::Reverse((next, client)));
    }
    Some(Trace::new("web", requests))
}
