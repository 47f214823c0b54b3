//! The changes of an entry and of a reservation, row by row.

use super::*;

const EXTENT: u64 = 3;
const OLD: Entry = Entry::At { place: 1, born: 1 };
const NEW: Entry = Entry::At { place: 2, born: 1 };
const NEXT: Entry = Entry::At { place: 3, born: 1 };

/// The entries of an extent in the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    Nothing,
    New,
    Frozen,
    Both,
}

const ALL: [Has; 4] = [Has::Nothing, Has::New, Has::Frozen, Has::Both];

fn with(has: Has) -> Overlay {
    let mut overlay = Overlay::default();
    if matches!(has, Has::Frozen | Has::Both) {
        overlay.set(EXTENT, OLD);
        overlay.freeze();
    }
    if matches!(has, Has::New | Has::Both) {
        overlay.set(EXTENT, NEW);
    }
    overlay
}

fn what(overlay: &Overlay) -> Has {
    match (overlay.new.contains_key(&EXTENT), overlay.frozen.contains_key(&EXTENT)) {
        (false, false) => Has::Nothing,
        (true, false) => Has::New,
        (false, true) => Has::Frozen,
        (true, true) => Has::Both,
    }
}

fn row<A: PartialEq + std::fmt::Debug>(
    name: &str,
    expected: [Option<(Has, A)>; 4],
    operation: impl Fn(&mut Overlay) -> A,
) {
    for (before, expected) in ALL.into_iter().zip(expected) {
        let mut overlay = with(before);
        assert_eq!(what(&overlay), before);
        let Some(expected) = expected else { continue };
        let answer = operation(&mut overlay);
        assert_eq!((what(&overlay), answer), expected, "{name}: {before:?}");
        overlay.check().unwrap_or_else(|e| panic!("{name}: {before:?}: {e}"));
    }
}

#[test]
fn entries() {
    let [nothing, new, frozen, both] = ALL;
    row(
        "get",
        [
            Some((nothing, None)),
            Some((new, Some((NEW, Age::New)))),
            Some((frozen, Some((OLD, Age::Frozen)))),
            Some((both, Some((NEW, Age::New)))),
        ],
        |o| o.get(EXTENT),
    );
    row(
        "set",
        [Some((new, None)), Some((new, Some(NEW))), Some((both, None)), Some((both, Some(NEW)))],
        |o| o.set(EXTENT, NEXT),
    );
    row("freeze", [Some((nothing, ())), Some((frozen, ())), None, None], Overlay::freeze);
    row("mapped", [Some((nothing, ())), Some((new, ())), Some((nothing, ())), Some((new, ()))], |o| {
        o.mapped(&[EXTENT])
    });
    row(
        "thaw",
        [Some((nothing, vec![])), Some((new, vec![])), Some((new, vec![])), Some((new, vec![OLD]))],
        Overlay::thaw,
    );
    row("next", ALL.map(|has| Some((has, (has != nothing).then_some(EXTENT)))), |o| o.next(0));
    row("next behind it", ALL.map(|has| Some((has, None))), |o| o.next(EXTENT + 1));
    row("is_frozen", ALL.map(|has| Some((has, has == frozen || has == both))), |o| o.is_frozen());
    row("physical_extents", [(nothing, 0), (new, 1), (frozen, 1), (both, 2)].map(Some), |o| {
        o.physical_extents().count()
    });
    row("frozen", [(nothing, 0), (new, 0), (frozen, 1), (both, 1)].map(Some), |o| o.frozen().len());
}

const ROOMY: Bounds = Bounds { pages: 100, together: None, bitmap: 100 };

#[test]
fn pages_are_promised_once_a_leaf() {
    let mut overlay = Overlay::default();
    // Leaf, pages that it may take, pages promised then.
    for (leaf, pages, promised) in [(0, 2, 2), (0, 2, 2), (0, 1, 2), (1, 2, 4), (0, 3, 5), (2, 0, 5)] {
        assert!(overlay.reserve(leaf * FANOUT, 1, pages, ROOMY));
        assert_eq!(overlay.pages, promised, "leaf {leaf}, pages {pages}");
        overlay.check().expect("whole");
    }
}

