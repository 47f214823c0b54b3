//! `sstf`: the shortest distance first, the greedy schedule of the paper (Geist, Jones, Westall, *Predicting Disk
//! Scheduling Performance with Virtual Machines*, section 2.2). Distances are counted in sectors from the end of the
//! last request. Requests at the same distance go upwards first, and those at one address in the order of arrival.

use super::aged::{Head, Order};
use super::policy::Queued;
use super::waiting::Waiting;

/// The nearest request.
#[derive(Debug)]
pub struct Sstf;

impl Order for Sstf {
    fn next<'a>(&mut self, waiting: &'a Waiting, head: Head) -> Option<&'a Queued> {
        let here = (head.sector, 0);
        let above = waiting.at_or_after(here);
        // The oldest of those at that address.
        let below = waiting.before(here).and_then(|last| waiting.at_or_after((last.request.lbn, 0)));
        match (below, above) {
            (Some(below), Some(above)) => {
                let is_nearer = head.sector - below.request.lbn < above.request.lbn - head.sector;
                Some(if is_nearer { below } else { above })
            }
            (below, above) => below.or(above),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::aged::Aged;
    use super::super::keys::Keys;
    use super::super::testing::{order, point, read, sent};
    use super::*;
    use crate::schedule::policy::Policy;
    use lamina_block::Time;

    #[test]
    fn the_greedy_schedule_of_the_paper() {
        let mut sstf = Aged::new(Sstf, &Keys::default());
        sstf.arrived(point(1, 100));
        assert_eq!(sent(sstf.choose(Time(0))), 1);
        let queue = [point(2, 20), point(3, 82), point(4, 120), point(5, 200)];
        assert_eq!(order(&mut sstf, queue), [3, 4, 5, 2], "82, 120, 200, 20");
    }

    #[test]
    fn requests_at_one_address_go_in_the_order_of_arrival() {
        let mut sstf = Aged::new(Sstf, &Keys::default());
        assert_eq!(order(&mut sstf, [read(1, 90), read(2, 4), read(3, 4), read(4, 90)]), [2, 3, 1, 4]);
    }
}
