//! What goes into a batch: parts that wait are gathered, and cut where a full stripe of the device below ends.
//!
//! ```text
//!      stripe            │                 │                 │
//!      segment  … batch ─┤◀─ head │ 7 │ 90 │ 3 │ 8 │ 12 │ 1 ▶│ 5 │ 44     these two wait for more
//! ```
//!
//! A batch costs a slot for its head, and one that is no full stripe makes a `parity` below read. So parts wait while
//! more of their class will come by themselves: until a batch of the class that is under way has ended, or collection
//! has copied what it is about to. What makes a whole batch does not wait. A part that nothing goes before is never
//! held back: one request at a time has a head of its own, and goes at once.

use super::format::{ENTRIES_MAX, Entry, Head, SLOT, What};
use super::log::Pin;
use crate::ticket::Ticket;
use lamina_block::{Buf, Durability};
use std::collections::VecDeque;
use std::rc::Rc;

/// Slots of a batch, at most: 1 MiB.
pub(super) const BATCH_SLOTS: u32 = 256;
/// Slots of an entry, at most: they share a checksum, and count together or not at all.
const ENTRY_SLOTS: u32 = 16;

/// A run of blocks that is to be appended.
pub(super) struct Part {
    pub what: What,
    pub block: u32,
    pub count: u32,
    /// Whole slots; empty for what is dropped or was written home.
    pub data: Buf,
    /// Of what is copied or was written home: the slot of the first block.
    pub from: u32,
    pub durability: Durability,
    pub ticket: Rc<Ticket>,
    /// Of a copy: its source is not written again before it counts.
    pub source: Option<Rc<Pin>>,
}

impl Part {
    fn slots(&self) -> u32 {
        match self.what {
            What::Written | What::Copied => self.count,
            What::Dropped | What::Homed => 0,
        }
    }

    /// Takes the first `count` blocks off.
    fn cut(&mut self, count: u32) -> Part {
        let bytes = count as usize * SLOT;
        let data = self.data.slice(0..bytes);
        let (ticket, source) = (Rc::clone(&self.ticket), self.source.clone());
        let first = Part { count, data, ticket, source, ..*self };
        first.ticket.one_more();
        self.block += count;
        self.count -= count;
        self.data = self.data.slice(bytes..self.data.len());
        if self.what == What::Copied {
            self.from += count;
        }
        first
    }
}

/// A batch on its way.
pub(super) struct Batch {
    pub class: u8,
    pub segment: u32,
    pub head: Head,
    pub parts: Vec<Part>,
}

/// How long the next batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// Its slots, with the head.
    pub slots: u32,
    /// Nothing that comes later would make it better: it ends at a full stripe, or no more fits in.
    pub is_whole: bool,
}

/// How much of what waits goes into a batch that begins in slot `at` of a segment and has `space` slots at most, two or
/// more, where a full stripe begins at each multiple of `stripe`.
pub(super) fn fit(waiting: &VecDeque<Part>, at: u32, space: u32, stripe: u32) -> Fit {
    let (mut used, mut entries) = (1, 0);
    for part in waiting {
        entries += part.slots().div_ceil(ENTRY_SLOTS).max(1);
        used += part.slots();
        if used >= space || entries as usize >= ENTRIES_MAX {
            break;
        }
    }
    let is_full = used >= space || entries as usize >= ENTRIES_MAX;
    let used = used.min(space);
    // The last full stripe that ends within it, and has a block of it.
    match (at + used) / stripe * stripe {
        end if stripe > 1 && end >= at + 2 => Fit { slots: end - at, is_whole: true },
        _ => Fit { slots: used, is_whole: is_full },
    }
}

/// Takes what fits into a batch at `at`, in order; the last part may be cut.
pub(super) fn take(waiting: &mut VecDeque<Part>, at: u32, slots: u32) -> (Vec<Part>, Vec<Entry>) {
    let (mut parts, mut entries, mut used) = (Vec::new(), Vec::new(), 1);
    while entries.len() < ENTRIES_MAX
        && let Some(next) = waiting.front_mut()
    {
        let space = (slots - used).min(ENTRY_SLOTS);
        let part = match next.slots() {
            wanted if wanted <= space => waiting.pop_front().expect("it is the first"),
            _ if space == 0 => break,
            _ => next.cut(space),
        };
        let len = part.slots();
        let Part { what, block, count, from, .. } = part;
        entries.push(Entry {
            what,
            block,
            count,
            slot: if len > 0 { at + used } else { 0 },
            from,
            checksum: 0,
        });
        parts.push(part);
        used += len;
    }
    (parts, entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(counts: &[u32]) -> VecDeque<Part> {
        let part = |count: &u32| Part {
            what: if *count == 0 { What::Dropped } else { What::Written },
            block: 100,
            count: (*count).max(1),
            data: Buf::zeroed(*count as usize * SLOT),
            from: 0,
            durability: Durability::Cached,
            ticket: Ticket::new(),
            source: None,
        };
        counts.iter().map(part).collect()
    }

    #[test]
    fn a_batch_ends_with_a_stripe_or_when_it_is_full() {
        let of = |slots, is_whole| Fit { slots, is_whole };
        for (counts, at, space, stripe, expected) in [
            (&[1, 2][..], 0, 256, 1, of(4, false)),
            (&[1; 130], 0, 256, 1, of(126, true)),
            (&[300], 0, 256, 1, of(256, true)),
            (&[3], 12, 4, 1, of(4, true)),
            (&[0, 0], 5, 256, 1, of(1, false)),
            (&[1, 2], 0, 256, 8, of(4, false)),
            (&[7], 0, 256, 8, of(8, true)),
            (&[1; 12], 0, 256, 8, of(8, true)),
            (&[1; 17], 0, 256, 8, of(16, true)),
            (&[1; 5], 3, 256, 8, of(5, true)),
            (&[1; 3], 3, 256, 8, of(4, false)),
            // Only the head would fit before the end of the stripe.
            (&[1; 5], 7, 256, 8, of(6, false)),
            (&[1; 9], 7, 256, 8, of(9, true)),
        ] {
            assert_eq!(fit(&waiting(counts), at, space, stripe), expected, "{counts:?} at {at}");
        }
    }

    #[test]
    fn what_is_taken_is_what_fits() {
        for counts in [&[40, 3, 1, 0, 70, 200][..], &[1; 200], &[16, 16, 16, 1]] {
            for stripe in [1, 8, 48, 64] {
                let mut queue = waiting(counts);
                let fit = fit(&queue, 24, 200, stripe);
                let (parts, entries) = take(&mut queue, 24, fit.slots);
                let slots = 1 + parts.iter().map(Part::slots).sum::<u32>();
                assert_eq!(slots, fit.slots, "{counts:?} with stripes of {stripe}");
                assert!(entries.iter().all(|entry| entry.slots() <= ENTRY_SLOTS));
            }
        }
    }
}
