//! Logs that are wrong in one way each; without that, the same runs are good.

use super::zones::{zoned, zoned_crowded};
use super::{crowded, home, subject};
use crate::testing::*;
use lamina_kit::flaw::FLAW;
use lamina_sim::{Check, Run};

/// What must be noticed, by which check, and over which subject.
type Canary = (&'static str, fn() -> Subject, Check);

#[test]
fn canaries() {
    let canaries: [Canary; 11] = [
        ("acknowledged before it is in the log", subject, Check::Crash),
        ("drops are forgotten", subject, Check::Crash),
        ("replay in the order of places", crowded, Check::Crash),
        ("copies count whatever is there", crowded, Check::Model),
        ("a checkpoint before its pages", crowded, Check::Crash),
        ("a segment is used again before the checkpoint", crowded, Check::Crash),
        ("late tombstone", home::crowded, Check::Crash),
        ("let go before it is at home", home::crowded, Check::Crash),
        ("what is mapped goes home", home::crowded, Check::Model),
        ("a zone is not reset", zoned_crowded, Check::Model),
        ("two batches of a zone out of order", zoned, Check::Model),
    ];
    let seeds: u64 = std::env::var("LAMINA_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60);
    let unnoticed = |(flaw, subject, check): &Canary| {
        FLAW.set(Some(flaw));
        let found = (0..seeds).find(|seed| lamina_sim::run(&subject(), *check, *seed, Run::Sample).is_err());
        FLAW.set(None);
        found.is_none()
    };
    let missed: Vec<_> = canaries.iter().filter(|canary| unnoticed(canary)).map(|canary| canary.0).collect();
    assert!(missed.is_empty(), "nothing noticed: {missed:?}");
}
