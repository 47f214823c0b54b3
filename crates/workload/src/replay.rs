//! A trace as a workload.
//!
//! Open loop: a request is sent when the trace says, divided by the speed, whatever happened to those before. Closed
//! loop: each volume of the trace has a number of clients that send its requests one after the other, as fast as they
//! are answered; times are ignored.
//!
//! Each volume of the trace is a client (closed: so many clients). Volumes lie one behind the other, at multiples of
//! 1 MiB, in the order in which they appear. Addresses beyond the disk are refused, or wrapped around.
//!
//! The requests are in memory, 24 bytes each, because those of one volume may come long after those of another.

use crate::trace::{Record, Trace, TraceError};
use crate::{Action, Workload};
use lamina_block::{Bytes, Time};
use lamina_drive::{Op, Request, SECTOR};
use std::sync::Arc;

/// The most requests of a trace: 2.4 GB of memory.
const REQUESTS_MAX: u64 = 100_000_000;
/// Sectors to a multiple of which a volume begins.
const ALIGNMENT: u64 = 2048;

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplayOptions {
    /// Open loop: so many times as fast as it was recorded, above 0.
    pub speed: f64,
    /// Closed loop with so many requests of each volume under way; `None`: open loop.
    pub depth: Option<u32>,
    /// Addresses beyond the disk wrap around, instead of being refused.
    pub wrap: bool,
    /// Only the first so many requests.
    pub requests: u64,
}

impl Default for ReplayOptions {
    fn default() -> ReplayOptions {
        ReplayOptions { speed: 1.0, depth: None, wrap: false, requests: u64::MAX }
    }
}

/// The requests of a trace that was read, for any number of replays.
#[derive(Debug)]
pub struct Recorded {
    /// Of each volume, its requests in the order of their times.
    volumes: Vec<Vec<Timed>>,
    options: ReplayOptions,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Timed {
    /// Since the first request of the trace.
    at: Time,
    request: Request,
}

impl Recorded {
    /// Reads traces that were made together: the files of a blktrace, one for each processor. The disk has `sectors`
    /// sectors.
    pub fn read(traces: Vec<Trace>, options: ReplayOptions, sectors: u64) -> Result<Recorded, String> {
        let mut recorded = Recorded { volumes: Vec::new(), options };
        let (mut read, mut others, mut has_times) = (0, 0, true);
        let (files, most) = (traces.len(), usize::try_from(options.requests).unwrap_or(usize::MAX));
        for mut trace in traces {
            for record in trace.by_ref().take(most) {
                recorded.add(record.map_err(|e: TraceError| e.to_string())?);
                read += 1;
                if read > REQUESTS_MAX {
                    return Err(format!("more than {REQUESTS_MAX} requests: take fewer with requests=N"));
                }
            }
            others += trace.others();
            has_times &= trace.has_times();
        }
        if files > 1 {
            recorded.keep_first(most);
        }
        match options.depth {
            _ if read == 0 => Err(format!(
                "there is no request among {others} lines or events; of a blktrace with only dispatched requests, take \
                 these with event=D"
            )),
            None if !has_times => {
                Err("the trace has no times: replay it in a closed loop, with depth=N".into())
            }
            None | Some(_) => recorded.placed(sectors),
        }
    }

    fn add(&mut self, record: Record) {
        let unit = record.unit as usize;
        if self.volumes.len() <= unit {
            self.volumes.resize_with(unit + 1, Vec::new);
        }
        self.volumes[unit].push(Timed { at: record.at, request: record.request });
    }

    /// Keeps the first `most` requests of all volumes together, by their times.
    fn keep_first(&mut self, most: usize) {
        let mut times: Vec<Time> = self.volumes.iter().flatten().map(|timed| timed.at).collect();
        if times.len() <= most {
            return;
        }
        let (_, last, _) = times.select_nth_unstable(most);
        // Of those at the very last moment, as many as there is room for.
        let mut room = most - self.volumes.iter().flatten().filter(|timed| timed.at < *last).count();
        for volume in &mut self.volumes {
            volume.retain(|timed| {
                let is_last = timed.at == *last && room > 0;
                room -= is_last as usize;
                timed.at < *last || is_last
            });
        }
    }

