//! An SSD's model, from latencies by size and depth.
//!
//! At depth 1 nothing waits for anything else: the medians by size give the fixed part and the bus, and what the
//! measured quantiles are off goes into the residuals as it is. How many dies there are, and what a command costs the
//! bus, follow from the rates at greater depths: the model itself runs in virtual time for each candidate, and the one
//! whose rates are nearest to the measured ones is taken.

use crate::numbers::sorted_quantile;
use lamina_block::{Bytes, Time};
use lamina_drive::{Mechanism, Model, Op, Quantiles, Request, Residual, ResidualOp, SECTOR, Ssd};

/// Probabilities of the quantiles in a model: every half percent, and the tail.
const TAIL: [f64; 8] = [0.9975, 0.999, 0.9995, 0.9998, 0.9999, 0.99995, 0.99999, 1.0];
/// Requests of a run of a model.
const RUN: usize = 4000;
/// A page of flash, as the model has it: as large as models allow, so that a longer read does not keep dies busy beyond
/// its measured end. What length costs is in the bus and in the residuals.
const PAGE: u64 = 1 << 20;

/// Measured reads at random places.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// Bytes of a read.
    pub bytes: u64,
    /// How many were under way at a time.
    pub depth: u32,
    /// What each took, in microseconds, ascending.
    pub us: Vec<f64>,
    /// Reads a second.
    pub per_second: f64,
}

impl Latencies {
    /// The time that the share `probability` of all reads is not above; 0 of none.
    pub fn quantile(&self, probability: f64) -> f64 {
        sorted_quantile(&self.us, probability)
    }
}

/// The model of an SSD of `size` bytes that has these latencies; `None` without any at depth 1.
pub fn fit(measured: &[Latencies], name: &str, size: u64) -> Option<Model> {
    let mut alone: Vec<&Latencies> = measured.iter().filter(|l| l.depth == 1 && !l.us.is_empty()).collect();
    alone.sort_by_key(|l| l.bytes);
    let shortest = *alone.first()?;
    let per_byte = per_byte(&alone);
    let queued: Vec<&Latencies> =
        measured.iter().filter(|l| l.depth > 1 && l.bytes == shortest.bytes).collect();
    let most = queued.iter().map(|l| l.per_second).fold(shortest.per_second, f64::max);
    let depth = queued.iter().map(|l| l.depth).max().unwrap_or(1);
    // The fastest reads are what the drive takes without chance; half of it, so that residuals are rarely negative.
    let fixed_us = (shortest.quantile(0.01) - shortest.bytes as f64 * per_byte).max(1.0);
    let candidate = |dies: u32| {
        let command_us = (1e6 / most - shortest.bytes as f64 * per_byte).clamp(0.0, fixed_us / 2.0);
        let ssd = Ssd {
            depth: depth.max(1),
            dies,
            page: Bytes(PAGE),
            read_overhead_us: 0.0,
            read_us: (fixed_us - command_us).max(0.0),
            command_us,
            bus_rate: Bytes((1e6 / per_byte).clamp(1024.0, (1u64 << 40) as f64) as u64),
            ..Ssd::default()
        };
        with_residuals(ssd, &alone, name, size)
    };
    let off = |model: &Model| -> f64 {
        queued.iter().map(|l| (run(model, l.bytes, l.depth).per_second / l.per_second).ln().powi(2)).sum()
    };
    let models = (0..=9).map(|n| candidate(1 << n)).map(|model| (off(&model), model));
    models.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, model)| model)
}

/// Microseconds that each byte adds to the median, by least squares.
fn per_byte(alone: &[&Latencies]) -> f64 {
    let count = alone.len() as f64;
    let (x, y) = (
        alone.iter().map(|l| l.bytes as f64).sum::<f64>() / count,
        alone.iter().map(|l| l.quantile(0.5)).sum::<f64>() / count,
    );
    let products: f64 = alone.iter().map(|l| (l.bytes as f64 - x) * (l.quantile(0.5) - y)).sum();
    let squares: f64 = alone.iter().map(|l| (l.bytes as f64 - x).powi(2)).sum();
    // 4 GB/s where nothing tells.
    if squares > 0.0 && products > 0.0 { products / squares } else { 1.0 / 4000.0 }
}

