//! Flash: dies that work side by side behind one bus, a buffer that takes writes, and garbage collection.
//!
//! ```text
//!   read  ─▶ overhead ─▶ pages from their dies, side by side ─▶ bus ─────────────────▶ residual ─▶ end
//!   write ─▶ overhead ─▶ bus ─▶ buffer, when there is room ──────────────────────────▶ residual ─▶ end
//!                                  └──▶ by pages to the die that is free first: program, collect garbage
//! ```
//!
//! A page is read from the die of its number, modulo the dies. A die programs the pages it was given one after the
//! other; a read either suspends the program, which costs both a while, or waits for the end of the page. Garbage is
//! collected as soon as the erased pages beyond what users see (the over-provisioning) run low: a block is moved, of
//! which the valid part costs a read and a program a page, and erased. An idle drive collects garbage until all of
//! them are erased. Sustained random writes thus fall to 1 − `valid-fraction` of what the dies can program, and idle
//! drives recover (Agrawal and others, "Design tradeoffs for SSD performance", USENIX ATC 2008).
//!
//! Where latencies were measured (see [`DepthLatency`]), a read takes them instead of overhead, dies and bus, and a
//! write or a flush instead of the overhead and the bus. Programs make a read wait, and a full buffer a write, as
//! otherwise.
//!
//! Sequential and random writes cost alike, unless the drive maps flash by whole blocks ([`BlockMap`]): a write that
//! does not go on where one before it ended then costs the copy of a block, on all dies. The model deliberately has
//! no other mapping of addresses, knows no read out of the buffer, and no wear; the expected cost of a write has no
//! merges.

mod blocks;
mod latencies;
mod machine;

pub use blocks::BlockMap;
pub use latencies::DepthLatency;
pub(crate) use machine::Machine;

use crate::check::{Checked, US_MAX, entries, ms, us, within};
use crate::{Op, Quantiles};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};

/// Keys of an SSD. Times in microseconds are 0..=1e7.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Ssd {
    /// How many requests are under way at a time, 1..=65536; others wait.
    pub depth: u32,
    /// How many dies work side by side, 1..=1024.
    pub dies: u32,
    /// A page of flash, 512B..=1MiB.
    pub page: Bytes,
    /// From the begin of a read to that of the dies.
    pub read_overhead_us: f64,
    /// From the begin of a write, a flush or a discard to that of its data.
    pub write_overhead_us: f64,
    /// Reading a page.
    pub read_us: f64,
    /// Programming a page.
    pub program_us: f64,
    /// What suspending a program for a read costs both. Without it, a read waits for the end of the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_us: Option<f64>,
    /// What each read or write takes the bus besides its bytes: the most requests a second follow from it.
    #[serde(default)]
    pub command_us: f64,
    /// Bytes a second over the bus, 1KiB..=1TiB.
    pub bus_rate: Bytes,
    /// The buffer of writes, from one page to 64GiB.
    pub buffer: Bytes,
    /// Whether the buffer survives a loss of power, so that a flush has nothing to do.
    #[serde(default)]
    pub protected: bool,
    /// Garbage collection; without it there always are erased pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub garbage: Option<Garbage>,
    /// A map of whole blocks; without it pages are written anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_map: Option<BlockMap>,
    /// What real times are off, by operation and length, at most 1000: the first entry of the operation counts whose
    /// `up-to` is not less than the request, or else the last of the operation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub residuals: Vec<Residual>,
    /// What requests were measured to take, at most 1000 entries; those of an operation ascend by length, and then by
    /// depth. Operations without entries take what the other keys say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<DepthLatency>,
}

/// Keys of garbage collection.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Garbage {
    /// What is erased at once, from one page to 1GiB.
    pub block: Bytes,
    /// Erasing a block, in milliseconds, 0..=10000.
    pub erase_ms: f64,
    /// Flash beyond the size of the drive, as a share of that, 0.001..=10.
    pub over_provisioning: f64,
    /// The share of a block that is still valid when the block is collected, 0..=0.99: long random writes settle near
    /// it. Write amplification is 1 / (1 − this).
    pub valid_fraction: f64,
    /// The share of the over-provisioning that is erased when the drive is switched on, 0..=1. 0 is a drive in its
    /// steady state.
    #[serde(default = "all")]
    pub erased_fraction: f64,
}

/// What real times of requests are off.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Residual {
    /// Of which requests.
    pub op: ResidualOp,
    /// Of requests not longer than that.
    pub up_to: Bytes,
    /// What they take longer, in microseconds, -1e7..=1e7. A drive draws from it; expected costs have the mean.
    pub quantiles_us: Quantiles,
}

/// An operation of residuals and latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResidualOp {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
}

impl ResidualOp {
    /// Whether requests of `op` are meant.
    pub(crate) fn is(self, op: Op) -> bool {
        match op {
            Op::Read => self == ResidualOp::Read,
            Op::Write => self == ResidualOp::Write,
            Op::Flush => self == ResidualOp::Flush,
            Op::Discard => false,
        }
    }
}

fn all() -> f64 {
    1.0
}

impl Default for Ssd {
    /// A drive of one die with pages of 4 KiB that takes no time but 100 microseconds of a read and 1 ms of a program.
    fn default() -> Ssd {
        Ssd {
            depth: 1,
            dies: 1,
            page: Bytes(4096),
            read_overhead_us: 0.0,
            write_overhead_us: 0.0,
            read_us: 100.0,
            program_us: 1000.0,
            suspend_us: None,
            command_us: 0.0,
            bus_rate: Bytes(1 << 40),
            buffer: Bytes(1 << 20),
            protected: false,
            garbage: None,
            block_map: None,
            residuals: Vec::new(),
            latencies: Vec::new(),
        }
    }
}

impl Ssd {
    pub(crate) fn check(&self) -> Checked {
        within("ssd.depth", self.depth, 1..=65_536)?;
        within("ssd.dies", self.dies, 1..=1024)?;
        within("ssd.page", self.page, Bytes(512)..=Bytes(1 << 20))?;
        us("ssd.read-overhead-us", self.read_overhead_us)?;
        us("ssd.write-overhead-us", self.write_overhead_us)?;
        us("ssd.read-us", self.read_us)?;
        us("ssd.program-us", self.program_us)?;
        us("ssd.suspend-us", self.suspend_us.unwrap_or(0.0))?;
        us("ssd.command-us", self.command_us)?;
        within("ssd.bus-rate", self.bus_rate, Bytes(1 << 10)..=Bytes(1 << 40))?;
        within("ssd.buffer", self.buffer, self.page..=Bytes(64 << 30))?;
        if let Some(garbage) = &self.garbage {
            within("ssd.garbage.block", garbage.block, self.page..=Bytes(1 << 30))?;
            ms("ssd.garbage.erase-ms", garbage.erase_ms)?;
            within("ssd.garbage.over-provisioning", garbage.over_provisioning, 0.001..=10.0)?;
            within("ssd.garbage.valid-fraction", garbage.valid_fraction, 0.0..=0.99)?;
            within("ssd.garbage.erased-fraction", garbage.erased_fraction, 0.0..=1.0)?;
        }
        if let Some(map) = &self.block_map {
            map.check(self.page)?;
        }
        entries("ssd.residuals", self.residuals.len(), 0..=1000)?;
        for (i, residual) in self.residuals.iter().enumerate() {
            residual.quantiles_us.check(&format!("ssd.residuals[{i}].quantiles-us"), -US_MAX..=US_MAX)?;
        }
        latencies::check(&self.latencies)
    }
}
