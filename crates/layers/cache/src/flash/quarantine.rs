//! Quarantine: blocks that stay on the flash when the store has them, because late writes of another host may still
//! land on the store.
//!
//! A host that takes a volume over from one that is silent, and perhaps only cut off, has on its flash whatever that
//! one may still bring to the store: nothing is brought there before all members have it, and nothing is forgotten
//! before that is durable there. So these blocks are read from the flash, and are written to the store once now, so
//! that it has what is acknowledged, and once more when nothing of the other host can come any more. They stay dirty
//! until then, and no checkpoint passes them: a crash finds all of them again.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// The blocks, each with the slot whose version the store has been given, if it has.
#[derive(Default)]
pub struct Quarantine(RefCell<BTreeMap<u64, Option<u32>>>);

impl Quarantine {
    /// These blocks stay.
    pub fn hold(&self, blocks: impl Iterator<Item = u64>) {
        self.0.borrow_mut().extend(blocks.map(|block| (block, None)));
    }

    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub fn has(&self, block: u64) -> bool {
        self.0.borrow().contains_key(&block)
    }

    /// The store has been given what is in `slot`.
    pub fn given(&self, block: u64, slot: u32) {
        if let Some(given) = self.0.borrow_mut().get_mut(&block) {
            *given = Some(slot);
        }
    }

    /// True if the store has been given this version, and is to get it again later only.
    pub fn rests(&self, block: u64, slot: u32) -> bool {
        self.0.borrow().get(&block).is_some_and(|given| *given == Some(slot))
    }

    /// Nothing comes any more: they are as any others.
    pub fn lift(&self) {
        self.0.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_given_once() {
        let of = Quarantine::default();
        of.hold([5, 7].into_iter());
        assert!(of.has(5) && !of.has(6) && !of.rests(5, 100));
        of.given(5, 100);
        of.given(6, 100);
        assert!(of.rests(5, 100) && !of.rests(5, 101) && !of.rests(7, 100) && !of.rests(6, 100));
        of.lift();
        assert!(of.is_empty() && !of.rests(5, 100));
    }
}
