//! `accelerate`: flash in front of a slow store. Writes are acknowledged from the flash and get to the store in the
//! background; reads come from the flash if the block is there.
//!
//! ```text
//!      write ──▶ lock ──▶ flash ──▶ acknowledged            (write-back)
//!                           │
//!                     staging queue ──▶ destager: a batch ──▶ store ──▶ checkpoint
//!                                                               └─▶ acknowledged  (write-through)
//!      read ───▶ flash, or store ──▶ fills flash
//! ```
//!
//! After FVP (*A Practical Implementation of Clustered Fault Tolerant Write Acceleration in a Virtualized
//! Environment*, FAST '15): the *gatekeeper* gives every write a serial number and serialises overlapping
//! writes; the *destager* takes batches without overlapping writes in the order of the serial numbers; a
//! *checkpoint* says up to which number the store is up to date. After a crash the writes since the last
//! checkpoint are written again, which changes nothing where they had been written before.
//!
//! Invariants:
//! * Every acknowledged write is on the flash, as durable as the request asked for, or on the store.
//! * The flash has a write before the store has it. So the flash is never older than the store.
//! * Blocks of a flash that was left are never read again.
//! * A batch is durable on the flash before any of it is written to the store, and durable on the store before
//!   the checkpoint.
//!
//! A write that covers a block in part is not completed from the store: the flash has the sectors that were written,
//! and a read lays them over those of the store (`parts.rs`).
//!
//! Within a batch, writes go out in the order of their places, neighbours as one. Of a block that was written
//! several times only the latest version goes out. So after a batch the store is as the volume was at one
//! moment; in the middle of a batch the store is not.
//!
//! Over a store of kind `redo` a batch is all data that was dirty at one moment, and the store changes to it
//! atomically: whatever happens, also to the flash, the store is exactly the volume of that moment
//! (`recovery_point`). In return the log of the `redo` limits the dirty data, and everything is written twice,
//! to that log and to the store.
//!
//! Keys:
//! * `over`: the store, then the device of kind `flash`.
//! * `policy` ("write-back"): or "write-through": a write is acknowledged when the store has it too; or
//!   "uncached".
//! * `destage` ("soon"): or "late": dirty blocks stay on the flash until their space is needed, and are then written in
//!   the order of their places, with their dirty neighbours. What is written again meanwhile gets to the store once. In
//!   return more is lost with a flash that is lost.
//! * `share` (an equal part of what the others leave): percent of the flash. Other volumes may borrow an unused
//!   share. The share also limits the dirty data.
//! * `sequential-cutoff` ("1MiB"): a longer stream of reads, in requests of 64 KiB or more, does not fill the
//!   flash. With "0" all streams fill it.
//! * `depth` (32): requests of the destager to the store that are under way together. The depth is one while a
//!   guest writes one block after the other and less than an eighth of the share is dirty.
//! * `store-timeout` ("30s"): while the store fails, requests that need the store wait; after this long they
//!   fail.
//! * `peers` (0): so many other hosts, from 1 to 3, are to have each write on their flash before it is acknowledged,
//!   over a store of kind `reservation` that has the key `listen`. Each of them has a device of this kind for the same
//!   volume. While fewer are there, writes wait for the store. See *Peers* below.
//! * `peer-domain` ("any"): where the peers are to be: "other", in other fault domains than this host (the key
//!   `domain` of the `reservation`), "same", in the same one, or so many of each, as in `{ same = 1, other = 1 }`.
//!   Among hosts that the rule allows, volumes are spread by the room of their flashes.
//! * `peer-timeout` ("1s"): a peer that does not answer for so long, from 100ms to 1min, is lost.
//!
//! When the flash fails and holds no unprotected dirty data (acknowledged, and not on the store), the device
//! goes on uncached, and `set-policy` attaches the device to the flash again. Otherwise the device is stopped
//! until the flash works again: reads of what the store has are served, and all other requests fail; `accept-loss`
//! goes on without the flash. With peers, what the store lacks is read from the flash of one of them, requests wait for
//! that, and the device goes on uncached. See `failure.rs`.
//!
//! Peers. With `peers`, a device that does not have the volume keeps the writes of the host that has it. A device takes
//! the volume with its first read or write, when the host that has it gives it away, or is silent for a lease and this
//! flash has what the store lacks: no other word is needed then. Blocks that the silent host may still write to the
//! store stay on the flash until it has ended, and are then written once more; until then no peers join. A host that
//! comes back late finds that it is fenced. A peer that does not reach the store is replaced, as long as the host that
//! has the volume reaches it. Discards do nothing in such a device.
//!
//! Over a `reservation` with the key `listen` a volume moves with its virtual machine: a host that needs it asks the
//! host that has it, which gives it away when no client uses it there (a virtio queue that runs, an NBD connection).
//! What the store lacks then is on the flash of the host that asks, if that is a peer; otherwise the store gets it
//! first, and requests wait for that. `expect HOST` allows that in advance, also while a client is connected, and
//! brings the store up to date before the move, with writes that wait for it until then, unless that host is a peer.
//! What the flash lacks after a move is read from the flash of the host before, but for what was written since.
//!
//! Commands: `set-policy` and `set-share` change the policy and the share of the running device, until the
//! device is opened again; `drain` waits until the store has everything. For a change from write-back to
//! write-through the store is brought up to date first, and new writes wait for the store from the beginning on.
//!
//! Before a command rolls the store back or makes the store smaller, the store gets all dirty data, and then
//! the flash is forgotten. Before a snapshot of the store, the store gets all dirty data. So the pause is
//! longer than that of a device without a cache. A last block of the store that is not 4 KiB is never on the
//! flash.
//!
//! Jobs: `drain` runs while a command or a change waits until the store has everything; a cancelled `drain`
//! fails that command or change, and nothing else. `replay` runs until the store has the writes that were found
//! when the device was opened; this job cannot be stopped.

