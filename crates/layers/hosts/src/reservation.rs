//! `reservation`: a store that several hosts reach, of which one at a time reads and writes it.
//!
//! ```text
//!      host a: vm ─▶ reservation ─┐                ┌─ vault: "vm1": host a, generation 4
//!                                 ├─▶ the store ◀──┤
//!      host b: vm ─▶ reservation ─┘  (refused)     └─ host a has it, and is alive
//! ```
//!
//! The *vault* is a folder that all hosts reach, on a file system of their own choice. It has a record for each volume:
//! which host has it, and whether only a flash has some of its writes. The record is compared and set, and no lock: a
//! host that was paused finds that its record was followed by another one. The format is in `docs/formats/vault.md`.
//!
//! A host takes the volume with its first request, or when a device of kind `accelerate` or `tier` directly above is
//! opened, and gives it back when the device is closed. Such a device says to the vault that its flash has what the
//! store lacks before the first write is acknowledged from there. Until all of it is on the store, the volume is for
//! the host that has this flash: other hosts are refused, in words that name both. What was on a flash before another
//! host had the volume is forgotten there, and never read.
//!
//! A host beats four times in a lease. One that has been silent for a lease may be dead; or it is cut off from the
//! vault alone, and still writes to the store. So its volume is not taken away from it unless a person says that it is
//! dead: `lamina vault FOLDER host-is-dead HOST`. If it was not, it notices within a quarter of a lease, and all its
//! requests fail from then on (*fenced*), until the device is opened again.
//!
//! Keys:
//! * `over`: the store. No superblock may be on it, as two hosts would write that: a sink of kind `nbd`, or a `file`
//!   that is no member of the hierarchy.
//! * `vault`: the folder.
//! * `volume`: the name of the volume in the vault, the same on all hosts: 1 to 64 letters, digits, `-`, `_`, `.`.
//! * `host`: the name of this host, another one on each host; the same characters.
//! * `lease` ("10s"): how long a host is silent until others doubt that it is alive, from 1 to 300 seconds.
//!
//! While the vault does not answer, a host that has the volume goes on; what needs a change of the record waits: the
//! first write from flash, and closing.

use lamina_block::{
    Build, Config, Consent, Effect, Error, Figure, Geometry, Interval, Io, Layer, Made, Manage, Node, Notice,
    Op, Outside, Over, Passthrough, Pending, Result, Step, Traits, Unit,
};
use lamina_cluster::host::{Fence, Host, Name};
use lamina_cluster::reservation::Reservation;
use lamina_cluster::vault::{FolderVault, Holder, is_name};
use serde::Deserialize;
use serde_json::{Value, json};
use std::any::Any;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    vault: PathBuf,
    volume: String,
    host: String,
    #[serde(default = "lease")]
    lease: Interval,
}

fn lease() -> Interval {
    Interval(Duration::from_secs(10))
}

impl Config for Keys {
    const KIND: &'static str = "reservation";
    const SUMMARY: &'static str = "a store that several hosts reach: one at a time has it";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        reserves: true,
        outside: &[Outside::local("vault")],
        elsewhere: &["exclusive-lock", "sanlock", "lease"],
        figures: &[
            Figure::shown("/volume", Unit::Text, "The volume in the vault.").column("VOLUME"),
            Figure::shown("/state", Unit::Text, "Whether this host has it.").column("STATE"),
            Figure::gauge("generation", "/generation", Unit::Count, "How often it has changed hands.")
                .column("GENERATION")
                .nullable(),
        ],
        notices: &[Notice::new("/fenced", "{device} is fenced: {}")],
        ..Traits::NONE
    };

    fn check(&self, _over: &Over<'_>) -> Result<()> {
        for (key, name) in [("volume", &self.volume), ("host", &self.host)] {
            if !is_name(name) {
                let message =
                    format!("{key}: {name:?} has to be 1 to 64 letters, digits, \"-\", \"_\" and \".\"");
                return Err(Error::invalid(message));
            }
        }
        match self.lease.0.as_secs() {
            1..=300 => Ok(()),
            _ => Err(Error::invalid("lease: is from 1s to 300s")),
        }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let folder = with.env.folder(with.path(&self.vault))?;
            let vault = Rc::new(FolderVault::new(Rc::clone(&with.env), folder));
            let holder = Holder { host: self.host, flash: None };
            let volume = Name::new(&self.volume);
            let host =
                Host::start(Rc::clone(&with.env), vault, volume, holder, self.lease.0, Fence::Confirmed);
            let layer =
                Reserved { child: with.child(), volume: self.volume, reservation: Reservation::new(host) };
            Ok(Rc::new(layer) as Made)
        })
    }
}

struct Reserved {
    child: Rc<Node>,
    volume: String,
    reservation: Rc<Reservation>,
}

impl Layer for Reserved {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if self.reservation.is_held() {
            return match self.reservation.fenced() {
                Some(why) => why.into(),
                None => Step::Forward(Rc::clone(&self.child)),
            };
        }
        if matches!(io.op, Op::Flush) {
            // What somebody has written before is no less durable then, and nothing of this host is under way.
            return Step::Forward(Rc::clone(&self.child));
        }
        let io = io.take();
        Step::control(async move {
            self.reservation.take(None).await?;
            self.child.submit(io).await
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.reservation.end().await;
            Ok(())
        })
    }
}

impl Manage for Reserved {
    /// Nothing is remembered of what is below.
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    fn shared(&self) -> Option<Rc<dyn Any>> {
        Some(Rc::clone(&self.reservation) as Rc<dyn Any>)
    }

    fn info(&self) -> Value {
        let record = self.reservation.held().map(|held| held.record());
        let fenced = self.reservation.fenced();
        let state = match (&record, &fenced) {
            (_, Some(_)) => "fenced",
            (Some(_), None) => "held",
            (None, None) => "not taken",
        };
        json!({
            "volume": self.volume,
            "state": state,
            "generation": record.as_ref().map(|record| record.generation),
            "record": record,
            "fenced": fenced.map(|why| why.to_string()),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
