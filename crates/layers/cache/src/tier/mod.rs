//! `tier`: a fast and a slow device, where blocks that cost the slow one the most time have copies on the fast one.
//!
//! ```text
//!      write ──▶ fast device, dirty ── its space is needed ──▶ slow device, with its neighbours, by place
//!      read ───▶ a copy? fast · none? slow, and copied as the placement says
//! ```
//!
//! The home of every block is the slow device, at the same address: an existing disk can be put under a tier, and the
//! tier can be taken away under load. The fast device is a `flash`, which volumes share in proportion to their weights.
//! Three tiers are a tier over a tier.
//!
//! What is known of extents is kept on the fast device every few minutes and at close, so that it is known when the
//! device is opened again; if that cannot be read, it begins with nothing. The format is in `docs/formats/tier.md`.
//!
//! All that protects data is that of `accelerate`, whose invariants hold here, too; a tier differs in what it copies
//! and how long dirty blocks stay. What is written again while it is dirty gets to the slow device once.
//!
//! Keys:
//! * `over`: the slow device, then the device of kind `flash`.
//! * `placement` ("heat"): which blocks get a copy when they are read, and stay. "heat": while the fast device is
//!   full, the best half of recent misses by the milliseconds that their blocks cost the slow one, or all of them,
//!   or the best quarter, whichever would have cost the least lately (`copied_part`), and those stay that save time
//!   for their space; "lru": all, and those stay that are asked for; "random-to-ssd": those of small requests that
//!   go on where no other ended; "static:PERCENT": those of so many percent of all extents of 256 KiB.
//! * `weight` (100): how much of the fast device the volume has beside other volumes, from 1 to 10000; and how much of
//!   the time of the slow one, while volumes with other weights ask for it, too.
//! * `write-budget` (none): bytes that copies of what was read, and moves within the fast device, may write there in a
//!   day, from 512MiB to 1024TiB; see below.
//! * `pin` ([]): parts of the volume whose copies stay, each `{ offset = "1GiB", size = "64MiB" }`.
//! * `store-timeout` ("30s"): as for `accelerate`.
//!
//! The budget is a bucket that fills evenly over the day, and holds an hour's worth; when the device is opened the
//! bucket is full. Writes of clients always land: `written_bytes` counts them. A block that was read is copied if it is
//! among so large a part of recent misses, by the milliseconds that their blocks cost the slow device, as the bucket is
//! full: all while the bucket is full, and less and less as it runs out. Clean blocks that have been asked for, or are
//! pinned, stay at the tail of a log while the bucket has anything; without, they go. Blocks that only the fast device
//! has move whatever the bucket has, which owes them. Summaries and states of the flash, about one byte in a hundred,
//! are not counted.
//!
//! Commands: `top` lists the extents that cost the slow device, or would cost it, the most time; `next` has the parts
//! that would leave the fast device first, each with its `move` ("home": written to the slow device; "kept": copied
//! within the fast one; "forgotten": the slow one has it), and the extents that would get copies when they are read;
//! `heat-map` has what is known of all of them, and which parts are on the fast device, in at most some hundreds of
//! cells by address: `lamina ctl NAME heat-map --draw` draws it, and `--draw=FILE` as SVG; `explain` says why a block
//! has a copy or none; `pin` and `unpin` change what is pinned, `set-placement`, `set-weight` and `set-write-budget`
//! the keys, until the device is opened again. `set-policy`, `set-share`, `drain` and `accept-loss` are those of
//! `accelerate`.

mod costs;
mod heat;
mod map;
mod miniature;
mod monitor;
mod notes;
mod placement;
mod worth;

pub(crate) use heat::{Heat, Room};
pub(crate) use placement::Placement;

use crate::accelerate::{self, Accelerate};
use lamina_block::{
    Arg, ArgType, Build, Bytes, Config, Error, Figure, Interval, Made, Over, Pending, Result, Traits, Unit,
    Verb,
};
use serde::Deserialize;
use std::ops::{Range, RangeInclusive};

