//! Events: what has happened to devices, as the log tells it. The last ones are kept.
//!
//! ```text
//!      the log: lines about a device, and all warnings ──▶ the last 1,000, in memory ──▶ GET /v1/events
//!                                                             ├──▶ a file, if wanted       `lamina events`
//!                                                             └──▶ a program, if wanted
//! ```
//!
//! An event that is the same as the last one of its device takes that one's place, and says how often it has happened:
//! what is tried again every second does not push out the rest. The threads of the cores put events into memory and go
//! on; the thread of the control plane does what may take longer.

mod command;
mod keeper;
mod log_file;

pub use command::{line, run, shown, time};
pub use keeper::Keeper;

use crate::api::Event;
use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// So many events are kept.
pub const MOST: usize = 1000;

/// What is done with events is in the log alone: otherwise it would become events again.
const OWN: &str = "lamina::events";

/// The fields that name what an event is about.
const DEVICE: [&str; 2] = ["device", "volume"];

/// The last events.
#[derive(Default)]
pub struct Journal {
    events: Mutex<VecDeque<Event>>,
    moved: Notify,
}

impl Journal {
    fn events(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.events.lock().expect("nobody panics while it is locked")
    }

    /// Events of earlier processes come first.
    fn begin_with(&self, earlier: Vec<Event>) {
        let mut events = self.events();
        let since: Vec<Event> = std::mem::take(&mut *events).into();
        earlier.into_iter().for_each(|event| put(&mut events, event));
        since.into_iter().for_each(|event| add(&mut events, event));
    }

    /// Something has happened.
    fn add(&self, event: Event) {
        add(&mut self.events(), event);
        self.moved.notify_one();
    }

    /// Those after the one with this number, in their order.
    pub fn after(&self, number: u64) -> Vec<Event> {
        self.events().iter().filter(|event| event.number > number).cloned().collect()
    }

    /// The number of the newest one; 0 if there is none.
    pub fn last(&self) -> u64 {
        self.events().back().map_or(0, |event| event.number)
    }

    /// Waits until there may be one after this.
    async fn moved_after(&self, number: u64) {
        while self.events().back().is_none_or(|last| last.number <= number) {
            self.moved.notified().await;
        }
    }
}

/// Puts an event behind the others, with its number and how often it has happened.
fn add(events: &mut VecDeque<Event>, event: Event) {
    let number = events.back().map_or(1, |last| last.number + 1);
    let times = last_of(events, &event).map_or(1, |at| events[at].times.saturating_add(1));
    put(events, Event { number, times, ..event });
}

/// Puts an event behind the others, in the place of the last one of its device if that is the same.
fn put(events: &mut VecDeque<Event>, event: Event) {
    if let Some(at) = last_of(events, &event) {
        events.remove(at);
    }
    events.push_back(event);
    if events.len() > MOST {
        events.pop_front();
    }
}

/// Where the last event of its device is, if that says the same.
fn last_of(events: &VecDeque<Event>, event: &Event) -> Option<usize> {
    let at = events.iter().rposition(|before| before.device == event.device)?;
    let before = &events[at];
    (before.severity == event.severity && before.message == event.message).then_some(at)
}

/// Makes events of what is logged.
pub struct Collector(pub Arc<Journal>);

/// What an event is made of.
fn is_event(of: &Metadata<'_>) -> bool {
    let is_about_a_device = || of.fields().iter().any(|field| DEVICE.contains(&field.name()));
    let is_ours = of.target().starts_with("lamina") && !of.target().starts_with(OWN);
    of.is_event()
        && is_ours
        && (*of.level() <= Level::WARN || *of.level() == Level::INFO && is_about_a_device())
}

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if !is_event(event.metadata()) {
            return;
        }
        let mut words = Words::default();
        event.record(&mut words);
        let severity = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            _ => "info",
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.add(Event {
            number: 0,
            time_ms: since.as_millis() as u64,
            severity: severity.into(),
            device: words.device.take(),
            message: words.sentence(),
            times: 1,
        });
    }
}

/// The words of a line of the log.
#[derive(Default)]
struct Words {
    device: Option<String>,
    message: String,
    others: String,
}

impl Words {
    fn sentence(self) -> String {
        match self.others.is_empty() {
            true => self.message,
            false => format!("{} ({})", self.message, self.others),
        }
    }
}

impl Visit for Words {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name if DEVICE.contains(&name) && self.device.is_none() => {
                self.device = Some(format!("{value:?}").trim_matches('"').to_owned());
            }
            name => {
                let comma = if self.others.is_empty() { "" } else { ", " };
                let _ = write!(self.others, "{comma}{name}: {value:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::prelude::*;

    fn event(device: &str, message: &str) -> Event {
        Event {
            number: 0,
            time_ms: 5,
            severity: "info".into(),
            device: Some(device.into()),
            message: message.into(),
            times: 1,
        }
    }

    fn said(journal: &Journal) -> Vec<(u64, String, u64)> {
        journal.after(0).into_iter().map(|event| (event.number, event.message, event.times)).collect()
    }

    #[test]
    fn what_happens_again_takes_one_place() {
        let journal = Journal::default();
        for (device, message) in [("a", "lost"), ("b", "lost"), ("a", "lost"), ("a", "back"), ("a", "lost")] {
            journal.add(event(device, message));
        }
        let expected = [(2, "lost", 1), (3, "lost", 2), (4, "back", 1), (5, "lost", 1)];
        assert_eq!(
            said(&journal),
            expected.map(|(number, message, times)| (number, message.to_owned(), times))
        );
        assert_eq!(journal.after(3).len(), 2);
    }

    #[test]
    fn the_last_ones_are_kept() {
        let journal = Journal::default();
        (0..MOST + 7).for_each(|n| journal.add(event("a", &n.to_string())));
        let kept = said(&journal);
        assert_eq!((kept.len(), &kept[0].1[..], kept[0].0), (MOST, "7", 8));
    }

    #[test]
    fn numbers_go_on_after_those_of_earlier_processes() {
        let journal = Journal::default();
        journal.add(event("a", "early"));
        let earlier =
            vec![Event { number: 41, ..event("a", "before") }, Event { number: 42, ..event("b", "then") }];
        journal.begin_with(earlier);
        journal.add(event("b", "then"));
        let expected = [(41, "before", 1), (43, "early", 1), (44, "then", 2)];
        assert_eq!(
            said(&journal),
            expected.map(|(number, message, times)| (number, message.to_owned(), times))
        );
    }

    #[test]
    fn lines_of_the_log_become_sentences() {
        let journal = Arc::new(Journal::default());
        let subscriber = tracing_subscriber::registry().with(Collector(Arc::clone(&journal)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "lamina_x", device = "vm1", host = "b", error = %"gone", "a peer is lost");
            tracing::info!(target: "lamina_x", volume = "vm1", generation = 4, "taken");
            tracing::debug!(target: "lamina_x", device = "vm1", "a detail");
            tracing::info!(target: "other", device = "vm1", "of a library");
            tracing::warn!(target: "lamina::events::keeper", device = "vm1", "about events");
        });
        let found = journal.after(0);
        let said: Vec<_> = found.iter().map(|event| &event.message[..]).collect();
        assert_eq!(said, ["a peer is lost (host: b, error: gone)", "taken (generation: 4)"]);
        assert!(found.iter().all(|event| event.severity == "info" && event.time_ms > 0));
    }
}
