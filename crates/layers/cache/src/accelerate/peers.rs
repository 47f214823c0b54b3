//! Peers: other hosts' flashes that have the writes of this device before they are acknowledged.
//!
//! ```text
//!      write-through ── the store has everything; peers are found ──▶ vault: back, with them ──▶ write-back
//!            ▲                                                                                       │
//!            └── vault: through ◀── the store gets everything ◀── vault: back, without it ◀── one is lost
//! ```
//!
//! With the key `peers` a device acknowledges writes from flash while so many other hosts have them too (SYSTEMS C5 to
//! C7). Peers join while the store lacks nothing, at a moment when no write is under way: so they begin with nothing,
//! and get every write from there on. One that is lost is taken out of the vault's record before anything is
//! acknowledged without it; then the store gets everything, writes wait for the store, and peers join again.
//!
//! Invariants:
//! * A write that is acknowledged before the store has it is on all flashes that the vault names, or may name.
//! * The store gets what is durable on all of these, and nothing else.
//! * The vault names a peer no more before it is asked to begin anew, which makes it forget what it had.

use super::failure::{SideError, SideResult};
use super::{Accelerate, Policy, add};
use crate::flash::{Quiet, Tap};
use futures_util::future::{Either, join_all, select};
use lamina_block::{Buf, Cause, Durability, Env, Error, Result, Signal, Time, wait};
use lamina_cluster::Uuid;
use lamina_cluster::choice::{Choice, Domains};
use lamina_cluster::host::{Held, Host};
use lamina_cluster::link::{Link, Watcher};
use lamina_cluster::members::{Members, Progress};
use lamina_cluster::reservation::reservation_of;
use lamina_cluster::wire::{Entry, Hello};
use lamina_kit::flaw::flawed;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long a device waits before it looks for peers again.
const AGAIN: Duration = Duration::from_secs(1);

/// The peers of a device.
pub struct Peers {
    env: Rc<dyn Env>,
    host: Rc<Host>,
    /// So many are to have each write, and these.
    pub(super) wanted: usize,
    choice: Choice,
    timeout: Duration,
    /// What was asked for: writes are acknowledged so while there are peers.
    pub policy: Cell<Policy>,
    /// Without this host's flash, whose writes are awaited one by one.
    pub(super) members: RefCell<Members>,
    pub(super) links: RefCell<Vec<Rc<Link>>>,
    /// Why there are none.
    pub(super) waits: RefCell<Option<Error>>,
    /// How often one has joined, and how often one was lost.
    pub(super) joined: Cell<u64>,
    pub(super) lost: Cell<u64>,
    /// One of them has got further, is lost, or is there.
    pub moved: Signal,
}

impl Tap for Peers {
    fn put(&self, serial: u64, block: u64, data: &Buf, absent: u8) {
        self.members.borrow_mut().begun(serial);
        if flawed("a write that peers do not get") && serial.is_multiple_of(7) {
            return;
        }
        // Guests may change their memory at any time: what is summed is what is sent.
        let mut bytes = self.env.pool().fresh(data.len());
        data.read(0, &mut bytes);
        let (entry, data) = (Entry::of(serial, block, absent, &bytes), Buf::from(bytes));
        for link in &*self.links.borrow() {
            link.put(entry, data.clone());
        }
    }
}

impl Watcher for Peers {
    fn progressed(&self, flash: Uuid, to: Progress) {
        let told = self.members.borrow_mut().progressed(flash, to);
        if let Err(e) = told {
            self.links
                .borrow()
                .iter()
                .filter(|link| link.flash == flash)
                .for_each(|link| link.end(e.clone()));
        }
        self.moved.notify();
    }

    fn lost(&self, flash: Uuid, why: &Error) {
        let mut links = self.links.borrow_mut();
        if let Some(at) = links.iter().position(|link| link.flash == flash) {
            let host = &links.remove(at).host;
            add(&self.lost, 1);
            tracing::warn!(%host, error = %why, "a peer is lost");
            self.waits
                .replace(Some(Error::new(why.kind(), format!("peer {host} is lost: {}", why.message()))));
        }
        self.members.borrow_mut().lost(flash);
        self.moved.notify();
    }
}