/// How a request looks to a slow device that has an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request begins where no recent one ended.
    #[default]
    Random,
    /// The request goes on where a recent one ended.
    Sequential,
}

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    placement: String,
    #[serde(default = "weight")]
    weight: u32,
    write_budget: Option<Bytes>,
    #[serde(default)]
    pin: Vec<Part>,
    #[serde(default = "accelerate::store_timeout")]
    store_timeout: Interval,
}

fn weight() -> u32 {
    100
}

/// What a volume is allotted of the fast device.
pub(crate) struct Allotment {
    /// Its weight beside other volumes.
    pub weight: u32,
    /// Bytes that copies may write in a day.
    pub budget: Option<u64>,
    /// Bytes of the volume whose copies stay.
    pub pins: Vec<Range<u64>>,
}

/// A part of the volume.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    offset: Bytes,
    size: Bytes,
}

impl Part {
    /// Its bytes.
    pub fn bytes(self) -> Result<Range<u64>> {
        let end = self.offset.0.checked_add(self.size.0).filter(|_| self.size.0 > 0);
        end.map(|end| self.offset.0..end)
            .ok_or_else(|| Error::invalid(format!("a part of {} from {} on is none", self.size, self.offset)))
    }
}

/// The weight of a volume, as keys and commands give it.
pub(crate) fn checked(weight: u32) -> Result<u32> {
    match weight {
        1..=10_000 => Ok(weight),
        _ => Err(Error::invalid(format!("weight: {weight} is not from 1 to 10000"))),
    }
}

/// The least budget, of which an hour's worth has space for two segments of the largest flash, so that a segment can be
/// compacted; and the most, which no device can write in a day.
const BUDGETS: RangeInclusive<u64> = 512 << 20..=1 << 50;

/// The write budget of a volume in bytes a day, as keys and commands give it.
pub(crate) fn checked_budget(budget: Option<Bytes>) -> Result<Option<u64>> {
    let [least, most] = [*BUDGETS.start(), *BUDGETS.end()].map(Bytes);
    match budget {
        Some(budget) if !BUDGETS.contains(&budget.0) => Err(Error::invalid(format!(
            "write-budget: {budget} a day is not from {least} to {most}; leave it out for no limit"
        ))),
        budget => Ok(budget.map(|budget| budget.0)),
    }
}

impl Config for Keys {
    const KIND: &'static str = "tier";
    const SUMMARY: &'static str = "a fast and a slow device: copies of what costs the slow one the most time";
    const CHILDREN: RangeInclusive<usize> = 2..=2;
    const TRAITS: Traits = Traits {
        renamed: &[],
        elsewhere: &["tiering", "hybrid", "auto-tiering", "dm-cache"],
        heading: Some("TIER"),
        figures: &FIGURES,
        verbs: &VERBS,
        ..accelerate::Keys::TRAITS
    };

    fn may_miss(&self, child: usize) -> bool {
        child == 1
    }

    fn check(&self, over: &Over<'_>) -> Result<()> {
        self.placement()?;
        checked(self.weight)?;
        checked_budget(self.write_budget)?;
        self.pin.iter().try_for_each(|part| part.bytes().map(drop))?;
        accelerate::check_over(over)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let pins = self.pin.iter().map(|part| part.bytes()).collect::<Result<Vec<_>>>()?;
            let heat = Heat::new(self.placement()?);
            let keys = accelerate::Keys::of_tier(self.store_timeout);
            let budget = checked_budget(self.write_budget)?;
            let allotted = Allotment { weight: self.weight, budget, pins };
            Ok(Accelerate::open_tier(keys, heat, allotted, with).await? as Made)
        })
    }
}

impl Keys {
    fn placement(&self) -> Result<Placement> {
        match self.placement.as_str() {
            "" => Ok(Placement::default()),
            text => text.parse().map_err(|e| Error::invalid(format!("placement: {e}"))),
        }
    }
}

