//! The hierarchy drawn as a tree, from the top down.
//!
//! A device below several others is drawn in full the first time, and named with "see above" after that: a drawing is
//! never longer than the file.

use crate::export::Export;
use crate::hierarchy::Hierarchy;
use crate::plan::Plan;
use crate::report::quoted;
use lamina_block::{Bytes, Geometry};
use std::collections::{HashMap, HashSet};

/// A line of the drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The branches that lead to the device: `"│  └─ "`.
    pub branches: String,
    /// The device's name.
    pub device: String,
    /// The devices below were drawn further up.
    pub again: bool,
}

/// The rows of a graph whose devices are given bottom-up, each with its children, and whether it is a view of them. A
/// device on which no other stands begins a tree, and so does a device on which only views stand; trees come in the
/// order in which their tops are given, so a device stands above its views.
pub fn rows<'a>(devices: impl IntoIterator<Item = (&'a str, &'a [String], bool)>) -> Vec<Row> {
    let devices: Vec<(&str, &[String], bool)> = devices.into_iter().collect();
    let below: HashMap<&str, &[String]> = devices.iter().map(|(name, over, _)| (*name, *over)).collect();
    let covering = devices.iter().filter(|(_, _, is_view)| !is_view);
    let covered: HashSet<&str> = covering.flat_map(|(_, over, _)| over.iter().map(String::as_str)).collect();
    let mut drawn = HashSet::new();
    let mut rows = Vec::new();
    for (top, ..) in devices.iter().filter(|(name, ..)| !covered.contains(name)) {
        draw(top, "", "", &below, &mut drawn, &mut rows);
    }
    rows
}

/// Draws one device and all below it. The depth is bounded by [`crate::DEPTH_MAX`].
fn draw<'a>(
    name: &'a str,
    first: &str,
    others: &str,
    below: &HashMap<&'a str, &'a [String]>,
    drawn: &mut HashSet<&'a str>,
    rows: &mut Vec<Row>,
) {
    let children = below.get(name).copied().unwrap_or_default();
    let again = !drawn.insert(name) && !children.is_empty();
    rows.push(Row { branches: first.into(), device: name.into(), again });
    if again {
        return;
    }
    for (i, child) in children.iter().enumerate() {
        let (fork, rail) = if i + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        draw(child, &format!("{others}{fork}"), &format!("{others}{rail}"), below, drawn, rows);
    }
}

/// The tree with a column of kinds, of sizes if they are known, and the exports of each device.
fn tree(
    rows: &[Row],
    kind: impl Fn(&str) -> &'static str,
    shape: impl Fn(&str) -> Option<Geometry>,
    exports: &[Export],
) -> String {
    let lines: Vec<[String; 4]> = rows
        .iter()
        .map(|row| {
            let name = format!("{}{}", row.branches, row.device);
            if row.again {
                return [name, "see above".into(), String::new(), String::new()];
            }
            let exported: Vec<String> =
                exports.iter().filter(|e| e.device == row.device).map(exported).collect();
            let size = shape(&row.device).map(shown).unwrap_or_default();
            [name, kind(&row.device).into(), size, exported.join("; ")]
        })
        .collect();
    let width = |column: usize| lines.iter().map(|l| l[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for [name, kind, size, exports] in &lines {
        let mut line = pad(name, widths[0]) + "  " + &pad(kind, widths[1]);
        if widths[2] > 0 {
            line += &format!("  {}", pad(size, widths[2]));
        }
        out += format!("{line}  {exports}").trim_end();
        out.push('\n');
    }
    out
}

fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.chars().count())))
}

fn shown(geometry: Geometry) -> String {
    let note = if geometry.read_only { " read-only" } else { "" };
    format!("{}{note}", Bytes(geometry.size))
}

/// `vm1: nbd unix:/run/vm1.sock, vhost-user /run/vm1.vhost`
fn exported(export: &Export) -> String {
    let nbd =
        export.nbd.iter().map(|a| format!("nbd {a}{}", if export.tls.is_some() { " (tls)" } else { "" }));
    let vhost_user = export.vhost_user.iter().map(|p| format!("vhost-user {}", p.display()));
    let read_only = export.read_only.then(|| "read-only".to_owned());
    let ways: Vec<String> = nbd.chain(vhost_user).chain(read_only).collect();
    format!("⇒ {} {}", quoted(&export.name), ways.join(", "))
}

impl Plan {
    /// The lines of the drawing, for callers that add columns of their own.
    pub fn rows(&self) -> Vec<Row> {
        rows(self.devices.iter().map(|d| (d.name.as_str(), d.over.as_slice(), d.kind.is_view())))
    }

    /// The drawing with kinds and exports. Sizes are not known before devices are opened.
    pub fn tree(&self) -> String {
        let kinds: HashMap<&str, &'static str> =
            self.devices.iter().map(|d| (d.name.as_str(), d.kind.name)).collect();
        tree(&self.rows(), |name| kinds[name], |_| None, &self.exports)
    }
}

impl Hierarchy {
    /// The lines of the drawing, for callers that add columns of their own.
    pub fn rows(&self) -> Vec<Row> {
        let is_view = |name: &str| self.plan.devices.iter().any(|d| d.name == name && d.kind.is_view());
        rows(self.nodes().iter().map(|n| (n.name(), self.children(n.name()), is_view(n.name()))))
    }

    /// The drawing with kinds, sizes and exports.
    pub fn tree(&self) -> String {
        let kind = |name: &str| self.node(name).map_or("", |n| n.kind());
        tree(&self.rows(), kind, |name| Some(self.node(name)?.geometry()), self.exports())
    }
}
