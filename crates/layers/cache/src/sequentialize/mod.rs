//! `sequentialize`: all writes become one sequential stream on the device below.
//!
//! ```text
//!      write 7, 90, 3 ─▶ log: head │ 7 │ 90 │ 3 │ head │ …          a segment after the other
//!      read 90 ────────▶ map: where is 90? ─▶ that place of the log
//!      collection ─────▶ blocks that still count go to the end of the log; their segment is free
//! ```
//!
//! For devices on which random writes cost: hard disks, flash with large erase blocks, RAID 5 and 6, where a segment is
//! a number of full stripes. The device below writes one stream for each class of blocks, in pieces of up to 1 MiB.
//!
//! Invariants:
//! * A completed write is in the log, and a flushed one is found after a crash at any moment.
//! * Nothing is written in place but the superblock, once, and two copies of the checkpoint in turn.
//! * A segment is written again only after a durable checkpoint that does not need it.
//!
//! Keys:
//! * `over`: the device. Everything on it belongs to the log.
//! * `size` (all but `spare`): the size of the device that is shown, when it is made.
//! * `spare` (15): percent of the log that are not shown. The more there is, the less has to be copied.
//!
//! Commands: `collect` collects every segment that has garbage, `checkpoint` makes a checkpoint now, `tidy` rewrites
//! blocks that lie scattered in the order of their addresses, which is done when nobody asks for anything as well.
//!
//! Jobs: `collect` while space is made, `tidy`.
//!
//! The unit of the map is 4 KiB; smaller writes read the rest of their block first. The map is in memory, 9 to 12 bytes
//! for each block that is mapped. Writes are held back for up to 50 ms each while space is short. The layer
//! deliberately compares no checksum when data are read (`integrity` does), and does not guess the stripe of the device
//! below: the device says it. The format is in `docs/formats/sequentialize.md`.

mod batch;
mod checkpoint;
pub mod classes;
mod collect;
pub mod format;
mod log;
mod map;
pub mod pace;
mod places;
mod recover;
mod report;
mod request;
pub mod segments;
mod tidy;

use format::{Checkpoint, Page, Row, RowState, SLOT, Super};
use lamina_block::{
    Begin, Build, Bytes, Command, Config, Consent, Durability, Effect, Env, Error, Extent, Geometry, Healed,
    Io, Job, Judge, Layer, Made, Manage, Node, Op, Passthrough, Pending, Result, Signature, Step, Traits,
    Verb,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use log::Log;
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;

/// Percent of the log that are not shown unless a key says so.
const SPARE: u8 = 15;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    size: Option<Bytes>,
    spare: Option<u8>,
}

impl Config for Keys {
    const KIND: &'static str = "sequentialize";
    const SUMMARY: &'static str = "random writes become a sequential stream: a log on the device below";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
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
            Verb::new("tidy", "rewrites blocks that lie scattered in the order of their addresses"),
        ],
        ..Traits::NONE
    };

    fn check(&self, _: &lamina_block::Over<'_>) -> Result<()> {
        match (self.size, self.spare) {
            (Some(_), Some(_)) => {
                Err(Error::invalid("spare: size says already how much is left: give one of them"))
            }
            (_, Some(spare)) if !(1..=90).contains(&spare) => {
                Err(Error::invalid(format!("spare: {spare} is not from 1 to 90 percent")))
            }
            _ => Ok(()),
        }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let child = with.child();
            match with.begin {
                Begin::Open => {}
                Begin::Format => self.format(&with.env, &child).await?,
                Begin::Adopt => {
                    let message =
                        "what is on the device would be lost: make the layer over a new device, and copy it";
                    return Err(Error::invalid(message).on(child.name()));
                }
            }
            Ok(Rc::new(Sequentialize { log: Log::open(&with.name, &with.env, child).await? }) as Made)
        })
    }
}

/// Writes durably to slots.
async fn write_slots(env: &Rc<dyn Env>, child: &Rc<Node>, slot: u32, bytes: &[u8]) -> Result<()> {
    let buf = env.pool().take(bytes.len());
    buf.write(0, bytes);
    child.submit(Io::write(u64::from(slot) * SLOT as u64, buf, Durability::Fua)).await
}

impl Keys {
    /// Makes an empty log, whatever is there.
    async fn format(&self, env: &Rc<dyn Env>, child: &Rc<Node>) -> Result<()> {
        let shape = self.shape(child, env).map_err(|e| e.on(child.name()))?;
        let made = Checkpoint {
            sequence: 1,
            serial: 0,
            next_segment: 1,
            clock: 0,
            pages: vec![Page { slot: 0, checksum: 0 }; shape.pages() as usize],
            rows: vec![
                Row { sequence: 0, time: 0, end: 0, class: 0, state: RowState::Free };
                shape.segments as usize
            ],
            free: (0..shape.segments).collect(),
            window: 0,
        };
        write_slots(env, child, shape.checkpoint_at(0), &made.encode(shape.key)).await?;
        // The superblock comes last: without it there is no log.
        write_slots(env, child, 0, &shape.encode()).await
    }

    fn shape(&self, child: &Node, env: &Rc<dyn Env>) -> Result<Super> {
        let geometry = child.geometry();
        if geometry.block as usize > SLOT {
            return Err(Error::unsupported(format!(
                "its blocks of {} bytes are larger than {SLOT}",
                geometry.block
            )));
        }
        let uuid = u128::from(env.random()) << 64 | u128::from(env.random());
        let stripe = geometry.stripe.max(SLOT as u32);
        if !(stripe as usize).is_multiple_of(SLOT) {
            return Err(Error::unsupported(format!("its stripe of {stripe} bytes is no multiple of {SLOT}")));
        }
        let size = geometry.size;
        let shape = Super::new(size, stripe / SLOT as u32, uuid, env.random())
            .ok_or_else(|| Error::invalid(format!("{size} bytes are too few or too many for a log")))?;
        let most = Bytes(u64::from(shape.blocks) * SLOT as u64);
        let blocks = match self.size {
            Some(size) if size.0 == 0 || size.0 > most.0 || !size.0.is_multiple_of(SLOT as u64) => {
                return Err(Error::invalid(format!("size: {size} is not a multiple of 4KiB up to {most}")));
            }
            Some(size) => (size.0 / SLOT as u64) as u32,
            None => {
                let shown = 100 - u64::from(self.spare.unwrap_or(SPARE));
                let slots = u64::from(shape.segments) * u64::from(shape.segment_slots);
                shape.blocks.min((slots * shown / 100) as u32)
            }
        };
        Ok(Super { blocks, ..shape })
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
        Geometry { size, optimal: SLOT as u32, stripe: 0, discard: true, zero: true, fua: true, ..below }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let (log, Io { op, at, .. }) = (Rc::clone(&self.log), io.take());
        let user = log.user();
        match op {
            Op::Read(into) => Step::control(async move { user.ends(log.read(at, into).await) }),
            Op::Write(from, durability) => {
                Step::control(async move { user.ends(log.write(at, from, durability).await) })
            }
            Op::Zero(how) => Step::control(async move { user.ends(log.zero(at, how.durability).await) }),
            Op::Discard => Step::control(async move { user.ends(log.discard(at).await) }),
            Op::Flush => Step::control(async move { user.ends(log.flush().await) }),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { Ok(self.log.extents(&at)) })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move { self.log.heal(at, is_right).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.log.close().await })
    }
}

impl Manage for Sequentialize {
    /// The log is all that is on the child.
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
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.log.jobs.borrow().clone()
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async {
            let message =
                "the device below has a log, not the data in their places: copy them to another device";
            Err(Error::unsupported(message))
        })
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
