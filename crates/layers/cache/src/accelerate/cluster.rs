//! What the device shows of several hosts: the members of the volume, and what it survives now.
//!
//! All of it is known here already: whoever looks waits for no store, vault or peer.

use super::peers::Peers;
use super::standby::Standby;
use super::{Accelerate, Policy};
use crate::flash::{SLOT, Volume};
use lamina_block::{Error, Result};
use lamina_cluster::Uuid;
use lamina_cluster::link::Link;
use lamina_cluster::promise::{self, Keeps};
use lamina_cluster::report::{MemberReport, MemberState, Own, VolumeReport};
use lamina_cluster::reservation::reservation_of;
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;

impl Accelerate {
    /// True if the vault names another host's flash, which has what the store lacks.
    fn has_it_at_others(&self) -> bool {
        let own = self.cache.uuid();
        let is_other = |flash: &Uuid| Some(*flash) != own;
        self.kept.held().is_some_and(|held| held.record().mode.members().iter().any(is_other))
    }

    /// The way on without what the flash of this host had: another host's, if the vault names its flash as well.
    pub(super) fn way_on(&self) -> String {
        match self.has_it_at_others() {
            true => "stop this host, and another one takes over, whose flash has it as well".to_owned(),
            false => format!("give it up with `lamina ctl {} accept-loss`", self.name),
        }
    }

    /// Fails if another host's flash has what would be given up here.
    pub(super) fn is_last_copy(&self) -> Result<()> {
        if !self.has_it_at_others() {
            return Ok(());
        }
        let (way_on, place) = (self.way_on(), reservation_of(&self.store).map(|of| of.place().to_owned()));
        let volume = self.kept.held().map(|held| held.record().name);
        let (place, volume) = (place.unwrap_or_default(), volume.unwrap_or_default());
        Err(Error::busy(format!(
            "{way_on}; if that flash is lost, too, `lamina vault {place} accept-loss {volume}` gives it up when this \
             host is stopped"
        ))
        .on(&self.name))
    }
}

impl Peers {
    /// The peers, as figures.
    pub(super) fn report(&self) -> Value {
        let links = self.links.borrow();
        let peer = |link: &Rc<Link>| {
            json!({
                "host": link.host,
                "flash": link.flash.to_string(),
                "reaches_store": link.reaches_store(),
                "protocol": link.version,
            })
        };
        json!({
            "wanted": self.wanted,
            "there": self.members.borrow().named().len(),
            "connected": links.iter().map(peer).collect::<Vec<_>>(),
            "lag_writes": links.iter().map(|link| link.lag_writes()).max(),
            "silent_seconds": links.iter().map(|link| link.silent_for().as_secs_f64()).reduce(f64::max),
            "joined": self.joined.get(),
            "lost": self.lost.get(),
            "waits": self.reason(),
        })
    }

    /// Why there are fewer than wanted, or writes wait.
    fn reason(&self) -> Option<String> {
        match self.members.borrow().waits_for_vault().is_empty() {
            false => {
                Some("the vault does not answer, which is to name a lost peer no more: writes wait".into())
            }
            true => self.waits.borrow().as_ref().map(Error::to_string),
        }
    }

    /// The flashes of other hosts that get the writes, or count.
    fn members(&self) -> Vec<MemberReport> {
        let (links, named) = (self.links.borrow(), self.members.borrow().named());
        let connected = links.iter().map(|link| MemberReport {
            host: Some(link.host.clone()),
            flash: link.flash,
            state: if named.contains(&link.flash) { MemberState::Following } else { MemberState::Joining },
            lag_writes: Some(link.lag_writes()),
        });
        let is_lost = |flash: &&_| !links.iter().any(|link| link.flash == **flash);
        let lost = named.iter().filter(is_lost).map(|flash| MemberReport {
            host: None,
            flash: *flash,
            state: MemberState::Lost,
            lag_writes: None,
        });
        connected.chain(lost).collect()
    }
}

