//! Which hierarchy lives on which core.
//!
//! Hierarchies that share an NBD address share its listener, and so a core: they are placed as one group. Groups go
//! to the cores in turn, the one with the most devices first.

use super::groups;
use crate::exit::Failure;
use lamina_block::Address;
use lamina_graph::{Export, Plan};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The hierarchies of each core, at least one core.
pub type Placement = Vec<Vec<Plan>>;

/// Spreads the hierarchies of all files over `cores`, or over as many cores as there are groups and processors.
pub fn place(files: Vec<Plan>, cores: Option<usize>) -> Result<Placement, Failure> {
    check_together(&files)?;
    let wrong: String = files.iter().filter_map(|plan| groups::check(plan).err()).collect();
    if !wrong.is_empty() {
        return Err(Failure::File(wrong));
    }
    let mut groups = grouped(files.into_iter().flat_map(Plan::components).collect());
    groups.sort_by_key(|group| std::cmp::Reverse(group.iter().map(|p| p.devices().len()).sum::<usize>()));
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cores = cores.unwrap_or(processors).min(groups.len()).max(1);
    let mut placement: Placement = (0..cores).map(|_| Vec::new()).collect();
    for (i, group) in groups.into_iter().enumerate() {
        placement[i % cores].extend(group);
    }
    Ok(placement)
}

/// Checks of names that must be unique in a daemon, and are unique within each file: names of hierarchies, devices and
/// exports, vhost-user sockets; and that exports of one listener agree on its TLS and its rights.
pub fn check_together(files: &[Plan]) -> Result<(), Failure> {
    let mut devices = HashMap::new();
    let mut exports = HashMap::new();
    let mut sockets = HashMap::new();
    let mut hierarchies = HashMap::new();
    let mut listeners: HashMap<&Address, (&Export, &str)> = HashMap::new();
    for plan in files {
        let file = plan.file();
        if let Some(persistent) = plan.persistent() {
            unique(&mut hierarchies, persistent.name.clone(), file, "hierarchy")?;
        }
        for device in plan.devices() {
            unique(&mut devices, device.name.clone(), file, "device")?;
        }
        for export in plan.exports() {
            unique(&mut exports, export.name.clone(), file, "export")?;
            if let Some(path) = &export.vhost_user {
                unique(&mut sockets, path.display().to_string(), file, "vhost-user socket")?;
            }
            let Some(address) = &export.nbd else { continue };
            let (first, other) = *listeners.entry(address).or_insert((export, file));
            if let Some(key) = export.differs_as_listener(first) {
                return Err(Failure::usage(format!(
                    "{file}: export {:?}: {address} is shared with export {:?} of {other}, and both must have the same \
                     {key:?}",
                    export.name, first.name
                )));
            }
        }
    }
    Ok(())
}

/// Refuses a name that another file has.
fn unique<'a>(
    seen: &mut HashMap<String, &'a str>,
    name: String,
    file: &'a str,
    what: &str,
) -> Result<(), Failure> {
    match seen.entry(name) {
        Entry::Vacant(new) => {
            new.insert(file);
            Ok(())
        }
        Entry::Occupied(old) => Err(Failure::usage(format!(
            "{file}: {what} {:?} is also in {}: names are unique in a daemon",
            old.key(),
            old.get()
        ))),
    }
}

/// Joins plans that share an NBD address, also by way of a third.
fn grouped(plans: Vec<Plan>) -> Vec<Vec<Plan>> {
    let mut groups: Vec<Vec<Plan>> = Vec::new();
    for plan in plans {
        let shares = |group: &Vec<Plan>| {
            group.iter().any(|other| addresses(other).any(|a| addresses(&plan).any(|b| a == b)))
        };
        let (joined, apart): (Vec<_>, Vec<_>) = groups.into_iter().partition(shares);
        groups = apart;
        let mut group: Vec<Plan> = joined.into_iter().flatten().collect();
        group.push(plan);
        groups.push(group);
    }
    groups
}

fn addresses(plan: &Plan) -> impl Iterator<Item = &Address> {
    plan.exports().iter().filter_map(|e| e.nbd.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn plan(name: &str, exports: &[(&str, &str)]) -> Plan {
        let mut text = String::new();
        for (export, address) in exports {
            text += &format!(
                "[device.{export}]\ntype = \"null\"\nsize = \"1MiB\"\n[export.{export}]\ndevice = \"{export}\"\nnbd = \
                 \"{address}\"\n"
            );
        }
        Plan::parse(&text, name, Path::new("/run"), &lamina_layers::KINDS).expect("a plan")
    }

    fn names(placement: &Placement) -> Vec<Vec<String>> {
        let core =
            |plans: &'_ Vec<Plan>| plans.iter().flat_map(Plan::devices).map(|d| d.name.clone()).collect();
        placement.iter().map(core).collect()
    }

    #[test]
    fn sharers_of_an_address_stay_together() {
        let files = || {
            vec![
                plan("a", &[("a1", "unix:x"), ("a2", "unix:y")]),
                plan("b", &[("b1", "unix:z"), ("b2", "unix:x")]),
            ]
        };
        let placed = place(files(), Some(8)).expect("a placement");
        let mut got = names(&placed);
        got.sort();
        assert_eq!(got, [vec!["a1", "b2"], vec!["a2"], vec!["b1"]]);
        assert_eq!(names(&place(files(), Some(2)).expect("a placement")).len(), 2);
        assert_eq!(names(&place(files(), Some(1)).expect("a placement")), [["a1", "b2", "a2", "b1"]]);
    }

    #[test]
    fn names_are_unique_in_a_daemon() {
        let files = vec![plan("a", &[("v", "unix:x")]), plan("b", &[("v", "unix:y")])];
        let Err(Failure::Usage(message)) = place(files, None) else { panic!("the name is there twice") };
        assert_eq!(message, "b: device \"v\" is also in a: names are unique in a daemon");
    }
}
