//! Decisions that involve several parts of a volume's state.

use super::*;
use crate::snapshot::format::{Head, SnapshotRecord};
use lamina_metadata::extents::Root;

fn at(place: u64) -> Entry {
    Entry::At { place, born: 2 }
}

/// A volume in epoch 2, after a snapshot of epoch 1.
fn state() -> State {
    let head = Head { shift: 12, size: 1 << 20, physical: 256, epoch: 2, ..Head::default() };
    let kept = SnapshotRecord { name: "a".into(), epoch: 1, size: 1 << 20, root: Root::default(), taken: 0 };
    State::new(Versions::new(head, vec![Snapshot::new(kept, 0)]))
}

/// The same with a round under way, for the entry of extent 0.
fn in_a_round() -> State {
    let mut state = state();
    state.set(0, at(5));
    state.rounds.ask();
    state.rounds.begin();
    state.overlay.freeze();
    state.check().expect("whole");
    state
}

#[test]
fn writes_in_place() {
    let state = state();
    let physical = |born| Some(PhysicalExtent { number: 5, born });
    // Where an extent lies, how far its entry is; whether it is written in its location, and at `atomic`.
    let rows = [
        (None, Age::Mapped, false, false),
        (physical(1), Age::Mapped, false, false),
        (physical(1), Age::New, false, false),
        (physical(2), Age::Mapped, true, false),
        (physical(2), Age::Frozen, true, false),
        (physical(2), Age::New, true, true),
    ];
    for (physical, age, expected, at_atomic) in rows {
        let location = Location { at: physical, age };
        for (atomic, expected) in [(false, expected), (true, at_atomic)] {
            let own = state.own(location, atomic);
            assert_eq!(own, physical.filter(|_| expected), "{location:?}, atomic: {atomic}");
        }
    }
}

#[test]
fn what_waits_is_where_it_was_written() {
    let mut state = in_a_round();
    assert_eq!(
        state.waiting(0),
        Some(Location { at: Some(PhysicalExtent { number: 5, born: 2 }), age: Age::Frozen })
    );
    state.set(0, Entry::Hole);
    assert_eq!(state.waiting(0), Some(Location { at: None, age: Age::New }));
    assert_eq!(state.waiting(1), None);
}

/// An entry that the map never had is replaced: its extent is free after a grace period, or, if the bitmap
/// has it, garbage.
#[test]
fn replaced_entries() {
    for (ahead, round) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut state = in_a_round();
        if ahead {
            state.frees.go_ahead(&[5]);
        }
        if round {
            // Replaced while it was on its way into the map, which it does not reach.
            state.set(0, Entry::Hole);
            state.check().expect("whole");
            state.thaw();
        } else {
            // It did not reach the map, and is replaced later.
            state.thaw();
            state.check().expect("whole");
            state.set(0, Entry::Hole);
        }
        state.rounds.end(&Ok(()));
        state.check().expect("whole");
        assert_eq!(state.versions.head().garbage, ahead);
        assert_eq!(state.frees.is_pending(), !ahead);
        assert!(!state.frees.is_ahead(5));
    }
}

#[test]
fn a_commit_tells_all_parts() {
    let mut state = state();
    let (index, head) = state.versions.begin_delete("a").expect("there");
    state.versions.deleted(index, head);
    state.rounds.stage();
    state.frees.cleared(vec![9]);
    assert!(!state.is_committed() && !state.frees.is_pending() && !state.versions.is_own(1));
    assert!(state.committed().is_empty());
    assert!(state.is_committed() && state.frees.is_pending() && state.versions.is_own(1));
}

#[test]
fn settled() {
    // Whether an entry waits, whether the store was told something.
    for (waits, staged, expected) in
        [(false, false, true), (true, false, false), (false, true, false), (true, true, false)]
    {
        let mut state = state();
        if waits {
            state.set(0, at(5));
        }
        if staged {
            state.rounds.stage();
        }
        assert_eq!(state.is_committed(), expected, "{waits} {staged}");
    }
}

#[test]
fn waits_for_room_in_the_map() {
    let reserve = |state: &mut State| {
        assert!(state.overlay.reserve(0, 1, 1, Bounds { pages: 9, together: None, bitmap: 9 }));
    };
    // Entries wait, others have reserved, a round was asked for.
    let rows = [
        (false, false, false, Wait::Garbage),
        (false, true, false, Wait::Others),
        (false, false, true, Wait::Others),
        (false, true, true, Wait::Others),
        (true, false, false, Wait::Round),
        (true, true, false, Wait::Round),
        (true, false, true, Wait::Round),
        (true, true, true, Wait::Round),
    ];
    for (entries, reserved, asked, expected) in rows {
        let mut state = state();
        if entries {
            state.set(0, at(5));
        }
        if reserved {
            reserve(&mut state);
        }
        if asked {
            state.rounds.ask();
        }
        assert_eq!(state.wait_for_room(), expected, "{entries} {reserved} {asked}");
    }
}

#[test]
fn waits_for_an_extent() {
    // Extents are in their grace period, something is not durable, a round was waited for.
    let rows = [
        (false, false, false, Wait::Garbage),
        (false, false, true, Wait::Garbage),
        (false, true, false, Wait::Round),
        (false, true, true, Wait::Garbage),
        (true, false, false, Wait::Others),
        (true, false, true, Wait::Others),
        (true, true, false, Wait::Others),
        (true, true, true, Wait::Others),
    ];
    for (pending, unsettled, asked, expected) in rows {
        let mut state = state();
        if pending {
            state.frees.retire(vec![9]);
        }
        if unsettled {
            state.rounds.stage();
        }
        assert_eq!(state.wait_for_extent(asked), expected, "{pending} {unsettled} {asked}");
    }
}

#[test]
fn what_is_broken_is_noticed() {
    type Break = fn(&mut State);
    let breaks: [(&str, Break); 8] = [
        ("two owners", |s| s.set(1, at(5))),
        ("about to be free", |s| s.frees.retire(vec![5])),
        ("about to be free", |s| s.frees.cleared(vec![5])),
        ("nothing refers to it", |s| s.frees.go_ahead(&[6])),
        ("no round", |s| assert!(!s.rounds.end(&Ok(())))),
        // And what its parts notice.
        ("freed twice", |s| s.frees.retire(vec![9, 9])),
        ("read again", |s| s.versions.set_head(Head { size: u64::MAX, ..*s.versions.head() })),
        ("is absent", |s| s.set(1, Entry::Absent)),
    ];
    for (words, break_it) in breaks {
        let mut state = in_a_round();
        break_it(&mut state);
        let noticed = state.check().expect_err(words);
        assert!(noticed.contains(words), "{noticed}: {words}");
    }
}
