//! How people name a workload: `web:cached,clients=20`, `trace:vm1.csv.gz,depth=8`.

use crate::Workload;
use crate::replay::{Recorded, Replay, ReplayOptions};
use crate::trace::{self, Event, Format, Trace};
use crate::web::{self, CACHE_PAGES, Files, Layout, Web};
use lamina_block::Bytes;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// A workload by name and parameters.
///
/// ```text
///      web[:direct|:cached][,clients=50][,requests=50000][,cache=SIZE][,read=SIZE][,files=N][,large=SHARE]
///          [,metadata=no][,sleep=1]
///      trace:FILE[,format=NAME][,event=Q|D][,speed=1][,depth=N][,wrap=yes][,requests=N]
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Spec {
    /// The web file server.
    Web(web::Options, Layout),
    /// The replay of a trace.
    Trace(PathBuf, trace::Options, ReplayOptions),
}

/// The part that the workloads of a specification share: files that were laid out, a trace that was read.
#[derive(Clone, Debug)]
pub enum Prepared {
    /// Of `web`.
    Web(web::Options, Arc<Files>),
    /// Of `trace`.
    Trace(Arc<Recorded>),
}

impl Spec {
    /// Prepares the workload for a disk of `sectors` sectors. `seed` decides where files lie.
    pub fn prepare(&self, sectors: u64, seed: u64) -> Result<Prepared, String> {
        match self {
            Spec::Web(options, layout) => {
                Ok(Prepared::Web(*options, Arc::new(Files::lay_out(layout, sectors, seed)?)))
            }
            Spec::Trace(path, reading, replay) => {
                let open = |path: PathBuf| Trace::open(&path, *reading).map_err(|e| e.to_string());
                let traces = siblings(path)?.into_iter().map(open).collect::<Result<Vec<Trace>, String>>()?;
                let recorded = Recorded::read(traces, *replay, sectors);
                Ok(Prepared::Trace(Arc::new(recorded.map_err(|e| named(path, e))?)))
            }
        }
    }
}

impl Prepared {
    /// Whether the workload changes what is on the disk.
    pub fn changes(&self) -> bool {
        match self {
            Prepared::Web(..) => false,
            Prepared::Trace(recorded) => recorded.changes(),
        }
    }

    /// A run from the begin. Another seed: other draws, from the same files. A replay draws nothing.
    pub fn start(&self, seed: u64) -> Box<dyn Workload> {
        match self {
            Prepared::Web(options, files) => Box::new(Web::new(*options, Arc::clone(files), seed)),
            Prepared::Trace(recorded) => Box::new(Replay::new(Arc::clone(recorded))),
        }
    }
}

/// Errors of a line name the file already.
fn named(path: &Path, e: String) -> String {
    let name = path.display().to_string();
    if e.starts_with(&name) { e } else { format!("{name}: {e}") }
}

/// The files of a trace: for `NAME.blktrace.0` those of all processors.
fn siblings(path: &Path) -> Result<Vec<PathBuf>, String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let Some((stem, _)) =
        name.rsplit_once('.').filter(|(stem, end)| stem.ends_with(".blktrace") && is_number(end))
    else {
        return Ok(vec![path.to_owned()]);
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).map_err(|e| named(path, e.to_string()))?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let is_sibling = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.rsplit_once('.').is_some_and(|(other, end)| other == stem && is_number(end))
    };
    found.retain(is_sibling);
    // Records of one time stay in the order of the files.
    found.sort();
    Ok(found)
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Spec, String> {
        let (kind, rest) = match text.find([':', ',']) {
            Some(at) => (&text[..at], &text[at..]),
            None => (text, ""),
        };
        match kind {
            "web" => web(rest),
            "trace" => replay(rest.strip_prefix(':').unwrap_or_default()),
            _ => Err(format!("there is no workload {kind:?}: there are web[:cached] and trace:FILE")),
        }
    }
}

fn web(rest: &str) -> Result<Spec, String> {
    let (mut options, mut layout) = (web::Options::default(), Layout::default());
    let (how, keys) = match rest.strip_prefix(':') {
        Some(rest) => rest.split_once(',').unwrap_or((rest, "")),
        None => ("direct", rest.strip_prefix(',').unwrap_or(rest)),
    };
    match how {
        "direct" => {}
        "cached" => options.cache = Some(CACHE_PAGES),
        _ => return Err(format!("web:{how}: there are web:direct and web:cached")),
    }
    for (key, value) in pairs(keys)? {
        match key {
            "clients" => options.clients = number(key, value, 1.0, 100_000.0)? as u32,
            "requests" => options.requests = number(key, value, 1.0, 1e15)? as u64,
            "cache" if options.cache.is_some() => options.cache = Some(pages(key, value, 1 << 30)?),
            "read" => options.pages = pages(key, value, 1024)?,
            "metadata" => options.metadata = choose(key, value, &[("yes", true), ("no", false)])?,
            "sleep" => options.sleep = number(key, value, 0.0, 1e6)?,
            "files" => layout.files = Some(number(key, value, 1.0, 1e8)? as u32),
            "large" => layout.large = number(key, value, 0.0, 1.0)?,
            "cache" => return Err("cache: only web:cached has a page cache".into()),
            _ => return Err(unknown(key, "clients, requests, cache, read, files, large, metadata, sleep")),
        }
    }
    Ok(Spec::Web(options, layout))
}

