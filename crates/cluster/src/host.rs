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
//! * Of the hosts that hold a volume at most one can change its record: the others are told that they are fenced.
//! * Nothing is acknowledged by an outcome of the vault that is not known: a change ends when it is.

use crate::takeover::{May, Watch, may_have};
use crate::vault::{Beat, Holder, Mode, Outcome, Record, Vault, settle};
use lamina_block::{Env, Error, ErrorKind, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// Beats in a lease: some may be late, or be lost.
const BEATS: u32 = 4;

/// What stops late writes of a host that is silent, and whose volume another one takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// A person, who says that the host is dead (`declare_dead`).
    Confirmed,
    /// Whoever takes the volume: it writes again what the old host may still write.
    Quarantine,
}

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
    env: Rc<dyn Env>,
    vault: Rc<dyn Vault>,
    volume: Name,
    holder: RefCell<Holder>,
    lease: Duration,
    fence: Fence,
    process: Uuid,
    counter: Cell<u64>,
    /// Other hosts, by name.
    watches: RefCell<BTreeMap<String, Watch>>,
    /// Another process beats under this host's name.
    rival: Cell<bool>,
    held: RefCell<Weak<Held>>,
    stopped: Cell<bool>,
}

/// A volume that this host has.
pub struct Held {
    host: Rc<Host>,
    record: RefCell<Record>,
    /// A change is under way; others wait.
    is_changing: Cell<bool>,
    /// Another host has the volume now.
    fenced: RefCell<Option<Error>>,
    /// It is given back.
    is_over: Cell<bool>,
    /// The record has changed, or this host is fenced.
    moved: Signal,
}

fn draw(env: &dyn Env) -> Uuid {
    Uuid::from_u64_pair(env.random(), env.random())
}

fn fenced(record: &Record) -> Error {
    let who = record.holder.as_ref().map_or("nobody".into(), Holder::to_string);
    let message = format!("volume {:?}: {who} has it now, in generation {}", record.name, record.generation);
    Error::new(ErrorKind::Fenced, message)
}

/// Changes the record of a volume from outside of all hosts that have one; fails as `change` does, if that refuses.
async fn amend(
    vault: &dyn Vault,
    env: &dyn Env,
    volume: Uuid,
    change: impl Fn(&mut Record) -> Result<()>,
) -> Result<Record> {
    loop {
        let Some(newest) = vault.read(volume).await? else {
            return Err(Error::invalid(format!("the vault has no volume {volume}")));
        };
        let mut record = Record { version: newest.version + 1, nonce: draw(env), ..newest };
        change(&mut record)?;
        if settle(vault, env, &record, |_| true).await? == Outcome::Done {
            return Ok(record);
        }
    }
}

/// Nobody has a volume that `host` had, which is dead: a person has seen to it that it writes no more. Fails with
/// `Invalid` if another host has it, or none.
pub async fn declare_dead(vault: &dyn Vault, env: &dyn Env, volume: Uuid, host: &str) -> Result<Record> {
    let change = |record: &mut Record| match record.holder.take() {
        Some(holder) if holder.host == host => {
            record.previous = Some(holder);
            Ok(())
        }
        _ => Err(Error::invalid(format!("host {host:?} does not have volume {:?}", record.name))),
    };
    amend(vault, env, volume, change).await
}

