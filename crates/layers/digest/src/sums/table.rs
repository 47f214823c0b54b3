//! The digests of all blocks, an array in the metadata store; and bitmaps of changed blocks.
//!
//! Invariant: a digest and the bits about it change in one change of the store.

use super::format::PAGE;
use lamina_block::Result;
use lamina_metadata::{Change, Object, Store};
use std::cell::RefCell;
use std::ops::Range;

/// An array of digests.
pub struct Table {
    entries: Object,
    /// Bytes of a digest.
    len: u64,
    /// Bitmaps with a bit for every block, which is set when the block's digest changes.
    pub marks: RefCell<Vec<Object>>,
}

impl Table {
    /// The array `entries` of digests of `len` bytes.
    pub fn new(entries: Object, len: usize) -> Table {
        Table { entries, len: len as u64, marks: RefCell::default() }
    }

    /// The object of the array.
    pub fn object(&self) -> &Object {
        &self.entries
    }

    /// Blocks whose digests lie in one page of the store.
    pub fn page(&self) -> u64 {
        PAGE / self.len
    }

    /// The digests of some blocks, one after the other.
    pub async fn get(&self, blocks: Range<u64>) -> Result<Vec<u8>> {
        let mut digests = vec![0; ((blocks.end - blocks.start) * self.len) as usize];
        self.entries.read(blocks.start * self.len, &mut digests).await?;
        Ok(digests)
    }

    /// Sets the digests of blocks from `first` on. The blocks are locked. Unchanged digests cost nothing.
    pub async fn put(&self, store: &Store, mut first: u64, digests: &[u8]) -> Result<()> {
        let (len, mut rest) = (self.len as usize, digests);
        while !rest.is_empty() {
            let count = (self.page() - first % self.page()).min((rest.len() / len) as u64);
            let (part, after) = rest.split_at(count as usize * len);
            let before = self.get(first..first + count).await?;
            let pairs = before.chunks_exact(len).zip(part.chunks_exact(len));
            let changed: Vec<u64> =
                (0..).zip(pairs).filter(|(_, (old, new))| old != new).map(|(i, _)| i).collect();
            if let (Some(low), Some(high)) = (changed.first(), changed.last()) {
                let bytes = &part[*low as usize * len..(*high as usize + 1) * len];
                let change = Change::new().write(self.entries.id(), (first + low) * self.len, bytes);
                store.change(self.mark(change, first, &changed)).await?;
            }
            (first, rest) = (first + count, after);
        }
        Ok(())
    }

    /// Adds to `change` that the blocks `changed`, counted from `first`, have changed.
    fn mark(&self, mut change: Change, first: u64, changed: &[u64]) -> Change {
        let marks = self.marks.borrow();
        let (Some(low), Some(high)) = (changed.first(), changed.last()) else { return change };
        if marks.is_empty() {
            return change;
        }
        let start = (first + low) / 8;
        let mut bits = vec![0; ((first + high) / 8 - start + 1) as usize];
        for block in changed.iter().map(|block| first + block) {
            bits[(block / 8 - start) as usize] |= 1 << (block % 8);
        }
        // Each update lies in one page.
        let (here, next) = bits.split_at(bits.len().min((PAGE - start % PAGE) as usize));
        for (at, bits) in [(start, here), (start + here.len() as u64, next)] {
            for mark in marks.iter().filter(|_| !bits.is_empty()) {
                let bits = bits.to_vec();
                change = change.update(mark.id(), at, bits.len(), move |bytes| {
                    bytes.iter_mut().zip(&bits).for_each(|(byte, bits)| *byte |= bits);
                });
            }
        }
        change
    }
}
