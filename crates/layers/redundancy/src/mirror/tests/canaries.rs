//! Mirrors that are wrong in one way each; without that, the same runs are good.

use super::crash::{STORIES, run};
use super::scrub;
use lamina_kit::flaw::FLAW;

#[test]
fn canaries() {
    let first = || {
        (0..4).flat_map(|seed| STORIES.map(|story| (story, seed))).find_map(|(story, seed)| {
            let ran = std::panic::catch_unwind(|| run(story, seed, 16));
            ran.unwrap_or_else(|_| Err("it panicked".into())).err()
        })
    };
    assert_eq!(first(), None);
    for flaw in [
        "ack before all legs",
        "stale leg read",
        "what was not flushed is forgotten",
        "data before intent",
        "what needs a resync is not missed",
    ] {
        FLAW.set(Some(flaw));
        let caught = first();
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw} is not caught");
    }
    FLAW.set(Some("wrong leg healed"));
    let caught = std::panic::catch_unwind(scrub::of_three_the_majority_is_right);
    FLAW.set(None);
    assert!(caught.is_err(), "a wrong leg that is healed is not caught");
}
