//! `satf` with nothing but a calibrated model, beside SPTF that knows the drive, over drives that tell nothing but
//! times: models of drives, and the example `hidden_drive`, which shares no code with them.
//!
//! A gain is what the mean response time of random reads is shorter than with `sstf`. DiskSim's figures for its model
//! of a Cheetah 15K.5 at 200 reads a second are 25.78 ms with SSTF and 17.79 ms with SPTF.
//!
//! `LAMINA_SEEDS=first..last` asks hidden drives of other seeds than the usual one.

#[path = "../child/mod.rs"]
mod child;
mod disk;
mod drives;
#[path = "../measured/mod.rs"]
mod measured;
mod models;
mod queue;

use drives::{Kind, atlas_10k};
use lamina_drive::Model;
use lamina_timing::schedule::{Keys, Name};
use queue::{Responses, poisson, run};

/// Reads of a run.
const READS: u64 = 8_000;
/// Reads that measure how long the drive takes for one.
const SINGLE: u64 = 2_000;

/// Milliseconds that random reads take, one at a time in the order of arrival.
fn service_ms(kind: &Kind) -> f64 {
    let mut disk = kind.on(1);
    // So seldom that none waits.
    let reads = poisson(0.1, disk.sectors(), 1, SINGLE);
    let policy = Keys::default().policy(None).expect("a policy");
    run(&mut *disk, Some(policy), &reads).mean
}

/// Reads a second that load a drive as 200 load the disk of DiskSim's figures: beyond what it can do in the order of
/// their arrival.
fn rate(kind: &Kind) -> f64 {
    200.0 * service_ms(&Kind::named("cheetah-15k5")) / service_ms(kind)
}

/// A policy with a model, if it needs one.
fn responses(kind: &Kind, policy: Option<Name>, model: Option<&Model>, seed: u64, rate: f64) -> Responses {
    let mut disk = kind.on(seed);
    let reads = poisson(rate, disk.sectors(), seed, READS);
    let keys = |policy| Keys { policy, ..Keys::default() };
    let policy = policy.map(|policy| keys(policy).policy(model).expect("a policy"));
    run(&mut *disk, policy, &reads)
}

/// How `satf` does by a model: the share of what SPTF gains, and the longest response in parts of C-LOOK's.
struct Share {
    gain: f64,
    longest: f64,
}

/// The shares of a model over a drive, for each seed.
fn shares(name: &str, kind: &Kind, how: &str, model: &Model) -> Vec<Share> {
    let rate = rate(kind);
    let mut shares = Vec::new();
    for seed in [1, 2, 3] {
        let of = |policy, model| responses(kind, policy, model, seed, rate);
        let (sstf, cscan) = (of(Some(Name::Sstf), None), of(Some(Name::Cscan), None));
        let sptf = of(None, None);
        println!(
            "{name}, {rate:.0}/s, seed {seed}: sstf {:.2} ms, SPTF {:.2} ms; longest of C-LOOK {:.1} ms",
            sstf.mean, sptf.mean, cscan.longest
        );
        let satf = of(Some(Name::Satf), Some(model));
        let gain = (sstf.mean - satf.mean) / (sstf.mean - sptf.mean);
        let longest = satf.longest / cscan.longest;
        println!(
            "    {how}: satf {:.2} ms, {:.0}% of the gain; longest {:.1} ms, {longest:.2} of C-LOOK's",
            satf.mean,
            100.0 * gain,
            satf.longest
        );
        shares.push(Share { gain, longest });
    }
    shares
}

/// At least `least` of the gain, and the longest response at most 1.2 times that of C-LOOK.
fn is_good(name: &str, kind: &Kind, (how, model): (&str, Model), least: f64) {
    for Share { gain, longest } in shares(name, kind, how, &model) {
        assert!(gain >= least && longest <= 1.2, "{name}: {gain:.2} of the gain, longest {longest:.2}");
    }
}

fn asked(kind: &Kind) -> (&'static str, Model) {
    ("asked", models::asked(&mut *kind.on(7)).expect("a model"))
}

fn fitted(kind: &Kind) -> (&'static str, Model) {
    ("fitted", models::fitted(&mut *kind.on(8)).expect("a model"))
}

#[test]
fn satf_by_questions_has_most_of_the_gain() {
    let named = ["cheetah-15k5", "disk-7200"].map(|name| (name.to_owned(), Kind::named(name)));
    let small = ("atlas".to_owned(), Kind::Modelled(Box::new(atlas_10k())));
    let hidden = seeds().into_iter().map(|seed| (format!("hidden {seed}"), Kind::hidden(seed)));
    for (name, kind) in named.into_iter().chain([small]).chain(hidden) {
        is_good(&name, &kind, asked(&kind), 0.8);
    }
}

/// The half of a trace of 10,000 requests has two thousand far reads: too few for more than a part of the gain.
#[test]
fn satf_by_a_trace_has_a_part_of_the_gain() {
    let kind = Kind::hidden(1);
    is_good("hidden 1", &kind, fitted(&kind), 0.0);
}

fn seeds() -> Vec<u64> {
    let Ok(range) = std::env::var("LAMINA_SEEDS") else { return vec![1] };
    let (first, last) = range.split_once("..").expect("LAMINA_SEEDS=first..last");
    (first.parse().expect("a number")..last.parse().expect("a number")).collect()
}

/// A drive that behaves as the model of a measured drive says, with its residuals, and `satf` by that model.
#[test]
fn satf_on_a_drive_like_a_measured_one() {
    let Some(trace) = measured::text("atlas10k") else { return };
    let model = models::of_trace(&trace, None).expect("a model");
    let kind = Kind::Modelled(Box::new(model.clone()));
    is_good("atlas10k", &kind, ("fitted", model), 0.8);
}