impl Accelerate {
    /// The volume as hosts have it that reach its store; `None` over a store of this host alone.
    pub(super) fn cluster(&self) -> Option<VolumeReport> {
        let (reservation, flash) = (reservation_of(&self.store)?, self.cache.uuid());
        let me = flash.map(|flash| MemberReport {
            host: Some(reservation.host().name()),
            flash,
            state: MemberState::Primary,
            lag_writes: Some(0),
        });
        let is_named = self
            .kept
            .held()
            .is_some_and(|held| flash.is_some_and(|flash| held.record().mode.members().contains(&flash)));
        let peers: Vec<_> = self.peers.iter().flat_map(|peers| peers.members()).collect();
        let there = peers.iter().filter(|peer| peer.state == MemberState::Following).count();
        Some(reservation.report(Own {
            device: self.name.clone(),
            flash,
            keeps: Keeps {
                dirty_bytes: self.dirty_bytes(),
                wanted: self.peers.as_ref().map_or(0, |peers| peers.wanted),
                there,
                waits: self.peers.as_ref().and_then(|peers| peers.reason()),
                is_through: self.policy.get() != Policy::WriteBack,
                stopped: self.failure.stopped().map(|why| why.to_string()),
            },
            members: me.into_iter().filter(|_| is_named).chain(peers).collect(),
        }))
    }

    fn dirty_bytes(&self) -> u64 {
        self.volume.dirty.get() * SLOT as u64
    }

    /// Acknowledged, and on no other flash and not on the store.
    pub(super) fn unprotected_bytes(&self) -> u64 {
        let is_alone = self.peers.as_ref().is_none_or(|peers| peers.members.borrow().named().is_empty());
        if is_alone { self.dirty_bytes() } else { 0 }
    }

    /// What the volume survives now, in a sentence.
    pub(super) fn promise(&self, cluster: Option<&VolumeReport>) -> String {
        match (cluster, self.failure.stopped()) {
            (Some(cluster), _) => cluster.promise.sentence.clone(),
            (None, Some(why)) => promise::stopped_alone(&why.to_string(), &self.name),
            (None, None) => promise::alone(self.policy.get() == Policy::WriteBack, self.dirty_bytes()),
        }
    }
}

impl Standby {
    /// While this host does not have the volume.
    pub(super) fn report(&self) -> Value {
        let follower = self.follower();
        let of =
            |of: fn(&Volume) -> &Cell<u64>| follower.as_ref().map(|(follower, _)| of(&follower.volume).get());
        let share = |volume: &Volume| self.cache().share(volume) * SLOT as u64;
        let cluster = self.cluster();
        json!({
            "policy": "standby",
            "cached_bytes": of(|volume| &volume.blocks).map(|blocks| blocks * SLOT as u64),
            "dirty_bytes": of(|volume| &volume.dirty).map(|blocks| blocks * SLOT as u64),
            "share_bytes": follower.as_ref().map(|(follower, _)| share(&follower.volume)),
            // Of requests of this host there are none.
            "hit_bytes": 0,
            "missed_bytes": 0,
            "remote_bytes": 0,
            "hit_rate": null,
            "recent_hit_rate": null,
            "flow": { "pressure": 0 },
            "recovery_point": { "age_seconds": null },
            "peers": { "there": null, "waits": null },
            "unprotected_bytes": 0,
            "promise": cluster.promise.sentence,
            "cluster": cluster,
            "serial": of(|volume| &volume.serial),
            "checkpoint": of(|volume| &volume.checkpoint),
        })
    }

    /// The volume, which another host has, or none.
    fn cluster(&self) -> VolumeReport {
        let (reservation, flash) = (self.reservation(), self.cache().uuid());
        let record = reservation.host().view().record;
        let is_named =
            flash.is_some_and(|flash| record.is_some_and(|record| record.mode.members().contains(&flash)));
        let follower = self.follower();
        let dirty = follower.as_ref().map_or(0, |(follower, _)| follower.volume.dirty.get());
        let state = match (is_named, follower.is_some_and(|(_, member)| member.is_served())) {
            (true, true) => Some(MemberState::Following),
            (true, false) => Some(MemberState::Named),
            (false, true) => Some(MemberState::Joining),
            (false, false) => None,
        };
        let me = state.zip(flash).map(|(state, flash)| MemberReport {
            host: Some(reservation.host().name()),
            flash,
            state,
            lag_writes: None,
        });
        reservation.report(Own {
            device: self.name().to_owned(),
            flash,
            keeps: Keeps { dirty_bytes: dirty * SLOT as u64, ..Keeps::default() },
            members: me.into_iter().collect(),
        })
    }
}
