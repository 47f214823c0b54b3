//! The rate of log lines that peers can cause: without a limit they would fill the disk.

use lamina_block::Time;
use std::cell::Cell;
use std::time::Duration;

/// Lines in a row, and the time after which there may be as many again.
const LINES: u32 = 10;
const EVERY: Duration = Duration::from_secs(10);

/// Lets few lines through.
#[derive(Default)]
pub struct Ration {
    since: Cell<Time>,
    asked: Cell<u32>,
}

impl Ration {
    /// `None`: say nothing now. Otherwise how many lines were left out since one was last said.
    pub fn left_out(&self, now: Time) -> Option<u32> {
        let left_out = self.asked.get().saturating_sub(LINES);
        if now.since(self.since.get()) >= EVERY {
            self.since.set(now);
            self.asked.set(1);
            return Some(left_out);
        }
        self.asked.set(self.asked.get().saturating_add(1));
        (self.asked.get() <= LINES).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let ration = Ration::default();
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        let said = (0..1000).filter(|_| ration.left_out(at(20)).is_some()).count();
        assert_eq!(said, 10);
        assert_eq!(ration.left_out(at(31)), Some(990));
        assert_eq!(ration.left_out(at(50)), Some(0));
    }
}