// Design notes. They stand below the head because the head is printed as a page for users.
// See `failure.rs` too.
//
//      condition   write                  the flash works again  accept-loss                   set-policy
//      fine        as the policy says     -                      gives up unreadable blocks    done
//      leaving     waits until that ends  -                      as fine                       waits until that ends
//      stopped     fails                  fine                   leaving, then uncached        refused
//
// A request that the flash fails is decided by the first line that holds (`without`). U: `is_unprotected`, data
// was acknowledged that the store does not have; broken: the flash as a whole, not this request alone.
//
//      detached                              waits until leaving ends; fails if stopped then
//      U, broken                             stopped: the request fails, as do all later ones but reads of clean data
//      U                                     the request fails
//      broken, or not write-back             leaving: writes under way go to the store, then detached
//      otherwise                             the request fails
//
// Leaving ends as fine; as stopped if U holds after all, if the state record may be the old or the new one,
// or if `accept-loss` began it and failed.
//
//      state record            opened with its flash          opened without
//      attached, owes          goes on                        stopped: the loss is not known
//      attached, owes not      goes on                        recorded as not attached, then uncached
//      not attached            a new volume, empty (*)        uncached
//
// (*) Uncached if the device is read-only.

mod bad;
mod below;
mod cluster;
mod condition;
mod destage;
mod discard;
mod epoch;
mod failure;
mod fence;
mod flow;
mod follower;
mod from_peers;
mod handover;
mod layer;
mod pace;
mod parts;
mod peer_domain;
mod peers;
mod policy;
mod progress;
mod read;
mod remote;
mod report;
mod standby;
mod state_record;
mod tail;
mod tier;
mod write;

use crate::flash::{self, Cache, SLOT, Volume};
use crate::tier::Heat;
pub(crate) use below::check_over;
use epoch::Epochs;
use failure::Failure;
use flow::Flow;
use lamina_block::{
    Arg, ArgType, Build, Bytes, Config, Env, Error, Interval, Made, Node, Over, Pending, Result, Signal,
    Traits, Verb,
};
use lamina_cluster::Uuid;
use lamina_cluster::choice::Domains;
use lamina_cluster::reservation::{Reservation, reservation_of};
use lamina_kit::range_locks::{RangeLock, RangeLocks};
use lamina_kit::tasks::Tasks;
use pace::Pace;
use peer_domain::PeerDomain;
use peers::Peers;
use policy::{Destage, Policy, permille};
use progress::Progress;
use read::LongStreams;
use remote::Before;
pub(crate) use report::FIGURES;
use report::Report;
use serde::Deserialize;
use standby::Standby;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The keys; see the module.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    policy: Policy,
    share: Option<u32>,
    #[serde(default = "sequential_cutoff")]
    sequential_cutoff: Bytes,
    #[serde(default)]
    destage: Destage,
    #[serde(default = "depth")]
    depth: usize,
    #[serde(default = "store_timeout")]
    store_timeout: Interval,
    #[serde(default)]
    peers: usize,
    #[serde(default)]
    peer_domain: PeerDomain,
    #[serde(default = "peer_timeout")]
    peer_timeout: Interval,
}

