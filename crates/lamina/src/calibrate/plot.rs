//! The pictures of a calibration, as SVG files.
//!
//! | file | shows |
//! |---|---|
//! | `distance.svg` | time over distance, its moving average and the line: Figure 1 of the paper on CATS |
//! | `angle.svg` | the angle at which random pages ended, over their place |
//! | `seek.svg` | the time of a seek over its distance |
//! | `cdf.svg` | the distributions of measured and predicted times |

use lamina_calibrate::active::Found;
use lamina_calibrate::active::linear::{Line, distances};
use lamina_calibrate::{Sample, Score};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::path::Path;

/// Pixels of a picture.
const SIZE: (u32, u32) = (900, 560);
/// Points of a cloud, at most: pictures stay small enough to look at.
const POINTS_MAX: usize = 6000;
const GREY: RGBColor = RGBColor(150, 150, 150);

/// The axes of a picture.
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// What a picture is of.
struct Axes<'t> {
    title: &'t str,
    x: &'t str,
    y: &'t str,
    right: f64,
    top: f64,
}

/// Draws into the file at `path`.
fn draw(
    path: &Path,
    axes: &Axes,
    paint: impl FnOnce(&mut Chart) -> Result<(), String>,
) -> Result<(), String> {
    let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| wrong(&e))?;
    let mut chart = ChartBuilder::on(&root)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..axes.right.max(1e-9), 0.0..axes.top.max(1e-9))
        .map_err(|e| wrong(&e))?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .light_line_style(WHITE)
        .draw()
        .map_err(|e| wrong(&e))?;
    paint(&mut chart).map_err(|e| wrong(&e))?;
    let legend = chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(GREY).draw();
    legend.map_err(|e| wrong(&e))?;
    root.present().map_err(|e| wrong(&e))
}

fn cloud(chart: &mut Chart, points: &[(f64, f64)]) -> Result<(), String> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let dots = points.iter().step_by(step).map(|point| Circle::new(*point, 1, GREY.filled()));
    chart.draw_series(dots).map(|_| ()).map_err(|e| e.to_string())
}

fn curve(chart: &mut Chart, name: &str, color: RGBColor, points: &[(f64, f64)]) -> Result<(), String> {
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    let series = LineSeries::new(points.iter().step_by(step).copied(), color.stroke_width(2));
    let drawn = chart.draw_series(series).map_err(|e| e.to_string())?;
    drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    Ok(())
}

/// The paper's Figure 1.
pub fn distance(folder: &Path, readings: &[Sample], line: &Line) -> Result<(), String> {
    let points: Vec<(f64, f64)> = distances(readings).into_iter().map(|(d, us)| (d, us / 1e3)).collect();
    let smooth: Vec<(f64, f64)> = line.smooth.iter().map(|(d, us)| (*d, us / 1e3)).collect();
    let end = line.longest as f64;
    let fitted = [(0.0, line.constant_us / 1e3), (end, (line.constant_us + line.slope_us) / 1e3)];
    let axes = Axes {
        title: "Time over distance",
        x: "sectors",
        y: "ms",
        right: end,
        top: high(points.iter().map(|p| p.1)),
    };
    draw(&folder.join("distance.svg"), &axes, |chart| {
        cloud(chart, &points)?;
        curve(chart, "average of 1001", BLUE, &smooth)?;
        curve(chart, "least squares", RED, &fitted)
    })
}

/// Angle over place.
pub fn angle(folder: &Path, readings: &[Sample], turn_us: f64, sectors: u64) -> Result<(), String> {
    let angle = |reading: &Sample| ((reading.started_us + reading.service_us) / turn_us).rem_euclid(1.0);
    let points: Vec<(f64, f64)> =
        readings.iter().map(|reading| (reading.request.lbn as f64, angle(reading))).collect();
    let axes = Axes { title: "Angle of pages", x: "LBN", y: "turns", right: sectors as f64, top: 1.0 };
    draw(&folder.join("angle.svg"), &axes, |chart| cloud(chart, &points))
}

/// Seek time over distance.
pub fn seek(folder: &Path, disk: &Found) -> Result<(), String> {
    let points: Vec<(f64, f64)> = disk.seeks_us.iter().map(|(d, us)| (*d as f64, us.value / 1e3)).collect();
    let (right, top) = (disk.cylinders as f64, high(points.iter().map(|p| p.1)));
    let axes = Axes { title: "Seeks", x: "cylinders", y: "ms", right, top };
    draw(&folder.join("seek.svg"), &axes, |chart| {
        cloud(chart, &points)?;
        curve(chart, "measured", BLUE, &points)
    })
}

/// Measured and predicted distributions.
pub fn cdf(folder: &Path, score: &Score) -> Result<(), String> {
    let (predicted, measured): (Vec<f64>, Vec<f64>) = score.pairs.iter().copied().unzip();
    let shares = |mut ms: Vec<f64>| -> Vec<(f64, f64)> {
        ms.sort_by(f64::total_cmp);
        let count = ms.len() as f64;
        ms.into_iter().enumerate().map(|(n, ms)| (ms, (n + 1) as f64 / count)).collect()
    };
    let (predicted, measured) = (shares(predicted), shares(measured));
    let right = high(predicted.iter().chain(&measured).map(|p| p.0));
    let axes = Axes { title: "Times of random pages", x: "ms", y: "share", right, top: 1.0 };
    draw(&folder.join("cdf.svg"), &axes, |chart| {
        curve(chart, "measured", BLUE, &measured)?;
        curve(chart, "predicted", RED, &predicted)
    })
}

/// The value that all but one of a thousand do not exceed: a picture is not made for the slowest.
fn high(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() * 999 / 1000).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(1.0) * 1.05
}
