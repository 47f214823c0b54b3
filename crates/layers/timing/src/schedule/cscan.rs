//! `cscan`: the elevator that goes up only, and begins again at the lowest request: C-LOOK (Worthington et al.,
//! *Scheduling Algorithms for Modern Disk Drives*, SIGMETRICS 1994). Requests in the middle of the disk wait no shorter
//! than those at its ends, as they do with `scan`.

use super::aged::{Head, Order};
use super::policy::Queued;
use super::waiting::Waiting;

/// The next request above, or the lowest.
#[derive(Debug)]
pub struct Cscan;

impl Order for Cscan {
    fn next<'a>(&mut self, waiting: &'a Waiting, head: Head) -> Option<&'a Queued> {
        waiting.at_or_after(head.place).or_else(|| waiting.lowest())
    }
}

#[cfg(test)]
mod tests {
    use super::super::aged::Aged;
    use super::super::keys::Keys;
    use super::super::testing::{order, read};
    use super::*;

    #[test]
    fn up_only() {
        let mut cscan = Aged::new(Cscan, &Keys::default());
        assert_eq!(order(&mut cscan, [read(1, 50), read(2, 90), read(3, 70)]), [1, 3, 2]);
        assert_eq!(order(&mut cscan, [read(4, 10), read(5, 99), read(6, 60)]), [5, 4, 6]);
    }
}
