//! What policies of a tier make of block traces: time, bytes moved and hits, over models of a fast and a slow device.
//!
//! `cargo run --release -p lamina-layers --example tiers -- FOLDER [--linear] [--depth=N] [--only=TRACE]
//! [--generated] [--quick] [--spc=FOLDER]`: all traces of a folder, in the formats that `hit_rates` reads, of each at
//! most the first 300,000 requests, or workloads that are generated. The fast device is a SATA SSD of 5, 20 and 50% of
//! the footprint, the slow one a disk of 7200 turns a minute without its buffer of writes: by its geometry, or by the
//! paper's line as large as the trace's volumes (`--linear`). Prints a line of JSON for each trace and size. `--quick`
//! runs LRU alone. `--spc` writes each trace, its volumes one behind the other, in SPC's format, as `lamina bench`
//! replays it: `tools/bench-tiers` compares with the layer `tier` itself.

mod baselines;
mod engine;
mod generated;
mod oracles;
mod order;
mod plan;
// Of these `hit_rates` uses more.
#[allow(dead_code)]
#[path = "../hit_rates/policy.rs"]
mod policy;
#[path = "../hit_rates/s3fifo.rs"]
mod s3fifo;
#[path = "../hit_rates/trace.rs"]
mod trace;

use baselines::{Accelerate, Extents, Lru, Shares};
use engine::{Engine, Score};
use lamina_block::{Bytes, Time};
use lamina_drive::{Linear, Mechanism, Model, Op, SECTOR};
use oracles::{Belady, Placed};
use plan::Policy;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};
use trace::{BLOCK, Request, Trace};

/// Sizes of the fast device, in percent of the footprint.
const SIZES: [usize; 3] = [5, 20, 50];
/// Requests of a trace that are replayed.
const REQUESTS: usize = 300_000;
/// Bytes to a multiple of which a volume begins.
const ALIGNMENT: u64 = 1 << 20;

/// The policies, in the order of their columns.
const POLICIES: [&str; 9] =
    ["all slow", "all fast", "50/50", "random", "LRU", "S3-FIFO", "extents", "Belady", "placed"];

/// What is asked of the program.
#[derive(Default)]
struct Options {
    folder: PathBuf,
    linear: bool,
    generated: bool,
    /// LRU alone.
    quick: bool,
    /// Where traces go.
    spc: Option<PathBuf>,
    depth: usize,
    only: Option<String>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Option<Options> {
        let mut options = Options { depth: 1, ..Options::default() };
        for word in words {
            match word.split_once('=').unwrap_or((&word, "")) {
                ("--linear", _) => options.linear = true,
                ("--generated", _) => options.generated = true,
                ("--quick", _) => options.quick = true,
                ("--depth", depth) => options.depth = depth.parse().ok().filter(|depth| *depth > 0)?,
                ("--spc", folder) => options.spc = Some(folder.into()),
                ("--only", name) => options.only = Some(name.into()),
                (folder, "") if !folder.starts_with("--") => options.folder = folder.into(),
                _ => return None,
            }
        }
        (!options.folder.as_os_str().is_empty()).then_some(options)
    }
}

/// Puts the volumes of a trace one behind the other.
fn compact(mut trace: Trace) -> Trace {
    trace.requests.truncate(REQUESTS);
    let volume = |byte: u64| byte >> trace::VOLUME;
    let mut ends = std::collections::BTreeMap::<u64, u64>::new();
    for request in &trace.requests {
        let end = ends.entry(volume(request.bytes.start)).or_default();
        *end = (*end).max(request.bytes.end - (volume(request.bytes.start) << trace::VOLUME));
    }
    let (mut base, mut bases) = (0, std::collections::BTreeMap::new());
    for (volume, end) in ends {
        bases.insert(volume, base);
        base += end.next_multiple_of(ALIGNMENT);
    }
    for request in &mut trace.requests {
        let number = volume(request.bytes.start);
        let shift = (number << trace::VOLUME) - bases[&number];
        request.bytes = request.bytes.start - shift..request.bytes.end - shift;
    }
    Trace::new(&trace.name, trace.requests)
}

fn traces(options: &Options) -> io::Result<Vec<Trace>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(&options.folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.sort();
    let read = files.iter().filter_map(|file| Trace::read(file).transpose());
    let mut traces: Vec<Trace> = read.map(|trace| trace.map(compact)).collect::<io::Result<_>>()?;
    if options.generated {
        traces = generated::all();
    }
    traces.retain(|trace| options.only.as_ref().is_none_or(|only| trace.name.contains(only)));
    Ok(traces)
}

/// The models of the fast device and of the slow one.
fn models(trace: &Trace, linear: bool) -> Option<[Model; 2]> {
    let (fast, mut slow) = (Model::named("ssd-sata")?, Model::named("disk-7200")?);
    let end = trace.requests.iter().map(|request| request.bytes.end).max().unwrap_or(0);
    if linear {
        let line = Linear { constant_ms: 4.17, slope_ms: 16.5, hit_ms: 0.1, ..Linear::default() };
        slow.mechanism = Mechanism::Linear(Linear { cache: slow.cache().cloned(), ..line });
        slow.size = Bytes(end.next_multiple_of(ALIGNMENT) + 4 * ALIGNMENT);
    } else if let Mechanism::Rotational(keys) = &mut slow.mechanism {
        keys.write_buffer = None;
    }
    Some([fast, slow])
}