/// Fewer than so many peers: the vault names the flashes of four hosts.
const PEERS: usize = 4;

const PEER_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);

fn sequential_cutoff() -> Bytes {
    Bytes(1 << 20)
}

fn depth() -> usize {
    32
}

pub(crate) fn store_timeout() -> Interval {
    Interval(Duration::from_secs(30))
}

fn peer_timeout() -> Interval {
    Interval(Duration::from_secs(1))
}

impl Config for Keys {
    const KIND: &'static str = "accelerate";
    const SUMMARY: &'static str = "flash in front of a slow store: write-back, write-through, read cache";
    const CHILDREN: std::ops::RangeInclusive<usize> = 2..=2;
    const TRAITS: Traits = Traits {
        renamed: &[("bypass", "sequential-cutoff")],
        keeps: true,
        shares: true,
        elsewhere: &["cache", "bcache", "dm-cache", "writeback", "write-back"],
        heading: Some("CACHE"),
        figures: report::FIGURES,
        notices: report::NOTICES,
        verbs: &OWN_VERBS,
        ..Traits::NONE
    };

    /// Without its flash it decides by itself what is lost.
    fn may_miss(&self, child: usize) -> bool {
        child == 1
    }

    fn check(&self, over: &Over<'_>) -> Result<()> {
        check_over(over)?;
        if !PEER_TIMEOUTS.contains(&self.peer_timeout.0) {
            return Err(Error::invalid("peer-timeout: is from 100ms to 1min"));
        }
        self.peer_domain.check(self.peers)?;
        match (self.peers, over.kinds.first().map(|kind| kind.name)) {
            (0, _) => Ok(()),
            (PEERS.., _) => Err(Error::invalid(format!("peers: is from 0 to {}", PEERS - 1))),
            (_, Some("reservation")) => Ok(()),
            (_, _) => Err(Error::invalid(
                "peers: the first device of `over` has to be one of kind \"reservation\", through which hosts meet",
            )),
        }
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let is_nowhere =
                reservation_of(&with.children[0]).is_some_and(|store| store.host().domain().is_none());
            if is_nowhere && self.peer_domain != PeerDomain::Any {
                let message = "peer-domain: the device of kind \"reservation\" has no key `domain`, which says where \
                               this host is";
                return Err(Error::invalid(message));
            }
            match self.peers > 0 || standby::meets_hosts(&with.children[0]) {
                false => Ok(Accelerate::open(self, None, with).await? as Made),
                true => Ok(Standby::build(self, with).await? as Made),
            }
        })
    }
}

impl Keys {
    /// So many peers, in these fault domains.
    fn wanted(&self) -> (usize, Domains) {
        (self.peers, self.peer_domain.of(self.peers))
    }

    /// Those of a tier, which keeps dirty blocks, and has its own rules of what is copied.
    pub(crate) fn of_tier(store_timeout: Interval) -> Keys {
        Keys {
            policy: Policy::WriteBack,
            share: None,
            sequential_cutoff: Bytes(0),
            destage: Destage::Late,
            depth: depth(),
            store_timeout,
            peers: 0,
            peer_domain: PeerDomain::default(),
            peer_timeout: peer_timeout(),
        }
    }
}

/// What there is to do with a device, and with a tier.
pub(crate) const VERBS: [Verb; 4] = [
    Verb::new("set-policy", "changes when writes are acknowledged").with(&[Arg::required(
        "policy",
        ArgType::Text,
        "\"write-back\", \"write-through\" or \"uncached\"",
    )]),
    Verb::new("set-share", "changes its part of the flash").with(&[Arg::required(
        "share",
        ArgType::Count,
        "percent of the flash, from 1 to 100",
    )]),
    Verb::new("drain", "waits until the store has everything"),
    Verb::new("accept-loss", "goes on without a flash that has failed, and without what only it has"),
];

