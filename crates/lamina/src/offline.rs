//! `lamina check --metadata` and `lamina repair`: the contents of the members of a hierarchy that is not served.
//!
//! A check opens the hierarchy as a daemon would, in a world whose disks [forget](crate::overlay) all writes, reads
//! everything in the metadata stores of layers, and lets every layer verify it. Nothing on the disks is changed, so
//! that a check can be the first step after an accident. Devices over one that cannot be opened are left out, and the
//! rest is checked.
//!
//! A repair rewrites a damaged superblock from its other copy, and metadata that follows from other metadata, such as
//! the extents in use. The open of a store repairs the pages that its log still has; where one of two copies of a page
//! is lost, nothing on disk tells whether it was the newer one, so a repair reports that, and does not guess. If there
//! is nothing that can be repaired, nothing is written.

use crate::cli;
use crate::exit::Failure;
use crate::files;
use crate::look::Device;
use crate::overlay::{self, Data, Overlaid};
use lamina_block::{Class, Env, Error, Finding, Node, OpenDisk};
use lamina_graph::{Hierarchy, Plan};
use lamina_host::{Asker, Options, Reactor, holders};
use lamina_metadata::check::{Checked, check};
use lamina_metadata::member::{Candidate, judge, repair_copies};
use lamina_metadata::superblock;
use std::fmt::Write as _;
use std::io::Write;
use std::path::Path;
use std::rc::Rc;

/// The most places of damage of one store that are printed.
const SHOWN_MAX: usize = 20;

/// All findings, and the number of problems among them.
#[derive(Default)]
struct Findings {
    text: String,
    wrong: u64,
    /// Problems that layers can repair.
    repairable: u64,
}

impl Findings {
    fn good(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn bad(&mut self, line: &str) {
        self.wrong += 1;
        let _ = writeln!(self.text, "DAMAGED  {line}");
    }

    /// The findings of a layer.
    fn layer(&mut self, device: &str, finding: &Finding) {
        let line = format!("device {device:?}: {finding}");
        match finding.class {
            Class::Good => self.good(&line),
            Class::Repaired => self.good(&format!("REPAIRED {line}")),
            Class::Leak => {
                self.repairable += 1;
                self.good(&format!("UNUSED   {line}"));
            }
            Class::Repairable => {
                self.repairable += 1;
                self.bad(&line);
            }
            Class::Lost => {
                self.wrong += 1;
                self.good(&format!("LOST     {line}"));
            }
        }
    }
}

/// Runs `lamina check --metadata`.
pub fn run_check(files: &[std::path::PathBuf]) -> Result<(), Failure> {
    let plans = files::load_with(files, &overlay::kinds(Data::Open))?;
    let reactor = reactor()?;
    let mut wrong = 0;
    for (plan, file) in plans.into_iter().zip(files) {
        refuse_in_use(&plan)?;
        let found = examine(&reactor, plan)?;
        wrong += found.wrong;
        write!(std::io::stdout(), "{}", found.text)?;
        if found.wrong > 0 {
            let file = file.display();
            writeln!(
                std::io::stdout(),
                "`lamina repair {file}` repairs damage for which intact metadata is left"
            )?;
        }
    }
    match wrong {
        0 => Ok(()),
        1 => Err(Failure::failed("1 damage was found")),
        n => Err(Failure::failed(format!("{n} damages were found"))),
    }
}

/// Runs `lamina repair`.
pub fn run_repair(args: &cli::Repair) -> Result<(), Failure> {
    let plan = files::load(std::slice::from_ref(&args.file))?.remove(0);
    refuse_in_use(&plan)?;
    let reactor = reactor()?;
    let mut repaired = reactor.run(repair(reactor.env(), plan.clone()))?;
    let look = || {
        let plan = Plan::load(&args.file, &overlay::kinds(Data::Open))
            .map_err(|e| Failure::File(files::shown(&e)))?;
        examine(&reactor, plan)
    };
    let mut found = look()?;
    if found.repairable > 0 {
        repaired.push_str(&reactor.run(repair_layers(reactor.env(), plan)));
        found = look()?;
    }
    write!(std::io::stdout(), "{repaired}{}", found.text)?;
    match found.wrong {
        0 => Ok(()),
        _ => Err(Failure::failed(
            "the remaining damage has no second copy, or nothing tells which copy is right: restore the data of the \
             named device from a backup",
        )),
    }
}

/// A hierarchy that a daemon serves is between two states, which is no damage. As for `serve`, its devices cannot be
/// opened.
fn refuse_in_use(plan: &Plan) -> Result<(), Failure> {
    for member in plan.members() {
        let Ok(Some(there)) = Device::open(&member.path) else { continue };
        let holders = holders::of(&there.meta);
        if let Some(holder) = holders.first() {
            let (device, path) = (&member.device, member.path.display());
            return Err(Failure::usage(format!(
                "{}: member {device:?} ({path}) is in use: {holder}. Nothing was checked: `lamina show` shows a served \
                 hierarchy, and a check is possible after its daemon has stopped",
                plan.file()
            )));
        }
    }
    Ok(())
}

fn reactor() -> Result<Reactor, Failure> {
    let options = Options { asker: Some(Asker::at_terminal()), ..Options::default() };
    Reactor::new(options).map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))
}