/// What each request takes a slow device alone, one after the other, in seconds.
fn alone(trace: &Trace, slow: &Model) -> Vec<f64> {
    let (mut drive, mut now) = (slow.drive(1), Time(0));
    let mut took = Vec::with_capacity(trace.requests.len());
    for (id, request) in trace.requests.iter().enumerate() {
        let (blocks, per_block) = (request.blocks(), BLOCK / SECTOR);
        let op = if request.is_write { Op::Write } else { Op::Read };
        let sectors = ((blocks.end - blocks.start) * per_block) as u32;
        drive.submit(now, id as u64, lamina_drive::Request { op, lbn: blocks.start * per_block, sectors });
        let end = drive.next().unwrap_or(now);
        drive.completed(end);
        took.push((end.0 - now.0) as f64 / 1e9);
        now = end;
    }
    took
}

/// One row: all policies on one trace and one size.
fn row(trace: &Trace, percent: usize, models: &[Model; 2], took: &[f64], options: &Options) -> Value {
    let blocks = (trace.footprint * percent / 100).max(1);
    let run = |policy: &mut dyn Policy| -> Score {
        Engine::new(policy, blocks, [&models[0], &models[1]], options.depth).run(trace)
    };
    let also = |run: &dyn Fn() -> Score| if options.quick { Score::default() } else { run() };
    let scores = [
        also(&|| run(&mut Shares(0))),
        also(&|| run(&mut Shares(100))),
        also(&|| run(&mut Shares(percent as u64))),
        also(&|| run(&mut Lru::small(blocks))),
        run(&mut Lru::new(blocks)),
        also(&|| run(&mut Accelerate::new(blocks))),
        also(&|| run(&mut Extents::new(blocks))),
        also(&|| run(&mut Belady::new(trace, blocks))),
        also(&|| run(&mut Placed::new(trace, took, blocks))),
    ];
    let of = |score: &Score| {
        json!({
            "seconds": score.seconds,
            "drained": score.drained,
            "moved_bytes": score.moved(),
            "hit_ratio": score.hits as f64 / score.asked.max(1) as f64,
        })
    };
    let known = POLICIES.iter().zip(&scores).filter(|(_, score)| **score != Score::default());
    let known: serde_json::Map<String, Value> =
        known.map(|(name, score)| ((*name).into(), of(score))).collect();
    json!({ "trace": trace.name, "percent": percent, "blocks": blocks, "size": size(trace), "policies": known })
}

/// Bytes of a volume that the trace needs.
fn size(trace: &Trace) -> u64 {
    let end = trace.requests.iter().map(|request| request.bytes.end).max().unwrap_or(0);
    end.next_multiple_of(ALIGNMENT) + 4 * ALIGNMENT
}

/// Writes a trace in SPC's format (*SPC Trace File Format Specification*, 1.0.1), without times.
fn write_spc(trace: &Trace, folder: &Path) -> io::Result<()> {
    let mut out = io::BufWriter::new(fs::File::create(folder.join(format!("{}.spc", trace.name)))?);
    for Request { is_write, bytes } in &trace.requests {
        let op = if *is_write { 'w' } else { 'r' };
        writeln!(out, "0,{},{},{op},0.0", bytes.start / SECTOR, bytes.end - bytes.start)?;
    }
    out.flush()
}

/// All rows, by as many threads as there are processors.
fn rows(traces: &[Trace], options: &Options) -> Vec<Value> {
    let prepared: Vec<([Model; 2], Vec<f64>)> = traces
        .iter()
        .filter_map(|trace| {
            let models = models(trace, options.linear)?;
            let took = alone(trace, &models[1]);
            Some((models, took))
        })
        .collect();
    let jobs: Vec<(usize, usize)> =
        (0..prepared.len()).flat_map(|trace| SIZES.map(|percent| (trace, percent))).collect();
    let next = std::sync::Mutex::new(jobs.iter().enumerate());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut done = Vec::new();
        while let Some((number, (trace, percent))) = next.lock().ok().and_then(|mut next| next.next()) {
            let (models, took) = &prepared[*trace];
            done.push((number, row(&traces[*trace], *percent, models, took, options)));
        }
        done
    };
    let mut rows: Vec<(usize, Value)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    rows.sort_by_key(|(number, _)| *number);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn main() -> ExitCode {
    let Some(options) = Options::parse(env::args().skip(1)) else {
        eprintln!(
            "usage: tiers FOLDER [--linear] [--depth=N] [--only=TRACE] [--generated] [--quick] [--spc=FOLDER]"
        );
        return ExitCode::from(2);
    };
    match traces(&options) {
        Ok(traces) if traces.is_empty() => {
            eprintln!("{}: no traces", options.folder.display());
            ExitCode::FAILURE
        }
        Ok(traces) => {
            let written = options
                .spc
                .iter()
                .try_for_each(|folder| traces.iter().try_for_each(|trace| write_spc(trace, folder)));
            if let Err(e) = written {
                eprintln!("--spc: {e}");
                return ExitCode::FAILURE;
            }
            rows(&traces, &options).iter().for_each(|row| println!("{row}"));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("{}: {e}", options.folder.display());
            ExitCode::FAILURE
        }
    }
}
