//! Traces: any bytes are read as each format, or as the one that they seem to have, and what they hold is replayed.
//!
//! The first byte chooses the format, by its four low bits a place in `Format::ALL` or none, and by the next bit the
//! event. What must hold: no panic, no hang, no more memory than the fuzzer allows; every error of a trace names the
//! input, and every error of a replay says something; every request of a replay lies on the disk; a replay, at the
//! trace's times or two at a time, sends as many requests as were read.

#![no_main]

use lamina_block::Time;
use lamina_workload::trace::{Event, Format, Options, Trace};
use lamina_workload::{Action, Recorded, Replay, ReplayOptions, Workload};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;
use std::sync::Arc;

const SECTORS: u64 = 1 << 20;

fn open(bytes: &[u8], options: Options) -> Option<Trace> {
    match Trace::read("input", Cursor::new(bytes.to_vec()), options) {
        Ok(trace) => Some(trace),
        Err(e) => {
            assert!(e.to_string().starts_with("input"));
            None
        }
    }
}

/// Sends everything, and counts it.
fn replay(recorded: Arc<Recorded>) -> u64 {
    let mut replay = Replay::new(recorded);
    let mut sent = 0;
    for client in 0..replay.clients() {
        loop {
            match replay.next(client, Time(u64::MAX)) {
                Action::Submit { request, .. } => {
                    assert!(request.end() <= SECTORS);
                    sent += 1;
                }
                Action::End => break,
                Action::Sleep(_) | Action::WaitFor(_) | Action::Join => panic!("all times are past"),
            }
        }
    }
    sent
}

fuzz_target!(|input: &[u8]| {
    let [choice, bytes @ ..] = input else { return };
    let format = Format::ALL.get((choice & 15) as usize).map(|(_, format)| *format);
    let event = if choice & 16 == 0 { Event::Queued } else { Event::Dispatched };
    let options = Options { format, event };
    let Some(trace) = open(bytes, options) else { return };
    let mut read = 0;
    for record in trace {
        match record {
            Ok(_) => read += 1,
            Err(e) => {
                assert!(e.to_string().starts_with("input"));
                return;
            }
        }
    }
    for depth in [None, Some(2)] {
        let Some(trace) = open(bytes, options) else { panic!("the same bytes are not read alike") };
        let how = ReplayOptions { depth, wrap: true, ..ReplayOptions::default() };
        match Recorded::read(vec![trace], how, SECTORS) {
            Ok(recorded) => {
                assert_eq!(recorded.requests(), read);
                assert_eq!(replay(Arc::new(recorded)), read);
            }
            Err(e) => assert!(!e.is_empty()),
        }
    }
});
