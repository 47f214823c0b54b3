//! What goes on in the background, as far as it is decided and not done: plain state.
//!
//! A rebuild ([`Rebuild`]):
//!
//! ```text
//!            begin      stop      unstick       resume     end     cancelled   allow
//!  idle      running    -         -             -          -       -           -
//!  running   -          stopped   -             -          idle    halted      -
//!  stopped   -          -         running       running    idle    halted      -
//!  halted    -          -         -             -          -       -           idle
//! ```
//!
//! *Stopped*: some bytes could not be copied, and may be when another leg is there. *Halted*: it was
//! cancelled, and does not begin by itself again.
//!
//! The turns of all that goes on by itself ([`Turns`]):
//!
//! ```text
//!            wake               begin               close
//!  resting   waiting: a task    (does not happen)   closed
//!  waiting   -                  resting: a turn     closed
//!  closed    -                  no turn             -
//! ```

/// Bits of the intent go after two to four of so many turns.
const SWEEP: u64 = 2;

/// What a rebuild is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Running,
    Stopped,
    Halted,
}

/// A rebuild, or none.
#[derive(Clone, Debug, Default)]
pub struct Rebuild {
    phase: Phase,
    /// It goes through the legs from their beginning, and is here.
    cursor: u64,
    /// What was copied since the device was opened, in bytes.
    copied: u64,
    /// Bytes for each second.
    limit: Option<u64>,
}

impl Rebuild {
    /// None yet; there is to be none that copies more than `limit` bytes for each second.
    pub fn new(limit: Option<u64>) -> Rebuild {
        Rebuild { limit, ..Rebuild::default() }
    }

    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    pub fn copied(&self) -> u64 {
        self.copied
    }

    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// True if another one may begin.
    pub fn may_begin(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// True if it was cancelled, and was not allowed since.
    pub fn is_halted(&self) -> bool {
        self.phase == Phase::Halted
    }

    /// One begins.
    pub fn begin(&mut self) {
        debug_assert!(self.may_begin(), "one rebuild goes on at a time");
        self.phase = Phase::Running;
    }

    /// It goes through the legs from their beginning, once more.
    pub fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// All that lies before `cursor` is being copied.
    pub fn advance(&mut self, cursor: u64) {
        self.cursor = cursor;
    }

    /// So many bytes were copied.
    pub fn count(&mut self, bytes: u64) {
        self.copied += bytes;
    }

    /// Some bytes could not be copied.
    pub fn stop(&mut self) {
        debug_assert!(self.phase == Phase::Running, "only what goes on stops");
        self.phase = Phase::Stopped;
    }

    /// It goes on, or somebody lets it: true if it had stopped.
    pub fn resume(&mut self) -> bool {
        let had_stopped = self.phase == Phase::Stopped;
        if had_stopped {
            self.phase = Phase::Running;
        }
        had_stopped
    }

    /// It has ended, and the next one has this limit. One that was cancelled is to be allowed first.
    pub fn end(&mut self, is_cancelled: bool, limit: Option<u64>) {
        debug_assert!(matches!(self.phase, Phase::Running | Phase::Stopped), "what has begun ends, once");
        self.phase = if is_cancelled { Phase::Halted } else { Phase::Idle };
        self.limit = limit;
    }

    /// One that was cancelled may begin again.
    pub fn allow(&mut self) {
        if self.is_halted() {
            self.phase = Phase::Idle;
        }
    }
}

/// When what goes on by itself has its next turn.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    is_waiting: bool,
    is_closed: bool,
    count: u64,
}

impl Turns {
    /// There is to be a turn soon: true if nothing waits for one yet, and something is to.
    pub fn wake(&mut self) -> bool {
        !self.is_closed && !std::mem::replace(&mut self.is_waiting, true)
    }

    /// The turn that was waited for: true if it is to be taken.
    pub fn begin(&mut self) -> bool {
        self.is_waiting = false;
        self.count += u64::from(!self.is_closed);
        !self.is_closed
    }

