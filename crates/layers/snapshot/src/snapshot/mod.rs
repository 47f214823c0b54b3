//! `snapshot`: a thin volume with snapshots: versions of it as it was, as many as wanted.
//!
//! A snapshot takes no time and no space: afterwards, a first write into an extent goes to a new physical
//! extent, and the snapshot keeps the old one. Extents are the unit of copying. An extent that was never
//! written, or was zeroed or discarded, has no physical extent, takes no space and reads as zeroes, so that
//! the volume may be larger than the device below.
//!
//! ```text
//!   volume    │ 0 │ 1 │ 2 │ 3 │ 4 │       extents, found through a map
//!               │   │       │
//!   monday      │   └──┐    │             a snapshot: a map that shares its unchanged parts with the volume's
//!               ▼      ▼    ▼
//!   below  │ map │ a │ b │ c │ d │ … │    1 was written after "monday" was taken: a new extent
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `size` (as much as the device below has room for): bytes of the volume. A larger value than before makes
//!   it grow.
//! * `extent` ("32KiB"): the unit of copying, a power of two, 4KiB to 1MiB; stays as it was when the volume was made.
//! * `policy` ("first-available"): which free extent is taken: that, "log-structured" or "closest-to-last".
//! * `memory` ("16MiB"): for parts of the map that are in use, at least 1MiB; the rest of the map is on disk.
//! * `metadata`: a device for the map; without it, the map lies at the head of the device below.
//!
//! Which bytes have changed since a snapshot, of the volume or of a later one, is known to whole extents; nothing has
//! to be switched on for that. Over NBD that is the context `qemu:dirty-bitmap:` with the name of the snapshot.
//!
//! Commands: `snapshot`, `rollback` and `delete`, with a `name`; `list`; `space`; `resize` with a `size`; `grow`,
//! after the device below has become larger; `reclaim`. A device of kind `view` shows a snapshot. The space
//! of deleted versions is reclaimed by a job; `space` tells what each snapshot alone takes, which comes free
//! when it is deleted, and what all together do. `rollback` and a smaller `size` need `force=true`: the present
//! state of the volume is lost, unless a snapshot has it, and so are all bytes after the size.
//!
//! The map never says more than what is durable: written data are first flushed, then put into the map in one
//! change, at a flush of the volume, after five seconds, or when many entries wait. A write into a new extent
//! completes when the map has its entry: a guest that outlives this process finds every acknowledged write.
//! Writes that are under way at the same time share one change. At the level `atomic`, no extent that the map
//! on disk refers to is ever overwritten: each first write after a flush copies an extent, and completes at
//! once; a crash leaves exactly the volume as it was at one moment, that of the last flush or a later one.
//! That is so if only this process ends, too: no guest may outlive it at `atomic`.
//!
//! When no extent is free, writes that need one fail, and say how to get space; no data are lost, and extents
//! that have a physical extent can still be written (at `atomic`, as long as a few reserved extents are
//! left). Over a device in use (`lamina apply`) its extents stay where they are; this needs a `metadata`
//! device, and there is room for snapshots only when the device below grows or extents are discarded.
//!
//! Damage to the map costs its damaged entries and nothing else: extents whose use is unknown are not given
//! away, a version with a lost part can be read elsewhere, and when snapshots cannot be found, the volume is
//! read-only. `lamina check --metadata` tells which bytes are lost, and `lamina repair` rebuilds what follows
//! from the rest.
//!
//! The layer deliberately does not copy snapshots elsewhere, nor write to them, and it knows their age only
//! by their order.