/// What there is to do with a device alone.
const OWN_VERBS: [Verb; VERBS.len() + 1] = [
    VERBS[0],
    VERBS[1],
    VERBS[2],
    VERBS[3],
    Verb::new("expect", "lets another host take the volume although a client uses it here")
        .with(&[Arg::required("host", ArgType::Text, "the name of that host")]),
];

pub(crate) struct Accelerate {
    me: Weak<Accelerate>,
    name: String,
    env: Rc<dyn Env>,
    store: Rc<Node>,
    /// If the store is always to be what the volume was at one moment.
    epochs: Option<Epochs>,
    cache: Rc<Cache>,
    volume: Rc<Volume>,
    keys: Keys,
    policy: Cell<Policy>,
    /// Bytes that are being written, or filled.
    locks: Rc<RangeLocks>,
    /// Streams of reads, to know the long ones.
    streams: RefCell<LongStreams>,
    /// What a tier decides.
    heat: Option<Heat>,
    flow: RefCell<Flow>,
    pace: Pace,
    /// How far the store is.
    progress: Cell<Progress>,
    /// Who waits for the store.
    waiting: Cell<usize>,
    /// Why the last batch failed, and which it was, until one succeeds.
    trouble: RefCell<Option<(u64, Error)>>,
    /// The destager has ended a batch, well or not.
    moved: Signal,
    report: Report,
    /// What goes on in the background.
    tasks: Rc<Tasks>,
    closed: Cell<bool>,
    tally: Tally,
    kept: state_record::Recorder,
    failure: Failure,
    peers: Option<Rc<Peers>>,
    /// Through which another host may take the volume without a word; a device that meets hosts looks itself.
    may_be_followed: Option<Rc<Reservation>>,
    /// The host that had the volume before.
    before: Before,
    /// The flash of the host that has asked for the volume, and gets it.
    gives_to: Cell<Option<Uuid>>,
}

/// What is counted, in blocks.
#[derive(Default)]
struct Tally {
    hits: Cell<u64>,
    misses: Cell<u64>,
    bypassed: Cell<u64>,
    filled: Cell<u64>,
    written: Cell<u64>,
    destaged: Cell<u64>,
    batches: Cell<u64>,
    /// Clean, but not to be read from the flash.
    unreadable: Cell<u64>,
    /// Read from the flash of the host that had the volume before.
    remote: Cell<u64>,
}

fn add(cell: &Cell<u64>, more: u64) {
    cell.set(cell.get() + more);
}

