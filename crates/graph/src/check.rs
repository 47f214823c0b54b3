//! Checks of the devices and exports of a file together.

use crate::device::{Device, Draft};
use crate::export::Export;
use crate::keys;
use crate::plan::DEPTH_MAX;
use crate::report::{Report, Subject, quoted};
use crate::source::Source;
use lamina_block::{Address, Kind, Over};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

/// Checks the graph, and returns the devices bottom-up (their numbers), as far as they are free of cycles. Devices
/// that do not depend on each other keep the order of the file.
pub(crate) fn devices(drafts: &[Draft], report: &mut Report) -> Vec<usize> {
    let by_name: HashMap<&str, usize> = drafts.iter().enumerate().map(|(i, d)| (&*d.name, i)).collect();
    let below: Vec<Vec<usize>> = drafts.iter().map(|d| children(d, drafts, &by_name, report)).collect();
    let order = bottom_up(&below);
    if order.len() < drafts.len() {
        cycles(drafts, &below, &order, report);
    }
    too_deep(drafts, &below, &order, report);
    order
}

/// Asks every kind whether its keys fit each other and what stands below, as far as a check without opening devices can
/// tell; and warns of parts that overlap.
pub(crate) fn layers(drafts: &[Draft], persistent: bool, source: &Source, report: &mut Report) {
    let by_name: HashMap<&str, &Draft> = drafts.iter().map(|d| (&*d.name, d)).collect();
    let mut parts: BTreeMap<&str, Vec<(&Draft, Range<u64>)>> = BTreeMap::new();
    for draft in drafts {
        let Some(kind) = &draft.kind else { continue };
        let Ok(keys) = kind.parse(&draft.keys) else { continue };
        let over = &draft.over[..draft.over.len() - usize::from(draft.has_metadata)];
        let below = over.iter().map(|name| by_name.get(name.as_str()).and_then(|below| below.kind.as_ref()));
        // A device below that is unknown, or too many of them, is a mistake of its own.
        let Some(kinds) = below.collect::<Option<Vec<_>>>() else { continue };
        if !kind.children.contains(&kinds.len()) {
            continue;
        }
        let deeper = deeper(over, &by_name);
        let over = Over { kinds: &kinds, deeper: &deeper, metadata: draft.has_metadata, persistent };
        if let Err(e) = keys.check(&over) {
            let (key, message) = keys::of_message(kind, e.message());
            let at = key.and_then(|key| keys::place(source, &draft.name, key));
            let subject = Subject::Device(draft.name.clone());
            report.error(subject, key, Some(at.unwrap_or(draft.header.clone())), message);
        }
        if let (Some(part), Some(below)) = (keys.part(), draft.over.first()) {
            parts.entry(below).or_default().push((draft, part));
        }
    }
    for (below, parts) in parts {
        overlapping(below, parts, report);
    }
}

/// Warns of parts of one device that have bytes in common.
fn overlapping(below: &str, mut parts: Vec<(&Draft, Range<u64>)>, report: &mut Report) {
    parts.sort_by_key(|(draft, part)| (part.start, draft.header.start));
    let mut widest: Option<(&Draft, u64)> = None;
    for (draft, part) in parts {
        if let Some((other, _)) = widest.filter(|(_, end)| part.start < *end) {
            let message = format!(
                "has bytes of {} in common with device {}: a write to one of them changes the other",
                quoted(below),
                quoted(&other.name)
            );
            let subject = Subject::Device(draft.name.clone());
            report.warning(subject, None, Some(draft.header.clone()), &message);
        }
        widest = widest.filter(|(_, end)| *end >= part.end).or(Some((draft, part.end)));
    }
}

/// The kinds of what is below the devices `over`, without these, as far as they are known. The graph has no cycle that
/// could be followed for ever: each name is looked at once.
fn deeper<'a>(over: &'a [String], by_name: &HashMap<&str, &'a Draft>) -> Vec<&'a Kind> {
    let below = |name: &str| by_name.get(name).map(|draft| &draft.over[..]).unwrap_or_default();
    let mut left: Vec<&String> = over.iter().flat_map(|name| below(name)).collect();
    let (mut seen, mut kinds) = (HashSet::new(), Vec::new());
    while let Some(name) = left.pop() {
        if seen.insert(name) {
            kinds.extend(by_name.get(name.as_str()).and_then(|draft| draft.kind.as_ref()));
            left.extend(below(name));
        }
    }
    kinds
}