// Design notes.
//
// ```text
//   Volume, View ──▶ Core ── change ──▶ State { versions, overlay, rounds, frees, garbage }
//   (requests)       I/O, tasks,        decides at once; its files have their states and
//                    waiting            operations as tables, and are checked after every change
// ```
//
// | request | the map has the extent | its entry is new | its entry is frozen: a round is under way |
// |---|---|---|---|
// | read | handed on | handed on | handed on |
// | write, not shared | in place | in place | in place |
// | the same at `atomic` | a new extent | in place | a new extent |
// | write, shared with a snapshot | a new extent | a new extent | a new extent |
// | zeroing or discard of all of it | the entry becomes a hole | the same | the same |
// | flush | handed on, if nothing waits | the next round | the next round |
// | snapshot, rollback, resize | after a round, with no request in flight | the same | the same |
//
// An extent whose entry was replaced is free after a commit and a grace period; after the grace period alone, if the
// map never had the entry.
//
// Invariants:
// * The map on disk never says more than what is durable on the child.
// * An extent that a map on disk refers to has no other owner.
// * An extent has one owner: a version, an entry that waits for the map, or a step on its way to be free
//   (`State::check`).
// * Room in the map is reserved before data is written: an acknowledged write gets into the map.
// * The head, the table and the map change under one mutex, one round or command after the other.

mod begin;
mod change;
mod check;
mod commit;
mod core;
mod difference;
mod format;
mod grace;
mod keys;
mod read;
mod reclaim;
mod space;
mod state;
mod verbs;
mod view;

use self::commit::NEARLY_FULL;
use self::core::Core;
pub use self::keys::Keys;
use self::read::{Version, Whole};
use lamina_block::{
    Build, Command, Config, Consent, Difference, Durability, Effect, Error, Extent, Figure, Finding,
    Geometry, Growth, Healed, Io, Job, Judge, Layer, Made, Manage, Node, Op, Over, Passthrough, Pending,
    Place, Result, Step, Traits, Unit,
};
use lamina_kit::consent::unless_replaced;
use serde_json::{Value, json};
use std::ops::Range;
use std::rc::Rc;

impl Config for Keys {
    const KIND: &'static str = "snapshot";
    const SUMMARY: &'static str = "a thin volume with snapshots";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        growth: Growth::Thin("grow"),
        snapshot: Some("snapshot"),
        views: true,
        metadata: true,
        store: true,
        verbs: verbs::VERBS,
        elsewhere: &["thin", "thin-pool", "lvm-thin", "cow"],
        figures: &[
            Figure::gauge("size_bytes", "/size", Unit::Bytes, "Size of the volume."),
            Figure::gauge(
                "free_bytes",
                "/bytes_free",
                Unit::Bytes,
                "Room for first writes, and writes after a snapshot.",
            ),
            Figure::gauge("map_bytes", "/map_bytes", Unit::Bytes, "Size of its map."),
            Figure::gauge("map_free_bytes", "/map_bytes_free", Unit::Bytes, "Room in the area of its map."),
        ],
        reads_to_write: Some("the first write to an extent after a snapshot copies the rest of the extent"),
        ..Traits::NONE
    };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        self.possible(512)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(Volume(begin::volume(self, with).await?)) as Made) })
    }
}

/// The volume as it is now.
struct Volume(Rc<Core>);

impl Core {
    fn geometry(&self) -> Geometry {
        let (below, head) = (self.child.geometry(), self.head());
        Geometry {
            optimal: below.optimal.max(head.extent() as u32),
            stripe: 0,
            discard: true,
            zero: true,
            fua: true,
            read_only: self.is_read_only(),
            ..below.with_size(head.size)
        }
    }

    /// A write, in place if that is possible.
    #[inline]
    fn write(self: &Rc<Self>, io: &mut Io, durability: Durability) -> Step {
        let state = self.state();
        let at_once = match durability {
            Durability::Cached => self.lasts(&state, &io.at),
            // The map must have the entry durably when this completes.
            Durability::Fua => state.is_committed(),
        };
        let whole = self.whole(&state, &io.at, |extent| self.writable(&state, extent));
        drop(state);
        match whole {
            Ok(Whole::At(to)) if at_once => {
                io.move_to(to);
                Step::Forward(Rc::clone(self.grace.way()))
            }
            Ok(_) => Step::control(Rc::clone(self).alter(io.take())),
            Err(e) => e.into(),
        }
    }

    /// Ends background work and closes the store.
    async fn close(self: Rc<Self>) -> Result<()> {
        if self.change(|state| std::mem::replace(&mut state.closed, true)) {
            return Ok(());
        }
        self.stop_reclaim().await;
        if self.is_read_only() {
            return Ok(());
        }
        let flushed = self.flush().await;
        self.all_released().await;
        let closed = self.close_store(flushed.is_ok()).await;
        flushed.and(closed)
    }
}

