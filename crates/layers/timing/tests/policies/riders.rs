//! The busdriver delay where it pays: clients that read on, on a drive without a cache.

use crate::virtual_time::run;
use lamina_block::Time;
use lamina_drive::{Mechanism, Model, Op, Request};
use lamina_timing::schedule::{Keys, Name};
use lamina_workload::{Action, Workload};
use std::time::Duration;

/// Clients far from each other; each reads on from where it was, after a pause.
struct Streams {
    next: Vec<u64>,
    pause: Duration,
    pauses: Vec<bool>,
}

impl Workload for Streams {
    fn clients(&self) -> u32 {
        self.next.len() as u32
    }

    fn next(&mut self, client: u32, _now: Time) -> Action {
        let client = client as usize;
        self.pauses[client] = !self.pauses[client];
        if self.pauses[client] {
            return Action::Sleep(self.pause);
        }
        let request = Request { op: Op::Read, lbn: self.next[client], sectors: 8 };
        self.next[client] += 8;
        Action::Submit { request, wait: true }
    }
}

/// Requests a second of two clients at the ends of the disk, and how often the arm stood.
fn throughput(delay_ms: u64, pause_ms: u64, has_cache: bool) -> (f64, u64) {
    let mut model = Model::named("cheetah-15k4").expect("a model");
    let Mechanism::Linear(linear) = &mut model.mechanism else { panic!("a linear model") };
    linear.cache = linear.cache.take().filter(|_| has_cache);
    let mut keys = Keys { policy: Name::Cats, ..Keys::default() };
    keys.cats.busdriver_delay.0 = Duration::from_millis(delay_ms);
    let mut policy = keys.policy(Some(&model)).expect("a policy");
    let (next, pauses) = (vec![0, model.sectors() - 1_000_000], vec![false; 2]);
    let mut streams = Streams { next, pause: Duration::from_millis(pause_ms), pauses };
    let served = run(&mut streams, policy.as_mut(), &mut model.drive(1), 1, 4000);
    let span = served.last().map_or(1.0, |last| last.ended.0 as f64 / 1e9);
    (served.len() as f64 / span, policy.info()["waits"].as_u64().unwrap_or(0))
}

#[test]
fn the_arm_stands_where_that_pays_and_only_there() {
    for (pause_ms, has_cache, expected) in
        [(1, false, true), (3, false, true), (6, false, false), (1, true, false)]
    {
        let (with, waits) = throughput(7, pause_ms, has_cache);
        let (without, _) = throughput(0, pause_ms, has_cache);
        println!(
            "pause {pause_ms} ms, cache {has_cache}: {with:.1}/s, {without:.1}/s without; stood {waits} times"
        );
        if expected {
            assert!(
                with > 1.05 * without && waits > 1000,
                "{pause_ms} {has_cache}: {with} {without} {waits}"
            );
        } else {
            assert!(
                with >= 0.99 * without && waits < 100,
                "{pause_ms} {has_cache}: {with} {without} {waits}"
            );
        }
    }
}