impl Peers {
    /// So many peers, of a host.
    pub fn new(
        env: &Rc<dyn Env>,
        host: &Rc<Host>,
        (wanted, domains): (usize, Domains),
        timeout: Duration,
        policy: Policy,
    ) -> Rc<Peers> {
        Rc::new(Peers {
            env: Rc::clone(env),
            host: Rc::clone(host),
            wanted,
            choice: Choice::new(wanted, domains, host.domain()),
            timeout,
            policy: policy.into(),
            members: Members::new(&[], 0).into(),
            links: RefCell::default(),
            waits: RefCell::default(),
            joined: Cell::new(0),
            lost: Cell::new(0),
            moved: Signal::new(),
        })
    }

    /// Connects to other hosts, each of which forgets what it had of the volume. Fails if they are fewer than wanted.
    async fn found(&self, held: &Held, size: u64) -> Result<Vec<Rc<Link>>> {
        let record = held.record();
        let flash = record.holder.as_ref().and_then(|holder| holder.flash).unwrap_or_default();
        let hello = Hello {
            versions: self.host.versions(),
            volume: record.volume,
            size,
            generation: record.generation,
            flash,
            is_anew: true,
        };
        let others = Choice::order(&self.host.volume().name, self.host.others().await?);
        let mut choice = self.choice.clone();
        if !choice.is_met_by(&others) {
            // Whoever is asked forgets what it had: nobody is asked in vain.
            let message =
                format!("{} hosts offer themselves as peers, and wanted are {choice}", others.len());
            return Err(Error::offline(message));
        }
        let (mut why, mut links) = ("a host has gone".to_owned(), Vec::new());
        for offer in others {
            if !choice.wants(&offer) {
                continue;
            }
            let host = offer.host.clone();
            let begun = async {
                let conn = self.host.connect(&host, offer.address.clone(), self.timeout).await?;
                Link::begin(Rc::clone(&self.env), conn, host.clone(), hello, self.timeout).await
            };
            match begun.await {
                Ok(link)
                    if link.flash == flash
                        || links.iter().any(|other: &Rc<Link>| other.flash == link.flash) =>
                {
                    why = format!("host {host} has the same flash as another one");
                }
                Ok(link) => {
                    links.push(link);
                    choice.found(&offer);
                }
                Err(e) => why = e.message().to_owned(),
            }
        }
        if links.len() == self.wanted {
            return Ok(links);
        }
        Err(Error::offline(format!("{} of {} peers are there: {why}", links.len(), self.wanted)))
    }

    /// Waits until `done`, as long as requests wait for a store. Fails if another host has the volume, or the device is
    /// closed.
    async fn until(&self, of: &Accelerate, done: impl Fn(&Members) -> bool) -> SideResult<()> {
        if done(&self.members.borrow()) {
            return Ok(());
        }
        let over = || of.closed.get() || of.kept.fenced().is_some();
        let moved = pin!(self.moved.until(|| done(&self.members.borrow()) || over()));
        select(moved, of.env.sleep(of.keys.store_timeout.0)).await;
        if done(&self.members.borrow()) {
            return Ok(());
        }
        let why = || match of.closed.get() {
            true => "the device is closed",
            false => "the vault does not answer, which is to name a lost peer no more",
        };
        Err(SideError::Store(of.kept.fenced().unwrap_or_else(|| Error::offline(why()).on(&of.name))))
    }

    /// Waits until all peers have the write with this serial number.
    pub async fn acknowledged(&self, of: &Accelerate, serial: u64, durability: Durability) -> SideResult<()> {
        match durability {
            Durability::Cached => {
                let is_there = |members: &Members| members.is_nobody() || members.acknowledged() >= serial;
                self.until(of, is_there).await
            }
            Durability::Fua => self.durable(of, serial).await,
        }
    }

    /// Waits until everything up to this serial number is durable on all peers.
    pub async fn durable(&self, of: &Accelerate, serial: u64) -> SideResult<()> {
        // What was read has numbers, too, and does not get there.
        let serial = serial.min(self.members.borrow().last());
        let is_durable = |members: &Members| members.is_nobody() || members.durable() >= serial;
        if is_durable(&self.members.borrow()) {
            return Ok(());
        }
        self.links.borrow().iter().for_each(|link| link.flush(serial));
        self.until(of, is_durable).await
    }

