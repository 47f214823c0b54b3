//! SSDs and remote stores, by hand.

use super::*;
use crate::*;
use lamina_block::Bytes;

/// Two dies of pages of 4 KiB: reads take 100 µs, programs 1000. A byte takes 1 ns on the bus.
fn keys() -> Ssd {
    Ssd {
        depth: 4,
        dies: 2,
        read_overhead_us: 10.0,
        write_overhead_us: 20.0,
        bus_rate: Bytes(1_000_000_000),
        buffer: Bytes(16_384),
        ..Ssd::default()
    }
}

fn model(mechanism: Mechanism) -> Model {
    let model = Model { name: "x".into(), size: Bytes(1 << 30), mechanism };
    assert_eq!(model.check(), Ok(()));
    model
}

fn ssd(keys: Ssd) -> Drive {
    model(Mechanism::Ssd(Box::new(keys))).drive(1)
}

/// When requests end that arrive at their times, both in µs.
fn ends(mut drive: Drive, requests: &[(f64, Request)]) -> Vec<f64> {
    let mut ends = vec![0.0; requests.len()];
    for (id, (at, request)) in requests.iter().enumerate() {
        drive.submit(us(*at), id as u64, *request);
    }
    for end in drain(&mut drive) {
        ends[end.id as usize] = end.at.0 as f64 / 1e3;
    }
    ends
}

#[track_caller]
fn assert_us(found: Vec<f64>, expected: &[f64]) {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 0.01;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(close),
        "{found:?}, {expected:?}"
    );
}

#[test]
fn reads_of_different_dies_go_side_by_side() {
    let requests = [
        (0.0, read(0, 8)),     // 10 + 100 + 4.096
        (0.0, read(8, 8)),     // the other die, and the bus after the first
        (0.0, read(16, 8)),    // the first die again
        (1000.0, read(0, 32)), // two pages of each die, the bus at the end for the last
    ];
    assert_us(ends(ssd(keys()), &requests), &[114.096, 118.192, 214.096, 1214.096]);
}

#[test]
fn writes_end_in_the_buffer_until_it_is_full() {
    // Each page takes the bus until n · 4.096; programs end at 1024.096 and 1028.192, 2024.096 and 2028.192, and so on.
    let requests: Vec<(f64, Request)> = (0..7).map(|n| (0.0, write(n * 8, 8))).collect();
    let drive = ssd(Ssd { depth: 64, ..keys() });
    let arrived = [24.096, 28.192, 32.288, 36.384, 1024.096, 1028.192, 2024.096];
    assert_us(ends(drive, &requests), &arrived);
    // With a depth of 4 the fifth begins when the first has ended.
    let few = ends(ssd(keys()), &requests);
    assert_us(few, &[24.096, 28.192, 32.288, 36.384, 1024.096, 1028.192, 2024.096]);
}

#[test]
fn reads_wait_for_programs_or_suspend_them() {
    let requests = [(0.0, write(0, 8)), (500.0, read(0, 8)), (500.0, read(8, 8)), (2000.0, FLUSH)];
    // The program of die 0 ends at 1024.096. The page for the open rest of 0 bytes is none.
    let waits = ends(ssd(keys()), &requests);
    assert_us(waits, &[24.096, 1128.192, 614.096 + 4.096, 2020.0]);
    let suspends = ends(ssd(Ssd { suspend_us: Some(50.0), ..keys() }), &requests);
    assert_us(suspends, &[24.096, 664.096, 618.192, 2020.0]);
}

#[test]
fn programs_wait_for_reads_of_their_die() {
    // Four pages of each die until 410; the write's page is there at 146.864.
    let requests = [(0.0, read(0, 64)), (0.0, write(0, 8)), (200.0, FLUSH)];
    assert_us(ends(ssd(keys()), &requests), &[414.096, 146.864, 1430.0]);
}

