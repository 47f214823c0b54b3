//! A remote store: latency of a distribution, behind a limit of requests and one of bytes a second.
//!
//! ```text
//!      request ─▶ its turn: 1 / iops ─▶ its bytes: bytes / rate ─▶ latency, drawn ─▶ end
//!                 one after the other    one after the other      all at once, `depth` at most
//! ```
//!
//! Flushes take the latency of a write and no bytes, discards a turn and that latency. The model deliberately does not
//! know where on the store a request goes, and has no cache: no read is ever a hit.

use crate::check::{Checked, US_MAX, us, within};
use crate::machine::{Nanos, Served, US};
use crate::{Op, Quantiles, Request, chance::Chance, quantiles::Distribution};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};

/// Keys of a remote store.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Remote {
    /// How many requests are under way at a time, 1..=65536; others wait.
    pub depth: u32,
    /// Requests a second, 1..=1e9.
    pub iops: f64,
    /// Bytes a second, 1KiB..=1TiB.
    pub rate: Bytes,
    /// The latency of reads.
    pub read: Latency,
    /// The latency of writes, and of flushes and discards.
    pub write: Latency,
}

/// A distribution of latencies.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Latency {
    /// Lognormal, the usual shape of latencies over a network.
    Lognormal(Lognormal),
    /// By its quantiles, in microseconds, 0..=1e7.
    QuantilesUs(Quantiles),
}

/// Keys of a lognormal distribution.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Lognormal {
    /// Half of all requests take longer, in microseconds, 0..=1e7.
    pub median_us: f64,
    /// The deviation of the natural logarithm, 0..=3.
    pub sigma: f64,
}

impl Remote {
    pub(crate) fn check(&self) -> Checked {
        within("remote.depth", self.depth, 1..=65_536)?;
        within("remote.iops", self.iops, 1.0..=1e9)?;
        within("remote.rate", self.rate, Bytes(1 << 10)..=Bytes(1 << 40))?;
        self.read.check("remote.read")?;
        self.write.check("remote.write")
    }
}

impl Latency {
    fn check(&self, key: &str) -> Checked {
        match self {
            Latency::Lognormal(keys) => {
                us(format_args!("{key}.lognormal.median-us"), keys.median_us)?;
                within(format_args!("{key}.lognormal.sigma"), keys.sigma, 0.0..=3.0)
            }
            Latency::QuantilesUs(points) => points.check(&format!("{key}.quantiles-us"), 0.0..=US_MAX),
        }
    }
}

/// A latency, ready for use.
enum Latencies {
    Lognormal { median: Nanos, sigma: f64 },
    Quantiles(Distribution),
}

impl Latencies {
    fn new(latency: &Latency) -> Latencies {
        match latency {
            Latency::Lognormal(keys) => {
                Latencies::Lognormal { median: keys.median_us * US, sigma: keys.sigma }
            }
            Latency::QuantilesUs(points) => Latencies::Quantiles(Distribution::new(points, US)),
        }
    }

    fn choose(&self, chance: &mut Chance) -> Nanos {
        match self {
            Latencies::Lognormal { median, sigma } => chance.lognormal(*median, *sigma),
            Latencies::Quantiles(distribution) => chance.of(distribution),
        }
    }
}

/// A remote store at work.
pub(crate) struct Machine {
    /// What a request and what a byte takes.
    per_request: Nanos,
    per_byte: Nanos,
    read: Latencies,
    write: Latencies,
    /// When the next request has its turn.
    turn: Nanos,
    /// When the next byte goes.
    link: Nanos,
}

impl Machine {
    pub(crate) fn new(model: &Remote) -> Machine {
        Machine {
            per_request: 1e9 / model.iops,
            per_byte: 1e9 / model.rate.0 as f64,
            read: Latencies::new(&model.read),
            write: Latencies::new(&model.write),
            turn: 0.0,
            link: 0.0,
        }
    }

    /// The next moments of turn and link, and the request's end.
    fn plan(&self, now: Nanos, request: &Request, chance: &mut Chance) -> (Nanos, Nanos, Nanos) {
        let (latency, bytes, turns) = match request.op {
            Op::Read => (&self.read, request.bytes(), 1.0),
            Op::Write => (&self.write, request.bytes(), 1.0),
            Op::Discard => (&self.write, 0, 1.0),
            Op::Flush => (&self.write, 0, 0.0),
        };
        // A request that finds the store idle does not wait for its own turn to pass.
        let begin = self.turn.max(now);
        let link = self.link.max(begin) + bytes as f64 * self.per_byte;
        (begin + turns * self.per_request, link, link + latency.choose(chance))
    }

    pub(crate) fn begin(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        let (turn, link, at) = self.plan(now, request, chance);
        (self.turn, self.link) = (turn, link);
        Served { at, hit: false, media: false }
    }

    pub(crate) fn cost(&self, now: Nanos, request: &Request) -> Nanos {
        self.plan(now, request, &mut Chance::Expected).2 - now
    }
}
