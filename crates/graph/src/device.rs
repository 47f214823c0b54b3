//! `[device.NAME]`: a layer, its keys, and the devices below.

use crate::keys::{Section, called};
use crate::report::{Report, quoted};
use crate::spelling::{elsewhere, one_of};
use lamina_block::Kind;
use serde_json::Value;
use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use toml::de::DeValue;

/// A device of a plan: checked, not built.
#[derive(Clone)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The devices below, in order; the device for metadata, if there is one, is the last.
    pub over: Vec<String>,
    /// The last of `over` is for its metadata.
    pub has_metadata: bool,
    /// The devices of `over` that are about to be taken away (the key `leaving`), during a change: the members carry
    /// the key until the data has been moved.
    pub leaving: Vec<String>,
    /// How many of the devices that its data is on may be absent.
    pub survives: usize,
    /// The numbers of devices of `over` that may be absent besides.
    pub may_miss: Vec<usize>,
    /// Its keys, without those that are here.
    pub keys: Value,
    /// The folder where relative paths in its keys begin: that of the device's file.
    pub(crate) base: PathBuf,
    /// Where the name stands in the file.
    pub(crate) header: Range<usize>,
}

impl Device {
    /// The path of `key`, if the key is there; made absolute with the folder of the file.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.keys[key].as_str().map(|path| self.base.join(path))
    }
}

/// A device of the file; `kind` is `None` if the type was not understood, which has been reported.
pub(crate) struct Draft {
    pub name: String,
    pub kind: Option<Kind>,
    pub over: Vec<String>,
    pub has_metadata: bool,
    pub leaving: Vec<String>,
    pub survives: usize,
    pub may_miss: Vec<usize>,
    pub keys: Value,
    /// Where relative paths in its keys begin.
    pub base: PathBuf,
    /// Where the name stands in the file.
    pub header: Range<usize>,
    /// Where each of `over` stands.
    pub over_at: Vec<Range<usize>>,
    /// The keys that name a file which the device owns, and where their values stand.
    pub owned: Vec<(&'static str, Range<usize>)>,
}

/// Reads `[device.NAME]` and reports what is wrong with it in itself. Relative paths begin at `base`.
pub(crate) fn read(
    name: &str,
    section: &Section<'_>,
    base: &Path,
    kinds: &[Kind],
    report: &mut Report,
) -> Draft {
    let kind = read_kind(section, kinds, report);
    let over = read_over("over", section, report);
    let has_metadata =
        kind.as_ref().is_some_and(|k| k.traits.metadata) && section.table.contains_key("metadata");
    let metadata = if has_metadata { read_metadata(section, over.as_deref(), report) } else { None };
    let keeps = kind.as_ref().is_some_and(|k| k.traits.keeps);
    let leaving = if keeps { read_leaving(section, over.as_deref(), report) } else { Vec::new() };
    let generic = [("type", true), ("over", true), ("metadata", has_metadata), ("leaving", keeps)];
    let skip: Vec<&str> = generic.into_iter().filter(|(_, is)| *is).map(|(key, _)| key).collect();
    let keys = section.neutral(&skip, report);
    if let Some(kind) = &kind {
        section.check(&keys, |keys| kind.parse(keys).map(drop), report);
        section.warn_of_old_names(kind.traits.renamed, report);
        if let Some(over) = &over {
            check_over(kind, over, section, report);
        }
    }
    let children = over.as_ref().map_or(0, Vec::len);
    let parsed = kind.as_ref().and_then(|kind| kind.parse(&keys).ok());
    let survives = parsed.as_ref().map_or(0, |keys| keys.survives(children));
    let may_miss =
        parsed.map_or(Vec::new(), |keys| (0..children).filter(|child| keys.may_miss(*child)).collect());
    // One that is not understood is not among the devices below.
    let has_metadata = metadata.is_some();
    let (over, over_at) = over.unwrap_or_default().into_iter().chain(metadata).unzip();
    let outside = kind.as_ref().map_or(&[][..], |kind| kind.traits.outside).iter();
    let files = outside.filter(|outside| outside.is_file()).map(|outside| outside.key);
    let owned = files.filter_map(|key| Some((key, section.table.get(key)?.span()))).collect();
    Draft {
        name: name.into(),
        kind,
        over,
        has_metadata,
        leaving,
        survives,
        may_miss,
        keys,
        base: base.into(),
        header: section.header.clone(),
        over_at,
        owned,
    }
}

fn read_kind(section: &Section<'_>, kinds: &[Kind], report: &mut Report) -> Option<Kind> {
    let names = || kinds.iter().map(|k| k.name);
    let Some(value) = section.table.get("type") else {
        let message = format!("is missing: it is {}", one_of(names(), "or"));
        section.wrong(report, "type", section.header.clone(), &message);
        return None;
    };
    let DeValue::String(name) = value.get_ref() else {
        let message = format!("expected a string, found {}", called(value.get_ref()));
        section.wrong(report, "type", value.span(), &message);
        return None;
    };
    let kind = kinds.iter().find(|k| k.name == name.as_ref());
    if kind.is_none() {
        let hint = match elsewhere(name, kinds).unwrap_or_else(|| report.hint(name, names())) {
            none if none.is_empty() => format!(": there is {}", one_of(names(), "and")),
            hint => hint,
        };
        section.wrong(report, "type", value.span(), &format!("there is no type {}{hint}", quoted(name)));
    }
    kind.cloned()
}

/// Names of devices, each with its place.
type Names = Vec<(String, Range<usize>)>;

/// The children that are about to be taken away.
fn read_leaving(
    section: &Section<'_>,
    over: Option<&[(String, Range<usize>)]>,
    report: &mut Report,
) -> Vec<String> {
    let mut leaving = Vec::new();
    for (name, at) in read_over("leaving", section, report).unwrap_or_default() {
        match over.is_some_and(|over| over.iter().any(|(n, _)| *n == name)) {
            true => leaving.push(name),
            false => {
                let message = format!("{} is not in \"over\"", quoted(&name));
                section.wrong(report, "leaving", at, &message);
            }
        }
    }
    leaving
}

/// The device for metadata, which must not be in `over` as well.
fn read_metadata(
    section: &Section<'_>,
    over: Option<&[(String, Range<usize>)]>,
    report: &mut Report,
) -> Option<(String, Range<usize>)> {
    let names = read_over("metadata", section, report)?;
    let at = section.table.get("metadata").map_or(section.header.clone(), |value| value.span());
    match <[_; 1]>::try_from(names) {
        Ok([(name, at)]) if over.is_some_and(|over| over.iter().any(|(n, _)| *n == name)) => {
            let message = format!("device {} is in \"over\" already", quoted(&name));
            section.wrong(report, "metadata", at, &message);
            None
        }
        Ok([named]) => Some(named),
        Err(names) => {
            let message = format!("is the name of one device, not of {}", names.len());
            section.wrong(report, "metadata", at, &message);
            None
        }
    }
}

/// The names of `key` with their places; `None` if the key is not understood, which has been reported.
fn read_over(key: &str, section: &Section<'_>, report: &mut Report) -> Option<Names> {
    let Some(value) = section.table.get(key) else { return Some(Vec::new()) };
    let mut understood = true;
    let mut name = |value: &toml::Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::String(name) => Some((name.to_string(), value.span())),
        other => {
            let message = format!("expected a device's name or a list of them, found {}", called(other));
            section.wrong(report, key, value.span(), &message);
            understood = false;
            None
        }
    };
    let names = match value.get_ref() {
        DeValue::Array(list) => list.iter().filter_map(name).collect(),
        _ => name(value).into_iter().collect(),
    };
    understood.then_some(names)
}