#[test]
fn flushes_wait_for_programs_unless_the_buffer_is_protected() {
    // Half a page is programmed by the flush alone.
    let requests = [(0.0, write(0, 4)), (100.0, FLUSH), (5000.0, FLUSH)];
    assert_us(ends(ssd(keys()), &requests), &[22.048, 1120.0, 5020.0]);
    assert_us(ends(ssd(Ssd { protected: true, ..keys() }), &requests), &[22.048, 120.0, 5020.0]);
}

#[test]
fn residuals_follow_operation_and_length() {
    let constant = |us: f64| Quantiles(vec![[0.5, us]]);
    let residual = |op, up_to, us| Residual { op, up_to: Bytes(up_to), quantiles_us: constant(us) };
    let residuals = vec![
        residual(ResidualOp::Read, 4096, 1.0),
        residual(ResidualOp::Write, 4096, 7.0),
        residual(ResidualOp::Read, 8192, -2.0),
    ];
    let requests = [(0.0, read(0, 8)), (1000.0, read(0, 16)), (2000.0, read(0, 24)), (3000.0, write(0, 99))];
    let plain = ends(ssd(keys()), &requests);
    let found = ends(ssd(Ssd { residuals, ..keys() }), &requests);
    let differences: Vec<f64> = found.iter().zip(&plain).map(|(a, b)| a - b).collect();
    assert_us(differences, &[1.0, -2.0, -2.0, 7.0]);
}

/// Reads of 4 KiB and 12 KiB at depth 1, and of 4 KiB at depth 3.
fn measured() -> Ssd {
    let entry = |length, depth, us: [f64; 2]| DepthLatency {
        op: ResidualOp::Read,
        length: Bytes(length),
        depth,
        quantiles_us: Quantiles(vec![[0.0, us[0]], [1.0, us[1]]]),
    };
    let latencies =
        vec![entry(4096, 1, [100.0; 2]), entry(4096, 3, [200.0; 2]), entry(12_288, 1, [300.0; 2])];
    Ssd { latencies, ..keys() }
}

#[test]
fn measured_latencies_go_by_length_and_depth() {
    let requests = [
        (0.0, read(0, 8)),     // alone
        (10.0, read(8, 8)),    // two under way: half-way from one to three
        (20.0, read(16, 8)),   // three
        (30.0, read(24, 8)),   // four are like three
        (1000.0, read(0, 16)), // 8 KiB: half-way
        (2000.0, read(0, 1)),  // shorter than all
        (3000.0, read(0, 48)), // twice the longest
        (9000.0, write(0, 8)), // nothing was measured: 20 + 4.096
    ];
    let arrived = [100.0, 160.0, 220.0, 230.0, 1200.0, 2100.0, 3600.0, 9024.096];
    assert_us(ends(ssd(measured()), &requests), &arrived);
    let mut drive = ssd(measured());
    assert_eq!(drive.cost(Time(0), &read(0, 16)).as_micros(), 200);
    drive.submit(Time(0), 1, read(0, 8));
    assert_eq!(drive.cost(us(10.0), &read(0, 8)).as_micros(), 150);
    assert_eq!(drive.cost(us(100.0), &read(0, 8)).as_micros(), 100, "the first has ended");
}

#[test]
fn programs_and_a_full_buffer_make_measured_requests_wait() {
    let mut keys = measured();
    let write_us = DepthLatency { op: ResidualOp::Write, ..keys.latencies[0].clone() };
    keys.latencies.push(write_us);
    // The page is there at 100, and its program ends at 1100.
    let requests = [(0.0, write(0, 8)), (500.0, read(0, 8)), (2000.0, write(0, 64)), (9000.0, FLUSH)];
    // Eight pages take eight times as long, and there is room when the four of each die are programmed.
    assert_us(ends(ssd(keys), &requests), &[100.0, 1100.0 + 100.0, 6800.0, 9020.0]);
}

