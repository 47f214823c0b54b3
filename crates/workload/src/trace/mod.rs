//! Traces of block requests: published formats, and Lamina's own.
//!
//! ```text
//!      gzip? ──▶ format, by the first bytes ──▶ a line or struct at a time ──▶ Record { at, unit, request }
//! ```
//!
//! | format | a record | time | size |
//! |---|---|---|---|
//! | `csv` | `t_us,op,dev,offset_bytes,size_bytes`; op R, W, F (flush) or D (discard) | microseconds | bytes |
//! | `spc` | `asu,lba,size,op,time` (SPC trace file format 1.0.1) | seconds | LBA of 512, size in bytes |
//! | `msr` | `timestamp,host,disk,type,offset,size,response` (MSR Cambridge, FAST 2008) | 100 ns since 1601 | bytes |
//! | `blkparse` | the default lines of blkparse(1) | seconds | sectors of 512 |
//! | `blktrace` | `struct blk_io_trace` of `linux/blktrace_api.h`, either byte order | nanoseconds | sector, bytes |
//! | `fio2`, `fio3` | fio's iolog: `[time] file action [offset length]` | fio3: microseconds; fio2: its waits | bytes |
//! | `lis` | `start blocks ignored number` (the traces of the ARC paper): reads | none | blocks of 512 |
//!
//! Invariants: any bytes are read without a panic, and in memory that does not depend on them but for the names of the
//! units, of which there are at most 65,536. An error names the file, the line (of binary traces the byte), and what
//! was expected there. Records come in the order of the file. A request of no bytes asks nothing and is left out.
//!
//! Deliberately not read: what a request was answered with, or how fast; who asked; events other than the chosen one.

mod blktrace;
mod iolog;
mod line;
mod text;

pub use line::TraceError;

use flate2::bufread::MultiGzDecoder;
use lamina_block::Time;
use lamina_drive::{Op, Request, SECTOR};
use line::Lines;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When it came, in the trace's own time; zero in a trace without times.
    pub at: Time,
    /// The volume that it is for, numbered from 0 in the order in which they appear.
    pub unit: u32,
    /// The request. Bytes that are not whole sectors are rounded outwards.
    pub request: Request,
}

/// The formats; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Lamina's own.
    Csv,
    /// SPC.
    Spc,
    /// MSR Cambridge.
    Msr,
    /// Text of blkparse.
    Blkparse,
    /// Binary of blktrace.
    Blktrace,
    /// fio's iolog, version 2.
    Fio2,
    /// fio's iolog, version 3.
    Fio3,
    /// The ARC paper's.
    Lis,
}

impl Format {
    /// All of them, by name.
    pub const ALL: [(&'static str, Format); 8] = [
        ("csv", Format::Csv),
        ("spc", Format::Spc),
        ("msr", Format::Msr),
        ("blkparse", Format::Blkparse),
        ("blktrace", Format::Blktrace),
        ("fio2", Format::Fio2),
        ("fio3", Format::Fio3),
        ("lis", Format::Lis),
    ];

    /// The format that a trace that begins with these bytes has.
    fn of(bytes: &[u8]) -> Option<Format> {
        if blktrace::Order::of(bytes).is_some() {
            return Some(Format::Blktrace);
        }
        let text = String::from_utf8_lossy(bytes);
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
        text::format_of(line).or_else(|| iolog::format_of(line))
    }
}

/// Which event of a blktrace counts as the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// Q: it was asked for, before requests were merged and sorted.
    #[default]
    Queued,
    /// D: it went to the drive.
    Dispatched,
}

/// How a trace is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Its format; `None`: the one that its first bytes have.
    pub format: Option<Format>,
    /// Of a blktrace, which events.
    pub event: Event,
}

/// A trace that is being read: an iterator over its records, which ends after the first error.
pub struct Trace {
    lines: Lines,
    format: Format,
    event: Event,
    units: Units,
    /// The time of a format that has only waits.
    waited: Time,
    order: Option<blktrace::Order>,
    /// Lines, or events of a blktrace, that were no request of the chosen kind.
    others: u64,
    failed: bool,
}

/// The bytes of `input`, which may be compressed with gzip.
pub fn decompressed(input: impl Read + 'static) -> std::io::Result<Box<dyn BufRead>> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    Ok(match input.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(input))),
        false => Box::new(input),
    })
}

