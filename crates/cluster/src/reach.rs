//! Whether this host reaches the store. One that keeps the writes of another host asks the store nothing by itself, and
//! would be no help to it without the store: so the first block is read now and then.
//!
//! A change that has failed may still be done: the answer was lost, and not the request. So a volume is not given back
//! before the store has answered a flush, which comes after all that this host had begun there. A host that was fenced
//! does the same, and says in the vault that nothing of it comes any more.

use crate::held::Held;
use crate::reservation::Reservation;
use futures_util::future::{Either, select};
use lamina_block::{Env, Error, Io, Node, OpKind, ReservationKey, Result, SharedStore, Time};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};

/// Reads in a lease; one that has no answer after two such times finds the store out of reach.
const READS: u32 = 4;

/// What is known of the store.
#[derive(Default)]
pub(crate) struct Reach {
    store: RefCell<Option<Weak<Node>>>,
    /// What the store is told of this host, if it keeps the vault.
    end: RefCell<Option<Rc<dyn SharedStore>>>,
    /// The last read has no answer, or has failed.
    is_lost: Cell<bool>,
    /// When the last one began that had an answer.
    since: Cell<Option<Time>>,
    /// Changes that had failed when the last flush began which the store has answered.
    ended: Cell<u64>,
}

impl Reservation {
    /// The store, which is read from when this host takes the writes of others; and its far end, if that keeps the
    /// vault.
    pub fn set_store(&self, store: &Rc<Node>, end: Option<Rc<dyn SharedStore>>) {
        self.reach.store.replace(Some(Rc::downgrade(store)));
        self.reach.end.replace(end);
    }

    /// Says to a store that keeps the vault that requests are those of a host which has the volume in this generation.
    pub(crate) async fn register(&self, generation: u64) -> Result<()> {
        let end = self.reach.end.borrow().clone();
        let volume = self.host().volume().uuid.as_u128();
        match end {
            Some(end) => end.register(ReservationKey { volume, generation }).await,
            None => Ok(()),
        }
    }

    /// Fails unless all that this host has begun on the store has ended there.
    pub(crate) async fn has_ended_below(&self) -> Result<()> {
        let store = self.reach.store.borrow().as_ref().and_then(Weak::upgrade);
        let Some(store) = store.filter(|_| !self.host().vault().fences()) else { return Ok(()) };
        let changes = [OpKind::Write, OpKind::Zero, OpKind::Discard];
        let failed = changes.iter().map(|op| store.stats().of(*op).errors.get()).sum();
        if failed == self.reach.ended.get() {
            return Ok(());
        }
        store.submit(Io::flush()).await.map_err(|e| {
            let why =
                "it may still do a change that has failed, and no other host can have the volume before";
            Error::busy(format!("{why}: {}", e.message())).on(store.name())
        })?;
        self.reach.ended.set(failed);
        Ok(())
    }

    /// Another host that has taken the volume waits until nothing of this one comes to the store any more. It is told
    /// when all that this host had begun there has ended for as long as the store needs: nothing is begun after that.
    pub(crate) fn tells_of_its_end(self: &Rc<Self>, held: &Rc<Held>) {
        let Some(settles) = self.settles() else { return };
        let (me, held, host) = (Rc::downgrade(self), Rc::clone(held), Rc::clone(self.host()));
        let env = Rc::clone(&host.env);
        env.spawn(Box::pin(async move {
            if held.until_fenced().await.is_none() {
                return;
            }
            loop {
                let Some(this) = me.upgrade().filter(|this| !this.is_over()) else { return };
                let is_busy = this.is_busy_below();
                drop(this);
                host.sleep(settles).await;
                let Some(this) = me.upgrade().filter(|this| !is_busy && !this.is_over()) else { continue };
                match this.tell_of_its_end().await {
                    Ok(()) => return,
                    Err(e) => {
                        tracing::warn!(volume = %host.volume().name, error = %e, "late writes may come")
                    }
                }
            }
        }));
    }

    async fn tell_of_its_end(&self) -> Result<()> {
        self.has_ended_below().await?;
        self.host().has_ended().await
    }

    /// True while a request of this host is under way to the store.
    fn is_busy_below(&self) -> bool {
        let store = self.reach.store.borrow().as_ref().and_then(Weak::upgrade);
        store.is_some_and(|store| store.stats().in_flight() > 0)
    }

    /// Whether this host reaches the store, as far as it knows.
    pub fn reaches_store(&self) -> bool {
        !self.reach.is_lost.get()
    }

    /// Whether this host has reached the store with a read that began after `time`.
    pub fn has_reached_store_since(&self, time: Time) -> bool {
        self.reaches_store() && self.reach.since.get().is_some_and(|began| began > time)
    }

    /// Reads from the store now and then until it `is_over`.
    pub(crate) fn watch_store(
        self: &Rc<Self>,
        env: &Rc<dyn Env>,
        is_over: impl Fn(&Reservation) -> bool + 'static,
    ) {
        let Some(store) = self.reach.store.borrow().clone() else { return };
        let (me, time, clock) = (Rc::downgrade(self), self.host().lease() / READS, Rc::clone(env));
        env.spawn(Box::pin(async move {
            loop {
                let (Some(this), Some(node)) = (me.upgrade().filter(|me| !is_over(me)), store.upgrade())
                else {
                    return;
                };
                let began = clock.now();
                let first = clock.pool().take(node.geometry().block as usize);
                let reads = pin!(node.submit(Io::read(0, first)));
                let read = match select(reads, clock.sleep(time * 2)).await {
                    Either::Left((read, _)) => read,
                    Either::Right((_, reads)) => {
                        this.reach.is_lost.set(true);
                        reads.await
                    }
                };
                this.reach.is_lost.set(read.is_err());
                if read.is_ok() {
                    this.reach.since.set(Some(began));
                }
                drop((this, node));
                clock.sleep(time).await;
            }
        }));
    }
}
