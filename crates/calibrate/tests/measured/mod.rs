//! Traces of drives that were measured (DiskSim's validation set).

use std::path::{Path, PathBuf};
use std::process::Command;

/// The text of a trace, if it is there.
pub fn text(name: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("LAMINA_TRACES").map_or_else(beside, PathBuf::from);
    let path = folder.join(format!("drives/{name}.trace.gz"));
    if !path.is_file() {
        println!("skipped: LAMINA_TRACES does not name the folder of the traces");
        return None;
    }
    let output = Command::new("gzip").arg("-dc").arg(path).output().expect("gzip");
    Some(String::from_utf8(output.stdout).expect("text"))
}
