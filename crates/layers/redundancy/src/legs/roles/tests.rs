use super::*;

const SIZE: u64 = 16 << 10;
const HALF: Range<u64> = 0..SIZE / 2;
const NOW: Time = Time(1_000_000_000);

fn bits(at: &Range<u64>) -> Bits {
    let mut bits = nothing_of(SIZE, 512);
    bits.add(at);
    bits
}

/// A leg as it is called in the table; the first half of a stale leg is stale.
fn leg(state: &str, column: Option<usize>) -> LegState {
    let role = match state {
        "in sync" => Role::Sync,
        "away" | "rebuilding" | "rebuilt" => Role::Stale,
        "failed" => Role::Failed,
        "spare" => Role::Spare,
        other => panic!("{other}"),
    };
    let stale = if state == "rebuilt" { 0..0 } else { HALF };
    LegState {
        role,
        here: matches!(state, "rebuilding" | "rebuilt"),
        stale: matches!(role, Role::Stale | Role::Failed).then(|| bits(&stale)),
        copied: None,
        area: Some(SIZE),
        column: column.filter(|_| role != Role::Spare),
        detaching: false,
        since: NOW,
        why: None,
    }
}

fn mirror(states: &[&str]) -> Roles {
    let wanted = Wanted { needs: 1, legs: 2, columns: 0, timeout: Duration::from_secs(1) };
    Roles::new(states.iter().map(|state| leg(state, None)).collect(), wanted, SIZE, 512)
}

fn parity(states: &[&str]) -> Roles {
    let wanted = Wanted { needs: 2, legs: 3, columns: 3, timeout: Duration::from_secs(1) };
    let legs = states.iter().enumerate().map(|(number, state)| leg(state, Some(number).filter(|at| *at < 3)));
    Roles::new(legs.collect(), wanted, SIZE, 512)
}

/// The state of a leg, and its stale bytes.
fn is(leg: &LegState) -> (&'static str, &'static str) {
    let state = match leg.role {
        Role::Sync => "in sync",
        Role::Stale if leg.here => "rebuilding",
        Role::Stale => "away",
        Role::Failed => "failed",
        Role::Spare => "spare",
    };
    let stale = match leg.stale.as_ref().map(Bits::bytes) {
        None => "-",
        Some(0) => "nothing",
        Some(SIZE) if leg.copied == Some(0) => "all",
        Some(_) => "some",
    };
    (state, stale)
}

type Change = fn(&mut Roles) -> String;

/// Each change of leg 1, whose name is that of the function, with what it answers.
const CHANGES: [(&str, Change); 11] = [
    ("lose, away", |roles| lose(roles, Role::Stale, Some(Error::offline("it is away")))),
    ("lose, failed", |roles| lose(roles, Role::Failed, Some(Error::new(ErrorKind::Media, "bad")))),
    ("lose, truncated", |roles| lose(roles, Role::Stale, Some(end_is_gone()))),
    ("answers", |roles| roles.answers(1).to_string()),
    ("complete", |roles| roles.complete(1).to_string()),
    ("end is gone", |roles| roles.end_is_gone(1).to_string()),
    ("fail", |roles| roles.fail(1, NOW, &bits(&(SIZE / 2..SIZE))).to_string()),
    ("rejoin", |roles| format!("{:?}", roles.rejoin(1, NOW))),
    ("taken over", |roles| format!("{:?}", roles.take_spares(later(), |_| true))),
    ("copied", |roles| roles.copied(1, &HALF).to_string()),
    ("leave", |roles| {
        roles.detach(|leg| leg == 1);
        roles.detached(NOW, &bits(&HALF)).to_string()
    }),
];

fn later() -> Time {
    Time(NOW.0 * 10)
}

fn lose(roles: &mut Roles, to: Role, why: Option<Error>) -> String {
    roles.lose(1, Loss { to, at: NOW, why: why.as_ref(), unflushed: &bits(&(0..4096)) });
    String::new()
}

/// Does a change to leg 1 of `roles`; what it is then, what is stale, and the answer.
fn after(mut roles: Roles, change: &str) -> (&'static str, &'static str, String) {
    let (_, change) = CHANGES.iter().find(|(name, _)| *name == change).expect("a change");
    let answer = change(&mut roles);
    roles.check().expect("a good state");
    let (state, stale) = is(roles.leg(1));
    (state, stale, answer)
}

