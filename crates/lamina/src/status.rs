//! `lamina status`: is everything well? A line for each hierarchy, and an exit code for monitoring.
//!
//! Layers report their problems themselves: their *alerts*. An alert called `stopped` means that requests fail; any
//! other that a part is missing without which the layer can work for now. Beside these count devices that are absent,
//! members that are evicted, and exported devices whose requests fail because something below cannot be reached: not
//! every layer notices the loss of a device below.

use crate::api::{Device, Hierarchy, Snapshot};
use crate::cli;
use crate::colour::{BAD, DOUBTFUL, GOOD, painted};
use crate::control::Client;
use crate::exit::Failure;
use lamina_block::Absent;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// An alert of a layer whose requests fail.
const STOPPED: &str = "stopped";

/// The alert of an exported device whose requests fail because something could not be reached.
const UNREACHABLE: &str = "unreachable";

/// How well something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Everything is there.
    Ok,
    /// Everything is served, and something is missing or wrong.
    Degraded,
    /// Something that is exported is not there, or its requests fail.
    Failed,
}

impl State {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Degraded => "degraded",
            State::Failed => "failed",
        }
    }

    /// The exit code of `lamina status`. 1 and 2 are those of every command that cannot do what it was asked.
    fn exit_code(self) -> u8 {
        match self {
            State::Ok => 0,
            State::Degraded => 3,
            State::Failed => 4,
        }
    }
}

/// A hierarchy and its problems.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Status {
    /// The file of the hierarchy.
    pub file: String,
    /// How well it is.
    pub state: State,
    /// The alerts that need attention, as `DEVICE: ALERT`.
    pub alerts: Vec<String>,
}

impl Status {
    /// Of one hierarchy.
    pub fn of(hierarchy: &Hierarchy) -> Status {
        let mut state = State::Ok;
        let mut on = Vec::new();
        for device in &hierarchy.devices {
            for (alert, _) in alerts(hierarchy, device).filter(|(_, is_on)| *is_on) {
                let stops = stops(hierarchy, device, alert);
                state = state.max(if stops { State::Failed } else { State::Degraded });
                on.push(format!("{}: {}", device.name, alert.replace('_', " ")));
            }
        }
        Status { file: hierarchy.file.clone(), state, alerts: on }
    }

    /// With colours.
    fn line(&self) -> String {
        let alerts = if self.alerts.is_empty() { "" } else { ": " };
        let style = match self.state {
            State::Ok => GOOD,
            State::Degraded => DOUBTFUL,
            State::Failed => BAD,
        };
        let state = painted(style, self.state.name());
        format!("{}: {state}{alerts}{}", self.file, self.alerts.join(", "))
    }
}

fn is_exported(hierarchy: &Hierarchy, device: &Device) -> bool {
    hierarchy.exports.iter().any(|export| export.device == device.name)
}

/// True if requests of clients fail while an alert of a device is on.
pub fn stops(hierarchy: &Hierarchy, device: &Device, alert: &str) -> bool {
    match alert {
        STOPPED | UNREACHABLE => true,
        _ => alert == Absent::KIND && is_exported(hierarchy, device),
    }
}

/// The alerts of a device, and whether each is active: those of its layer, and those of every device.
pub fn alerts<'a>(hierarchy: &Hierarchy, device: &'a Device) -> impl Iterator<Item = (&'a str, bool)> {
    let own = device.info["alerts"].as_object().into_iter().flatten();
    let own = own.map(|(alert, is_on)| (alert.as_str(), *is_on == Value::Bool(true)));
    let is_member = !device.info["member"].is_null();
    let evicted = is_member.then_some(("evicted", !device.info["member"]["evicted_after"].is_null()));
    let reached = is_exported(hierarchy, device).then_some((UNREACHABLE, device.unreachable));
    own.chain([(Absent::KIND, device.kind == Absent::KIND)]).chain(evicted).chain(reached)
}

/// Runs `lamina status`.
pub fn run(args: &cli::Status) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let snapshot: Snapshot = client.get("/v1/hierarchy")?;
    let all: Vec<Status> = snapshot.hierarchies.iter().map(Status::of).collect();
    let mut out = anstream::stdout().lock();
    if args.json {
        let text = serde_json::to_string_pretty(&all).map_err(Failure::failed)?;
        writeln!(out, "{text}")?;
    } else {
        all.iter().try_for_each(|status| writeln!(out, "{}", status.line()))?;
    }
    match all.iter().map(|status| status.state).max().unwrap_or(State::Ok) {
        State::Ok => Ok(()),
        state => Err(Failure::State(state.exit_code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::{cached, snapshot};
    use serde_json::json;

    fn plain(status: &Status) -> String {
        anstream::adapter::strip_str(&status.line()).to_string()
    }

    #[test]
    fn a_hierarchy_without_alerts_is_ok() {
        let status = Status::of(&snapshot().hierarchies[0]);
        assert_eq!((status.state, plain(&status).as_str()), (State::Ok, "vm.toml: ok"));
    }

    #[test]
    fn what_can_be_done_without_is_degraded_and_what_is_exported_is_not() {
        let status = Status::of(&cached().hierarchies[0]);
        assert_eq!(plain(&status), "vm.toml: degraded: cache: stalled");
        for (name, info, says) in [
            ("a", json!({ "absent": "there is no a.img" }), "vm.toml: degraded: a: absent"),
            ("vm1", json!({ "absent": "there is no a.img" }), "vm.toml: failed: vm1: absent"),
            ("a", json!({ "member": { "evicted_after": 7 } }), "vm.toml: degraded: a: evicted"),
            ("a", json!({ "member": { "evicted_after": null } }), "vm.toml: ok"),
            (
                "vm1",
                json!({ "alerts": { "degraded": true, "stopped": false } }),
                "vm.toml: degraded: vm1: degraded",
            ),
            ("vm1", json!({ "alerts": { "nearly_full": true } }), "vm.toml: degraded: vm1: nearly full"),
            ("vm1", json!({ "alerts": { "stopped": true } }), "vm.toml: failed: vm1: stopped"),
        ] {
            let mut hierarchy = snapshot().hierarchies.remove(0);
            let device = hierarchy.devices.iter_mut().find(|device| device.name == name).expect("a device");
            if info["absent"].is_string() {
                device.kind = Absent::KIND.into();
            }
            device.info = info;
            assert_eq!(plain(&Status::of(&hierarchy)), says);
        }
    }

    #[test]
    fn an_export_that_nothing_can_be_had_from_has_failed() {
        let mut hierarchy = snapshot().hierarchies.remove(0);
        let mut unreachable = |name: &str, is| {
            let device = hierarchy.devices.iter_mut().find(|device| device.name == name).expect("a device");
            device.unreachable = is;
            plain(&Status::of(&hierarchy))
        };
        // The device above may work without it, and reports that.
        assert_eq!(unreachable("a", true), "vm.toml: ok");
        assert_eq!(unreachable("vm1", true), "vm.toml: failed: vm1: unreachable");
        assert_eq!(unreachable("vm1", false), "vm.toml: ok");
    }
}
