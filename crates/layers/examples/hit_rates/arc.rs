//! ARC (Megiddo and Modha, *ARC: A Self-Tuning, Low Overhead Replacement Cache*, FAST '03, figure 4).
//!
//! ```text
//!      b1 ghosts of t1 ◀── t1  asked for once  │  t2  asked for again ──▶ b2 ghosts of t2
//!                               ◀── target ──▶
//! ```
//!
//! A hit among the ghosts of one list says that this list is too short, and moves the target.

use super::policy::{Order, Policy};

pub struct Arc {
    blocks: usize,
    /// How long `t1` should be: a fraction, for it moves by ratios.
    target: f64,
    t1: Order,
    t2: Order,
    b1: Order,
    b2: Order,
}

impl Arc {
    /// A cache of `blocks` blocks.
    pub fn new(blocks: usize) -> Arc {
        Arc {
            blocks,
            target: 0.0,
            t1: Order::default(),
            t2: Order::default(),
            b1: Order::default(),
            b2: Order::default(),
        }
    }

    /// A block of one of the lists becomes a ghost.
    fn replace(&mut self, asks_b2: bool) {
        let len = self.t1.len() as f64;
        let (from, to) = match len > 0.0 && (len > self.target || (asks_b2 && len == self.target)) {
            true => (&mut self.t1, &mut self.b1),
            false => (&mut self.t2, &mut self.b2),
        };
        if let Some(key) = from.pop() {
            to.put(key);
        }
    }

    /// Room for a block that neither a list nor its ghosts have.
    fn make_room(&mut self) {
        let once = self.t1.len() + self.b1.len();
        let all = once + self.t2.len() + self.b2.len();
        if once == self.blocks && self.b1.len() == 0 {
            self.t1.pop();
        } else if once == self.blocks {
            self.b1.pop();
            self.replace(false);
        } else if all >= self.blocks {
            if all == 2 * self.blocks {
                self.b2.pop();
            }
            self.replace(false);
        }
    }
}

impl Policy for Arc {
    fn access(&mut self, key: u64, _is_write: bool) -> bool {
        if self.t1.take(key) || self.t2.has(key) {
            self.t2.put(key);
            return true;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if self.b1.take(key) {
            self.target = (self.target + (b2 / b1).max(1.0)).min(self.blocks as f64);
            self.replace(false);
            self.t2.put(key);
        } else if self.b2.take(key) {
            self.target = (self.target - (b1 / b2).max(1.0)).max(0.0);
            self.replace(true);
            self.t2.put(key);
        } else {
            self.make_room();
            self.t1.put(key);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::hits;
    use super::*;

    #[test]
    fn a_scan_leaves_what_was_asked_for_twice() {
        assert_eq!(hits(&mut Arc::new(4), "aabbcdefghijab"), ".+.+........++");
    }

    #[test]
    fn it_never_has_more_than_it_may() {
        let mut arc = Arc::new(10);
        let mut x = 1u64;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            arc.access((x >> 33) % if x >> 63 == 0 { 8 } else { 40 }, false);
            assert!(arc.t1.len() + arc.t2.len() <= 10 && arc.target <= 10.0);
            assert!(arc.t1.len() + arc.b1.len() <= 10);
            assert!(arc.t1.len() + arc.t2.len() + arc.b1.len() + arc.b2.len() <= 20);
        }
    }
}
