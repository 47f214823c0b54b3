//! Where an extent goes with each operation, row by row.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

type Under = Frees<&'static str>;

/// Where an extent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Ahead,
    Cleared,
    Later,
    Retired,
    Draining,
    /// It is in none of them.
    Gone,
}

use At::{Ahead, Cleared, Draining, Gone as Nowhere, Later, Retired};

const ALL: [At; 6] = [Ahead, Cleared, Later, Retired, Draining, Nowhere];
const EXTENT: u64 = 7;

fn with(at: At) -> Under {
    let mut frees = Under::default();
    match at {
        Ahead => frees.go_ahead(&[EXTENT]),
        Cleared => frees.cleared(vec![EXTENT]),
        Later => frees.clear_later("change", vec![EXTENT]),
        Retired => frees.retire(vec![EXTENT]),
        Draining => {
            frees.retire(vec![EXTENT]);
            assert!(frees.ask_release() && frees.next_batch());
        }
        Nowhere => {}
    }
    frees
}

fn find(frees: &Under) -> At {
    let places = [
        (Ahead, frees.ahead.contains(&EXTENT)),
        (Cleared, frees.cleared.contains(&EXTENT)),
        (Later, frees.later.iter().any(|(_, extents)| extents.contains(&EXTENT))),
        (Retired, frees.retired.contains(&EXTENT)),
        (Draining, matches!(&frees.release, Release::Draining(extents) if extents.contains(&EXTENT))),
    ];
    places.into_iter().find(|(_, is_there)| *is_there).map_or(Nowhere, |(at, _)| at)
}

/// Does something with the extent in each place; where it is then, and what is answered of it. `None`: not
/// allowed.
fn row<A: PartialEq + std::fmt::Debug>(
    what: &str,
    expected: [Option<(At, A)>; 6],
    operation: impl Fn(&mut Under) -> A,
) {
    for (before, expected) in ALL.into_iter().zip(expected) {
        let mut frees = with(before);
        frees.check().expect("a state that can be reached");
        assert_eq!(find(&frees), before);
        let Some(expected) = expected else { continue };
        let answer = operation(&mut frees);
        assert_eq!((find(&frees), answer), expected, "{what}: {before:?}");
        frees.check().unwrap_or_else(|e| panic!("{what}: {before:?}: {e}"));
    }
}

#[test]
fn a_commit() {
    let none = Vec::<(&str, Vec<u64>)>::new;
    let later = vec![("change", vec![EXTENT])];
    row(
        "committed",
        [
            Some((Ahead, none())),
            Some((Retired, none())),
            Some((Nowhere, later)),
            Some((Retired, none())),
            Some((Draining, none())),
            Some((Nowhere, none())),
        ],
        Under::committed,
    );
}

#[test]
fn an_entry_is_replaced() {
    let expected = [Some((Nowhere, Gone::Garbage)), None, None, None, None, Some((Retired, Gone::Retired))];
    row("give_up", expected, |frees| frees.give_up(EXTENT));
}

#[test]
fn the_map_refers_to_it() {
    let all = ALL.map(|at| Some((if at == Ahead { Nowhere } else { at }, ())));
    row("linked", all, |frees| frees.linked(&[EXTENT]));
}

#[test]
fn a_grace_period_begins() {
    // For what is retired, by a task that is not there yet.
    let expected = [Ahead, Cleared, Later, Draining].map(|at| Some((at, at == Draining)));
    let expected =
        [expected[0], expected[1], expected[2], expected[3], Some((Draining, false)), Some((Nowhere, false))];
    row("ask_release, next_batch", expected, |frees| frees.ask_release() && frees.next_batch());
}

#[test]
fn a_grace_period_ends() {
    let mut frees = with(Draining);
    frees.retire(vec![8]);
    assert!(!frees.ask_release(), "there is a task already");
    // An extent that was retired meanwhile has a grace period of its own.
    assert_eq!(frees.released(), [EXTENT]);
    assert!(frees.is_pending() && frees.next_batch());
    assert_eq!(frees.released(), [8]);
    assert!(frees.is_releasing(), "until the task has looked");
    assert!(!frees.next_batch() && !frees.is_pending());
    assert_eq!(frees.len(), 0);
}

#[test]
fn what_comes_free() {
    for at in ALL {
        let frees = with(at);
        assert_eq!(frees.is_pending(), matches!(at, Retired | Draining), "{at:?}");
        assert_eq!(frees.is_ahead(EXTENT), at == Ahead, "{at:?}");
        assert_eq!(frees.unowned().collect::<Vec<_>>().len(), usize::from(!matches!(at, Ahead | Nowhere)));
    }
    let mut frees = Under::default();
    frees.clear_later("change of nothing", Vec::new());
    assert!(frees.committed().is_empty());
}

#[test]
fn what_is_out_of_turn_is_asserted() {
    type Wrong = fn(&mut Under);
    let wrongs: [(&str, At, Wrong); 3] = [
        ("a batch before the last is released", Draining, |frees| {
            frees.next_batch();
        }),
        ("a batch without a task", Retired, |frees| {
            frees.next_batch();
        }),
        ("a release without a grace period", Retired, |frees| {
            frees.released();
        }),
    ];
    for (what, at, wrong) in wrongs {
        assert!(catch_unwind(AssertUnwindSafe(|| wrong(&mut with(at)))).is_err(), "{what}");
    }
}

#[test]
fn what_is_freed_twice_is_noticed() {
    for (first, second) in ALL.into_iter().flat_map(|first| ALL.map(|second| (first, second))) {
        let mut frees = with(first);
        match second {
            Ahead => frees.go_ahead(&[EXTENT]),
            Cleared => frees.cleared.push(EXTENT),
            Later => frees.later.push(("change", vec![EXTENT])),
            Retired => frees.retired.push(EXTENT),
            Draining | Nowhere => continue,
        }
        let whole = first == Nowhere || (first == Ahead && second == Ahead);
        assert_eq!(frees.check().is_ok(), whole, "{first:?} and {second:?}");
    }
    let mut frees = with(Nowhere);
    frees.release = Release::Draining(Vec::new());
    assert!(frees.check().is_err(), "a grace period for nothing");
}
