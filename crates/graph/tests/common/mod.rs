//! Helpers of this crate's tests.
#![allow(dead_code, reason = "each test uses a part of it")]

use lamina_block::Kind;
use lamina_graph::{Hierarchy, Plan, Report};
use lamina_sim::Simulation;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The folder of the whole project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every kind that the program registers, by name.
pub fn kinds() -> Vec<Kind> {
    let mut kinds = lamina_layers::KINDS.to_vec();
    kinds.push(lamina_nbd::client::KIND.clone());
    kinds.sort_by_key(|kind| kind.name);
    kinds
}

/// The head of a kind's source: its module documentation.
pub fn head(kind: &str) -> String {
    let folder = root().join("crates");
    let (layers, module) = (folder.join("layers"), kind.replace('-', "_"));
    // A layer is a file or a folder of its family's crate.
    let entries = std::fs::read_dir(&layers).expect("the layers' folder");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path().join("src"))
        .flat_map(|family| [family.join(format!("{module}.rs")), family.join(&module).join("mod.rs")])
        .collect();
    if kind == "nbd" {
        files = vec![folder.join("nbd/src/client/mod.rs")];
    }
    let text = files.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let text = text.unwrap_or_else(|| panic!("there is no source of {kind}"));
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n").replace("[`", "`").replace("`]", "`")
}

/// True if pages are to be written anew instead of compared.
pub fn rewriting() -> bool {
    std::env::var_os("LAMINA_REWRITE").is_some_and(|v| !v.is_empty() && v != "0")
}

/// Builds a plan in a simulated world, where all keys are the same, and closes what was built; the tree if all went
/// well. The members of a persistent one are created before.
pub fn build(plan: Plan) -> Result<String, Report> {
    let world = Simulation::new(1);
    let env = world.env();
    for device in plan.devices() {
        if let Some(key) = device.keys.get("key-file").and_then(|key| key.as_str()) {
            world.env().put_file(Path::new("/srv").join(key), b"a key");
        }
    }
    let built = world.run(async move {
        if plan.persistent().is_some() {
            let env: Rc<dyn lamina_block::Env> = env.clone();
            plan.create(env, 0).await?;
        }
        let hierarchy = Hierarchy::build(plan, env).await?;
        let tree = hierarchy.tree();
        hierarchy.close().await.expect("a device that was not used can be closed");
        Ok(tree)
    });
    built.unwrap_or_else(|_| panic!("building hangs"))
}
