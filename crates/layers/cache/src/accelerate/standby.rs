//! A device of several hosts: it keeps the writes of the host that has the volume, until this host takes it.
//!
//! ```text
//!      standby: another host's writes ──▶ flash           (no request has come)
//!         │ a read or a write
//!         ▼
//!      takes the volume ──▶ the other host's connection ends ──▶ opened as any device, with what the flash has
//! ```
//!
//! A volume that this host had when its process ended is taken at once, as the flash may have what the store lacks. A
//! device that another host has fenced stays so until it is opened again: its user believes what was true before.
//!
//! Invariants:
//! * What another host sends is kept if the vault says that it has the volume, and does not name this flash.
//! * The volume is opened from the flash when nothing of another host is on its way there any more.
//! * No request begins after another host may have taken the volume: the last beat is not older than three quarters of
//!   the lease (`lamina_cluster::host::Host::is_safe`).

mod requests;

use super::follower::Follower;
use super::remote::Left;
use super::{Accelerate, Keys, state_record};
use crate::flash::{self, Cache, SLOT};
use futures_util::future::select;
use lamina_block::{Begin, Build, Error, ErrorKind, Geometry, Layer, Made, Node, Result, Signal, Time};
use lamina_cluster::amend::is_awaited;
use lamina_cluster::handover::Gives;
use lamina_cluster::host::Fence;
use lamina_cluster::reservation::{Reservation, reservation_of};
use lamina_cluster::serve::Member;
use lamina_cluster::vault::Record;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// How often a request looks that waits for the vault.
const LOOK: Duration = Duration::from_millis(50);
/// How long a host that has given its volume away leaves it alone.
const FIRST: Duration = Duration::from_millis(50);

/// True if hosts that meet at a store can give its volume to each other.
pub(super) fn meets_hosts(store: &Rc<Node>) -> bool {
    reservation_of(store).is_some_and(|reservation| reservation.listens()) && fits(store)
}

/// True if the flash of a host can have all writes of another one.
fn fits(store: &Node) -> bool {
    let Geometry { size, block, .. } = store.geometry();
    size.is_multiple_of(SLOT as u64) && block as usize <= SLOT
}

/// A device over a store that hosts meet at.
pub struct Standby {
    me: Weak<Standby>,
    name: String,
    keys: Keys,
    with: Build,
    store: Rc<Node>,
    cache: Rc<Cache>,
    reservation: Rc<Reservation>,
    follower: RefCell<Option<(Rc<Follower>, Rc<Member>)>>,
    /// What the flash still has of the volume since this host has given it away.
    left: RefCell<Option<Rc<Left>>>,
    primary: RefCell<Option<(Rc<Accelerate>, Rc<Node>)>>,
    is_taking: Cell<bool>,
    /// Another host gets the volume: requests wait.
    is_leaving: Cell<bool>,
    /// When the volume was given away.
    gave: Cell<Option<Time>>,
    /// Commands under way.
    commands: Cell<usize>,
    /// The host that may take the volume although a client uses it here.
    expected: RefCell<Option<String>>,
    /// Why the volume could not be taken last.
    refused: RefCell<Option<Error>>,
    is_closed: Cell<bool>,
    /// It has begun to listen.
    is_serving: Cell<bool>,
    moved: Signal,
}

