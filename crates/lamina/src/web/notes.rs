//! Alerts in sentences.
//!
//! The sentences are those of `lamina show`: the notices of kinds, absent and evicted members, legs, hosts and vaults.
//! An alert that has no sentence is told by its name, so that none is hidden.

use crate::api::{Cluster, Hierarchy, Snapshot};
use crate::show::{self, figures};
use crate::status::{self, Status};
use lamina_block::Kind;
use serde::Serialize;

/// A sentence about something that may need attention.
#[derive(Debug, PartialEq, Serialize)]
pub struct Note {
    /// `failed`, `degraded`, or `info` if no alert is on.
    pub severity: &'static str,
    /// The device, or the host.
    pub about: String,
    /// The sentence.
    pub text: String,
}

/// All of a daemon, the worst first.
pub fn of(snapshot: &Snapshot, cluster: &Cluster, kinds: &[Kind]) -> Vec<Note> {
    let mut notes: Vec<Note> = snapshot.hierarchies.iter().flat_map(|h| of_hierarchy(h, kinds)).collect();
    for volume in cluster.volumes.iter().filter(|volume| volume.vault_trouble.is_some()) {
        let why = volume.vault_trouble.as_deref().unwrap_or_default();
        let text = format!("the vault of {} does not answer: {why}", volume.volume);
        notes.push(Note { severity: "degraded", about: volume.device.clone(), text });
    }
    for host in &cluster.hosts {
        if let Some(why) = &host.why {
            let text = format!("host {} cannot be reached: {why}", host.name);
            notes.push(Note { severity: "degraded", about: host.name.clone(), text });
        }
    }
    notes.sort_by_key(|note| match note.severity {
        "failed" => 0,
        "degraded" => 1,
        _ => 2,
    });
    notes
}

fn of_hierarchy(hierarchy: &Hierarchy, kinds: &[Kind]) -> Vec<Note> {
    let mut sentences = figures::notices(hierarchy, kinds);
    sentences.extend(show::outside(hierarchy));
    let mut notes = Vec::new();
    for device in &hierarchy.devices {
        let name = &device.name;
        let alerts: Vec<&str> =
            status::alerts(hierarchy, device).filter(|(_, is_on)| *is_on).map(|(alert, _)| alert).collect();
        let severity = match alerts.iter().any(|alert| status::stops(hierarchy, device, alert)) {
            true => "failed",
            false if !alerts.is_empty() => "degraded",
            false => "info",
        };
        let told: Vec<&String> =
            sentences.iter().filter(|(of, _)| of == name).map(|(_, sentence)| sentence).collect();
        let mut add = |text: String| notes.push(Note { severity, about: name.clone(), text });
        if told.is_empty() {
            alerts.iter().for_each(|alert| add(format!("{name} is {}", alert.replace('_', " "))));
        }
        told.into_iter().for_each(|sentence| add(sentence.clone()));
    }
    notes
}

/// The state of everything in one sentence, and in one word.
pub fn summary(snapshot: &Snapshot, is_draining: bool) -> (&'static str, String) {
    let all: Vec<Status> = snapshot.hierarchies.iter().map(Status::of).collect();
    let state = all.iter().map(|status| status.state).max().unwrap_or(status::State::Ok);
    let number = |n: usize, one: &str, several: &str| format!("{n} {}", if n == 1 { one } else { several });
    let volumes = number(snapshot.exports().count(), "volume", "volumes");
    let of = format!("{} with {volumes}", number(all.len(), "hierarchy", "hierarchies"));
    let in_state = |state| all.iter().filter(|status| status.state == state).count();
    let (failed, degraded) = (in_state(status::State::Failed), in_state(status::State::Degraded));
    let verdict = match (failed, degraded) {
        (0, 0) => "all is well".to_owned(),
        (0, degraded) => format!("{degraded} degraded"),
        (failed, 0) => format!("{failed} failed"),
        (failed, degraded) => format!("{failed} failed, {degraded} degraded"),
    };
    let drains = if is_draining { "; the daemon is draining" } else { "" };
    (state.name(), format!("{of}: {verdict}{drains}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::show::tests::{cached, clustered, snapshot};
    use serde_json::json;

    fn notes(snapshot: &Snapshot) -> Vec<(&'static str, String)> {
        let notes = of(snapshot, &Cluster::of(snapshot), &files::kinds());
        notes.into_iter().map(|note| (note.severity, note.text)).collect()
    }

    #[test]
    fn notices_of_kinds_are_told() {
        let told = notes(&cached());
        assert_eq!(told, [("degraded", "cache has no space: writes have waited for 2s".to_owned())]);
    }

    #[test]
    fn an_alert_without_a_sentence_is_told_by_its_name_and_the_worst_comes_first() {
        let mut wrong = snapshot();
        wrong.hierarchies[0].devices[0].info = json!({ "alerts": { "nearly_full": true, "other": false } });
        wrong.hierarchies[0].devices[2].unreachable = true;
        let expected = [("failed", "vm1 is unreachable"), ("degraded", "a is nearly full")];
        assert_eq!(notes(&wrong), expected.map(|(severity, text)| (severity, text.to_owned())));
        assert_eq!(summary(&wrong, false), ("failed", "1 hierarchy with 1 volume: 1 failed".into()));
    }

    #[test]
    fn hosts_and_vaults_that_do_not_answer_are_told() {
        let mut clustered = clustered();
        clustered.hierarchies[0].devices[0].info["cluster"]["vault_trouble"] = "no quorum".into();
        let told: Vec<String> = notes(&clustered).into_iter().map(|(_, text)| text).collect();
        assert!(told.contains(&"the vault of vm1 does not answer: no quorum".into()), "{told:?}");
        assert!(told.contains(&"host b cannot be reached: connection refused".into()), "{told:?}");
    }

    #[test]
    fn all_is_well_in_a_sentence() {
        assert_eq!(summary(&snapshot(), false), ("ok", "1 hierarchy with 1 volume: all is well".into()));
        let mut two = snapshot();
        two.hierarchies.push(cached().hierarchies.remove(0));
        let says = "2 hierarchies with 2 volumes: 1 degraded; the daemon is draining";
        assert_eq!(summary(&two, true), ("degraded", says.into()));
    }
}
