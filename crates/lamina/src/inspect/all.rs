//! `lamina scan`: the disks of this machine, or those that are named: contents, users, and the hierarchies that they
//! carry. Only looks, as `lamina inspect` does.

use super::{Report, look, member::Superblock};
use crate::cli;
use crate::events::shown;
use crate::exit::Failure;
use crate::show::table;
use lamina_block::Bytes;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The block devices of this machine, partitions included.
const DEVICES: &str = "/sys/class/block";
/// The most entries of a folder that are looked at.
const FOLDER_MAX: usize = 4096;

/// A disk that was looked at.
#[derive(Serialize)]
#[serde(untagged)]
enum Disk {
    Seen(Box<Report>),
    /// It could not be opened, or read.
    Failed {
        path: String,
        error: String,
    },
}

/// Runs `lamina scan`.
pub fn run(args: &cli::Scan) -> Result<(), Failure> {
    let disks = match args.devices.is_empty() {
        true => of_machine().map_err(|e| Failure::failed(format!("{DEVICES}: {e}")))?,
        false => named(&args.devices)?,
    };
    let mut out = std::io::stdout().lock();
    match args.json {
        true => {
            serde_json::to_writer_pretty(&mut out, &disks).map_err(std::io::Error::from)?;
            Ok(writeln!(out)?)
        }
        false => Ok(out.write_all(text(&disks).as_bytes())?),
    }
}

/// All block devices that have a size. The kernel writes `!` for a slash of a device's name.
fn of_machine() -> std::io::Result<Vec<Disk>> {
    let entries = std::fs::read_dir(DEVICES)?.flatten();
    let names: BTreeSet<String> =
        entries.map(|e| e.file_name().to_string_lossy().replace('!', "/")).collect();
    let disks = names.iter().filter_map(|name| disk(&Path::new("/dev").join(name)));
    Ok(disks.filter(|disk| !matches!(disk, Disk::Seen(report) if report.size == 0)).collect())
}

/// Disks and images, and those in folders.
fn named(paths: &[PathBuf]) -> Result<Vec<Disk>, Failure> {
    let mut disks = Vec::new();
    for path in paths {
        let failed = |e: std::io::Error| Failure::failed(format!("{}: {e}", path.display()));
        match path.is_dir() {
            true => {
                let entries = std::fs::read_dir(path).map_err(failed)?.take(FOLDER_MAX).flatten();
                let paths: BTreeSet<PathBuf> = entries.map(|entry| entry.path()).collect();
                disks.extend(paths.iter().filter_map(|path| disk(path)));
            }
            false => disks.push(Disk::Seen(super::inspect(path)?.into())),
        }
    }
    Ok(disks)
}

/// The disk at a path; `None` if there is neither a file nor a block device.
fn disk(path: &Path) -> Option<Disk> {
    match look(path) {
        Ok(report) => report.map(|report| Disk::Seen(report.into())),
        Err(e) => Some(Disk::Failed { path: path.display().to_string(), error: e.to_string() }),
    }
}

fn text(disks: &[Disk]) -> String {
    let titles = ["DEVICE", "SIZE", "CONTENTS", "USED BY"];
    let rows: Vec<Vec<String>> = disks
        .iter()
        .map(|disk| match disk {
            Disk::Seen(report) => vec![
                shown(&report.path),
                Bytes(report.size).rounded(),
                contents(report),
                if report.holders.is_empty() { "-".into() } else { shown(&report.holders.join(", ")) },
            ],
            Disk::Failed { path, error } => vec![shown(path), "-".into(), error.clone(), "-".into()],
        })
        .collect();
    let mut out = table(&titles, titles.len(), &rows);
    hierarchies(&mut out, disks);
    out
}

fn contents(report: &Report) -> String {
    if let Some(member) = superblock(report) {
        let (name, number, members) = (&member.member, member.index + 1, member.members);
        return format!("member {name:?} ({number} of {members}) of {:?}", member.hierarchy);
    }
    let names: Vec<&str> = report.signatures.iter().map(|found| found.name).collect();
    if names.is_empty() { "no known signature".into() } else { names.join(", ") }
}

fn superblock(report: &Report) -> Option<&Superblock> {
    report.member.as_ref()?.superblock.as_ref()
}

/// A line for each hierarchy that has a member here.
fn hierarchies(out: &mut String, disks: &[Disk]) {
    let mut found: BTreeMap<(&str, &str), Vec<(&str, &Superblock)>> = BTreeMap::new();
    for disk in disks {
        if let Disk::Seen(report) = disk
            && let Some(member) = superblock(report)
        {
            let hierarchy = (&member.hierarchy[..], &member.hierarchy_uuid[..]);
            found.entry(hierarchy).or_default().push((&report.path, member));
        }
    }
    for ((name, uuid), members) in found {
        let newest = members.iter().map(|(_, member)| member.generation).max().unwrap_or_default();
        let now: Vec<_> = members.iter().filter(|(_, member)| member.generation == newest).collect();
        let here: BTreeSet<u32> = now.iter().map(|(_, member)| member.index).collect();
        let all = now.first().map_or(0, |(_, member)| member.members as usize);
        let _ = match here.len() == all {
            true => {
                let paths: Vec<String> = now.iter().map(|(path, _)| quoted(path)).collect();
                let has = if all == 1 {
                    "its only member is here".into()
                } else {
                    format!("all {all} members are here")
                };
                writeln!(out, "{name} ({uuid}): {has}; `lamina assemble {}` prints its file", paths.join(" "))
            }
            false => writeln!(out, "{name} ({uuid}): {} of {all} members are here", here.len()),
        };
    }
}

/// A path as a word of a shell.
fn quoted(path: &str) -> String {
    let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c));
    if is_plain { path.to_owned() } else { format!("'{}'", shown(path).replace('\'', r"'\''")) }
}