impl Standby {
    pub(super) async fn build(keys: Keys, with: Build) -> Result<Rc<Standby>> {
        let [store, flash] = [Rc::clone(&with.children[0]), Rc::clone(&with.children[1])];
        let reservation =
            reservation_of(&store).filter(|reservation| reservation.listens()).ok_or_else(|| {
                Error::invalid("peers: this device needs the key `listen`, for the writes of other hosts")
                    .on(store.name())
            })?;
        if !fits(&store) {
            let message =
                "peers: the size of the store has to be a multiple of 4 KiB, and its blocks at most that";
            return Err(Error::unsupported(message).on(store.name()));
        }
        let cache = flash::cache_of(&flash, &with.env)?;
        reservation.host().set_fence(Fence::Quarantine);
        let is_read_only = store.geometry().read_only || cache.is_read_only();
        let standby = Rc::new_cyclic(|me| Standby {
            me: me.clone(),
            name: with.name.clone(),
            keys,
            store,
            cache,
            reservation,
            follower: RefCell::default(),
            left: RefCell::default(),
            primary: RefCell::default(),
            is_taking: Cell::new(false),
            is_leaving: Cell::new(false),
            gave: Cell::new(None),
            commands: Cell::new(0),
            expected: RefCell::default(),
            refused: RefCell::default(),
            is_closed: Cell::new(false),
            is_serving: Cell::new(false),
            moved: Signal::new(),
            with,
        });
        standby.reservation.is_reported_by(standby.me.clone());
        match is_read_only {
            true => tracing::warn!(device = %standby.name, "its flash keeps no writes of other hosts"),
            false => standby.follow(&standby.with).await?,
        }
        if standby.with.begin == Begin::Open {
            standby.begin();
        }
        Ok(standby)
    }

    /// Keeps the writes of other hosts from now on, on a flash that can.
    async fn follow(&self, with: &Build) -> Result<()> {
        let (env, blocks) = (&self.with.env, self.store.geometry().size / SLOT as u64);
        let Some(volume) = state_record::for_writes_of_others(with, &self.cache, blocks).await? else {
            tracing::warn!(device = %self.name, "its flash keeps no writes of other hosts");
            return Ok(());
        };
        let (follower, member) = Follower::begin(env, &self.store, &self.cache, volume, &self.reservation);
        self.follower.replace(Some((follower, Rc::clone(&member))));
        if self.is_serving.replace(true) {
            // It gave the volume away, and is where others know it to be.
            self.reservation.set_member(&member);
            return Ok(());
        }
        let cache = Rc::downgrade(&self.cache);
        self.reservation.host().has_room(move || cache.upgrade().map_or(0, |cache| cache.room()));
        match self.reservation.serve(env, &member, self.me.clone() as Weak<dyn Gives>).await {
            // Disks are being looked at, or a hierarchy is created, perhaps elsewhere: nobody is to be served.
            Err(e) if self.with.begin != Begin::Open || e.kind() == ErrorKind::Unsupported => {
                tracing::debug!(device = %self.name, error = %e, "no writes of other hosts are taken");
                Ok(())
            }
            served => served,
        }
    }

    /// Nothing of other hosts comes to the flash any more, and what was acknowledged is there.
    async fn follow_no_more(&self) {
        let follows = self.follower.borrow().clone();
        if let Some((follower, member)) = follows {
            member.end().await;
            follower.end();
        }
    }

    /// Goes on where the process before has ended: with a volume that it had, or, if another host has taken that since,
    /// with word that nothing of it comes any more.
    fn begin(&self) {
        // A device that is opened again in the same process may still have requests under way.
        let (me, was_held) = (self.me.clone(), self.reservation.is_held());
        self.with.env.spawn(Box::pin(async move {
            loop {
                let Some(this) = me.upgrade().filter(|this| !this.is_closed.get()) else { return };
                let host = this.reservation.host();
                let done = match host.record().await {
                    Ok(Some(record)) => this.go_on(&record, was_held).await,
                    Ok(None) => Ok(()),
                    Err(e) => Err(e),
                };
                match done {
                    Ok(()) => return,
                    Err(e) => tracing::warn!(device = %this.name, error = %e, "it is tried again"),
                }
                let pause = this.with.env.sleep(host.lease());
                drop(this);
                pause.await;
            }
        }));
    }