/// The numbers of the devices below each device; a name that does not exist is reported.
fn children(draft: &Draft, all: &[Draft], by_name: &HashMap<&str, usize>, report: &mut Report) -> Vec<usize> {
    let mut below = Vec::new();
    for (name, at) in draft.over.iter().zip(&draft.over_at) {
        match by_name.get(name.as_str()) {
            Some(child) => below.push(*child),
            None => {
                let others = all.iter().map(|d| d.name.as_str()).filter(|n| *n != draft.name);
                let message = format!("there is no device {}{}", quoted(name), report.hint(name, others));
                let subject = Subject::Device(draft.name.clone());
                let is_metadata = draft.has_metadata && Some(at) == draft.over_at.last();
                let key = if is_metadata { "metadata" } else { "over" };
                report.error(subject, Some(key), Some(at.clone()), &message);
            }
        }
    }
    below
}

/// The devices bottom-up; devices on or above a cycle are left out.
fn bottom_up(below: &[Vec<usize>]) -> Vec<usize> {
    let mut above: Vec<Vec<usize>> = vec![Vec::new(); below.len()];
    let mut waits_for: Vec<usize> = below.iter().map(Vec::len).collect();
    for (device, children) in below.iter().enumerate() {
        children.iter().for_each(|child| above[*child].push(device));
    }
    let mut ready: std::collections::BTreeSet<usize> =
        (0..below.len()).filter(|d| waits_for[*d] == 0).collect();
    let mut order = Vec::with_capacity(below.len());
    while let Some(device) = ready.pop_first() {
        order.push(device);
        for parent in &above[device] {
            waits_for[*parent] -= 1;
            if waits_for[*parent] == 0 {
                ready.insert(*parent);
            }
        }
    }
    order
}

/// Names the cycles. A device that is not in `order` stands on another such device; following one leads into a cycle.
fn cycles(drafts: &[Draft], below: &[Vec<usize>], order: &[usize], report: &mut Report) {
    let mut walked: Vec<Option<usize>> = vec![None; drafts.len()];
    order.iter().for_each(|d| walked[*d] = Some(usize::MAX));
    for start in 0..drafts.len() {
        let mut path = Vec::new();
        let mut device = start;
        while walked[device].is_none() {
            walked[device] = Some(start);
            path.push(device);
            let stuck = |child: &&usize| walked[**child] != Some(usize::MAX);
            device = *below[device].iter().find(stuck).expect("a remaining device stands on another one");
        }
        if walked[device] == Some(start) && !path.is_empty() {
            let first = path.iter().position(|d| *d == device).expect("this walk came through it");
            cycle(drafts, below, &path[first..], report);
        }
    }
}

fn cycle(drafts: &[Draft], below: &[Vec<usize>], ring: &[usize], report: &mut Report) {
    // Told from the device that comes first in the file.
    let first = (0..ring.len()).min_by_key(|i| ring[*i]).unwrap_or_default();
    let mut ring = ring.to_vec();
    ring.rotate_left(first);
    let draft = &drafts[ring[0]];
    let next = ring.get(1).unwrap_or(&ring[0]);
    let at = below[ring[0]].iter().position(|c| c == next).and_then(|i| draft.over_at.get(i));
    let message = if ring.len() == 1 {
        "a device cannot stand on itself".into()
    } else {
        let more = ring.len().saturating_sub(12);
        let mut names: Vec<String> = ring.iter().take(12).map(|d| quoted(&drafts[*d].name)).collect();
        if more > 0 {
            names.push(format!("{more} more"));
        }
        names.push(quoted(&draft.name));
        format!("the devices stand on each other in a circle: {}", names.join(" on "))
    };
    report.error(Subject::Device(draft.name.clone()), Some("over"), at.cloned(), &message);
}

/// Requests and completions walk the depth of the graph: the depth is bounded.
fn too_deep(drafts: &[Draft], below: &[Vec<usize>], order: &[usize], report: &mut Report) {
    let mut depth = vec![1; drafts.len()];
    for device in order {
        depth[*device] = below[*device].iter().map(|c| depth[*c] + 1).max().unwrap_or(1);
        if depth[*device] == DEPTH_MAX + 1 {
            let message = format!("stands on more than {} devices one over the other", DEPTH_MAX - 1);
            let draft = &drafts[*device];
            report.error(Subject::Device(draft.name.clone()), None, Some(draft.header.clone()), &message);
        }
    }
}

