//! Hit rates of cache eviction policies on block traces: LRU, ARC, S3-FIFO, a model of `accelerate`, and the
//! layer itself.
//!
//! `cargo run --release -p lamina-layers --example hit_rates -- FOLDER [--markdown] [--variants]`: all traces
//! of a folder, in the formats that `trace` names. Each at three sizes of the cache, in parts of the blocks
//! that the trace asks for at all. `--variants` shows what other choices would make of them. It fails if LRU
//! is not what the ARC paper published for it.

mod arc;
mod layer;
mod lru;
mod model;
mod policy;
mod s3fifo;
mod table;
mod trace;

use arc::Arc;
use lru::Lru;
use model::{Choice, LAMINA, Model, Rewrite};
use policy::{Hits, Policy, Score, run};
use s3fifo::S3Fifo;
use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};
use table::Table;
use trace::{BLOCK, Trace};

/// Sizes of the cache, in percent of the footprint.
const SIZES: [usize; 3] = [1, 5, 20];
/// Hit rates of LRU on the ARC paper's OLTP, by pages, as published.
const PUBLISHED: [(usize, f64); 5] =
    [(1_000, 32.83), (2_000, 42.47), (5_000, 53.65), (10_000, 60.70), (15_000, 64.63)];
/// Smaller caches are left out, in blocks.
const BLOCKS_MIN: usize = 64;

/// A trace, and a cache of so many percent.
struct Case<'a> {
    trace: &'a Trace,
    percent: usize,
    blocks: usize,
}

impl Case<'_> {
    /// The first cells of a row.
    fn front(&self) -> [String; 3] {
        [self.trace.name.clone(), format!("{}%", self.percent), self.blocks.to_string()]
    }
}

/// Makes a policy for a cache of so many blocks.
type Make = fn(usize) -> Box<dyn Policy>;

const POLICIES: [(&str, Make); 4] = [
    ("LRU", |blocks| Box::new(Lru::new(blocks))),
    ("ARC", |blocks| Box::new(Arc::new(blocks))),
    ("S3-FIFO", |blocks| Box::new(S3Fifo::new(blocks))),
    ("Lamina", |blocks| Box::new(Model::new(blocks, LAMINA))),
];

/// A small queue that is always as long, in percent.
const fn fixed(small: usize) -> Choice {
    Choice { small, between: [small; 2], ..LAMINA }
}

/// Other choices than Lamina's, each in one way.
const VARIANTS: [(&str, Choice); 36] = [
    ("as chosen", LAMINA),
    ("small 10%", fixed(10)),
    ("small 20%", fixed(20)),
    ("small 30%", fixed(30)),
    ("small 40%", fixed(40)),
    ("small 5% to 40%", Choice { between: [5, 40], ..LAMINA }),
    ("small 10% to 80%", Choice { between: [10, 80], ..LAMINA }),
    ("ghosts of main count once", Choice { loses: 1, ..LAMINA }),
    ("ghosts of main count thrice", Choice { loses: 3, ..LAMINA }),
    ("the latest ghosts are 9%", Choice { lately: 9, ..LAMINA }),
    ("to main when asked for once", Choice { threshold: 1, ..LAMINA }),
    ("the same, parts not counted", Choice { threshold: 1, parts: false, ..LAMINA }),
    ("parts not counted", Choice { parts: false, ..LAMINA }),
    ("to main when asked for three times", Choice { threshold: 3, ..LAMINA }),
    ("counts to 2", Choice { most: 2, ..LAMINA }),
    ("counts to 7", Choice { most: 7, ..LAMINA }),
    ("no ghosts", Choice { ghosts: 0, ..LAMINA }),
    ("ghosts 45%", Choice { ghosts: 45, ..LAMINA }),
    ("ghosts 90%", Choice { ghosts: 90, ..LAMINA }),
    ("ghosts 180%", Choice { ghosts: 180, ..LAMINA }),
    ("a write keeps the count", Choice { rewrite: Rewrite::Keeps, ..LAMINA }),
    ("a write forgets the count", Choice { rewrite: Rewrite::Forgets, ..LAMINA }),
    ("never compacted", Choice { compact: 0, ..LAMINA }),
    ("compacted when half is free", Choice { compact: 50, ..LAMINA }),
    ("compacted when a third is free", Choice { compact: 67, ..LAMINA }),
    ("compacted when a tenth is free", Choice { compact: 90, ..LAMINA }),
    ("no ends of streams", Choice { ends: false, ..LAMINA }),
    ("written in place", Choice { rewrite: Rewrite::InPlace, ..LAMINA }),
    ("also small requests pass", Choice { passing: 0, ..LAMINA }),
    ("streams of 256 KiB pass", Choice { stream: 256 << 10, ..LAMINA }),
    ("streams of 4 MiB pass", Choice { stream: 4 << 20, ..LAMINA }),
    ("no stream passes", Choice { stream: u64::MAX, ..LAMINA }),
    ("512 segments", Choice { segments: 512, ..LAMINA }),
    ("32 segments", Choice { segments: 32, ..LAMINA }),
    ("8 segments always free", Choice { free: 8, ..LAMINA }),
    ("a head for each request", Choice { heads: true, ..LAMINA }),
];

