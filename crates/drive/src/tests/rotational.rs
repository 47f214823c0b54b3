//! Hard disks: positioning, cache, read-ahead and buffer by hand, and the service times of another simulator.

use super::*;
use crate::chance::Chance;
use crate::machine::MS;
use crate::rotational::Machine;
use crate::*;
use lamina_block::Bytes;

/// 10 ms a turn, two heads, 100 sectors a track. A seek takes 1 ms, a change of head 0.5.
fn disk() -> Rotational {
    Rotational {
        rotation_ms: 10.0,
        heads: 2,
        overhead_ms: 0.5,
        completion_ms: 0.25,
        head_switch_ms: 0.5,
        write_settle_ms: 1.0,
        hit_ms: 0.1,
        seek: Seek::Curve(Curve { alpha_ms: 1.0, beta_ms: 0.0, gamma_ms: 0.0 }),
        zones: vec![Zone {
            sectors_per_track: 100.0,
            track_skew: 0.1,
            cylinder_skew: 0.2,
            ..Zone::default()
        }],
        ..Rotational::default()
    }
}

/// When requests end that begin at their times, in ms, and which of them hit; at time 0 the angle 0 is under the heads.
fn ends(model: &Rotational, requests: &[(f64, Request)]) -> (Vec<f64>, Vec<bool>) {
    let mut machine = Machine::new(model, 100_000);
    machine.spin(0.0);
    let serve = |(at, request): &(f64, Request)| {
        machine.catch_up(at * MS);
        let expected = machine.cost(at * MS, request);
        let served = machine.begin(at * MS, request, &mut Chance::Expected);
        // Without chance the expectation is what happens.
        if request.op == Op::Read {
            assert!((served.at - at * MS - expected).abs() < 10.0, "{request:?}: {expected}");
        }
        (served.at / MS, served.hit)
    };
    requests.iter().map(serve).unzip()
}

#[test]
fn positioning() {
    let requests = [
        (0.0, read(0, 1)),         // there at 0.5 ms: just missed, until 10.0
        (10.35, read(50, 10)),     // angle 0.5, at 15.0
        (16.25, read(100, 1)),     // the other head, there at 17.25: angle 0.1 at 21.0
        (21.35, write(1000, 100)), // there at 23.85: angle 0.5 at 25.0, one turn
        (35.25, read(1100, 1)),    // other head, there at 36.25: angle 0.6 at 46.0
        (46.35, read(1190, 20)),   // angle 0.5 at 55.0; 10 sectors, the skew of 0.2 turns, 10 sectors
    ];
    let (ends, _) = ends(&disk(), &requests);
    assert_ms(&ends, &[10.35, 16.25, 21.35, 35.25, 46.35, 59.25]);
}

#[test]
fn seeks_to_another_head_take_a_change_of_heads() {
    let end = |head_order: HeadOrder| {
        let model = Rotational { head_switch_ms: 3.0, head_order, ..disk() };
        // Cylinder 1 begins at the angle 0.3. From head 0 the arm is there at 1.5 ms, from head 1 at 3.5.
        ends(&model, &[(0.0, read(200, 1))]).0[0]
    };
    assert_ms(&[end(HeadOrder::Ascending), end(HeadOrder::Serpentine)], &[3.35, 13.35]);
}

#[test]
fn reading_ahead() {
    let cache = Some(Cache { segments: 2, segment_sectors: 100, prefetch_sectors: 50 });
    let requests = [
        (0.0, read(0, 10)),    // passes from 10.0 to 11.0; reading goes on to sector 60
        (11.25, read(10, 5)),  // is passing: until 11.5
        (20.0, read(15, 10)),  // was read: a hit; reading had stopped at 16.5, and goes on from 26.5
        (22.0, read(25, 45)),  // sectors 65 to 69 pass until 27.0
        (27.25, read(70, 45)), // goes on over the end of the track, where the skew is
        (32.75, read(0, 1)),   // the segment has the last 100 sectors alone
        (60.0, read(100, 1)),  // of these, still there
    ];
    let (ends, hits) = ends(&Rotational { cache, ..disk() }, &requests);
    assert_ms(&ends, &[11.25, 11.75, 20.1, 27.25, 32.75, 40.35, 60.1]);
    assert_eq!(hits, [false, false, true, false, false, false, true]);
}

#[test]
fn whole_tracks() {
    let cache = Some(Cache { segments: 2, segment_sectors: 100, prefetch_sectors: 50 });
    let model = Rotational { cache, whole_tracks: true, ..disk() };
    let requests = [
        (0.0, read(130, 10)),  // of the second track, from 100 on
        (60.0, read(100, 10)), // in front of it
        (61.0, read(190, 10)), // the rest of the track was read
        (62.0, read(200, 10)), // and nothing behind it
        (90.0, read(195, 5)),  // still there
        (91.0, read(250, 50)), // of the track that was read then
    ];
    assert_eq!(ends(&model, &requests).1, [false, true, true, false, true, true]);
}