/// Checks the number of devices, and that none is there twice.
fn check_over(kind: &Kind, over: &[(String, Range<usize>)], section: &Section<'_>, report: &mut Report) {
    let at = section.table.get("over").map_or(section.header.clone(), |value| value.span());
    if !kind.children.contains(&over.len()) {
        let wanted = format!("type \"{}\" stands on {}", kind.name, count(&kind.children));
        let message = match over.len() {
            0 if section.table.contains_key("over") => format!("is empty: {wanted}"),
            0 => format!("is missing: {wanted}"),
            _ if *kind.children.end() == 0 => format!("{wanted}: leave the key out"),
            n => format!("{wanted}, not on {n}"),
        };
        return section.wrong(report, "over", at, &message);
    }
    let mut seen = HashSet::new();
    for (name, at) in over {
        if !seen.insert(name) {
            section.wrong(report, "over", at.clone(), &format!("device {} is there twice", quoted(name)));
        }
    }
}

/// The text for a number of devices.
fn count(range: &RangeInclusive<usize>) -> String {
    let devices = |n: usize| if n == 1 { "device" } else { "devices" };
    match (*range.start(), *range.end()) {
        (_, 0) => "no device".into(),
        (a, b) if a == b => format!("exactly {a} {}", devices(a)),
        (a, b) if b >= 1000 => format!("at least {a} {}", devices(a)),
        (a, b) => format!("{a} to {b} devices"),
    }
}
