//! `fingerprint`: the digest of every block, in a table that can be asked.
//!
//! The digest of a block changes with the block. The table tells where some content lies, how many blocks are
//! equal, and which blocks were written since a marked moment; and it can be compared with the blocks.
//!
//! ```text
//!   read ──────────────────────────────▶ below            handed on, not seen again
//!   write ─▶ digests of its blocks ─▶ below ─▶ table ◀── at, where, duplicates, changed
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `hash` ("blake3"): that, "sha256" or "md5" (the paper's; forged easily); stays as it was when the table was made.
//! * `block` ("4KiB"): the bytes of a digested block, a power of two up to 1MiB; stays, too.
//! * `metadata`: a device for the table; without it, the table lies at the head of the device below.
//! * `memory` ("16MiB"): for parts of the table that are in use, at least 1MiB, and as much again while
//!   `duplicates` counts.
//! * `region` (4MiB, larger where there would be more than 65,536): the bytes that are resynced together
//!   after a crash.
//! * `idle` ("5s"): how long a region stays unchanged before its intent is cleared, at least 100us.
//!
//! Commands:
//! * `at` with an `offset`: the digest of the block there.
//! * `where` with a `hash`: how many blocks have it, and the first of them (`limit`, 100).
//! * `duplicates`: how many blocks are equal to another one, what sharing them would save, and the largest
//!   groups (`top`, 10). Blocks of zeroes are counted apart. If there are more contents than memory for them,
//!   only every second, fourth … digest is counted, with all its blocks, and the answer says so: its totals
//!   are estimated from these.
//! * `mark` with a `name`: record which blocks change from now on; at most 8 names. `unmark` removes one.
//! * `changed` with the `name` of a mark: the ranges that have changed since (`limit`, 1000). A block that
//!   has its old bytes again has changed.
//! * `verify`: read everything and compare it, as a job; with an optional `limit` in bytes for each second.
//!   Blocks that differ are counted, and `info` names the last 16; the table stays as it is.
//!
//! Requests may be smaller than a block: a write of a part of a block reads the rest before. After a crash,
//! the regions that were being written are resynced in the background; until then answers say how many bytes
//! are pending, and these count as changed if they have. Over a device in use (`lamina apply`), which needs a
//! `metadata` device, all digests are made in this way. A new device is zeroed.
//!
//! The table takes 16 GiB for each TiB in blocks of 4 KiB (md5: 8 GiB), as each page of the table is there
//! twice, and half a GiB more for marks. Questions about all blocks read all of it.
//!
//! The layer does not grow with its device, because its table has no room for more; `info` says how much is
//! not used. The remedies are the same as for `integrity`.
//!
//! The layer deliberately refuses no read, shares no blocks, and keeps no index by digest.

mod marks;
mod queries;

use crate::sums::digest::Digest;
use crate::sums::{self, Sums, Wanted};
use lamina_block::{
    Arg, ArgType, Build, Bytes, Command, Config, Consent, Effect, Error, Extent, Finding, Geometry, Growth,
    Interval, Io, Job, Layer, Made, Manage, Node, Op, Over, Passthrough, Pending, Result, Step, Traits, Verb,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use marks::{MARKS_MAX, Marks};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    hash: Option<Hash>,
    block: Option<Bytes>,
    #[serde(default = "memory_default")]
    memory: Bytes,
    region: Option<Bytes>,
    #[serde(default = "idle_default")]
    idle: Interval,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hash {
    Blake3,
    Sha256,
    Md5,
}

fn idle_default() -> Interval {
    Interval(Duration::from_secs(5))
}

fn memory_default() -> Bytes {
    Bytes(16 << 20)
}

impl Keys {
    fn wanted(&self) -> Wanted {
        let digest = self.hash.map(|hash| match hash {
            Hash::Blake3 => Digest::Blake3,
            Hash::Sha256 => Digest::Sha256,
            Hash::Md5 => Digest::Md5,
        });
        Wanted {
            kind: Self::KIND,
            digest: ("hash", digest),
            otherwise: Digest::Blake3,
            block: self.block,
            region: self.region,
            idle: self.idle,
            memory: self.memory,
            bitmaps: MARKS_MAX as u64,
            strict: false,
        }
    }

    async fn made(self, with: Build) -> Result<Fingerprint> {
        let sums = sums::open(&self.wanted(), &with).await?;
        let marks = Marks::open(&sums).await?;
        let memory = usize::try_from(self.memory.0).unwrap_or(usize::MAX);
        Ok(Fingerprint { sums, marks, memory })
    }
}

const NAME: &[Arg] = &[Arg::required("name", ArgType::Text, "the mark")];

impl Config for Keys {
    const KIND: &'static str = "fingerprint";
    const SUMMARY: &'static str = "digests of all blocks, to be asked";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        growth: Growth::Never(sums::NO_ROOM),
        metadata: true,
        store: true,
        verbs: &[
            Verb::asks("at", "the digest of a block").with(&[Arg::required(
                "offset",
                ArgType::Size,
                "a byte of it",
            )]),
            Verb::asks("where", "the blocks that have a digest").with(&[
                Arg::required("hash", ArgType::Text, "the digest, in hexadecimal digits"),
                Arg::optional("limit", ArgType::Count, "the most blocks that are named (100)"),
            ]),
            Verb::asks("duplicates", "how many blocks are equal, and what sharing them would save")
                .with(&[Arg::optional("top", ArgType::Count, "the most contents that are named (10)")]),
            Verb::new("mark", "record which blocks change from now on").with(NAME),
            Verb::new("unmark", "forget a mark").with(NAME),
            Verb::asks("changed", "the ranges that have changed since a mark").with(&[
                Arg::required("name", ArgType::Text, "the mark"),
                Arg::optional("limit", ArgType::Count, "the most ranges that are named (1000)"),
            ]),
            Verb::new("verify", "read everything and compare it, as a job").with(&[Arg::optional(
                "limit",
                ArgType::Size,
                "bytes for each second, at most",
            )]),
        ],
        computes: true,
        reads_to_write: Some("a write of a part of a block reads the rest of the block"),
        ..Traits::NONE
    };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        self.wanted().possible(512)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(self.made(with).await?) as Made) })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    offset: Bytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Where {
    hash: String,
    #[serde(default = "where_default")]
    limit: usize,
}