    /// Waits until peers have all that was written up to now.
    pub async fn all_acknowledged(&self, of: &Accelerate) -> SideResult<()> {
        let last = self.members.borrow().last();
        self.acknowledged(of, last, Durability::Cached).await
    }

    /// True if this flash gets every write.
    pub fn has(&self, flash: Uuid) -> bool {
        let is_there = self.links.borrow().iter().any(|link| link.flash == flash);
        is_there && self.members.borrow().named().contains(&flash)
    }

    /// True if the flash of this host gets every write.
    pub fn has_host(&self, host: &str) -> bool {
        let flashes: Vec<Uuid> =
            self.links.borrow().iter().filter(|link| link.host == host).map(|link| link.flash).collect();
        flashes.into_iter().any(|flash| self.has(flash))
    }

    /// True if a host has every write that was acknowledged and is not on the store.
    pub fn are_there(&self) -> bool {
        !self.hosts().is_empty()
    }

    /// The hosts whose flashes get every write.
    pub fn hosts(&self) -> Vec<String> {
        let members = self.members.borrow().named();
        let links = self.links.borrow();
        links.iter().filter(|link| members.contains(&link.flash)).map(|link| link.host.clone()).collect()
    }

    /// A peer that does not reach the store.
    fn without_store(&self) -> Option<Rc<Link>> {
        self.links.borrow().iter().find(|link| !link.reaches_store()).cloned()
    }

    /// Blocks that peers have space for, of what the store lacks.
    pub fn space(&self) -> u64 {
        self.links.borrow().iter().map(|link| link.space).min().unwrap_or(u64::MAX)
    }

    /// The store has everything up to this serial number, durably.
    pub fn stored(&self, upto: u64) {
        self.links.borrow().iter().for_each(|link| link.stored(upto));
    }

    /// What is asked for from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.set(policy);
        self.moved.notify();
    }

    /// Wakes whoever waits, as the device is closed or fenced.
    pub fn wake(&self) {
        self.moved.notify();
    }

    /// Ends all connections.
    pub fn end(&self) {
        self.links.borrow().iter().for_each(|link| link.end(Error::offline("the device is closed")));
    }
}

impl Accelerate {
    /// Looks for peers, and goes on with or without them until the device is closed.
    pub(super) fn keep_peers(&self, peers: &Rc<Peers>) {
        let peers = Rc::clone(peers);
        self.spawn(|me| async move {
            while !me.is_over() {
                if peers.policy.get() == Policy::WriteBack
                    && !me.is_detached()
                    && me.failure.stopped().is_none()
                {
                    match me.pair(&peers).await {
                        Ok(()) => me.stay_paired(&peers).await,
                        Err(e) => {
                            let is_told =
                                peers.waits.replace(Some(e.clone())).is_some_and(|before| before == e);
                            if !is_told {
                                tracing::info!(device = %me.name, error = %e, "writes wait for the store");
                            }
                        }
                    }
                }
                let moved = peers.moved.wait();
                if !me.is_over() {
                    select(me.env.sleep(AGAIN), pin!(moved)).await;
                }
            }
            peers.end();
        });
    }

    pub(super) fn is_over(&self) -> bool {
        self.closed.get() || self.is_fenced()
    }