#[test]
fn a_segment_that_is_overwritten_while_it_fills_is_given_up() {
    let cache = Some(Cache { segments: 1, segment_sectors: 100, prefetch_sectors: 50 });
    let model =
        Rotational { cache, write_buffer: Some(WriteBuffer { size: Bytes(4096), hit_ms: None }), ..disk() };
    let requests = [(0.0, read(0, 10)), (11.25, write(500, 1)), (90.0, read(500, 1)), (91.0, read(10, 1))];
    assert_eq!(ends(&model, &requests).1, [false, false, true, false]);
}

#[test]
fn a_buffer_of_writes() {
    let requests = [
        (0.0, write(1000, 20)),  // written until 7.0: there at 2.5, angle 0.5 at 5.0
        (0.1, read(0, 1)),       // has the arm from 7.0 on; there at 8.5, angle 0 at 10.0
        (20.0, write(1000, 20)), // behind the place of the last: later
        (20.0, write(2000, 20)), // written until 32.0: there at 22.5, angle 0 at 30.0
        (20.1, read(1005, 10)),  // waits to be written: a hit
        (20.2, FLUSH),           // until 37.0: there at 34.5, angle 0.5 at 35.0
        (40.0, write(3000, 60)), // written until 51.0
        (40.1, write(5000, 60)), // there is room: the first is on its way
        (40.2, write(7000, 60)), // room when the second is written: there at 53.5, angle 0.5 at 55.0
        (200.0, write(0, 101)),  // more than the buffer: there at 202.5, angle 0 at 210, skew 0.1
    ];
    let (ends, hits) = ends(&buffered(), &requests);
    assert_ms(&ends, &[0.1, 10.35, 20.1, 20.1, 20.2, 37.1, 40.1, 40.2, 61.1, 221.35]);
    assert!(hits.iter().enumerate().all(|(i, hit)| *hit == (i == 4)), "{hits:?}");
}

fn buffered() -> Rotational {
    Rotational { write_buffer: Some(WriteBuffer { size: Bytes(100 * 512), hit_ms: None }), ..disk() }
}

#[test]
fn a_flush_waits_for_what_is_on_its_way_to_the_medium() {
    // Written until 7.0, as in `a_buffer_of_writes`; the buffer has nothing any more.
    let requests = [(0.0, write(1000, 20)), (0.1, FLUSH), (7.2, FLUSH)];
    assert_ms(&ends(&buffered(), &requests).0, &[0.1, 7.1, 7.3]);
    let mut machine = Machine::new(&buffered(), 100_000);
    machine.spin(0.0);
    machine.begin(0.0, &write(1000, 20), &mut Chance::Expected);
    machine.catch_up(0.1 * MS);
    assert_ms(&[machine.cost(0.1 * MS, &FLUSH) / MS], &[7.0]);
}

#[test]
fn the_arm_stays_for_a_request_that_comes_at_once() {
    let begin = [(0.0, write(2000, 20)), (0.0, read(0, 1))]; // until 10.35, as in `positioning`
    let end = |at: f64| ends(&buffered(), &[begin[0], begin[1], (at, read(50, 10))]).0[2];
    // To the nanosecond, or what a host makes of it.
    assert_ms(&[end(10.35), end(10.350_001)], &[16.25, 16.25]);
    // Too late: the write has the arm from 10.35 until 22.0; there at 23.5, angle 0.5 at 25.0.
    assert_ms(&[end(10.36)], &[26.25]);
}

#[test]
fn only_the_end_of_a_transfer_is_an_angle() {
    let cache = Some(Cache { segments: 2, segment_sectors: 100, prefetch_sectors: 50 });
    let media = |model: &Rotational| {
        let mut machine = Machine::new(model, 100_000);
        machine.spin(0.0);
        // The second is passing when it is asked for.
        let mut serve =
            |(at, request): (f64, Request)| machine.begin(at * MS, &request, &mut Chance::Expected);
        let ends = [(0.0, read(0, 10)), (11.25, read(10, 5))].map(&mut serve);
        ends.map(|served| (served.at / MS, served.media))
    };
    let medium = Rotational { cache, ..disk() };
    assert_eq!(media(&medium), [(11.25, true), (11.75, true)]);
    // A millisecond a sector.
    let bus = Rotational { bus_rate: Some(Bytes(512_000)), ..medium.clone() };
    assert_eq!(media(&bus)[1], (11.25 + 0.1 + 5.0, false));
    let slow = Rotational { read_sector_ms: 1.0, ..medium };
    assert!(!media(&slow)[1].1);
}

