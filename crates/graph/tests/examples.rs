//! Every file in examples/ is good, gives no warning, and can be built (and created before, if it is persistent).

mod common;

use common::{build, kinds, root};
use lamina_graph::Plan;
use std::path::{Path, PathBuf};

fn examples() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("examples")).unwrap();
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    files.sort();
    files
}

/// A plan whose members are all made when it is built: in mebibytes, and with passphrases that are tried quickly.
fn small(plan: Plan, text: &str, name: &str) -> Plan {
    if plan.persistent().is_none() {
        return plan;
    }
    let crypt = "type = \"crypt\"";
    let text = text.replace("GiB", "MiB").replace(crypt, &format!("{crypt}\nkdf-memory = \"64KiB\""));
    Plan::parse(&text, name, Path::new("/srv"), &kinds()).unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn every_example_is_good_and_can_be_built() {
    let files = examples();
    assert!(files.len() >= 4, "{files:?}");
    for path in files {
        let (name, text) = (path.display().to_string(), std::fs::read_to_string(&path).unwrap());
        let plan = Plan::parse(&text, &name, Path::new("/srv"), &kinds());
        let plan = plan.unwrap_or_else(|report| panic!("{report}"));
        assert!(plan.warnings().is_empty(), "{}", plan.warnings());
        assert!(!plan.exports().is_empty(), "{name}");
        // A device on a remote server cannot be built here.
        if plan.devices().iter().any(|device| device.kind.name == "nbd") {
            continue;
        }
        let drawn = plan.tree().lines().count();
        let tree = build(small(plan, &text, &name)).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(tree.lines().count(), drawn, "{tree}");
    }
}
