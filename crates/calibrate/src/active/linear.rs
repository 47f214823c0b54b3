//! The line of the paper on CATS: service time against distance, from random reads.
//!
//! The paper's way (section 4): random pages are read, the samples sorted by their distance from the page before, each
//! replaced by the mean of the up to 1001 samples around it, and a line fitted to that by least squares.

use super::session::Session;
use crate::{Sample, numbers};
use lamina_drive::{Op, Request};

/// Samples around each one that are averaged, with it.
pub const WINDOW: usize = 1001;
/// Sectors of a page, as the paper read them.
pub const PAGE_SECTORS: u32 = 8;

/// Service time over distance: `constant` + `slope` · d/D.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Microseconds at no distance.
    pub constant_us: f64,
    /// Microseconds that the longest distance adds.
    pub slope_us: f64,
    /// D: the longest distance, in sectors.
    pub longest: u64,
    /// What a reading is off the line: the root of the mean square, in microseconds.
    pub residual_us: f64,
    /// How many distances there were.
    pub readings: usize,
    /// The moving average: distance in sectors and microseconds, by distance.
    pub smooth: Vec<(f64, f64)>,
}

fn page(lbn: u64) -> Request {
    Request { op: Op::Read, lbn, sectors: PAGE_SECTORS }
}

/// The distance of each reading from the one before, in sectors, and what it took, in microseconds.
pub fn distances(readings: &[Sample]) -> Vec<(f64, f64)> {
    let distance = |pair: &[Sample]| pair[0].request.lbn.abs_diff(pair[1].request.lbn) as f64;
    readings.windows(2).map(|pair| (distance(pair), pair[1].service_us)).collect()
}

/// Reads up to `count` random pages, as long as there is time.
pub(super) fn read(session: &mut Session, count: usize) -> Result<Vec<Sample>, String> {
    let block = session.probe.size;
    let blocks = (PAGE_SECTORS / block).max(1);
    let last = session.sectors().saturating_sub(u64::from(blocks)) / u64::from(blocks);
    let mut readings = Vec::new();
    while readings.len() < count && session.has_time() {
        if readings.len() % 5000 == 0 {
            session.say(&format!("random pages: {} of {count}", readings.len()));
        }
        let lbn = session.rng.u64(..=last) * u64::from(blocks);
        let answer = session.read_many(lbn, blocks, 0.0)?;
        let (started_us, service_us) = (answer.start_us, answer.service_us());
        readings.push(Sample { request: page(lbn * u64::from(block)), started_us, service_us });
    }
    Ok(readings)
}

/// The line through `readings` of a drive of `sectors`; `None` if they are too few to average any.
pub fn fit(readings: &[Sample], sectors: u64) -> Option<Line> {
    let mut points = distances(readings);
    if points.len() < 100 {
        return None;
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let smooth = smoothed(&points);
    let weighted: Vec<_> = smooth.iter().map(|(x, y)| (*x, *y, 1.0)).collect();
    let (constant_us, per_sector) = numbers::line(&weighted);
    let squares: f64 = points.iter().map(|(d, us)| (us - constant_us - per_sector * d).powi(2)).sum();
    Some(Line {
        constant_us,
        slope_us: per_sector * sectors as f64,
        longest: sectors,
        residual_us: (squares / points.len() as f64).sqrt(),
        readings: points.len(),
        smooth,
    })
}

/// Each point's mean with those around it; at the ends with as many on both sides as there are.
fn smoothed(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut sums = vec![0.0];
    points.iter().for_each(|(_, us)| sums.push(sums[sums.len() - 1] + us));
    let half = |n: usize| (WINDOW / 2).min(n).min(points.len() - 1 - n);
    let mean = |n: usize| (sums[n + half(n) + 1] - sums[n - half(n)]) / (2 * half(n) + 1) as f64;
    points.iter().enumerate().map(|(n, (distance, _))| (*distance, mean(n))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_out_of_its_own_points() {
        let mut rng = fastrand::Rng::with_seed(1);
        let sectors = 1 << 30;
        let mut before = 0u64;
        let readings: Vec<Sample> = (0..20_000)
            .map(|_| {
                let lbn = rng.u64(..sectors);
                let distance = lbn.abs_diff(before) as f64 / sectors as f64;
                before = lbn;
                let service_us = 2250.0 + 5250.0 * distance + 4000.0 * rng.f64();
                Sample { request: page(lbn), started_us: 0.0, service_us }
            })
            .collect();
        let line = fit(&readings, sectors).expect("enough");
        assert!((line.constant_us - 4250.0).abs() < 40.0, "{}", line.constant_us);
        assert!((line.slope_us - 5250.0).abs() < 100.0, "{}", line.slope_us);
        assert!((line.residual_us - 1155.0).abs() < 20.0, "{}", line.residual_us);
        assert_eq!(line.smooth.len(), 19_999);
        assert!(fit(&readings[..50], sectors).is_none());
    }

    #[test]
    fn a_line_of_noise_is_a_model() {
        let line = |constant_us, slope_us| Line {
            constant_us,
            slope_us,
            longest: 1 << 17,
            residual_us: 881.0,
            readings: 999,
            smooth: Vec::new(),
        };
        for (constant_us, slope_us) in [(-14.5, 477.0), (14.5, -477.0), (-1.0, -1.0)] {
            let checked = line(constant_us, slope_us).model("ssd", 1 << 17, None).check();
            assert!(checked.is_ok(), "{constant_us} {slope_us}: {checked:?}");
        }
    }
}
