//! A hierarchy file that was read and checked, and not yet built.
//!
//! Everything that can be known without opening a device is checked here, and all that is wrong is said at once. A
//! [`Plan`] is plain data, made on one thread and perhaps built on another.

use crate::check;
use crate::device::{self, Device, Draft};
use crate::export::{self, Export};
use crate::keys::Section;
use crate::persistent::{self, Persistent};
use crate::report::{Report, Subject, quoted};
use crate::source::Source;
use crate::spelling;
use lamina_block::Kind;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// The most bytes of a hierarchy file.
pub const FILE_MAX: usize = 1 << 20;
/// The most devices of a file, and the most exports.
pub const TABLES_MAX: usize = 4096;
/// The most bytes of a device's or an export's name.
pub const NAME_MAX: usize = 64;
/// The tables at the top of a file.
const TABLES: [&str; 3] = ["device", "export", "hierarchy"];
/// The most devices on a path from the top of a hierarchy to the bottom.
pub const DEPTH_MAX: usize = 64;

/// A file's devices and exports, free of all mistakes that can be seen without building it.
#[derive(Clone)]
pub struct Plan {
    pub(crate) source: Arc<Source>,
    /// The folder of the file.
    pub(crate) base: PathBuf,
    /// Bottom-up: a device comes after its children.
    pub(crate) devices: Vec<Device>,
    pub(crate) exports: Vec<Export>,
    pub(crate) persistent: Option<Persistent>,
    pub(crate) warnings: Report,
    /// The kinds that were known to the parser.
    pub(crate) kinds: Arc<[Kind]>,
    /// The path of the file.
    pub(crate) path: Option<PathBuf>,
}

impl Plan {
    /// The names of these devices, and of all below them.
    pub(crate) fn below<'a>(&'a self, names: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
        let mut todo: Vec<&String> = names.collect();
        let mut found = BTreeSet::new();
        while let Some(name) = todo.pop() {
            let Some(device) = self.devices.iter().find(|d| d.name == *name) else { continue };
            if found.insert(name.clone()) {
                todo.extend(&device.over);
            }
        }
        found
    }

    /// Reads the file at `path`. The paths in it are relative to its folder.
    pub fn load(path: &Path, kinds: &[Kind]) -> Result<Plan, Report> {
        let name = path.display().to_string();
        let failed = |what: &str| Report::of_file(&name, what);
        let full = std::path::absolute(path).map_err(|e| failed(&format!("cannot be found: {e}")))?;
        let base = full.parent().map(Path::to_owned).unwrap_or_default();
        let mut bytes = Vec::new();
        let read =
            std::fs::File::open(path).and_then(|f| f.take(FILE_MAX as u64 + 1).read_to_end(&mut bytes));
        read.map_err(|e| failed(&format!("cannot be read: {e}")))?;
        if bytes.len() > FILE_MAX {
            return Err(failed(&too_large()));
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = before.iter().filter(|b| **b == b'\n').count() + 1;
            failed(&format!("is not a text file: line {line} is not UTF-8"))
        })?;
        let plan = Plan::parse(&text, &name, &base, kinds)?;
        Ok(Plan { path: Some(full), ..plan })
    }

    /// Reads `text`, which is reported under `name`. The paths in it are relative to `base`.
    pub fn parse(text: &str, name: &str, base: &Path, kinds: &[Kind]) -> Result<Plan, Report> {
        Plan::parse_joined(text, name, base, &BTreeMap::new(), kinds)
    }

    /// As [`parse`](Plan::parse), with devices from files that are `elsewhere`: their folders, by the devices' names.
    pub(crate) fn parse_joined(
        text: &str,
        name: &str,
        base: &Path,
        elsewhere: &BTreeMap<String, PathBuf>,
        kinds: &[Kind],
    ) -> Result<Plan, Report> {
        if text.len() > FILE_MAX {
            return Err(Report::of_file(name, &too_large()));
        }
        let source = Arc::new(Source::new(name, text));
        let mut report = Report::new(Arc::clone(&source));
        let (document, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            match spelling::language(text) {
                Some(language) => report.error(Subject::File, None, None, &no_toml(language)),
                None => syntax(&errors, &source, &mut report),
            }
            report.sort();
            return Err(report);
        }
        let (drafts, exports) = read(document.get_ref(), base, elsewhere, kinds, &mut report);
        let order = check::devices(&drafts, &mut report);
        check::layers(&drafts, document.get_ref().contains_key("hierarchy"), &source, &mut report);
        let persistent = persistent::read(document.get_ref(), &drafts, base, kinds, &mut report);
        check::exports(&drafts, &exports, &mut report);
        report.sort();
        if report.has_errors() {
            return Err(report);
        }
        let mut drafts: Vec<Option<Draft>> = drafts.into_iter().map(Some).collect();
        let devices = order.into_iter().filter_map(|i| finished(drafts[i].take()?)).collect();
        let kinds = kinds.into();
        Ok(Plan {
            source,
            base: base.into(),
            devices,
            exports,
            persistent,
            warnings: report,
            kinds,
            path: None,
        })
    }

    /// The devices, bottom-up: each comes after its children.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The exports in the order of the file.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// The content of `[hierarchy]`, if the hierarchy is persistent.
    pub fn persistent(&self) -> Option<&Persistent> {
        self.persistent.as_ref()
    }

    /// The warnings about probable mistakes.
    pub fn warnings(&self) -> &Report {
        &self.warnings
    }

    /// The name of the file in reports.
    pub fn file(&self) -> &str {
        &self.source.name
    }

    /// The absolute path of the file; `None` if the plan is not from a file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// True if the same is meant by `other`: a change from one to the other has no steps.
    pub fn means(&self, other: &Plan) -> bool {
        crate::change::between(self, other).is_ok_and(|steps| steps.is_empty())
    }

    /// The hierarchies of the file: the parts that no device connects. Each can live on a core of its own. A persistent
    /// hierarchy is one part, whatever its devices.
    pub fn components(self) -> Vec<Plan> {
        if self.persistent.is_some() {
            return vec![self];
        }
        let part_of = check::components(&self.devices);
        let parts = part_of.values().max().map_or(0, |last| last + 1);
        let mut plans: Vec<Plan> =
            (0..parts).map(|_| Plan { devices: Vec::new(), exports: Vec::new(), ..self.empty() }).collect();
        for export in self.exports {
            plans[part_of[&export.device]].exports.push(export);
        }
        for device in self.devices {
            plans[part_of[&device.name]].devices.push(device);
        }
        plans
    }

    /// The hierarchies of the file that have one of these devices, together.
    pub fn around(self, devices: &[String]) -> Plan {
        let empty = self.empty();
        let parts = self.components().into_iter();
        let parts = parts.filter(|part| part.devices.iter().any(|device| devices.contains(&device.name)));
        let both = |mut one: Plan, other: Plan| {
            one.devices.extend(other.devices);
            one.exports.extend(other.exports);
            one
        };
        parts.reduce(both).unwrap_or(empty)
    }

    /// The same file with nothing in it. Warnings were about the file as a whole.
    fn empty(&self) -> Plan {
        Plan {
            source: Arc::clone(&self.source),
            base: self.base.clone(),
            devices: Vec::new(),
            exports: Vec::new(),
            persistent: None,
            warnings: Report::new(Arc::clone(&self.source)),
            kinds: Arc::clone(&self.kinds),
            path: self.path.clone(),
        }
    }
}