fn examine(reactor: &Reactor, plan: Plan) -> Result<Findings, Failure> {
    let mut found = Findings::default();
    superblocks(&plan, &mut found)?;
    reactor.run(look(Overlaid::over(reactor.env(), Data::Open), plan, &mut found));
    Ok(found)
}

/// Looks at both superblocks of every member.
fn superblocks(plan: &Plan, found: &mut Findings) -> Result<(), Failure> {
    if plan.persistent().is_none() {
        return Err(Failure::usage(format!("{}: there is no [hierarchy], so nothing is kept", plan.file())));
    }
    for member in plan.members() {
        let (device, path) = (&member.device, member.path.display());
        match Device::open(&member.path) {
            Ok(Some(there)) => {
                let copies = there.superblocks();
                match (copies.half(), copies.newest()) {
                    (Some((place, damage)), _) => {
                        found.bad(&format!("member {device:?} ({path}): {place} of its superblock {damage}"));
                    }
                    (None, Some(good)) => {
                        let generation = good.generation;
                        found.good(&format!(
                            "member {device:?} ({path}): superblocks good, generation {generation}"
                        ));
                    }
                    // The open tells why the device cannot be used.
                    (None, None) => {}
                }
            }
            Ok(None) => found.bad(&format!("member {device:?}: {path} is neither a file nor a block device")),
            // The open of the hierarchy tells whether the member is needed.
            Err(e) => found.good(&format!("member {device:?}: {path}: {e}")),
        }
    }
    Ok(())
}

/// Opens as much of the hierarchy as it can, asks its layers, and looks at all metadata stores.
async fn look(env: Rc<dyn Env>, plan: Plan, found: &mut Findings) {
    let (hierarchy, report) = Hierarchy::build_partly(plan.clone(), env).await;
    if report.has_errors() {
        for line in report.to_string().lines() {
            found.bad(line);
        }
        let missing = plan.devices().iter().filter(|device| hierarchy.node(&device.name).is_none());
        let names: Vec<String> = missing.map(|device| format!("{:?}", device.name)).collect();
        found.good(&format!("not opened, so that only the devices below are checked: {}", names.join(", ")));
    }
    for node in hierarchy.nodes() {
        match node.check(false).await {
            Ok(findings) => findings.iter().for_each(|finding| found.layer(node.name(), finding)),
            Err(e) => found.bad(&format!("device {:?} cannot be checked: {e}", node.name())),
        }
    }
    for device in plan.devices().iter().filter(|device| device.kind.traits.store) {
        // A separate store lies on the last device, a store at the head on the only one.
        let Some(node) = device.over.last().and_then(|name| hierarchy.node(name)) else { continue };
        store(&device.name, &node, found).await;
    }
    if let Err(e) = hierarchy.close().await {
        found.bad(&format!("closing the opened devices: {e}"));
    }
}

async fn store(device: &str, node: &Rc<Node>, found: &mut Findings) {
    let on = node.name();
    match check(node).await {
        Err(e) => found.bad(&format!("metadata of {device:?} on {on:?}: {e}")),
        Ok(Checked { level, objects, pages, damage, damaged, half_written }) => {
            let mut what = format!("{objects} objects in {pages} pages, level {}", level.name());
            if half_written > 0 {
                let _ = write!(what, "; of {half_written}, one of the two copies was left half-written");
            }
            if damaged == 0 {
                return found.good(&format!("metadata of {device:?} on {on:?}: good, {what}"));
            }
            for place in damage.iter().take(SHOWN_MAX) {
                found.bad(&format!("metadata of {device:?} on {on:?}: {place}"));
            }
            let more = damaged.saturating_sub(SHOWN_MAX as u64);
            if more > 0 {
                found.wrong += more;
                found.good(&format!("metadata of {device:?} on {on:?}: and {more} more places"));
            }
        }
    }
}

