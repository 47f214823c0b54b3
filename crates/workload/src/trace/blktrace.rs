//! The binary files of blktrace(8): `struct blk_io_trace` of `linux/blktrace_api.h`, in the byte order of the machine
//! that wrote them.
//!
//! ```text
//!      0      4         8     16      24     28      32   36      40   44     46      48
//!      ┌──────┬─────────┬─────┬───────┬──────┬───────┬────┬───────┬────┬──────┬───────┬──────────┐
//!      │magic │ sequence│time │ sector│ bytes│ action│ pid│ device│ cpu│ error│ length│ payload …│
//!      └──────┴─────────┴─────┴───────┴──────┴───────┴────┴───────┴────┴──────┴───────┴──────────┘
//!      magic: 0x65617400 + version, 7;  action: the event in the low half, its categories in the high one
//! ```
//!
//! A trace has a file for each processor, `NAME.blktrace.0` and so on.

use super::line::{Lines, TraceError};
use super::{Event, Found, Record, Units, request};
use lamina_block::Time;
use lamina_drive::{Op, SECTOR};

const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
/// Events, `enum blktrace_act`.
const QUEUE: u64 = 1;
const ISSUE: u64 = 7;
/// Categories, `enum blktrace_cat`, above the event.
const WRITE: u64 = 1 << (1 + 16);
const FLUSH: u64 = 1 << (2 + 16);
const PASSTHROUGH: u64 = 1 << (9 + 16);
const NOTIFY: u64 = 1 << (10 + 16);
const DISCARD: u64 = 1 << (13 + 16);

/// Bytes of a record without its payload.
const SIZE: usize = 48;

/// A byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    /// That of a trace that begins with these bytes; `None` if it is no trace of blktrace.
    pub(super) fn of(bytes: &[u8]) -> Option<Order> {
        let magic: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
        match MAGIC + VERSION {
            this if u32::from_le_bytes(magic) == this => Some(Order::Little),
            this if u32::from_be_bytes(magic) == this => Some(Order::Big),
            _ => None,
        }
    }
}

/// A record without its payload.
struct Head {
    bytes: [u8; SIZE],
    order: Order,
}

impl Head {
    /// The number of `N` bytes, at most 8, from byte `at` on.
    fn number<const N: usize>(&self, at: usize) -> u64 {
        let byte = |n: usize| match self.order {
            Order::Little => self.bytes[at + N - 1 - n],
            Order::Big => self.bytes[at + n],
        };
        (0..N).fold(0, |number, n| number << 8 | byte(n) as u64)
    }
}

/// The next event.
pub(super) fn next(
    lines: &mut Lines,
    order: Order,
    units: &mut Units,
    event: Event,
) -> Result<Found, TraceError> {
    let mut bytes = [0; SIZE];
    if !lines.fill(&mut bytes)? {
        return Ok(Found::End);
    }
    let head = Head { bytes, order };
    let (magic, payload) = (head.number::<4>(0), head.number::<2>(46));
    if magic != (MAGIC + VERSION) as u64 {
        return Err(lines.error(format!("the magic number 0x65617407, not {magic:#010x}")));
    }
    lines.skip(payload)?;
    let read = record(&head, units, event).map_err(|expected| lines.error(expected))?;
    lines.passed(SIZE as u64 + payload);
    Ok(read.map_or(Found::Other, Found::Record))
}

fn record(head: &Head, units: &mut Units, event: Event) -> Result<Option<Record>, String> {
    let wanted = match event {
        Event::Queued => QUEUE,
        Event::Dispatched => ISSUE,
    };
    let (action, bytes, device) = (head.number::<4>(28), head.number::<4>(24), head.number::<4>(36));
    let is = |category: u64| action & category != 0;
    if action & 0xffff != wanted || is(NOTIFY) || is(PASSTHROUGH) {
        return Ok(None);
    }
    let op = match () {
        () if bytes == 0 && is(FLUSH) => Op::Flush,
        () if is(DISCARD) => Op::Discard,
        () if is(WRITE) => Op::Write,
        () => Op::Read,
    };
    let offset = head.number::<8>(16).checked_mul(SECTOR).ok_or("a sector below 2^55")?;
    // The kernel's dev_t: 12 bits of major above 20 bits of minor.
    let unit = units.number(&format!("{},{}", device >> 20, device & 0xf_ffff))?;
    let at = Time(head.number::<8>(8));
    Ok(request(op, offset, bytes)?.map(|request| Record { at, unit, request }))
}