impl Trace {
    /// Opens a file: compressed with gzip or not.
    pub fn open(path: &Path, options: Options) -> Result<Trace, TraceError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| TraceError::new(&name, 0, e.to_string()))?;
        Trace::read(&name, file, options)
    }

    /// Reads `input`; `name` is for messages.
    pub fn read(name: &str, input: impl Read + 'static, options: Options) -> Result<Trace, TraceError> {
        let wrong = |what: String| TraceError::new(name, 0, what);
        let mut input = decompressed(input).map_err(|e| wrong(e.to_string()))?;
        let start = input.fill_buf().map_err(|e| wrong(e.to_string()))?;
        let format = options.format.or_else(|| Format::of(start)).ok_or_else(|| wrong(unknown()))?;
        let order = blktrace::Order::of(start);
        Ok(Trace {
            lines: Lines::new(name, input),
            format,
            event: options.event,
            units: Units::default(),
            waited: Time(0),
            order,
            others: 0,
            failed: false,
        })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether its records have times.
    pub fn has_times(&self) -> bool {
        match self.format {
            Format::Csv | Format::Spc | Format::Msr => true,
            Format::Blkparse | Format::Blktrace | Format::Fio3 => true,
            Format::Fio2 => self.waited > Time(0),
            Format::Lis => false,
        }
    }

    /// Lines (of a binary trace: events) so far that were none of the requests that are asked for: heads, remarks,
    /// completions, other events.
    pub fn others(&self) -> u64 {
        self.others
    }

    fn step(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let found = match self.format {
                Format::Blktrace => self.event()?,
                Format::Csv | Format::Spc | Format::Msr | Format::Blkparse => self.line()?,
                Format::Fio2 | Format::Fio3 | Format::Lis => self.line()?,
            };
            match found {
                Found::Record(record) => return Ok(Some(record)),
                Found::Other => self.others += 1,
                Found::End => return Ok(None),
            }
        }
    }

    fn line(&mut self) -> Result<Found, TraceError> {
        let Some(line) = self.lines.line()? else { return Ok(Found::End) };
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(Found::Other);
        }
        let read = match self.format {
            Format::Csv => text::csv(line, &mut self.units),
            Format::Spc => text::spc(line, &mut self.units),
            Format::Msr => text::msr(line, &mut self.units),
            Format::Blkparse => text::blkparse(line, &mut self.units, self.event),
            Format::Lis => text::lis(line),
            Format::Fio2 => iolog::version_2(line, &mut self.units, &mut self.waited),
            Format::Fio3 => iolog::version_3(line, &mut self.units),
            Format::Blktrace => Ok(None),
        };
        let read = read.map_err(|expected| self.lines.error(expected))?;
        Ok(read.map_or(Found::Other, Found::Record))
    }

    fn event(&mut self) -> Result<Found, TraceError> {
        let Some(order) = self.order else {
            return Err(self.lines.error("a record of blktrace, with its magic number 0x65617407".into()));
        };
        blktrace::next(&mut self.lines, order, &mut self.units, self.event)
    }
}

/// The next find.
pub(crate) enum Found {
    Record(Record),
    Other,
    End,
}

impl Iterator for Trace {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step().transpose();
        self.failed = matches!(step, Some(Err(_)));
        step
    }
}

fn unknown() -> String {
    let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
    format!("no trace of a known format ({}): name it with format=NAME if it is one", names.join(", "))
}

/// The volumes of a trace, in the order in which they appear.
#[derive(Default)]
pub(crate) struct Units(HashMap<String, u32>);

/// The most units of a trace: more are no volumes.
const UNITS_MAX: usize = 65_536;

impl Units {
    /// The number of the unit called `name`.
    pub(crate) fn number(&mut self, name: &str) -> Result<u32, String> {
        if let Some(number) = self.0.get(name) {
            return Ok(*number);
        }
        let number = self.0.len();
        if number == UNITS_MAX {
            return Err(format!("at most {UNITS_MAX} different units"));
        }
        self.0.insert(name.to_owned(), number as u32);
        Ok(number as u32)
    }
}

/// A request for bytes; `None` if it is for none.
pub(crate) fn request(op: Op, offset: u64, size: u64) -> Result<Option<Request>, String> {
    let end = offset.checked_add(size).ok_or("offset + size below 16 EiB")?;
    let lbn = offset / SECTOR;
    let sectors = u32::try_from(end.div_ceil(SECTOR) - lbn).map_err(|_| "a size below 2 TiB")?;
    match op {
        Op::Flush => Ok(Some(Request { op, lbn: 0, sectors: 0 })),
        Op::Read | Op::Write | Op::Discard => Ok((size > 0).then_some(Request { op, lbn, sectors })),
    }
}

#[cfg(test)]
mod tests;
