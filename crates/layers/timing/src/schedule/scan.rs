//! `scan`: the elevator. The arm goes up as long as a request is above, then down, and so on: LOOK, which turns at the
//! last request rather than at the end of the disk (Geist and Daniel, *A Continuum of Disk Scheduling Algorithms*, ACM
//! TOCS 5, 1987; Worthington et al., *Scheduling Algorithms for Modern Disk Drives*, SIGMETRICS 1994).

use super::aged::{Head, Order};
use super::policy::Queued;
use super::waiting::Waiting;

/// The next request in the direction of the arm.
#[derive(Debug, Default)]
pub struct Scan {
    is_down: bool,
}

impl Order for Scan {
    fn next<'a>(&mut self, waiting: &'a Waiting, head: Head) -> Option<&'a Queued> {
        let (above, below) = (waiting.at_or_after(head.place), waiting.before(head.place));
        let (ahead, behind) = if self.is_down { (below, above) } else { (above, below) };
        self.is_down ^= ahead.is_none() && behind.is_some();
        ahead.or(behind)
    }
}

#[cfg(test)]
mod tests {
    use super::super::aged::Aged;
    use super::super::keys::Keys;
    use super::super::testing::{order, read, sent};
    use super::*;
    use crate::schedule::policy::Policy;
    use lamina_block::Time;

    #[test]
    fn up_and_down() {
        let mut scan = Aged::new(Scan::default(), &Keys::default());
        assert_eq!(order(&mut scan, [read(1, 50), read(2, 90), read(3, 70)]), [1, 3, 2]);
        let more = [read(4, 10), read(5, 99), read(6, 60)];
        assert_eq!(order(&mut scan, more), [5, 6, 4], "still upwards first");
        assert_eq!(order(&mut scan, [read(7, 5), read(8, 20)]), [7, 8], "still downwards");
    }

    #[test]
    fn requests_at_one_address_go_together() {
        let mut scan = Aged::new(Scan::default(), &Keys::default());
        scan.arrived(read(1, 50));
        scan.arrived(read(2, 50));
        scan.arrived(read(3, 60));
        assert_eq!(sent(scan.choose(Time(0))), 1);
        scan.arrived(read(4, 50));
        assert_eq!(order(&mut scan, []), [2, 4, 3]);
    }
}