    /// As the vault says: the volume may be this host's, and its past may be awaited, also if it has the volume again.
    async fn go_on(&self, record: &Record, was_held: bool) -> Result<()> {
        let host = self.reservation.host();
        if record.holder.as_ref().is_some_and(|holder| holder.host == host.name()) {
            self.primary().await?;
        }
        match self.reservation.settles() {
            Some(settles) if !was_held && is_awaited(record, &host.name()) => {
                self.with.env.sleep(settles).await;
                host.has_ended().await
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn now_primary(&self) -> Option<(Rc<Accelerate>, Rc<Node>)> {
        self.primary.borrow().clone()
    }

    /// The device as the host has it that has the volume, which is taken if need be. Fails if another host has it.
    async fn primary(&self) -> Result<Rc<Node>> {
        let left = pin!(self.moved.until(|| !self.is_leaving.get()));
        select(left, self.with.env.sleep(self.keys.store_timeout.0)).await;
        if self.is_leaving.get() {
            return Err(Error::offline("the volume is being given to another host").on(&self.name));
        }
        if self.now_primary().is_none()
            && !self.is_taking.replace(true)
            && let Some(me) = self.me.upgrade()
        {
            // Whoever has asked may not wait for its end; and who asks meanwhile makes no attempt of its own.
            self.with.env.spawn(Box::pin(async move {
                let refused = me.take().await.err();
                me.refused.replace(refused);
                me.is_taking.set(false);
                me.moved.notify();
            }));
        }
        self.moved.until(|| !self.is_taking.get()).await;
        match self.now_primary() {
            Some((_, node)) => Ok(node),
            None => Err(self.refused.borrow().clone().unwrap_or_else(|| self.not_here())),
        }
    }

    async fn take(&self) -> Result<()> {
        if let Some(gave) = self.gave.take() {
            // The host that has asked for it is the first.
            let since = self.with.env.now().since(gave);
            self.with.env.sleep(FIRST.saturating_sub(since)).await;
        }
        self.reservation.take(self.cache.uuid()).await?;
        self.left.take();
        self.follow_no_more().await;
        if self.is_closed.get() {
            return Err(Error::offline("the device is closed").on(&self.name));
        }
        tracing::info!(device = %self.name, "it is opened with what its flash has");
        let opened = Accelerate::open(self.keys.clone(), None, self.again()).await;
        let accelerate = opened.inspect_err(|e| {
            tracing::error!(device = %self.name, error = %e, "this host has the volume, and cannot open it");
        })?;
        if self.is_closed.get() {
            // Nobody has waited for it.
            accelerate.close().await?;
            return Err(Error::offline("the device is closed").on(&self.name));
        }
        let node =
            Node::new(&self.name, "accelerate", Rc::clone(&self.with.env), Rc::clone(&accelerate) as Made);
        self.primary.replace(Some((accelerate, node)));
        self.expected.take();
        Ok(())
    }

    /// Requests wait from now on until what this gives is dropped: then the next one takes the volume again. `None` if
    /// there is nothing to be left.
    pub(super) fn begin_to_leave(&self) -> Option<Leaving<'_>> {
        let may = self.now_primary().is_some() && !self.is_closed.get() && !self.is_leaving.get();
        may.then(|| {
            self.is_leaving.set(true);
            Leaving(self)
        })
    }

    /// Waits until nothing is under way to the store.
    pub(super) async fn is_idle_below(&self) {
        while self.store.stats().in_flight() > 0 {
            self.with.env.sleep(LOOK).await;
        }
    }

    /// Nobody has the volume from now on, and this host keeps the writes of the one that takes it.
    pub(super) async fn give_back(&self) -> Result<()> {
        self.primary.take();
        let generation = self.reservation.held().map_or(0, |held| held.record().generation);
        self.reservation.give_back().await?;
        tracing::info!(device = %self.name, generation, "the volume is given away: this host is a standby from now on");
        self.gave.set(Some(self.with.env.now()));
        if self.is_closed.get() {
            return Ok(());
        }
        if let Err(e) = self.follow(&self.again()).await {
            tracing::warn!(device = %self.name, error = %e, "its flash keeps no writes of other hosts");
        }
        let volume = self.follower.borrow().as_ref().map(|(follower, _)| Rc::clone(&follower.volume));
        self.left.replace(volume.map(|volume| {
            let (cache, env) = (Rc::clone(&self.cache), Rc::clone(&self.with.env));
            Rc::new(Left { cache, volume, env, generation, has_parts: false })
        }));
        Ok(())
    }

    pub(super) fn reservation(&self) -> &Rc<Reservation> {
        &self.reservation
    }

    pub(super) fn cache(&self) -> &Rc<Cache> {
        &self.cache
    }

    /// What keeps the writes of other hosts, and serves the one that sends them.
    pub(super) fn follower(&self) -> Option<(Rc<Follower>, Rc<Member>)> {
        self.follower.borrow().clone()
    }

    /// What the flash has of the writes of the host that has the volume in this generation, if it has all of them.
    pub(super) fn kept(&self, record: &Record) -> Option<Rc<Left>> {
        let volume = Rc::clone(&self.follower.borrow().as_ref()?.0.volume);
        let is_member = record.mode.members().contains(&self.cache.uuid()?);
        let (cache, env, generation) = (Rc::clone(&self.cache), Rc::clone(&self.with.env), record.generation);
        let is_kept = is_member && volume.follows.get();
        is_kept.then(|| Rc::new(Left { cache, volume, env, generation, has_parts: true }))
    }

    /// What the vault says of the volume.
    pub(super) async fn record(&self) -> Result<Option<Record>> {
        self.reservation.host().record().await
    }

    /// Why the volume is not given: this host does not have it, or has it and could not open it.
    pub(super) fn not_given(&self) -> Error {
        match self.refused.borrow().as_ref().filter(|_| self.reservation.is_held()) {
            Some(e) => Error::busy(format!("it has the volume, and cannot open it: {}", e.message())),
            None => Error::busy("it does not have the volume, or is about to give it away"),
        }
    }

    /// True while a command is under way.
    pub(super) fn has_commands(&self) -> bool {
        self.commands.get() > 0
    }

    /// A command of the device that has the volume, which is not given away meanwhile. Fails while it is.
    async fn commanded<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        if self.is_leaving.get() {
            return Err(Error::busy("the volume is being given to another host").on(&self.name));
        }
        let _counts = Counts::one(&self.commands);
        work.await
    }

    pub(super) fn here(&self) -> Rc<Standby> {
        self.me.upgrade().expect("it is used")
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// True if a client uses the device.
    pub(super) fn is_in_use(&self) -> bool {
        self.store.is_in_use()
    }

    pub(super) fn left(&self) -> Option<Rc<Left>> {
        self.left.borrow().clone()
    }

    /// The host that may take the volume although a client uses it here.
    pub(super) fn expected(&self) -> &RefCell<Option<String>> {
        &self.expected
    }

    /// What the device is opened with.
    fn again(&self) -> Build {
        let mut with = Build::new(&self.name, &self.with.env, self.with.children.clone());
        (with.base, with.level) = (self.with.base.clone(), self.with.level);
        with.keep = self.with.keep.clone();
        with
    }

    fn not_here(&self) -> Error {
        Error::busy("this host does not have the volume: a read or a write of the device takes it")
            .on(&self.name)
    }
}

/// One more, until it is dropped.
struct Counts<'a>(&'a Cell<usize>);

impl Counts<'_> {
    fn one(of: &Cell<usize>) -> Counts<'_> {
        of.set(of.get() + 1);
        Counts(of)
    }
}

impl Drop for Counts<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The volume is about to be given to another host.
pub(super) struct Leaving<'a>(&'a Standby);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.primary.take();
        self.0.is_leaving.set(false);
        self.0.moved.notify();
    }
}
