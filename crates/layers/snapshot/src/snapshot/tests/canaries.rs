//! Volumes that are deliberately wrong: each is found out by the crash test. What is wrong is done from outside, so the
//! layer has no switch for it.

use super::super::state::BROKEN;
use super::crash::{Wrong, random_work};
use lamina_block::Level;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Whether one of a few runs finds that something is wrong.
fn found_out(level: Level, wrong: Wrong) -> bool {
    (0..12).any(|seed| {
        let run = || random_work(level, Some(2 << 20), seed..seed + 1, 80, 6, wrong);
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(result) => result.is_err(),
            // The crash test has to find it, not the layer's own check of its state.
            Err(panic) => !panic.downcast_ref::<String>().is_some_and(|words| words.contains(BROKEN)),
        }
    })
}

#[test]
fn a_map_ahead_of_its_data_is_found_out() {
    assert!(Level::ALL.into_iter().all(|level| found_out(level, Wrong::DataLate)));
}

#[test]
fn a_shared_extent_written_in_place_is_found_out() {
    assert!(found_out(Level::Shadow, Wrong::SharedInPlace));
}

#[test]
fn an_extent_reclaimed_too_early_is_found_out() {
    assert!(found_out(Level::Shadow, Wrong::ReclaimedEarly));
}

#[test]
fn data_ahead_of_the_map_is_found_out_at_atomic() {
    assert!(found_out(Level::Atomic, Wrong::OverwrittenInPlace));
}
