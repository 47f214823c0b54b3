//! What is served with a file that describes another end of a change than its members are at.
//!
//! ```text
//!   the file: here, or there                      from the file: paths, keys, sockets of this host
//!                 ╲                                             ▼
//!   members:  A ───▶ A with B ───▶ B     ──▶   the hierarchy that the members carry
//! ```
//!
//! Only reads. Whether all members of what is proposed are there, and carry it, is found out when it is opened, as with any
//! other file.

use crate::description::{members_of, written};
use crate::local;
use crate::members::{close_all, open_all};
use crate::plan::Plan;
use crate::report::Report;
use crate::way::Way;
use lamina_block::Env;
use lamina_metadata::member::records;
use lamina_metadata::superblock;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use toml::de::{DeTable, DeValue};

/// A hierarchy that a file leads to.
pub(crate) struct Led {
    pub plan: Plan,
    /// What is to be said of it.
    pub message: String,
}

/// A description that some of the members carry.
struct Carried {
    generation: u64,
    text: String,
    way: Way,
}

/// The hierarchies that members of `file` carry, and that it leads to without describing them; the latest first.
pub(crate) async fn led(file: &Plan, env: &Rc<dyn Env>) -> Vec<Led> {
    let Some(persistent) = &file.persistent else { return Vec::new() };
    let print = |text: &str| local::fingerprint(text, &file.kinds);
    let mine = print(&persistent.description);
    let carried = carried(file, env, &persistent.name).await;
    let is_end = |c: &&Carried| c.way.knows(&mine, &c.text, &file.kinds) || print(&c.text) == mine;
    let know: Vec<&Carried> = carried.iter().filter(is_end).collect();
    // A change that was interrupted before it counted is known to those only that it was written on first. It was on its
    // way from what the others carry.
    let ends: BTreeSet<&String> = know.iter().flat_map(|c| &c.way.files).collect();
    let paths: BTreeMap<String, String> = know.iter().rev().flat_map(|c| c.way.paths.clone()).collect();
    let mut led = Vec::new();
    for one in &carried {
        let (own, knows) = (print(&one.text), one.way.knows(&mine, &one.text, &file.kinds));
        if own == mine || !knows && !ends.contains(&own) {
            continue;
        }
        let from = one.way.base.as_deref().map_or(&*file.base, Path::new);
        let mut way = Way { base: Way::from(from).base, ..one.way.clone() };
        if !knows {
            way.files.push(mine.clone());
        }
        if let Some(plan) = proposed(file, &one.text, from, &paths, way) {
            led.push(Led { message: message(file, one), plan });
        }
    }
    led
}

fn message(file: &Plan, carried: &Carried) -> String {
    let ours = file.persistent.as_ref().map_or("", |persistent| &persistent.description);
    let agreed = |text: &str| local::agreed(text, &file.kinds);
    match carried.way.is_under_way() {
        true => "a change from or to what this file describes was interrupted while data was moved: what its members \
                 carry is served, and the change goes on"
            .into(),
        false => format!(
            "describes what it was before it was changed: what its members carry is served. {}. `lamina assemble` prints \
             the file that they carry",
            crate::description::difference(&agreed(ours), &agreed(&carried.text)).unwrap_or_default()
        ),
    }
}

/// What the members carry that the file has and that can be opened.
async fn carried(file: &Plan, env: &Rc<dyn Env>, name: &str) -> Vec<Carried> {
    let (nodes, _) = open_all(file, env, false).await;
    let mut carried: Vec<Carried> = Vec::new();
    for node in &nodes {
        let found = superblock::read(node).await;
        for copy in found.whole().filter(|copy| copy.hierarchy_name == name) {
            let Ok((text, kept)) = records::split(&copy.description) else { continue };
            let one =
                Carried { generation: copy.generation, text: text.to_owned(), way: Way::read(kept.way) };
            let same = |other: &Carried| (other.generation, &other.text) == (one.generation, &one.text);
            if !carried.iter().any(same) {
                carried.push(one);
            }
        }
    }
    // They were only read: what closing them says is not the news.
    close_all(&nodes, &mut Report::new(file.source.clone())).await;
    carried.sort_by_key(|one| std::cmp::Reverse(one.generation));
    carried
}

/// The hierarchy of a description, whose relative paths begin in the folder `from`, with the file's paths, keys and sockets.
/// A member that the file does not have is where `paths` says.
fn proposed(
    file: &Plan,
    description: &str,
    from: &Path,
    paths: &BTreeMap<String, String>,
    way: Way,
) -> Option<Plan> {
    let mut root = DeTable::parse(description).ok()?.into_inner();
    let mut own = DeTable::parse(&file.source.text).ok()?.into_inner();
    let members = members_of(description, &file.kinds);
    if *from != *file.base {
        local::tables(&mut own, "device")
            .into_values()
            .for_each(|device| local::root_device(device, &file.kinds, &file.base));
        local::tables(&mut own, "export")
            .into_values()
            .for_each(|export| local::root_export(export, &file.base));
    }
    let devices = local::tables(&mut own, "device");
    for (name, device) in local::tables(&mut root, "device") {
        let of = |table: &DeTable<'_>, key: &str| table.get(key)?.get_ref().as_str().map(str::to_owned);
        let same = devices.get(&name).filter(|own| of(own, "type") == of(device, "type"));
        same.into_iter().for_each(|own| local::take_over(device, own, &file.kinds));
        if members.contains(&name) {
            let path = same.and_then(|own| of(own, "path")).or_else(|| paths.get(&name).cloned());
            let path = path.unwrap_or_else(|| format!("missing-{name}"));
            local::set(device, "path", DeValue::String(path.into()));
        }
    }
    drop(devices);
    let exports = local::tables(&mut own, "export");
    for (name, export) in local::tables(&mut root, "export") {
        if let (Some(own), Some(device)) = (exports.get(&name), export.get("device").cloned()) {
            *export = (**own).clone();
            local::set(export, "device", device.into_inner());
        }
    }
    let name = format!("{} (as its members carry it)", file.file());
    let mut plan = Plan::parse(&written(&root), &name, from, &file.kinds).ok()?;
    plan.persistent.as_mut()?.way = way;
    Some(plan)
}
