//! The writes of the host that has the volume, on the flash of this one.
//!
//! Invariants:
//! * What another host sends is kept if the vault says that it has the volume, and does not name this flash.
//! * Of two writes of the same blocks the later one counts, in whatever order they end.

use super::peers::all;
use crate::flash::{Cache, SLOT, Volume};
use lamina_block::{Buf, Env, Error, ErrorKind, Node, Pending, Result};
use lamina_cluster::peer::Peer;
use lamina_cluster::reservation::Reservation;
use lamina_cluster::secure::Caller;
use lamina_cluster::serve::{Member, Replica};
use lamina_cluster::vault::Record;
use lamina_cluster::wire::{Batch, Credit, Hello};
use lamina_kit::range_locks::RangeLocks;
use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// What another host may have under way to this one.
const UNDER_WAY: Credit = Credit { bytes: 16 << 20, writes: 4096 };
/// How often at most the flash is told how far the store of another host is.
const STORED: Duration = Duration::from_millis(200);

/// The writes of another host, on the flash of this one.
pub struct Follower {
    me: Weak<Follower>,
    env: Rc<dyn Env>,
    store: Rc<Node>,
    cache: Rc<Cache>,
    pub volume: Rc<Volume>,
    reservation: Rc<Reservation>,
    /// Of two writes of the same blocks the first one comes first.
    locks: Rc<RangeLocks>,
    /// The other host's store has everything up to there; and that is being kept.
    stored: Cell<u64>,
    is_storing: Cell<bool>,
}

/// Fails unless a host may send its writes to this flash.
fn may_send(
    record: Option<&Record>,
    (hello, caller): (&Hello, &Caller),
    flash: Option<lamina_cluster::Uuid>,
) -> Result<()> {
    let refused = |why: &str| Err(Error::new(ErrorKind::Fenced, why));
    let Some(record) = record else { return refused("the vault has no such volume") };
    let holder = record.holder.as_ref().filter(|holder| holder.flash == Some(hello.flash));
    let Some(holder) = holder.filter(|_| record.generation == hello.generation) else {
        return refused("the vault says that another host has the volume, or this one in another generation");
    };
    caller.may_be(&holder.host)?;
    if flash.is_none_or(|flash| flash == hello.flash) {
        return refused("it is the flash of the host that has the volume");
    }
    if flash.is_some_and(|flash| record.mode.members().contains(&flash)) {
        return refused("this flash has what the store lacks, as the vault says: it forgets nothing");
    }
    Ok(())
}

impl Follower {
    /// `volume` is for the writes of other hosts from now on, which come over connections of what this gives.
    pub fn begin(
        env: &Rc<dyn Env>,
        store: &Rc<Node>,
        cache: &Rc<Cache>,
        volume: Rc<Volume>,
        reservation: &Rc<Reservation>,
    ) -> (Rc<Follower>, Rc<Member>) {
        volume.follows.set(true);
        let follower = Rc::new_cyclic(|me| Follower {
            me: me.clone(),
            env: Rc::clone(env),
            store: Rc::clone(store),
            cache: Rc::clone(cache),
            volume,
            reservation: Rc::clone(reservation),
            locks: Rc::default(),
            stored: Cell::new(0),
            is_storing: Cell::new(false),
        });
        let mut peer = Peer::new(cache.uuid().unwrap_or_default(), (0, 0), UNDER_WAY);
        peer.speaks(reservation.host().versions().1);
        let member = Member::new(Rc::clone(env), peer, Rc::clone(&follower) as _);
        (follower, member)
    }

    /// Nothing of another host comes any more.
    pub fn end(&self) {
        self.volume.follows.set(false);
        self.volume.is_open.set(false);
    }

    fn here(&self) -> Rc<Follower> {
        self.me.upgrade().expect("it is used")
    }
}

impl Replica for Follower {
    fn admit(&self, hello: Hello, caller: &Caller) -> Pending {
        let (me, caller) = (self.here(), caller.clone());
        Box::pin(async move {
            if !hello.is_anew {
                return Err(Error::unsupported("writes are taken from the beginning on alone"));
            }
            if me.reservation.is_held() {
                return Err(Error::new(ErrorKind::Fenced, "this host has the volume"));
            }
            if hello.size != me.store.geometry().size {
                let message = format!(
                    "the volume has {} bytes there, and {} here",
                    hello.size,
                    me.store.geometry().size
                );
                return Err(Error::invalid(message));
            }
            let record = me.reservation.host().record().await?;
            may_send(record.as_ref(), (&hello, &caller), me.cache.uuid())?;
            if !me.reaches_store() {
                return Err(Error::offline("it does not reach the store"));
            }
            me.cache.check()
        })
    }

    fn begin(&self, hello: Hello, caller: &Caller) -> Pending {
        let (me, caller) = (self.here(), caller.clone());
        Box::pin(async move {
            // Time has passed, in which the vault may have named this flash for a host that connected before.
            me.admit(hello, &caller).await?;
            me.stored.set(0);
            me.cache.begin_replica(&me.volume).await
        })
    }

    fn put(&self, batch: Batch, data: Buf) -> Pending {
        let (mut writes, mut from) = (Vec::with_capacity(batch.entries.len()), 0);
        for entry in batch.entries {
            let to = from + entry.count as usize * SLOT;
            let (me, data) = (self.here(), data.slice(from..to));
            from = to;
            // Now, in the order in which they were written.
            let lock = self.locks.lock_in_turn(&(entry.block..entry.block + u64::from(entry.count)));
            writes.push(async move {
                if entry.block + u64::from(entry.count) > me.volume.size.get() {
                    let message = format!("write {} is behind the end of the volume", entry.serial);
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                let _lock = lock.await;
                me.cache.replicate(&me.volume, (entry.serial, entry.block), &data, entry.absent).await
            });
        }
        Box::pin(all(writes))
    }

    fn flush(&self) -> Pending {
        let me = self.here();
        Box::pin(async move { me.cache.flush().await })
    }

    fn stored(&self, upto: u64) {
        if upto <= self.stored.get() {
            return;
        }
        self.stored.set(upto);
        if self.is_storing.replace(true) {
            return;
        }
        let me = self.here();
        self.env.spawn(Box::pin(async move {
            me.env.sleep(STORED).await;
            me.is_storing.set(false);
            if me.volume.follows.get()
                && let Err(e) = me.cache.replica_is_stored(&me.volume, me.stored.get()).await
            {
                tracing::debug!(error = %e, "the flash does not know what the store of another host has");
            }
        }));
    }

    /// The host that sends hears later of what its store has than this flash does.
    fn space(&self) -> u64 {
        self.cache.dirty_share(&self.volume) / 4 * 3
    }

    fn reaches_store(&self) -> bool {
        self.reservation.reaches_store() && !self.store.is_unreached()
    }
}
