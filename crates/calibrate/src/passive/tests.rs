//! A drive whose model is known is measured by a trace, and found again.

use super::{Fitted, Options, Quality, fit};
use crate::{Sample, score};
use lamina_block::{Bytes, Time};
use lamina_drive::{Mechanism, Model, Op, Request, Rotational, SECTOR, Seek, Zone};
use std::time::Duration;

/// Sectors of each zone of the drive.
const ZONE: u64 = 400_000;
/// Requests that the model is fitted to, and as many that it is scored on.
const HALF: usize = 1500;

/// The Cheetah 15K.5 of a few cylinders: its mechanics, and three of its zones, cut to the same size.
fn small_drive() -> Model {
    let mut model = Model::named("cheetah-15k5").expect("a model");
    let disk = rotational_mut(&mut model);
    let count = disk.zones.len();
    let cut = |(n, zone): (usize, &Zone)| Zone { first_lbn: n as u64 * ZONE, ..zone.clone() };
    disk.zones = [0, count / 2, count - 1].iter().map(|i| &disk.zones[*i]).enumerate().map(cut).collect();
    disk.overhead_ms = 0.3;
    model.size = Bytes(3 * ZONE * SECTOR);
    model.check().expect("valid");
    model
}

fn rotational_mut(model: &mut Model) -> &mut Rotational {
    let Mechanism::Rotational(disk) = &mut model.mechanism else { panic!("a hard disk") };
    disk
}

/// Random reads and writes, a third of them in a small part of the drive, and every fourth request a read right behind
/// the one before, each alone in the drive.
fn trace(model: &Model, seed: u64) -> Vec<Sample> {
    let (mut drive, mut random) = (model.drive(seed), fastrand::Rng::with_seed(seed));
    let (mut now, mut samples) = (Time(0), Vec::<Sample>::new());
    for n in 0..2 * HALF {
        let sectors = 4 * random.u32(1..8);
        let place = match n % 3 {
            0 => ZONE / 2 + random.u64(0..ZONE / 8),
            _ => random.u64(0..model.sectors() - 64),
        };
        let (op, lbn) = match (n % 4, samples.last()) {
            (0, Some(before)) => (Op::Read, before.request.end().min(model.sectors() - 64)),
            _ => (if random.u8(0..4) == 0 { Op::Write } else { Op::Read }, place),
        };
        now = now.after(Duration::from_micros(random.u64(5_000..30_000)));
        let request = Request { op, lbn, sectors };
        drive.submit(now, 0, request);
        let end = drive.next().expect("a request is under way");
        drive.completed(end).expect("a request has ended");
        let us = |time: Time| time.0 as f64 / 1000.0;
        samples.push(Sample { request, started_us: us(now), service_us: us(end) - us(now) });
        now = end;
    }
    samples
}

/// The time of a seek, by lines over the root of the distance.
fn seek_ms(disk: &Rotational, distance: f64) -> f64 {
    let Seek::Points(points) = &disk.seek else { panic!("points") };
    let above = points.partition_point(|p| p[0] < distance).clamp(1, points.len() - 1);
    let ([from, low], [to, high]) = (points[above - 1], points[above]);
    disk.overhead_ms + low + (high - low) * (distance.sqrt() - from.sqrt()) / (to.sqrt() - from.sqrt())
}

#[test]
fn a_drive_is_found_again_from_its_trace() {
    let mut real = small_drive();
    let samples = trace(&real, 3);
    let options = Options { name: "small".into(), sectors: Some(real.sectors()) };
    let Fitted { mut model, quality } = fit(&samples[..HALF], &options, &mut |_| ()).expect("a model");
    let found = score(&model, &samples[HALF..], 1);
    let Quality { rotation, agreeing, angle_spread, cache_wrong, .. } = quality.clone();
    let (real, model) = (rotational_mut(&mut real), rotational_mut(&mut model));
    // Where all changes are skewed alike, heads cannot be told from cylinders: distances are compared in tracks.
    let seek = |disk: &Rotational, tracks: f64| seek_ms(disk, tracks / f64::from(disk.heads));
    let errors = [120.0, 400.0, 800.0].map(|tracks| seek(model, tracks) - seek(real, tracks));
    println!("{quality:?} {} heads, seeks {errors:?} ms", model.heads);
    println!("{} {} {} {}", found.median_ms, found.within_half_ms, found.whole_turn_off, found.demerit_ms);
    assert!((rotation.period_us - 4000.0).abs() < 0.002, "{rotation:?}");
    assert!(agreeing > 0.95 && angle_spread < 0.01, "{agreeing} {angle_spread}");
    // The drive has more segments than the search tries.
    assert!(cache_wrong < 0.04, "{cache_wrong}");
    for zone in &real.zones {
        let middle = zone.first_lbn + ZONE / 2;
        let of = model.zones.iter().rev().find(|z| z.first_lbn <= middle).expect("a zone");
        let error = of.sectors_per_track / zone.sectors_per_track - 1.0;
        assert!(error.abs() < 2e-3, "{middle}: {} of {}", of.sectors_per_track, zone.sectors_per_track);
    }
    assert!(errors.iter().all(|error| error.abs() < 0.25), "{errors:?}");
    assert!(found.median_ms < 0.02, "{}", found.median_ms);
    assert!(found.whole_turn_off < 0.08, "{}", found.whole_turn_off);
    assert!(found.demerit_ms < 0.1, "{}", found.demerit_ms);
}
