//! What a host has seen of a volume in the vault, remembered to be shown: nobody who asks for it waits for the vault.
//!
//! ```text
//!      every half lease: the record, and the beats of the other hosts ──▶ Sights ──▶ View, at once
//! ```
//!
//! Invariant: nothing is decided by it. A host that takes a volume looks at the vault itself.

use crate::host::Host;
use crate::vault::{Beat, Record};
use lamina_block::{Error, Result, Time};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Looks in a lease. Fewer than beats: what is shown may be a little old.
const LOOKS: u32 = 2;
/// How long it counts that a host could not be reached. Whoever needs the host tries again within seconds.
const UNREACHED: Duration = Duration::from_secs(30);

/// How it is with another host, as far as this one knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostState {
    /// It beats.
    Alive,
    /// It beats, and could not be reached over the network.
    Unreachable,
    /// It has not beaten for its lease.
    Silent,
    /// The vault does not answer this host, or has been watched for less than a lease.
    Unknown,
}

impl HostState {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            HostState::Alive => "alive",
            HostState::Unreachable => "unreachable",
            HostState::Silent => "silent",
            HostState::Unknown => "unknown",
        }
    }
}

/// The record of a volume, and the last beats of other hosts.
type Seen = (Option<Record>, Vec<(String, Option<Beat>)>);

/// Another host, as this one sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherHost {
    /// Its name.
    pub name: String,
    /// Where it takes the writes of other hosts, if it does.
    pub address: Option<String>,
    /// How long ago this host has seen a new beat of it; `None` if it has seen none.
    pub heard: Option<Duration>,
    /// How it is with it.
    pub state: HostState,
    /// Why it could not be reached, if it could not.
    pub why: Option<String>,
}

/// A volume in the vault, as a host has seen it last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The record; `None` if there is none, or the vault has not answered yet.
    pub record: Option<Record>,
    /// How long ago the last look began that the vault has answered; `None` before the first one.
    pub answered: Option<Duration>,
    /// Why the vault did not answer, or did not take a beat, if the last answer was an error.
    pub trouble: Option<String>,
    /// Other hosts with this volume, in the order of their names: those that have been heard, and the one that has it.
    pub hosts: Vec<OtherHost>,
}

/// What was seen of another host.
#[derive(Clone, Debug)]
struct Sight {
    beat: Option<Beat>,
    /// When this beat was seen first; and whether there was another one before.
    since: Time,
    is_heard: bool,
    unreached: Option<(Time, String)>,
    /// What was logged of it.
    told: HostState,
}

impl Sight {
    fn new(beat: Option<Beat>, now: Time) -> Sight {
        Sight { beat, since: now, is_heard: false, unreached: None, told: HostState::Unknown }
    }

    fn saw(&mut self, beat: Option<Beat>, now: Time) {
        if beat != self.beat {
            (self.beat, self.since, self.is_heard) = (beat, now, true);
        }
    }

    /// How it is at `now`, if the last look began at `looked`.
    fn state(&self, looked: Time, now: Time, lease: Duration) -> HostState {
        let is_unreached = self.unreached.as_ref().is_some_and(|(at, _)| now.since(*at) < UNREACHED);
        if now.since(looked) >= lease {
            HostState::Unknown
        } else if looked.since(self.since) >= lease {
            HostState::Silent
        } else if is_unreached {
            HostState::Unreachable
        } else if self.is_heard {
            HostState::Alive
        } else {
            HostState::Unknown
        }
    }
}

/// What a host remembers in order to be shown.
#[derive(Default)]
pub(crate) struct Sights {
    hosts: RefCell<BTreeMap<String, Sight>>,
    record: RefCell<Option<Record>>,
    /// When the last look began that was answered.
    looked: Cell<Option<Time>>,
    trouble: RefCell<Option<Error>>,
    /// Why the vault has not taken the last beat.
    unbeaten: RefCell<Option<Error>>,
    pub(crate) counts: Cell<Counts>,
}

/// How often a volume has changed hands here since its device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Taken from a host that was silent.
    pub takeovers: u64,
    /// Taken from a host that was alive, and gave it to this one.
    pub received: u64,
    /// Given by this host to one that asked for it.
    pub given: u64,
}

impl Sights {
    /// How the vault has taken a beat.
    pub(crate) fn beaten(&self, failed: Option<&Error>) {
        self.unbeaten.replace(failed.cloned());
    }
}

