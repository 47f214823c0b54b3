//! Queries of the table.

use super::Fingerprint;
use crate::sums::Sums;
use lamina_block::{Error, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// Bytes of memory for a content that is counted.
const CONTENT: usize = 64;

/// A digest in hexadecimal digits.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some((digit(pair[0])? * 16 + digit(*pair.get(1)?)?) as u8)).collect()
}

/// The number of blocks with each content, as far as there is memory.
struct Counts {
    /// By a part of the digest: how many blocks, and the first of them.
    contents: BTreeMap<u128, (u64, u64)>,
    max: usize,
    /// Only digests with so many zero bits at the end are counted.
    bits: u32,
    blocks: u64,
    zeroes: u64,
}

impl Counts {
    fn new(max: usize) -> Counts {
        Counts { contents: BTreeMap::new(), max, bits: 0, blocks: 0, zeroes: 0 }
    }

    fn is_counted(content: u128, bits: u32) -> bool {
        content.trailing_zeros() >= bits
    }

    fn add(&mut self, block: u64, entry: &[u8]) {
        if entry.iter().all(|byte| *byte == 0) {
            self.zeroes += 1;
            return;
        }
        self.blocks += 1;
        let content = entry.iter().take(16).fold(0, |all, byte| all << 8 | u128::from(*byte));
        if !Self::is_counted(content, self.bits) {
            return;
        }
        self.contents.entry(content).or_insert((0, block)).0 += 1;
        while self.contents.len() > self.max {
            self.bits += 1;
            self.contents.retain(|content, _| Self::is_counted(*content, self.bits));
        }
    }

    /// All blocks that are equal to an earlier one.
    fn duplicates(&self) -> u64 {
        let counted: u64 = self.contents.values().map(|(count, _)| count).sum();
        let equal = counted - self.contents.len() as u64;
        (u128::from(self.blocks) * u128::from(equal) / u128::from(counted.max(1))) as u64
    }

    /// The contents that most blocks have: how many, and the first.
    fn top(&self, most: usize) -> Vec<(u64, u64)> {
        let mut top: Vec<_> = self.contents.values().copied().filter(|(count, _)| *count > 1).collect();
        top.sort_by_key(|(count, first)| (std::cmp::Reverse(*count), *first));
        top.truncate(most);
        top
    }
}

impl Fingerprint {
    /// Calls `f` with the number and the entry of every block.
    async fn each(&self, mut f: impl FnMut(u64, &[u8])) -> Result<()> {
        let (sums, mut first): (&Sums, u64) = (&self.sums, 0);
        while first < sums.blocks() {
            let end = (first + 16 * sums.table.page()).min(sums.blocks());
            let entries = sums.table.get(first..end).await?;
            (first..)
                .zip(entries.chunks_exact(sums.digest().len()))
                .for_each(|(block, entry)| f(block, entry));
            first = end;
            sums.env.sleep(Duration::ZERO).await;
        }
        Ok(())
    }

    pub async fn at(&self, offset: u64) -> Result<Value> {
        let size = self.sums.geometry().size;
        if offset >= size {
            return Err(Error::invalid(format!("offset: the device has {size} bytes")));
        }
        let digest = self.sums.digest_at(offset).await?;
        Ok(json!({ "offset": offset / self.sums.block() * self.sums.block(), "hash": hex(&digest) }))
    }

    /// The blocks with a content.
    pub async fn find(&self, hash: &str, limit: usize) -> Result<Value> {
        let digest = self.sums.digest();
        let wanted = unhex(hash).filter(|hash| hash.len() == digest.len()).ok_or_else(|| {
            let digits = 2 * digest.len();
            Error::invalid(format!("hash: {} has {digits} hexadecimal digits", digest.name()))
        })?;
        let wanted = self.sums.reveal(&wanted);
        let (mut blocks, mut offsets) = (0u64, Vec::new());
        self.each(|block, entry| {
            if entry == wanted {
                blocks += 1;
                if offsets.len() < limit {
                    offsets.push(block * self.sums.block());
                }
            }
        })
        .await?;
        Ok(json!({ "blocks": blocks, "offsets": offsets, "pending_bytes": self.sums.needs_resync_bytes() }))
    }

