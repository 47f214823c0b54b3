//! Queues: who is served when, on every mechanism.

use super::*;
use crate::{Curve, Mechanism, Model, Order, Rotational, Seek, WriteBuffer};
use lamina_block::Bytes;
use std::time::Duration;

/// A disk whose seeks take 1 µs a cylinder of 1000 sectors and whose turns take 0.1 ms.
fn disk(depth: u32, order: Order, age_limit_ms: f64) -> Model {
    let seek = Seek::Curve(Curve { alpha_ms: 0.0, beta_ms: 0.0, gamma_ms: 0.001 });
    let keys = Rotational { rotation_ms: 0.1, depth, order, age_limit_ms, seek, ..Rotational::default() };
    Model { name: "disk".into(), size: Bytes(1 << 40), mechanism: Mechanism::Rotational(Box::new(keys)) }
}

/// The order in which requests end that arrive together.
fn order(model: &Model, cylinders: &[u64]) -> Vec<u64> {
    let mut drive = model.drive(1);
    for (id, cylinder) in cylinders.iter().enumerate() {
        drive.submit(Time(0), id as u64, read(cylinder * 1000, 1));
    }
    assert_eq!(drive.in_flight(), cylinders.len());
    drain(&mut drive).iter().map(|end| end.id).collect()
}

#[test]
fn the_order_of_arrival_and_the_shortest() {
    let cylinders = [50_000, 85_000, 10_000, 51_000, 80_000];
    for (depth, expected) in [
        (1, [0, 1, 2, 3, 4]),
        // The first begins at once. Then the nearest of two, of three, and of all.
        (2, [0, 1, 3, 4, 2]),
        (3, [0, 3, 4, 1, 2]),
        (32, [0, 3, 4, 1, 2]),
    ] {
        assert_eq!(order(&disk(depth, Order::Shortest, 1e6), &cylinders), expected, "{depth}");
    }
    assert_eq!(order(&disk(32, Order::Fifo, 1e6), &cylinders), [0, 1, 2, 3, 4]);
    // After 50 ms all are too old.
    assert_eq!(order(&disk(32, Order::Shortest, 49.0), &cylinders), [0, 1, 2, 3, 4]);
}

#[test]
fn the_shortest_is_that_from_where_the_arm_goes_by_itself() {
    let mut model = disk(32, Order::Shortest, 1e6);
    if let Mechanism::Rotational(keys) = &mut model.mechanism {
        keys.write_buffer = Some(WriteBuffer { size: Bytes(1 << 20), hit_ms: Some(1.0) });
    }
    let mut drive = model.drive(1);
    drive.submit(Time(0), 0, write(50_000_000, 1));
    // While the write is in the buffer, the arm goes to its place.
    drive.submit(Time(0), 1, read(1_000_000, 1));
    drive.submit(Time(0), 2, read(49_000_000, 1));
    let ends: Vec<u64> = drain(&mut drive).iter().map(|end| end.id).collect();
    assert_eq!(ends, [0, 2, 1]);
}

#[test]
fn a_completion_is_there_when_it_was_said() {
    let mut drive = disk(1, Order::Fifo, 0.0).drive(1);
    assert_eq!((drive.next(), drive.in_flight()), (None, 0));
    drive.submit(Time(500), 3, read(0, 1));
    let at = drive.next().expect("one is under way");
    assert_eq!(drive.completed(Time(at.0 - 1)), None);
    let end = drive.completed(at).expect("it ended");
    assert_eq!((end.id, end.started, end.at), (3, Time(500), at));
    assert_eq!((drive.completed(at), drive.next()), (None, None));
}

#[test]
fn every_model_is_deterministic_and_ends_what_it_began() {
    for name in Model::NAMES {
        let model = Model::named(name).expect("a model");
        let run = |seed: u64| {
            let (mut drive, mut random) = (model.drive(seed), fastrand::Rng::with_seed(5));
            let (mut ends, mut at) = (Vec::new(), Time(0));
            for id in 0..500 {
                at = at.after(Duration::from_nanos(random.u64(0..1_000_000)));
                let (lbn, sectors) = (random.u64(0..model.sectors() - 64), random.u32(1..64));
                let op =
                    [Op::Read, Op::Write, Op::Read, Op::Write, Op::Flush, Op::Discard][random.usize(0..6)];
                while let Some(end) = drive.completed(at) {
                    ends.push(end);
                }
                drive.submit(at, id, Request { op, lbn, sectors });
            }
            ends.extend(drain(&mut drive));
            ends
        };
        let ends = run(1);
        assert_eq!(ends, run(1), "{name}");
        assert!(
            ends.is_sorted_by_key(|end| end.at) && ends.iter().all(|end| end.started <= end.at),
            "{name}"
        );
        let mut ids: Vec<u64> = ends.iter().map(|end| end.id).collect();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(0..500), "{name}");
    }
}

#[test]
fn moments_that_go_backwards_are_taken_for_the_latest() {
    let mut drive = Model::named("cheetah-15k4").expect("a model").drive(1);
    drive.submit(us(100.0), 1, read(0, 1));
    drive.submit(us(50.0), 2, read(0, 1));
    assert!(drain(&mut drive).iter().all(|end| end.started >= us(100.0)));
}