impl Host {
    /// Looks around until the host is stopped.
    pub(crate) fn looks_around(self: &Rc<Self>) {
        let (me, env) = (Rc::downgrade(self), Rc::clone(&self.env));
        env.spawn(Box::pin(async move {
            while let Some(host) = me.upgrade().filter(|host| !host.is_stopped()) {
                let began = host.env.now();
                let seen = host.look_around().await;
                host.saw_around(began, seen);
                let pause = host.env.sleep(host.lease / LOOKS);
                drop(host);
                pause.await;
            }
        }));
    }

    /// The record, and the last beats of other hosts.
    async fn look_around(&self) -> Result<Seen> {
        let record = match self.held_record() {
            Some(record) => Some(record),
            None => self.record().await?,
        };
        let mut beats = Vec::new();
        for host in self.names_of_others().await? {
            let beat = self.heard(&host).await?;
            beats.push((host, beat));
        }
        Ok((record, beats))
    }

    fn saw_around(&self, began: Time, seen: Result<Seen>) {
        let (sights, now) = (&self.sights, self.env.now());
        let (record, beats) = match seen {
            Ok(seen) => seen,
            Err(e) => {
                sights.trouble.replace(Some(e));
                return;
            }
        };
        sights.trouble.take();
        record.into_iter().for_each(|record| self.knows(record));
        sights.looked.set(Some(began));
        let mut hosts = sights.hosts.borrow_mut();
        hosts.retain(|host, _| beats.iter().any(|(name, _)| name == host));
        for (host, beat) in beats {
            let sight = hosts.entry(host.clone()).or_insert_with(|| Sight::new(beat.clone(), now));
            sight.saw(beat, now);
            let state = sight.state(began, now, self.lease_of(sight.beat.as_ref()));
            self.tell(&host, std::mem::replace(&mut sight.told, state), state);
        }
    }

    fn tell(&self, host: &str, before: HostState, now: HostState) {
        let volume = &self.volume.name;
        match (before, now) {
            (HostState::Alive | HostState::Unreachable, HostState::Silent) => {
                tracing::warn!(volume, host, "another host is silent: it has not beaten for its lease");
            }
            (HostState::Silent, HostState::Alive | HostState::Unreachable) => {
                tracing::info!(volume, host, "another host beats again");
            }
            (HostState::Unknown, HostState::Alive) => tracing::info!(volume, host, "another host beats"),
            _ => {}
        }
    }

    /// The vault says that, or said it a moment ago.
    pub(crate) fn knows(&self, record: Record) {
        let mut known = self.sights.record.borrow_mut();
        if known.as_ref().is_none_or(|known| known.version <= record.version) {
            known.replace(record);
        }
    }

    /// A connection to another host was tried.
    pub(crate) fn reached(&self, host: &str, why_not: Option<&Error>) {
        if let Some(sight) = self.sights.hosts.borrow_mut().get_mut(host) {
            sight.unreached = why_not.map(|e| (self.env.now(), e.message().to_owned()));
        }
    }

    /// One more, of what is counted.
    pub(crate) fn count(&self, more: impl FnOnce(&mut Counts)) {
        let mut counts = self.sights.counts.get();
        more(&mut counts);
        self.sights.counts.set(counts);
    }

    /// How often the volume has changed hands here.
    pub fn counts(&self) -> Counts {
        self.sights.counts.get()
    }

    /// The volume and the other hosts as this one has seen them last. Never waits.
    pub fn view(&self) -> View {
        let (sights, now) = (&self.sights, self.env.now());
        let record = self.held_record().or_else(|| sights.record.borrow().clone());
        let holder = record.as_ref().and_then(|record| Some(record.holder.as_ref()?.host.clone()));
        let looked = sights.looked.get();
        let is_shown = |(name, sight): &(&String, &Sight)| sight.is_heard || holder.as_ref() == Some(*name);
        let other = |(name, sight): (&String, &Sight)| {
            let lease = self.lease_of(sight.beat.as_ref());
            let state = looked.map_or(HostState::Unknown, |looked| sight.state(looked, now, lease));
            OtherHost {
                name: name.clone(),
                address: sight.beat.as_ref().and_then(|beat| beat.address.clone()),
                heard: sight.is_heard.then(|| now.since(sight.since)),
                state,
                why: match (state, &sight.unreached) {
                    (HostState::Unreachable, Some((_, why))) => Some(why.clone()),
                    _ => None,
                },
            }
        };
        View {
            hosts: sights.hosts.borrow().iter().filter(is_shown).map(other).collect(),
            record,
            answered: looked.map(|looked| now.since(looked)),
            trouble: [&sights.trouble, &sights.unbeaten]
                .into_iter()
                .find_map(|why| why.borrow().as_ref().map(|e| e.message().to_owned())),
        }
    }
}
