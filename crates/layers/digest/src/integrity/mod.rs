//! `integrity`: a checksum of every block, so that silent corruption is an error and not data.
//!
//! Each block that is read is compared with the checksum made when it was written. If they differ, another
//! copy is asked for below; if no copy is right, the read fails and says where. Wrong bytes are never
//! returned. Over such a layer, a mirror or a parity layer knows which copy is right, and writes it back.
//!
//! ```text
//!   read ─▶ below ─▶ checksum of every block = that in the table? ─ yes ─▶ done
//!                                                └ no ─▶ once more, alone with the block
//!                                                             └ no ─▶ another copy? ─ yes ─▶ done, and written back
//!                                                                          └ no ─▶ Corrupt, which bytes
//!   write ─▶ checksums ─▶ below ─▶ table
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `checksum` ("xxh3"): that (8 bytes a block), or "crc32c" (4 bytes); stays as it was when the table was made. All
//!   blocks that end with their own CRC-32C, as the pages of Lamina's own metadata do, have the same crc32c: if one of
//!   them is in the place of another, only xxh3 notices. Both notice a change inside a block.
//! * `metadata`: a device for the table; without it, the table lies at the head of the device below.
//! * `memory` ("16MiB"): for parts of the table that are in use, at least 1MiB; the rest of the table is on
//!   disk.
//! * `region` (4MiB, larger where there would be more than 65,536): the bytes that are resynced together
//!   after a crash.
//! * `idle` ("5s"): how long a region stays unchanged before its intent is cleared, at least 100us.
//!
//! Commands: `scrub`, with an optional `limit` in bytes for each second, reads everything, as a job, and
//! counts wrong blocks (`corrupt`) and those made right (`healed`); `info` names the last 16 of each. A scrub
//! reads all copies below.
//!
//! Put the layer below the legs, one on each device (`lamina design` does): then a wrong block is copied from
//! the other legs, for reads, for writes of a part of a block, and by the scrub of `mirror` or `parity`. A
//! layer between it and the legs has to leave blocks of 4 KiB whole (a `linear` whose `offset` is a multiple
//! of that does).
//!
//! Over a mirror or a parity the layer heals as well, with one table for all legs: a wrong block is read from
//! each leg, or computed without each, until the checksum is right, and is then written to the legs with
//! other bytes. This also works through `linear`, `view`, `concat`, `stripe`, `crypt`, `fingerprint`, `delay`
//! and `fault`. The layer finds less there than below the legs: a wrong parity is not seen while the data are
//! right; damage in a row of a parity that was not found before the row is written goes into the parity; and
//! after a crash legs are made to agree in the regions of the intent before a layer above could ask. Such a
//! loss is an error, never wrong data.
//!
//! A block has 4 KiB. Requests may be smaller: a read reads whole blocks, a write of a part of a block reads the rest
//! before. A write of a whole block makes a wrong block right; one of a part of it fails, unless another copy is right.
//!
//! After a crash, the regions that were being written *need a resync*: their blocks are accepted as they are,
//! and new checksums are made in the background. Everything else is compared as before, so silent
//! corruption is found there, also after a crash. A region needs a resync after a crash from
//! before its first write until some seconds after its last one.
//!
//! The layer does not grow with its device, because its table has no room for more; `info` says how much is
//! not used. Below legs, exchange them by larger devices, one after the other, and then `grow` the mirror or
//! the parity. With a `metadata` device, take this layer away (`lamina apply`), and put it there again with
//! another one, larger: all is then read once. With the table at the head, let `migrate`, above it, move to a
//! larger device.
//!
//! A new device is zeroed, and reads as zeroes. Over a device in use (`lamina apply`) everything needs a
//! resync, which reads it once; this needs a `metadata` device. The table takes 4 GiB for each TiB with xxh3,
//! 2 GiB with crc32c: each page of the table is there twice.
//!
//! The layer deliberately does not know the right bytes, does not hide a block that it finds wrong, and does
//! not protect against an attacker who can change data and table: that is what `crypt` and a signature are
//! for.

