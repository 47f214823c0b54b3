//! `lamina apply`: which running hierarchy each part of a file is about.
//!
//! A part of the file is about the hierarchy that has one of its devices. All parts are checked before any is changed;
//! each is then changed in one piece, and a part that fails leaves those before it changed: the message tells.
//!
//! Not done here: hierarchies that are served and not in the file, and new ones that share no device with any: they
//! need a restart of the daemon.

use super::core_thread::{Ended, Handle};
use crate::api::{Applied, Apply, Snapshot};
use crate::create::{self, Before};
use crate::files;
use crate::look;
use crate::verbs::Denied;
use lamina_block::{Error, Result};
use lamina_graph::{MemberPlan, Plan};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// A part of the file, the core it is about, and one device that both have.
struct Part {
    core: usize,
    device: String,
    plan: Plan,
}

/// Makes the hierarchies of a file what it says.
pub async fn apply(cores: &[Handle], now: &Snapshot, apply: &Apply) -> std::result::Result<Applied, Denied> {
    let plan = load(Path::new(&apply.file)).await?;
    let parts = parts(now, plan)?;
    let mut applied = Applied { steps: Vec::new(), warnings: Vec::new(), outdated: Vec::new() };
    let (mut changes, mut all) = (Vec::new(), Vec::new());
    for part in parts {
        all.push((part.core, part.device.clone()));
        let (device, plan) = (part.device.clone(), part.plan.clone());
        let steps = cores[part.core].ask(move |core| core.steps(device, plan)).await;
        let steps = answered(steps)?;
        let (device, plan) = (part.device.clone(), part.plan.clone());
        let members = answered(cores[part.core].ask(move |core| core.new_members(device, plan)).await)?;
        let (device, plan, sizes) = (part.device.clone(), part.plan.clone(), sizes(&members));
        answered(cores[part.core].ask(move |core| core.fits(device, plan, sizes)).await)?;
        if !apply.force {
            let (device, plan) = (part.device.clone(), part.plan.clone());
            let elsewhere = answered(cores[part.core].ask(move |core| core.overwritten(device, plan)).await)?;
            create::refuse_overwriting(members, elsewhere)?;
        }
        if !steps.is_empty() {
            applied.steps.extend(steps);
            changes.push(part);
        }
    }
    if apply.plan {
        return Ok(applied);
    }
    for (done, Part { core, device, plan }) in changes.into_iter().enumerate() {
        let warnings = change(&cores[core], device, plan).await.map_err(|e| match done {
            0 => e,
            done => Error::new(e.kind(), format!("{done} hierarchies were changed before this: {e}")),
        })?;
        applied.warnings.extend(warnings);
    }
    for (core, device) in all {
        if let Some(file) = outdated(&cores[core], &device).await? {
            applied.outdated.push(file);
        }
    }
    applied.outdated.dedup();
    Ok(applied)
}

/// Changes the hierarchy that has `device`. After a failure a device that has not become a member gets its old contents
/// back: its superblocks may have been written before the change was rolled back.
async fn change(core: &Handle, device: String, plan: Plan) -> Result<Vec<String>> {
    let of = (device.clone(), plan.clone());
    let new = async || {
        let (device, plan) = of.clone();
        answered(core.ask(move |core| core.new_members(device, plan)).await)
    };
    let joining = new().await?;
    let before =
        on_a_thread(move || joining.into_iter().map(|member| (before(&member), member)).collect()).await;
    let before: Vec<(Option<Before>, MemberPlan)> = before?;
    let changed = answered(core.ask(move |core| core.change(device, plan)).await);
    if changed.is_err() {
        let outside = new().await.unwrap_or_default();
        let is_outside = |member: &MemberPlan| outside.iter().any(|other| other.device == member.device);
        let taken_back = before.into_iter().filter(|(_, member)| is_outside(member));
        let taken_back: Vec<Before> = taken_back.filter_map(|(before, _)| before).collect();
        on_a_thread(move || taken_back.into_iter().for_each(Before::restore)).await?;
    }
    changed
}

/// The device of a new member as it is; `None` if it cannot be read, which the change then reports.
fn before(member: &MemberPlan) -> Option<Before> {
    let size = match look::Device::open(&member.path) {
        Ok(there) => Some(there?.size),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(_) => return None,
    };
    Before::of(&member.path, size).ok()
}

/// Disks are asked on a thread of its own: they may not answer.
async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::offline(format!("a thread has ended: {e}")))
}

/// How large new members are, or would be made.
fn sizes(members: &[MemberPlan]) -> BTreeMap<String, u64> {
    let size = |member: &MemberPlan| match look::Device::open(&member.path) {
        Ok(there) => Some(there?.size),
        Err(_) => member.size,
    };
    members.iter().filter_map(|member| Some((member.device.clone(), size(member)?))).collect()
}

