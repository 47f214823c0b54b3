//! fio's iologs, versions 2 and 3 (fio(1), "Trace file format").
//!
//! ```text
//!      fio version 2 iolog          fio version 3 iolog
//!      /dev/sda add                 0 /dev/sda add
//!      /dev/sda open                3 /dev/sda open
//!      /dev/sda read 4096 512       10 /dev/sda read 4096 512
//!      /dev/sda wait 1000 0         1020 /dev/sda sync 0 0
//! ```
//!
//! Version 3 begins each line with microseconds since the begin. In version 2 a `wait` is that many microseconds after
//! the wait before it, so that the times of requests are sums of waits.

use super::line::nanoseconds;
use super::text::{Read, shown};
use super::{Format, Record, Units, request};
use lamina_block::Time;
use lamina_drive::Op;
use std::time::Duration;

/// The wish of a line.
enum Asked {
    Io(Op),
    Wait,
    /// `add`, `open`, `close`.
    File,
}

/// The format of a trace whose first line this is.
pub(super) fn format_of(line: &str) -> Option<Format> {
    match line {
        "fio version 2 iolog" => Some(Format::Fio2),
        "fio version 3 iolog" => Some(Format::Fio3),
        _ => None,
    }
}

pub(super) fn version_2(line: &str, units: &mut Units, waited: &mut Time) -> Read {
    if format_of(line).is_some() {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (unit, action, place) = split(&fields, "FILE ACTION [OFFSET LENGTH]")?;
    match asked(action)? {
        Asked::Io(op) => io(*waited, unit, op, place, units),
        Asked::Wait => {
            let time = place.first().and_then(|text| text.parse().ok());
            let time = time.ok_or("wait MICROSECONDS 0")?;
            *waited = waited.after(Duration::from_micros(time));
            Ok(None)
        }
        Asked::File => Ok(None),
    }
}

pub(super) fn version_3(line: &str, units: &mut Units) -> Read {
    if format_of(line).is_some() {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split_whitespace().collect();
    let expected = "MICROSECONDS FILE ACTION [OFFSET LENGTH]";
    let (time, rest) = fields.split_first().ok_or(expected)?;
    let (unit, action, place) = split(rest, expected)?;
    let at = nanoseconds(time, 1000).ok_or_else(|| format!("{expected}, not {:?}", shown(time)))?;
    match asked(action)? {
        Asked::Io(op) => io(Time(at), unit, op, place, units),
        Asked::Wait | Asked::File => Ok(None),
    }
}

fn split<'a>(fields: &'a [&'a str], expected: &str) -> Result<(&'a str, &'a str, &'a [&'a str]), String> {
    match fields {
        [unit, action, place @ ..] => Ok((unit, action, place)),
        _ => Err(expected.into()),
    }
}

fn asked(action: &str) -> Result<Asked, String> {
    match action {
        "read" => Ok(Asked::Io(Op::Read)),
        "write" => Ok(Asked::Io(Op::Write)),
        "trim" => Ok(Asked::Io(Op::Discard)),
        "sync" | "datasync" | "sync_file_range" => Ok(Asked::Io(Op::Flush)),
        "wait" => Ok(Asked::Wait),
        "add" | "open" | "close" => Ok(Asked::File),
        other => Err(format!(
            "an action (read, write, trim, sync, datasync, wait, add, open, close), not {:?}",
            shown(other)
        )),
    }
}

fn io(at: Time, unit: &str, op: Op, place: &[&str], units: &mut Units) -> Read {
    let numbers: Option<Vec<u64>> = place.iter().map(|text| text.parse().ok()).collect();
    let (offset, length) = match (op, numbers.as_deref()) {
        (Op::Flush, _) => (0, 0),
        (Op::Read | Op::Write | Op::Discard, Some([offset, length])) => (*offset, *length),
        (Op::Read | Op::Write | Op::Discard, _) => return Err("OFFSET LENGTH behind the action".into()),
    };
    let unit = units.number(unit)?;
    Ok(request(op, offset, length)?.map(|request| Record { at, unit, request }))
}
