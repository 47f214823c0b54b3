//! Schedulers over the disk of 15000 turns a minute, against DiskSim's Cheetah 15K.5: mean response times of Poisson
//! random reads of 4 KiB.

use super::*;
use crate::Model;
use std::time::Duration;

#[derive(Clone, Copy, Debug)]
enum Policy {
    Fcfs,
    CLook,
    Look,
    Sstf,
    Sptf,
}

const POLICIES: [Policy; 5] = [Policy::Fcfs, Policy::CLook, Policy::Look, Policy::Sstf, Policy::Sptf];

/// Which of the waiting requests is next, when the arm is at `arm` and moves up or not.
fn pick(
    policy: Policy,
    waiting: &[(Time, Request)],
    arm: u64,
    up: &mut bool,
    drive: &Drive,
    now: Time,
) -> usize {
    let lbns = || waiting.iter().map(|(_, request)| request.lbn).enumerate();
    let nearest = |up: bool| {
        lbns()
            .filter(|(_, lbn)| if up { *lbn >= arm } else { *lbn <= arm })
            .min_by_key(|(_, lbn)| lbn.abs_diff(arm))
    };
    let found = match policy {
        Policy::Fcfs => Some((0, 0)),
        Policy::CLook => nearest(true).or_else(|| lbns().min_by_key(|(_, lbn)| *lbn)),
        Policy::Look => nearest(*up).or_else(|| {
            *up = !*up;
            nearest(*up)
        }),
        Policy::Sstf => lbns().min_by_key(|(_, lbn)| lbn.abs_diff(arm)),
        Policy::Sptf => {
            let costs = waiting.iter().map(|(_, request)| drive.cost(now, request)).enumerate();
            costs.min_by_key(|(_, cost)| *cost).map(|(i, _)| (i, 0))
        }
    };
    found.expect("one waits").0
}

/// The mean response time in ms of `count` requests, `rate` a second.
fn response(policy: Policy, rate: f64, count: usize, seed: u64) -> f64 {
    let model = Model::named("cheetah-15k5").expect("a model");
    let (mut drive, mut random) = (model.drive(seed), fastrand::Rng::with_seed(seed));
    let (mut waiting, mut sum): (Vec<(Time, Request)>, f64) = (Vec::new(), 0.0);
    let (mut now, mut next, mut arm, mut up, mut served) = (Time(0), Time(0), 0, true, 0);
    while served < count {
        while next <= now {
            waiting.push((next, read(random.u64(0..model.sectors() - 8), 8)));
            next = next.after(Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate));
        }
        if waiting.is_empty() {
            now = next;
            continue;
        }
        let (arrived, request) = waiting.remove(pick(policy, &waiting, arm, &mut up, &drive, now));
        now = serve(&mut drive, now, request).at;
        arm = request.end();
        served += 1;
        sum += now.since(arrived).as_secs_f64() * 1e3;
    }
    sum / count as f64
}

/// Requests a second, and DiskSim's response times, for FCFS where it is not saturated.
const DISKSIM: [(f64, [Option<f64>; 5]); 4] = [
    (100.0, [Some(10.16), Some(9.65), Some(9.25), Some(9.11), Some(8.78)]),
    (150.0, [Some(26.65), Some(15.37), Some(14.00), Some(13.57), Some(11.90)]),
    (200.0, [None, Some(30.17), Some(25.99), Some(25.78), Some(17.79)]),
    (250.0, [None, Some(74.67), Some(68.92), Some(70.29), Some(29.30)]),
];

#[test]
fn response_times_are_within_4_percent_of_disksim() {
    for (rate, row) in DISKSIM {
        for (policy, expected) in POLICIES.into_iter().zip(row) {
            let Some(expected) = expected else { continue };
            let found = response(policy, rate, 100_000, 1);
            println!("{policy:?} {rate}/s: {found:.2} ms, DiskSim {expected}");
            assert!(
                (found / expected - 1.0).abs() < 0.04,
                "{policy:?} {rate}/s: {found:.2} ms, DiskSim {expected}"
            );
        }
    }
}
