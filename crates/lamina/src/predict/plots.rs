//! Pictures of runs: how long responses took by policy, where the drives were when, and means with their uncertainty.
//!
//! Lines and points are of the first seed; bars are of all seeds.

use super::figures::Measured;
use super::report::{Report, Scenario};
use crate::exit::Failure;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::{Path, PathBuf};

/// Pixels of a picture.
const SIZE: (u32, u32) = (960, 540);
/// The most points of a line or of a picture of offsets: more cannot be told apart.
const POINTS_MAX: usize = 2000;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Writes all pictures into `folder`; `first` has the measured first seeds, by drives and by policy.
pub fn write(folder: &Path, report: &Report, first: &[Vec<Measured>]) -> Result<Vec<PathBuf>, Failure> {
    let failed = |path: &Path, e: String| Failure::failed(format!("{}: {e}", path.display()));
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e.to_string()))?;
    let mut written = Vec::new();
    for (scenario, measured) in report.scenarios.iter().zip(first) {
        let mut picture = |name: String, draw: &dyn Fn(&Area) -> Drawn| {
            let path = folder.join(file_name(&name));
            let area = SVGBackend::new(&path, SIZE).into_drawing_area();
            let drawn = area.fill(&WHITE).and_then(|()| draw(&area)).and_then(|()| area.present());
            drawn.map_err(|e| failed(&path, e.to_string()))?;
            drop(area);
            written.push(path);
            Ok::<(), Failure>(())
        };
        let title = |what: &str| format!("{what}: {} on {}", report.workload, scenario.name);
        let names: Vec<&str> = scenario.policies.iter().map(|outcome| outcome.policy.as_str()).collect();
        picture(format!("responses-{}", scenario.name), &|area| {
            responses(area, &title("responses"), &names, measured)
        })?;
        picture(format!("means-{}", scenario.name), &|area| means(area, &title("mean response"), scenario))?;
        for (name, measured) in names.iter().zip(measured) {
            picture(format!("offsets-{}-{name}", scenario.name), &|area| {
                offsets(area, &title(&format!("offsets, {name}")), measured)
            })?;
        }
    }
    Ok(written)
}

/// A name with nothing in it that a path could mean.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    format!("{}.svg", name.chars().map(plain).collect::<String>())
}

/// At most so many of `values`, evenly chosen, the last among them.
fn thinned<T: Copy>(values: &[T]) -> impl Iterator<Item = (usize, T)> {
    let step = values.len().div_ceil(POINTS_MAX).max(1);
    let last = values.len().saturating_sub(1);
    values.iter().copied().enumerate().filter(move |(at, _)| at % step == 0 || *at == last)
}

/// The share of requests that were answered within a time.
fn responses(area: &Area, title: &str, names: &[&str], measured: &[Measured]) -> Drawn {
    let times: Vec<Vec<f64>> = measured.iter().map(Measured::response_times).collect();
    let least = times.iter().filter_map(|t| t.first()).copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().filter_map(|t| t.last()).copied().fold(0.0, f64::max);
    // A logarithm needs numbers above zero; without requests any will do.
    let (least, most) = if least <= most { (least.max(0.01), most.max(0.02)) } else { (1.0, 10.0) };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((least..most).log_scale(), 0.0..1.0)?;
    chart.configure_mesh().x_desc("response, ms").y_desc("share of requests").draw()?;
    for (number, (name, times)) in names.iter().zip(&times).enumerate() {
        let color = Palette99::pick(number).to_rgba();
        let share = |at: usize| (at + 1) as f64 / times.len() as f64;
        let line = thinned(times).map(|(at, time)| (time.max(0.01), share(at)));
        let series = chart.draw_series(LineSeries::new(line, color.stroke_width(2)))?;
        series
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    let labels = &mut chart.configure_series_labels();
    labels
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .position(SeriesLabelPosition::LowerRight)
        .draw()
}

/// Where the drives were when, over the first counted requests.
fn offsets(area: &Area, title: &str, measured: &Measured) -> Drawn {
    let services = &measured.services[..measured.services.len().min(POINTS_MAX)];
    let began = measured.began.0;
    let seconds = |at: u64| at.saturating_sub(began) as f64 / 1e9;
    let gib = |offset: u64| offset as f64 / (1u64 << 30) as f64;
    let last = services.last().map_or(1.0, |s| seconds(s.ended.0)).max(1e-3);
    let top = services.iter().map(|s| gib(s.offset)).fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..last, 0.0..top)?;
    chart.configure_mesh().x_desc("time, s").y_desc("offset, GiB").draw()?;
    let points = services.iter().map(|s| Circle::new((seconds(s.ended.0), gib(s.offset)), 2, BLUE.filled()));
    chart.draw_series(points)?;
    Ok(())
}

