//! Whole drives, against tables worked out by hand and against figures of others.

mod files;
mod linear;
mod queue;
mod rotational;
mod schedulers;
mod ssd;
mod tracker;

use crate::{Completion, Drive, Op, Request};
use lamina_block::Time;

pub(super) fn read(lbn: u64, sectors: u32) -> Request {
    Request { op: Op::Read, lbn, sectors }
}

pub(super) fn write(lbn: u64, sectors: u32) -> Request {
    Request { op: Op::Write, lbn, sectors }
}

pub(super) const FLUSH: Request = Request { op: Op::Flush, lbn: 0, sectors: 0 };

/// A moment in microseconds.
pub(super) fn us(at: f64) -> Time {
    Time((at * 1e3).round() as u64)
}

/// Submits `request` to an idle drive, and waits for its end.
pub(super) fn serve(drive: &mut Drive, at: Time, request: Request) -> Completion {
    drive.submit(at, 7, request);
    let end = drive.next().expect("a request is under way");
    let completion = drive.completed(end).expect("a request ended");
    assert_eq!((completion.id, completion.at, drive.in_flight()), (7, end, 0));
    completion
}

/// Milliseconds that each of some requests took, sent one after the other's end.
pub(super) fn services(drive: &mut Drive, requests: &[Request]) -> Vec<f64> {
    let mut at = Time(0);
    let mut service = |request: &Request| {
        let completion = serve(drive, at, *request);
        let took = completion.at.since(at);
        at = completion.at;
        took.as_nanos() as f64 / 1e6
    };
    requests.iter().map(&mut service).collect()
}

/// All ends until none is under way.
pub(super) fn drain(drive: &mut Drive) -> Vec<Completion> {
    let mut ends = Vec::new();
    while let Some(at) = drive.next() {
        ends.extend(drive.completed(at));
    }
    ends
}

/// Whether all numbers are those, but for a microsecond.
#[track_caller]
pub(super) fn assert_ms(found: &[f64], expected: &[f64]) {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-3;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(close),
        "found {found:?}, expected {expected:?}"
    );
}
