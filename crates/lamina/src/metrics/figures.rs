//! Metrics from what layers show: the figures that their kinds declare.
//!
//! A value that is missing, or null because it is unknown, has no sample.

use super::{family, labels, sample};
use crate::api::Snapshot;
use crate::status::{self, Status};
use lamina_block::{Figure, Kind, Metric};

/// The figures of a kind that are metrics.
fn metrics(kind: &Kind) -> impl Iterator<Item = (&'static Figure, Metric)> {
    kind.traits.figures.iter().filter_map(|figure| Some((figure, figure.metric?)))
}

fn full_name(kind: &Kind, metric: Metric) -> String {
    format!("lamina_{}_{}", kind.name.replace('-', "_"), metric.name)
}

/// The figures of all layers, and their alerts.
pub fn draw(out: &mut String, snapshot: &Snapshot, kinds: &[Kind]) {
    for kind in kinds.iter().filter(|kind| snapshot.devices().any(|device| device.kind == kind.name)) {
        for (figure, metric) in metrics(kind) {
            let name = full_name(kind, metric);
            family(out, &name, if metric.is_counter { "counter" } else { "gauge" }, figure.help);
            for device in snapshot.devices().filter(|device| device.kind == kind.name) {
                if let Some(value) = device.info.pointer(figure.at).filter(|value| value.is_number()) {
                    sample(out, &name, &labels(&[("device", &device.name)]), value);
                }
            }
        }
    }
    const ALERT: &str = "lamina_alert";
    family(out, ALERT, "gauge", "1 while the device needs attention.");
    for hierarchy in &snapshot.hierarchies {
        for device in &hierarchy.devices {
            for (alert, is_on) in status::alerts(hierarchy, device) {
                sample(out, ALERT, &labels(&[("device", &device.name), ("alert", alert)]), u64::from(is_on));
            }
        }
    }
    const STATE: &str = "lamina_hierarchy_state";
    family(out, STATE, "gauge", "0 while everything is well, 1 degraded, 2 failed, as `lamina status` says.");
    for status in snapshot.hierarchies.iter().map(Status::of) {
        sample(out, STATE, &labels(&[("file", &status.file)]), status.state as u64);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::show::tests::cached;
    use lamina_block::Unit;
    use std::fmt::Write;

    /// The part of the manual about the figures of these kinds.
    pub fn manual(kinds: &[Kind]) -> String {
        let mut out = String::new();
        for kind in kinds.iter().filter(|kind| !kind.traits.figures.is_empty()) {
            let name = kind.name;
            let _ = writeln!(out, "\n| `{name}` | metric | `lamina show` | |\n|---|---|---|---|");
            for figure in kind.traits.figures {
                let metric = figure.metric.map(|metric| format!("`{}`", full_name(kind, metric)));
                let (metric, column) = (metric.unwrap_or_default(), figure.column.unwrap_or_default());
                let _ = writeln!(out, "| `{}` | {metric} | {column} | {} |", figure.at, figure.help);
            }
        }
        out
    }

    #[test]
    fn what_layers_show_is_there() {
        let mut text = String::new();
        draw(&mut text, &cached(), &crate::files::kinds());
        for line in [
            "# TYPE lamina_accelerate_hit_bytes_total counter\nlamina_accelerate_hit_bytes_total{device=\"vm1\"} \
             8192\n",
            "# TYPE lamina_accelerate_dirty_bytes gauge\nlamina_accelerate_dirty_bytes{device=\"vm1\"} 125829120\n",
            "\nlamina_accelerate_flow_pressure_ratio{device=\"vm1\"} 0.12\n",
            "\nlamina_accelerate_recovery_point_age_seconds{device=\"vm1\"} 4.5\n",
            "\nlamina_flash_free_segments{device=\"cache\"} 10\n",
            "\nlamina_alert{device=\"vm1\",alert=\"store_trouble\"} 0\n",
            "\nlamina_alert{device=\"cache\",alert=\"stalled\"} 1\n",
            "\nlamina_alert{device=\"vm1\",alert=\"absent\"} 0\n",
            "\nlamina_hierarchy_state{file=\"vm.toml\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        // Unknown values.
        for name in ["clean_seconds", "replay_left_bytes", "lost_bytes"] {
            assert!(!text.contains(&format!("lamina_accelerate_{name}{{")), "{text}");
        }
    }

    /// To renew it: `LAMINA_BLESS=1 cargo test -p lamina manual`.
    #[test]
    fn the_manual_has_them_all() {
        const BEGIN: &str = "<!-- figures -->\n";
        const END: &str = "\n<!-- the end of figures -->";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control-api.md");
        let page = std::fs::read_to_string(path).expect("docs/control-api.md can be read");
        let (before, rest) = page.split_once(BEGIN).expect("the page has a part for figures");
        let (there, after) = rest.split_once(END).expect("which ends");
        let now = manual(&crate::files::kinds());
        if std::env::var_os("LAMINA_BLESS").is_some() {
            std::fs::write(path, format!("{before}{BEGIN}{now}{END}{after}")).expect("the page is written");
        } else {
            assert!(there == now, "docs/control-api.md is out of date: run with LAMINA_BLESS=1");
        }
    }

    #[test]
    fn names_end_with_units() {
        for kind in crate::files::kinds() {
            for (figure, metric) in metrics(&kind) {
                let (name, at) = (full_name(&kind, metric), figure.at);
                assert_eq!(name.ends_with("_total"), metric.is_counter, "{name}");
                let name = name.trim_end_matches("_total");
                let unit = ["_bytes_per_second", "_bytes", "_seconds", "_ratio"];
                let unit = unit.into_iter().find(|unit| name.ends_with(unit)).unwrap_or_default();
                let expected = match figure.unit {
                    Unit::Bytes => "_bytes",
                    Unit::BytesPerSecond => "_bytes_per_second",
                    Unit::Seconds => "_seconds",
                    Unit::Ratio => "_ratio",
                    Unit::Count | Unit::Pieces(_) => "",
                    Unit::Text | Unit::Made(_) => panic!("{name}: {at} is no number"),
                };
                assert_eq!(unit, expected, "{name}");
            }
        }
    }

    /// The names in an expression of Prometheus that are Lamina's.
    fn names(expression: &str) -> Vec<&str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        expression.split(|c| !is_part(c)).filter(|word| word.starts_with("lamina_")).collect()
    }

    /// All metrics that there are.
    fn known() -> Vec<String> {
        let text = super::super::text(&cached());
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let kinds = crate::files::kinds();
        let figures = kinds.iter().flat_map(|kind| metrics(kind).map(|(_, metric)| full_name(kind, metric)));
        families.map(str::to_owned).chain(figures).collect()
    }

    /// The dashboard in `docs` shows metrics that there are.
    #[test]
    fn the_dashboard_shows_metrics_that_there_are() {
        let text = include_str!("../../../../docs/grafana/lamina.json");
        let dashboard: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("panels");
        let shown: Vec<&str> = panels
            .iter()
            .flat_map(|panel| panel["targets"].as_array())
            .flatten()
            .filter_map(|of| of["expr"].as_str())
            .collect();
        assert!(shown.len() > 15, "{shown:?}");
        let known = known();
        for expression in shown {
            for name in names(expression) {
                let family = name.strip_suffix("_bucket").unwrap_or(name);
                assert!(known.iter().any(|known| known == family), "{name} is no metric: {expression}");
            }
            assert!(!names(expression).is_empty() || expression.contains("process_"), "{expression}");
        }
    }

    /// The alerts in `docs` are about metrics that there are, and say which command helps.
    #[test]
    fn alerts_are_about_metrics_that_there_are() {
        let rules = include_str!("../../../../docs/alerts/lamina.yml");
        let known = known();
        let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
        assert!(alerts.len() >= 10, "{} alerts", alerts.len());
        for alert in alerts {
            let expression = alert.lines().find_map(|line| line.trim().strip_prefix("expr: ")).expect(alert);
            let used = names(expression);
            assert!(!used.is_empty(), "{alert}");
            for name in used {
                assert!(known.iter().any(|known| known == name), "{name} is no metric: {alert}");
            }
            for part in ["severity: ", "summary: \"", "description: \"", "`lamina "] {
                assert!(alert.contains(part), "no {part}: {alert}");
            }
        }
    }

    /// Commands that alerts name are commands of the program.
    #[test]
    fn alerts_name_commands_that_there_are() {
        use clap::CommandFactory;
        let rules = include_str!("../../../../docs/alerts/lamina.yml");
        let program = crate::cli::Cli::command();
        for named in rules.split("`lamina ").skip(1) {
            let command = named.split([' ', '`']).next().unwrap_or_default();
            assert!(program.find_subcommand(command).is_some(), "{command:?}");
        }
    }
}
