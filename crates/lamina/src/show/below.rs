//! The devices that requests of a device reach.

use crate::api::Hierarchy;
use std::collections::BTreeMap;

/// The devices below each device of a hierarchy.
pub type Over<'a> = BTreeMap<&'a str, &'a [String]>;

/// Those of a hierarchy.
pub fn over(hierarchy: &Hierarchy) -> Over<'_> {
    hierarchy.devices.iter().map(|device| (&device.name[..], &device.over[..])).collect()
}

/// The names of a device and of all devices below it.
pub fn below<'a>(over: &Over<'a>, device: &'a str) -> Vec<&'a str> {
    let mut found = vec![device];
    let mut next = 0;
    while let Some(name) = found.get(next).copied() {
        for child in over.get(name).copied().unwrap_or_default() {
            if !found.contains(&&child[..]) {
                found.push(child);
            }
        }
        next += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::snapshot;

    #[test]
    fn a_tree_names_each_device_once() {
        let mut shared = snapshot().hierarchies.remove(0);
        shared.devices[1].over = vec!["a".into()];
        assert_eq!(below(&over(&shared), "vm1"), ["vm1", "a", "b"]);
        assert_eq!(below(&over(&shared), "a"), ["a"]);
    }
}