#[test]
fn every_change_of_a_leg_is_as_the_table_says() {
    // The state before; the change; the state after, its stale bytes, and the answer.
    // Leg 0 is in sync, leg 2 a spare.
    let rows = [
        ("in sync", "lose, away", "away", "some", ""),
        ("in sync", "lose, failed", "failed", "some", ""),
        ("in sync", "lose, truncated", "away", "all", ""),
        ("in sync", "answers", "in sync", "-", "false"),
        ("in sync", "complete", "in sync", "-", "false"),
        ("in sync", "end is gone", "in sync", "-", "false"),
        ("in sync", "fail", "failed", "some", "true"),
        ("in sync", "rejoin", "in sync", "-", "Already"),
        ("in sync", "taken over", "in sync", "-", "[]"),
        ("in sync", "copied", "in sync", "-", "false"),
        ("in sync", "leave", "failed", "all", "true"),
        ("away", "answers", "rebuilding", "some", "true"),
        ("away", "complete", "away", "some", "false"),
        ("away", "end is gone", "away", "all", "true"),
        ("away", "fail", "failed", "some", "true"),
        ("away", "rejoin", "away", "some", "Stale"),
        ("away", "taken over", "failed", "some", "[2]"),
        ("away", "copied", "away", "some", "false"),
        ("away", "leave", "failed", "all", "true"),
        ("rebuilding", "lose, away", "away", "some", ""),
        ("rebuilding", "lose, failed", "failed", "some", ""),
        ("rebuilding", "lose, truncated", "away", "all", ""),
        ("rebuilding", "answers", "rebuilding", "some", "false"),
        ("rebuilding", "complete", "rebuilding", "some", "false"),
        ("rebuilt", "complete", "in sync", "-", "true"),
        ("rebuilding", "end is gone", "rebuilding", "all", "true"),
        ("rebuilding", "fail", "failed", "some", "true"),
        ("rebuilding", "rejoin", "rebuilding", "some", "Stale"),
        ("rebuilding", "taken over", "rebuilding", "some", "[]"),
        ("rebuilding", "copied", "rebuilding", "nothing", "true"),
        ("rebuilding", "leave", "failed", "all", "true"),
        ("failed", "answers", "failed", "some", "false"),
        ("failed", "complete", "failed", "some", "false"),
        ("failed", "end is gone", "failed", "all", "true"),
        ("failed", "fail", "failed", "some", "false"),
        ("failed", "rejoin", "away", "some", "Stale"),
        ("failed", "taken over", "failed", "some", "[2]"),
        ("failed", "copied", "failed", "some", "false"),
        ("failed", "leave", "failed", "all", "false"),
        ("spare", "answers", "spare", "-", "false"),
        ("spare", "complete", "spare", "-", "false"),
        ("spare", "end is gone", "spare", "-", "false"),
        ("spare", "fail", "failed", "all", "true"),
        ("spare", "rejoin", "spare", "-", "Already"),
        ("spare", "taken over", "away", "all", "[1]"),
        ("spare", "copied", "spare", "-", "false"),
        ("spare", "leave", "failed", "all", "true"),
    ];
    for (before, change, state, stale, answer) in rows {
        let found = after(mirror(&["in sync", before, "spare"]), change);
        assert_eq!(found, (state, stale, answer.to_owned()), "{change} of a leg that is {before}");
    }
}

#[test]
fn a_leg_that_is_not_wanted_any_more_becomes_a_spare() {
    assert_eq!(after(mirror(&["in sync", "failed", "in sync"]), "rejoin"), ("spare", "-", "Spare".into()));
    // One that has been away for long is not counted on.
    let mut roles = mirror(&["in sync", "failed", "away"]);
    assert_eq!(roles.clone().rejoin(1, NOW), Rejoined::Spare);
    assert_eq!(roles.rejoin(1, later()), Rejoined::Stale);
}

#[test]
fn without_an_intent_elsewhere_all_is_stale() {
    let mut roles = mirror(&["in sync", "in sync"]);
    roles.legs[0].area = None;
    assert_eq!(after(roles, "lose, away"), ("away", "all", String::new()));
}

#[test]
fn the_last_leg_is_known() {
    let rows = [
        (mirror(&["in sync", "in sync"]), [false, false, false]),
        (mirror(&["in sync", "rebuilt", "spare"]), [true, false, false]),
        (mirror(&["failed", "away", "in sync"]), [false, false, true]),
        (parity(&["in sync", "in sync", "in sync", "spare"]), [false; 3]),
        (parity(&["in sync", "in sync", "rebuilding"]), [true, true, false]),
        (parity(&["failed", "in sync", "in sync", "spare"]), [false, true, true]),
    ];
    for (number, (roles, last)) in rows.into_iter().enumerate() {
        let found: Vec<bool> =
            (0..last.len()).map(|leg| leg < roles.legs.len() && roles.is_last(leg)).collect();
        assert_eq!(found, last, "row {number}");
    }
    // Two legs in one place are one place.
    let mut roles = parity(&["in sync", "in sync", "failed", "in sync"]);
    roles.legs[3].column = Some(0);
    assert_eq!((roles.covered(None), roles.covered(Some(0)), roles.covered(Some(1))), (2, 2, 1));
    assert!(roles.is_degraded() && !roles.is_last(0) && roles.is_last(1));
}

#[test]
#[should_panic = "the last leg that has a byte is never put out"]
fn the_last_leg_is_never_lost() {
    after(mirror(&["failed", "in sync"]), "lose, away");
}

