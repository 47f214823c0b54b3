//! `lamina assemble`: from devices, under any names, to the hierarchy that they carry.
//!
//! Devices are found by their superblocks, never by their paths. If members are missing among the named devices, the
//! folders of the present ones are searched for them. The output is the hierarchy file with the paths as they were
//! found; nothing is written.

use crate::apply::wanted;
use crate::cli::{self, ServeOptions};
use crate::daemon;
use crate::events::Journal;
use crate::exit::Failure;
use crate::files;
use crate::look::Device;
use lamina_graph::{Plan, hints, members_of, with_paths, with_places};
use lamina_metadata::member::{Candidate, Gathered, Refusal, gather, judge};
use lamina_metadata::superblock::Found;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most entries of a folder that are looked at.
const FOLDER_MAX: usize = 4096;

/// Runs `lamina assemble`.
pub fn run(args: &cli::Assemble, journal: &Arc<Journal>) -> Result<(), Failure> {
    if !args.serve {
        let (found, text) = assembled(&args.devices, false)?;
        let base = hints(&found.superblock.description).base;
        let text = with_places(&text, base.as_deref(), &files::kinds()).unwrap_or(text);
        let mut out = std::io::stdout().lock();
        return Ok(out.write_all(text.as_bytes())?);
    }
    let (file, plan) = carried(&args.devices, &args.options, Folder::Current)?;
    daemon::serve_plans(vec![plan], &file, &args.options, journal)
}

/// Where relative paths of a hierarchy begin that has no file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Folder {
    /// In the current folder.
    Current,
    /// Where they began when the members were written, if they say that.
    OfMembers,
}

/// The hierarchy that devices carry, for serving it, and a possible name of its file. Places that it names besides its
/// members must be trusted.
pub fn carried(
    devices: &[PathBuf],
    options: &ServeOptions,
    from: Folder,
) -> Result<(PathBuf, Plan), Failure> {
    let (found, text) = assembled(devices, options.degraded)?;
    let here = std::env::current_dir().map_err(Failure::failed)?;
    let base = hints(&found.superblock.description).base.filter(|_| from == Folder::OfMembers);
    let file = PathBuf::from(format!("{}.toml", found.superblock.hierarchy_name));
    let base = base.unwrap_or_else(|| here.clone());
    let plan = Plan::parse(&text, &file.display().to_string(), &base, &files::kinds());
    let plan = plan.map_err(|report| Failure::File(files::shown(&report)))?;
    trusted(&plan, &here, options.trust)?;
    Ok((file, plan.from_members(&found.superblock.description)))
}

/// Refuses what is not trusted. A person is asked.
fn trusted(plan: &Plan, folder: &Path, trust: bool) -> Result<(), Failure> {
    let reaches = plan.reaches(folder);
    if trust || reaches.is_empty() {
        return Ok(());
    }
    let list = reaches.join("\n  ");
    if std::io::stderr().is_terminal() {
        eprintln!("its members name other places of this host:\n  {list}");
    }
    if wanted("open that?") {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the members name other places of this host, perhaps chosen by an attacker who wrote to these devices:\n  \
         {list}\n`--trust` opens them; `lamina assemble` prints the file, for reading it first"
    )))
}

/// The hierarchy that devices carry, and its file.
fn assembled(paths: &[PathBuf], degraded: bool) -> Result<(Gathered, String), Failure> {
    let mut devices = Devices::default();
    for path in paths {
        devices.add(path)?;
    }
    let found = find(&mut devices, degraded)?;
    let text = accepted(&devices, &found, degraded)?;
    Ok((found, text))
}

/// Devices that may be members, each once, whatever its paths.
#[derive(Default)]
struct Devices {
    candidates: Vec<Candidate>,
    paths: Vec<PathBuf>,
    seen: BTreeSet<(u64, u64)>,
}

impl Devices {
    /// Adds a named device, which must be there. Of a folder, all that is in it.
    fn add(&mut self, path: &Path) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
        if path.is_dir() {
            self.search(path, |_| true).map_err(failed)?;
            return Ok(());
        }
        match Device::open(path).map_err(failed)? {
            Some(device) => self.take(path, &device, |_| true),
            None => {
                let path = path.display();
                return Err(Failure::usage(format!(
                    "{path}: neither a file nor a block device, nor a folder"
                )));
            }
        }
        Ok(())
    }

    /// Adds what is in a folder and `wanted`. A device that cannot be opened is passed over.
    fn search(&mut self, folder: &Path, wanted: impl Fn(&Found) -> bool) -> std::io::Result<()> {
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(folder)?.take(FOLDER_MAX).flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            if let Ok(Some(device)) = Device::open(&path) {
                // Files of a folder were not named: those that are no members are not even mentioned.
                self.take(&path, &device, |found| !found.is_absent() && wanted(found));
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &Path, device: &Device, wanted: impl Fn(&Found) -> bool) {
        let found = device.superblocks();
        if wanted(&found) && self.seen.insert(device.identity()) {
            self.candidates.push(Candidate::new(path.display().to_string(), found));
            self.paths.push(path.to_owned());
        }
    }
}

