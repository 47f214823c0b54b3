//! What `lamina predict` says: tables for people, JSON for programs.

use super::figures::{Figures, MORE, Metric, PAPER};
use super::rank::{interval, order, places};
use serde::Serialize;
use std::fmt::Write;

/// The results of all runs.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The workload, as given.
    pub workload: String,
    /// Runs of each policy.
    pub seeds: u64,
    /// By drives.
    pub scenarios: Vec<Scenario>,
    /// Requests of clients that all runs made in a second of a processor's time.
    pub simulated_requests_per_s: f64,
}

/// The policies on the same drives.
#[derive(Debug, Serialize)]
pub struct Scenario {
    /// The drives.
    pub name: String,
    /// By policy.
    pub policies: Vec<Outcome>,
    /// How the policies compare in each figure.
    pub rankings: Vec<Ranking>,
}

/// A policy's runs.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The policy.
    pub policy: String,
    /// The mean of each figure over all runs.
    pub mean: Vec<Value>,
    /// The runs, in the order of their seeds.
    pub runs: Vec<Figures>,
    /// Requests of clients that its runs made in a second of a processor's time.
    pub simulated_requests_per_s: f64,
}

/// A figure's mean over seeds.
#[derive(Debug, Serialize)]
pub struct Value {
    /// The figure.
    pub metric: &'static str,
    /// Its mean.
    pub mean: f64,
    /// Half of its 95% confidence interval; none for one seed.
    pub half: Option<f64>,
}

/// How the policies compare in a figure.
#[derive(Debug, Serialize)]
pub struct Ranking {
    /// The figure.
    pub metric: &'static str,
    /// The policies by their means, with `=` where the difference may be chance.
    pub order: String,
    /// The place of each policy, from 1: one more than the number of policies that are better.
    pub places: Vec<usize>,
}

fn metrics() -> impl Iterator<Item = Metric> {
    PAPER.into_iter().chain(MORE)
}

/// A figure by seed.
fn series(runs: &[Figures], metric: &Metric) -> Vec<f64> {
    runs.iter().map(metric.of).collect()
}

impl Outcome {
    /// A policy and its runs, which took so many seconds.
    pub fn new(policy: &str, runs: Vec<Figures>, seconds: f64) -> Outcome {
        let value = |metric: Metric| {
            let (mean, half) = interval(&series(&runs, &metric));
            Value { metric: metric.name, mean, half: half.is_finite().then_some(half) }
        };
        let requests: u64 = runs.iter().map(|run| run.requests).sum();
        let simulated_requests_per_s = if seconds > 0.0 { requests as f64 / seconds } else { 0.0 };
        Outcome {
            policy: policy.into(),
            mean: metrics().map(value).collect(),
            runs,
            simulated_requests_per_s,
        }
    }
}

impl Scenario {
    /// The policies on some drives, compared.
    pub fn new(name: &str, policies: Vec<Outcome>) -> Scenario {
        let names: Vec<&str> = policies.iter().map(|outcome| outcome.policy.as_str()).collect();
        let ranking = |metric: Metric| {
            let values: Vec<Vec<f64>> =
                policies.iter().map(|outcome| series(&outcome.runs, &metric)).collect();
            Ranking {
                metric: metric.name,
                order: order(&names, &values, metric.more_is_better),
                places: places(&values, metric.more_is_better),
            }
        };
        Scenario { name: name.into(), rankings: metrics().map(ranking).collect(), policies }
    }

    /// The table: a row for each figure, a column for each policy, and the ranking.
    fn table(&self) -> Table {
        let mut head = vec![String::new()];
        head.extend(self.policies.iter().map(|outcome| outcome.policy.clone()));
        head.push("ranking".into());
        let mut rows = vec![head];
        for (at, ranking) in self.rankings.iter().enumerate() {
            let mut row = vec![ranking.metric.to_owned()];
            row.extend(self.policies.iter().map(|outcome| shown(&outcome.mean[at])));
            row.push(ranking.order.clone());
            rows.push(row);
        }
        Table(rows)
    }
}

/// Rows of cells; the first row is the head.
struct Table(Vec<Vec<String>>);