/// Checks the exports against the devices and against each other, and warns of probable mistakes.
pub(crate) fn exports(drafts: &[Draft], exports: &[Export], report: &mut Report) {
    let names: HashSet<&str> = drafts.iter().map(|d| d.name.as_str()).collect();
    for export in exports.iter().filter(|e| !names.contains(e.device.as_str())) {
        let hint = report.hint(&export.device, drafts.iter().map(|d| d.name.as_str()));
        let message = format!("there is no device {}{hint}", quoted(&export.device));
        let subject = Subject::Export(export.name.clone());
        report.error(subject, Some("device"), Some(export.places.device.clone()), &message);
    }
    same_path(drafts, exports, report);
    same_listener(exports, report);
    past_a_vault(exports, report);
    if !report.has_errors() {
        open_to_all(exports, report);
        shared(drafts, exports, report);
        unused(drafts, exports, report);
    }
}

/// The user of a path, the text of the path, and whether the path may be shared.
struct Use {
    who: String,
    shared: Option<&'static str>,
}

/// Two devices over one file, or two sockets at one path, destroy each other.
fn same_path(drafts: &[Draft], exports: &[Export], report: &mut Report) {
    let mut uses: HashMap<PathBuf, Use> = HashMap::new();
    let mut claim =
        |path: &Path, subject: Subject, key: &str, at: &Range<usize>, shared: Option<&'static str>| {
            let who = match &subject {
                Subject::File | Subject::Hierarchy => String::new(),
                Subject::Device(name) => format!("device {}", quoted(name)),
                Subject::Export(name) => format!("export {}", quoted(name)),
            };
            let path = plain(path);
            match uses.get(&path) {
                Some(first) if shared.is_none() || first.shared != shared => {
                    let message =
                        format!("{} uses {} already", first.who, quoted(&path.display().to_string()));
                    report.error(subject, Some(key), Some(at.clone()), &message);
                }
                Some(_) => {}
                None => drop(uses.insert(path, Use { who, shared })),
            }
        };
    for draft in drafts {
        for (key, at) in &draft.owned {
            let Some(path) = draft.keys[key].as_str() else { continue };
            let shared = (draft.keys["read-only"] == true).then_some("read-only");
            claim(&draft.base.join(path), Subject::Device(draft.name.clone()), key, at, shared);
        }
    }
    for export in exports {
        let subject = || Subject::Export(export.name.clone());
        if let Some(Address::Unix(path)) = &export.nbd {
            claim(path, subject(), "nbd", &export.places.nbd, Some("nbd"));
        }
        if let Some(path) = &export.vhost_user {
            claim(path, subject(), "vhost-user", &export.places.vhost_user, None);
        }
    }
}

/// The path without `.` and `..`, without asking the file system.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => drop(out.pop()),
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => out.push(part),
        }
    }
    out
}

/// Exports that share an address share a listener, and so its TLS and its rights.
fn same_listener(exports: &[Export], report: &mut Report) {
    let mut listeners: HashMap<&Address, &Export> = HashMap::new();
    for export in exports {
        let Some(address) = &export.nbd else { continue };
        let first = *listeners.entry(address).or_insert(export);
        if let Some(key) = export.differs_as_listener(first) {
            let message =
                format!("differs from that of export {}, which has the same address", quoted(&first.name));
            let subject = Subject::Export(export.name.clone());
            report.error(subject, Some(key), Some(export.places.of_listener(key)), &message);
        }
    }
}

/// What hosts share is not written past the records of which may.
fn past_a_vault(exports: &[Export], report: &mut Report) {
    for export in exports.iter().filter(|export| !export.read_only) {
        let kept = |other: &&Export| {
            other.vault.is_some() && other.device == export.device && other.name != export.name
        };
        if let Some(other) = exports.iter().find(kept) {
            let message = format!(
                "is exported as {} too, for the host alone that its \"vault\" names: add read-only = true here",
                quoted(&other.name)
            );
            let subject = Subject::Export(export.name.clone());
            report.error(subject, Some("device"), Some(export.places.device.clone()), &message);
        }
    }
    let mut vaults: HashMap<PathBuf, &Export> = HashMap::new();
    for export in exports {
        let Some(vault) = &export.vault else { continue };
        let first = *vaults.entry(plain(vault)).or_insert(export);
        if first.name != export.name {
            let message = format!("is that of export {}: each has a folder of its own", quoted(&first.name));
            let subject = Subject::Export(export.name.clone());
            report.error(subject, Some("vault"), Some(export.places.vault.clone()), &message);
        }
    }
}

