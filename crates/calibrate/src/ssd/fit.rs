//! From latencies to a model: the quantiles, and the guesses that nothing was measured for.

use super::Latencies;
use lamina_block::Bytes;
use lamina_drive::{DepthLatency, Mechanism, Model, Quantiles, ResidualOp, Ssd};

/// Steps of probability up to [`STEPPED`], and the points of the tail behind.
const STEPS: u32 = 40;
const STEPPED: u32 = 39;
const TAIL: [f64; 10] = [0.99, 0.995, 0.9975, 0.999, 0.9995, 0.9998, 0.9999, 0.99995, 0.99999, 1.0];

/// The model of a drive of `size` bytes that has these latencies; `None` without any.
///
/// Points of the tail that fewer than one read lies above are left out, but for the longest read. Dies are what makes
/// the greatest rate out of the latency of a read alone, pages 4 KiB, and writes what [`Ssd::default`] has.
pub fn fit(measured: &[Latencies], name: &str, size: u64) -> Option<Model> {
    let mut measured: Vec<&Latencies> = measured.iter().filter(|l| !l.us.is_empty()).collect();
    measured.sort_by_key(|l| (l.cell.length, l.cell.depth));
    let (shortest, depth) = (*measured.first()?, measured.iter().map(|l| l.cell.depth).max()?);
    let alone_us = shortest.quantile(0.5);
    let of_shortest = measured.iter().filter(|l| l.cell.length == shortest.cell.length);
    let most = of_shortest.map(|l| l.per_second()).fold(0.0, f64::max);
    let rate = measured.iter().map(|l| l.per_second() * l.cell.length as f64).fold(0.0, f64::max);
    let ssd = Ssd {
        depth,
        dies: (most * alone_us / 1e6).round().clamp(1.0, 1024.0) as u32,
        read_us: rounded(alone_us),
        bus_rate: Bytes(rate.clamp(1024.0, (1u64 << 40) as f64) as u64),
        latencies: measured.iter().map(|l| entry(l)).collect(),
        ..Ssd::default()
    };
    Some(Model { name: name.to_owned(), size: Bytes(size), mechanism: Mechanism::Ssd(Box::new(ssd)) })
}

fn entry(of: &Latencies) -> DepthLatency {
    let count = of.us.len() as f64;
    let is_told = |p: &f64| *p == 1.0 || (1.0 - p) * count >= 1.0;
    let steps = (0..=STEPPED).map(|n| f64::from(n) / f64::from(STEPS));
    let points = steps.chain(TAIL.into_iter().filter(is_told));
    DepthLatency {
        op: ResidualOp::Read,
        length: Bytes(of.cell.length),
        depth: of.cell.depth,
        quantiles_us: Quantiles(points.map(|p| [p, rounded(of.quantile(p))]).collect()),
    }
}

/// To the nearest nanosecond: more digits say nothing.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, run};
    use super::*;

    #[test]
    fn a_model_of_a_models_latencies_has_them() {
        let real = Model::named("nvme").expect("a model");
        let all = [(4096, 1), (4096, 4), (4096, 32), (65_536, 1), (65_536, 4)];
        let cells = all.map(|(length, depth)| Cell { length, depth });
        let measured = cells.map(|cell| run(&real, cell, 40_000, 1));
        let found = fit(&measured, "found", real.size.0).expect("a model");
        assert_eq!(found.check(), Ok(()));
        assert_eq!(Model::parse(&found.to_toml()).as_ref(), Ok(&found));
        for l in &measured {
            let again = run(&found, l.cell, 40_000, 2);
            assert!((again.per_second() / l.per_second() - 1.0).abs() < 0.02, "{:?}", l.cell);
            for (p, tolerance) in [(0.5, 0.03), (0.95, 0.03), (0.99, 0.05), (0.999, 0.1)] {
                let ratio = again.quantile(p) / l.quantile(p);
                assert!((ratio - 1.0).abs() < tolerance, "{:?}: p{p} {ratio}", l.cell);
            }
        }
    }

    #[test]
    fn few_reads_have_no_far_tail() {
        let l = Latencies::new(Cell { length: 4096, depth: 2 }, (0..500).map(f64::from).collect());
        let Some(Model { mechanism: Mechanism::Ssd(keys), .. }) = fit(&[l], "few", 1 << 20) else {
            panic!("no model")
        };
        let points = &keys.latencies[0].quantiles_us.0;
        let [.., before, last] = points.as_slice() else { panic!("{points:?}") };
        assert_eq!((before[0], *last), (0.9975, [1.0, 499.0]));
        assert_eq!(fit(&[], "none", 1 << 20), None);
    }
}
