//! All states, all operations.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

const fn state(running: bool, asked: bool, stale: bool) -> Garbage {
    Garbage { running, asked, stale, sweeps: 0 }
}

#[test]
fn all_transitions() {
    let bits = [false, true];
    for running in bits {
        for asked in bits {
            for stale in bits {
                let before = state(running, asked, stale);
                let apply = |operation: &dyn Fn(&mut Garbage) -> bool| {
                    let mut after = before;
                    let answer = catch_unwind(AssertUnwindSafe(|| operation(&mut after))).ok();
                    answer.map(|answer| (after, answer))
                };
                let is_closed = Some((state(running, true, stale), false));
                assert_eq!(apply(&|g| g.ask(true)), is_closed, "{before:?}");
                let begun = Some((state(true, true, stale), !running));
                assert_eq!(apply(&|g| g.ask(false)), begun, "{before:?}");
                // One more pass exactly if something was asked for; it leaves nothing stale.
                let pass = running.then_some((state(running, false, stale && !asked), asked));
                assert_eq!(apply(&Garbage::begin_pass), pass, "{before:?}");
                let ended = running.then_some((state(false, asked, stale), asked));
                assert_eq!(
                    apply(&|g| {
                        g.end();
                        g.asked
                    }),
                    ended,
                    "{before:?}"
                );
                let replaced = Some((state(running, asked, true), !running));
                assert_eq!(
                    apply(&|g| {
                        g.replaced();
                        g.is_worthwhile()
                    }),
                    replaced,
                    "{before:?}"
                );
                assert_eq!(before.is_worthwhile(), stale && !running);
                assert_eq!((before.is_running(), before.is_done()), (running, !asked));
            }
        }
    }
}

#[test]
fn at_first_nothing_is_known() {
    assert!(Garbage::default().is_worthwhile() && !Garbage::default().is_running());
}

#[test]
fn a_sweep_is_seen() {
    let mut garbage = Garbage::default();
    let before = garbage.sweeps();
    garbage.swept();
    assert_ne!(garbage.sweeps(), before);
}
