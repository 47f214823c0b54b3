//! How fast drives and observers are: requests a second of each model that comes with Lamina, one after the other, and
//! nanoseconds of a cost that an observer tells. `cargo run --release -p lamina-drive --example speed`.

use lamina_block::Time;
use lamina_drive::{Model, Op, Request, Tracker};
use std::hint::black_box;
use std::time::Instant;

const COUNT: u64 = 1_000_000;

/// Random reads and writes of 4 KiB.
fn requests(model: &Model) -> Vec<Request> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut request = || Request {
        op: if random.u8(0..4) == 0 { Op::Write } else { Op::Read },
        lbn: random.u64(0..model.sectors() - 8),
        sectors: 8,
    };
    (0..4096).map(|_| request()).collect()
}

fn main() {
    println!("{:<14} {:>12} {:>12}", "model", "requests/s", "ns a cost");
    for name in Model::NAMES {
        let model = Model::named(name).expect("a model that comes with Lamina");
        let requests = requests(&model);
        let (mut drive, mut at) = (model.drive(1), Time(0));
        let begin = Instant::now();
        for id in 0..COUNT {
            drive.submit(at, id, requests[id as usize % requests.len()]);
            at = drive.next().expect("one is under way");
            drive.completed(at);
        }
        let rate = COUNT as f64 / begin.elapsed().as_secs_f64();
        let mut tracker = Tracker::new(&model);
        for request in &requests[..200] {
            tracker.dispatched(at, request);
            tracker.completed(at, at, request);
        }
        let begin = Instant::now();
        for id in 0..COUNT {
            black_box(tracker.cost(at, black_box(&requests[id as usize % requests.len()])));
        }
        let cost = begin.elapsed().as_secs_f64() * 1e9 / COUNT as f64;
        println!("{name:<14} {rate:>12.0} {cost:>12.0}");
    }
}
