//! Rounds: each puts the waiting entries into the map, and commits. Requests that ask at the same time share
//! a round.
//!
//! A request that asks is served by the next round that begins: its writes are complete by then and part of
//! that round, while a round under way may have gone past them. One task runs the rounds, as long as there is
//! a request to be served.
//!
//! | phase | `ask` | `begin` | `end` | `stage` / `committed` | `abandon` |
//! |---|---|---|---|---|---|
//! | idle | asked; spawn the task | – | – | not committed / committed | – |
//! | asked | one more waits | running | – | the same | one less waits |
//! | running | one more waits for the next | – | asked if any wait, or idle | the same | one less waits |
//!
//! "–" is an assertion. The result of a round is kept until each request that waited for it has taken it.
//! Staged changes are committed by a round, or by another holder of the map's lock (a command, reclaiming),
//! so that is no phase.
//!
//! Invariants:
//! * Requests wait only while a task runs rounds.
//! * The results of ended rounds are kept for requests that have not taken them, and no others.

use lamina_block::Result;
use std::collections::BTreeMap;

/// The phase of the task that runs rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// There is no task.
    #[default]
    Idle,
    /// The task is about to begin a round.
    Asked,
    /// A round is under way, for so many requests.
    Running { served: u32 },
}

/// The round that a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Ticket(u64);

/// See the module.
#[derive(Default)]
pub(in super::super) struct Rounds {
    phase: Phase,
    /// Rounds that have begun.
    begun: u64,
    /// Requests for the next one.
    waiting: u32,
    /// Results, and the requests that have not taken them.
    results: BTreeMap<u64, (Result<()>, u32)>,
    /// Changes were staged in the store and not committed yet.
    uncommitted: bool,
    /// A round will be asked for after a while.
    timer: bool,
}

impl Rounds {
    /// True while a task runs rounds.
    #[inline]
    pub fn is_working(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// True while a round is under way.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    /// True if the store may have staged changes that are not durable.
    #[inline]
    pub fn is_uncommitted(&self) -> bool {
        self.uncommitted
    }

    /// A request waits for the next round; true: a task is to be spawned that runs it.
    pub fn ask(&mut self) -> (Ticket, bool) {
        self.waiting += 1;
        let spawn = self.phase == Phase::Idle;
        if spawn {
            self.phase = Phase::Asked;
        }
        (Ticket(self.begun), spawn)
    }

    /// A round begins. It serves the requests that have asked: their writes have completed.
    pub fn begin(&mut self) {
        assert_eq!(self.phase, Phase::Asked, "one round at a time, and only if it was asked for");
        self.phase = Phase::Running { served: std::mem::take(&mut self.waiting) };
        self.begun += 1;
    }

    /// The round has ended; true: the next one is to begin.
    pub fn end(&mut self, result: &Result<()>) -> bool {
        let Phase::Running { served } = self.phase else { panic!("a round ends that has begun") };
        if served > 0 {
            self.results.insert(self.begun - 1, (result.clone(), served));
        }
        self.phase = if self.waiting > 0 { Phase::Asked } else { Phase::Idle };
        self.is_working()
    }

    /// The result of the round that a request waits for, once.
    pub fn take(&mut self, Ticket(round): Ticket) -> Option<Result<()>> {
        let (result, waiting) = self.results.get_mut(&round)?;
        let result = result.clone();
        *waiting -= 1;
        if *waiting == 0 {
            self.results.remove(&round);
        }
        Some(result)
    }

    /// A request does not wait any more.
    pub fn abandon(&mut self, Ticket(round): Ticket) {
        if round == self.begun {
            self.waiting -= 1;
        } else if let Phase::Running { served } = &mut self.phase
            && round + 1 == self.begun
        {
            *served -= 1;
        } else {
            self.take(Ticket(round));
        }
    }

    /// A change is staged in the store: it is durable after the next commit.
    pub fn stage(&mut self) {
        self.uncommitted = true;
    }

    pub fn committed(&mut self) {
        self.uncommitted = false;
    }

    /// A round is to be asked for after a while; true: the timer was not set before.
    pub fn set_timer(&mut self) -> bool {
        !std::mem::replace(&mut self.timer, true)
    }

    /// The timer has ended.
    pub fn timer_ended(&mut self) {
        self.timer = false;
    }

    /// The invariants; see the module.
    pub fn check(&self) -> std::result::Result<(), String> {
        if self.waiting > 0 && !self.is_working() {
            return Err(format!("{} requests wait for a round that nothing begins", self.waiting));
        }
        let ended = self.begun - u64::from(self.is_running());
        match self.results.iter().find(|(round, (_, waiting))| **round >= ended || *waiting == 0) {
            Some((round, (_, waiting))) => Err(format!(
                "a result of round {round}, for {waiting} requests, and {ended} rounds have ended"
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[path = "tests/rounds.rs"]
mod tests;
