//! The options for making a store and for opening it.

use lamina_block::Level;
use std::time::Duration;

/// The number of an object; never given to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

/// How a store is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Its level.
    pub level: Level,
    /// The length of the log in bytes: 64 KiB to 4 GiB, in units of 4096. A record takes at most a quarter of the log,
    /// and at most 1 MiB. A longer log means fewer write-backs and a longer replay.
    pub log: u64,
    /// The most objects, 1 to 64,000; each takes 64 bytes, in memory too.
    pub objects: u32,
}

impl Default for Format {
    fn default() -> Format {
        Format { level: Level::default(), log: 4 << 20, objects: 1000 }
    }
}

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The memory for pages in bytes, at least 512 KiB, without the directory. Half is for pages, half for copies of
    /// pages that change while they are written back.
    pub memory: usize,
    /// The longest time until a change is committed by itself, except under [`Level::Atomic`].
    pub interval: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { memory: 16 << 20, interval: Duration::from_secs(5) }
    }
}
