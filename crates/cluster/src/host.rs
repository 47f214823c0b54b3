//! A host, as the vault sees it with one volume: it beats, takes the volume, and gives it back.
//!
//! ```text
//!      take ──▶ read the record ──▶ may it have the volume? ──▶ append: generation + 1 ──▶ Held
//!                    ▲                  │ not yet
//!                    └──────────────────┘
//!      Held ──▶ change the record, again and again ──▶ give it back: nobody has it
//!           ──▶ each beat reads the record: is it still this host's? otherwise it is fenced
//! ```
//!
//! Invariants:
//! * Of the hosts that hold a volume at most one can change its record ([`Held`]): the others are told that they are
//!   fenced.
//! * Nothing is acknowledged by an outcome of the vault that is not known: a change ends when it is.

use crate::amend::{amend, draw, is_awaited};
use crate::choice::Offer;
pub use crate::fence::Fence;
use crate::handover::{ASKS, Giver};
pub use crate::held::Held;
use crate::takeover::{May, Watch, may_have};
use crate::vault::{Beat, Holder, Mode, Outcome, Record, Vault, settle};
use crate::view::Sights;
use crate::wire::VERSIONS;
use futures_util::future::{Either, select};
use lamina_block::{Address, Env, Error, Result, Time};
use lamina_tls::MutualTls;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// Beats in a lease: some may be late, or be lost.
const BEATS: u32 = 4;

/// A volume in the vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// For people.
    pub name: String,
    /// In the vault.
    pub uuid: Uuid,
}

impl Name {
    /// The volume of that name: its UUID follows from it, on every host.
    pub fn new(name: &str) -> Name {
        // FNV-1a of 128 bits (draft-eastlake-fnv); names are short, and nobody gains by two that collide.
        let hash = name.bytes().fold(0x6C62_272E_07BB_0142_62B8_2175_6295_C58D_u128, |hash, byte| {
            (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013B)
        });
        Name { name: name.into(), uuid: uuid::Builder::from_custom_bytes(hash.to_be_bytes()).into_uuid() }
    }
}

/// The name under which a host beats for a volume.
fn beats_as(host: &str, volume: Uuid) -> String {
    format!("{host}.{volume}")
}

/// This host, with one volume.
pub struct Host {
    pub(crate) env: Rc<dyn Env>,
    vault: Rc<dyn Vault>,
    pub(crate) volume: Name,
    pub(crate) holder: RefCell<Holder>,
    pub(crate) lease: Duration,
    pub(crate) fence: Cell<Fence>,
    /// Where it takes the writes of other hosts.
    address: RefCell<Option<Address>>,
    /// What fails together with it.
    domain: RefCell<Option<String>>,
    /// What its flash has room for.
    room: RefCell<Option<Box<dyn Fn() -> u64>>>,
    /// What it shows to them.
    pub(crate) tls: RefCell<Option<MutualTls>>,
    /// The newest version of the protocol that it speaks with them.
    newest: Cell<u16>,
    /// When the last beat that the vault has began, and since when beats have followed each other.
    beaten: Cell<Option<Time>>,
    beats_since: Cell<Time>,
    /// No other host has the volume before this.
    safe_until: Cell<Time>,
    process: Uuid,
    counter: Cell<u64>,
    /// Other hosts, by name.
    watches: RefCell<BTreeMap<String, Watch>>,
    /// Another process beats under this host's name.
    rival: Cell<bool>,
    /// The vault says that this host has the volume, which it cannot have: it is silent, so that another one follows.
    gives_up: Cell<bool>,
    held: RefCell<Weak<Held>>,
    stopped: Cell<bool>,
    /// What is shown of it.
    pub(crate) sights: Sights,
}

