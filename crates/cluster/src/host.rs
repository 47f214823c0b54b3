//! A host as the vault sees it: it beats, and takes and gives back volumes.
//!
//! ```text
//!      take ──▶ read the record ──▶ may it have the volume? ──▶ append: generation + 1 ──▶ Held
//!                    ▲                  │ not yet
//!                    └──────────────────┘
//!      Held ──▶ change the record, again and again ──▶ give it back: nobody has it
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

/// This host.
pub struct Host {
    me: Weak<Host>,
    env: Rc<dyn Env>,
    vault: Rc<dyn Vault>,
    holder: Holder,
    lease: Duration,
    process: Uuid,
    counter: Cell<u64>,
    /// Other hosts, by name.
    watches: RefCell<BTreeMap<String, Watch>>,
    /// Another process beats under this host's name.
    rival: Cell<bool>,
    stopped: Cell<bool>,
}

/// A volume that this host has.
pub struct Held {
    host: Rc<Host>,
    record: RefCell<Record>,
    /// A change is under way; others wait.
    is_changing: Cell<bool>,
    moved: Signal,
}

fn draw(env: &dyn Env) -> Uuid {
    Uuid::from_u64_pair(env.random(), env.random())
}

fn fenced(volume: Uuid, by: &Record) -> Error {
    let who = by.holder.as_ref().map_or("nobody".into(), Holder::to_string);
    let message = format!("volume {volume}: {who} has it now, in generation {}", by.generation);
    Error::new(ErrorKind::Fenced, message)
}

impl Host {
    /// A host that beats from now on until it is stopped. Another host may take its volumes when it has been silent for
    /// `lease`.
    pub fn start(env: Rc<dyn Env>, vault: Rc<dyn Vault>, holder: Holder, lease: Duration) -> Rc<Host> {
        let process = draw(&*env);
        let host = Rc::new_cyclic(|me| Host {
            me: me.clone(),
            env: Rc::clone(&env),
            vault,
            holder,
            lease,
            process,
            counter: Cell::new(0),
            watches: RefCell::default(),
            rival: Cell::new(false),
            stopped: Cell::new(false),
        });
        let me = Rc::downgrade(&host);
        env.spawn(Box::pin(async move {
            while let Some(host) = me.upgrade().filter(|host| !host.stopped.get()) {
                host.beat().await;
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

    /// A beat, and a look whether another process has beaten under the same name since the last one.
    async fn beat(&self) {
        if let Ok(Some(last)) = self.vault.heard(&self.holder.host).await {
            let is_mine = last.process == self.process;
            self.rival.set(!is_mine && self.counter.get() > 0);
        }
        self.counter.set(self.counter.get() + 1);
        let beat = Beat { process: self.process, counter: self.counter.get() };
        if let Err(e) = self.vault.beat(&self.holder.host, beat).await {
            tracing::warn!(host = %self.holder.host, error = %e, "no beat: others may take this host for dead");
        }
    }

    /// For how long a host has been silent, as far as this one has seen.
    async fn silence(&self, host: &str) -> Result<Duration> {
        let beat = self.vault.heard(host).await?;
        let now = self.env.now();
        let mut watches = self.watches.borrow_mut();
        let watch = watches.entry(host.into()).or_default();
        watch.saw(beat, now);
        Ok(watch.silent_for(now))
    }

    /// Takes a volume. While another host has it that is alive, asks again for as long as `wait`, then fails with
    /// `Busy`. Fails with `Offline` if the volume needs what this host lacks.
    pub async fn take(&self, volume: Uuid, wait: Duration) -> Result<Held> {
        let began = self.env.now();
        loop {
            if self.rival.get() {
                let message = format!(
                    "another process beats as host {:?}: give each host a name of its own",
                    self.holder.host
                );
                return Err(Error::busy(message));
            }
            let record = match self.vault.read(volume).await? {
                None => self.first(volume),
                Some(newest) => {
                    let silent = match newest.holder.as_ref().filter(|holder| holder.host != self.holder.host)
                    {
                        Some(holder) => self.silence(&holder.host).await?,
                        None => Duration::ZERO,
                    };
                    match may_have(&newest, &self.holder, silent, self.lease) {
                        May::Have(record) => self.after(&newest, *record),
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
                tracing::info!(%volume, generation = record.generation, mode = ?record.mode, "this host has it now");
                let host = self.me.upgrade().ok_or_else(|| Error::offline("the host is stopped"))?;
                return Ok(Held {
                    host,
                    record: record.into(),
                    is_changing: Cell::new(false),
                    moved: Signal::new(),
                });
            }
        }
    }

    fn first(&self, volume: Uuid) -> Record {
        Record {
            volume,
            version: 1,
            nonce: draw(&*self.env),
            holder: Some(self.holder.clone()),
            generation: 1,
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
            Ok(Outcome::Lost(newest)) => Err(fenced(before.volume, &newest)),
            Err(e) => Err(e),
        };
        self.is_changing.set(false);
        self.moved.notify();
        changed
    }

    /// Nobody has the volume from now on.
    pub async fn give_back(self) -> Result<()> {
        self.change(|record| {
            record.previous = record.holder.take();
        })
        .await
    }
}
