//! Parities that are wrong in one way each; without that, the same runs are good.

use super::crash::{Run, Story, run};
use crate::flaw::FLAW;

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
        ("stale parity", Story::Lost),
        ("journal after data", Story::Missing),
        ("no journal", Story::Missing),
        ("slot reused before the flush", Story::Crowded),
        ("slot reused before it is said", Story::Crowded),
        ("first ignored", Story::Crowded),
    ] {
        assert_eq!(first(story, 4), None);
        FLAW.set(Some(flaw));
        // Some need two records that are torn in a certain way.
        let caught = first(story, 64);
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw} is not caught");
    }
}
