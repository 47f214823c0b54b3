//! All that can happen to three legs of two units, in any order, beside a model of the bytes that they hold.

use super::*;
use lamina_kit::flaw::failure_of;
use std::collections::BTreeSet;
use std::time::Duration;

const UNIT: u64 = 4 << 10;
const SIZE: u64 = 2 * UNIT;
const LEGS: usize = 3;
/// How often something happens.
const DEPTH: usize = 5;

/// The state of the last write to a unit on a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UnitState {
    /// Something older.
    Nothing,
    /// It would lose it with its power.
    Volatile,
    /// As before, and a flush of it is under way.
    Flushing,
    Durable,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// All legs take it.
    Write(u64),
    /// Leg 0 alone takes a write, and the caller is told that it failed.
    Unknown(u64),
    BeginFlush,
    EndFlush(bool),
    /// A leg fails, and has lost all that is not durable.
    Away(usize),
    Fails(usize),
    Command(usize),
    Rejoin(usize),
    Answers(usize),
    Spares,
    Repair(u64),
    Complete(usize),
}

#[derive(Clone, Debug)]
struct World {
    state: State,
    units: [[UnitState; 2]; LEGS],
    is_flushing: bool,
}

fn events() -> Vec<Event> {
    let mut all = vec![Event::BeginFlush, Event::EndFlush(false), Event::EndFlush(true), Event::Spares];
    all.extend((0..2).flat_map(|unit| [Event::Write(unit), Event::Unknown(unit), Event::Repair(unit)]));
    all.extend((0..LEGS).flat_map(|leg| {
        let of = [Event::Away, Event::Fails, Event::Command, Event::Rejoin, Event::Answers, Event::Complete];
        of.map(|event| event(leg))
    }));
    all
}

fn unit(number: u64) -> Range<u64> {
    number * UNIT..(number + 1) * UNIT
}

impl World {
    fn mirror() -> World {
        let leg = |role| LegState {
            role,
            here: false,
            stale: None,
            copied: None,
            area: Some(SIZE),
            column: None,
            detaching: false,
            since: Time(0),
            why: None,
        };
        let wanted = Wanted { needs: 1, legs: 2, columns: 0, timeout: Duration::ZERO };
        let legs = [Role::Sync, Role::Sync, Role::Spare].map(leg).to_vec();
        let units = [[UnitState::Durable; 2], [UnitState::Durable; 2], [UnitState::Nothing; 2]];
        World { state: State::new(legs, wanted, SIZE, 512), units, is_flushing: false }
    }

    /// As it was opened after a crash during a write to unit 0, which leg 0 alone has.
    fn after_a_crash() -> World {
        let mut world = World::mirror();
        let mut dirty = super::super::regions::nothing_of(SIZE, 512);
        dirty.add(&unit(0));
        world.state.open(None, &dirty, |_| None);
        world.units[1][0] = UnitState::Nothing;
        world
    }

    fn targets(&self) -> Vec<usize> {
        (0..LEGS).filter(|leg| self.state.roles().leg(*leg).takes_writes()).collect()
    }

    fn turn(&mut self, from: UnitState, to: UnitState) {
        self.units.iter_mut().flatten().filter(|units| **units == from).for_each(|units| *units = to);
    }

    fn loses_power(&mut self, leg: usize) {
        let lost = |units: &&mut UnitState| **units != UnitState::Durable;
        self.units[leg].iter_mut().filter(lost).for_each(|units| *units = UnitState::Nothing);
    }