    /// Peers join: writes are acknowledged from flash afterwards.
    async fn pair(&self, peers: &Rc<Peers>) -> Result<()> {
        let Some(held) = self.kept.held() else { return Err(Error::offline("the vault is not told")) };
        if !self.volume.quarantine.is_empty() {
            let message = match held.record().unfenced {
                None => {
                    "late writes of an earlier process of this host may come: peers join after the time `settles`"
                }
                Some(_) => {
                    "late writes of the host that had the volume before may come: peers join when it has ended, or a \
                     person says that it is dead (`lamina vault VAULT host-is-dead HOST`, where VAULT is what the key \
                     `vault` says)"
                }
            };
            return Err(Error::offline(message));
        }
        self.nearly_drained().await?;
        self.is_on_store_at_rest().await?;
        self.owes_no_more().await?;
        let links = peers.found(&held, self.store.geometry().size).await?;
        let flashes: Vec<Uuid> = links.iter().map(|link| link.flash).collect();
        {
            let _quiet = self.is_on_store_at_rest().await?;
            if !self.may_pair(peers) {
                return Err(Error::offline("the device is about to be used in another way"));
            }
            let serial = self.volume.serial.get();
            let mut members = Members::new(&[], serial);
            for flash in &flashes {
                members.joins(*flash, Progress { written: serial, durable: serial })?;
            }
            members.change_begins(flashes.clone());
            peers.members.replace(members);
            peers.links.replace(links.clone());
            links.iter().for_each(|link| link.start(serial, Rc::clone(peers) as Rc<dyn Watcher>));
            self.volume.tap.replace(Some(Rc::clone(peers) as Rc<dyn Tap>));
        }
        peers.waits.take();
        if self.is_over() {
            return Ok(());
        }
        self.kept.set_peers(flashes);
        if let Err(e) = self.kept.change(|words| words.owes = words.attached).await {
            // The vault may name them: they count as if it did, until it is known not to.
            peers.members.borrow_mut().change_is_done();
            peers.waits.replace(Some(e));
            return Ok(());
        }
        peers.members.borrow_mut().change_is_done();
        peers.moved.notify();
        if peers.links.borrow().len() == peers.wanted && self.may_pair(peers) {
            self.policy.set(Policy::WriteBack);
            add(&peers.joined, links.len() as u64);
            let hosts = links.iter().map(|link| &link.host[..]).collect::<Vec<_>>().join(", ");
            tracing::info!(device = %self.name, peers = hosts, "writes are acknowledged when all flashes have them");
        }
        Ok(())
    }

    /// True if writes may be acknowledged from flash with peers: they wait for the store now, and no more is wanted.
    fn may_pair(&self, peers: &Peers) -> bool {
        let may_use = !self.is_detached() && self.failure.stopped().is_none() && !self.is_over();
        may_use && self.policy.get() == Policy::WriteThrough && peers.policy.get() == Policy::WriteBack
    }

