//! The requests to the daemon: one for its state at each tick, and little else.

use super::state::{Answer, Queries};
use crate::api::{Event, Snapshot, Verb, Why};
use crate::control::Client;
use crate::uri::encoded;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A daemon that does not answer within this time hangs.
pub const LIMIT: Duration = Duration::from_secs(5);
/// The first figures come after this time, even if the interval is longer.
const FIRST: Duration = Duration::from_secs(1);
/// Time between two questions for the samples of an export.
const SAMPLES_AGAIN: Duration = Duration::from_secs(2);
/// Exports whose samples are asked for at a tick, at most.
const SAMPLES_MOST: usize = 8;

/// Asks a daemon at each tick.
pub struct Poller {
    client: Client,
    interval: Duration,
    /// The process of the last answer.
    pid: Option<u32>,
    /// The number of the last event.
    event: u64,
    /// When samples of an export were asked for.
    asked: BTreeMap<String, Instant>,
    queries: Queries,
}

impl Poller {
    /// A poller of this daemon.
    pub fn new(client: Client, interval: Duration) -> Poller {
        let (asked, queries) = (BTreeMap::new(), Queries::default());
        Poller { client, interval, pid: None, event: 0, asked, queries }
    }

    /// Tells answers until nobody listens any more.
    pub fn run(mut self, queries: &Receiver<Queries>, mut tell: impl FnMut(Answer) -> bool) {
        let mut end = Instant::now() + self.interval.min(FIRST);
        loop {
            match queries.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(queries) => {
                    self.queries = queries;
                    if !self.commands().is_none_or(&mut tell) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    end = Instant::now() + self.interval;
                    if !self.queries.is_paused && !self.tick().into_iter().all(&mut tell) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// The state, what has happened since the last tick, and the samples of some exports.
    fn tick(&mut self) -> Vec<Answer> {
        let snapshot: Snapshot = match self.client.get_within("/v1/hierarchy", LIMIT) {
            Ok(snapshot) => snapshot,
            Err(failure) => return vec![Answer::Failed(failure.into_message())],
        };
        if self.pid.replace(snapshot.pid) != Some(snapshot.pid) {
            self.event = 0;
            self.asked.clear();
        }
        let mut answers = vec![Answer::Snapshot(Box::new(snapshot))];
        // If one of these fails, the daemon has just gone away, which the next tick tells; or the export has.
        if let Ok(events) =
            self.client.get_within::<Vec<Event>>(&format!("/v1/events?after={}", self.event), LIMIT)
        {
            self.event = events.last().map_or(self.event, |last| last.number);
            answers.push(Answer::Events(events));
        }
        for export in due(&self.queries.exports, &self.asked, Instant::now()) {
            let path = format!("/v1/exports/{}/why", encoded(&export, ""));
            if let Ok(why) = self.client.get_within::<Why>(&path, LIMIT) {
                answers.push(Answer::Why(why));
            }
            self.asked.insert(export, Instant::now());
        }
        answers.extend(self.commands());
        answers
    }

    /// The commands of the device that is shown in depth, once.
    fn commands(&mut self) -> Option<Answer> {
        let device = self.queries.commands.clone().filter(|_| !self.queries.is_paused)?;
        let path = format!("/v1/devices/{}/commands", encoded(&device, ""));
        let verbs: Vec<Verb> = self.client.get_within(&path, LIMIT).ok()?;
        self.queries.commands = None;
        Some(Answer::Commands(device, verbs))
    }
}

/// The exports to ask for samples now: those that were asked longest ago first.
fn due(wanted: &[String], asked: &BTreeMap<String, Instant>, now: Instant) -> Vec<String> {
    let is_due = |export: &&String| {
        asked.get(*export).is_none_or(|at| now.saturating_duration_since(*at) >= SAMPLES_AGAIN)
    };
    let mut due: Vec<String> = wanted.iter().filter(is_due).cloned().collect();
    // None is before every time.
    due.sort_by_key(|export| asked.get(export).copied());
    due.truncate(SAMPLES_MOST);
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_exports_are_asked_and_none_too_often() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let wanted: Vec<String> = (0..12).map(|n| format!("vm{n}")).collect();
        let first = due(&wanted, &BTreeMap::new(), at(0));
        assert_eq!(first, wanted[..8]);
        let mut asked: BTreeMap<String, Instant> = first.into_iter().map(|export| (export, at(0))).collect();
        let second = due(&wanted, &asked, at(1000));
        assert_eq!(second, wanted[8..]);
        asked.extend(second.into_iter().map(|export| (export, at(1000))));
        assert_eq!(due(&wanted, &asked, at(1999)), Vec::<String>::new());
        // Those that have waited longest come first.
        asked.insert("vm3".into(), at(10));
        let third = due(&wanted, &asked, at(5000));
        assert_eq!((third.len(), third[7].as_str()), (8, "vm3"));
    }
}
