//! Block traces: lists of requests.
//!
//! Three formats are read, told apart by the file's name:
//! * `*.csv.gz`: a head, then `t_us,op,dev,offset_bytes,size_bytes`, where op is R or W.
//! * `msr-*.csv`: `timestamp,host,disk,Read|Write,offset_bytes,size_bytes,latency`, as MSR Cambridge published them.
//! * `arc-*.lis.zst`: `start count ignored number`, reads of the ARC paper. Pages of 4 KiB in its OLTP,
//!   sectors in the others.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes of what a cache counts in.
pub const BLOCK: u64 = 4096;
/// Volumes lie one behind the other, so many bits of bytes apart: two hundred fit into a device of the layer.
pub const VOLUME: u32 = 44;

/// A read or a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub is_write: bool,
    pub bytes: Range<u64>,
}

impl Request {
    /// The blocks that it asks for, some of them perhaps in part.
    pub fn blocks(&self) -> Range<u64> {
        self.bytes.start / BLOCK..self.bytes.end.div_ceil(BLOCK)
    }
}

pub struct Trace {
    pub name: String,
    pub requests: Vec<Request>,
    /// Blocks that are asked for at all.
    pub footprint: usize,
}

/// What a line says.
type Parse = fn(&str) -> Option<Request>;

impl Trace {
    /// Reads a file; `None` if it is no trace, by its name.
    pub fn read(file: &Path) -> io::Result<Option<Trace>> {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let (stem, head, parse): (_, _, Parse) = if let Some(stem) = name.strip_suffix(".csv.gz") {
            (stem, 1, csv)
        } else if let Some(stem) = name.strip_suffix(".csv") {
            (stem, 0, msr)
        } else if let Some(stem) = name.strip_suffix(".lis.zst") {
            (stem, 0, if stem.ends_with("oltp") { arc_pages } else { arc_sectors })
        } else {
            return Ok(None);
        };
        let lines = BufReader::new(open(file)?).lines();
        let requests = lines.enumerate().skip(head).map(|(number, line)| {
            let wrong = || io::Error::other(format!("{}:{}: not a request", file.display(), number + 1));
            parse(&line?).ok_or_else(wrong)
        });
        Ok(Some(Trace::new(stem, requests.collect::<io::Result<_>>()?)))
    }

    pub fn new(name: &str, requests: Vec<Request>) -> Trace {
        let footprint = requests.iter().flat_map(Request::blocks).collect::<HashSet<_>>().len();
        Trace { name: name.into(), requests, footprint }
    }
}

/// The bytes of a file, unpacked.
fn open(file: &Path) -> io::Result<Box<dyn Read>> {
    let tool = match file.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => "gzip",
        Some("zst") => "zstd",
        _ => return Ok(Box::new(File::open(file)?)),
    };
    let output = Command::new(tool).arg("-dc").arg(file).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| io::Error::other(format!("{tool}: {e}")))?;
    match output.status.success() {
        true => Ok(Box::new(io::Cursor::new(output.stdout))),
        false => Err(io::Error::other(format!("{tool} cannot unpack {}", file.display()))),
    }
}

/// A request of `len` units of `unit` bytes from `start` on.
fn request(is_write: bool, volume: u64, start: u64, len: u64, unit: u64) -> Option<Request> {
    let end = start.checked_add(len)?.checked_mul(unit)?;
    let base = volume.checked_mul(1 << VOLUME)?;
    (end <= 1 << VOLUME).then(|| Request { is_write, bytes: base + start * unit..base + end })
}

fn csv(line: &str) -> Option<Request> {
    let [_, op, volume, offset, size] = fields(line.split(','))?;
    let is_write = match op {
        "R" => false,
        "W" => true,
        _ => return None,
    };
    request(is_write, volume.parse().ok()?, offset.parse().ok()?, size.parse().ok()?, 1)
}

fn msr(line: &str) -> Option<Request> {
    let [_, _, volume, op, offset, size, _] = fields(line.split(','))?;
    let is_write = match op {
        "Read" => false,
        "Write" => true,
        _ => return None,
    };
    request(is_write, volume.parse().ok()?, offset.parse().ok()?, size.parse().ok()?, 1)
}

fn arc_pages(line: &str) -> Option<Request> {
    arc(line, BLOCK)
}

fn arc_sectors(line: &str) -> Option<Request> {
    arc(line, 512)
}

fn arc(line: &str, unit: u64) -> Option<Request> {
    let [start, count, _, _] = fields(line.split_whitespace())?;
    request(false, 0, start.parse().ok()?, count.parse().ok()?, unit)
}

fn fields<'a, const N: usize>(parts: impl Iterator<Item = &'a str>) -> Option<[&'a str; N]> {
    parts.map(str::trim).collect::<Vec<_>>().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parse: Parse, line: &str, expected: Option<(bool, Range<u64>)>) {
        assert_eq!(parse(line), expected.map(|(is_write, bytes)| Request { is_write, bytes }), "{line}");
    }

    #[test]
    fn lines_are_requests() {
        check(csv, "0,W,0,4096,512", Some((true, 4096..4608)));
        check(csv, "0,R,3,8192,8192", Some((false, (3 << 44) + 8192..(3 << 44) + 16384)));
        check(
            msr,
            "128166372003061629,hm,1,Read,2048,512,413",
            Some((false, (1 << 44) + 2048..(1 << 44) + 2560)),
        );
        check(arc_pages, "5 2 0 17", Some((false, 20480..28672)));
        check(arc_sectors, "7 2 0 17", Some((false, 3584..4608)));
    }

    #[test]
    fn others_are_none() {
        check(csv, "0,X,0,4096,512", None);
        check(csv, "0,W,0,4096", None);
        check(csv, "0,W,0,18446744073709551615,2", None);
        check(arc_pages, "5 2 0", None);
    }

    #[test]
    fn blocks_count_that_are_asked_for_in_part() {
        assert_eq!(Request { is_write: false, bytes: 4095..4097 }.blocks(), 0..2);
        let requests = [0..16384, 8192..24576, 1..2].map(|bytes| Request { is_write: false, bytes });
        assert_eq!(Trace::new("three", requests.into()).footprint, 6);
    }
}