/// What only flashes have of a volume is given up: the store counts as it is. Fails with `Busy` while a host has the
/// volume.
pub async fn accept_loss(vault: &dyn Vault, env: &dyn Env, volume: Uuid) -> Result<Record> {
    let change = |record: &mut Record| match &record.holder {
        Some(holder) => Err(Error::busy(format!(
            "{holder} has volume {:?}: stop it, or say that it is dead",
            record.name
        ))),
        None => {
            record.mode = Mode::Through;
            Ok(())
        }
    };
    amend(vault, env, volume, change).await
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
            fence,
            process,
            counter: Cell::new(0),
            watches: RefCell::default(),
            rival: Cell::new(false),
            held: RefCell::default(),
            stopped: Cell::new(false),
        });
        let me = Rc::downgrade(&host);
        env.spawn(Box::pin(async move {
            while let Some(host) = me.upgrade().filter(|host| !host.stopped.get()) {
                host.beat().await;
                host.look().await;
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

    /// How long it is to be silent before others take its volume.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// Waits.
    pub(crate) fn sleep(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        self.env.sleep(time)
    }

    /// The flash that it has: it counts from the next time on that the volume is taken.
    pub fn set_flash(&self, flash: Option<Uuid>) {
        self.holder.borrow_mut().flash = flash;
    }

    /// A beat, and a look whether another process has beaten under the same name since the last one.
    async fn beat(&self) {
        let name = beats_as(&self.holder.borrow().host, self.volume.uuid);
        if let Ok(Some(last)) = self.vault.heard(&name).await {
            let is_mine = last.process == self.process;
            self.rival.set(!is_mine && self.counter.get() > 0);
        }
        self.counter.set(self.counter.get() + 1);
        let beat = Beat { process: self.process, counter: self.counter.get() };
        if let Err(e) = self.vault.beat(&name, beat).await {
            tracing::warn!(volume = %self.volume.name, error = %e, "no beat: others may take this host for dead");
        }
    }

    /// Whether the volume is still this host's. A vault that does not answer says nothing.
    async fn look(&self) {
        let Some(held) = self.held.borrow().upgrade() else { return };
        let Ok(Some(newest)) = self.vault.read(self.volume.uuid).await else { return };
        if newest.generation != held.record.borrow().generation || newest.holder.is_none() {
            held.is_fenced_by(&newest);
        }
    }

    /// For how long a host has been silent, as far as this one has seen.
    async fn silence(&self, host: &str) -> Result<Duration> {
        let beat = self.vault.heard(&beats_as(host, self.volume.uuid)).await?;
        let now = self.env.now();
        let mut watches = self.watches.borrow_mut();
        let watch = watches.entry(host.into()).or_default();
        watch.saw(beat, now);
        Ok(watch.silent_for(now))
    }

    /// Takes the volume. While another host has it that is alive, asks again for as long as `wait`, then fails with
    /// `Busy`. Fails with `Offline` if the volume needs what this host lacks, or a person's word.
    pub async fn take(self: &Rc<Self>, wait: Duration) -> Result<Rc<Held>> {
        let began = self.env.now();
        let me = self.holder.borrow().clone();
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
                    let silent = match newest.holder.as_ref().filter(|holder| holder.host != me.host) {
                        Some(holder) => self.silence(&holder.host).await?,
                        None => Duration::ZERO,
                    };
                    match may_have(&newest, &me, silent, self.lease) {
                        May::Have(record) => {
                            self.has_been_fenced(&newest, &record)?;
                            self.after(&newest, *record)
                        }
                        May::Not(why) => return Err(Error::offline(why)),
                        May::Wait(why) if self.env.now().since(began) >= wait => {
                            return Err(Error::busy(why));
                        }
                        May::Wait(_) => {
                            self.env.sleep(self.lease / BEATS).await;
                            continue;
                        }
                    }
                }
            };
            if settle(&*self.vault, &*self.env, &record, |_| self.stopped.get()).await? == Outcome::Done {
                let volume = &self.volume.name;
                tracing::info!(volume, generation = record.generation, mode = ?record.mode, "this host has it now");
                let held = Rc::new(Held {
                    host: Rc::clone(self),
                    record: record.into(),
                    is_changing: Cell::new(false),
                    fenced: RefCell::default(),
                    is_over: Cell::new(false),
                    moved: Signal::new(),
                });
                self.held.replace(Rc::downgrade(&held));
                return Ok(held);
            }
        }
    }

    /// Fails if the host that had the volume may still write, and nobody has said that it is dead.
    fn has_been_fenced(&self, newest: &Record, next: &Record) -> Result<()> {
        let Some(holder) = newest.holder.as_ref().filter(|_| next.unfenced == Some(newest.generation)) else {
            return Ok(());
        };
        if self.fence == Fence::Quarantine {
            return Ok(());
        }
        let message = format!(
            "{holder} has the volume in generation {}, and is silent: it may be cut off, and still write to the store. \
             See to it that the host is off, and then say so with `lamina vault VAULT host-is-dead {}`, where VAULT is \
             the folder of the vault",
            newest.generation, holder.host
        );
        Err(Error::offline(message))
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
    fn after(&self, newest: &Record, record: Record) -> Record {
        Record { version: newest.version + 1, nonce: draw(&*self.env), ..record }
    }
}

impl Held {
    /// What the vault says, as far as this host knows.
    pub fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Why nothing may be read or written any more, if another host has the volume.
    pub fn fenced(&self) -> Option<Error> {
        self.fenced.borrow().clone()
    }

    /// Ends when another host has the volume, or when this one has given it back: `None`.
    pub async fn until_fenced(&self) -> Option<Error> {
        self.moved.until(|| self.fenced.borrow().is_some() || self.is_over.get()).await;
        self.fenced()
    }

    fn is_fenced_by(&self, newest: &Record) -> Error {
        let e = fenced(newest);
        if self.fenced.borrow().is_none() {
            tracing::error!(volume = %newest.name, error = %e, "fenced: nothing is read or written here any more");
            self.fenced.replace(Some(e.clone()));
            self.moved.notify();
        }
        e
    }

    /// Changes the record. When this returns the vault says so, durably. Fails with `Fenced` if another host has the
    /// volume now: nothing may be acknowledged any more.
    pub async fn change(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        self.moved.until(|| !self.is_changing.replace(true)).await;
        let before = self.record();
        let mut record = self.host.after(&before, before.clone());
        change(&mut record);
        let gives_up = |_: &Error| self.host.stopped.get();
        let settled = settle(&*self.host.vault, &*self.host.env, &record, gives_up).await;
        let changed = match settled {
            Ok(Outcome::Done) => {
                self.record.replace(record);
                Ok(())
            }
            Ok(Outcome::Lost(newest)) => Err(self.is_fenced_by(&newest)),
            Err(e) => Err(e),
        };
        self.is_changing.set(false);
        self.moved.notify();
        changed
    }

    /// Nobody has the volume from now on.
    pub async fn give_back(&self) -> Result<()> {
        self.host.held.take();
        self.is_over.set(true);
        self.moved.notify();
        self.change(|record| {
            record.previous = record.holder.take();
        })
        .await
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
