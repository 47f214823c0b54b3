//! The arrows between the crates: which of them may depend on which. Tests may look further (development dependencies
//! are free), the code may not.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Every crate of Lamina's, and the others that it may stand on.
const MAY_USE: &[(&str, &[&str])] = &[
    ("lamina-block", &[]),
    ("lamina-drive", &["lamina-block"]),
    ("lamina-calibrate", &["lamina-block", "lamina-drive"]),
    ("lamina-workload", &["lamina-block", "lamina-drive"]),
    ("lamina-tls", &["lamina-block"]),
    ("lamina-cluster", &["lamina-block", "lamina-tls"]),
    ("lamina-metadata", &["lamina-block"]),
    ("lamina-kit", &["lamina-block", "lamina-metadata"]),
    ("lamina-sinks", &["lamina-block", "lamina-kit"]),
    ("lamina-address", &["lamina-block", "lamina-kit"]),
    ("lamina-redundancy", &["lamina-block", "lamina-kit"]),
    ("lamina-snapshot", &["lamina-block", "lamina-kit", "lamina-metadata"]),
    ("lamina-digest", &["lamina-block", "lamina-kit", "lamina-metadata"]),
    ("lamina-crypt", &["lamina-block", "lamina-kit"]),
    ("lamina-cache", &["lamina-block", "lamina-kit", "lamina-cluster"]),
    ("lamina-hosts", &["lamina-block", "lamina-kit", "lamina-tls", "lamina-cluster"]),
    ("lamina-lab", &["lamina-block", "lamina-kit"]),
    ("lamina-timing", &["lamina-block", "lamina-kit", "lamina-drive"]),
    (
        "lamina-layers",
        &[
            "lamina-block",
            "lamina-kit",
            "lamina-sinks",
            "lamina-address",
            "lamina-redundancy",
            "lamina-snapshot",
            "lamina-digest",
            "lamina-crypt",
            "lamina-cache",
            "lamina-hosts",
            "lamina-lab",
            "lamina-timing",
        ],
    ),
    ("lamina-graph", &["lamina-block", "lamina-metadata"]),
    ("lamina-nbd", &["lamina-block", "lamina-tls"]),
    ("lamina-host", &["lamina-block"]),
    ("lamina-sim", &["lamina-block", "lamina-drive"]),
    ("lamina-testing", &["lamina-block", "lamina-sim"]),
    ("lamina-vhost-user", &["lamina-block", "lamina-host"]),
    (
        "lamina",
        &[
            "lamina-block",
            "lamina-metadata",
            "lamina-graph",
            "lamina-host",
            "lamina-layers",
            "lamina-tls",
            "lamina-nbd",
            "lamina-vhost-user",
            "lamina-drive",
            "lamina-calibrate",
            "lamina-cluster",
            "lamina-workload",
            "lamina-sim",
        ],
    ),
];

/// Crates that know an operating system's interfaces; the others get the world from an `Env`.
const MAY_KNOW_THE_SYSTEM: &[&str] = &["lamina-host", "lamina-vhost-user", "lamina"];
/// The text that shows such knowledge.
const SYSTEM: &[&str] = &["libc", "nix", "rustix", "io-uring", "tokio", "mio", "async-std", "smol"];

/// The dependencies of every crate of the workspace outside of its tests.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let args = ["metadata", "--format-version", "1", "--no-deps", "--offline"];
    let output =
        Command::new(cargo).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = |v: &serde_json::Value| v["name"].as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages").iter();
    packages
        .map(|package| {
            let all = package["dependencies"].as_array().expect("dependencies").iter();
            (name(package), all.filter(|d| d["kind"] != "dev").map(name).collect())
        })
        .collect()
}

#[test]
fn arrows_point_one_way() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_USE.iter().copied().collect();
    for (package, uses) in dependencies() {
        let Some(allowed) = allowed.get(package.as_str()) else {
            panic!("{package} is new: say in this test what it may stand on");
        };
        for used in uses.iter().filter(|name| name.starts_with("lamina")) {
            assert!(allowed.contains(&used.as_str()), "{package} must not depend on {used}");
        }
    }
}

#[test]
fn the_table_has_no_way_back() {
    for (i, (package, uses)) in MAY_USE.iter().enumerate() {
        for used in *uses {
            let at = MAY_USE.iter().position(|(name, _)| name == used);
            assert!(at.is_some_and(|at| at < i), "{package} over {used}");
        }
    }
}

#[test]
fn only_the_host_knows_the_system() {
    for (package, uses) in dependencies() {
        if MAY_KNOW_THE_SYSTEM.contains(&package.as_str()) {
            continue;
        }
        for used in uses {
            assert!(!SYSTEM.contains(&used.as_str()), "{package} must not depend on {used}");
        }
    }
}
