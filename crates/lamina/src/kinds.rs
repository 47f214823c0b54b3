//! `lamina kinds`: what a hierarchy file may use.

use crate::cli;
use crate::exit::Failure;
use crate::files;
use crate::verbs;
use serde_json::json;
use std::io::Write;

/// Runs `lamina kinds`.
pub fn run(args: &cli::Kinds) -> Result<(), Failure> {
    let kinds = files::kinds();
    let mut out = std::io::stdout().lock();
    if args.json {
        let list: Vec<_> = kinds
            .iter()
            .map(|k| {
                let (least, most) = (k.children.start(), k.children.end());
                let commands = verbs::of(k.name);
                json!({
                    "name": k.name, "summary": k.summary, "over_min": least, "over_max": most, "commands": commands,
                })
            })
            .collect();
        writeln!(out, "{}", json!(list))?;
        return Ok(());
    }
    let width = kinds.iter().map(|k| k.name.len()).max().unwrap_or(0);
    for kind in kinds {
        let stands = if *kind.children.end() == 0 { "sink " } else { "layer" };
        writeln!(out, "{:<width$}  {stands}  {}", kind.name, kind.summary)?;
    }
    Ok(())
}