const OWN_FIGURES: [Figure; 11] = {
    use Unit::{Bytes, Count, Ratio, Seconds, Text};
    [
        Figure::shown("/placement", Text, "Which blocks get a copy.").column("PLACEMENT"),
        Figure::gauge("weight", "/weight", Count, "How much of both devices the volume has beside others."),
        Figure::gauge("pinned_bytes", "/pinned_bytes", Bytes, "Parts whose copies stay."),
        Figure::counter("saved_seconds_total", "/saved_seconds", Seconds, "The slow device was spared.")
            .column("SAVED"),
        Figure::counter("spent_seconds_total", "/spent_seconds", Seconds, "Reads of the slow device took.")
            .column("SPENT"),
        Figure::gauge(
            "copied_ratio",
            "/copied_part",
            Ratio,
            "Of recent misses, while the fast device is full.",
        ),
        Figure::gauge(
            "write_budget_bytes",
            "/write_budget/bytes",
            Bytes,
            "Data that copies may write in a day.",
        )
        .nullable(),
        Figure::gauge(
            "write_budget_left_bytes",
            "/write_budget/left_bytes",
            Bytes,
            "Data that copies may write at once, an hour's worth of the budget at most.",
        )
        .nullable(),
        Figure::gauge(
            "copied_today_bytes",
            "/write_budget/today_bytes",
            Bytes,
            "Written by copies in the running day, which began with the daemon or a multiple of 24 hours later.",
        ),
        Figure::counter(
            "copied_bytes_total",
            "/write_budget/copied_bytes",
            Bytes,
            "Written by copies of what was read, and by moves within the fast device.",
        ),
        Figure::counter(
            "refused_copies_bytes_total",
            "/write_budget/refused_bytes",
            Bytes,
            "Copies that were not made for want of a budget.",
        ),
    ]
};

/// What a tier shows: the figures of `accelerate`, and its own.
const FIGURES: [Figure; OWN_FIGURES.len() + accelerate::FIGURES.len()] = {
    let mut all = [OWN_FIGURES[0]; OWN_FIGURES.len() + accelerate::FIGURES.len()];
    let mut n = 0;
    while n < all.len() {
        all[n] =
            if n < OWN_FIGURES.len() { OWN_FIGURES[n] } else { accelerate::FIGURES[n - OWN_FIGURES.len()] };
        n += 1;
    }
    all
};

const PART: &[Arg] = &[
    Arg::required("offset", ArgType::Size, "where the part begins"),
    Arg::required("size", ArgType::Size, "its length"),
];

const OWN_VERBS: [Verb; 9] = [
    Verb::asks("top", "lists the extents that cost the slow device the most time, or would")
        .with(&[Arg::optional("count", ArgType::Count, "how many, 20 if it is not said")]),
    Verb::asks("next", "lists what would leave the fast device next, and what would get copies")
        .with(&[Arg::optional("count", ArgType::Count, "how many of each, 20 if it is not said")]),
    Verb::asks("heat-map", "shows how the volume is used, in cells by address").with(&[Arg::optional(
        "cells",
        ArgType::Count,
        "how many at most, from 1 to 512; 256 if it is not said",
    )]),
    Verb::asks("explain", "says why a block has a copy, or none").with(&[Arg::required(
        "offset",
        ArgType::Size,
        "a place in the block",
    )]),
    Verb::new("pin", "keeps the copies of a part, and makes those that are missing").with(PART),
    Verb::new("unpin", "lets copies of a part go again").with(PART),
    Verb::new("set-placement", "changes which blocks get a copy").with(&[Arg::required(
        "placement",
        ArgType::Text,
        "\"heat\", \"lru\", \"random-to-ssd\" or \"static:PERCENT\"",
    )]),
    Verb::new("set-weight", "changes how much of both devices the volume has").with(&[Arg::required(
        "weight",
        ArgType::Count,
        "from 1 to 10000",
    )]),
    Verb::new("set-write-budget", "changes how much copies may write to the fast device in a day").with(&[
        Arg::optional("budget", ArgType::Size, "from 512MiB to 1024TiB; no limit if it is not said"),
    ]),
];

/// What a tier understands: the commands of `accelerate`, and its own.
pub(crate) const VERBS: [Verb; OWN_VERBS.len() + accelerate::VERBS.len()] = {
    let mut all = [OWN_VERBS[0]; OWN_VERBS.len() + accelerate::VERBS.len()];
    let mut n = 0;
    while n < all.len() {
        all[n] = if n < OWN_VERBS.len() { OWN_VERBS[n] } else { accelerate::VERBS[n - OWN_VERBS.len()] };
        n += 1;
    }
    all
};

#[cfg(test)]
pub(crate) mod tests;
