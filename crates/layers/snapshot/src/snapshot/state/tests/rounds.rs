//! Every sequence of a few operations, against a plain account of which request waits for which round.

use super::*;
use lamina_block::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};

fn failed() -> Result<()> {
    Err(Error::new(ErrorKind::Offline, "the device below has failed"))
}

impl Rounds {
    fn phase(&self) -> (&'static str, u32) {
        match self.phase {
            Phase::Idle => ("idle", self.waiting),
            Phase::Asked => ("asked", self.waiting),
            Phase::Running { served } => ("running", served),
        }
    }
}

#[test]
fn phases() {
    let mut rounds = Rounds::default();
    assert_eq!(rounds.phase(), ("idle", 0));
    let (first, spawn) = rounds.ask();
    assert!(spawn && rounds.is_working() && !rounds.is_running());
    let (second, spawn) = rounds.ask();
    assert!(!spawn, "there is a task already");
    assert_eq!(rounds.phase(), ("asked", 2));
    rounds.begin();
    assert_eq!(rounds.phase(), ("running", 2));
    // A write that has not completed when a round begins is not part of it.
    let (third, spawn) = rounds.ask();
    assert!(!spawn && third != first && second == first);
    assert_eq!(rounds.take(first), None, "the round has not ended");
    assert!(rounds.end(&failed()), "there is one more to be served");
    assert_eq!(rounds.phase(), ("asked", 1));
    assert_eq!(rounds.take(third), None);
    rounds.begin();
    assert!(!rounds.end(&Ok(())));
    assert_eq!(rounds.phase(), ("idle", 0));
    // Each has the result of its own round, also if a later one has ended.
    assert!(rounds.take(first).is_some_and(|result| result.is_err()));
    assert!(rounds.take(second).is_some_and(|result| result.is_err()));
    assert_eq!(rounds.take(third), Some(Ok(())));
    assert!(rounds.results.is_empty(), "nothing is kept that nothing waits for");
}

#[test]
fn the_timer_is_set_once() {
    let mut rounds = Rounds::default();
    assert!(rounds.set_timer());
    assert!(!rounds.set_timer());
    rounds.timer_ended();
    assert!(rounds.set_timer());
}

#[test]
fn what_is_staged_is_uncommitted_until_a_commit() {
    let mut rounds = Rounds::default();
    type Operation = fn(&mut Rounds);
    let rows: [(Operation, bool); 5] = [
        (|_| (), false),
        (Rounds::stage, true),
        (Rounds::stage, true),
        (Rounds::committed, false),
        (Rounds::committed, false),
    ];
    for (operation, expected) in rows {
        operation(&mut rounds);
        assert_eq!(rounds.is_uncommitted(), expected);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Ask,
    Begin,
    EndWell,
    EndBadly,
    TakeOldest,
    AbandonNewest,
}

const STEPS: [Step; 6] =
    [Step::Ask, Step::Begin, Step::EndWell, Step::EndBadly, Step::TakeOldest, Step::AbandonNewest];

/// A request: which round serves it, counted from 0.
#[derive(Default)]
struct Model {
    requests: Vec<(Ticket, usize)>,
    begun: usize,
    running: bool,
    results: Vec<bool>,
}

/// One step, if the phase allows it; whether it did.
fn apply(rounds: &mut Rounds, model: &mut Model, step: Step) -> bool {
    let asked = rounds.phase == Phase::Asked;
    match step {
        Step::Ask => {
            let idle = !rounds.is_working();
            let (ticket, spawn) = rounds.ask();
            assert_eq!(spawn, idle);
            model.requests.push((ticket, model.begun));
        }
        Step::Begin if asked => {
            rounds.begin();
            (model.begun, model.running) = (model.begun + 1, true);
        }
        Step::EndWell | Step::EndBadly if model.running => {
            let well = step == Step::EndWell;
            model.results.push(well);
            model.running = false;
            let more = rounds.end(&if well { Ok(()) } else { failed() });
            let waits = model.requests.iter().any(|(_, round)| *round == model.begun);
            assert_eq!(more, waits, "one more round exactly if a request waits for it");
        }
        Step::TakeOldest if !model.requests.is_empty() => {
            let (ticket, round) = model.requests[0];
            let taken = rounds.take(ticket).map(|result| result.is_ok());
            assert_eq!(taken, model.results.get(round).copied(), "the result of its own round");
            if taken.is_some() {
                model.requests.remove(0);
            }
        }
        Step::AbandonNewest => {
            let Some((ticket, _)) = model.requests.pop() else { return false };
            rounds.abandon(ticket);
        }
        Step::Begin | Step::EndWell | Step::EndBadly | Step::TakeOldest => return false,
    }
    true
}

#[test]
fn every_sequence_of_seven() {
    const LEN: u32 = 7;
    let mut done = 0;
    for code in 0..STEPS.len().pow(LEN) {
        let (mut rounds, mut model, mut rest) = (Rounds::default(), Model::default(), code);
        let possible = (0..LEN).all(|_| {
            let step = STEPS[rest % STEPS.len()];
            rest /= STEPS.len();
            let possible = apply(&mut rounds, &mut model, step);
            rounds.check().unwrap_or_else(|e| panic!("{code}, {step:?}: {e}"));
            possible
        });
        if !possible {
            continue;
        }
        done += 1;
        // Nothing is left behind when all have gone.
        while let Some((ticket, _)) = model.requests.pop() {
            rounds.abandon(ticket);
            rounds.check().expect("whole");
        }
        let served = if let Phase::Running { served } = rounds.phase { served } else { 0 };
        assert!(rounds.results.is_empty() && rounds.waiting + served == 0, "{code}");
    }
    assert!(done > 1000, "{done} sequences are possible");
}

#[test]
fn what_is_out_of_turn_is_asserted() {
    type Wrong = fn(&mut Rounds);
    let wrongs: [(&str, Wrong); 4] = [
        ("begin without a request", |r| r.begin()),
        ("begin twice", |r| {
            r.ask();
            r.begin();
            r.begin();
        }),
        ("end without a begin", |r| {
            r.end(&Ok(()));
        }),
        ("end before the begin", |r| {
            r.ask();
            r.end(&Ok(()));
        }),
    ];
    for (what, wrong) in wrongs {
        let result = catch_unwind(AssertUnwindSafe(|| wrong(&mut Rounds::default())));
        assert!(result.is_err(), "{what}");
    }
}

#[test]
fn what_is_broken_is_noticed() {
    let whole = || {
        let mut rounds = Rounds::default();
        rounds.ask();
        rounds.begin();
        rounds.end(&Ok(()));
        rounds
    };
    type Break = fn(&mut Rounds);
    let breaks: [Break; 3] = [
        |r| r.waiting = 1,
        |r| drop(r.results.insert(1, (Ok(()), 1))),
        |r| drop(r.results.insert(0, (Ok(()), 0))),
    ];
    for break_it in breaks {
        let mut rounds = whole();
        rounds.check().expect("whole");
        break_it(&mut rounds);
        assert!(rounds.check().is_err());
    }
}