impl Table {
    /// The table in columns: the first and the last to the left, figures to the right.
    fn text(&self) -> String {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.0.iter().filter_map(|row| row.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.0 {
            let cells = row.iter().enumerate().map(|(c, cell)| match c {
                0 => format!("{cell:<width$}", width = widths[c]),
                c if c + 1 == columns => format!("  {cell}"),
                c => format!("  {cell:>width$}", width = widths[c]),
            });
            let _ = writeln!(out, "{}", cells.collect::<String>().trim_end());
        }
        out
    }
}

/// A mean with its uncertainty.
fn shown(value: &Value) -> String {
    match value.half {
        Some(half) => format!("{} ±{}", digits(value.mean), digits(half)),
        None => digits(value.mean),
    }
}

/// A number with about three digits that count.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

impl Report {
    /// For people.
    pub fn text(&self, is_verbose: bool) -> String {
        let mut out = String::new();
        for scenario in &self.scenarios {
            let requests =
                scenario.policies.iter().flat_map(|o| &o.runs).map(|run| run.requests).max().unwrap_or(0);
            let runs = if self.seeds == 1 { "one run".to_owned() } else { format!("{} runs", self.seeds) };
            let _ = writeln!(out, "{}: {}, {runs} of {requests} requests\n", scenario.name, self.workload);
            out.push_str(&scenario.table().text());
            out.push('\n');
        }
        if let [before, after] = &self.scenarios[..] {
            out.push_str(&changes(before, after));
        }
        out.push_str(match self.seeds {
            1 => "One run ranks nothing: `--seeds 5`.\n",
            _ => "= : a tie, the 95% confidence interval of the difference over all seeds has 0 in it.\n",
        });
        if self.workload.starts_with("trace:") {
            out.push_str("A trace is the same with every seed: its ranking says little of other traces.\n");
        }
        if is_verbose {
            let _ = writeln!(out, "\nrequests simulated in a second of a processor:");
            for (scenario, outcome) in
                self.scenarios.iter().flat_map(|s| s.policies.iter().map(move |o| (s, o)))
            {
                let rate = outcome.simulated_requests_per_s;
                let _ = writeln!(out, "  {rate:>10.0}  {} on {}", outcome.policy, scenario.name);
            }
        }
        out
    }
}

/// What other drives change, by policy.
fn changes(before: &Scenario, after: &Scenario) -> String {
    let mut head = vec![format!("{} → {}", before.name, after.name)];
    head.extend(before.policies.iter().map(|outcome| outcome.policy.clone()));
    // The text sets the last column to the left, and here it has figures.
    head.push(String::new());
    let mut rows = vec![head];
    for (at, metric) in metrics().enumerate() {
        let mut row = vec![metric.name.to_owned()];
        row.extend(before.policies.iter().zip(&after.policies).map(|(b, a)| {
            let (b, a) = (b.mean[at].mean, a.mean[at].mean);
            let percent = if b == 0.0 { 0.0 } else { (a - b) / b * 100.0 };
            format!("{} → {} ({percent:+.0}%)", digits(b), digits(a))
        }));
        row.push(String::new());
        rows.push(row);
    }
    format!("{}\n", Table(rows).text())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(policy: &str, responses: &[f64]) -> Outcome {
        let run = |r: &f64| Figures {
            requests: 10,
            mean_response_ms: *r,
            sectors_per_ms: 1.0 / r,
            ..Figures::default()
        };
        Outcome::new(policy, responses.iter().map(run).collect(), 0.5)
    }

    fn report(scenarios: Vec<Scenario>) -> Report {
        Report { workload: "web:direct".into(), seeds: 3, scenarios, simulated_requests_per_s: 60.0 }
    }

    #[test]
    fn tables_have_a_row_a_figure_and_its_ranking() {
        let scenario =
            Scenario::new("fast", vec![outcome("b", &[20.0, 21.0, 22.0]), outcome("a", &[10.0, 11.0, 12.0])]);
        let text = report(vec![scenario]).text(true);
        assert!(text.starts_with("fast: web:direct, 3 runs of 10 requests\n\n"), "{text}");
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a row");
        assert!(row("mean response, ms").ends_with("  a < b"), "{text}");
        assert!(row("throughput").ends_with("  a > b"), "{text}");
        assert!(row("mean service").ends_with("  b = a"), "{text}");
        assert!(row("mean response, ms").contains("11.0 ±2.48"), "{text}");
        assert!(text.contains("        60  a on fast"), "{text}");
    }

    #[test]
    fn two_scenarios_are_a_change() {
        let before = Scenario::new("disk", vec![outcome("a", &[10.0, 10.0, 10.0])]);
        let after = Scenario::new("disk=ssd", vec![outcome("a", &[1.0, 1.0, 1.0])]);
        let text = report(vec![before, after]).text(false);
        assert!(text.contains("disk → disk=ssd"), "{text}");
        assert!(text.contains("10.0 → 1.00 (-90%)"), "{text}");
    }
}