/// Warns of network listeners that let everybody in.
fn open_to_all(exports: &[Export], report: &mut Report) {
    for export in exports {
        let is_open = export.nbd.as_ref().is_some_and(|address| !address.is_local());
        if export.tls.is_none() && is_open {
            let rights = if export.read_only { "read" } else { "read and write" };
            let message = format!("every client that reaches this address can {rights}: there is no \"tls\"");
            let subject = Subject::Export(export.name.clone());
            report.warning(subject, Some("nbd"), Some(export.places.nbd.clone()), &message);
        }
    }
}

/// Warns of devices that several write to, none of which knows of the others. Parts of a device are compared
/// [elsewhere](layers).
fn shared(drafts: &[Draft], exports: &[Export], report: &mut Report) {
    for below in drafts.iter().filter(|below| below.keys["read-only"] != true) {
        let stands = |draft: &&Draft| draft.over.contains(&below.name);
        // A view knows of the device that it shows, and volumes on one flash know of each other.
        let knows = |draft: &&Draft| {
            draft.kind.as_ref().is_some_and(|kind| kind.traits.shares)
                && draft.over.last() == Some(&below.name)
        };
        let above: Vec<&Draft> = drafts.iter().filter(stands).filter(|draft| !knows(draft)).collect();
        let is_part = |draft: &&Draft| {
            let keys = draft.kind.as_ref().and_then(|kind| kind.parse(&draft.keys).ok());
            keys.is_some_and(|keys| keys.part().is_some())
        };
        let exported = exports.iter().find(|export| export.device == below.name && !export.read_only);
        if above.len() + usize::from(exported.is_some()) < 2
            || exported.is_none() && above.iter().all(is_part)
        {
            continue;
        }
        let above = above.iter().map(|draft| format!("device {}", quoted(&draft.name)));
        let exported = exported.iter().map(|export| format!("export {}", quoted(&export.name)));
        let all: Vec<String> = above.chain(exported).collect();
        let message = format!(
            "is written to by {}: none of them knows what the others write, and data is lost",
            all.join(" and by ")
        );
        report.warning(Subject::Device(below.name.clone()), None, Some(below.header.clone()), &message);
    }
}

/// Warns of devices that nothing reaches.
fn unused(drafts: &[Draft], exports: &[Export], report: &mut Report) {
    if exports.is_empty() {
        if !drafts.is_empty() {
            report.warning(Subject::File, None, None, "there is no export: nothing can be served");
        }
        return;
    }
    let below = drafts.iter().flat_map(|d| d.over.iter().map(String::as_str));
    let used: HashSet<&str> = below.chain(exports.iter().map(|e| e.device.as_str())).collect();
    for draft in drafts.iter().filter(|d| !used.contains(d.name.as_str())) {
        let subject = Subject::Device(draft.name.clone());
        let message = "is not used: no device stands on it, and it is not exported";
        report.warning(subject, None, Some(draft.header.clone()), message);
    }
}

/// The number of the connected part that each device belongs to, from 0, in the order of `devices`.
pub(crate) fn components(devices: &[Device]) -> BTreeMap<String, usize> {
    let index: HashMap<&str, usize> = devices.iter().enumerate().map(|(i, d)| (&*d.name, i)).collect();
    let mut beside: Vec<Vec<usize>> = vec![Vec::new(); devices.len()];
    for (i, device) in devices.iter().enumerate() {
        for child in &device.over {
            beside[i].push(index[child.as_str()]);
            beside[index[child.as_str()]].push(i);
        }
    }
    let mut part: Vec<Option<usize>> = vec![None; devices.len()];
    let mut parts = 0;
    for start in 0..devices.len() {
        if part[start].is_some() {
            continue;
        }
        let mut todo = vec![start];
        while let Some(device) = todo.pop() {
            if part[device].replace(parts).is_none() {
                todo.extend(&beside[device]);
            }
        }
        parts += 1;
    }
    devices.iter().zip(part).map(|(d, p)| (d.name.clone(), p.unwrap_or_default())).collect()
}
