//! The decisions about background work: plain state.
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
//! *Stopped*: some bytes could not be copied, and may be when another leg is there. *Halted*: the rebuild was
//! cancelled, and does not begin again by itself.
//!
//! The ticks of the background work ([`Ticks`]):
//!
//! ```text
//!            wake               begin               close
//!  resting   waiting: a task    (does not happen)   closed
//!  waiting   -                  resting: a tick     closed
//!  closed    -                  no tick             -
//! ```

/// Bits of the intent are cleared after two to four times so many ticks.
const SWEEP: u64 = 2;

/// The phase of a rebuild.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Running,
    Stopped,
    Halted,
}

/// The rebuild, or none.
#[derive(Clone, Debug, Default)]
pub struct Rebuild {
    phase: Phase,
    /// The position of the rebuild, which goes through the legs from their beginning.
    cursor: u64,
    /// Bytes copied since the device was opened.
    copied: u64,
    /// Bytes for each second.
    limit: Option<u64>,
}

impl Rebuild {
    /// No rebuild yet; rebuilds copy at most `limit` bytes for each second.
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

    /// True if a rebuild may begin.
    pub fn may_begin(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// True if the rebuild was cancelled, and was not allowed since.
    pub fn is_halted(&self) -> bool {
        self.phase == Phase::Halted
    }

    /// A rebuild begins.
    pub fn begin(&mut self) {
        debug_assert!(self.may_begin(), "one rebuild goes on at a time");
        self.phase = Phase::Running;
    }

    /// The rebuild goes through the legs from their beginning, once more.
    pub fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// All bytes before `cursor` are being copied.
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

    /// The rebuild goes on: true if it had stopped.
    pub fn resume(&mut self) -> bool {
        let had_stopped = self.phase == Phase::Stopped;
        if had_stopped {
            self.phase = Phase::Running;
        }
        had_stopped
    }

    /// The rebuild has ended, and the next one has this limit. A cancelled rebuild has to be allowed first.
    pub fn end(&mut self, is_cancelled: bool, limit: Option<u64>) {
        debug_assert!(matches!(self.phase, Phase::Running | Phase::Stopped), "what has begun ends, once");
        self.phase = if is_cancelled { Phase::Halted } else { Phase::Idle };
        self.limit = limit;
    }

    /// A cancelled rebuild may begin again.
    pub fn allow(&mut self) {
        if self.is_halted() {
            self.phase = Phase::Idle;
        }
    }
}

/// When the background work has its next tick.
#[derive(Clone, Debug, Default)]
pub struct Ticks {
    is_waiting: bool,
    is_closed: bool,
    count: u64,
}

impl Ticks {
    /// Asks for a tick soon: true if no task waits for one yet, and one is to.
    pub fn wake(&mut self) -> bool {
        !self.is_closed && !std::mem::replace(&mut self.is_waiting, true)
    }

    /// The tick begins that a task waited for: true if it is to be carried out.
    pub fn begin(&mut self) -> bool {
        self.is_waiting = false;
        self.count += u64::from(!self.is_closed);
        !self.is_closed
    }

    /// True if bits of the intent are to be cleared in this tick.
    pub fn is_sweep(&self) -> bool {
        self.count.is_multiple_of(SWEEP)
    }

    /// There are no more ticks.
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
                    // The change must not happen in that phase, and is noticed.
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
        let ticks = |is_waiting, is_closed| Ticks { is_waiting, is_closed, count: 0 };
        type Row = (Ticks, fn(&mut Ticks) -> bool, bool, (bool, bool, u64));
        let rows: [Row; 7] = [
            (ticks(false, false), Ticks::wake, true, (true, false, 0)),
            (ticks(true, false), Ticks::wake, false, (true, false, 0)),
            (ticks(false, true), Ticks::wake, false, (false, true, 0)),
            (ticks(true, true), Ticks::wake, false, (true, true, 0)),
            (ticks(true, false), Ticks::begin, true, (false, false, 1)),
            (ticks(true, true), Ticks::begin, false, (false, true, 0)),
            (
                ticks(true, false),
                |ticks| {
                    ticks.close();
                    ticks.are_over()
                },
                true,
                (true, true, 0),
            ),
        ];
        for (number, (mut ticks, change, answer, after)) in rows.into_iter().enumerate() {
            assert_eq!(change(&mut ticks), answer, "row {number}");
            assert_eq!((ticks.is_waiting, ticks.is_closed, ticks.count), after, "row {number}");
        }
        let mut ticks = Ticks::default();
        let sweeps = [(); 4].map(|()| ticks.begin() && ticks.is_sweep());
        assert_eq!(sweeps, [false, true, false, true]);
    }
}