fn replay(rest: &str) -> Result<Spec, String> {
    // A name may have commas: its end is before the first key.
    let mut parts: Vec<&str> = rest.split(',').collect();
    let name = parts.iter().skip(1).position(|part| part.contains('=')).map_or(parts.len(), |at| at + 1);
    let keys = parts.split_off(name).join(",");
    let path = parts.join(",");
    if path.is_empty() {
        return Err("trace: name the file, as in trace:vm1.csv.gz".into());
    }
    let (mut reading, mut replay) = (trace::Options::default(), ReplayOptions::default());
    for (key, value) in pairs(&keys)? {
        match key {
            "format" => reading.format = Some(choose(key, value, &Format::ALL)?),
            "event" => reading.event = choose(key, value, &[("Q", Event::Queued), ("D", Event::Dispatched)])?,
            "speed" => replay.speed = number(key, value, 1e-6, 1e6)?,
            "depth" => replay.depth = Some(number(key, value, 1.0, 65_536.0)? as u32),
            "wrap" => replay.wrap = choose(key, value, &[("yes", true), ("no", false)])?,
            "requests" => replay.requests = number(key, value, 1.0, 1e15)? as u64,
            _ => return Err(unknown(key, "format, event, speed, depth, wrap, requests")),
        }
    }
    Ok(Spec::Trace(path.into(), reading, replay))
}

fn unknown(key: &str, keys: &str) -> String {
    format!("there is no key {key:?} here: there are {keys}")
}

/// `a=1,b=2`
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').ok_or_else(|| format!("{part:?}: write KEY=VALUE"))).collect()
}

fn number(key: &str, value: &str, min: f64, max: f64) -> Result<f64, String> {
    let number = value.parse::<f64>().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("{key}={value}: a number from {min} to {max}"))
}

/// A size as a number of pages of 4 KiB.
fn pages(key: &str, value: &str, max: u64) -> Result<u32, String> {
    let pages =
        value.parse::<Bytes>().ok().map(|bytes| bytes.0 / 4096).filter(|pages| (1..=max).contains(pages));
    let pages = pages.ok_or_else(|| format!("{key}={value}: a size from 4KiB to {}", Bytes(max * 4096)))?;
    Ok(pages as u32)
}

fn choose<T: Copy>(key: &str, value: &str, choices: &[(&str, T)]) -> Result<T, String> {
    let chosen = choices.iter().find(|(name, _)| *name == value);
    chosen.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("{key}={value}: one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_have_names_and_parameters() {
        let paper = web::Options::default();
        let cached = web::Options { cache: Some(CACHE_PAGES), ..paper };
        let small = Layout { files: Some(300), large: 0.0 };
        for (text, wanted) in [
            ("web", Spec::Web(paper, Layout::default())),
            ("web:direct", Spec::Web(paper, Layout::default())),
            ("web:cached", Spec::Web(cached, Layout::default())),
            (
                "web,clients=3,read=8KiB",
                Spec::Web(web::Options { clients: 3, pages: 2, ..paper }, Layout::default()),
            ),
            ("web,sleep=0.125", Spec::Web(web::Options { sleep: 0.125, ..paper }, Layout::default())),
            (
                "web:direct,files=300,large=0,requests=10",
                Spec::Web(web::Options { requests: 10, ..paper }, small),
            ),
            (
                "web:cached,cache=1MiB",
                Spec::Web(web::Options { cache: Some(256), ..paper }, Layout::default()),
            ),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
        let (reading, default) = (trace::Options::default(), ReplayOptions::default());
        for (text, wanted) in [
            ("trace:a.csv", Spec::Trace("a.csv".into(), reading, default)),
            (
                "trace:a,b:c,speed=2.5",
                Spec::Trace("a,b:c".into(), reading, ReplayOptions { speed: 2.5, ..default }),
            ),
            (
                "trace:x,depth=4,wrap=yes,event=D,format=spc",
                Spec::Trace(
                    "x".into(),
                    trace::Options { format: Some(Format::Spc), event: Event::Dispatched },
                    ReplayOptions { depth: Some(4), wrap: true, ..default },
                ),
            ),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn wrong_ones_are_told_what_there_is() {
        for (text, says) in [
            ("", "there is no workload"),
            ("mail", "web[:cached] and trace:FILE"),
            ("web:both", "web:direct and web:cached"),
            ("web,clients=0", "from 1 to 100000"),
            ("web,clients", "write KEY=VALUE"),
            ("web,cache=1MiB", "only web:cached"),
            ("web:cached,cache=1", "from 4KiB"),
            ("web,size=1", "there are clients, requests"),
            ("web,sleep=-1", "sleep=-1: a number from 0 "),
            ("trace", "name the file"),
            ("trace:x,speed=0", "speed=0"),
            ("trace:x,speed=nan", "speed=nan"),
            ("trace:x,format=xml", "one of csv, spc"),
            ("trace:x,clients=2", "there are format"),
        ] {
            let wrong = text.parse::<Spec>().expect_err("it is wrong");
            assert!(wrong.contains(says), "{text}: {wrong}");
        }
    }
}
