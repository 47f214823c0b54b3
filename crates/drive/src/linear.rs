//! The linear model of the paper on CATS: X = R/2 + S·d/D, and a constant for what the on-board cache has.
//!
//! d is the distance from the end of the last request that moved the arm to the start of this one, in sectors, and D is
//! the drive's size: the paper takes d from the last request's sector, which differs by the request's length alone. The
//! arm begins at sector 0. A hit does not move it. Writes take what reads that miss take; flushes and discards, which
//! the paper does not have, take what hits take. There is one request at a time, in the order of arrival: the paper had
//! queueing in the drive switched off.

use crate::check::{Checked, ms};
use crate::machine::{MS, Nanos, Served};
use crate::{Cache, Op, Request, SegmentCache, chance::Chance};
use serde::{Deserialize, Serialize};

/// Keys of a linear model. Times are milliseconds, 0..=10000.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Linear {
    /// R/2: half a rotation, paid by every request that misses the cache.
    pub constant_ms: f64,
    /// S: what the longest distance adds.
    pub slope_ms: f64,
    /// What a hit in the on-board cache takes.
    pub hit_ms: f64,
    /// The width of the band of times around the line, from which each miss of a drive is drawn evenly; the paper's
    /// Figure 1 is the average of a band one rotation wide. 0, the default, is the paper's model: always the line.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spread_ms: f64,
    /// The on-board cache; without it nothing hits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Cache>,
}

fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

impl Linear {
    pub(crate) fn check(&self) -> Checked {
        ms("linear.constant-ms", self.constant_ms)?;
        ms("linear.slope-ms", self.slope_ms)?;
        ms("linear.hit-ms", self.hit_ms)?;
        ms("linear.spread-ms", self.spread_ms)?;
        self.cache.as_ref().map_or(Ok(()), |cache| cache.check("linear.cache"))
    }
}

/// A linear drive at work. Times are nanoseconds.
#[derive(Clone)]
pub(crate) struct Machine {
    constant: Nanos,
    /// What each sector of distance adds.
    per_sector: Nanos,
    hit: Nanos,
    spread: Nanos,
    /// The end of the last request that moved the arm.
    arm: u64,
    cache: Option<SegmentCache>,
}

impl Machine {
    pub(crate) fn new(model: &Linear, sectors: u64) -> Machine {
        Machine {
            constant: model.constant_ms * MS,
            per_sector: model.slope_ms * MS / sectors as f64,
            hit: model.hit_ms * MS,
            spread: model.spread_ms * MS,
            arm: 0,
            cache: model.cache.as_ref().map(SegmentCache::new),
        }
    }

    pub(crate) fn begin(&mut self, now: Nanos, request: &Request, chance: &mut Chance) -> Served {
        let (hit, mut cost) = (self.is_hit(request), self.cost(request));
        if let Some(cache) = &mut self.cache {
            cache.dispatched(request);
        }
        let moves = self.moves(request, hit);
        if moves {
            self.arm = request.end();
            cost += self.spread * (chance.uniform() - 0.5);
        }
        Served { at: now + cost.max(0.0), hit, media: moves }
    }

    fn moves(&self, request: &Request, hit: bool) -> bool {
        match request.op {
            Op::Read | Op::Write => !hit,
            Op::Flush | Op::Discard => false,
        }
    }

    pub(crate) fn cost(&self, request: &Request) -> Nanos {
        if self.moves(request, self.is_hit(request)) {
            self.constant + self.per_sector * self.arm.abs_diff(request.lbn) as f64
        } else {
            self.hit
        }
    }

    pub(crate) fn is_hit(&self, request: &Request) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_hit(request))
    }
}
