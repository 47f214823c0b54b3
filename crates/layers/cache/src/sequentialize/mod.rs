//! `sequentialize`: random writes become one sequential stream on the device below.
//!
//! ```text
//!      write 7, 90, 3 ─▶ log: head │ 7 │ 90 │ 3 │ head │ …          a segment after the other
//!      read 90 ────────▶ map: where is 90? ─▶ that place of the log
//!      collection ─────▶ blocks that still count go to the end of the log; their segment is free
//! ```
//!
//! For devices on which random writes cost: hard disks, flash with large erase blocks, RAID 5 and 6, where a segment is
//! a number of full stripes, and zoned devices (`zoned`), where it is a zone. The device below writes one stream for
//! each class of blocks, in pieces of up to 1 MiB.
//!
//! Modes:
//! * `log`: all of the device below is the log, and all writes go there.
//! * `home`: blocks have their homes on the device below, at their own addresses, and a region at its end is the log.
//!   Only small writes go there that do not go on where another one ended. Collection copies them forward, or writes
//!   them home by address, whichever is measured to be cheaper. A disk with data can become the device below if the
//!   region fits behind its data, and can take the place of this layer again under load.
//!
//! Invariants:
//! * A completed write is in the log or at home, and a flushed one is found after a crash at any moment.
//! * Of the log nothing is written in place but the superblock, once, and two copies of the checkpoint in turn.
//! * A segment is written again only after a durable checkpoint that does not need it.
//! * The log lets a block go when it is at home, durably, and then durably (`home.rs`).
//!
//! Keys:
//! * `over`: the device. Everything on it belongs to the log, in mode `log`.
//! * `mode` ("log"): "log" or "home". A device keeps the mode with which it was made.
//! * `size` (all but `spare` or `reserve`): the size of the device that is shown, when it is made.
//! * `spare` (15): percent of the log that are not shown, in mode `log`. The more there is, the less has to be copied.
//! * `reserve` (10): percent of the device below that are the log, in mode `home`.
//! * `small` ("4KiB"): larger writes go home, in mode `home`.
//!
//! Commands: `collect` collects every segment that has garbage, `checkpoint` makes a checkpoint now. In mode `log`
//! `tidy` rewrites blocks that lie scattered in the order of their addresses, which is done when nobody asks for
//! anything as well. In mode `home` `drain` brings everything home, and keeps writes out of the log until the device is
//! opened again.
//!
//! Jobs: `collect` while space is made, `tidy`.
//!
//! The unit of the map is 4 KiB; smaller writes to the log read the rest of their block first. The map is in memory, 9
//! to 12 bytes for each block that is mapped. Writes to the log wait for up to 50 ms each while space is short.
//! The layer deliberately compares no checksum when data are read (`integrity` does), and does not guess the stripe of
//! the device below: the device says it. The format is in `docs/formats/sequentialize.md`.

mod batch;
mod begin;
mod checkpoint;
pub mod classes;
mod collect;
pub mod format;
mod home;
mod log;
mod map;
pub mod pace;
mod places;
mod recover;
mod report;
mod request;
pub mod segments;
mod tidy;
mod zones;