impl Host {
    /// A host that beats from now on until it is stopped. Another host may take its volume when it has been silent for
    /// `lease`.
    pub fn start(
        env: Rc<dyn Env>,
        vault: Rc<dyn Vault>,
        volume: Name,
        holder: Holder,
        lease: Duration,
        fence: Fence,
    ) -> Rc<Host> {
        let process = draw(&*env);
        let host = Rc::new(Host {
            env: Rc::clone(&env),
            vault,
            volume,
            holder: holder.into(),
            lease,
            fence: fence.into(),
            address: RefCell::default(),
            domain: RefCell::default(),
            room: RefCell::default(),
            tls: RefCell::default(),
            newest: Cell::new(*VERSIONS.end()),
            beaten: Cell::new(None),
            beats_since: Cell::new(Time(0)),
            safe_until: Cell::new(Time(0)),
            process,
            counter: Cell::new(0),
            watches: RefCell::default(),
            rival: Cell::new(false),
            gives_up: Cell::new(false),
            held: RefCell::default(),
            stopped: Cell::new(false),
            sights: Sights::default(),
        });
        host.looks_around();
        let me = Rc::downgrade(&host);
        env.spawn(Box::pin(async move {
            while let Some(host) = me.upgrade().filter(|host| !host.stopped.get()) {
                let beaten = if host.may_beat().await { host.beat().await } else { None };
                let is_mine = host.look().await;
                // The look began when the vault had the beat: whoever takes the volume after it sees that.
                if let Some(began) = beaten.filter(|_| is_mine) {
                    host.is_safe_since(began);
                }
                let pause = host.env.sleep(host.lease / BEATS);
                drop(host);
                pause.await;
            }
        }));
        host
    }

    /// It beats no more, and gives up changes of records whose outcome is not known.
    pub fn stop(&self) {
        self.stopped.set(true);
    }

    pub(crate) fn vault(&self) -> &dyn Vault {
        &*self.vault
    }

    /// It does not have the volume any more.
    pub(crate) fn forget_held(&self) {
        self.held.take();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.get()
    }