fn where_default() -> usize {
    100
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Duplicates {
    #[serde(default = "duplicates_default")]
    top: usize,
}

fn duplicates_default() -> usize {
    10
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changed {
    name: String,
    #[serde(default = "changed_default")]
    limit: usize,
}

fn changed_default() -> usize {
    1000
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Verify {
    limit: Option<Bytes>,
}

struct Fingerprint {
    sums: Rc<Sums>,
    marks: Marks,
    /// Bytes of memory for counting contents.
    memory: usize,
}

impl Fingerprint {
    async fn carry_out(&self, command: Command) -> Result<Value> {
        match command.name.as_str() {
            "at" => self.at(args::<At>(command)?.offset.0).await,
            "where" => {
                let Where { hash, limit } = args(command)?;
                self.find(&hash, limit).await
            }
            "duplicates" => self.duplicates(args::<Duplicates>(command)?.top).await,
            "mark" => self.marks.add(&self.sums, args::<Named>(command)?.name).await,
            "unmark" => self.marks.remove(&self.sums, &args::<Named>(command)?.name).await,
            "changed" => {
                let Changed { name, limit } = args(command)?;
                self.changed(&name, limit).await
            }
            "verify" => {
                let limit = args::<Verify>(command)?.limit.map(|limit| limit.0);
                match self.sums.look_at_all("verify", limit) {
                    true => Ok(json!({})),
                    false => Err(Error::busy("the job is under way already")),
                }
            }
            _ => Err(unknown(&command, Keys::TRAITS.verbs)),
        }
    }
}

impl Layer for Fingerprint {
    fn geometry(&self) -> Geometry {
        self.sums.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let sums = &self.sums;
        match io.op {
            Op::Read(_) | Op::Flush => {
                io.move_to(sums.below(io.at.start));
                Step::Forward(Rc::clone(&sums.child))
            }
            Op::Write(..) | Op::Zero(_) | Op::Discard => Step::control(Rc::clone(sums).change(io.take())),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.sums.child, self.sums.below(0))
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { self.sums.runs(at).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.sums.close().await })
    }
}

impl Manage for Fingerprint {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || sums::refusal(child))
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move { self.carry_out(command).await })
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.sums.jobs()
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.sums.detach() })
    }

    fn check(self: Rc<Self>, repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move { self.sums.check(repair).await })
    }

    fn info(&self) -> Value {
        let mut info = self.sums.info();
        info["marks"] = json!(self.marks.names());
        info
    }
}

#[cfg(test)]
pub(crate) mod tests;