fn traces(folder: &PathBuf) -> io::Result<Vec<Trace>> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    files.sort();
    files.iter().filter_map(|file| Trace::read(file).transpose()).collect()
}

fn cases(traces: &[Trace]) -> Vec<Case<'_>> {
    let case = |trace| SIZES.map(|percent| Case { trace, percent, blocks: trace.footprint * percent / 100 });
    traces.iter().flat_map(case).filter(|case| case.blocks >= BLOCKS_MIN).collect()
}

/// LRU on OLTP, beside what was published; true if it is the same.
fn published(trace: &Trace, markdown: bool) -> bool {
    let mut table = Table::new(["pages", "published", "here"]);
    let mut same = true;
    for (blocks, rate) in PUBLISHED {
        let here = run(trace, &mut Lru::new(blocks)).all.rate();
        same &= (here - rate).abs() < 0.01;
        table.row([blocks.to_string(), format!("{rate:.2}"), format!("{here:.2}")]);
    }
    print!("{}", table.show("LRU on the OLTP trace of the ARC paper, percent of hits", markdown));
    same
}

/// What the policies make of each case; `pick` says what counts.
fn rates(title: &str, cases: &[Case], scores: &[Vec<Score>], pick: fn(&Score) -> Hits, markdown: bool) {
    let names = POLICIES.map(|(name, _)| name);
    let mut table = Table::new(["trace", "cache", "blocks"].into_iter().chain(names).chain(["over LRU"]));
    for (case, scores) in cases.iter().zip(scores) {
        let rates: Vec<f64> = scores.iter().map(|score| pick(score).rate()).collect();
        let back = rates.iter().map(|rate| format!("{rate:.2}"));
        table.row(case.front().into_iter().chain(back).chain([format!("{:+.2}", rates[3] - rates[0])]));
    }
    print!("{}", table.show(title, markdown));
}

/// Why Lamina has fewer hits than LRU, where it has: what it would have without what it does otherwise than S3-FIFO.
fn losses(cases: &[Case], scores: &[Vec<Score>], markdown: bool) {
    let ideal = Choice { rewrite: Rewrite::InPlace, ..LAMINA };
    let choices =
        [LAMINA, ideal, Choice { stream: u64::MAX, ..LAMINA }, Choice { stream: u64::MAX, ..ideal }];
    let mut table = Table::new([
        "trace",
        "cache",
        "blocks",
        "LRU",
        "S3-FIFO",
        "Lamina",
        "written in place",
        "no stream passes",
        "both",
    ]);
    for (case, scores) in cases.iter().zip(scores) {
        let [lru, .., s3fifo, lamina] = &scores[..] else { continue };
        if lamina.all.rate() > lru.all.rate() - 0.005 {
            continue;
        }
        let rate = |choice| run(case.trace, &mut Model::new(case.blocks, choice)).all.rate();
        let rates = [lru.all.rate(), s3fifo.all.rate()].into_iter().chain(choices.map(rate));
        table.row(case.front().into_iter().chain(rates.map(|rate| format!("{rate:.2}"))));
    }
    print!("{}", table.show("Where LRU has more hits, and why", markdown));
}

/// What the layer itself makes of the reads of each case, where there is a flash so small; beside it the
/// model, also with what it costs that requests come one by one.
fn layers(cases: &[Case], scores: &[Vec<Score>], markdown: bool) -> lamina_block::Result<()> {
    let alone = Choice { heads: true, ..LAMINA };
    let mut table = Table::new([
        "trace",
        "cache",
        "blocks",
        "device MiB",
        "LRU",
        "model",
        "with heads",
        "layer",
        "over LRU",
        "written",
    ]);
    for (case, scores) in cases.iter().zip(scores) {
        let [lru, .., model] = &scores[..] else { continue };
        let Some(device) = layer::device(case.blocks as u64) else { continue };
        let replay = layer::replay(case.trace, device)?;
        let alone = run(case.trace, &mut Model::new(case.blocks, alone));
        let rates = [lru.reads, model.reads, alone.reads, replay.reads].map(|reads| reads.rate());
        table.row(
            case.front()
                .into_iter()
                .chain([format!("{:.1}", (device * BLOCK) as f64 / f64::from(1 << 20))])
                .chain(rates.map(|rate| format!("{rate:.2}")))
                .chain([format!("{:+.2}", rates[3] - rates[0])])
                .chain([format!("{:.2}", replay.written as f64 / replay.asked as f64)]),
        );
    }
    print!("{}", table.show("The layer itself, reads only, percent of hits", markdown));
    Ok(())
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len() as f64
}