    pub async fn duplicates(&self, top: usize) -> Result<Value> {
        let mut counts = Counts::new(self.memory / CONTENT);
        self.each(|block, entry| counts.add(block, entry)).await?;
        let mut groups = Vec::new();
        for (blocks, first) in counts.top(top) {
            let offset = first * self.sums.block();
            let hash = hex(&self.sums.digest_at(offset).await?);
            groups.push(json!({ "hash": hash, "blocks": blocks, "offset": offset }));
        }
        let duplicates = counts.duplicates();
        Ok(json!({
            "blocks": counts.blocks,
            "zero_blocks": counts.zeroes,
            "duplicates": duplicates,
            "bytes_saved": duplicates * self.sums.block(),
            "one_in": 1u64 << counts.bits,
            "pending_bytes": self.sums.needs_resync_bytes(),
            "top": groups,
        }))
    }

    pub async fn changed(&self, name: &str, limit: usize) -> Result<Value> {
        let (bitmap, block) = (self.marks.bitmap(name)?, self.sums.block());
        let (mut blocks, mut ranges, mut more) = (0u64, Vec::<Range<u64>>::new(), false);
        let mut from = 0;
        while from < bitmap.len() {
            let mut bits = vec![0; (bitmap.len() - from).min(16 << 10) as usize];
            bitmap.read(from, &mut bits).await?;
            let set =
                (from * 8..).zip(bits.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1)));
            for number in set.filter(|(number, set)| *set && *number < self.sums.blocks()).map(|(n, _)| n) {
                blocks += 1;
                let room = ranges.len() < limit;
                match ranges.last_mut() {
                    Some(last) if last.end == number => last.end += 1,
                    _ if room => ranges.push(number..number + 1),
                    _ => more = true,
                }
            }
            from += bits.len() as u64;
            self.sums.env.sleep(Duration::ZERO).await;
        }
        let range = |range: &Range<u64>| json!([range.start * block, (range.end - range.start) * block]);
        Ok(json!({
            "blocks": blocks,
            "bytes": blocks * block,
            "ranges": ranges.iter().map(range).collect::<Vec<_>>(),
            "more": more,
            "pending_bytes": self.sums.needs_resync_bytes(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::xorshift;

    /// `each` contents, each of them so many times as its number modulo 4 and one, in an arbitrary order.
    fn counted(contents: u64, max: usize) -> (Counts, u64) {
        let mut counts = Counts::new(max);
        let (mut equal, mut block) = (0, 0);
        for copy in 0..4 {
            for content in (0..contents).filter(|content| content % 4 >= copy) {
                let mut random = xorshift(content + 1);
                let entry: Vec<u8> = (0..4).flat_map(|_| random().to_le_bytes()).collect();
                counts.add(block, &entry);
                (equal, block) = (equal + u64::from(copy > 0), block + 1);
            }
        }
        (counts, equal)
    }

    #[test]
    fn what_fits_is_counted_exactly() {
        let (counts, equal) = counted(1000, 1000);
        assert_eq!((counts.duplicates(), counts.bits), (equal, 0));
        assert_eq!(counts.top(3), [(4, 3), (4, 7), (4, 11)]);
    }

    #[test]
    fn what_does_not_fit_is_estimated_within_the_memory() {
        let (counts, equal) = counted(40_000, 1000);
        assert!(counts.contents.len() <= 1000 && counts.bits > 4);
        let off = (counts.duplicates() as f64 / equal as f64 - 1.0).abs();
        assert!(off < 0.1, "off by {off}");
    }

    #[test]
    fn hexadecimal_digits() {
        assert_eq!(unhex("00fF7a"), Some(vec![0, 255, 0x7A]));
        assert_eq!(unhex("00f"), None);
        assert_eq!(unhex("0g"), None);
        assert_eq!(hex(&[0, 255, 0x7A]), "00ff7a");
    }
}