/// The file that the daemon was started with for the hierarchy that has `device`, if that file does not describe the
/// served hierarchy.
async fn outdated(core: &Handle, device: &str) -> Result<Option<String>> {
    let name = device.to_owned();
    let started = core.ask(move |core| core.started(name)).await.unwrap_or_default();
    let Some(file) = started else { return Ok(None) };
    let outdated = Ok(Some(file.display().to_string()));
    let Ok(plan) = load(&file).await else { return outdated };
    let has = |plan: &Plan| plan.persistent().is_some() || plan.devices().iter().any(|d| d.name == device);
    let Some(plan) = plan.components().into_iter().find(has) else { return outdated };
    let name = device.to_owned();
    let confirmed = core.ask(move |core| core.confirm(name, plan)).await;
    if answered(confirmed)? { Ok(None) } else { outdated }
}

/// Goes on with the changes on whose way hierarchies were opened. They are as `lamina apply` began them.
pub async fn go_on(cores: &[Handle]) {
    for core in cores {
        for (device, plan) in core.ask(|core| core.unfinished()).await.unwrap_or_default() {
            let file = plan.file().to_owned();
            tracing::info!(file, device, "an interrupted change goes on");
            let name = device.clone();
            let changed = answered(core.ask(move |core| core.change(name, plan)).await);
            let confirmed = match changed {
                Ok(warnings) => {
                    warnings.iter().for_each(|warning| tracing::warn!(file, "{warning}"));
                    tracing::info!(file, device, "the change that was interrupted is done");
                    outdated(core, &device).await.map(drop)
                }
                Err(e) => Err(e),
            };
            if let Err(e) = confirmed {
                tracing::error!(file, device, error = %e, "the change that was interrupted stops; `lamina apply` leads \
                                                           on");
            }
        }
    }
}

/// How long a file may take to be read.
const READING: Duration = Duration::from_secs(2);

/// Reads a file on a thread of its own: its file system may not answer.
async fn load(file: &Path) -> Result<Plan> {
    let path = file.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        files::regular(&path).map_err(Error::invalid)?;
        Plan::load(&path, &files::kinds()).map_err(|e| Error::invalid(e.to_string()))
    });
    match tokio::time::timeout(READING, reading).await {
        Ok(read) => {
            read.unwrap_or_else(|e| Err(Error::offline(format!("{} was not read: {e}", file.display()))))
        }
        Err(_) => {
            Err(Error::offline(format!("{} could not be read in {} s", file.display(), READING.as_secs())))
        }
    }
}

fn answered<T>(answer: std::result::Result<Result<T>, Ended>) -> Result<T> {
    answer.unwrap_or_else(|Ended| Err(Error::offline("a core has ended; the log says why")))
}

/// The parts of a file, each with its served hierarchy.
fn parts(now: &Snapshot, plan: Plan) -> Result<Vec<Part>> {
    let file = plan.file().to_owned();
    let refuse = |what: String| Err(Error::invalid(format!("{file}: {what}")));
    let (mut parts, mut met) = (Vec::new(), vec![false; now.hierarchies.len()]);
    for plan in plan.components() {
        let mut about = None;
        for device in plan.devices() {
            let has = |h: &crate::api::Hierarchy| h.devices.iter().any(|d| d.name == device.name);
            let Some(at) = now.hierarchies.iter().position(has) else { continue };
            match &about {
                None => about = Some((at, device.name.clone())),
                Some((first, other)) if *first != at => {
                    return refuse(format!(
                        "devices {other:?} and {:?} are served apart, and would become one hierarchy: restart the \
                         daemon with this file",
                        device.name
                    ));
                }
                Some(_) => {}
            }
        }
        let Some((at, device)) = about else {
            let name = plan.devices().first().map_or("", |d| &d.name);
            return refuse(format!(
                "device {name:?} has nothing in common with the served hierarchies: restart the daemon with this file"
            ));
        };
        if std::mem::replace(&mut met[at], true) {
            return refuse(format!(
                "the hierarchy of device {device:?} would fall apart: restart the daemon with this file"
            ));
        }
        parts.push(Part { core: now.hierarchies[at].core, device, plan });
    }
    let same_file = |other: &str| std::path::absolute(other).is_ok_and(|other| other == Path::new(&file));
    let gone = now.hierarchies.iter().zip(&met).find(|(h, met)| !**met && same_file(&h.file));
    if let Some((hierarchy, _)) = gone {
        let name = hierarchy.devices.first().map_or("", |d| &d.name);
        return refuse(format!(
            "device {name:?} is served from this file, and no longer in it: restart the daemon"
        ));
    }
    Ok(parts)
}
