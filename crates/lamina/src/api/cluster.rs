//! Several hosts, as a daemon knows them without asking any of them.

use super::Snapshot;
use lamina_cluster::report::{HostReport, MemberReport, VolumeReport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The volumes of a daemon that several hosts reach, and those hosts. All of it is known to the daemon when it is
/// asked: no store, vault or host is waited for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Cluster {
    /// The hosts, in the order of their vaults and names.
    pub hosts: Vec<ClusterHost>,
    /// The volumes, in the order of their devices.
    pub volumes: Vec<ClusterVolume>,
}

/// A host, with all its volumes that this daemon has as well.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterHost {
    /// Its name in the vault.
    pub name: String,
    /// Where the vault is: a folder, or `etcd:` with its members.
    pub vault: String,
    /// It is the host of this daemon.
    pub here: bool,
    /// Where it takes the writes of other hosts, for one of its volumes; null if it does not.
    pub address: Option<String>,
    /// Seconds since a new beat of it was seen; null if none was, and for the host of this daemon.
    pub heard_seconds: Option<f64>,
    /// `alive`; `unreachable`: it beats, and could not be connected to; `silent`: it has not beaten for its lease;
    /// `unknown`: the vault does not answer this daemon, or has been watched for less than a lease.
    pub state: String,
    /// Why it could not be connected to, if it could not.
    pub why: Option<String>,
    /// The volumes of it that this daemon has, too.
    pub volumes: Vec<String>,
}

/// A volume that several hosts reach.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterVolume {
    /// Its name in the vault.
    pub volume: String,
    /// The device of this daemon that it is.
    pub device: String,
    /// Where the vault is: a folder, or `etcd:` with its members.
    pub vault: String,
    /// Seconds since the vault was asked what it has answered last; null if it has not.
    pub vault_seconds: Option<f64>,
    /// Why the vault does not answer, if it says so.
    pub vault_trouble: Option<String>,
    /// The host that has the volume; null if none has.
    pub host: Option<String>,
    /// How often the volume has changed hands; null if that is not known.
    pub generation: Option<u64>,
    /// Where its writes are, as the vault says. `through`: on the store. `back`: on the flashes of all members, and not
    /// all on the store. `recovering`: the same, after a change of hands. Null if that is not known.
    pub mode: Option<String>,
    /// What the host of this daemon is: `primary`, `standby`, or `fenced` if another host has taken the volume from it.
    pub role: String,
    /// The flashes that have what the store lacks, and those that are about to.
    pub members: Vec<ClusterMember>,
    /// Bytes that are acknowledged and not on the store; null if this host is no member.
    pub dirty_bytes: Option<u64>,
    /// Those of them that one flash alone has.
    pub unprotected_bytes: Option<u64>,
    /// Why fewer peers are there than wanted, if so.
    pub waits: Option<String>,
    /// What the volume survives now, what is missing for more, and which command helps: a sentence for people.
    pub promise: String,
    /// So many flashes, or hosts with their flashes, may be lost without an acknowledged write; null: all of them, as
    /// the store has every write.
    pub survives: Option<u32>,
    /// What happens if the host that has the volume is silent. `automatic`: another one takes it by itself, or no host
    /// has it. `confirmed`: a person says first that the host is dead. `impossible`: no other host that is reached has
    /// its writes.
    pub takeover: String,
    /// The command that helps, if one does.
    pub command: Option<String>,
}

/// A flash with the writes of a volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClusterMember {
    /// Its host; null if this daemon does not know it.
    pub host: Option<String>,
    /// The UUID of the flash.
    pub flash: String,
    /// `primary`: of the host that has the volume. `following`: it has every acknowledged write. `joining`: it gets
    /// every write, and does not count yet. `lost`: it gets nothing, and still counts. `named`: it counts, and no more
    /// is known here.
    pub state: String,
    /// Writes, and fills after reads, since the last one that it has; null if that is not known.
    pub lag_writes: Option<u64>,
}

impl From<MemberReport> for ClusterMember {
    fn from(member: MemberReport) -> ClusterMember {
        let MemberReport { host, flash, state, lag_writes } = member;
        ClusterMember { host, flash: flash.to_string(), state: state.name().into(), lag_writes }
    }
}

impl From<VolumeReport> for ClusterVolume {
    fn from(report: VolumeReport) -> ClusterVolume {
        ClusterVolume {
            volume: report.volume,
            device: report.device,
            vault: report.vault,
            vault_seconds: report.vault_seconds,
            vault_trouble: report.vault_trouble,
            host: report.host,
            generation: report.generation,
            mode: report.mode,
            role: report.role,
            members: report.members.into_iter().map(ClusterMember::from).collect(),
            dirty_bytes: report.dirty_bytes,
            unprotected_bytes: report.unprotected_bytes,
            waits: report.waits,
            promise: report.promise.sentence,
            survives: report.promise.survives,
            takeover: report.promise.takeover.name().into(),
            command: report.promise.command,
        }
    }
}

impl Cluster {
    /// What the devices of a daemon know.
    pub fn of(snapshot: &Snapshot) -> Cluster {
        let report = |info: &serde_json::Value| {
            let cluster = info.get("cluster").filter(|cluster| !cluster.is_null())?;
            let report = serde_json::from_value::<VolumeReport>(cluster.clone());
            Some(report.expect("a device that says this says it in this form; a test says so"))
        };
        let mut cluster = Cluster::default();
        for report in snapshot.devices().filter_map(|device| report(&device.info)) {
            for host in &report.hosts {
                cluster.add(&report, host);
            }
            cluster.volumes.push(report.into());
        }
        cluster.hosts.sort_by(|a, b| (&a.vault, &a.name).cmp(&(&b.vault, &b.name)));
        cluster
    }

    /// A host as one of its volumes knows it. What was heard last counts, whichever volume it was for.
    fn add(&mut self, of: &VolumeReport, host: &HostReport) {
        let new = ClusterHost {
            name: host.name.clone(),
            vault: of.vault.clone(),
            here: host.is_here,
            address: host.address.clone(),
            heard_seconds: host.heard_seconds,
            state: host.state.name().into(),
            why: host.why.clone(),
            volumes: vec![of.volume.clone()],
        };
        let known = self.hosts.iter_mut().find(|known| known.vault == of.vault && known.name == host.name);
        let Some(known) = known else {
            self.hosts.push(new);
            return;
        };
        let age = |host: &ClusterHost| host.heard_seconds.unwrap_or(f64::INFINITY);
        let volumes = [std::mem::take(&mut known.volumes), new.volumes.clone()].concat();
        if age(&new) < age(known) {
            *known = new;
        }
        known.volumes = volumes;
    }
}
