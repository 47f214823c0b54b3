//! Logs: to standard error, one line each, filtered by target and level. What is about a device becomes an event,
//! whatever the filter is.

use crate::events::{Collector, Journal};
use std::io::IsTerminal;
use std::sync::Arc;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Starts logging, and gives the events. A filter that cannot be read is reported and replaced by `info`.
///
/// Spans and events that are filtered out cost one comparison, so the per-request trace points are free unless asked
/// for.
pub fn start(filter: Option<&str>) -> Arc<Journal> {
    let (targets, wrong) = match filter.unwrap_or("info").parse::<Targets>() {
        Ok(targets) => (targets, None),
        Err(e) => (Targets::new().with_default(LevelFilter::INFO), Some(e)),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter(targets);
    let journal = Arc::new(Journal::default());
    let events = Collector(Arc::clone(&journal)).with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(lines).with(events).init();
    if let Some(e) = wrong {
        tracing::warn!(error = %e, "the log filter cannot be read; logging at info");
    }
    journal
}