    /// Sorts the requests by time, begins at zero, and puts the volumes onto a disk of `sectors` sectors.
    fn placed(mut self, sectors: u64) -> Result<Recorded, String> {
        let begin = self.volumes.iter().flatten().map(|timed| timed.at).min().unwrap_or_default();
        let too_far =
            || "the volumes one behind the other have more than 2^64 sectors: replay one of them".to_owned();
        let mut base = 0u64;
        for volume in &mut self.volumes {
            volume.sort_by_key(|timed| timed.at);
            let end = volume.iter().map(|timed| timed.request.end()).max().unwrap_or(0);
            for timed in volume {
                timed.at = Time(timed.at.0 - begin.0);
                timed.request.lbn = timed.request.lbn.checked_add(base).ok_or_else(too_far)?;
            }
            base = base
                .checked_add(end)
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(too_far)?;
        }
        self.fit(sectors)?;
        Ok(self)
    }

    /// Has every request inside of the disk, or says what is outside.
    fn fit(&mut self, sectors: u64) -> Result<(), String> {
        let requests = || self.volumes.iter().flatten();
        let end = requests().map(|timed| timed.request.end()).max().unwrap_or(0);
        if end <= sectors {
            return Ok(());
        }
        let longest = requests().map(|timed| timed.request.sectors as u64).max().unwrap_or(0);
        if !self.options.wrap || longest > sectors {
            let volumes = self.volumes.len();
            return Err(format!(
                "the trace needs a disk of {} ({volumes} volumes one behind the other), and this one has {}; with \
                 wrap=yes its addresses wrap around",
                Bytes(end.saturating_mul(SECTOR)),
                Bytes(sectors * SECTOR)
            ));
        }
        for Timed { request, .. } in self.volumes.iter_mut().flatten() {
            request.lbn %= sectors;
            request.lbn = request.lbn.min(sectors - request.sectors as u64);
        }
        Ok(())
    }

    /// Whether there is any request that changes the disk.
    pub fn changes(&self) -> bool {
        let changes = |timed: &Timed| matches!(timed.request.op, Op::Write | Op::Discard);
        self.volumes.iter().flatten().any(changes)
    }

    /// How many requests there are.
    pub fn requests(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.len() as u64).sum()
    }
}

/// A replay that is under way.
pub struct Replay {
    recorded: Arc<Recorded>,
    /// Of each volume, the next request.
    next: Vec<usize>,
}

impl Replay {
    /// A replay from the begin.
    pub fn new(recorded: Arc<Recorded>) -> Replay {
        let next = vec![0; recorded.volumes.len()];
        Replay { recorded, next }
    }
}

impl Workload for Replay {
    fn clients(&self) -> u32 {
        let clients = self.next.len() as u64 * self.recorded.options.depth.unwrap_or(1) as u64;
        clients.min(u32::MAX as u64) as u32
    }