    fn happens(&mut self, event: Event) {
        let now = Time(0);
        match event {
            Event::Write(number) => {
                self.state.begin(&unit(number), |_| true);
                let targets = self.targets();
                for leg in 0..LEGS {
                    let taken = if targets.contains(&leg) { UnitState::Volatile } else { UnitState::Nothing };
                    self.units[leg][number as usize] = taken;
                }
            }
            Event::Unknown(number) => {
                self.state.begin(&unit(number), |_| true);
                self.state.unknown(&unit(number));
                (1..LEGS).for_each(|leg| self.units[leg][number as usize] = UnitState::Nothing);
                self.units[0][number as usize] = UnitState::Volatile;
            }
            Event::BeginFlush => {
                if self.state.begin_flush(&[]) {
                    self.is_flushing = true;
                    self.turn(UnitState::Volatile, UnitState::Flushing);
                }
            }
            Event::EndFlush(failed) if self.is_flushing => {
                self.is_flushing = false;
                self.state.end_flush(failed);
                self.turn(UnitState::Flushing, if failed { UnitState::Volatile } else { UnitState::Durable });
            }
            Event::EndFlush(_) => {}
            Event::Away(leg) => {
                if self.state.put_out(leg, &Error::offline("it is away"), now) {
                    self.loses_power(leg);
                }
            }
            Event::Fails(leg) => {
                if self.state.put_out(leg, &Error::new(ErrorKind::Media, "bad"), now) {
                    self.loses_power(leg);
                }
            }
            Event::Command(leg) => {
                if !self.state.roles().is_last(leg) && self.state.fail(leg, now) {
                    self.loses_power(leg);
                }
            }
            Event::Rejoin(leg) => {
                self.state.of_roles(|roles| roles.rejoin(leg, now));
            }
            Event::Answers(leg) => {
                self.state.of_roles(|roles| roles.answers(leg));
            }
            Event::Spares => {
                self.state.of_roles(|roles| roles.take_spares(now, |_| true));
            }
            Event::Repair(number) => self.repair(number),
            Event::Complete(leg) => {
                // It is flushed first.
                let units = self.units[leg].iter_mut().filter(|units| **units != UnitState::Nothing);
                units.for_each(|units| *units = UnitState::Durable);
                self.state.of_roles(|roles| roles.complete(leg));
            }
        }
    }

    /// As a rebuild does: legs in sync are made like the first of them, then stale bytes are copied from it.
    fn repair(&mut self, number: u64) {
        let at = unit(number);
        let first = self.state.roles().in_sync().next().expect("a leg in sync");
        if self.state.needs_resync(&at) {
            // Whatever the first has is what was written, from then on.
            for leg in self.state.roles().in_sync().collect::<Vec<_>>() {
                self.units[leg][number as usize] = UnitState::Volatile;
            }
            let others = (0..LEGS).filter(|leg| self.state.roles().leg(*leg).role != Role::Sync);
            for leg in others.collect::<Vec<_>>() {
                self.units[leg][number as usize] = UnitState::Nothing;
            }
            self.state.write(&at);
            self.state.agree(&at, SIZE);
        }
        assert_ne!(self.units[first][number as usize], UnitState::Nothing, "it is copied from leg {first}");
        for leg in 0..LEGS {
            let it = self.state.roles().leg(leg);
            if it.is_rebuilding() && !it.is_good(&at) {
                self.state.write(&at);
                self.units[leg][number as usize] = UnitState::Volatile;
                assert!(self.state.of_roles(|roles| roles.copied(leg, &at)));
            }
        }
    }

    /// A leg has all bytes that are not stale; and one of the legs has everything.
    fn check(&self) {
        self.state.check().expect("a good state");
        assert!(self.state.roles().in_sync().next().is_some(), "no leg has every byte");
        for leg in 0..LEGS {
            for number in 0..2 {
                let at = unit(number);
                let is_read = self.state.roles().leg(leg).is_good(&at) && !self.state.needs_resync(&at);
                let units = self.units[leg][number as usize];
                assert!(!is_read || units != UnitState::Nothing, "leg {leg} is stale in unit {number}");
            }
        }
    }
}

/// Lets everything happen, in every order; the number of worlds that there are.
fn walk() -> usize {
    let mut known = BTreeSet::new();
    let mut worlds = vec![World::mirror(), World::after_a_crash()];
    for _ in 0..DEPTH {
        let mut next = Vec::new();
        for world in &worlds {
            for event in events() {
                let mut after = world.clone();
                after.happens(event);
                after.check();
                if known.insert(format!("{after:?}")) {
                    next.push(after);
                }
            }
        }
        worlds = next;
    }
    known.len()
}

#[test]
fn no_stale_bytes_are_read() {
    let worlds = walk();
    assert!(worlds > 1000, "{worlds} worlds");
}

#[test]
fn what_is_forgotten_is_noticed() {
    let said = failure_of("what was not flushed is forgotten", || {
        walk();
    });
    assert!(said.contains("is stale in unit") || said.contains("it is copied from"), "{said}");
    let said = failure_of("what needs a resync is not missed", || {
        walk();
    });
    assert!(said.contains("is stale in unit") || said.contains("it is copied from"), "{said}");
}