/// The model with what the quantiles at depth 1 are off, by size.
fn with_residuals(mut ssd: Ssd, alone: &[&Latencies], name: &str, size: u64) -> Model {
    let model = |ssd: &Ssd| Model {
        name: name.to_owned(),
        size: Bytes(size),
        mechanism: Mechanism::Ssd(Box::new(ssd.clone())),
    };
    let plain = model(&ssd);
    let residual = |l: &&Latencies| {
        let request = Request { op: Op::Read, lbn: 0, sectors: (l.bytes / SECTOR) as u32 };
        let cost_us = plain.drive(0).cost(Time(0), &request).as_secs_f64() * 1e6;
        let points = (0..200).map(|n| f64::from(n) / 200.0).chain(TAIL);
        let quantiles_us = Quantiles(points.map(|p| [p, l.quantile(p) - cost_us]).collect());
        Residual { op: ResidualOp::Read, up_to: Bytes(l.bytes), quantiles_us }
    };
    ssd.residuals = alone.iter().map(residual).collect();
    model(&ssd)
}

/// What random reads of a model take, `depth` at a time.
pub fn run(model: &Model, bytes: u64, depth: u32) -> Latencies {
    let mut drive = model.drive(1);
    let mut rng = fastrand::Rng::with_seed(1);
    let mut sent: Vec<Time> = Vec::new();
    let mut us = Vec::new();
    let mut now = Time(0);
    let pages = (model.size.0 / bytes).max(1);
    let mut send = |drive: &mut lamina_drive::Drive, sent: &mut Vec<Time>, now: Time| {
        let lbn = rng.u64(..pages) * bytes / SECTOR;
        drive.submit(now, sent.len() as u64, Request { op: Op::Read, lbn, sectors: (bytes / SECTOR) as u32 });
        sent.push(now);
    };
    (0..depth).for_each(|_| send(&mut drive, &mut sent, now));
    while us.len() < RUN * depth as usize {
        let Some(next) = drive.next() else { break };
        now = now.max(next);
        while let Some(done) = drive.completed(now) {
            us.push((done.at.0 - sent[done.id as usize].0) as f64 / 1e3);
            send(&mut drive, &mut sent, done.at.max(now));
        }
    }
    us.sort_by(f64::total_cmp);
    let per_second = us.len() as f64 / (now.0.max(1) as f64 / 1e9);
    Latencies { bytes, depth, us, per_second }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_of_a_models_latencies_has_them() {
        let real = Model::named("nvme").expect("a model");
        let all = [(4096, 1), (16_384, 1), (65_536, 1), (4096, 4), (4096, 32)];
        let measured: Vec<Latencies> = all.iter().map(|(bytes, depth)| run(&real, *bytes, *depth)).collect();
        let found = fit(&measured, "found", real.size.0).expect("a model");
        for l in &measured {
            let again = run(&found, l.bytes, l.depth);
            // Alone, quantiles are as measured; at depth only rates are fitted, and tails follow less well.
            let tolerances = if l.depth == 1 { [0.02, 0.02, 0.02] } else { [0.25, 0.25, 0.35] };
            for (p, tolerance) in [0.5, 0.95, 0.99].into_iter().zip(tolerances) {
                let ratio = again.quantile(p) / l.quantile(p);
                assert!((ratio - 1.0).abs() < tolerance, "{} bytes at {}: p{p} {ratio}", l.bytes, l.depth);
            }
        }
        assert_eq!(Model::parse(&found.to_toml()).expect("valid").to_toml(), found.to_toml());
    }

    #[test]
    fn quantiles_are_joined_by_lines() {
        let l = Latencies { bytes: 4096, depth: 1, us: vec![1.0, 2.0, 4.0], per_second: 1.0 };
        for (p, us) in [(0.0, 1.0), (0.25, 1.5), (0.5, 2.0), (0.75, 3.0), (1.0, 4.0)] {
            assert_eq!(l.quantile(p), us, "{p}");
        }
    }
}
