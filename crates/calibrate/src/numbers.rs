//! Quantiles, angles in turns, and rates.

use lamina_block::Bytes;
use lamina_drive::SECTOR;
use rustfft::num_complex::Complex;
use std::f64::consts::TAU;

/// The fastest bus that a model may have, in bytes a second.
const BUS_MAX: f64 = (1u64 << 40) as f64;

/// The rate of a bus that takes `sector_us` for a sector; none if that is no time that could be measured.
pub(crate) fn bus_rate(sector_us: f64) -> Option<Bytes> {
    let rate = SECTOR as f64 * 1e6 / sector_us;
    (sector_us > 0.0 && rate < BUS_MAX).then_some(Bytes(rate as u64))
}

/// The value below which the share `p` of `values` lies; 0 of none.
pub(crate) fn quantile(values: &[f64], p: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted_quantile(&sorted, p)
}

/// The same of values that ascend; between two of them it is linear.
pub(crate) fn sorted_quantile(sorted: &[f64], p: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = p.clamp(0.0, 1.0) * last as f64;
    let below = place as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// The middle value.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The middle of angles that are near each other, in turns from 0 to before 1; `None` of none.
pub(crate) fn median_angle(turns: &[f64]) -> Option<f64> {
    turns.first()?;
    // A turn ends where no angle is.
    let middle = angle(sum(turns.iter().copied()));
    let off: Vec<f64> = turns.iter().map(|turn| signed(turn - middle)).collect();
    Some(fraction(middle + median(&off)))
}

/// Constant and slope of the line of least squares through points `(x, y, weight)`; flat if all are above one another.
pub(crate) fn line(points: &[(f64, f64, f64)]) -> (f64, f64) {
    let total = points.iter().map(|p| p.2).sum::<f64>().max(f64::MIN_POSITIVE);
    let mean = |of: &dyn Fn(&(f64, f64, f64)) -> f64| points.iter().map(|p| of(p) * p.2).sum::<f64>() / total;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let squares = mean(&|p| (p.0 - x).powi(2));
    let slope = if squares > 0.0 { mean(&|p| (p.0 - x) * (p.1 - y)) / squares } else { 0.0 };
    (y - slope * x, slope)
}

/// The part of a turn, 0 to before 1.
pub(crate) fn fraction(turns: f64) -> f64 {
    let part = turns - turns.floor();
    if part >= 1.0 { 0.0 } else { part }
}

/// `turns` without whole ones, -0.5 to below 0.5.
pub(crate) fn signed(turns: f64) -> f64 {
    turns - (turns + 0.5).floor()
}

/// The direction of an angle.
pub(crate) fn direction(turns: f64) -> Complex<f64> {
    Complex::from_polar(1.0, TAU * (turns - turns.floor()))
}

/// The sum of the directions of angles.
pub(crate) fn sum(turns: impl Iterator<Item = f64>) -> Complex<f64> {
    turns.map(direction).sum()
}

/// The angle of a direction, in turns.
pub(crate) fn angle(direction: Complex<f64>) -> f64 {
    direction.arg() / TAU
}