use crate::sums::digest::Digest;
use crate::sums::{self, Sums, Wanted};
use lamina_block::{
    Arg, ArgType, Build, Bytes, Command, Config, Consent, Effect, Error, Extent, Figure, Finding, Geometry,
    Growth, Interval, Io, Job, Layer, Made, Manage, Node, Op, Passthrough, Pending, Result, Step, Traits,
    Unit, Verb,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    checksum: Option<Checksum>,
    #[serde(default = "memory_default")]
    memory: Bytes,
    region: Option<Bytes>,
    #[serde(default = "idle_default")]
    idle: Interval,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Checksum {
    Crc32c,
    Xxh3,
}

fn idle_default() -> Interval {
    Interval(Duration::from_secs(5))
}

fn memory_default() -> Bytes {
    Bytes(16 << 20)
}

impl Keys {
    fn wanted(&self) -> Wanted {
        let digest = self.checksum.map(|checksum| match checksum {
            Checksum::Crc32c => Digest::Crc32c,
            Checksum::Xxh3 => Digest::Xxh3,
        });
        Wanted {
            kind: Self::KIND,
            digest: ("checksum", digest),
            otherwise: Digest::Xxh3,
            block: None,
            region: self.region,
            idle: self.idle,
            memory: self.memory,
            bitmaps: 0,
            strict: true,
        }
    }
}

impl Config for Keys {
    const KIND: &'static str = "integrity";
    const SUMMARY: &'static str = "a checksum of every block";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        growth: Growth::Never(sums::NO_ROOM),
        metadata: true,
        store: true,
        elsewhere: &["checksum", "checksums", "dm-integrity", "dif"],
        figures: &[
            Figure::counter(
                "corrupt_total",
                "/corrupt",
                Unit::Count,
                "Blocks that were found to be corrupt.",
            ),
            Figure::counter(
                "healed_total",
                "/healed",
                Unit::Count,
                "Blocks that were right in another copy, and were written again.",
            ),
            Figure::counter(
                "unreadable_bytes_total",
                "/unreadable_bytes",
                Unit::Bytes,
                "Bytes that could not be read.",
            ),
            Figure::gauge(
                "needs_resync_bytes",
                "/needs_resync_bytes",
                Unit::Bytes,
                "Bytes that were being written at a crash, and are resynced.",
            ),
        ],
        verbs: &[Verb::new("scrub", "read everything and compare it, as a job").with(&[Arg::optional(
            "limit",
            ArgType::Size,
            "bytes for each second, at most",
        )])],
        computes: true,
        reads_to_write: Some("a write of a part of a block reads the rest of the block"),
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(Integrity(sums::open(&self.wanted(), &with).await?)) as Made) })
    }
}

/// The arguments of `scrub`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scrub {
    limit: Option<Bytes>,
}

struct Integrity(Rc<Sums>);

impl Integrity {
    fn carry_out(&self, command: Command) -> Result<Value> {
        match command.name.as_str() {
            "scrub" => {
                let limit = args::<Scrub>(command)?.limit.map(|limit| limit.0);
                match self.0.look_at_all("scrub", limit) {
                    true => Ok(json!({})),
                    false => Err(Error::busy("the job is under way already")),
                }
            }
            _ => Err(unknown(&command, Keys::TRAITS.verbs)),
        }
    }
}

impl Layer for Integrity {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let sums = Rc::clone(&self.0);
        let Io { op, at, client } = io.take();
        match op {
            Op::Read(into) => Step::control(sums.read(at, into)),
            Op::Write(..) | Op::Zero(_) | Op::Discard => Step::control(sums.change(Io { op, at, client })),
            // `io` is a flush.
            Op::Flush => Step::Forward(Rc::clone(&sums.child)),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.0.child, self.0.below(0))
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { self.0.runs(at).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.0.close().await })
    }
}

impl Manage for Integrity {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || sums::refusal(child))
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move { self.carry_out(command) })
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.0.jobs()
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.0.detach() })
    }

    fn check(self: Rc<Self>, repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move { self.0.check(repair).await })
    }

    fn info(&self) -> Value {
        self.0.info()
    }
}

#[cfg(test)]
pub(crate) mod tests;
