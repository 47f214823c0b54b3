//! How well a model tells what requests take that it was not made from.

use super::linear::{PAGE_SECTORS, Reading};
use lamina_block::Time;
use lamina_drive::{Model, Op, Request, Tracker};

/// Requests after which an observer has found the angle of the platters.
const SKIPPED: usize = 50;

/// Predictions beside measurements, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// What was predicted, and what was measured.
    pub pairs: Vec<(f64, f64)>,
    /// The middle of the errors.
    pub median_us: f64,
    /// The share of errors of at most half a millisecond.
    pub within_half_ms: f64,
    /// The share of errors of more than 0.8 and less than 1.2 turns; 0 for a drive without rotation.
    pub turn_off: f64,
    /// The root of the mean square.
    pub rms_us: f64,
    /// The horizontal distance of the distributions: the demerit figure.
    pub demerit_us: f64,
}

/// Follows `readings`, which were read one after the other, with an observer that has nothing but the model. `None` of
/// too few.
pub fn score(model: &Model, readings: &[Reading], turn_us: Option<f64>) -> Option<Score> {
    let moment = |us: f64| Time((us * 1e3).round() as u64);
    let mut tracker = Tracker::new(model);
    let mut pairs = Vec::new();
    for reading in readings {
        let request = Request { op: Op::Read, lbn: reading.lbn, sectors: PAGE_SECTORS };
        let (start, end) = (moment(reading.start_us), moment(reading.start_us + reading.service_us));
        pairs.push((tracker.cost(start, &request).as_secs_f64() * 1e6, reading.service_us));
        tracker.dispatched(start, &request);
        tracker.completed(start, end, &request);
    }
    let pairs = pairs.split_off(SKIPPED.min(pairs.len()));
    let count = pairs.len() as f64;
    let mut errors: Vec<f64> =
        pairs.iter().map(|(predicted, measured)| (predicted - measured).abs()).collect();
    errors.sort_by(f64::total_cmp);
    let share = |of: &dyn Fn(f64) -> bool| errors.iter().filter(|error| of(**error)).count() as f64 / count;
    let rms = |values: &mut dyn Iterator<Item = f64>| (values.map(|v| v * v).sum::<f64>() / count).sqrt();
    let (mut predicted, mut measured): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    predicted.sort_by(f64::total_cmp);
    measured.sort_by(f64::total_cmp);
    Some(Score {
        median_us: *errors.get(errors.len() / 2)?,
        within_half_ms: share(&|error| error <= 500.0),
        turn_off: turn_us.map_or(0.0, |turn| share(&|error| error > 0.8 * turn && error < 1.2 * turn)),
        rms_us: rms(&mut errors.iter().copied()),
        demerit_us: rms(&mut predicted.iter().zip(&measured).map(|(p, m)| p - m)),
        pairs,
    })
}
