//! Parities that are wrong in one way each; without that, the same runs are good.

use super::crash::{Run, Story, run};
use lamina_kit::flaw::FLAW;

/// The first of so many runs that goes wrong.
fn first(story: Story, runs: u64) -> Option<String> {
    (0..runs).find_map(|seed| {
        let this = Run { story, parity: 1, seed, one_in: 12 };
        std::panic::catch_unwind(|| run(this)).unwrap_or_else(|_| Err("it panicked".into())).err()
    })
}

#[test]
fn canaries() {
    for (flaw, story) in [
        ("parity not recomputed", Story::Quiet),
        ("data before intent", Story::Quiet),
        ("what needs a resync is not missed", Story::Quiet),
        ("stale parity", Story::Lost),
        ("journal after data", Story::Missing),
        ("no journal", Story::Missing),
        ("slot reused before the flush", Story::Crowded),
        ("first ignored", Story::Crowded),
    ] {
        assert_eq!(first(story, 4), None);
        FLAW.set(Some(flaw));
        // Some need records that are torn in a certain way.
        let caught = first(story, 64);
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw} is not caught");
    }
}

/// This takes three records that are torn in a certain way at the same moment, which would take thousands of runs.
#[test]
fn a_slot_that_is_reused_too_early_is_noticed() {
    for flaw in ["slot reused before the flush", "slot reused before it is said"] {
        FLAW.set(Some(flaw));
        let ran = std::panic::catch_unwind(super::ring::a_slot_is_free_when_a_record_says_so);
        FLAW.set(None);
        assert!(ran.is_err(), "{flaw} is not caught");
    }
}