    /// No write is under way to the flash while what this gives lives, and the store has everything.
    async fn is_on_store_at_rest(&self) -> SideResult<Quiet<'_>> {
        let quiet = self.cache.quiet(&self.volume).await;
        self.wait_for(Accelerate::is_drained).await?;
        Ok(quiet)
    }

    /// Goes on with peers until one is lost, or another policy is wanted; then the store gets everything, and no peer
    /// has anything that counts.
    async fn stay_paired(&self, peers: &Rc<Peers>) {
        let is_whole = || {
            peers.links.borrow().len() == peers.wanted
                && peers.policy.get() == Policy::WriteBack
                && self.policy.get() == Policy::WriteBack
        };
        let mut found = None;
        while is_whole() && !self.is_over() {
            let Some(link) = peers.without_store() else {
                found = None;
                let is_lost = || peers.without_store().is_some();
                peers.moved.until(|| !is_whole() || is_lost() || self.is_over()).await;
                continue;
            };
            if self.has_reached_store_since(*found.get_or_insert(self.env.now())) {
                link.end(Error::offline("it does not reach the store"));
            }
            let moved = pin!(peers.moved.until(|| !is_whole() || self.is_over()));
            select(self.env.sleep(AGAIN), moved).await;
        }
        if self.policy.get() == Policy::WriteBack {
            self.policy.set(Policy::WriteThrough);
            if !self.is_over() {
                let lost = peers.waits.borrow().as_ref().map(Error::to_string);
                let why = lost.unwrap_or_else(|| format!("the policy is to be {:?}", peers.policy.get()));
                tracing::warn!(device = %self.name, why, "writes wait for the store from now on");
            }
        }
        while !self.is_over() {
            if self.is_detached() {
                // The flash has failed, and the store got from peers what it lacked.
                match self.names_nobody(peers).await {
                    Ok(()) => return,
                    Err(_) => self.env.sleep(AGAIN).await,
                }
                continue;
            }
            if self.failure.hopeless().is_some() {
                self.is_settled().await;
                continue;
            }
            let wanted = peers.members.borrow().wanted();
            if let Some(to) = wanted {
                self.names(peers, to).await;
                continue;
            }
            // Another peer that is lost now has to be taken out of the vault before the store gets any further.
            let moved = peers.moved.until(|| peers.members.borrow().wanted().is_some() || self.is_over());
            let on_store = async {
                self.nearly_drained().await?;
                self.is_on_store_at_rest().await.map(drop)
            };
            let is_there = match select(pin!(on_store), pin!(moved)).await {
                Either::Left((done, _)) => done.is_ok(),
                Either::Right(_) => continue,
            };
            if is_there && self.names_nobody(peers).await.is_ok() {
                return;
            }
            self.env.sleep(AGAIN).await;
        }
    }

    /// True if this host has reached the store since. Where nobody reaches it, a copy on a peer is better than none.
    fn has_reached_store_since(&self, time: Time) -> bool {
        reservation_of(&self.store).is_some_and(|reservation| reservation.has_reached_store_since(time))
    }

    /// The vault names these peers, and no others.
    async fn names(&self, peers: &Rc<Peers>, to: Vec<Uuid>) {
        peers.members.borrow_mut().change_begins(to.clone());
        self.kept.set_peers(to);
        while !self.is_over() {
            if flawed("acknowledged before the vault knows") {
                break;
            }
            if flawed("a lost peer is named for ever") {
                self.env.sleep(AGAIN).await;
                continue;
            }
            if self.failure.hopeless().is_some() {
                self.is_settled().await;
                continue;
            }
            match self.kept.change(|_| {}).await {
                Ok(()) => {
                    tracing::info!(device = %self.name, "the vault names a lost peer no more");
                    break;
                }
                Err(e) => {
                    let why = "writes wait for the vault to name a lost peer no more";
                    tracing::warn!(device = %self.name, error = %e, "{why}");
                    self.env.sleep(AGAIN).await;
                }
            }
        }
        if !self.is_over() {
            peers.members.borrow_mut().change_is_done();
        }
        peers.moved.notify();
    }

    /// The store has everything, and that is what the vault says. No peer is sent anything any more.
    async fn names_nobody(&self, peers: &Rc<Peers>) -> Result<()> {
        self.kept.set_peers(Vec::new());
        self.owes_no_more().await?;
        self.volume.tap.take();
        peers.members.replace(Members::new(&[], self.volume.serial.get()));
        let links = peers.links.take();
        links.iter().for_each(|link| link.end(Error::offline("it is no peer any more")));
        tracing::info!(device = %self.name, "the store has everything, and no peer counts any more");
        peers.moved.notify();
        Ok(())
    }

    /// The store had everything at a moment since which all writes have waited for it: this is kept, and told to the
    /// vault.
    async fn owes_no_more(&self) -> Result<()> {
        self.kept.change(|words| words.owes = false).await
    }

    /// What all flashes have to have before the store gets it.
    pub(super) async fn durable_at_peers(&self) -> SideResult<()> {
        match &self.peers {
            Some(_) if flawed("on the store before all flashes have it") => Ok(()),
            Some(peers) => peers.durable(self, self.volume.serial.get()).await,
            None => Ok(()),
        }
    }

    /// Waits until peers have a write that this flash has.
    pub(super) async fn at_peers(&self, serial: u64, durability: Durability) -> SideResult<()> {
        let Some(peers) = &self.peers else { return Ok(()) };
        let _waits = wait(Cause::Hosts);
        Box::pin(peers.acknowledged(self, serial, durability)).await
    }

    /// A read has found what a write under way has put on the flash: it is answered when peers have that, too, so that
    /// what was read stays if this host dies.
    pub(super) async fn read_is_at_peers(&self, at: &Range<u64>) -> SideResult<()> {
        match &self.peers {
            Some(peers) if self.policy.get() == Policy::WriteBack && self.failure.is_being_written(at) => {
                peers.all_acknowledged(self).await
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Waits for all of `work`.
pub(super) async fn all(work: Vec<impl Future<Output = Result<()>>>) -> Result<()> {
    join_all(work).await.into_iter().collect()
}