fn too_large() -> String {
    format!("is larger than {} KiB, and no hierarchy is", FILE_MAX >> 10)
}

fn finished(draft: Draft) -> Option<Device> {
    let Draft { name, kind, over, has_metadata, leaving, survives, may_miss, keys, base, header, .. } = draft;
    Some(Device { name, kind: kind?, over, has_metadata, leaving, survives, may_miss, keys, base, header })
}

fn no_toml(language: &str) -> String {
    format!(
        "looks like {language}, and a hierarchy file is TOML: a table [device.NAME] with `type = \"...\"` and other \
         keys for each device, and [export.NAME] for each export; docs/hierarchy.md has examples, `lamina design` \
         writes one"
    )
}

/// Reports the mistakes in the TOML itself.
fn syntax(errors: &[toml::de::Error], source: &Source, report: &mut Report) {
    let mut second_header = None;
    for e in errors {
        let at = e.span().unwrap_or_default();
        let subject = subject_at(source, at.start);
        if e.message() != "duplicate key" {
            report.error(subject, None, Some(at.clone()), &plain_syntax(e.message(), source.get(at)));
            continue;
        }
        let in_header = source.lines_back_from(at.start).next().is_some_and(is_header);
        let key = source.get(at.clone()).to_owned();
        // The keys of a table that is there twice are not mistakes of their own.
        if in_header {
            second_header = Some(subject.clone());
            report.error(subject, None, Some(at), "is there twice");
        } else if second_header.as_ref() != Some(&subject) {
            report.error(subject, Some(&key), Some(at), "is there twice");
        }
    }
}

/// Messages about frequent mistakes that need no knowledge of TOML.
fn plain_syntax(message: &str, at: &str) -> String {
    let word = at.trim();
    let is_word = word.starts_with(|c: char| c.is_ascii_alphabetic());
    match message.split_once(',').map_or(message, |(what, _)| what) {
        "invalid boolean" | "string values must be quoted" if is_word => {
            format!("a string stands in quotes: \"{word}\"")
        }
        "invalid basic string" => "the string does not end: there is no closing quote".into(),
        "unclosed table" => "the header does not end: there is no closing \"]\"".into(),
        _ => message.replace('`', "\""),
    }
}

