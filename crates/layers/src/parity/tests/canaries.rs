//! Parities that are wrong in one way each; without that, the same runs are good.

use super::crash::{Run, Story, run};
use crate::flaw::FLAW;

/// The first of a few runs that goes wrong.
fn first(stories: &[Story]) -> Option<String> {
    (0..4).flat_map(|seed| stories.iter().map(move |story| (*story, seed))).find_map(|(story, seed)| {
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
    ] {
        assert_eq!(first(&[story]), None);
        FLAW.set(Some(flaw));
        let caught = first(&[story]);
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw} is not caught");
    }
}
