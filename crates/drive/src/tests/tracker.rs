//! The observer outside: what it believes, against what the drive does.

use super::*;
use crate::{Mechanism, Model, Tracker};
use std::time::Duration;

/// Sends random requests to a drive of `real`, one at a time, and returns by how many µs the costs of an observer
/// with `believed` were off, in the second half, ascending.
fn errors(real: &Model, believed: &Model, think_us: u64) -> Vec<f64> {
    let (mut drive, mut tracker) = (real.drive(77), Tracker::new(believed));
    let mut random = fastrand::Rng::with_seed(4);
    let (mut at, mut errors) = (Time(0), Vec::new());
    for n in 0..2000 {
        let lbn = random.u64(0..real.sectors() - 64);
        let request = if n % 5 == 0 { write(lbn, 8) } else { read(lbn, random.u32(1..64)) };
        let cost = tracker.cost(at, &request);
        tracker.dispatched(at, &request);
        let end = serve(&mut drive, at, request);
        tracker.completed(end.started, end.at, &request);
        if n >= 1000 {
            errors.push((end.at.since(at).as_secs_f64() - cost.as_secs_f64()).abs() * 1e6);
        }
        at = end.at.after(Duration::from_micros(random.u64(0..=think_us)));
    }
    errors.sort_by(f64::total_cmp);
    errors
}

#[test]
fn the_angle_of_the_platters_follows_from_completions() {
    let real = Model::named("cheetah-15k5").expect("a model");
    let errors_same = errors(&real, &real, 10_000);
    assert!(errors_same[990] < 1.0, "{:?}", &errors_same[980..]);
    // The drive's rotation is off by 1e-5: 10 µs a second, a quarter of a turn in 100 s.
    let mut off = real.clone();
    if let Mechanism::Rotational(keys) = &mut off.mechanism {
        keys.rotation_ms *= 1.00001;
    }
    let drifts = errors(&real, &off, 100_000);
    assert!(drifts[500] < 30.0 && drifts[950] < 100.0, "{} {}", drifts[500], drifts[950]);
}

#[test]
fn hits_that_are_not_expected_do_not_turn_the_platters() {
    let real = Model::named("cheetah-15k5").expect("a model");
    let mut believed = real.clone();
    if let Mechanism::Rotational(keys) = &mut believed.mechanism {
        keys.cache = None;
    }
    let (mut drive, mut tracker) = (real.drive(5), Tracker::new(&believed));
    let mut random = fastrand::Rng::with_seed(6);
    let (mut at, mut lbn, mut off) = (Time(0), 0, Vec::new());
    for n in 0..2000 {
        // Two of three requests read on behind the one before.
        lbn = if n % 3 == 0 { random.u64(0..real.sectors() - 64) } else { lbn + 8 };
        let cost = tracker.cost(at, &read(lbn, 8));
        tracker.dispatched(at, &read(lbn, 8));
        let end = serve(&mut drive, at, read(lbn, 8));
        tracker.completed(at, end.at, &read(lbn, 8));
        if n % 3 == 0 && n > 300 {
            off.push((end.at.since(at).as_secs_f64() - cost.as_secs_f64()).abs() * 1e6);
        }
        at = end.at.after(Duration::from_micros(random.u64(0..5000)));
    }
    off.sort_by(f64::total_cmp);
    assert!(off[off.len() * 9 / 10] < 60.0, "{:?}", off[off.len() * 9 / 10]);
}

#[test]
fn before_the_first_end_every_wait_is_half_a_turn() {
    let model = Model::named("cheetah-15k5").expect("a model");
    let tracker = Tracker::new(&model);
    // 2 ms, and 8 of 1228 sectors of a turn of 4 ms.
    assert_eq!(tracker.cost(us(12_345.0), &read(0, 8)).as_micros(), 2026);
}

#[test]
fn the_shadow_cache_has_what_the_cache_has() {
    let model = Model::named("cheetah-15k4").expect("a model");
    let (mut drive, mut tracker) = (model.drive(1), Tracker::new(&model));
    let mut random = fastrand::Rng::with_seed(8);
    let (mut at, mut hits) = (Time(0), 0);
    for _ in 0..5000 {
        let request = read(random.u64(0..5000), random.u32(1..64));
        let (believed, cost) = (tracker.is_hit(&request), tracker.cost(at, &request));
        tracker.dispatched(at, &request);
        let end = serve(&mut drive, at, request);
        tracker.completed(at, end.at, &request);
        assert_eq!((end.hit, end.at.since(at)), (believed, cost));
        hits += usize::from(end.hit);
        at = end.at;
    }
    assert!((1000..4500).contains(&hits), "{hits}");
}

#[test]
fn an_observer_that_is_told_no_ends_forgets() {
    let model = Model::named("disk-7200").expect("a model");
    let mut tracker = Tracker::new(&model);
    for n in 0..5000 {
        tracker.dispatched(us(n as f64), &read(n, 1));
    }
    // Neither what was never sent nor what was forgotten is an end.
    tracker.completed(us(0.0), us(9000.0), &write(1, 1));
    tracker.completed(us(0.0), us(9000.0), &read(1, 1));
    assert!(tracker.cost(us(10_000.0), &read(0, 1)) > Duration::ZERO);
}
