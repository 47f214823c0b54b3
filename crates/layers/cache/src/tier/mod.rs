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
//! All that protects data is that of `accelerate`, whose invariants hold here, too; a tier differs in what it copies
//! and how long dirty blocks stay. What is written again while it is dirty gets to the slow device once.
//!
//! Keys:
//! * `over`: the slow device, then the device of kind `flash`.
//! * `placement` ("heat"): which blocks get a copy when they are read, and stay. "heat": all, and those stay that save
//!   time for their space; "lru": all, and those stay that are asked for; "random-to-ssd": those of small requests that
//!   go on where no other ended; "static:PERCENT": those of so many percent of all extents of 256 KiB.
//! * `weight` (100): how much of the fast device the volume has beside other volumes, from 1 to 10000; and how much of
//!   the time of the slow one, while volumes with other weights ask for it, too.
//! * `pin` ([]): parts of the volume whose copies stay, each `{ offset = "1GiB", size = "64MiB" }`.
//! * `store-timeout` ("30s"): as for `accelerate`.
//!
//! Commands: `top` lists the extents that cost the slow device, or would cost it, the most time; `explain` says why a
//! block has a copy or none; `pin` and `unpin` change what is pinned, `set-placement` and `set-weight` the keys, until
//! the device is opened again. `set-policy`, `set-share`, `drain` and `accept-loss` are those of `accelerate`.

mod costs;
mod heat;
mod monitor;
mod placement;

pub(crate) use heat::Heat;
pub(crate) use placement::Placement;

use crate::accelerate::{self, Accelerate};
use lamina_block::{
    Arg, ArgType, Build, Bytes, Config, Error, Figure, Interval, Made, Over, Pending, Result, Traits, Unit,
    Verb,
};
use serde::Deserialize;
use std::ops::Range;

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
    #[serde(default)]
    pin: Vec<Part>,
    #[serde(default = "accelerate::store_timeout")]
    store_timeout: Interval,
}

fn weight() -> u32 {
    100
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

impl Config for Keys {
    const KIND: &'static str = "tier";
    const SUMMARY: &'static str = "a fast and a slow device: copies of what costs the slow one the most time";
    const CHILDREN: std::ops::RangeInclusive<usize> = 2..=2;
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
        self.pin.iter().try_for_each(|part| part.bytes().map(drop))?;
        accelerate::check_over(over)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let pins = self.pin.iter().map(|part| part.bytes()).collect::<Result<Vec<_>>>()?;
            let heat = Heat::new(self.placement()?);
            let keys = accelerate::Keys::of_tier(self.store_timeout);
            Ok(Accelerate::open_tier(keys, heat, self.weight, pins, with).await? as Made)
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

const OWN_FIGURES: [Figure; 5] = {
    use Unit::{Bytes, Count, Seconds, Text};
    [
        Figure::shown("/placement", Text, "Which blocks get a copy.").column("PLACEMENT"),
        Figure::gauge("weight", "/weight", Count, "How much of both devices the volume has beside others."),
        Figure::gauge("pinned_bytes", "/pinned_bytes", Bytes, "Parts whose copies stay."),
        Figure::counter("saved_seconds_total", "/saved_seconds", Seconds, "The slow device was spared.")
            .column("SAVED"),
        Figure::counter("spent_seconds_total", "/spent_seconds", Seconds, "Reads of the slow device took.")
            .column("SPENT"),
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

const OWN_VERBS: [Verb; 6] = [
    Verb::new("top", "lists the extents that cost the slow device the most time, or would")
        .with(&[Arg::optional("count", ArgType::Count, "how many, 20 if it is not said")]),
    Verb::new("explain", "says why a block has a copy, or none").with(&[Arg::required(
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
