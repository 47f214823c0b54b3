//! Whether this host reaches the store. One that keeps the writes of another host asks the store nothing by itself, and
//! would be no help to it without the store: so the first block is read now and then. A sink that may answer that by
//! itself is asked before whether its far end answers ([`Probe`](lamina_block::Probe)).
//!
//! A change that has failed may still be done: the answer was lost, and not the request. So a volume is not given back
//! before the store has answered a flush, which comes after all that this host had begun there. A host that was fenced
//! does the same, and says in the vault that nothing of it comes any more.

use crate::held::Held;
use crate::reservation::Reservation;
use futures_util::future::{Either, select};
use lamina_block::{Env, Error, Io, Node, OpKind, ReservationKey, Result, SharedStore, Time, probe};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};

/// Questions in a lease; one that has no answer after two such times finds the store out of reach.
const QUESTIONS: u32 = 4;

/// What is known of the store.
#[derive(Default)]
pub(crate) struct Reach {
    store: RefCell<Option<Weak<Node>>>,
    /// What the store is told of this host, if it keeps the vault.
    end: RefCell<Option<Rc<dyn SharedStore>>>,
    /// The last question has no answer, or has failed.
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

    /// Whether this host has reached the store with a question that began after `time`.
    pub fn has_reached_store_since(&self, time: Time) -> bool {
        self.reaches_store() && self.reach.since.get().is_some_and(|began| began > time)
    }

    /// Asks the store now and then until it `is_over`.
    pub(crate) fn watch_store(
        self: &Rc<Self>,
        env: &Rc<dyn Env>,
        is_over: impl Fn(&Reservation) -> bool + 'static,
    ) {
        let Some(store) = self.reach.store.borrow().clone() else { return };
        let (me, time, clock) = (Rc::downgrade(self), self.host().lease() / QUESTIONS, Rc::clone(env));
        env.spawn(Box::pin(async move {
            loop {
                let (Some(this), Some(node)) = (me.upgrade().filter(|me| !is_over(me)), store.upgrade())
                else {
                    return;
                };
                let began = clock.now();
                let asked = pin!(ask(Rc::clone(&node), Rc::clone(&clock)));
                let answer = match select(asked, clock.sleep(time * 2)).await {
                    Either::Left((answer, _)) => answer,
                    Either::Right((_, asked)) => {
                        this.reach.is_lost.set(true);
                        asked.await
                    }
                };
                this.reach.is_lost.set(answer.is_err());
                if answer.is_ok() {
                    this.reach.since.set(Some(began));
                }
                drop((this, node));
                clock.sleep(time).await;
            }
        }));
    }
}

/// Ends when the store has answered: also what it needs its far end for.
async fn ask(store: Rc<Node>, env: Rc<dyn Env>) -> Result<()> {
    if let Some(probe) = probe(store.shared()) {
        probe.probe().await?;
    }
    let first = env.pool().take(store.geometry().block as usize);
    store.submit(Io::read(0, first)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Fence, Host, Name};
    use crate::vault::{FolderVault, Holder};
    use lamina_block::{Geometry, Layer, Manage, Passthrough, Pending, Probe, Probes, Step};
    use lamina_sim::{SimEnv, Simulation};
    use std::any::Any;
    use std::time::Duration;

    const LEASE: Duration = Duration::from_secs(5);

    /// A sink that answers reads by itself.
    struct Remembers(Rc<FarAway>);

    /// What answers while it can be reached.
    struct FarAway {
        env: Rc<SimEnv>,
        is_reached: Rc<Cell<bool>>,
    }

    impl Probe for FarAway {
        fn probe(&self) -> Pending {
            let (env, is_reached) = (Rc::clone(&self.env), Rc::clone(&self.is_reached));
            Box::pin(async move {
                while !is_reached.get() {
                    env.sleep(Duration::from_millis(10)).await;
                }
                Ok(())
            })
        }
    }

    impl Layer for Remembers {
        fn geometry(&self) -> Geometry {
            Geometry::new(1 << 20)
        }

        fn submit(self: Rc<Self>, _io: &mut Io) -> Step {
            Step::Done(Ok(()))
        }

        fn passthrough(&self) -> Passthrough {
            Passthrough::None
        }
    }

    impl Manage for Remembers {
        fn shared(&self) -> Option<Rc<dyn Any>> {
            Some(Rc::new(Probes(Rc::clone(&self.0) as _)))
        }
    }

    fn reservation(env: &Rc<SimEnv>) -> Rc<Reservation> {
        let vault = Rc::new(FolderVault::new(Rc::clone(env) as _, env.shared_folder("/vault") as _));
        let holder = Holder { host: "a".into(), flash: None };
        let host = Host::start(Rc::clone(env) as _, vault, Name::new("vm1"), holder, LEASE, Fence::Confirmed);
        Reservation::new(host, "/vault".into(), None, None)
    }

    #[test]
    fn a_sink_that_reads_without_its_far_end_does_not_reach_the_store() {
        let world = Simulation::new(1);
        let env = world.env();
        let watched = async move {
            let is_reached = Rc::new(Cell::new(true));
            let far = FarAway { env: Rc::clone(&env), is_reached: Rc::clone(&is_reached) };
            let sink = Rc::new(Remembers(Rc::new(far)));
            let store = Node::new("store", "remembers", Rc::clone(&env) as _, sink);
            let (reservation, clock) = (reservation(&env), Rc::clone(&env) as Rc<dyn Env>);
            reservation.set_store(&store, None);
            reservation.watch_store(&clock, |_| false);
            for reaches in [true, false, true] {
                is_reached.set(reaches);
                let began = env.now();
                env.sleep(LEASE).await;
                assert_eq!(reservation.reaches_store(), reaches);
                assert_eq!(reservation.has_reached_store_since(began), reaches);
            }
            reservation.end().await;
        };
        world.run(watched).expect("it ends");
    }
}
