//! Two runs of a drive, and its model, beside each other: a table for people, and whether the model is near enough.

use super::{Cell, Latencies, Runs, run};
use lamina_drive::Model;
use std::fmt;

/// The quantiles that are compared, and by which share those of a near model differ at most.
const QUANTILES: [(f64, f64); 3] = [(0.5, 0.1), (0.95, 0.1), (0.999, 0.25)];
/// Of so many reads above it a quantile is told.
const ABOVE_MIN: f64 = 10.0;
/// Reads of a run of the model.
const RUN: usize = 500_000;

/// A quantile of a cell, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Length and depth.
    pub cell: Cell,
    /// Which quantile.
    pub probability: f64,
    /// In the first run, of which the model is made.
    pub first_us: f64,
    /// In the second.
    pub second_us: f64,
    /// In a run of the model.
    pub model_us: f64,
    /// The share that the model may be off.
    pub bound: f64,
}

impl Row {
    /// The share by which the first run is off the second.
    pub fn runs_off(&self) -> f64 {
        self.first_us / self.second_us - 1.0
    }

    /// The share by which the model is off the second run.
    pub fn model_off(&self) -> f64 {
        self.model_us / self.second_us - 1.0
    }

    /// Whether the runs are as near each other as a model should be.
    fn runs_agree(&self) -> bool {
        self.runs_off().abs() <= self.bound
    }

    /// Whether the model is near enough.
    fn is_near(&self) -> bool {
        self.model_off().abs() <= self.bound
    }
}

/// The quantiles of all cells that enough reads tell.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// A row for each.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// Compares the model of the first run with the second; `seed` decides what the model leaves to chance.
    pub fn new(model: &Model, runs: &Runs, seed: u64) -> Comparison {
        // One seed for all would have all tails too long, or all too short.
        let seeds = (0..).map(|n| seed.wrapping_mul(1000).wrapping_add(n));
        let cells = runs.first.iter().zip(&runs.second).zip(seeds);
        Comparison {
            rows: cells.flat_map(|((first, second), seed)| rows(model, first, second, seed)).collect(),
        }
    }

    /// How many rows of one quantile are such.
    fn count(&self, probability: f64, is: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| row.probability == probability && is(row)).count()
    }

    /// The largest share by which the model is off the run that it is made of.
    fn fit_off(&self) -> f64 {
        self.rows.iter().map(|row| (row.model_us / row.first_us - 1.0).abs()).fold(0.0, f64::max)
    }
}

fn rows(model: &Model, first: &Latencies, second: &Latencies, seed: u64) -> Vec<Row> {
    let count = first.us.len().min(second.us.len()) as f64;
    // Rounding must not decide about exactly ten.
    let told = QUANTILES.iter().filter(|(p, _)| (1.0 - p) * count > ABOVE_MIN - 1e-6);
    let drawn = run(model, first.cell, RUN, seed);
    let row = |&(probability, bound): &(f64, f64)| Row {
        cell: first.cell,
        probability,
        first_us: first.quantile(probability),
        second_us: second.quantile(probability),
        model_us: drawn.quantile(probability),
        bound,
    };
    told.map(row).collect()
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  length  depth  quantile    first us   second us    model us  first off  model off second"
        )?;
        for row in &self.rows {
            let Row { cell, probability, first_us, second_us, model_us, .. } = row;
            let (runs, off) = (100.0 * row.runs_off(), 100.0 * row.model_off());
            let mark = if row.is_near() { "" } else { "  *" };
            writeln!(
                f,
                "{:8} {:6} {:>9} {first_us:11.1} {second_us:11.1} {model_us:11.1} {runs:+9.1}% {off:+9.1}%{mark}",
                cell.length,
                cell.depth,
                format!("p{}", probability * 100.0)
            )?;
        }
        for (probability, bound) in QUANTILES {
            let (all, runs) = (self.count(probability, |_| true), self.count(probability, Row::runs_agree));
            let model = self.count(probability, Row::is_near);
            let both = self.count(probability, |row| row.runs_agree() && row.is_near());
            writeln!(
                f,
                "p{}: of {all}, within {:.0}% of the second run: the first {runs}, the model {model}, both {both}",
                probability * 100.0,
                100.0 * bound
            )?;
        }
        writeln!(f, "the model is off the first run by {:.1}% at most", 100.0 * self.fit_off())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, fit, measure};
    use super::*;
    use std::time::Duration;

    /// A drive of a model: each turn is a run of it.
    struct Virtual(Model);

    impl Device for Virtual {
        fn bytes(&self) -> u64 {
            self.0.size.0
        }
        fn read_for(&mut self, cell: Cell, time: Duration, seed: u64) -> Result<Vec<f64>, String> {
            Ok(run(&self.0, cell, time.as_millis() as usize * 40, seed).us)
        }
    }

    #[test]
    fn the_model_of_one_run_is_near_another() {
        let mut device = Virtual(Model::named("san").expect("a model"));
        let cells = [1, 4, 8].map(|depth| Cell { length: 4096, depth });
        let runs = measure(&mut device, &cells, Duration::from_secs(1), 1, &mut |_| {}).expect("measured");
        let model = fit(&runs.first, "found", device.bytes()).expect("a model");
        let comparison = Comparison::new(&model, &runs, 1);
        assert_eq!(comparison.rows.len(), 9);
        assert!(comparison.rows.iter().all(|row| row.is_near()), "{comparison}");
        let text = comparison.to_string();
        assert!(
            text.contains("p99.9: of 3, within 25% of the second run: the first 3, the model 3, both 3"),
            "{text}"
        );
    }

    #[test]
    fn a_quantile_is_told_by_ten_reads_above() {
        let cell = Cell { length: 4096, depth: 1 };
        let latencies = |count: usize, us: f64| Latencies::new(cell, vec![us; count]);
        let model = fit(&[latencies(10, 100.0)], "x", 1 << 30).expect("a model");
        for (count, told) in [(10, 0), (20, 1), (199, 1), (200, 2), (9_999, 2), (10_000, 3)] {
            let runs = Runs { first: vec![latencies(20_000, 90.0)], second: vec![latencies(count, 80.0)] };
            let rows = Comparison::new(&model, &runs, 1).rows;
            assert_eq!(rows.len(), told, "{count}");
            assert!(rows.iter().all(|row| (row.runs_off() - 0.125).abs() < 1e-9 && row.model_off() == 0.25));
        }
    }
}
