//! `lamina events`: what has happened to a daemon's devices.

use crate::api::Event;
use crate::cli;
use crate::colour::{BAD, DOUBTFUL, painted};
use crate::control::Client;
use crate::exit::Failure;
use anstyle::Style;
use std::io::Write;
use std::time::Duration;
use time::OffsetDateTime;

/// How often the daemon is asked for more.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs `lamina events`.
pub fn run(args: &cli::Events) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let is_wanted = |event: &Event| args.device.is_none() || event.device == args.device;
    let (mut after, mut is_first) = (0, true);
    loop {
        let events: Vec<Event> = client.get(&format!("/v1/events?after={after}"))?;
        after = events.last().map_or(after, |last| last.number);
        let events: Vec<Event> = events.into_iter().filter(is_wanted).collect();
        let mut out = anstream::stdout().lock();
        for event in &events {
            match args.json {
                true => writeln!(out, "{}", serde_json::to_string(event).map_err(Failure::failed)?)?,
                false => writeln!(out, "{}", painted(style(&event.severity), line(event)))?,
            }
        }
        if is_first && events.is_empty() && !args.json && !args.follow {
            writeln!(out, "nothing has happened")?;
        }
        out.flush()?;
        if !args.follow {
            return Ok(());
        }
        drop(out);
        is_first = false;
        std::thread::sleep(AGAIN);
    }
}

fn style(severity: &str) -> Style {
    match severity {
        "error" => BAD,
        "warning" => DOUBTFUL,
        _ => Style::new(),
    }
}

/// An event as a line.
pub fn line(event: &Event) -> String {
    let (time, device) = (time(event.time_ms), event.device.as_deref().unwrap_or("-"));
    let times = if event.times > 1 { format!(" ({} times)", event.times) } else { String::new() };
    format!("{time} {:7} {}: {}{times}", event.severity, shown(device), shown(&event.message))
}

/// Text without control characters: what a device says moves no cursor.
pub fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    safe
}

/// A time as people write it, in UTC: RFC 3339, to seconds.
pub fn time(ms: u64) -> String {
    let time = OffsetDateTime::from_unix_timestamp((ms / 1000) as i64).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (date, clock) = (time.date(), time.time());
    format!("{date}T{:02}:{:02}:{:02}Z", clock.hour(), clock.minute(), clock.second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_and_what() {
        let event = Event {
            number: 7,
            time_ms: 1_795_900_123_456,
            severity: "warning".into(),
            device: Some("vm1".into()),
            message: "a leg is lost\u{1b}[2J (error: gone)\n".into(),
            times: 3,
        };
        // What a device says moves no cursor.
        let expected = "2026-11-28T21:08:43Z warning vm1: a leg is lost\\u{1b}[2J (error: gone)\\n (3 times)";
        assert_eq!(line(&event), expected);
        assert_eq!(time(u64::MAX), "1970-01-01T00:00:00Z");
    }
}
