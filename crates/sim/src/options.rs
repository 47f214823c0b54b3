//! What a simulated disk is like.

use lamina_block::Geometry;
use std::time::Duration;

/// The properties of a simulated disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskOptions {
    /// Its shape. The block is the unit in which writes tear.
    pub geometry: Geometry,
    /// The longest a request takes, in simulated time.
    pub latency_max: Duration,
    /// How many requests in 256 complete at once, in the call that submits them.
    pub instant: u8,
    /// Full of foreign data, with this number, instead of zeroes.
    pub junk: Option<u32>,
    /// What it keeps of what is written.
    pub contents: Contents,
}

/// What a disk keeps of what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// All; what was not flushed may be lost.
    #[default]
    Cached,
    /// All, durable when a write completes: for long runs, in which what could be lost would take up memory.
    Durable,
    /// Nothing; reads give zeroes. For measurements in which no bytes matter.
    Zeroes,
}

impl DiskOptions {
    /// A disk of `size` bytes in blocks of 512 that does everything natively and takes up to 100 us.
    pub const fn new(size: u64) -> DiskOptions {
        let native = Geometry { discard: true, zero: true, fua: true, ..Geometry::new(size) };
        DiskOptions {
            geometry: native,
            latency_max: Duration::from_micros(100),
            instant: 32,
            junk: None,
            contents: Contents::Cached,
        }
    }
}

/// Whether a disk answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It does.
    #[default]
    Here,
    /// Requests fail with `Offline`.
    Failing,
    /// Requests never complete.
    Silent,
    /// Another disk has taken its place: a request is a finding.
    Replaced,
}
