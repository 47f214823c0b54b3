//! Drives that were measured: a model that is fitted to the first half of a trace predicts the second half.
//!
//! The traces (DiskSim's validation set) are no part of the project: `LAMINA_TRACES` names their folder, and without
//! them the tests skip.

mod measured;

use lamina_calibrate::passive::{Options, fit, think};
use lamina_calibrate::trace::{parse, samples};
use lamina_calibrate::{Score, score};
use lamina_drive::{Mechanism, Model};
use measured::text;

/// How well the second half is predicted, and the rotation in milliseconds.
fn halves(text: &str) -> (Score, f64) {
    let records = parse(text).expect("a trace");
    let half = records.len() / 2;
    let all = samples(&records, think(&records[..half]));
    let sectors = all.iter().map(|s| s.request.end()).max();
    let options = Options { name: "measured".into(), sectors };
    let model = fit(&all[..half], &options, &mut |_| ()).expect("a model").model;
    let again = Model::parse(&model.to_toml()).expect("its file");
    let Mechanism::Rotational(disk) = &model.mechanism else { panic!("a hard disk") };
    (score(&again, &all[half..], 1), disk.rotation_ms)
}

/// The demerit is at most `demerit_ms`; far reads are as good as a scheduler needs them.
fn is_predicted(name: &str, demerit_ms: f64) {
    let Some(text) = text(name) else { return };
    let (score, rotation_ms) = halves(&text);
    assert!(score.demerit_ms <= demerit_ms, "{}", score.demerit_ms);
    assert!(score.median_ms <= 0.05 * rotation_ms, "{} of {rotation_ms}", score.median_ms);
    assert!(score.within_half_ms >= 0.75, "{}", score.within_half_ms);
    assert!(score.whole_turn_off <= 0.06, "{}", score.whole_turn_off);
}

#[test]
fn atlas10k() {
    is_predicted("atlas10k", 0.15);
}

#[test]
fn cheetah_9lp() {
    is_predicted("cheetah9LP", 0.12);
}

#[test]
fn hp_c3323a() {
    let Some(text) = text("hp_c3323a") else { return };
    // Its times scatter by a millisecond around every angle: single requests cannot be predicted better.
    let (score, _) = halves(&text);
    assert!(score.demerit_ms <= 0.35, "{}", score.demerit_ms);
}