#[test]
fn a_measured_distribution_is_what_a_drive_has() {
    let mut keys = Ssd { depth: 1, ..measured() };
    keys.latencies[0].quantiles_us =
        Quantiles(vec![[0.0, 50.0], [0.9, 100.0], [0.999, 500.0], [1.0, 9000.0]]);
    let model = model(Mechanism::Ssd(Box::new(keys)));
    let mut times = services(&mut model.drive(1), &[read(0, 8); 100_000]);
    times.sort_by(f64::total_cmp);
    for (place, ms) in [(45_000, 0.075), (90_000, 0.1), (99_900, 0.5)] {
        assert!((times[place] / ms - 1.0).abs() < 0.1, "{place}: {}", times[place]);
    }
    let mean = times.iter().sum::<f64>() / 100_000.0;
    let expected = model.drive(1).cost(Time(0), &read(0, 8)).as_secs_f64() * 1e3;
    assert!((mean / expected - 1.0).abs() < 0.05, "{mean} {expected}");
}

/// Garbage of blocks of 16 pages, half of each valid: what is written is programmed twice.
fn garbage(erased_fraction: f64) -> Ssd {
    let garbage = Garbage {
        block: Bytes(65_536),
        erase_ms: 0.0,
        over_provisioning: 0.01,
        valid_fraction: 0.5,
        erased_fraction,
    };
    Ssd { depth: 32, read_us: 0.0, garbage: Some(garbage), ..keys() }
}

/// MB/s of so many random writes of 4 KiB, 32 under way.
fn write_rate(drive: &mut Drive, count: u64, begin: Time) -> (f64, Time) {
    let mut last = begin;
    for id in 0..count {
        while drive.in_flight() >= 32 {
            last = drive.next().expect("one is under way");
            drive.completed(last);
        }
        drive.submit(last, id, write(id * 8, 8));
    }
    let last = drain(drive).last().map_or(last, |end| end.at);
    (count as f64 * 4.096 / (last.since(begin).as_secs_f64() * 1e3), last)
}

#[test]
fn a_drive_in_its_steady_state_has_what_it_keeps_erased() {
    // The first page of all costs no more than a block of garbage, on the other die.
    assert_us(ends(ssd(garbage(0.0)), &[(0.0, write(0, 8)), (100.0, FLUSH)]), &[24.096, 1044.096]);
}

#[test]
fn garbage_collection_costs_what_it_copies_and_idle_time_pays() {
    // Two dies program 2 pages in 1 ms: 8.192 MB/s. The over-provisioning is 10.7 MB, 2621 pages.
    let mut drive = ssd(garbage(1.0));
    let (fresh, at) = write_rate(&mut drive, 2000, Time(0));
    assert!((fresh / 8.192 - 1.0).abs() < 0.02, "{fresh}");
    let (_, at) = write_rate(&mut drive, 3000, at);
    let (steady, at) = write_rate(&mut drive, 3000, at);
    assert!((steady / 4.096 - 1.0).abs() < 0.02, "{steady}");
    let (rested, _) = write_rate(&mut drive, 2000, at.after(std::time::Duration::from_secs(60)));
    assert!((rested / 8.192 - 1.0).abs() < 0.02, "{rested}");
    let (used, _) = write_rate(&mut ssd(garbage(0.0)), 3000, Time(0));
    assert!((used / 4.096 - 1.0).abs() < 0.02, "{used}");
}

/// What the SSDs that come with Lamina do, and their data sheets say: reads of 4 KiB a second with one and with 32 (or
/// 256), and the time of a write alone.
#[test]
fn data_sheets() {
    for (name, alone, deep, iops, write_us) in [
        ("ssd-sata", 10_000.0, 32, 98_000.0, 23.8),
        ("ssd-sata-old", 15_385.0, 32, 35_000.0, 85.0),
        ("nvme", 12_990.0, 256, 637_000.0, 18.0),
    ] {
        let model = Model::named(name).expect("a model");
        for (depth, expected) in [(1, alone), (deep, iops)] {
            let (mut drive, mut random, mut last) = (model.drive(1), fastrand::Rng::with_seed(1), Time(0));
            for id in 0..20_000 {
                while drive.in_flight() >= depth {
                    last = drive.next().expect("one is under way");
                    drive.completed(last);
                }
                drive.submit(last, id, read(random.u64(0..model.sectors() / 8) * 8, 8));
            }
            let rate = 20_000.0 / last.since(Time(0)).as_secs_f64();
            assert!((rate / expected - 1.0).abs() < 0.05, "{name}, {depth} at a time: {rate}");
        }
        let alone = serve(&mut model.drive(1), Time(0), write(0, 8)).at.0 as f64 / 1e3;
        assert!((alone - write_us).abs() < 1.0, "{name}: {alone}");
    }
}

