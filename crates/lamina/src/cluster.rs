//! `lamina cluster`: several hosts, as a running daemon knows them. It answers at once, whatever hangs.

use crate::api::{Cluster, ClusterHost, ClusterMember, ClusterVolume};
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::show;
use lamina_block::Bytes;
use std::fmt::Write as _;
use std::io::Write;

/// Columns that hold text, from the left.
const HOSTS: (&[&str], usize) = (&["HOST", "ADDRESS", "STATE", "HEARD"], 3);
const VOLUMES: (&[&str], usize) =
    (&["VOLUME", "HOST", "MODE", "HERE", "GENERATION", "MEMBERS", "DIRTY", "UNPROTECTED"], 4);
const MEMBERS: (&[&str], usize) = (&["MEMBER OF", "HOST", "STATE", "FLASH", "LAG"], 4);

/// Runs `lamina cluster`.
pub fn run(args: &cli::Cluster) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let cluster: Cluster = client.get("/v1/cluster")?;
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&cluster).map_err(Failure::failed)?)?,
        false => write!(out, "{}", draw(&cluster))?,
    }
    Ok(())
}

/// Tables of hosts, volumes and members, and a sentence for each volume.
fn draw(cluster: &Cluster) -> String {
    if cluster.volumes.is_empty() {
        return "this daemon has no volume that several hosts reach\n".into();
    }
    let table = |(titles, words): (&[&str], usize), rows: Vec<Vec<String>>| match rows.is_empty() {
        true => String::new(),
        false => show::table(titles, words, &rows) + "\n",
    };
    let members = cluster.volumes.iter().flat_map(|volume| {
        volume.members.iter().map(|member| member_row(volume, member)).collect::<Vec<_>>()
    });
    let mut out = table(HOSTS, cluster.hosts.iter().map(host_row).collect());
    out += &table(VOLUMES, cluster.volumes.iter().map(volume_row).collect());
    out += &table(MEMBERS, members.collect());
    for volume in &cluster.volumes {
        let name = &volume.volume;
        let _ = writeln!(out, "{name}: {}", volume.promise);
        if let Some(why) = &volume.vault_trouble {
            let _ = writeln!(out, "{name}: the vault does not answer: {why}");
        }
    }
    for host in &cluster.hosts {
        if let Some(why) = &host.why {
            let _ = writeln!(out, "host {} cannot be reached: {why}", host.name);
        }
    }
    out
}

fn or_none(text: Option<impl ToString>) -> String {
    text.map_or("-".into(), |text| text.to_string())
}

fn host_row(host: &ClusterHost) -> Vec<String> {
    let state = if host.here { "this host" } else { &host.state };
    let heard = host.heard_seconds.map(|seconds| format!("{} ago", show::duration(seconds as u64)));
    vec![host.name.clone(), or_none(host.address.as_ref()), state.into(), or_none(heard)]
}

fn volume_row(volume: &ClusterVolume) -> Vec<String> {
    let size = |bytes: Option<u64>| or_none(bytes.map(|bytes| Bytes(bytes).rounded()));
    // Those that the vault counts.
    let counts = |member: &&ClusterMember| member.state != "joining";
    vec![
        volume.volume.clone(),
        or_none(volume.host.as_ref()),
        or_none(volume.mode.as_ref()),
        volume.role.clone(),
        or_none(volume.generation),
        volume.members.iter().filter(counts).count().to_string(),
        size(volume.dirty_bytes),
        size(volume.unprotected_bytes),
    ]
}

fn member_row(volume: &ClusterVolume, member: &ClusterMember) -> Vec<String> {
    let host = or_none(member.host.as_ref());
    vec![volume.volume.clone(), host, member.state.clone(), member.flash.clone(), or_none(member.lag_writes)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{clustered, snapshot};

    #[test]
    fn hosts_volumes_and_members_are_told() {
        let text = draw(&Cluster::of(&clustered()));
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        for line in [
            &["a", "tcp:10.0.0.1:7001", "this", "host", "-"][..],
            &["b", "tcp:10.0.0.2:7001", "unreachable", "2s", "ago"],
            &["c", "-", "silent", "1h2m", "ago"],
            &["vm1", "a", "back", "primary", "3", "2", "1MiB", "0B"],
            &["vm1", "a", "primary", "00000000-0000-0000-0000-000000000001", "0"],
            &["vm1", "b", "following", "00000000-0000-0000-0000-000000000002", "7"],
        ] {
            assert!(lines.iter().any(|words| words == line), "{line:?}\n{text}");
        }
        assert!(text.contains("vm1: every acknowledged write survives the loss of 1 flash"), "{text}");
        assert!(text.ends_with("host b cannot be reached: connection refused\n"), "{text}");
    }

    #[test]
    fn a_host_is_as_alive_as_its_last_beat_for_any_volume() {
        let mut two = clustered();
        let mut other = two.hierarchies[0].devices[0].clone();
        let report = &mut other.info["cluster"];
        report["volume"] = "vm2".into();
        (report["hosts"][2]["heard_seconds"], report["hosts"][2]["state"]) = (1.5.into(), "alive".into());
        two.hierarchies[0].devices.push(other);
        let cluster = Cluster::of(&two);
        let [a, b, c] = &cluster.hosts[..] else { panic!("{cluster:?}") };
        assert!(a.here && a.volumes == ["vm1", "vm2"] && b.state == "unreachable", "{cluster:?}");
        assert_eq!((&c.state[..], c.heard_seconds), ("alive", Some(1.5)));
    }

    #[test]
    fn a_daemon_without_such_volumes_says_so() {
        assert!(draw(&Cluster::of(&snapshot())).contains("no volume that several hosts reach"));
    }
}
