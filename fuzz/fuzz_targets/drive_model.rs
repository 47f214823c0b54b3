//! The model file of a drive: any bytes are read, and if they make a model, its drive and its observer work.
//!
//! What must hold: no panic, no hang; a model written out reads back to the same; every request ends, in order, not
//! before it began; an error has a line inside the file.

#![no_main]

use lamina_block::Time;
use lamina_drive::{Model, Op, Request, Tracker};
use libfuzzer_sys::fuzz_target;

/// Numbers that a request is made of: some small, some of all sizes (Marsaglia's xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> (self.0 % 64)
    }

    fn request(&mut self, sectors: u64) -> Request {
        let op =
            [Op::Read, Op::Write, Op::Read, Op::Write, Op::Flush, Op::Discard][(self.next() % 6) as usize];
        // Most are on the drive.
        let lbn = if self.next() % 8 == 0 { self.next() } else { self.next() % sectors };
        Request { op, lbn, sectors: self.next() as u32 }
    }
}

fn run(model: &Model) {
    let (mut drive, mut tracker, mut numbers) = (model.drive(1), Tracker::new(model), Numbers(0x9e37_79b9));
    let (mut now, mut last) = (Time(0), Time(0));
    let mut ended = 0;
    let mut sent = Vec::new();
    for id in 0..50 {
        let request = numbers.request(model.sectors());
        now = Time(now.0.saturating_add(numbers.next() >> 20));
        drive.cost(now, &request);
        tracker.catch_up(now);
        tracker.cost(now, &request);
        drive.submit(now, id, request);
        tracker.dispatched(now, &request);
        sent.push(request);
        let until = if numbers.next() % 2 == 0 { drive.next().unwrap_or(now) } else { now };
        while let Some(end) = drive.completed(until) {
            assert!(end.started <= end.at && last <= end.at && end.at <= until.max(now));
            last = end.at;
            ended += 1;
            tracker.completed(end.started, end.at, &sent[end.id as usize]);
        }
        now = now.max(until);
    }
    while let Some(at) = drive.next() {
        assert!(last <= at);
        last = at;
        ended += std::iter::from_fn(|| drive.completed(at)).count();
    }
    assert_eq!((ended, drive.in_flight()), (50, 0));
}

fuzz_target!(|text: &str| {
    match Model::parse(text) {
        Ok(model) => {
            assert_eq!(Model::parse(&model.to_toml()).as_ref(), Ok(&model));
            run(&model);
        }
        Err(error) => {
            assert!(!error.message.is_empty());
            assert!(error.line.is_none_or(|line| (1..=text.split('\n').count()).contains(&line)));
        }
    }
});