/// Random writes of 4 KiB that two data sheets call sustained.
#[test]
fn sustained_random_writes() {
    for (name, iops) in [("ssd-sata-old", 8_600.0), ("nvme", 81_500.0)] {
        let mut model = Model::named(name).expect("a model");
        if let Mechanism::Ssd(keys) = &mut model.mechanism
            && let Some(garbage) = &mut keys.garbage
        {
            garbage.erased_fraction = 0.0;
        }
        // The buffer fills first.
        let mut drive = model.drive(1);
        let (_, full) = write_rate(&mut drive, 100_000, Time(0));
        let (rate, _) = write_rate(&mut drive, 200_000, full);
        let found = rate * 1e6 / 4096.0;
        assert!((found / iops - 1.0).abs() < 0.05, "{name}: {found}");
    }
}

/// A drive that maps flash by blocks: 80 MB/s in order, and 9 ms for a random write, as was measured.
#[test]
fn a_map_of_blocks_makes_random_writes_slow() {
    let model = Model::named("ssd-sata-blocks").expect("a model");
    let rate = |lbn: &mut dyn FnMut(u64) -> u64, count: u64| {
        let (mut drive, mut last) = (model.drive(1), Time(0));
        for id in 0..count {
            last = serve(&mut drive, last, write(lbn(id), 128)).at;
        }
        count as f64 / last.since(Time(0)).as_secs_f64()
    };
    let in_order = rate(&mut |id| id * 128, 4000) * 65536.0;
    assert!((in_order / 80e6 - 1.0).abs() < 0.1, "{in_order}");
    let mut random = fastrand::Rng::with_seed(1);
    let anywhere = rate(&mut |_| random.u64(0..model.sectors() / 128) * 128, 2000);
    assert!((anywhere * 9e-3 - 1.0).abs() < 0.2, "{anywhere}");
    let mut near = fastrand::Rng::with_seed(1);
    let near = rate(&mut |_| near.u64(0..64) * 128, 2000);
    assert!(near > 2.0 * anywhere, "{near} within 4 MiB, {anywhere} anywhere");
}

#[test]
fn a_remote_store_has_turns_bytes_and_latency() {
    let latency = |us| Latency::QuantilesUs(Quantiles(vec![[0.5, us]]));
    let keys = Remote {
        depth: 2,
        iops: 1e5,
        rate: Bytes(1_000_000_000),
        read: latency(100.0),
        write: latency(200.0),
    };
    let requests = [
        (0.0, read(0, 8)),       // 4.096 + 100
        (0.0, read(0, 8)),       // its turn is at 10
        (0.0, read(0, 8)),       // begins when the first has ended
        (1000.0, write(0, 200)), // 102.4 + 200
        (1000.0, FLUSH),         // its turn at 1010, and then behind the bytes
    ];
    let drive = model(Mechanism::Remote(keys)).drive(1);
    assert_us(ends(drive, &requests), &[104.096, 114.096, 208.192, 1302.4, 1302.4]);
}

#[test]
fn lognormal_latencies_have_their_median_and_mean() {
    let model = Model::named("san").expect("a model");
    let mut times = services(&mut model.drive(1), &[read(0, 1); 20_000]);
    let mean = times.iter().sum::<f64>() / 20_000.0;
    times.sort_by(f64::total_cmp);
    assert!((times[10_000] - 0.450).abs() < 0.01, "{}", times[10_000]);
    let expected = model.drive(1).cost(Time(0), &read(0, 1)).as_secs_f64() * 1e3;
    assert!((mean / expected - 1.0).abs() < 0.02, "{mean} {expected}");
}
