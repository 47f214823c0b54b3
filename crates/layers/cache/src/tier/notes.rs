//! What a tier's monitor leaves for the next time, as pages on the fast device (`docs/formats/tier.md`).
//!
//! ```text
//!      page   LAMTIERM │ checksum │ key │ version │ extents │ used │ extent, its figures │ …
//! ```
//!
//! The pages are advice: nothing that protects data depends on them. Each is whole in itself, so that any of them can
//! be missing, old or torn. A page counts if its checksum is right and all that it says is possible, and is passed over
//! otherwise; an extent of which two pages tell is as the later one says.
//!
//! Deliberately not here: where pages lie, and when they are written (`accelerate/notes.rs`).

use super::monitor::{Extent, Monitor};
use crate::flash::SLOT;
use lamina_kit::sealed_page;
use zerocopy::little_endian::{F32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"LAMTIERM";
const VERSION: u32 = 1;
/// Extents of a page.
pub const EXTENTS: usize = (SLOT - size_of::<Head>()) / size_of::<Entry>();
/// Numbers of extents and of blocks used are below these: of a volume of 4 PiB, and of a device that is used for ever.
const NUMBERS: u64 = 1 << 34;
const USED: u64 = 1 << 62;
/// No figure is larger.
const FIGURE: f32 = 1e12;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    checksum: U64,
    key: U64,
    version: U32,
    extents: U32,
    used: U64,
    zero: [u8; 24],
}

/// An extent: reads, writes, blocks, sequential, milliseconds saved and spent.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Entry {
    number: U64,
    figures: [F32; 6],
}

/// A page that can be believed.
struct Page {
    used: u64,
    extents: Vec<(u64, [f32; 6])>,
}

impl Page {
    /// Reads a page; `None` if it is none of the volume with this key, or says what cannot be.
    fn decode(bytes: &[u8], key: u64) -> Option<Page> {
        if bytes.len() != SLOT || !sealed_page::is_whole(bytes, MAGIC, key) {
            return None;
        }
        let (head, rest) = Head::ref_from_prefix(bytes).ok()?;
        let (entries, _) = <[Entry]>::ref_from_prefix_with_elems(rest, EXTENTS).ok()?;
        let entries = entries.get(..head.extents.get() as usize)?;
        let is_possible = |entry: &Entry| {
            let mut figures = entry.figures.iter().map(|figure| figure.get());
            entry.number.get() < NUMBERS && figures.all(|figure| (0.0..=FIGURE).contains(&figure))
        };
        let is_known = head.version.get() == VERSION && head.used.get() < USED;
        (is_known && entries.iter().all(is_possible)).then(|| Page {
            used: head.used.get(),
            extents: entries.iter().map(|entry| (entry.number.get(), entry.figures.map(F32::get))).collect(),
        })
    }

    fn encode(&self, key: u64) -> Vec<u8> {
        let head = Head {
            magic: MAGIC,
            checksum: 0.into(),
            key: key.into(),
            version: VERSION.into(),
            extents: (self.extents.len() as u32).into(),
            used: self.used.into(),
            zero: [0; 24],
        };
        let entries = self.extents.iter().map(|(number, figures)| Entry {
            number: (*number).into(),
            figures: figures.map(|figure| figure.clamp(0.0, FIGURE).into()),
        });
        let mut bytes = head.as_bytes().to_vec();
        entries.for_each(|entry| bytes.extend(entry.as_bytes()));
        sealed_page::page(&bytes, SLOT, key)
    }
}

impl Monitor {
    /// At most so many pages of what is known: the extents that cost the slow device the most time, or would, and of
    /// others those that are used the most. Pages are sealed with the key of the volume.
    pub fn pages(&self, most: usize, key: u64) -> Vec<u8> {
        let known = self.most_used(most * EXTENTS);
        let pages = known.chunks(EXTENTS).map(|extents| {
            let extents = extents.iter().map(|(number, extent)| (*number, extent.figures())).collect();
            Page { used: self.used_blocks(), extents }.encode(key)
        });
        pages.flatten().collect()
    }

