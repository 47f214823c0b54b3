//! The linear model: every request by hand.

use super::*;
use crate::{Linear, Mechanism, Model};
use lamina_block::Bytes;

fn paper() -> Model {
    Model::named("cheetah-15k4").expect("a model")
}

#[test]
fn the_papers_line_and_hits() {
    // D is 143,359,375 sectors: 73.4 GB.
    let model = paper();
    let sectors = model.sectors();
    assert_eq!(sectors, 143_359_375);
    let line = |distance: u64| 4.25 + 5.25 * distance as f64 / sectors as f64;
    let requests = [
        read(0, 8),            // at the arm
        read(8, 8),            // the prefetch of the first
        read(71_679_696, 8),   // half a disk from sector 8
        read(71_679_704, 65),  // one sector more than the prefetch has
        write(143_359_367, 8), // a write
        read(143_359_367, 8),  // of a write: a hit
        Request { op: Op::Discard, lbn: 0, sectors: 8 },
        FLUSH,
        read(500, 1), // the arm is behind the write: the hit did not move it
    ];
    let expected = [
        line(0),
        0.25,
        line(71_679_688),
        line(0),
        line(143_359_367 - 71_679_769),
        0.25,
        0.25,
        0.25,
        line(143_359_375 - 500),
    ];
    assert_ms(&services(&mut model.drive(1), &requests), &expected);
}

#[test]
fn hits_are_told_before_and_after() {
    let mut drive = paper().drive(1);
    assert!(!drive.is_hit(&read(100, 8)));
    assert!(!serve(&mut drive, Time(0), read(100, 8)).hit);
    assert!(drive.is_hit(&read(108, 64)) && !drive.is_hit(&read(108, 65)) && !drive.is_hit(&write(108, 1)));
    let hit = serve(&mut drive, us(10_000.0), read(108, 64));
    assert!(hit.hit && hit.at == us(10_250.0));
    assert_eq!(drive.cost(us(20_000.0), &read(100, 1)).as_micros(), 250);
    assert_eq!(drive.cost(us(20_000.0), &read(1_000, 1)).as_micros(), 4250);
}

#[test]
fn a_band_around_the_line_has_its_width_and_its_mean() {
    let band = Linear { constant_ms: 5.0, slope_ms: 0.0, hit_ms: 0.0, spread_ms: 4.0, cache: None };
    let model = Model { name: "band".into(), size: Bytes(1 << 30), mechanism: Mechanism::Linear(band) };
    let times = services(&mut model.drive(3), &[read(0, 1); 2000]);
    let mean = times.iter().sum::<f64>() / 2000.0;
    assert!((mean - 5.0).abs() < 0.1, "{mean}");
    assert!(times.iter().all(|ms| (3.0..=7.0).contains(ms)));
    assert!(times.iter().any(|ms| *ms < 3.2) && times.iter().any(|ms| *ms > 6.8));
    assert_eq!(model.drive(1).cost(Time(0), &read(9, 1)).as_millis(), 5);
}