    fn next(&mut self, client: u32, now: Time) -> Action {
        let ReplayOptions { speed, depth, .. } = self.recorded.options;
        let volume = (client / depth.unwrap_or(1).max(1)) as usize;
        let Some(next) = self.next.get_mut(volume) else { return Action::End };
        let Some(timed) = self.recorded.volumes[volume].get(*next) else { return Action::End };
        let due = Time((timed.at.0 as f64 / speed) as u64);
        if depth.is_none() && due > now {
            return Action::Sleep(due.since(now));
        }
        *next += 1;
        Action::Submit { request: timed.request, wait: depth.is_some() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Options;

    fn record(us: u64, unit: u32, lbn: u64, sectors: u32) -> Record {
        Record { at: Time(us * 1000), unit, request: Request { op: Op::Read, lbn, sectors } }
    }

    fn recorded(records: &[Record], options: ReplayOptions, sectors: u64) -> Result<Recorded, String> {
        let mut recorded = Recorded { volumes: Vec::new(), options };
        records.iter().for_each(|record| recorded.add(*record));
        recorded.placed(sectors)
    }

    fn replay(records: &[Record], options: ReplayOptions, sectors: u64) -> Replay {
        Replay::new(Arc::new(recorded(records, options, sectors).expect("it fits")))
    }

    const THREE: &[Record] = &[
        Record { at: Time(7_000_000), unit: 0, request: Request { op: Op::Write, lbn: 8, sectors: 8 } },
        Record { at: Time(5_000_000), unit: 1, request: Request { op: Op::Read, lbn: 0, sectors: 1 } },
        Record { at: Time(6_000_000), unit: 0, request: Request { op: Op::Read, lbn: 3000, sectors: 8 } },
    ];

    fn lbn(action: Action) -> u64 {
        match action {
            Action::Submit { request, .. } => request.lbn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_open_loop_keeps_the_times_of_the_trace() {
        let mut replay = replay(THREE, ReplayOptions { speed: 2.0, ..ReplayOptions::default() }, 10_000);
        assert_eq!(replay.clients(), 2);
        let ms = |ms: u64| Time(ms * 1_000_000);
        let half = std::time::Duration::from_micros(500);
        // The later of the two requests of unit 0 stands first in the file.
        assert_eq!(replay.next(0, ms(0)), Action::Sleep(half));
        assert_eq!(lbn(replay.next(0, Time(500_000))), 3000);
        assert_eq!(replay.next(0, Time(500_000)), Action::Sleep(half));
        // Late is late: it is sent at once, and without waiting.
        let request = Request { op: Op::Write, lbn: 8, sectors: 8 };
        assert_eq!(replay.next(0, ms(50)), Action::Submit { request, wait: false });
        assert_eq!(replay.next(0, ms(50)), Action::End);
        // Unit 1 lies behind unit 0, whose end is 3008.
        assert_eq!(lbn(replay.next(1, ms(0))), 4096);
        assert_eq!(replay.next(1, ms(0)), Action::End);
        assert_eq!(replay.next(2, ms(0)), Action::End);
    }

    #[test]
    fn a_closed_loop_shares_a_volume_among_its_clients() {
        let records: Vec<Record> = (0..5).map(|n| record(0, 0, n * 8, 8)).collect();
        let options = ReplayOptions { depth: Some(2), ..ReplayOptions::default() };
        let mut replay = replay(&records, options, 1000);
        assert_eq!(replay.clients(), 2);
        let order = [0, 1, 1, 0, 1].map(|client| match replay.next(client, Time(0)) {
            Action::Submit { request, wait: true } => request.lbn / 8,
            other => panic!("{other:?}"),
        });
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert_eq!((replay.next(0, Time(0)), replay.next(1, Time(0))), (Action::End, Action::End));
    }

    #[test]
    fn of_several_files_the_first_requests_are_those_of_the_least_times() {
        let read = |requests| {
            let files = ["5,R,0,0,512\n7,R,0,512,512\n9,R,0,1024,512\n", "4,R,0,0,512\n7,R,0,512,512\n"];
            let open =
                |text: &'static str| Trace::read("x", text.as_bytes(), Options::default()).expect("a trace");
            let options = ReplayOptions { requests, ..ReplayOptions::default() };
            let recorded = Recorded::read(files.map(open).into(), options, 100).expect("it fits");
            recorded.volumes.concat().iter().map(|timed| timed.at.0 / 1000).collect::<Vec<_>>()
        };
        assert_eq!(read(1), [0]);
        assert_eq!(read(3), [0, 1, 3]);
        assert_eq!(read(4), [0, 1, 3, 3]);
        assert_eq!(read(u64::MAX), [0, 1, 3, 3, 5]);
    }

    #[test]
    fn volumes_that_reach_too_far_together_are_refused() {
        let records: Vec<Record> = (0..3).map(|unit| record(0, unit, u64::MAX / 2 - 8, 8)).collect();
        let options = ReplayOptions { wrap: true, ..ReplayOptions::default() };
        let refused = recorded(&records, options, 1000).expect_err("2^64 sectors");
        assert!(refused.contains("replay one of them"), "{refused}");
    }

    #[test]
    fn what_is_beyond_the_disk_is_refused_or_wrapped() {
        let records = [record(0, 0, 1000, 8), record(1, 0, 1020, 8), record(2, 0, 5, 4)];
        let refused = recorded(&records, ReplayOptions::default(), 1024).expect_err("1028 sectors");
        assert!(refused.contains("wrap=yes") && refused.contains("512KiB"), "{refused}");
        let options = ReplayOptions { wrap: true, ..ReplayOptions::default() };
        let mut wrapped = replay(&records, options, 1010);
        let places = [0, 1000, 2000].map(|ns| lbn(wrapped.next(0, Time(ns))));
        assert_eq!(places, [1000, 10, 5]);
        let refused = recorded(&records, options, 7).expect_err("a request is longer than the disk");
        assert!(refused.contains("needs a disk"), "{refused}");
    }
}