    /// What pages say is known from now on. Bytes that are no page of the volume with this key say nothing.
    pub fn recall(&mut self, pages: &[u8], key: u64) {
        let mut pages: Vec<Page> = pages.chunks(SLOT).filter_map(|page| Page::decode(page, key)).collect();
        pages.sort_by_key(|page| page.used);
        for Page { used, extents } in pages {
            extents.into_iter().for_each(|(number, figures)| self.put(number, Extent::of(figures), used));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::monitor::Use;
    use super::*;
    use lamina_kit::sealed_page::seal;

    const KEY: u64 = 0x0123_4567_89AB_CDEF;
    const GOLDEN: &str = include_str!("../../tests/golden/tier-1.txt");

    fn monitor() -> Monitor {
        Monitor::new(1 << 18, 1 << 20)
    }

    /// A monitor that knows so many extents, the last of them the hottest.
    fn knows(extents: u64) -> Monitor {
        let mut monitor = monitor();
        for number in 0..extents {
            let ms = number as f32 + 1.0;
            monitor.used(number * 3, Use { blocks: 4, saved_ms: ms, spent_ms: 0.5, ..Use::default() });
            monitor
                .used(number * 3, Use { is_write: true, is_sequential: true, blocks: 2, ..Use::default() });
        }
        monitor
    }

    fn recalled(pages: &[u8]) -> Monitor {
        let mut monitor = monitor();
        monitor.recall(pages, KEY);
        monitor
    }

    #[test]
    fn what_was_known_is_known_again() {
        let before = knows(200);
        let after = recalled(&before.pages(2, KEY));
        assert!((0..200).all(|number| after.extent(number * 3) == before.extent(number * 3)));
        assert_eq!(after.used_blocks(), before.used_blocks());
        // Of more than there is space for the hottest stay.
        let hot = recalled(&before.pages(1, KEY));
        let first = 200 - EXTENTS as u64;
        assert!((0..200).all(|number| (hot.extent(number * 3).ms() > 0.0) == (number >= first)));
    }

    #[test]
    fn the_format_is_as_it_was() {
        let page = knows(2).pages(1, KEY);
        let hex: String = page[..64 + 2 * 32].iter().map(|byte| format!("{byte:02x}")).collect();
        if std::env::var_os("LAMINA_BLESS").is_some() {
            std::fs::write(
                concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/tier-1.txt"),
                format!("{hex}\n"),
            )
            .expect("written");
        }
        assert_eq!(hex, GOLDEN.trim(), "the format has changed: see docs/formats/tier.md");
        assert!(page[128..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_wrong_is_passed_over() {
        let good = knows(2).pages(1, KEY);
        for bit in 0..SLOT * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(recalled(&bad).used_blocks(), 0, "bit {bit}");
        }
        for len in [0, 1, 63, SLOT - 1] {
            assert_eq!(recalled(&good[..len]).used_blocks(), 0, "{len} bytes");
        }
        let nan = f32::NAN.to_le_bytes();
        let impossible: [(usize, &[u8]); 8] = [
            (24, &[2]),
            (28, &[127]),
            (28, &[0xFF; 4]),
            (32, &[0xFF; 8]),
            (64, &[0xFF; 8]),
            (72, &nan),
            (72, &(-1f32).to_le_bytes()),
            (72 + 5 * 4, &f32::INFINITY.to_le_bytes()),
        ];
        for (at, value) in impossible {
            let mut bad = good.clone();
            bad[at..at + value.len()].copy_from_slice(value);
            seal(&mut bad, KEY);
            assert_eq!(recalled(&bad).used_blocks(), 0, "{value:?} at {at}");
        }
        let mut other = monitor();
        other.recall(&good, KEY + 1);
        assert_eq!(other.used_blocks(), 0, "another volume");
    }

    #[test]
    fn of_two_pages_the_later_counts() {
        let (old, new) = (knows(1).pages(1, KEY), knows(100).pages(1, KEY));
        for pages in [[&old[..], &new].concat(), [&new[..], &old].concat()] {
            assert_eq!(recalled(&pages).extent(0), knows(100).extent(0));
        }
    }
}
