//! Calibration of drives that nobody described: see the example `hidden_drive`, which runs as a child process here.
//!
//! `LAMINA_SEEDS=first..last` tries other seeds than the usual ones.

mod child;

use child::{Hidden, program};
use lamina_calibrate::Probe;
use lamina_calibrate::active::{Answers, Found, Options, find};
use lamina_calibrate::score;
use lamina_drive::HeadOrder;
use std::process::Command;

/// What the drive says of itself.
struct Truth(Vec<(String, Vec<f64>)>);

impl Truth {
    fn of(seed: u64) -> Truth {
        let output = Command::new(program())
            .args(["--truth", "--seed", &seed.to_string()])
            .output()
            .expect("the drive");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = |line: &str| {
            let (key, values) = line.split_once(' ').expect("key value");
            (key.to_owned(), values.split(' ').filter_map(|value| value.parse().ok()).collect())
        };
        Truth(text.lines().map(line).collect())
    }

    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Vec<f64>> {
        self.0.iter().filter(move |(k, _)| k == key).map(|(_, values)| values)
    }

    fn one(&self, key: &str) -> f64 {
        self.all(key).next().expect(key)[0]
    }

    fn seek(&self, distance: f64) -> f64 {
        let curve = self.all("seek-us").next().expect("a curve");
        curve[0] + curve[1] * distance.sqrt() + curve[2] * distance
    }
}

/// What is wrong with what was found.
fn mistakes(truth: &Truth, found: &Found, time_us: f64) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |ok: bool, what: String| {
        if !ok {
            wrong.push(what);
        }
    };
    let turn = found.turn_us;
    check((turn.value / truth.one("turn-us") - 1.0).abs() < 1e-6, format!("turn {turn:?}"));
    check(time_us < 600e6, format!("{} s", time_us / 1e6));
    check(f64::from(found.heads) == truth.one("heads"), format!("{} heads", found.heads));
    let is_serpentine = |order: HeadOrder| f64::from(u8::from(order == HeadOrder::Serpentine));
    // Where changing heads takes no longer than the seek, both orders have the same times.
    let shows = truth.one("heads") > 1.0
        && truth.one("band") == 1.0
        && truth.one("head-switch-us") > truth.seek(1.0) + 50.0;
    let is_order = found.head_order.map_or(!shows, |order| is_serpentine(order) == truth.one("serpentine"));
    check(is_order, format!("order of heads {:?}", found.head_order));
    check(f64::from(found.band_cylinders) == truth.one("band"), format!("bands of {}", found.band_cylinders));
    let zones: Vec<(f64, f64)> = truth.all("zone").map(|zone| (zone[0], zone[1])).collect();
    let seen: Vec<(f64, f64)> =
        found.zones.iter().map(|zone| (zone.first_lbn as f64, zone.sectors_per_track.into())).collect();
    let missing: Vec<_> = zones.iter().filter(|zone| !seen.contains(zone)).collect();
    let extra: Vec<_> = seen.iter().filter(|zone| !zones.contains(zone)).collect();
    check(missing.is_empty() && extra.is_empty(), format!("zones missing {missing:?} extra {extra:?}"));
    match &found.cache {
        None => check(truth.one("keeps-reads") == 0.0, "no cache".into()),
        Some(_) if truth.one("keeps-reads") == 0.0 => check(false, "a cache".into()),
        Some(cache) => {
            check(cache.segments.0 as f64 == truth.one("segments"), format!("{:?} segments", cache.segments));
            check(cache.prefetch.0 as f64 == truth.one("prefetch"), format!("prefetch {:?}", cache.prefetch));
            let sectors = cache.segment_sectors.map_or(0.0, |(sectors, _)| sectors as f64);
            check(
                sectors == truth.one("segment-sectors"),
                format!("segments of {:?}", cache.segment_sectors),
            );
        }
    }
    let Some(writes) = found.writes else { return vec!["nothing of writes".into()] };
    let buffer = writes.buffer.map_or(0.0, |buffer| buffer.sectors.0 as f64);
    check(buffer == truth.one("buffer"), format!("buffer {:?} for {}", writes.buffer, truth.one("buffer")));
    let settle =
        |us: lamina_calibrate::active::Measured| (us.value - truth.one("write-settle-us")).abs() < 100.0;
    check(buffer > 0.0 || writes.settle_us.is_some_and(settle), format!("settling {:?}", writes.settle_us));
    let off = |(distance, seek): &(u64, _)| {
        let seek: &lamina_calibrate::active::Measured = seek;
        (truth.seek(*distance as f64) - seek.value, *distance)
    };
    let access = truth.one("overhead-us") + turn.value / zones[0].1 + truth.one("bus-us");
    check(
        found.access_us.is_some_and(|us| (us.value - access).abs() < 50.0),
        format!("{:?} for {access}", found.access_us),
    );
    if truth.one("heads") > 1.0 {
        let switch = truth.one("head-switch-us");
        let near = |us: lamina_calibrate::active::Measured| (us.value - switch).abs() < 50.0;
        check(found.head_switch_us.is_some_and(near), format!("{:?} for {switch}", found.head_switch_us));
    }
    let bad: Vec<_> = found.seeks_us.iter().map(off).filter(|(off, _)| off.abs() > 100.0).collect();
    check(bad.is_empty(), format!("seeks off {bad:?}"));
    check(found.seeks_us.len() > 40, format!("{} seeks", found.seeks_us.len()));
    wrong
}

fn seeds() -> Vec<u64> {
    let Ok(range) = std::env::var("LAMINA_SEEDS") else { return vec![1, 2, 3, 4, 5] };
    let (first, last) = range.split_once("..").expect("LAMINA_SEEDS=first..last");
    let seeds: Vec<u64> = (first.parse().expect("a number")..last.parse().expect("a number")).collect();
    assert!(!seeds.is_empty(), "no seeds");
    seeds
}

#[test]
fn hidden_drives_are_found() {
    let mut failed = 0;
    for seed in seeds() {
        let truth = Truth::of(seed);
        let mut drive = Hidden::start(seed, truth.one("sectors") as u64);
        let options = Options { seed: 1, budget_s: 600.0, pages: 1000, parts: true, writes: true };
        let mut stages = Vec::new();
        let found = find(&mut drive, &options, &mut |line| stages.push(line.to_owned()));
        let wrong = match &found {
            Ok(Answers { disk: Some(found), readings, time_us, .. }) => {
                let mut wrong = mistakes(&truth, found, *time_us);
                let model = found.model("hidden", drive.sectors());
                wrong.extend(model.check().err().map(|e| e.to_string()));
                let told = score(&model, readings, 1);
                let (median, within) = (told.median_ms, told.within_half_ms);
                println!("seed {seed}: random pages: median error {median:.3} ms, within 0.5 ms {within:.3}");
                wrong
            }
            Ok(Answers { disk: None, .. }) => vec!["no disk".into()],
            Err(e) => vec![e.clone()],
        };
        if let Ok(found) = &found {
            println!("seed {seed}: {} requests, {:.0} s", found.requests, found.time_us / 1e6);
        }
        if !wrong.is_empty() {
            failed += 1;
            println!("seed {seed}: {}\n{}", wrong.join("; "), stages.join("\n"));
        }
    }
    assert_eq!(failed, 0, "drives that were not found");
}