#[test]
fn room_is_refused() {
    let bytes = |entries: usize, pages: usize| pages * PAGE_COST + entries * ENTRY_COST + HEAD_COST;
    // The room there is, and the reservation: entries and pages.
    let rows = [
        (ROOMY, ENTRIES_MAX, 1, true),
        (ROOMY, ENTRIES_MAX + 1, 1, false),
        (Bounds { pages: 3, ..ROOMY }, 1, 3, true),
        (Bounds { pages: 2, ..ROOMY }, 1, 3, false),
        (Bounds { together: Some((bytes(4, 2), 99)), ..ROOMY }, 4, 2, true),
        (Bounds { together: Some((bytes(4, 2) - 1, 99)), ..ROOMY }, 4, 2, false),
        // Two new pages, the leaf, two bits for each entry, and eight.
        (Bounds { together: Some((1 << 20, 2 + 1 + 8 + 8)), ..ROOMY }, 4, 2, true),
        (Bounds { together: Some((1 << 20, 2 + 1 + 8 + 7)), ..ROOMY }, 4, 2, false),
        (Bounds { together: Some((1 << 20, 2 + 1 + 5 + 8)), bitmap: 5, ..ROOMY }, 4, 2, true),
    ];
    for (bounds, entries, pages, expected) in rows {
        let mut overlay = Overlay::default();
        assert_eq!(overlay.reserve(0, entries, pages, bounds), expected, "{bounds:?} {entries} {pages}");
        assert_eq!(overlay.is_reserved(), expected, "what is refused promises nothing");
        overlay.check().expect("whole");
    }
}

/// Promises through a round: an open reservation keeps its pages, and what is frozen has those that were
/// promised to it.
#[test]
fn promises_through_a_round() {
    for fails in [false, true] {
        let mut overlay = Overlay::default();
        assert!(overlay.reserve(0, 1, 2, ROOMY) && overlay.reserve(FANOUT, 1, 3, ROOMY));
        overlay.set(0, NEW);
        overlay.end_reservation(0, 1);
        overlay.freeze();
        assert_eq!((overlay.pages, overlay.pages_frozen), (3, 5));
        match fails {
            true => assert_eq!(overlay.thaw(), []),
            false => overlay.mapped(&[0]),
        }
        assert_eq!((overlay.pages, overlay.pages_frozen), (if fails { 8 } else { 3 }, 0));
        overlay.check().expect("whole");
        overlay.set(FANOUT, NEXT);
        overlay.end_reservation(FANOUT, 1);
        overlay.freeze();
        overlay.mapped(&[0, FANOUT]);
        assert_eq!((overlay.pages, overlay.pages_frozen, overlay.leaves.len()), (0, 0, 0));
        assert!(overlay.is_empty() && !overlay.is_reserved());
    }
}

/// A request fails after its reservation, before, while or after a round is under way: its promise ends.
#[test]
fn a_failed_request_is_promised_nothing() {
    for (round, other) in [(0, false), (1, false), (1, true), (2, false), (2, true)] {
        let mut overlay = Overlay::default();
        assert!(overlay.reserve(0, 1, 3, ROOMY));
        if other {
            overlay.set(FANOUT, NEW);
        }
        if round > 0 {
            overlay.freeze();
        }
        if round == 1 {
            overlay.mapped(&[FANOUT]);
        }
        overlay.end_reservation(0, 1);
        overlay.check().expect("whole");
        overlay.mapped(&[FANOUT]);
        overlay.check().expect("whole");
        assert_eq!((overlay.pages, overlay.pages_frozen), (0, 0), "{round} {other}");
        assert!(overlay.reserve(FANOUT, 1, 100, ROOMY), "all pages can be promised to others");
    }
}

#[test]
fn what_is_broken_is_noticed() {
    type Break = fn(&mut Overlay);
    let breaks: [(&str, Break); 6] = [
        ("stay promised", |o| (o.reserved, o.leaves, o.new, o.frozen) = Default::default()),
        ("stay promised", |o| (o.frozen, o.pages_frozen) = (BTreeMap::new(), 1)),
        ("is absent", |o| o.new.extend([(1, Entry::Absent)])),
        ("are reserved", |o| o.reserved = 0),
        ("are reserved", |o| o.leaves.clear()),
        ("are promised", |o| o.pages = 1),
    ];
    for (words, break_it) in breaks {
        let mut overlay = with(Has::Both);
        assert!(overlay.reserve(0, 1, 2, ROOMY));
        overlay.check().expect("whole");
        break_it(&mut overlay);
        let noticed = overlay.check().expect_err(words);
        assert!(noticed.contains(words), "{noticed}: {words}");
    }
}
