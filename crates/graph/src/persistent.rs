//! `[hierarchy]`: the table that makes a hierarchy persistent.
//!
//! A file with this table describes a hierarchy that its storage knows, too: its writable devices of a kind that says
//! so (`lamina_block::Traits::member`) are *members*, which carry superblocks with the hierarchy's
//! [description](crate::description).

use crate::description;
use crate::device::Draft;
use crate::keys::Section;
use crate::local;
use crate::plan::bad_name;
use crate::report::{Report, Subject};
use crate::spelling::member_kinds;
use crate::way::Way;
use lamina_block::{KeyError, Kind, Level};
use lamina_metadata::superblock::DESCRIPTION_MAX;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// The content of `[hierarchy]`, and its consequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persistent {
    /// The name of the hierarchy. A name is for people: the UUID on their members tells hierarchies apart.
    pub name: String,
    /// The description of the hierarchy that its members carry: see [`crate::with_paths`].
    pub description: String,
    /// The state to which a crash may bring the metadata of its devices.
    pub level: Level,
    /// The devices that are members, sorted by name.
    pub members: Vec<String>,
    /// The changes that led here, and the one under way, as far as the file has them.
    pub(crate) way: Way,
}

/// The keys as they stand in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Keys {
    name: String,
    #[serde(default)]
    consistency: Consistency,
}

/// The levels by their names in the file.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Consistency {
    Lazy,
    #[default]
    Shadow,
    Atomic,
}

impl From<Consistency> for Level {
    fn from(consistency: Consistency) -> Level {
        match consistency {
            Consistency::Lazy => Level::Lazy,
            Consistency::Shadow => Level::Shadow,
            Consistency::Atomic => Level::Atomic,
        }
    }
}

fn parse(keys: &Value) -> Result<Keys, KeyError> {
    serde_path_to_error::deserialize(keys).map_err(|e| {
        let path = e.path().to_string();
        KeyError { path: if path == "." { String::new() } else { path }, message: e.inner().to_string() }
    })
}

/// True for a device that carries a superblock if its hierarchy is persistent. A read-only device cannot.
pub(crate) fn is_member(kind: &Kind, keys: &Value) -> bool {
    kind.traits.member && keys.get("read-only") != Some(&Value::Bool(true))
}

/// Reads `[hierarchy]`, if there is one, and reports what is wrong with it. Relative paths begin at `base`.
pub(crate) fn read(
    root: &DeTable<'_>,
    drafts: &[Draft],
    base: &Path,
    kinds: &[Kind],
    report: &mut Report,
) -> Option<Persistent> {
    let (key, value) = root.iter().find(|(key, _)| key.get_ref() == "hierarchy")?;
    let header = key.span();
    let DeValue::Table(table) = value.get_ref() else {
        report.error(Subject::File, Some("hierarchy"), Some(value.span()), "write [hierarchy]");
        return None;
    };
    let section = Section { subject: Subject::Hierarchy, header: header.clone(), table };
    let keys = section.neutral(&[], report);
    section.check(&keys, |keys| parse(keys).map(drop), report);
    let Keys { name, consistency } = parse(&keys).ok()?;
    if let Some(message) = bad_name(&name) {
        let at = table.get("name").map_or(header.clone(), |value| value.span());
        section.wrong(report, "name", at, &message);
    }
    let mut members: Vec<String> = drafts
        .iter()
        .filter(|d| d.kind.as_ref().is_some_and(|kind| is_member(kind, &d.keys)))
        .map(|d| d.name.clone())
        .collect();
    members.sort();
    let all_known = drafts.iter().all(|d| d.kind.is_some());
    if members.is_empty() && all_known {
        let kinds = member_kinds(kinds);
        let message = format!("has no member: at least one device is of type {kinds} and may be written");
        report.error(Subject::Hierarchy, None, Some(header.clone()), &message);
    }
    let is_member = |device: &str| members.binary_search_by(|m| m.as_str().cmp(device)).is_ok();
    let mut root = root.clone();
    for (name, device) in local::tables(&mut root, "device") {
        // A description from a file elsewhere has other relative paths.
        let draft = drafts.iter().find(|draft| draft.name == name && draft.base != base);
        draft.into_iter().for_each(|draft| local::root_device(device, kinds, &draft.base));
    }
    let description = description::canonical(&root, &is_member);
    if description.len() > DESCRIPTION_MAX {
        let message = format!(
            "is too large to be kept on its members: {} bytes, and they have space for {DESCRIPTION_MAX}",
            description.len()
        );
        report.error(Subject::Hierarchy, None, Some(header), &message);
    }
    Some(Persistent { name, description, level: consistency.into(), members, way: Way::from(base) })
}