fn is_header(line: &str) -> bool {
    line.trim_start().starts_with('[')
}

/// The table in which a byte of a file stands that could not be read: the last header before it.
fn subject_at(source: &Source, at: usize) -> Subject {
    let header = source.lines_back_from(at).find_map(|line| line.trim_start().strip_prefix('['));
    if header.is_some_and(|rest| rest.trim_start().starts_with("hierarchy]")) {
        return Subject::Hierarchy;
    }
    let name = |kind: &str| {
        let name = header?.strip_prefix(kind)?.split([']', '.', '#']).next()?;
        Some(name.trim().trim_matches('"').to_owned())
    };
    match (name("device."), name("export.")) {
        (Some(name), _) => Subject::Device(name),
        (_, Some(name)) => Subject::Export(name),
        _ => Subject::File,
    }
}

/// Reads all tables, in the order of the file.
fn read(
    root: &DeTable<'_>,
    base: &Path,
    elsewhere: &BTreeMap<String, PathBuf>,
    kinds: &[Kind],
    report: &mut Report,
) -> (Vec<Draft>, Vec<Export>) {
    for (key, value) in root {
        let (name, at) = (key.get_ref(), key.span());
        if !TABLES.contains(&name.as_ref()) {
            let what = if value.get_ref().is_table() { "table" } else { "key" };
            let hint = match report.hint(name, TABLES) {
                none if none.is_empty() => {
                    ": a file has [device.NAME], [export.NAME] and perhaps [hierarchy]".into()
                }
                hint => hint,
            };
            let message = format!("unknown {what} {}{hint}", quoted(name));
            report.error(Subject::File, None, Some(at), &message);
        }
    }
    let devices = tables(root, "device", Subject::Device, report);
    let base_of = |device: &str| elsewhere.get(device).map_or(base, PathBuf::as_path);
    let drafts = devices.iter().map(|(n, section)| device::read(n, section, base_of(n), kinds, report));
    let drafts = drafts.collect();
    let exports = tables(root, "export", Subject::Export, report);
    let exports = exports.iter().filter_map(|(n, section)| export::read(n, section, base, report)).collect();
    (drafts, exports)
}

/// The tables `[kind.NAME]`, in the order of the file. An entry that is no table or has no proper name is reported.
fn tables<'a>(
    root: &'a DeTable<'a>,
    kind: &str,
    subject: fn(String) -> Subject,
    report: &mut Report,
) -> Vec<(&'a str, Section<'a>)> {
    let Some(value) = root.get(kind) else {
        // Unless something else was meant to be one.
        if kind == "device"
            && root.keys().all(|key| ["export", "hierarchy"].contains(&key.get_ref().as_ref()))
        {
            report.error(Subject::File, None, None, "there is no device: write [device.NAME]");
        }
        return Vec::new();
    };
    let wrong = format!("write [{kind}.NAME]");
    let DeValue::Table(named) = value.get_ref() else {
        report.error(Subject::File, Some(kind), Some(value.span()), &wrong);
        return Vec::new();
    };
    if named.is_empty() || named.len() > TABLES_MAX {
        let message = if named.is_empty() { wrong } else { format!("has more than {TABLES_MAX} tables") };
        report.error(Subject::File, Some(kind), Some(value.span()), &message);
        return Vec::new();
    }
    if let Some((key, _)) = named.iter().find(|(_, value)| !value.get_ref().is_table()) {
        let message = format!("{wrong}: {} stands in [{kind}] itself", quoted(key.get_ref()));
        report.error(Subject::File, Some(kind), Some(key.span()), &message);
    }
    let mut found = Vec::new();
    for (name, value) in named {
        if let DeValue::Table(table) = value.get_ref() {
            let (header, subject) = (name.span(), subject(name.get_ref().to_string()));
            if let Some(message) = bad_name(name.get_ref()) {
                report.error(subject.clone(), None, Some(header.clone()), &message);
            }
            found.push((name.get_ref().as_ref(), Section { subject, header, table }));
        }
    }
    found.sort_by_key(|(_, section)| section.header.start);
    found
}

/// The mistake in a name. Names go into file names, addresses, metrics and logs.
pub fn bad_name(name: &str) -> Option<String> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Some(format!("a name has 1 to {NAME_MAX} characters, and this one {}", name.len()));
    }
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if let Some(c) = name.chars().find(|c| !good(*c)) {
        return Some(format!(
            "a name is made of letters, digits, \"-\", \"_\" and \".\", not of {}",
            quoted(&c.to_string())
        ));
    }
    (!name.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .then(|| "a name begins with a letter or a digit".into())
}

#[cfg(test)]
mod tests;