#[test]
fn errors_put_a_leg_out_as_they_should() {
    let rows = [
        (ErrorKind::Offline, Role::Stale, Some(0)),
        (ErrorKind::TimedOut, Role::Stale, Some(0)),
        (ErrorKind::Truncated, Role::Stale, Some(SIZE)),
        (ErrorKind::Media, Role::Failed, Some(0)),
        (ErrorKind::Corrupt, Role::Failed, Some(0)),
    ];
    for (kind, role, stale) in rows {
        let World { mut state, .. } = World::mirror();
        let e = Error::new(kind, "a reason");
        assert!(state.put_out(0, &e, Time(7)));
        let leg = state.roles().leg(0);
        let found = (leg.role, leg.stale.as_ref().map(Bits::bytes), leg.since, leg.why.is_some());
        assert_eq!(found, (role, stale, Time(7), true), "{kind:?}");
        // It is out already; and the other one is the last.
        assert!(!state.put_out(0, &e, Time(8)) && !state.put_out(1, &e, Time(8)));
        assert_eq!(state.roles().leg(0).since, Time(7));
        state.check().expect("a good state");
    }
}

#[test]
fn what_is_read_at_opening_is_what_may_differ() {
    let dirty = {
        let mut bits = super::super::regions::nothing_of(SIZE, 512);
        bits.add(&unit(0));
        bits
    };
    // The recorded ranges where legs differ; whether leg 1 is stale; where legs differ, and the stale bytes
    // there.
    type Row = (Option<&'static [(u64, u64)]>, bool, &'static [u64], u64);
    let rows: [Row; 4] = [
        (None, false, &[0], 0),
        (None, true, &[], UNIT),
        (Some(&[(UNIT, u64::MAX)]), false, &[1], 0),
        (Some(&[]), true, &[], UNIT),
    ];
    for (needed, is_out_of_sync, differ, stale) in rows {
        let World { mut state, .. } = World::mirror();
        if is_out_of_sync {
            state.put_out(1, &Error::offline("it is away"), Time(0));
        }
        state.open(needed, &dirty, |_| None);
        state.check().expect("a good state");
        let found: Vec<u64> = (0..2).filter(|number| state.needs_resync(&unit(*number))).collect();
        assert_eq!((&found[..], state.roles().leg(1).stale_bytes()), (differ, stale), "{needed:?}");
    }
}

#[test]
fn repairs_go_on_from_where_they_are() {
    let World { mut state, .. } = World::mirror();
    assert!(!state.has_work() && state.next_repair(0, SIZE).is_none());
    state.diverge(&unit(1));
    state.put_out(1, &end(), Time(0));
    assert_eq!((state.next_repair(0, SIZE), state.repair_bytes()), (Some(unit(1)), UNIT));
    state.of_roles(|roles| roles.answers(1));
    assert_eq!((state.next_repair(0, SIZE), state.repair_bytes()), (Some(0..SIZE), UNIT + SIZE));
    assert_eq!((state.next_repair(0, UNIT), state.next_repair(UNIT, UNIT)), (Some(unit(0)), Some(unit(1))));
    assert_eq!((state.positions(u64::MAX), state.positions(512)), (vec![(1, 0)], vec![(1, 0)]));
    state.of_roles(|roles| roles.copied(1, &unit(0)));
    assert_eq!((state.positions(u64::MAX), state.positions(512)), (vec![(1, UNIT)], vec![(1, 512)]));
    // A region that only the intent knows of is clean; one that is known without it need not be.
    assert!(!state.is_clean(&unit(1)) && state.is_clean(&unit(0)));
}

fn end() -> Error {
    super::super::roles::end_is_gone()
}

#[test]
fn a_broken_state_is_noticed() {
    let World { state: good, .. } = World::mirror();
    type Break = (&'static str, fn(&mut State));
    let breaks: [Break; 4] = [
        ("a leg is stale", |state| {
            let unflushed = state.unflushed();
            let loss = Loss { to: Role::Stale, at: Time(0), why: None, unflushed: &unflushed };
            state.roles.lose(1, loss);
        }),
        ("legs differ", |state| state.regions.diverge(&unit(0))),
        ("the legs are larger than their regions", |state| state.roles.become_larger(2 * SIZE, 0)),
        ("a leg is here and in sync", |state| state.roles.leg_mut(0).here = true),
    ];
    for (what, change) in breaks {
        let mut broken = good.clone();
        change(&mut broken);
        broken.check().expect_err(what);
    }
}