use format::SLOT;
use lamina_block::{
    Build, Bytes, Command, Config, Consent, Effect, Error, Extent, Geometry, Growth, Healed, Io, Job, Judge,
    Layer, Made, Manage, Node, Op, Passthrough, Pending, Place, Result, Signature, Step, Traits, Verb,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use log::Log;
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;

/// Larger writes go home unless a key says so: the paper's eight sectors.
const SMALL: Bytes = Bytes(4096);

/// Where blocks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// In the log, all of them.
    #[default]
    Log,
    /// At their own addresses, but for those that were last written to the log.
    Home,
}

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    mode: Mode,
    size: Option<Bytes>,
    spare: Option<u8>,
    reserve: Option<u8>,
    small: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "sequentialize";
    const SUMMARY: &'static str = "random writes become a sequential stream: a log on the device below";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        growth: Growth::Never("its log has the size that it was made with: copy the data to a new device"),
        elsewhere: &["log-structured", "lsvd"],
        signature: Some(Signature {
            name: "Lamina log of sequentialize",
            magic: &format::SUPER_MAGIC,
            details: format::details,
        }),
        figures: report::FIGURES,
        verbs: &[
            Verb::new("collect", "collects every segment that has garbage"),
            Verb::new("checkpoint", "makes a checkpoint now"),
            Verb::new(
                "tidy",
                "rewrites blocks that lie scattered in the order of their addresses, in mode log",
            ),
            Verb::new("drain", "brings everything home, and keeps writes out of the log"),
        ],
        ..Traits::NONE
    };

    fn check(&self, _: &lamina_block::Over<'_>) -> Result<()> {
        let percent = [("spare", self.spare), ("reserve", self.reserve)];
        for (key, percent) in percent.into_iter().filter_map(|(key, percent)| Some((key, percent?))) {
            if self.size.is_some() {
                let message = format!("{key}: size says already how much is left: give one of them");
                return Err(Error::invalid(message));
            }
            if !(1..=90).contains(&percent) {
                return Err(Error::invalid(format!("{key}: {percent} is not from 1 to 90 percent")));
            }
        }
        let of_other = match self.mode {
            Mode::Log => [("reserve", self.reserve.is_some()), ("small", self.small.is_some())],
            Mode::Home => [("spare", self.spare.is_some()), ("", false)],
        };
        match of_other.iter().find(|(_, is_given)| *is_given) {
            Some((key, _)) => {
                Err(Error::invalid(format!("{key}: means nothing in the mode {:?}", self.mode)))
            }
            None => Ok(()),
        }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let place = begin::begin(&self, &with).await?;
            let log = Log::open(&with.name, &with.env, with.child(), place).await?;
            log.home.small.set(self.small.unwrap_or(SMALL).0);
            Ok(Rc::new(Sequentialize { log }) as Made)
        })
    }
}

/// The device that the log shows.
struct Sequentialize {
    log: Rc<Log>,
}

impl Layer for Sequentialize {
    fn geometry(&self) -> Geometry {
        let below = self.log.child.geometry();
        let size = u64::from(self.log.shape.blocks) * SLOT as u64;
        match self.log.shape.is_home {
            true => Geometry { size, ..below },
            false => Geometry {
                size,
                optimal: SLOT as u32,
                stripe: 0,
                discard: true,
                zero: true,
                fua: true,
                ..below
            },
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let (log, Io { op, at, .. }) = (Rc::clone(&self.log), io.take());
        let user = log.user();
        match op {
            Op::Read(into) => Step::control(async move { user.ends(log.read(at, into).await) }),
            Op::Write(from, durability) => {
                Step::control(async move { user.ends(log.write(at, from, durability).await) })
            }
            Op::Zero(how) => Step::control(async move { user.ends(log.zero(at, how).await) }),
            Op::Discard => Step::control(async move { user.ends(log.discard(at).await) }),
            Op::Flush => Step::control(async move { user.ends(log.flush_for_user().await) }),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { self.log.extents(at).await })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        let places = self.log.located(at);
        Box::pin(async { Ok(places) })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move { self.log.heal(at, is_right).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.log.close().await })
    }
}

impl Manage for Sequentialize {
    /// The log is on the child, and knows which blocks of it count.
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || format!("its log is on {}", child.name()))
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "collect" => {
                    args::<NoArgs>(command)?;
                    let collected = self.log.collect_all().await?;
                    Ok(json!({ "collected_segments": collected }))
                }
                "tidy" => {
                    args::<NoArgs>(command)?;
                    let copied = self.log.tidy_all().await?;
                    Ok(json!({ "copied_bytes": copied * SLOT as u64 }))
                }
                "checkpoint" => {
                    args::<NoArgs>(command)?;
                    self.log.checkpoint().await?;
                    Ok(json!({}))
                }
                "drain" => {
                    args::<NoArgs>(command)?;
                    let brought = self.log.drain().await?;
                    Ok(json!({ "brought_bytes": brought * SLOT as u64 }))
                }
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.log.jobs.borrow().clone()
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.log.leave().await })
    }

    fn info(&self) -> Value {
        self.log.info()
    }
}

/// No arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoArgs {}

#[cfg(test)]
pub(crate) mod tests;
