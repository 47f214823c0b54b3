//! Traces of single requests with the time that each took on a real drive (DiskSim's validation format).
//!
//! ```text
//! R Hit 4583176 4 663.00000 45422.00000
//! │ │   │       │ │         └ microseconds of thinking: before this request, or after it
//! │ │   │       │ └ microseconds that the drive took
//! │ │   │       └ sectors of 512 bytes
//! │ │   └ first sector
//! │ └ Hit or Miss: ignored, since drives do not say
//! └ R or W
//! ```
//!
//! A trace does not say whether its last column precedes or follows its request. The reader keeps records as they are;
//! [`samples`] makes moments of them under one reading, and the estimator finds which one it is.

use crate::Sample;
use lamina_drive::{Op, Request};
use std::fmt;

/// A line of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// What was asked.
    pub request: Request,
    /// How long it took, in microseconds.
    pub service_us: f64,
    /// The pause before or after it, in microseconds.
    pub think_us: f64,
}

/// Which pause the last column of a trace is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Think {
    /// The pause between the end of the request before and this request.
    Before,
    /// The pause between the end of this request and the next.
    After,
}

/// A line that is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// The mistake.
    pub message: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for TraceError {}

/// The longest time or pause of a record, in microseconds: a day.
pub const MICROSECONDS_MAX: f64 = 86_400e6;
/// The sector behind the last that a drive can have: 2^63 bytes.
const SECTOR_MAX: u64 = 1 << 54;

/// Reads a trace. Empty lines and lines that begin with `#` are skipped.
pub fn parse(text: &str) -> Result<Vec<Record>, TraceError> {
    let lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    let records = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    records.map(|(n, line)| record(line).map_err(|message| TraceError { line: n, message })).collect()
}

/// The moments of `records`, if their pauses are `think`. The first request starts at 0 or after its pause.
pub fn samples(records: &[Record], think: Think) -> Vec<Sample> {
    let mut now = 0.0;
    let mut sample = |record: &Record| {
        let (before, after) = match think {
            Think::Before => (record.think_us, 0.0),
            Think::After => (0.0, record.think_us),
        };
        let started_us = now + before;
        now = started_us + record.service_us + after;
        Sample { request: record.request, started_us, service_us: record.service_us }
    };
    records.iter().map(&mut sample).collect()
}

fn record(line: &str) -> Result<Record, String> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [op, cached, lbn, sectors, service, think] = fields[..] else {
        return Err(format!("{} columns, not 6: R|W Hit|Miss LBN BLOCKS SERVICE_US THINK_US", fields.len()));
    };
    if !["Hit", "Miss"].contains(&cached) {
        return Err(format!("\"{cached}\" is neither Hit nor Miss"));
    }
    let request =
        Request { op: operation(op)?, lbn: whole("LBN", lbn)?, sectors: whole("number of blocks", sectors)? };
    if request.sectors == 0 {
        return Err("a request of 0 blocks".into());
    }
    if request.lbn >= SECTOR_MAX {
        return Err(format!("LBN {lbn} is behind the end of every drive"));
    }
    Ok(Record { request, service_us: time("service time", service)?, think_us: time("think time", think)? })
}

fn operation(word: &str) -> Result<Op, String> {
    match word {
        "R" => Ok(Op::Read),
        "W" => Ok(Op::Write),
        other => Err(format!("\"{other}\" is no operation: R or W")),
    }
}

fn whole<T: std::str::FromStr>(what: &str, word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("\"{word}\" is no {what}"))
}

fn time(what: &str, word: &str) -> Result<f64, String> {
    let value: f64 = word.parse().map_err(|_| format!("\"{word}\" is no {what} in microseconds"))?;
    match (0.0..=MICROSECONDS_MAX).contains(&value) {
        true => Ok(value),
        false => Err(format!("{what} {word} us is outside 0..={MICROSECONDS_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read() {
        let records = parse("# made by hand\nR Hit 4583176 4 663.5 45422.0\n\nW Miss 7 2 1 0\n").unwrap();
        let first = Request { op: Op::Read, lbn: 4_583_176, sectors: 4 };
        assert_eq!(records.len(), 2);
        assert_eq!(records[0], Record { request: first, service_us: 663.5, think_us: 45422.0 });
        assert_eq!(records[1].request.op, Op::Write);
    }

    #[test]
    fn pauses_precede_or_follow() {
        let records = parse("R Hit 0 1 10 100\nR Hit 0 1 20 200\nR Hit 0 1 30 300\n").unwrap();
        let starts = |think| samples(&records, think).iter().map(|s| s.started_us).collect::<Vec<_>>();
        assert_eq!(starts(Think::Before), [100.0, 310.0, 630.0]);
        assert_eq!(starts(Think::After), [0.0, 110.0, 330.0]);
    }

    #[test]
    fn a_mistake_names_its_line() {
        let cases = [
            ("X Hit 1 1 1 1", "\"X\" is no operation: R or W"),
            ("R Hot 1 1 1 1", "\"Hot\" is neither Hit nor Miss"),
            ("R Hit 1 1 1", "5 columns, not 6"),
            ("R Hit -1 1 1 1", "\"-1\" is no LBN"),
            ("R Hit 18014398509481984 1 1 1", "behind the end of every drive"),
            ("R Hit 1 0 1 1", "a request of 0 blocks"),
            ("R Hit 1 99999999999 1 1", "\"99999999999\" is no number of blocks"),
            ("R Hit 1 1 NaN 1", "service time NaN us is outside"),
            ("R Hit 1 1 1 -1", "think time -1 us is outside"),
            ("R Hit 1 1 1 1e300", "think time 1e300 us is outside"),
            ("R Hit 1 1 soon 1", "\"soon\" is no service time in microseconds"),
        ];
        for (line, expected) in cases {
            let message = parse(&format!("R Hit 0 1 1 1\n{line}\n")).unwrap_err().to_string();
            assert!(message.starts_with("line 2: ") && message.contains(expected), "{line}: {message}");
        }
    }
}