#[test]
fn a_spare_gets_the_place_of_the_leg_that_is_gone() {
    for gone in ["away", "failed"] {
        let mut roles = parity(&["in sync", gone, "in sync", "spare", "spare"]);
        assert_eq!(roles.take_spares(NOW, |_| true), [3].repeat(usize::from(gone == "failed")));
        let mut roles = parity(&["in sync", gone, "in sync", "spare", "spare"]);
        assert_eq!(roles.take_spares(later(), |leg| leg != 3), [4], "only devices that are there");
        roles.check().expect("a good state");
        assert_eq!((is(&roles.legs[1]), roles.legs[1].column), (("failed", "-"), None), "{gone}");
        assert_eq!((is(&roles.legs[4]), roles.legs[4].column), (("away", "all"), Some(1)), "{gone}");
        // The first one comes back, and finds its place taken.
        assert!(roles.answers(4));
        assert_eq!(roles.clone().rejoin(1, later()), Rejoined::Spare);
        assert!(roles.fail(4, later(), &bits(&HALF)));
        assert_eq!(roles.rejoin(1, later()), Rejoined::Stale);
        assert_eq!((is(&roles.legs[1]), roles.legs[1].column), (("away", "all"), Some(1)), "{gone}");
    }
}

#[test]
fn a_leg_that_leaves_keeps_its_place_while_its_bytes_are_used() {
    for (state, column) in [("in sync", Some(0)), ("rebuilding", Some(0)), ("away", None), ("failed", None)] {
        let mut roles = parity(&[state, "in sync", "in sync", "spare"]);
        let covered = roles.covered(None);
        roles.detach(|leg| leg == 0);
        assert_eq!(roles.take_spares(NOW, |_| true), [3], "{state}");
        roles.check().expect("a good state");
        assert_eq!((roles.legs[0].column, roles.legs[3].column), (column, Some(0)), "{state}");
        assert_eq!(roles.covered(None), covered, "{state}: nothing is lost with a spare that is taken");
    }
}

#[test]
fn legs_leave_when_nothing_is_lost_with_them() {
    let rows: [(Roles, &[usize], bool); 6] = [
        (mirror(&["in sync", "in sync"]), &[0], true),
        (mirror(&["in sync", "in sync"]), &[0, 1], false),
        (mirror(&["in sync", "rebuilding"]), &[0], false),
        (mirror(&["in sync", "rebuilding"]), &[1], true),
        (parity(&["in sync", "in sync", "in sync"]), &[0], false),
        (parity(&["in sync", "in sync", "failed"]), &[2], true),
    ];
    for (number, (mut roles, leaving, can)) in rows.into_iter().enumerate() {
        roles.detach(|leg| leaving.contains(&leg));
        assert_eq!(roles.can_detach(), can, "row {number}");
        roles.cancel_detach();
        assert!(roles.can_detach(), "row {number}");
    }
}

#[test]
fn only_what_is_further_is_kept() {
    let mut roles = mirror(&["in sync", "rebuilding"]);
    assert!(!roles.advance(1, 4096), "its stale bytes are known without a position");
    roles.end_is_gone(1);
    assert_eq!(
        [4096, 4096, 512, 8192].map(|position| roles.advance(1, position)),
        [true, false, false, true]
    );
    assert_eq!(roles.legs[1].copied, Some(8192));
}

#[test]
fn what_is_new_is_stale_where_anything_is() {
    let mut roles = mirror(&["in sync", "failed"]);
    roles.become_larger(2 * SIZE, 3 * SIZE);
    roles.check().expect("a good state");
    assert_eq!(roles.legs[1].stale_bytes(), SIZE / 2 + SIZE);
    assert!(roles.legs[0].stale.is_none() && roles.legs.iter().all(|leg| leg.area == Some(3 * SIZE)));
}

#[test]
fn a_broken_state_is_noticed() {
    let good = parity(&["in sync", "rebuilding", "failed", "spare"]);
    good.check().expect("a good state");
    type Break = (&'static str, fn(&mut Roles));
    let breaks: [Break; 9] = [
        ("(Sync) is here", |roles| roles.legs[0].here = true),
        ("(Failed) is here", |roles| roles.legs[2].here = true),
        ("(Sync) has stale bytes", |roles| roles.legs[0].stale = Some(bits(&HALF))),
        ("(Spare) has stale bytes", |roles| roles.legs[3].copied = Some(0)),
        ("(Stale) has stale bytes that are not known", |roles| roles.legs[1].stale = None),
        ("(Failed) has stale bytes that are not known", |roles| roles.legs[2].stale = None),
        ("(Stale) has stale bytes of another size", |roles| roles.size *= 2),
        ("(Failed) has stale bytes of another size", |roles| roles.legs[2].copied = Some(SIZE + 1)),
        ("(Sync) has a column that does not exist", |roles| roles.legs[0].column = Some(3)),
    ];
    for (what, change) in breaks {
        let mut broken = good.clone();
        change(&mut broken);
        let said = broken.check().expect_err(what);
        assert!(said.ends_with(what), "{said}, not {what}");
    }
}
