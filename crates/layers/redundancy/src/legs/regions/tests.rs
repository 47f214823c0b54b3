use super::*;

const SIZE: u64 = 16 << 10;
const UNIT: u64 = 4 << 10;
const AT: Range<u64> = UNIT..2 * UNIT;

/// A change of a unit.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write,
    /// While a write to the unit is under way, or none is.
    BeginFlush(bool),
    EndFlush(bool),
    Diverge,
    Agree,
}

/// The three bits of a unit: needs a resync, written, flushed.
type Unit = (bool, bool, bool);

fn with((needs, written, flushed): Unit, is_flushing: bool) -> Regions {
    let mut regions = Regions::new(SIZE, 512);
    let set = |is: bool| {
        let mut bits = nothing_of(SIZE, 512);
        bits.add(&if is { AT } else { 0..0 });
        bits
    };
    regions.needs_resync = set(needs);
    regions.written = set(written);
    regions.flushing = (is_flushing || flushed).then(|| set(flushed));
    regions
}

fn unit(regions: &Regions) -> Unit {
    let flushed = regions.flushing.as_ref().is_some_and(|bits| bits.touches(&AT));
    (regions.needs_resync.touches(&AT), regions.written.touches(&AT), flushed)
}

/// A change, and whether the unit is written and flushed before and after it.
type Row = (Change, (bool, bool), (bool, bool));

/// The table in the documentation, without the bit that says whether a resync is needed.
const TABLE: [Row; 18] = [
    (Change::Write, (false, false), (true, false)),
    (Change::Write, (true, false), (true, false)),
    (Change::Write, (false, true), (true, true)),
    (Change::Write, (true, true), (true, true)),
    (Change::BeginFlush(false), (false, false), (false, false)),
    (Change::BeginFlush(true), (false, false), (true, false)),
    (Change::BeginFlush(false), (true, false), (false, true)),
    (Change::BeginFlush(true), (true, false), (true, true)),
    (Change::BeginFlush(true), (false, true), (false, true)),
    (Change::BeginFlush(true), (true, true), (true, true)),
    (Change::EndFlush(false), (false, false), (false, false)),
    (Change::EndFlush(false), (true, false), (true, false)),
    (Change::EndFlush(false), (false, true), (false, false)),
    (Change::EndFlush(false), (true, true), (true, false)),
    (Change::EndFlush(true), (false, false), (false, false)),
    (Change::EndFlush(true), (true, false), (true, false)),
    (Change::EndFlush(true), (false, true), (true, false)),
    (Change::EndFlush(true), (true, true), (true, false)),
];

fn apply(regions: &mut Regions, change: Change) {
    match change {
        Change::Write => regions.write(&AT),
        Change::BeginFlush(under_way) => {
            let is_only = regions.flushing.is_none();
            let these = if under_way { vec![AT] } else { Vec::new() };
            assert_eq!(regions.begin_flush(&these), is_only);
        }
        Change::EndFlush(failed) => regions.end_flush(failed),
        Change::Diverge => regions.diverge(&AT),
        Change::Agree => regions.agree(&AT),
    }
    regions.check(SIZE).expect("a good state");
}

#[test]
fn every_change_of_a_unit_is_as_the_table_says() {
    for (change, before, after) in TABLE {
        for needs in [false, true] {
            let mut regions = with((needs, before.0, before.1), matches!(change, Change::EndFlush(_)));
            apply(&mut regions, change);
            assert_eq!(unit(&regions), (needs, after.0, after.1), "{change:?} of {before:?}");
        }
    }
    for state in 0..8 {
        let before = (state & 1 > 0, state & 2 > 0, state & 4 > 0);
        for (change, needs) in [(Change::Diverge, true), (Change::Agree, false)] {
            let mut regions = with(before, false);
            apply(&mut regions, change);
            assert_eq!(unit(&regions), (needs, before.1, before.2), "{change:?} of {before:?}");
        }
    }
}

#[test]
fn what_is_not_flushed_may_be_lost_and_what_differs_where_legs_are_the_same() {
    for state in 0..8 {
        let before @ (needs, written, flushed) = (state & 1 > 0, state & 2 > 0, state & 4 > 0);
        for same in [false, true] {
            let lost = with(before, false).unflushed(same).touches(&AT);
            assert_eq!(lost, written || flushed || (same && needs), "{before:?}, the same: {same}");
        }
    }
}

#[test]
fn only_whole_units_are_known_to_agree() {
    let rows = [
        (UNIT..2 * UNIT, true),
        (UNIT + 512..2 * UNIT, false),
        (UNIT..2 * UNIT - 512, false),
        (0..SIZE, true),
        (2 * UNIT..SIZE, false),
    ];
    for (at, is_new) in rows {
        let mut regions = with((true, true, true), false);
        assert_eq!(regions.agree_within(&at), is_new, "{at:?}");
        assert_eq!(unit(&regions), (!is_new, true, true), "{at:?}");
    }
    // The last unit is whole up to the end.
    let mut regions = Regions::new(SIZE + 512, 512);
    regions.diverge(&(SIZE..SIZE + 512));
    assert!(regions.agree_within(&(SIZE..SIZE + 512)));
    assert!(regions.needs_resync().is_empty());
}

#[test]
fn what_is_new_differs_and_the_rest_is_as_it_was() {
    let mut regions = with((false, true, true), false);
    regions.become_larger(2 * SIZE, 512);
    regions.check(2 * SIZE).expect("a good state");
    assert_eq!(unit(&regions), (false, true, true));
    assert!(regions.needs_resync().runs().eq(std::iter::once(SIZE..2 * SIZE)));
}

#[test]
fn a_broken_state_is_noticed() {
    let good = with((true, true, true), false);
    good.check(SIZE).expect("a good state");
    good.check(2 * SIZE).expect_err("legs of another size");
    let breaks: [fn(&mut Regions); 3] = [
        |regions| regions.needs_resync = nothing_of(2 * SIZE, 512),
        |regions| regions.written = Bits::none(SIZE, 2 * UNIT),
        |regions| regions.flushing = Some(nothing_of(SIZE / 2, 512)),
    ];
    for (number, change) in breaks.into_iter().enumerate() {
        let mut broken = good.clone();
        change(&mut broken);
        broken.check(SIZE).expect_err(&format!("break {number} is not noticed"));
    }
}