/// What other choices make of all cases: means, and how often more than LRU.
fn variants(cases: &[Case], scores: &[Vec<Score>], markdown: bool) {
    let sizes = SIZES.map(|percent| format!("{percent}%"));
    let head = ["choice"].into_iter().chain(sizes.iter().map(String::as_str));
    let mut table = Table::new(head.chain(["all", "reads", "over LRU", "better", "worse", "written"]));
    let mut line = |name: &str, scores: Vec<Score>, lru: &[Score], written: Option<f64>| {
        let both = || scores.iter().zip(lru).map(|(score, lru)| score.all.rate() - lru.all.rate());
        let of = |percent| cases.iter().zip(&scores).filter(move |(case, _)| case.percent == percent);
        let by_size = SIZES.map(|percent| mean(of(percent).map(|(_, score)| score.all.rate())));
        let means = [
            mean(scores.iter().map(|score| score.all.rate())),
            mean(scores.iter().map(|score| score.reads.rate())),
        ];
        let cells = by_size.into_iter().chain(means).map(|rate| format!("{rate:.2}"));
        let counts =
            [both().filter(|more| *more > 0.05).count(), both().filter(|more| *more < -0.05).count()];
        table.row(
            [name.to_string()]
                .into_iter()
                .chain(cells)
                .chain([format!("{:+.2}", mean(both()))])
                .chain(counts.map(|count| count.to_string()))
                .chain([written.map_or_else(String::new, |written| format!("{written:.2}"))]),
        );
    };
    let column = |number: usize| scores.iter().map(|scores| scores[number]).collect::<Vec<_>>();
    let lru = column(0);
    for (number, (name, _)) in POLICIES.iter().enumerate().take(3) {
        line(name, column(number), &lru, None);
    }
    for (name, choice) in VARIANTS {
        let mut written = Vec::new();
        let score = cases.iter().map(|case| {
            let mut model = Model::new(case.blocks, choice);
            let score = run(case.trace, &mut model);
            written.push((model.kept + model.asked) as f64 / score.all.of as f64);
            score
        });
        let score = score.collect();
        line(name, score, &lru, Some(mean(written.into_iter())));
    }
    print!("{}", table.show("Other choices, means over all of these", markdown));
}

fn main() -> ExitCode {
    let (options, folders): (Vec<String>, Vec<String>) =
        env::args().skip(1).partition(|word| word.starts_with("--"));
    let is_known = |word: &String| ["--markdown", "--variants"].contains(&word.as_str());
    let ([folder], true) = (&folders[..], options.iter().all(is_known)) else {
        eprintln!("usage: hit_rates FOLDER [--markdown] [--variants]");
        return ExitCode::from(2);
    };
    let has = |option: &str| options.iter().any(|word| word == option);
    let traces = match traces(&folder.into()) {
        Ok(traces) if traces.is_empty() => {
            eprintln!("{folder}: no traces");
            return ExitCode::FAILURE;
        }
        Ok(traces) => traces,
        Err(e) => {
            eprintln!("{folder}: {e}");
            return ExitCode::FAILURE;
        }
    };
    let markdown = has("--markdown");
    let cases = cases(&traces);
    let scores: Vec<Vec<Score>> = cases
        .iter()
        .map(|case| POLICIES.map(|(_, make)| run(case.trace, &mut *make(case.blocks))).into())
        .collect();
    rates("Reads and writes, percent of hits", &cases, &scores, |score| score.all, markdown);
    rates("Reads only, percent of hits", &cases, &scores, |score| score.reads, markdown);
    if let Err(e) = layers(&cases, &scores, markdown) {
        eprintln!("the layer: {e}");
        return ExitCode::FAILURE;
    }
    losses(&cases, &scores, markdown);
    if has("--variants") {
        variants(&cases, &scores, markdown);
    }
    match traces.iter().find(|trace| trace.name == "arc-oltp") {
        Some(trace) if !published(trace, markdown) => {
            eprintln!("LRU is not what was published");
            ExitCode::FAILURE
        }
        Some(_) | None => ExitCode::SUCCESS,
    }
}
