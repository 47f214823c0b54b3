//! Lines of the text formats. An error is what was expected.

use super::line::nanoseconds;
use super::{Event, Format, Record, Units, request};
use lamina_block::Time;
use lamina_drive::{Op, SECTOR};

const CSV_HEAD: &str = "t_us,op,dev,offset_bytes,size_bytes";

/// The meaning of a line: a request, or (`None`) none of those that are asked for; or an error with the expected text.
pub(super) type Read = Result<Option<Record>, String>;

/// The format of a trace whose first line this is.
pub(super) fn format_of(line: &str) -> Option<Format> {
    if line == CSV_HEAD {
        return Some(Format::Csv);
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    match fields[..] {
        [_, _, _, op, time] if spc_op(op).is_some() && time.contains('.') => Some(Format::Spc),
        [_, op, ..] if fields.len() == 5 && csv_op(op).is_some() => Some(Format::Csv),
        [_, _, _, op, _] if spc_op(op).is_some() => Some(Format::Spc),
        [_, _, _, op, _, _, _] if msr_op(op).is_some() => Some(Format::Msr),
        [one] => spaced(one),
        // "8,0" is a device of blkparse.
        [_, _] | [_, _, _] => spaced(line),
        _ => None,
    }
}

fn spaced(line: &str) -> Option<Format> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_number = |text: &&str| text.parse::<u64>().is_ok();
    match fields[..] {
        [device, cpu, sequence, time, pid, ..]
            if device
                .split_once(',')
                .is_some_and(|(major, minor)| is_number(&major) && is_number(&minor))
                && [cpu, sequence, pid].iter().all(is_number)
                && nanoseconds(time, 1).is_some() =>
        {
            Some(Format::Blkparse)
        }
        [_, _, _, _] if fields.iter().all(is_number) => Some(Format::Lis),
        _ => None,
    }
}

fn csv_op(text: &str) -> Option<Op> {
    match text {
        "R" | "r" => Some(Op::Read),
        "W" | "w" => Some(Op::Write),
        "F" | "f" => Some(Op::Flush),
        "D" | "d" => Some(Op::Discard),
        _ => None,
    }
}

fn spc_op(text: &str) -> Option<Op> {
    csv_op(text).filter(|op| matches!(op, Op::Read | Op::Write))
}

fn msr_op(text: &str) -> Option<Op> {
    match text {
        "Read" => Some(Op::Read),
        "Write" => Some(Op::Write),
        _ => None,
    }
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{what} as a number, not {:?}", shown(text)))
}

fn time(text: &str, unit: u64, what: &str) -> Result<Time, String> {
    nanoseconds(text, unit).map(Time).ok_or_else(|| format!("{what} as a number, not {:?}", shown(text)))
}

/// As much of a field as a message has room for.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

fn record(at: Time, unit: u32, op: Op, offset: u64, size: u64) -> Read {
    Ok(request(op, offset, size)?.map(|request| Record { at, unit, request }))
}

/// `t_us,op,dev,offset_bytes,size_bytes`
pub(super) fn csv(line: &str, units: &mut Units) -> Read {
    if line == CSV_HEAD {
        return Ok(None);
    }
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [at, op, unit, offset, size] = fields[..] else { return Err(CSV_HEAD.into()) };
    let at = time(at, 1000, "t_us")?;
    let op = csv_op(op).ok_or_else(|| format!("op R, W, F or D, not {:?}", shown(op)))?;
    record(at, units.number(unit)?, op, number(offset, "offset_bytes")?, number(size, "size_bytes")?)
}

/// `asu,lba,size,op,time`, and further fields that are ignored.
pub(super) fn spc(line: &str, units: &mut Units) -> Read {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [unit, lba, size, op, at, ..] = fields[..] else { return Err("asu,lba,size,op,time".into()) };
    let op = spc_op(op).ok_or_else(|| format!("op R or W, not {:?}", shown(op)))?;
    let offset = number(lba, "lba")?.checked_mul(SECTOR).ok_or("an lba below 2^55")?;
    record(time(at, 1_000_000_000, "time")?, units.number(unit)?, op, offset, number(size, "size")?)
}

/// `timestamp,host,disk,type,offset,size,response`
pub(super) fn msr(line: &str, units: &mut Units) -> Read {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [at, host, disk, op, offset, size, _] = fields[..] else {
        return Err("timestamp,host,disk,type,offset,size,response".into());
    };
    let op = msr_op(op).ok_or_else(|| format!("type Read or Write, not {:?}", shown(op)))?;
    let at = time(at, 100, "timestamp")?;
    let unit = units.number(&format!("{host},{disk}"))?;
    record(at, unit, op, number(offset, "offset")?, number(size, "size")?)
}

/// `start blocks ignored number`: reads of blocks of 512 bytes, without times.
pub(super) fn lis(line: &str) -> Read {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [start, blocks, _, _] = fields[..] else { return Err("start blocks ignored number".into()) };
    let bytes = |text, what| number(text, what)?.checked_mul(SECTOR).ok_or(format!("{what} below 2^55"));
    record(Time(0), 0, Op::Read, bytes(start, "start")?, bytes(blocks, "blocks")?)
}

/// `major,minor cpu sequence time pid action rwbs sector + sectors [process]`. Lines of other forms (the summary at the
/// end, messages, plugs) are none of the chosen event.
pub(super) fn blkparse(line: &str, units: &mut Units, event: Event) -> Read {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [unit, _, _, at, _, action, flags, ref place @ ..] = fields[..] else { return Ok(None) };
    let wanted = match event {
        Event::Queued => "Q",
        Event::Dispatched => "D",
    };
    if action != wanted || !unit.contains(',') {
        return Ok(None);
    }
    let at = time(at, 1_000_000_000, "the time")?;
    let unit = units.number(unit)?;
    let (sector, sectors) = match place {
        [sector, "+", sectors, ..] => (number(sector, "the sector")?, number(sectors, "the sectors")?),
        // A flush has no place.
        _ if flags.contains('F') => (0, 0),
        _ => return Err("SECTOR + SECTORS behind the flags".into()),
    };
    // The flags begin with F (flush before), then have one letter for the operation; a flush alone is "FN" or "FF".
    let op = match flags.trim_start_matches('F').chars().next() {
        Some('R') => Op::Read,
        Some('W') => Op::Write,
        Some('D') => Op::Discard,
        None | Some('N') if flags.starts_with('F') => Op::Flush,
        _ => return Ok(None),
    };
    // A write of nothing that flushes is a flush.
    let op = if sectors == 0 && flags.starts_with('F') { Op::Flush } else { op };
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR).ok_or("sectors below 2^55");
    record(at, unit, op, bytes(sector)?, bytes(sectors)?)
}