    /// True if bits of the intent are to go in this turn.
    pub fn is_sweep(&self) -> bool {
        self.count.is_multiple_of(SWEEP)
    }

    /// There are no more turns.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    pub fn are_over(&self) -> bool {
        self.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_a_rebuild_is_as_the_table_says() {
        let phases = [Phase::Idle, Phase::Running, Phase::Stopped, Phase::Halted];
        type Change = fn(&mut Rebuild) -> bool;
        let end = |rebuild: &mut Rebuild, is_cancelled| {
            rebuild.end(is_cancelled, Some(7));
            rebuild.limit() == Some(7)
        };
        let begin: Change = |rebuild| {
            rebuild.begin();
            true
        };
        let stop: Change = |rebuild| {
            rebuild.stop();
            true
        };
        let allow: Change = |rebuild| {
            rebuild.allow();
            true
        };
        // In which phases something may happen, what it makes of each of them, and what it answers.
        use Phase::*;
        type Row<'a> = (&'a str, &'a dyn Fn(&mut Rebuild) -> bool, [Option<(Phase, bool)>; 4]);
        let rows: [Row; 6] = [
            ("begin", &begin, [Some((Running, true)), None, None, None]),
            ("stop", &stop, [None, Some((Stopped, true)), None, None]),
            (
                "resume",
                &Rebuild::resume,
                [Some((Idle, false)), Some((Running, false)), Some((Running, true)), Some((Halted, false))],
            ),
            ("end", &|rebuild| end(rebuild, false), [None, Some((Idle, true)), Some((Idle, true)), None]),
            (
                "cancelled",
                &|rebuild| end(rebuild, true),
                [None, Some((Halted, true)), Some((Halted, true)), None],
            ),
            (
                "allow",
                &allow,
                [Some((Idle, true)), Some((Running, true)), Some((Stopped, true)), Some((Idle, true))],
            ),
        ];
        for (name, change, expected) in rows {
            for (phase, expected) in phases.into_iter().zip(expected) {
                let mut rebuild = Rebuild { phase, ..Rebuild::default() };
                let Some((after, answer)) = expected else {
                    // It must not happen then, and is noticed.
                    let happens = std::panic::AssertUnwindSafe(|| change(&mut rebuild));
                    let is_noticed = std::panic::catch_unwind(happens).is_err();
                    assert_eq!(is_noticed, cfg!(debug_assertions), "{name} of {phase:?}");
                    continue;
                };
                assert_eq!((change(&mut rebuild), rebuild.phase), (answer, after), "{name} of {phase:?}");
                assert_eq!(rebuild.may_begin(), after == Idle, "{name} of {phase:?}");
                assert_eq!(rebuild.is_halted(), after == Halted, "{name} of {phase:?}");
            }
        }
    }

    #[test]
    fn every_change_of_turns_is_as_the_table_says() {
        let turns = |is_waiting, is_closed| Turns { is_waiting, is_closed, count: 0 };
        type Row = (Turns, fn(&mut Turns) -> bool, bool, (bool, bool, u64));
        let rows: [Row; 7] = [
            (turns(false, false), Turns::wake, true, (true, false, 0)),
            (turns(true, false), Turns::wake, false, (true, false, 0)),
            (turns(false, true), Turns::wake, false, (false, true, 0)),
            (turns(true, true), Turns::wake, false, (true, true, 0)),
            (turns(true, false), Turns::begin, true, (false, false, 1)),
            (turns(true, true), Turns::begin, false, (false, true, 0)),
            (
                turns(true, false),
                |turns| {
                    turns.close();
                    turns.are_over()
                },
                true,
                (true, true, 0),
            ),
        ];
        for (number, (mut turns, change, answer, after)) in rows.into_iter().enumerate() {
            assert_eq!(change(&mut turns), answer, "row {number}");
            assert_eq!((turns.is_waiting, turns.is_closed, turns.count), after, "row {number}");
        }
        let mut turns = Turns::default();
        let sweeps = [(); 4].map(|()| turns.begin() && turns.is_sweep());
        assert_eq!(sweeps, [false, true, false, true]);
    }
}