#[test]
fn costs_are_the_means_of_what_is_left_to_chance() {
    let residuals = Residuals { read_ms: Quantiles(vec![[0.0, 0.0], [1.0, 1.0]]), ..Residuals::default() };
    let keys = Rotational { arrival_spread_ms: 0.3, residuals, ..disk() };
    let model =
        Model { name: "x".into(), size: Bytes(51_200_000), mechanism: Mechanism::Rotational(Box::new(keys)) };
    let (mut drive, mut random) = (model.drive(9), fastrand::Rng::with_seed(2));
    let (mut at, mut expected, mut taken, mut lost) = (Time(0), 0.0, 0.0, 0);
    for _ in 0..20_000 {
        let request = read(random.u64(0..99_000), 8);
        let cost = drive.cost(at, &request).as_secs_f64();
        let end = serve(&mut drive, at, request);
        expected += cost;
        taken += end.at.since(at).as_secs_f64();
        lost += usize::from(end.at.since(at).as_secs_f64() - cost > 0.005);
        at = end.at.after(std::time::Duration::from_micros(random.u64(0..5000)));
    }
    assert!((taken / expected - 1.0).abs() < 0.01, "{taken} {expected}");
    // The chance of a late arrival, over margins spread evenly over 10 ms: 0.3 ms · ln 2 / 10 ms, 2%.
    assert!((250..550).contains(&lost), "{lost}");
}

/// The service times of the DiskSim model of a Cheetah 15K.5, by cylinders of distance, for 4 KiB.
const BY_DISTANCE: [(u64, f64); 11] = [
    (0, 2.025),
    (1, 2.576),
    (10, 2.856),
    (100, 3.189),
    (1000, 3.639),
    (5000, 4.339),
    (10_000, 5.027),
    (20_000, 5.705),
    (36_000, 6.586),
    (50_000, 7.578),
    (72_000, 8.958),
];

/// A random sector of the first track of a cylinder, of a disk laid out by cylinders.
fn sector_of(keys: &Rotational, cylinder: u64, random: &mut fastrand::Rng) -> u64 {
    let mut first = 0;
    for pair in keys.zones.windows(2) {
        let per_cylinder = pair[0].sectors_per_track as u64 * u64::from(keys.heads);
        let cylinders = (pair[1].first_lbn - pair[0].first_lbn) / per_cylinder;
        if cylinder < first + cylinders {
            return pair[0].first_lbn
                + (cylinder - first) * per_cylinder
                + random.u64(0..pair[0].sectors_per_track as u64 - 8);
        }
        first += cylinders;
    }
    let last = keys.zones.last().expect("a zone");
    let per_cylinder = last.sectors_per_track as u64 * u64::from(keys.heads);
    last.first_lbn + (cylinder - first) * per_cylinder + random.u64(0..last.sectors_per_track as u64 - 8)
}

#[test]
fn service_by_distance_is_within_2_percent_of_disksim() {
    let model = Model::named("cheetah-15k5").expect("a model");
    let Mechanism::Rotational(keys) = &model.mechanism else { panic!("a disk") };
    let mut random = fastrand::Rng::with_seed(1);
    for (distance, expected) in BY_DISTANCE {
        let (mut drive, mut at, mut sum) = (model.drive(1), Time(0), 0.0);
        for _ in 0..4000 {
            let from = random.u64(0..72_001 - distance);
            at = serve(&mut drive, at, read(sector_of(keys, from, &mut random), 1)).at;
            at = at.after(std::time::Duration::from_micros(random.u64(0..100_000)));
            let target = read(sector_of(keys, from + distance, &mut random), 8);
            let end = serve(&mut drive, at, target);
            sum += if end.hit { expected } else { end.at.since(at).as_secs_f64() * 1e3 };
            at = end.at.after(std::time::Duration::from_micros(random.u64(0..100_000)));
        }
        let mean = sum / 4000.0;
        assert!((mean / expected - 1.0).abs() < 0.02, "{distance} cylinders: {mean:.3}, DiskSim {expected}");
    }
}

#[test]
fn random_access_is_as_the_data_sheets_say() {
    // Mean seeks of 3.5 and 8.5 ms, half a turn, and what is between.
    for (name, from, to) in [("cheetah-15k5", 5.4, 6.2), ("disk-7200", 12.4, 13.6)] {
        let model = Model::named(name).expect("a model");
        let mut random = fastrand::Rng::with_seed(1);
        let requests: Vec<Request> = (0..5000).map(|_| read(random.u64(0..model.sectors() - 8), 8)).collect();
        let mean = services(&mut model.drive(1), &requests).iter().sum::<f64>() / 5000.0;
        assert!((from..to).contains(&mean), "{name}: {mean}");
    }
}

#[test]
fn sequential_reads_reach_the_sustained_rate() {
    // MB/s outside, of 64 KiB reads one after the other; the data sheets say 125 for both.
    for name in ["cheetah-15k5", "disk-7200"] {
        let model = Model::named(name).expect("a model");
        let requests: Vec<Request> = (0..4000).map(|n| read(n * 128, 128)).collect();
        let total = services(&mut model.drive(1), &requests).iter().sum::<f64>();
        let rate = 4000.0 * 65.536 / total;
        assert!((115.0..135.0).contains(&rate), "{name}: {rate} MB/s");
    }
}
