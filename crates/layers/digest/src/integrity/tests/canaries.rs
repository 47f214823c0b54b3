//! Layers that are wrong in one way each: the gauntlet must notice.

use super::*;
use lamina_kit::flaw::FLAW;

/// Whether one of a few runs notices that something is wrong: of the gauntlet, or of the crash test.
fn found_out(flaw: &'static str, checks: &[Check]) -> bool {
    FLAW.set(Some(flaw));
    let subjects = [subject(), apart(Level::Shadow)];
    let gauntlet = |seed| {
        let runs = subjects.iter().flat_map(|subject| checks.iter().map(move |check| (subject, *check)));
        runs.into_iter().any(|(subject, check)| lamina_sim::run(subject, check, seed, Run::Sample).is_err())
    };
    let crashes = |seed| std::panic::catch_unwind(|| super::crash::survives(seed, true)).is_err();
    let found = (0..20).any(|seed| gauntlet(seed) || crashes(seed));
    FLAW.set(None);
    found
}

#[test]
fn data_before_its_intent_is_found_out() {
    assert!(found_out("data before intent", &[Check::Crash]));
}

#[test]
fn an_intent_cleared_before_its_data_is_durable_is_found_out() {
    assert!(found_out("data may be lost that digests speak of", &[Check::Crash]));
}

#[test]
fn an_intent_cleared_before_its_digests_are_durable_is_found_out() {
    assert!(found_out("digests may be lost of data that is there", &[Check::Crash]));
}

#[test]
fn an_intent_cleared_while_something_is_written_is_found_out() {
    assert!(found_out("a busy region is cleared", &[Check::Crash]));
}

#[test]
fn changes_that_do_not_wait_for_each_other_are_found_out() {
    assert!(found_out("changes do not wait", &[Check::Model, Check::Change]));
}

#[test]
fn a_layer_that_believes_everything_is_found_out() {
    FLAW.set(Some("what differs is believed"));
    let test = || super::damage::a_changed_byte_is_an_error_there_and_nowhere_else();
    let found = std::panic::catch_unwind(test);
    FLAW.set(None);
    assert!(found.is_err());
}
