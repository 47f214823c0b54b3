//! `lamina kinds`: the kinds that a hierarchy file may use.

use crate::api::Verb;
use crate::exit::Failure;
use crate::{cli, files};
use lamina_block::Kind;
use serde_json::{Value, json};
use std::io::Write;

/// Runs `lamina kinds`.
pub fn run(args: &cli::Kinds) -> Result<(), Failure> {
    let kinds = files::kinds();
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", list(&kinds))?;
        return Ok(());
    }
    let width = kinds.iter().map(|k| k.name.len()).max().unwrap_or(0);
    for kind in kinds {
        let stands = if *kind.children.end() == 0 { "sink " } else { "layer" };
        writeln!(out, "{:<width$}  {stands}  {}", kind.name, kind.summary)?;
    }
    Ok(())
}

/// The declarations of these kinds, for programs.
fn list(kinds: &[Kind]) -> Value {
    let one = |kind: &Kind| {
        let (least, most) = (kind.children.start(), kind.children.end());
        let commands: Vec<Verb> = kind.traits.verbs.iter().map(Verb::from).collect();
        json!({
            "name": kind.name, "summary": kind.summary, "over_min": least, "over_max": most, "commands": commands,
        })
    };
    kinds.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::snapshot;
    use crate::{control, metrics, show};

    /// A layer made by `tools/new-layer` is the template under another name: one file, and one line in the list of
    /// kinds.
    #[test]
    fn a_kind_in_the_list_is_everywhere() {
        let mut mine = Kind::of::<lamina_layers::lab::template::Keys>();
        mine.name = "my-cache";
        let kinds = [mine];
        let mut snapshot = snapshot();
        let device = &mut snapshot.hierarchies[0].devices[0];
        (device.kind, device.info) = ("my-cache".into(), json!({ "mark": 12288 }));

        let (mut shown, mut measured) = (String::new(), String::new());
        show::figures::draw(&mut shown, &snapshot.hierarchies[0], &kinds);
        assert_eq!(shown, "MY-CACHE   MARK\na         12KiB\n");
        metrics::figures::draw(&mut measured, &snapshot, &kinds);
        let sample = "gauge\nlamina_my_cache_mark_bytes{device=\"a\"} 12288\n";
        assert!(measured.contains(sample), "{measured}");

        let document = control::server::document_with(&kinds);
        let document: Value = serde_json::from_str(&document).expect("JSON");
        let schemas = &document["components"]["schemas"];
        assert_eq!(schemas["my-cache.reset"]["properties"]["name"]["enum"], json!(["reset"]));
        assert_eq!(schemas["my-cache.info"]["properties"]["mark"]["type"], "integer");
        let shown = &schemas["Device"]["properties"]["info"]["anyOf"];
        assert_eq!(shown[0]["$ref"], "#/components/schemas/my-cache.info", "{shown}");

        let manual = metrics::figures::tests::manual(&kinds);
        assert!(manual.contains("| `/mark` | `lamina_my_cache_mark_bytes` | MARK | "), "{manual}");
        assert_eq!(list(&kinds)[0]["commands"][0]["name"], "reset");
    }
}
