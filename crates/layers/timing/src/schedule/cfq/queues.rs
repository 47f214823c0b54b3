//! All queues of `cfq`, and the orders of those that have something to send.
//!
//! As the kernel has them: the round (`cfq_rb_root`), and the next requests by their sectors (`prio_trees`), so that no
//! decision looks at every queue. Both orders follow from the queues: a queue changes in [`Queues::change`] only, which
//! keeps them so.

use super::queue::Queue;
use crate::schedule::policy::Queued;
use std::collections::{BTreeMap, BTreeSet};

/// A client, and whether the queue is that of its reads.
pub(super) type Key = (u32, bool);

/// No key is before this one.
const FIRST: Key = (0, false);

/// The queues.
#[derive(Debug, Default)]
pub(super) struct Queues {
    all: BTreeMap<Key, Queue>,
    by_turn: BTreeSet<(i64, Key)>,
    by_sector: BTreeSet<(u64, Key)>,
}

impl Queues {
    /// How many there are, idle ones too.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// How many have something to send.
    pub fn busy(&self) -> usize {
        self.by_turn.len()
    }

    pub fn get(&self, key: Key) -> Option<&Queue> {
        self.all.get(&key)
    }

    /// Makes the queue, unless there is one.
    pub fn make(&mut self, key: Key) {
        self.all.entry(key).or_insert_with(|| Queue::new(key.1));
    }

    /// Changes a queue; `None` if there is none.
    pub fn change<T>(&mut self, key: Key, change: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        let queue = self.all.get_mut(&key)?;
        let before = queue.next_sector().map(|sector| (queue.turn, sector));
        let result = change(queue);
        let after = queue.next_sector().map(|sector| (queue.turn, sector));
        if before != after {
            if let Some((turn, sector)) = before {
                self.by_turn.remove(&(turn, key));
                self.by_sector.remove(&(sector, key));
            }
            if let Some((turn, sector)) = after {
                self.by_turn.insert((turn, key));
                self.by_sector.insert((sector, key));
            }
        }
        Some(result)
    }

    /// The turn of the queue at the head of the round, and that queue.
    pub fn first(&self) -> Option<(i64, Key)> {
        self.by_turn.first().copied()
    }

    /// The queue whose next request is nearest to `head`.
    pub fn nearest(&self, head: u64) -> Option<Key> {
        let from = |sector| self.by_sector.range((sector, FIRST)..).next();
        // Of several at the last sector below, the one with the lowest key.
        let below = self.by_sector.range(..(head, FIRST)).next_back().and_then(|(sector, _)| from(*sector));
        let sides = [below, from(head)].into_iter().flatten();
        sides.map(|(sector, key)| (sector.abs_diff(head), *key)).min().map(|(_, key)| key)
    }

    /// Forgets queues of which nothing is under way, but for `active`.
    pub fn forget(&mut self, active: Option<Key>) {
        self.all.retain(|key, queue| !queue.is_idle() || Some(*key) == active);
    }

    /// Gives up all requests, oldest first.
    pub fn drain(&mut self) -> Vec<Queued> {
        self.by_turn.clear();
        self.by_sector.clear();
        let mut all: Vec<Queued> = self.all.values_mut().flat_map(Queue::drain).collect();
        all.sort_unstable_by_key(|queued| queued.id);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::Parameters;
    use super::*;
    use crate::schedule::testing::read;

    /// Queues of clients, each with a read at a sector.
    fn queues(reads: &[(u32, u64)]) -> Queues {
        let mut queues = Queues::default();
        for (id, (client, lbn)) in (1..).zip(reads) {
            queues.make((*client, true));
            queues.change((*client, true), |queue| queue.insert(read(id, *lbn), 0, &Parameters::default()));
        }
        queues
    }

    #[test]
    fn the_nearest_on_both_sides_and_of_two_alike_the_lower_client() {
        let queues = queues(&[(1, 900), (2, 1100), (3, 700), (4, 700), (5, 1090)]);
        for (head, client) in [(1000, 5), (990, 1), (900, 1), (0, 3), (790, 3), (800, 1), (5000, 2)] {
            assert_eq!(queues.nearest(head), Some((client, true)), "{head}");
        }
        assert_eq!(Queues::default().nearest(5), None);
    }

    #[test]
    fn orders_follow_the_queues() {
        let mut queues = queues(&[(1, 900), (2, 1100)]);
        assert_eq!((queues.busy(), queues.first()), (2, Some((0, (1, true)))));
        queues.change((1, true), |queue| queue.turn = 5);
        assert_eq!(queues.first(), Some((0, (2, true))));
        queues.change((2, true), Queue::drain);
        assert_eq!((queues.busy(), queues.first()), (1, Some((5, (1, true)))));
        assert_eq!(queues.nearest(1100), Some((1, true)));
        assert_eq!(queues.drain().len(), 1);
        assert_eq!((queues.busy(), queues.len(), queues.nearest(0)), (0, 2, None));
        assert_eq!(queues.change((7, true), |_| ()), None);
    }
}
