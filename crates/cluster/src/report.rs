//! A volume of several hosts as one of them shows it: plain data, in the words of the control API.
//!
//! A device over a `reservation` has it in its info, at `/cluster`; of several devices with the same volume, one above
//! the other, the topmost knows most.

use crate::promise::{Keeps, Promise, Situation};
use crate::reservation::Reservation;
use crate::vault::{Holder, Mode};
use crate::view::HostState;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

/// A volume, as a host knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeReport {
    /// Its name in the vault.
    pub volume: String,
    /// The device that shows it.
    pub device: String,
    /// Where the vault is: a folder, or `etcd:` with its members.
    pub vault: String,
    /// How long ago the vault was asked what it has answered last, in seconds.
    pub vault_seconds: Option<f64>,
    /// Why it does not answer, if it says so.
    pub vault_trouble: Option<String>,
    /// The host that has the volume.
    pub host: Option<String>,
    /// How often the volume has changed hands.
    pub generation: Option<u64>,
    /// Where its writes are, as the vault says: `through`, `back` or `recovering`.
    pub mode: Option<String>,
    /// What this host is: `primary`, `standby` or `fenced`.
    pub role: String,
    /// The flashes that have what the store lacks, and those that are about to.
    pub members: Vec<MemberReport>,
    /// All hosts with the volume that are known, this one first.
    pub hosts: Vec<HostReport>,
    /// Acknowledged, and not on the store; known to the members alone.
    pub dirty_bytes: Option<u64>,
    /// The part of it that one flash alone has.
    pub unprotected_bytes: Option<u64>,
    /// Why fewer peers are there than wanted, if so.
    pub waits: Option<String>,
    /// What the volume survives now.
    pub promise: Promise,
}

/// A flash with the writes of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its host, if this one knows it.
    pub host: Option<String>,
    /// The flash.
    pub flash: Uuid,
    /// How it is with it.
    pub state: MemberState,
    /// Writes, and fills after reads, since the last one that it has, if that is known.
    pub lag_writes: Option<u64>,
}

/// How it is with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It is the flash of the host that has the volume.
    Primary,
    /// It has every acknowledged write.
    Following,
    /// It gets every write, and the vault does not name it yet.
    Joining,
    /// It gets nothing any more, and the vault still names it.
    Lost,
    /// The vault names it; no more is known here.
    Named,
}

impl MemberState {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Primary => "primary",
            MemberState::Following => "following",
            MemberState::Joining => "joining",
            MemberState::Lost => "lost",
            MemberState::Named => "named",
        }
    }
}

/// A host with a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostReport {
    /// Its name.
    pub name: String,
    /// It is the host that says this.
    pub is_here: bool,
    /// Where it takes the writes of other hosts, if it does.
    pub address: Option<String>,
    /// How long ago a new beat of it was seen, in seconds; `None` if none was, and for the host that says this.
    pub heard_seconds: Option<f64>,
    /// How it is with it.
    pub state: HostState,
    /// Why it cannot be reached, if so.
    pub why: Option<String>,
}

/// What a device over a reservation knows beside it.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// The name of the device.
    pub device: String,
    /// Its flash.
    pub flash: Option<Uuid>,
    /// What this flash keeps.
    pub keeps: Keeps,
    /// What is known of members, in the order of showing; of others the vault alone speaks.
    pub members: Vec<MemberReport>,
}

fn mode(mode: &Mode) -> &'static str {
    match mode {
        Mode::Through => "through",
        Mode::Back { .. } => "back",
        Mode::Recovering { .. } => "recovering",
    }
}

impl Reservation {
    /// The volume as this host knows it, and the device over the reservation. Never waits.
    pub fn report(&self, own: Own) -> VolumeReport {
        let Own { device, flash, keeps, members } = own;
        let (host, view) = (self.host(), self.host().view());
        let me = Holder { host: host.name(), flash };
        let record = view.record.as_ref();
        let is_fenced = self.fenced().is_some();
        let is_primary = self.is_held() && !is_fenced;
        let holder = record.and_then(|record| record.holder.as_ref());
        let is_silent = holder.is_some_and(|holder| {
            view.hosts.iter().any(|other| other.name == holder.host && other.state == HostState::Silent)
        });
        let situation = Situation {
            volume: &host.volume().name,
            device: &device,
            vault: self.place(),
            me: &me,
            record,
            is_silent,
            is_fenced,
            fences: host.vault().fences(),
            keeps: is_primary.then_some(&keeps),
        };
        let promise = situation.promise();
        let named = record.map_or(&[][..], |record| record.mode.members());
        let is_shown = |flash: &&Uuid| !members.iter().any(|member| member.flash == **flash);
        let of_holder = |flash: &Uuid| holder.filter(|holder| holder.flash == Some(*flash));
        let rest: Vec<MemberReport> = named
            .iter()
            .filter(is_shown)
            .map(|flash| MemberReport {
                host: of_holder(flash).map(|holder| holder.host.clone()),
                flash: *flash,
                state: if of_holder(flash).is_some() { MemberState::Primary } else { MemberState::Named },
                lag_writes: None,
            })
            .collect();
        let is_known = is_primary || me.flash.is_some_and(|flash| named.contains(&flash));
        let dirty = is_known.then_some(keeps.dirty_bytes);
        let here = HostReport {
            name: me.host.clone(),
            is_here: true,
            address: host.address().map(|address| address.to_string()),
            heard_seconds: None,
            state: HostState::Alive,
            why: None,
        };
        let others = view.hosts.iter().map(|other| HostReport {
            name: other.name.clone(),
            is_here: false,
            address: other.address.clone(),
            heard_seconds: other.heard.map(|heard| heard.as_secs_f64()),
            state: other.state,
            why: other.why.clone(),
        });
        VolumeReport {
            volume: host.volume().name.clone(),
            device,
            vault: self.place().to_owned(),
            vault_seconds: view.answered.map(|answered| answered.as_secs_f64()),
            vault_trouble: view.trouble.clone(),
            host: holder.map(|holder| holder.host.clone()),
            generation: record.map(|record| record.generation),
            mode: record.map(|record| mode(&record.mode).to_owned()),
            role: match (is_fenced, is_primary) {
                (true, _) => "fenced",
                (false, true) => "primary",
                (false, false) => "standby",
            }
            .into(),
            hosts: std::iter::once(here).chain(others).collect(),
            dirty_bytes: dirty,
            unprotected_bytes: dirty.map(|dirty| if named.len() > 1 { 0 } else { dirty }),
            waits: keeps.waits.filter(|_| is_primary),
            members: members.into_iter().chain(rest).collect(),
            promise,
        }
    }

    /// How many hosts there are, how many of them are silent or out of reach, how long ago the vault and the other host
    /// that was silent for longest were heard, and how often the volume has changed hands here.
    pub fn figures(&self) -> Value {
        let (view, counts) = (self.host().view(), self.host().counts());
        let count = |state| view.hosts.iter().filter(|other| other.state == state).count();
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        json!({
            "known": view.hosts.len() + 1,
            "silent": count(HostState::Silent),
            "unreachable": count(HostState::Unreachable),
            "heard_seconds": seconds(view.hosts.iter().filter_map(|other| other.heard).max()),
            "vault_seconds": seconds(view.answered),
            "takeovers": counts.takeovers,
            "received": counts.received,
            "given": counts.given,
        })
    }
}