impl Accelerate {
    async fn open(keys: Keys, heat: Option<Heat>, with: Build) -> Result<Rc<Accelerate>> {
        let [store, flash] = [Rc::clone(&with.children[0]), Rc::clone(&with.children[1])];
        if keys.depth == 0 {
            return Err(Error::invalid("depth: at least one request is under way"));
        }
        let share = keys.share.map(permille).transpose()?;
        if store.geometry().block as usize > SLOT {
            return Err(
                Error::unsupported("a store with blocks above 4 KiB cannot be accelerated").on(store.name())
            );
        }
        if store.geometry().size > flash::LARGEST {
            return Err(Error::unsupported("a store above 4 PiB cannot be accelerated").on(store.name()));
        }
        let cache = flash::cache_of(&flash, &with.env)?;
        let read_only = store.geometry().read_only || cache.is_read_only();
        let size = store.geometry().size.div_ceil(SLOT as u64);
        let epochs = Epochs::of(&store)?;
        let reservation = reservation_of(&store);
        let state_record::Opened { volume, kept, trouble, is_unknown } =
            state_record::open(&with, &cache, size, keys.policy, read_only, reservation.clone()).await?;
        let shares = reservation.clone();
        let may_be_followed =
            reservation.clone().filter(|reservation| reservation.fences() && !standby::meets_hosts(&store));
        let peers = reservation.filter(|_| keys.peers > 0).map(|reservation| {
            Peers::new(&with.env, reservation.host(), keys.wanted(), keys.peer_timeout.0, keys.policy)
        });
        // Writes wait for the store until peers have joined.
        let policy = match keys.policy {
            _ if trouble.is_some() => Policy::Uncached,
            Policy::WriteBack if peers.is_some() => Policy::WriteThrough,
            policy => policy,
        };
        if kept.words().behind {
            cache.let_go_of_clean(&volume);
        }
        volume.share.set(share);
        volume.destages_late.set(keys.destage == Destage::Late);
        // What was found was perhaps acknowledged, and has perhaps been read.
        let found = volume.queue.borrow().back().map_or(0, |record| record.serial);
        let me = Rc::new_cyclic(|me| Accelerate {
            me: me.clone(),
            name: with.name.clone(),
            env: Rc::clone(&with.env),
            policy: Cell::new(policy),
            streams: RefCell::new(LongStreams::new(keys.sequential_cutoff.0)),
            heat,
            keys,
            epochs,
            store,
            progress: Cell::new(Progress::new(
                volume.checkpoint.get(),
                if is_unknown { u64::MAX } else { found },
            )),
            cache,
            volume,
            locks: Rc::default(),
            flow: RefCell::default(),
            pace: Pace::default(),
            waiting: Cell::new(0),
            trouble: RefCell::default(),
            moved: Signal::new(),
            report: Report::default(),
            tasks: Rc::default(),
            closed: Cell::new(false),
            tally: Tally::default(),
            kept,
            failure: Failure::new(trouble.clone()),
            peers,
            may_be_followed,
            before: Before::default(),
            gives_to: Cell::new(None),
        });
        if let Some(e) = trouble {
            match is_unknown {
                true => drop(me.stop(&e)),
                false => tracing::warn!(device = %me.name, error = %e, "it goes on without its flash"),
            }
        }
        if let Some(reservation) = shares {
            reservation.is_reported_by(me.me.clone());
        }
        me.quarantine();
        if !me.volume.quarantine.is_empty() && me.policy.get() == Policy::Uncached {
            // Its blocks are to be read from the flash, and nothing is forgotten.
            me.policy.set(Policy::WriteThrough);
        }
        if !read_only {
            me.begin().await.inspect_err(|_| me.volume.is_open.set(false))?;
            me.flush_found().await;
        }
        me.asks_before();
        me.watch_fence();
        if let Some(peers) = &me.peers {
            me.keep_peers(peers);
        }
        Ok(me)
    }

    async fn begin(self: &Rc<Self>) -> Result<()> {
        if !self.volume.is_somewhere() {
            self.destage();
            return Ok(());
        }
        match self.policy.get() {
            Policy::Uncached => self.drain_first().await?,
            Policy::WriteBack | Policy::WriteThrough => self.forget_beyond().await?,
        }
        self.kept
            .change(|words| words.owes |= !self.is_drained() || self.policy.get() == Policy::WriteBack)
            .await?;
        self.watch_replay();
        self.destage();
        if self.policy.get() != Policy::WriteBack && self.kept.words().owes {
            self.spawn(|me| async move {
                if me.wait_for(Accelerate::is_drained).await.is_ok() {
                    // It is tried again when the device is closed.
                    let _ = me.keep_owes().await;
                }
            });
        }
        Ok(())
    }

    /// The blocks that `at` touches.
    fn blocks(at: &Range<u64>) -> Range<u64> {
        at.start / SLOT as u64..at.end.div_ceil(SLOT as u64)
    }

    /// The bytes of blocks; the last may be cut off by the end of the device.
    fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        let end = (blocks.end * SLOT as u64).min(self.store.geometry().size);
        (blocks.start * SLOT as u64).min(end)..end
    }

    /// Locks `at`.
    async fn lock(&self, at: &Range<u64>) -> RangeLock {
        match self.locks.try_lock(at) {
            Some(lock) => lock,
            None => {
                // It may be a fill that waits for others.
                let _hurry = self.cache.hurry();
                self.locks.lock(at).await
            }
        }
    }

    /// Runs `work` in the background; closing waits for it.
    fn spawn<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Rc<Accelerate>) -> F) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn(&*self.env, work(me));
    }
}

#[cfg(test)]
pub(crate) mod tests;
