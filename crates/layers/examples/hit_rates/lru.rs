//! LRU: what was not asked for for the longest time goes.

use super::policy::{Order, Policy};

pub struct Lru {
    blocks: usize,
    order: Order,
}

impl Lru {
    /// A cache of `blocks` blocks.
    pub fn new(blocks: usize) -> Lru {
        Lru { blocks, order: Order::default() }
    }
}

impl Policy for Lru {
    fn access(&mut self, key: u64, _is_write: bool) -> bool {
        let hit = self.order.has(key);
        self.order.put(key);
        if self.order.len() > self.blocks {
            self.order.pop();
        }
        hit
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::hits;
    use super::*;

    #[test]
    fn the_one_that_was_not_used_goes() {
        assert_eq!(hits(&mut Lru::new(3), "abcadabc"), "...+.+..");
    }

    #[test]
    fn a_loop_that_is_too_long_never_hits() {
        assert_eq!(hits(&mut Lru::new(3), "abcdabcd"), "........");
    }
}
