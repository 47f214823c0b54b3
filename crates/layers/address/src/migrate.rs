//! `migrate`: a device that can become another one while it is used, at a speed that the user sets.
//!
//! ```text
//!      0 ─────────────── size     here
//!      │ there │ not yet │
//!      │ new ··│         │        below: each byte is on the new device, or still on the old one
//!      │       │ old ··· │
//! ```
//!
//! Keys:
//! * `over`: the device.
//! * `limit`: bytes for each second of a move; without it, as fast as the devices are. `lamina ctl DEVICE job
//!   move limit=RATE` changes it at any time.
//!
//! Another name in `over` is a move to that device, which must be as large: every byte is copied to it while
//! requests go on, and then the old device is detached, with its bytes. Moving is a job (`move`) that can be
//! watched, slowed, paused and cancelled; a move goes on after a restart or a crash, and after `move` if it
//! was cancelled. A request waits for at most 4 MiB to be moved.
//!
//! The device grows with the one below, at once, but not while it moves: afterwards it is as large as the new
//! one. `resize SIZE force=true` makes it smaller, and the bytes beyond are lost; `resize` makes it as large
//! as the device below again.
//!
//! The bytes of both are at the same addresses: the layer can be put over any device in use, and be taken
//! away again from over the new one when the move is done. Devices above do not notice.
//!
//! The layer deliberately has no copying of its own: it is a `concat` of a single device, and moves as that
//! does.

use crate::concat::{Concat, Ends};
use crate::reshape::{Joined, Layout, Plan, Shape, Spread, VERBS};
use lamina_block::{Build, Bytes, Children, Config, Error, Made, Pending, Result, Traits};
use serde::Deserialize;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    limit: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "migrate";
    const SUMMARY: &'static str = "a device that moves to another one while it is used";
    // Two children while a move is under way.
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=2;
    const TRAITS: Traits = Traits { keeps: true, verbs: VERBS, ..Traits::NONE };

    fn build(self, with: Build) -> Pending<Made> {
        let migrate = Migrate { limit: self.limit.map(|limit| limit.0) };
        Box::pin(async move { Ok(Spread::build(migrate, with).await? as Made) })
    }
}

struct Migrate {
    limit: Option<u64>,
}

fn one() -> Error {
    Error::invalid("over: the layer stands on one device; to move to another one, write that in its place")
}

impl Shape for Migrate {
    const KIND: &'static str = "migrate";
    type Way = Ends;

    fn limit(&self) -> Option<u64> {
        self.limit
    }

    fn begin(&self, children: &Children) -> Result<Layout> {
        if children.len() == 1 { Concat.begin(children) } else { Err(one()) }
    }

    fn accepts(&self, layout: &Layout) -> Result<()> {
        Concat.accepts(layout)
    }

    fn widest(&self, layout: &Layout, children: &Children) -> Result<Layout> {
        Ok(layout.stretch(layout.stretches(children)))
    }

    fn join(&self, _layout: &Layout, _children: &Children, _spare: &[usize]) -> Result<Joined> {
        Err(one())
    }

    fn plan_evacuation(
        &self,
        layout: &Layout,
        children: &Children,
        gone: &[usize],
        spare: &[usize],
    ) -> Result<Plan> {
        Concat.plan_evacuation(layout, children, gone, spare)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({}), 1)
    }

    #[test]
    fn two_devices_at_once_are_refused() {
        let (a, b) = (memory("64KiB"), memory("64KiB"));
        assert!(refused("migrate", json!({}), &[&a, &b]).contains("write that in its place"));
        assert_eq!(over("migrate", json!({"limit": "1MiB"}), &[&a]).geometry().size, 64 << 10);
    }
}
