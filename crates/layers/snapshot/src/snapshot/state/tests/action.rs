//! The table of the module, and where a request begins and ends in an extent.

use super::*;
use lamina_block::{Buf, Durability, Zero};

#[test]
fn all_actions() {
    let physical = PhysicalExtent { number: 7, born: 3 };
    let write = Op::Write(Buf::zeroed(512), Durability::Cached);
    let (zero, discard) = (Op::Zero(Zero::default()), Op::Discard);
    let (leave, unmap, replace) = (Action::Leave, Action::Unmap, Action::Replace);
    let in_place = Action::InPlace(7);
    let (copy, fresh) = (Action::Copy(Some(physical)), Action::Copy(None));
    use Covers::{Full, Part, Whole};
    // Of what lies nowhere, where it may be written, and where it is shared.
    let rows = [
        (&write, Full, [replace, in_place, replace]),
        (&write, Whole, [fresh, in_place, copy]),
        (&write, Part, [fresh, in_place, copy]),
        (&zero, Full, [leave, unmap, unmap]),
        (&zero, Whole, [leave, unmap, unmap]),
        (&zero, Part, [leave, in_place, copy]),
        (&discard, Full, [leave, unmap, unmap]),
        (&discard, Whole, [leave, unmap, unmap]),
        (&discard, Part, [leave, leave, leave]),
        (&Op::Flush, Full, [leave, leave, leave]),
    ];
    let locations = [(None, None), (Some(physical), Some(physical)), (Some(physical), None)];
    for (op, covers, expected) in rows {
        for ((at, own), expected) in locations.into_iter().zip(expected) {
            let action = Action::new(op, covers, at, own);
            assert_eq!(action, expected, "{:?} {covers:?} {at:?} {own:?}", op.kind());
            assert_eq!(action.is_new(), expected == replace || expected == copy || expected == fresh);
        }
    }
}

#[test]
fn how_much_a_request_covers() {
    // The request, the size of the volume; of the extent from 8 to 16.
    let rows = [
        (8..16, 100, Covers::Full),
        (0..24, 100, Covers::Full),
        (8..15, 100, Covers::Part),
        (9..16, 100, Covers::Part),
        (9..24, 100, Covers::Part),
        (8..12, 12, Covers::Whole),
        (8..11, 12, Covers::Part),
        (9..12, 12, Covers::Part),
        (0..12, 12, Covers::Whole),
        (8..16, 16, Covers::Full),
        (8..8, 8, Covers::Whole),
    ];
    for (at, size, expected) in rows {
        assert_eq!(Covers::new(&at, 8..16, size), expected, "{at:?} {size}");
    }
}