impl Layer for Volume {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Read(_) => self.0.read(Version::Now, io),
            Op::Write(_, durability) => self.0.write(io, durability),
            Op::Zero(_) | Op::Discard => Step::control(Rc::clone(&self.0).alter(io.take())),
            Op::Flush => {
                let state = self.0.state();
                if state.is_committed() && !state.rounds.is_working() {
                    return Step::Forward(Rc::clone(self.0.grace.way()));
                }
                drop(state);
                let core = Rc::clone(&self.0);
                Step::control(async move { core.flush().await })
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        let core = Rc::clone(&self.0);
        Box::pin(async move { core.runs(Version::Now, at).await })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        Box::pin(Rc::clone(&self.0).places(Version::Now, at))
    }

    fn changed(self: Rc<Self>, since: String, at: Range<u64>) -> Pending<Vec<Difference>> {
        Box::pin(Rc::clone(&self.0).differences(Version::Now, since, at))
    }

    fn snapshots(&self) -> Vec<String> {
        self.0.names()
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(Rc::clone(&self.0).heal(Version::Now, at, is_right))
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(Rc::clone(&self.0).close())
    }
}

impl Manage for Volume {
    fn effect(&self, command: &Command) -> Effect {
        self.0.effect_of(command)
    }

    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        unless_replaced(effect, || {
            format!(
                "the volume knows where on {} its data lie, and would find other data there",
                child.name()
            )
        })
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(Rc::clone(&self.0).carry_out_command(command))
    }

    fn needs_quiesce(&self, command: &Command) -> bool {
        verbs::needs_quiesce(command)
    }

    fn view(self: Rc<Self>, name: String) -> Pending<Made> {
        let view = view::View::new(&self.0, name);
        Box::pin(async move { Ok(Rc::new(view?) as Made) })
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.0.job.borrow().iter().cloned().collect()
    }

    fn detach(self: Rc<Self>) -> Pending {
        let core = Rc::clone(&self.0);
        Box::pin(async move {
            core.flush().await?;
            let head = core.head();
            if head.adopted == 0 {
                return Err(Error::invalid(
                    "the data below lie where only this layer finds them: copy the volume to another device instead",
                ));
            }
            let snapshots = core.state().versions.snapshots().len();
            if snapshots > 0 {
                return Err(Error::invalid(format!(
                    "there are {snapshots} snapshots, which would be lost: delete them first"
                )));
            }
            match head.root.page == Default::default() && head.size == core.child.geometry().size {
                true => Ok(()),
                false => Err(Error::invalid(
                    "extents have moved since this layer came: copy the volume to another device instead",
                )),
            }
        })
    }

    fn check(self: Rc<Self>, repair: bool) -> Pending<Vec<Finding>> {
        let core = Rc::clone(&self.0);
        Box::pin(async move { core.check(repair).await })
    }

    fn info(&self) -> Value {
        let (core, head) = (&self.0, self.0.head());
        let free = core.space.borrow().free_extents();
        let pages = core.tree.count() - core.pages.free_extents().min(core.tree.count());
        // As of LVM's thin pools: Data% and Meta%.
        let percent = |used: u64, of: u64| (used * 1000 / of.max(1)) as f64 / 10.0;
        json!({
            "size": head.size,
            "extent": head.extent(),
            "extents": head.physical,
            "free": free,
            "bytes_free": free * head.extent(),
            "data_percent": percent(head.physical.saturating_sub(free), head.physical),
            "map_percent": percent(pages, core.tree.count()),
            "snapshots": core.list(),
            "garbage": head.garbage,
            "damaged": core.is_damaged(),
            "waiting": core.state().overlay.len(),
            "map_bytes": pages * 8192,
            "map_bytes_free": core.pages.free_extents() * 8192,
            "memory": core.store.memory() + core.pages.memory() + core.space.borrow().memory(),
            "alerts": {
                "damaged": core.is_damaged(),
                "nearly_full": core.is_nearly_full(),
                "map_nearly_full": core.pages.free_extents() * NEARLY_FULL < core.tree.count(),
            },
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
