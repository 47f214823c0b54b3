//! Whether to look for garbage: space that no version refers to.
//!
//! | state | `ask` | `begin_pass` | `end` | `replaced` | `is_worthwhile` |
//! |---|---|---|---|---|---|
//! | idle | asked; a job is to begin | – | – | stale | if stale |
//! | running, nothing more was asked | asked | no: the job may end | idle | stale | no |
//! | running, asked | asked | a pass; nothing asked, not stale | idle, asked | stale | no |
//!
//! "–" is an assertion. A pass finds the garbage there was when it began, so later garbage asks for one more
//! pass. "Stale": an extent was replaced that counts as shared, and that perhaps no snapshot has.

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Garbage {
    running: bool,
    /// There may be new garbage since the last pass began.
    asked: bool,
    stale: bool,
    /// Pages of the map were freed so many times.
    sweeps: u64,
}

impl Default for Garbage {
    fn default() -> Self {
        // The garbage of an earlier run is not known.
        Garbage { running: false, asked: false, stale: true, sweeps: 0 }
    }
}

impl Garbage {
    pub fn is_running(&self) -> bool {
        self.running
    }

    /// How often pages of the map were freed: a walk that began before may have gone through them.
    #[inline]
    pub fn sweeps(&self) -> u64 {
        self.sweeps
    }

    /// Something may be garbage; true: a job is to begin. `closed`: none may.
    pub fn ask(&mut self, closed: bool) -> bool {
        self.asked = true;
        let begins = !self.running && !closed;
        self.running |= begins;
        begins
    }

    /// True: one more pass is to be made, which finds all garbage there is now.
    pub fn begin_pass(&mut self) -> bool {
        assert!(self.running, "a pass is part of a job");
        let again = std::mem::take(&mut self.asked);
        self.stale &= !again;
        again
    }

    /// True if the passes have found all garbage that was asked for.
    pub fn is_done(&self) -> bool {
        !self.asked
    }

    /// The job has ended.
    pub fn end(&mut self) {
        assert!(self.running, "a job ends that has begun");
        self.running = false;
    }

    /// An extent was replaced that counted as shared.
    pub fn replaced(&mut self) {
        self.stale = true;
    }

    /// True if a pass may find garbage, though none is known, and no job runs.
    pub fn is_worthwhile(&self) -> bool {
        self.stale && !self.running
    }

    /// Pages of the map were freed.
    pub fn swept(&mut self) {
        self.sweeps += 1;
    }
}

#[cfg(test)]
#[path = "tests/garbage.rs"]
mod tests;
