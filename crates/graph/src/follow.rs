//! Serving a hierarchy whose file describes another end of a change than its members carry.
//!
//! ```text
//!   the file: here, or there                      from the file: paths, keys, sockets of this host
//!                 ╲                                             ▼
//!   members:  A ───▶ A with B ───▶ B     ──▶   the hierarchy that the members carry
//! ```
//!
//! A change that exchanges all members leaves those of the file at `A with B`, for good: members that are let go are
//! not written any more. Therefore the members that a description names are looked at as well, and the members that
//! their descriptions name, until no new one is found. Only members of the same hierarchy count, by its UUID.
//!
//! Of the descriptions that the file led to, the one with the highest generation comes first. A description is *whole*
//! if all of its members carry it. A whole description has taken place: the first copies of all members are written
//! before anything stands on a change ([`superblock::write_all`]). So nothing older than a whole description is
//! followed, whether that description can be opened or not: acknowledged writes may be on its members alone. A
//! description that is not whole was interrupted, or some of its members are away; opening decides, as with any other
//! file. Two whole descriptions of one generation were changed apart from each other: neither is followed.
//!
//! Only reads. A member is flushed before its superblocks are believed ([`superblock::read`]), also a member outside
//! the followed hierarchy. Opening finds out whether all members of a proposed hierarchy are there and carry it, as
//! with any other file.

use crate::description::{members_of, written};
use crate::local;
use crate::members::{member_devices, open};
use crate::plan::Plan;
use crate::way::Way;
use lamina_block::{Env, Kind};
use lamina_metadata::member::records::{self, Trailer};
use lamina_metadata::superblock::{self, Superblock, Uuid};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use toml::de::{DeTable, DeValue};

/// A hierarchy that a file leads to.
pub(crate) struct Led {
    pub plan: Plan,
    /// The message about the choice.
    pub message: String,
}

/// A description that some of the members carry.
struct Carried {
    hierarchy: Uuid,
    generation: u64,
    text: String,
    trailer: Trailer,
    way: Way,
    /// The members that carry it.
    on: BTreeSet<String>,
}

impl Carried {
    /// True if all members that the description does not call evicted carry it.
    fn is_whole(&self, kinds: &[Kind]) -> bool {
        let has = |name: &String| self.on.contains(name) || self.trailer.evicted.contains_key(name);
        members_of(&self.text, kinds).iter().all(has)
    }

    /// True if `by` is whole and newer, or if both are whole, of one generation, and differ.
    fn is_over(&self, by: &Carried, kinds: &[Kind]) -> bool {
        let apart = || by.generation == self.generation && self.is_whole(kinds) && !std::ptr::eq(self, by);
        self.hierarchy == by.hierarchy && by.is_whole(kinds) && (by.generation > self.generation || apart())
    }

    /// The folder in which its relative paths begin.
    fn base<'a>(&'a self, file: &'a Plan) -> &'a Path {
        self.way.base.as_deref().map_or(&file.base, Path::new)
    }
}

/// The hierarchies that `file` leads to without describing them, as its members carry them, or other members
/// that these name; the latest first.
pub(crate) async fn led(file: &Plan, env: &Rc<dyn Env>) -> Vec<Led> {
    let Some(persistent) = &file.persistent else { return Vec::new() };
    let print = |text: &str| local::fingerprint(text, &file.kinds);
    let mine = print(&persistent.description);
    let carried = carried(file, env, &persistent.name).await;
    let is_end = |c: &&Carried| c.way.knows(&mine, &c.text, &file.kinds) || print(&c.text) == mine;
    let know: Vec<&Carried> = carried.iter().filter(is_end).collect();
    // Only the members that were written first know a change that was interrupted before it counted. It began from the
    // state that the others carry.
    let ends: BTreeSet<&String> = know.iter().flat_map(|c| &c.way.files).collect();
    let paths: BTreeMap<String, String> = know.iter().rev().flat_map(|c| c.way.paths.clone()).collect();
    let mut led = Vec::new();
    for one in &carried {
        let (own, knows) = (print(&one.text), one.way.knows(&mine, &one.text, &file.kinds));
        let is_over = carried.iter().any(|by| one.is_over(by, &file.kinds));
        if own == mine || is_over || !knows && !ends.contains(&own) {
            continue;
        }
        let from = one.base(file);
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
        true => {
            "a change from or to the state in this file was interrupted while data was moved: the state on \
                 the members is served, and the change goes on"
                .into()
        }
        false => format!(
            "describes an earlier state of the hierarchy: the state on the members is served. {}. `lamina assemble` \
             prints the file of that state",
            crate::description::difference(&agreed(ours), &agreed(&carried.text)).unwrap_or_default()
        ),
    }
}

/// The descriptions on the members of the file, and on those that these descriptions name, as far as the
/// members can be opened.
async fn carried(file: &Plan, env: &Rc<dyn Env>, name: &str) -> Vec<Carried> {
    let (mut carried, mut seen) = (Vec::new(), BTreeSet::new());
    look(file, env, &mut seen, &mut carried, &|copy| copy.hierarchy_name == name).await;
    let mut next = 0;
    while let Some(one) = carried.get(next) {
        let hierarchy = one.hierarchy;
        let plan = proposed(file, &one.text, one.base(file), &one.way.paths, one.way.clone());
        if let Some(plan) = plan {
            look(&plan, env, &mut seen, &mut carried, &|copy| copy.hierarchy == hierarchy).await;
        }
        next += 1;
    }
    carried.sort_by_key(|one| std::cmp::Reverse(one.generation));
    carried
}

/// Adds the descriptions on the members of `plan` that were not `seen` yet, as far as the copies are
/// `wanted`.
async fn look(
    plan: &Plan,
    env: &Rc<dyn Env>,
    seen: &mut BTreeSet<PathBuf>,
    carried: &mut Vec<Carried>,
    wanted: &dyn Fn(&Superblock) -> bool,
) {
    let paths = plan.members().into_iter().map(|member| (member.device, member.path));
    let new: BTreeSet<String> =
        paths.filter(|(_, path)| seen.insert(path.clone())).map(|(device, _)| device).collect();
    for device in member_devices(plan).into_iter().filter(|device| new.contains(&device.name)) {
        let Ok(node) = open(plan, device, env, false).await else { continue };
        let found = superblock::read(&node).await;
        // The member was only read: an error of closing it is not the news.
        let _ = node.close().await;
        for copy in found.whole().filter(|copy| wanted(copy)) {
            add(copy, carried);
        }
    }
}

/// Notes that a member carries a description.
fn add(copy: &Superblock, carried: &mut Vec<Carried>) {
    let Ok((text, trailer)) = records::split(&copy.description) else { return };
    let same = |one: &&mut Carried| {
        (one.hierarchy, one.generation) == (copy.hierarchy, copy.generation)
            && (&*one.text, &one.trailer) == (text, &trailer)
    };
    match carried.iter_mut().find(same) {
        Some(one) => drop(one.on.insert(copy.name.clone())),
        None => carried.push(Carried {
            hierarchy: copy.hierarchy,
            generation: copy.generation,
            text: text.to_owned(),
            way: Way::read(trailer.way.clone()),
            trailer,
            on: BTreeSet::from([copy.name.clone()]),
        }),
    }
}

/// The hierarchy of a description, whose relative paths begin in the folder `from`, with the file's paths, keys and
/// sockets. A member that the file does not have is where `paths` says.
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