/// Mean responses, and their 95% confidence intervals.
fn means(area: &Area, title: &str, scenario: &Scenario) -> Drawn {
    let values: Vec<(&str, f64, f64)> = scenario
        .policies
        .iter()
        .filter_map(|outcome| {
            let value = outcome.mean.iter().find(|value| value.metric.starts_with("mean response"))?;
            Some((outcome.policy.as_str(), value.mean, value.half.unwrap_or(0.0)))
        })
        .collect();
    let top = values.iter().map(|(_, mean, half)| mean + half).fold(1e-3, f64::max) * 1.1;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(at) | SegmentValue::Exact(at) => {
            values.get(*at).map_or("", |v| v.0).to_owned()
        }
        SegmentValue::Last => String::new(),
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((0..values.len().max(1) - 1).into_segmented(), 0.0..top)?;
    let mesh = &mut chart.configure_mesh();
    mesh.disable_x_mesh()
        .x_labels(values.len().max(1))
        .x_label_formatter(&name)
        .y_desc("mean response, ms")
        .draw()?;
    let bars = values.iter().enumerate().map(|(at, (_, mean, _))| {
        let corners = [(SegmentValue::Exact(at), 0.0), (SegmentValue::Exact(at + 1), *mean)];
        let mut bar = Rectangle::new(corners, Palette99::pick(at).mix(0.7).filled());
        bar.set_margin(0, 0, 30, 30);
        bar
    });
    chart.draw_series(bars)?;
    let bounds = values.iter().enumerate().map(|(at, (_, mean, half))| {
        let at = SegmentValue::CenterOf(at);
        ErrorBar::new_vertical(at, mean - half, *mean, mean + half, BLACK.stroke_width(2), 14)
    });
    chart.draw_series(bounds)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::figures::{Response, Service};
    use super::super::report::Outcome;
    use super::*;
    use lamina_block::Time;

    fn measured(count: u64) -> Measured {
        let ms = |n: u64| Time(n * 1_000_000);
        let responses = (0..count).map(|n| Response { arrived: ms(n), ended: ms(2 * n + 1), bytes: 512 });
        let services = (0..count).map(|n| Service { sent: ms(n), ended: ms(n + 1), offset: n << 20 });
        Measured {
            responses: responses.collect(),
            services: services.collect(),
            began: ms(0),
            ended: ms(2 * count),
        }
    }

    fn report(measured: &Measured) -> Report {
        let outcome = |policy: &str| Outcome::new(policy, vec![measured.figures(), measured.figures()], 1.0);
        let scenario = Scenario::new("a/b=c", vec![outcome("noop"), outcome("cats:x=1")]);
        Report { workload: "w".into(), seeds: 2, scenarios: vec![scenario], simulated_requests_per_s: 1.0 }
    }

    #[test]
    fn pictures_are_written_also_of_nothing() {
        for count in [0, 1, 5000] {
            let folder = tempfile::tempdir().expect("a folder");
            let first = vec![vec![measured(count), measured(count)]];
            let written =
                write(&folder.path().join("new"), &report(&measured(count)), &first).expect("pictures");
            assert_eq!(written.len(), 4);
            assert!(written.iter().any(|path| path.ends_with("offsets-a_b_c-cats_x_1.svg")), "{written:?}");
            for path in written {
                let text = std::fs::read_to_string(path).expect("a picture");
                assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"), "{text}");
            }
        }
    }

    #[test]
    fn thinning_keeps_the_last() {
        let values: Vec<usize> = (0..10_001).collect();
        let kept: Vec<usize> = thinned(&values).map(|(_, value)| value).collect();
        assert!(kept.len() <= POINTS_MAX + 1 && kept.last() == Some(&10_000));
    }
}