/// Lets the layers repair their metadata, from the bottom up; returns their reports.
async fn repair_layers(env: Rc<dyn Env>, plan: Plan) -> String {
    let mut done = Findings::default();
    // The second check reports devices that cannot be opened.
    let (hierarchy, _) = Hierarchy::build_partly(plan, env).await;
    for node in hierarchy.nodes() {
        match node.check(true).await {
            Ok(findings) => {
                let repaired = findings.iter().filter(|finding| finding.class == Class::Repaired);
                repaired.for_each(|finding| done.layer(node.name(), finding));
            }
            Err(e) => done.bad(&format!("device {:?} cannot be repaired: {e}", node.name())),
        }
    }
    if let Err(e) = hierarchy.close().await {
        done.bad(&format!("closing the repaired devices: {e}"));
    }
    done.text
}

/// Writes superblocks again that are there once.
async fn repair(env: Rc<dyn Env>, plan: Plan) -> Result<String, Failure> {
    let Some(persistent) = plan.persistent() else {
        return Err(Failure::usage(format!("{}: there is no [hierarchy] to repair", plan.file())));
    };
    let (mut nodes, mut candidates, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for member in plan.members() {
        match open(&env, &member.device, &member.path).await {
            Ok(node) => {
                candidates.push(Candidate::new(member.device, superblock::read(&node).await));
                nodes.push(node);
            }
            Err(e) => missing.push((member.device, e)),
        }
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    plan.mark_cut(&persistent.name, &mut candidates, &names, false);
    let served: Vec<String> = candidates.iter().filter(|c| c.anew).map(|c| c.device.clone()).collect();
    // The state that a mirror or parity has of its legs would be wrong for a leg that has lost data.
    let is_alone = |c: &&mut Candidate| !plan.is_below_copies(&c.device);
    candidates.iter_mut().filter(is_alone).for_each(|c| c.anew = true);
    let repaired = repair_superblocks(&persistent.name, &nodes, &candidates, &missing, &served).await;
    for node in &nodes {
        node.close().await.map_err(|e| Failure::failed(e.to_string()))?;
    }
    repaired
}

async fn open(env: &Rc<dyn Env>, name: &str, path: &Path) -> Result<Rc<Node>, Error> {
    let open = OpenDisk { path: path.into(), read_only: false, direct: false, create: None, block: None };
    Ok(Node::new(name, "disk", Rc::clone(env), env.open_disk(open).await?))
}

/// Repairs the superblocks of all members in use; evicted members are stale, and truncated members, which are resynced
/// when they are `served`, must not be taken for whole.
async fn repair_superblocks(
    name: &str,
    nodes: &[Rc<Node>],
    candidates: &[Candidate],
    missing: &[(String, Error)],
    served: &[String],
) -> Result<String, Failure> {
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    let assembly = judge(name, candidates, &names, false).map_err(|refusals| {
        let line = |refusal: &lamina_metadata::member::Refusal| match &refusal.device {
            Some(device) => match missing.iter().find(|(name, _)| name == device) {
                Some((_, e)) => format!("device {device:?}: {e}"),
                None => format!("device {device:?} {}", refusal.message),
            },
            None => refusal.message.clone(),
        };
        let lines: Vec<String> = refusals.iter().map(line).collect();
        Failure::failed(format!("nothing was written: {}", lines.join("\n")))
    })?;
    let mut out = String::new();
    for (node, candidate) in nodes.iter().zip(candidates) {
        let chosen = assembly.members.iter().find(|chosen| chosen.name == candidate.device);
        let Some(chosen) = chosen else { continue };
        if candidate.is_cut() && served.contains(&candidate.device) {
            let _ = writeln!(
                out,
                "DAMAGED  member {:?}: its end is gone; `lamina serve` resyncs the member from the others",
                candidate.device
            );
            continue;
        }
        repair_copies(node, &candidate.found, chosen).await.map_err(|e| Failure::failed(e.to_string()))?;
        if let Some((place, damage)) = candidate.found.half() {
            let _ =
                writeln!(out, "REPAIRED member {:?}: {place} of its superblock {damage}", candidate.device);
        }
    }
    Ok(out)
}