    /// How long it is to be silent before others take its volume.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Waits.
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.env.sleep(time)
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.holder.borrow().host.clone()
    }

    /// The volume.
    pub fn volume(&self) -> &Name {
        &self.volume
    }

    /// Says with each beat where this host takes the writes of others.
    pub fn announce(&self, address: Address) {
        self.address.replace(Some(address));
    }

    /// Says with each beat in which fault domain this host is.
    pub fn is_in(&self, domain: Option<String>) {
        self.domain.replace(domain);
    }

    /// Says with each beat for how many bytes its flash has room.
    pub fn has_room(&self, room: impl Fn() -> u64 + 'static) {
        self.room.replace(Some(Box::new(room)));
    }

    /// It speaks no newer version of the protocol with other hosts.
    pub fn speaks(&self, newest: u16) {
        self.newest.set(newest);
    }

    /// The versions of the protocol that it speaks.
    pub fn versions(&self) -> (u16, u16) {
        (*VERSIONS.start(), self.newest.get())
    }

    /// The fault domain of this host, if it has one.
    pub fn domain(&self) -> Option<String> {
        self.domain.borrow().clone()
    }

    /// Where this host takes the writes of others, if it does.
    pub(crate) fn address(&self) -> Option<Address> {
        self.address.borrow().clone()
    }

    /// True if no other host can have the volume yet: this one has beaten so lately, and found the volume its own after
    /// that, that nobody has taken it for silent since.
    pub fn is_safe(&self) -> bool {
        self.env.now() < self.safe_until.get()
    }

    /// A quarter of the lease is for clocks that do not run alike.
    fn is_safe_since(&self, began: Time) {
        self.safe_until.set(began.after(self.lease / 4 * 3));
    }

    /// What the vault says of the volume.
    pub async fn record(&self) -> Result<Option<Record>> {
        self.vault.read(self.volume.uuid).await
    }

    /// Other hosts that take writes of this volume and are not silent, in the order of their names.
    pub async fn others(&self) -> Result<Vec<Offer>> {
        let mut others = Vec::new();
        for host in self.names_of_others().await? {
            let (silent, beat) = self.silence(&host).await?;
            let address = beat.as_ref().and_then(|beat| beat.address.as_ref()?.parse().ok());
            if let Some(address) = address.filter(|_| silent < self.lease_of(beat.as_ref())) {
                let room = beat.as_ref().and_then(|beat| beat.room);
                others.push(Offer { host, address, domain: beat.and_then(|beat| beat.domain), room });
            }
        }
        Ok(others)
    }

    /// Other hosts that have ever beaten for this volume, in the order of their names.
    pub(crate) async fn names_of_others(&self) -> Result<Vec<String>> {
        let (me, suffix) = (self.name(), format!(".{}", self.volume.uuid));
        let names = self.vault.beating().await?;
        let other = |name: String| Some(name.strip_suffix(&suffix)?.to_owned()).filter(|host| *host != me);
        let mut others: Vec<String> = names.into_iter().filter_map(other).collect();
        others.sort_unstable();
        Ok(others)
    }

    /// The last beat of another host for this volume.
    pub(crate) async fn heard(&self, host: &str) -> Result<Option<Beat>> {
        self.vault.heard(&beats_as(host, self.volume.uuid)).await
    }

    /// The record, if this host has the volume, as far as it knows.
    pub(crate) fn held_record(&self) -> Option<Record> {
        let held = self.held.borrow().upgrade().filter(|held| held.fenced().is_none());
        held.map(|held| held.record())
    }

    /// What an earlier process of this host has begun on the store has ended: so is told to the host that has the
    /// volume now, if that waits for it.
    pub async fn has_ended(&self) -> Result<()> {
        let me = self.name();
        match self.record().await? {
            Some(record) if is_awaited(&record, &me) => {
                let over = |record: &mut Record| {
                    if is_awaited(record, &me) {
                        record.unfenced = None;
                    }
                    Ok(())
                };
                amend(&*self.vault, &*self.env, self.volume.uuid, over).await.map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The flash that it has: it counts from the next time on that the volume is taken.
    pub fn set_flash(&self, flash: Option<Uuid>) {
        self.holder.borrow_mut().flash = flash;
    }

    /// A beat, and a look whether another process has beaten under the same name since the last one. When it began, if
    /// the vault has it.
    async fn beat(&self) -> Option<Time> {
        let name = beats_as(&self.holder.borrow().host, self.volume.uuid);
        if let Ok(Some(last)) = self.vault.heard(&name).await {
            let is_mine = last.process == self.process;
            self.rival.set(!is_mine && self.counter.get() > 0);
        }
        self.counter.set(self.counter.get() + 1);
        let address = self.address.borrow().as_ref().map(Address::to_string);
        let lease = self.lease.as_millis() as u64;
        let beat = Beat {
            process: self.process,
            counter: self.counter.get(),
            lease,
            address,
            domain: self.domain(),
            room: self.room.borrow().as_ref().map(|room| room()),
        };
        let began = self.env.now();
        let beaten = self.vault.beat(&name, beat).await;
        self.sights.beaten(beaten.as_ref().err());
        if let Err(e) = beaten {
            tracing::warn!(volume = %self.volume.name, error = %e, "no beat: others may take this host for dead");
            return None;
        }
        if !self.beats_lately() {
            self.beats_since.set(self.env.now());
        }
        self.beaten.set(Some(began));
        Some(began)
    }

    /// True unless this host gives the volume up, and no other one has it yet.
    async fn may_beat(&self) -> bool {
        let me = self.name();
        let is_mine = |record: &Record| record.holder.as_ref().is_some_and(|holder| holder.host == me);
        if self.gives_up.get()
            && self.record().await.is_ok_and(|record| !record.as_ref().is_some_and(is_mine))
        {
            self.gives_up.set(false);
        }
        !self.gives_up.get()
    }

    /// True unless the vault has kept this host from beating for most of a lease.
    fn beats_lately(&self) -> bool {
        self.beaten.get().is_some_and(|began| self.env.now().since(began) < self.lease / 4 * 3)
    }

    /// Whether the volume is still this host's. A vault that does not answer says nothing.
    async fn look(&self) -> bool {
        let Some(held) = self.held.borrow().upgrade() else { return false };
        let Ok(Some(newest)) = self.vault.read(self.volume.uuid).await else { return false };
        let is_mine = held.is_mine(&newest);
        if !is_mine {
            held.is_fenced_by(&newest);
        } else if !held.is_changing() {
            held.saw(newest);
        }
        is_mine
    }

    /// For how long a host may be silent: as long as it says itself, or this one.
    pub(crate) fn lease_of(&self, beat: Option<&Beat>) -> Duration {
        self.lease.max(Duration::from_millis(beat.map_or(0, |beat| beat.lease)))
    }

    /// For how long a host has been silent, as far as this one has seen. While the vault does not take beats, nobody
    /// is: the other one may be kept from beating as well.
    async fn silence(&self, host: &str) -> Result<(Duration, Option<Beat>)> {
        // It was silent until the question at least, and a new beat is as young as the answer.
        let asked = self.env.now();
        let beat = self.heard(host).await?;
        let mut watches = self.watches.borrow_mut();
        let watch = watches.entry(host.into()).or_default();
        watch.saw(beat.clone(), self.env.now());
        let known = if self.beats_lately() { asked.since(self.beats_since.get()) } else { Duration::ZERO };
        Ok((watch.silent_for(asked).min(known), beat))
    }

    /// Takes the volume. While another host has it that is alive, asks that one and the vault again for as long as
    /// `wait`, then fails with `Busy`. Fails with `Offline` if the volume needs what this host lacks, or a person's
    /// word.
    pub async fn take(self: &Rc<Self>, wait: Duration) -> Result<Rc<Held>> {
        let began = self.env.now();
        let me = self.holder.borrow().clone();
        // The host from which it is taken, and its last sign of life.
        let (mut before, mut last_beat) = (None::<Holder>, None);
        let (mut watched, mut is_again) = (None::<Holder>, false);
        let (mut asking, mut giver) = (None, None);
        loop {
            if self.rival.get() {
                let message = format!(
                    "another process beats as host {:?} for volume {:?}: give each host a name of its own",
                    me.host, self.volume.name
                );
                return Err(Error::busy(message));
            }
            let record = match self.vault.read(self.volume.uuid).await? {
                None => self.first(&me),
                Some(newest) => {
                    let (silent, beat) = match newest.holder.as_ref().filter(|holder| holder.host != me.host)
                    {
                        Some(holder) => self.silence(&holder.host).await?,
                        None => (Duration::ZERO, None),
                    };
                    match may_have(&newest, &me, silent, self.lease_of(beat.as_ref())) {
                        May::Have(record) => {
                            before =
                                newest.holder.clone().filter(|_| record.unfenced == Some(newest.generation));
                            last_beat = beat;
                            is_again = newest.holder.as_ref().is_some_and(|holder| holder.host == me.host);
                            // A process of this host that has taken it from another one may have died before it had
                            // waited for that.
                            let earlier =
                                || newest.previous.clone().filter(|previous| previous.host != me.host);
                            watched = before.clone().or_else(|| newest.unfenced.and_then(|_| earlier()));
                            if let Some(holder) = self.to_be_fenced(&newest, &record) {
                                self.fence_holder(&newest, holder).await?;
                                continue;
                            }
                            self.after(&newest, self.fenced_by_vault(*record))
                        }
                        May::Not(why) => {
                            let is_mine = |holder: &Holder| holder.host == me.host;
                            self.gives_up.set(newest.holder.as_ref().is_some_and(is_mine));
                            return Err(Error::offline(why));
                        }
                        May::Wait(why) => {
                            let waited = self.env.now().since(began);
                            // One that is stopped does not answer, and becomes silent meanwhile.
                            asking = asking.filter(|(of, _)| *of == newest.generation).or_else(|| {
                                let giver = Giver::of(&newest, beat.as_ref())?;
                                let asks = self.asks(giver, wait.saturating_sub(waited));
                                Some((newest.generation, Box::pin(asks)))
                            });
                            let answer = async {
                                match &mut asking {
                                    Some((_, asks)) => asks.await,
                                    None => std::future::pending().await,
                                }
                            };
                            match select(pin!(answer), self.env.sleep(self.lease / BEATS)).await {
                                Either::Left((Ok(given), _)) => {
                                    // It may say so, and not do it.
                                    let is_again = giver.replace(given).is_some();
                                    asking = None;
                                    if waited >= wait {
                                        return Err(Error::busy(why));
                                    }
                                    if is_again {
                                        self.env.sleep(ASKS.min(self.lease / BEATS)).await;
                                    }
                                }
                                Either::Left((Err(e), _)) => {
                                    asking = None;
                                    if waited >= wait {
                                        return Err(Error::busy(format!("{why}: {}", e.message())));
                                    }
                                    self.env.sleep(ASKS.min(self.lease / BEATS)).await;
                                }
                                Either::Right(_) if waited >= wait => return Err(Error::busy(why)),
                                Either::Right(_) => {}
                            }
                            continue;
                        }
                    }
                }
            };
            if settle(&*self.vault, &*self.env, &record, |_| self.stopped.get()).await? == Outcome::Done {
                let giver = giver.filter(|giver: &Giver| record.generation == giver.generation + 1);
                self.has_taken(&record, before.as_ref(), giver.as_ref());
                self.gives_up.set(false);
                let held = Rc::new(Held::new(self, record, giver, is_again));
                self.held.replace(Rc::downgrade(&held));
                if let Some(before) = watched {
                    // It may have beaten just now, and not have looked yet: what it still answers is as it was.
                    let beat = self.silence(&before.host).await.map(|(_, beat)| beat);
                    if beat != Ok(last_beat) {
                        self.env.sleep(self.lease_of(beat.ok().flatten().as_ref())).await;
                    }
                }
                if let Some(began) = self.beaten.get() {
                    self.is_safe_since(began);
                }
                return Ok(held);
            }
        }
    }

    /// Says why it has the volume now, and counts that.
    fn has_taken(&self, record: &Record, silent: Option<&Holder>, giver: Option<&Giver>) {
        let why = match (silent, giver) {
            (Some(before), _) => {
                self.count(|counts| counts.takeovers += 1);
                format!("{before} is silent")
            }
            (None, Some(giver)) => {
                self.count(|counts| counts.received += 1);
                format!("host {} has given it to this one", giver.host())
            }
            (None, None) => "no other host has it".to_owned(),
        };
        let (volume, generation) = (&self.volume.name, record.generation);
        tracing::info!(volume, generation, mode = ?record.mode, why, "this host has the volume now");
    }

    fn first(&self, me: &Holder) -> Record {
        Record {
            volume: self.volume.uuid,
            name: self.volume.name.clone(),
            version: 1,
            nonce: draw(&*self.env),
            holder: Some(me.clone()),
            generation: 1,
            since: 1,
            mode: Mode::Through,
            checkpoint: 0,
            previous: None,
            unfenced: None,
        }
    }

    /// `record` as the one that follows `newest`.
    pub(crate) fn after(&self, newest: &Record, record: Record) -> Record {
        Record { version: newest.version + 1, nonce: draw(&*self.env), ..record }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_volume_everywhere() {
        let [one, other] = ["vm1", "vm2"].map(Name::new);
        assert_eq!(one, Name::new("vm1"));
        assert_ne!(one.uuid, other.uuid);
        assert_eq!(one.uuid.get_version_num(), 8, "{}", one.uuid);
    }
}