/// The hierarchy that the devices carry: all of it, but for members that are evicted, and if `degraded` for others.
fn find(devices: &mut Devices, degraded: bool) -> Result<Gathered, Failure> {
    let first = gather(&devices.candidates).map_err(|refusals| refused(&refusals))?;
    let found = if missing(&first, true).is_empty() {
        first
    } else {
        let folders: BTreeSet<PathBuf> =
            first.members.values().map(|n| folder_of(&devices.paths[*n])).collect();
        let hierarchy = first.superblock.hierarchy;
        for folder in folders {
            // A folder that cannot be read has nothing to add.
            let _ = devices.search(&folder, |found| found.whole().any(|copy| copy.hierarchy == hierarchy));
        }
        let again = gather(&devices.candidates).map_err(|refusals| refused(&refusals))?;
        elsewhere(devices, again)?
    };
    for other in &found.others {
        eprintln!("lamina: {}", line(other));
    }
    let missing: Vec<String> = missing(&found, false).iter().map(|name| format!("{name:?}")).collect();
    if missing.is_empty() || degraded {
        return Ok(found);
    }
    let superblock = &found.superblock;
    Err(Failure::failed(format!(
        "hierarchy {:?} ({}), generation {}: of its {} members {} is missing; name the devices that carry it, or the \
         folder they are in",
        superblock.hierarchy_name,
        superblock.hierarchy,
        superblock.generation,
        superblock.members,
        missing.join(" and ")
    )))
}

/// The same with members that are missing and still where they were when the hierarchy was changed.
fn elsewhere(devices: &mut Devices, found: Gathered) -> Result<Gathered, Failure> {
    let missing = missing(&found, true);
    let hierarchy = found.superblock.hierarchy;
    let hints = hints(&found.superblock.description);
    let before = devices.candidates.len();
    for path in missing.iter().filter_map(|name| hints.paths.get(name)) {
        if let Ok(Some(device)) = Device::open(path) {
            devices.take(path, &device, |found| found.whole().any(|copy| copy.hierarchy == hierarchy));
        }
    }
    match devices.candidates.len() > before {
        true => gather(&devices.candidates).map_err(|refusals| refused(&refusals)),
        false => Ok(found),
    }
}

/// The names of the members that were not found; also of those that are evicted, if they are `wanted` as well.
fn missing(found: &Gathered, wanted: bool) -> Vec<String> {
    let names = members_of(&found.superblock.description, &files::kinds());
    let name = |index: &u32| names.get(*index as usize).cloned().unwrap_or(format!("number {index}"));
    let needed = |name: &String| match found.evicted.contains_key(name) {
        true => wanted && !found.members.contains_key(name),
        false => true,
    };
    found.missing.iter().map(name).filter(needed).collect()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => ".".into(),
    }
}

/// The hierarchy file with the paths as they were found, if the found devices are in order.
///
/// A member that was not found has the path `missing-NAME`.
fn accepted(devices: &Devices, found: &Gathered, degraded: bool) -> Result<String, Failure> {
    let named = |(name, n): (&String, &usize)| Candidate {
        device: name.clone(),
        found: devices.candidates[*n].found.clone(),
        // Serving tells whether the device can be a member.
        anew: true,
    };
    let named: Vec<Candidate> = found.members.iter().map(named).collect();
    let missing = missing(found, true);
    let absent: Vec<&str> = missing.iter().map(String::as_str).collect();
    let assembly = judge(&found.superblock.hierarchy_name, &named, &absent, degraded)
        .map_err(|refusals| refused(&refusals))?;
    for name in &missing {
        eprintln!("lamina: {name}: was not found; the hierarchy goes on without it");
    }
    for note in &assembly.notes {
        eprintln!("lamina: {}: {}", note.device, note.message);
    }
    let mut paths = BTreeMap::new();
    for (name, n) in &found.members {
        let path = std::path::absolute(&devices.paths[*n]).map_err(Failure::failed)?;
        let Some(path) = path.to_str() else {
            let path = path.display();
            return Err(Failure::failed(format!("{path}: the path is no text, and cannot stand in a file")));
        };
        paths.insert(name.clone(), path.to_owned());
    }
    for name in missing {
        paths.insert(name.clone(), format!("missing-{name}"));
    }
    let first = assembly.members.first().map_or("", |member| &member.description);
    with_paths(first, &paths).ok_or_else(|| Failure::failed("the members carry no valid hierarchy file"))
}

fn line(refusal: &Refusal) -> String {
    match &refusal.device {
        Some(device) => format!("{device}: {}", refusal.message),
        None => refusal.message.clone(),
    }
}

fn refused(refusals: &[Refusal]) -> Failure {
    Failure::failed(refusals.iter().map(line).collect::<Vec<_>>().join("\nlamina: "))
}
