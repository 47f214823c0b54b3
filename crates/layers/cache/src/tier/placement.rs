//! The placements among which an owner of a tier chooses: which blocks get a copy on the fast device, and which copies
//! go.

use super::Kind;
use super::monitor::EXTENT;
use std::fmt;
use std::str::FromStr;

/// A request of `random-to-ssd` is small up to so many blocks: the largest of the paper's transactions have 2 KiB, its
/// searches 8 KiB, and reads ahead of operating systems begin at 16 to 32 KiB.
const SMALL: u64 = 4;

/// A placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// A share of all extents in percent, 0 to 100, belongs to the fast device, whatever is asked: the paper's 50/50
    /// (*A Virtual Storage Environment for SSDs and HDDs in Xen Hypervisor*).
    Static(u8),
    /// What is small and random goes to the fast device, what is large or sequential to the slow one.
    RandomToSsd,
    /// All that is used gets a copy, and the copy that was not used for the longest time goes.
    Lru,
    /// Copies are where they save the most milliseconds.
    #[default]
    Heat,
}

impl Placement {
    /// Whether a block without a copy gets none by a request of that kind and so many blocks.
    pub(super) fn passes(self, block: u64, kind: Kind, blocks: u64) -> bool {
        match self {
            Placement::Static(percent) => !is_shared(block / EXTENT, percent),
            Placement::RandomToSsd => kind == Kind::Sequential || blocks > SMALL,
            Placement::Lru | Placement::Heat => false,
        }
    }
}

/// Whether an extent is among so many percent: evenly spread by Fibonacci hashing (Knuth, volume 3, section 6.4).
fn is_shared(extent: u64, percent: u8) -> bool {
    let spread = extent.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (spread * 100) >> 32 < u64::from(percent)
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Static(percent) => write!(f, "static:{percent}"),
            Placement::RandomToSsd => write!(f, "random-to-ssd"),
            Placement::Lru => write!(f, "lru"),
            Placement::Heat => write!(f, "heat"),
        }
    }
}

impl FromStr for Placement {
    type Err = String;

    /// `static:PERCENT`, `static`, which is 50/50, `random-to-ssd`, `lru` or `heat`.
    fn from_str(text: &str) -> Result<Placement, String> {
        let percent = text.strip_prefix("static:").and_then(|percent| percent.parse().ok());
        match (text, percent) {
            ("static", _) => Ok(Placement::Static(50)),
            ("random-to-ssd", _) => Ok(Placement::RandomToSsd),
            ("lru", _) => Ok(Placement::Lru),
            ("heat", _) => Ok(Placement::Heat),
            (_, Some(percent)) if percent <= 100 => Ok(Placement::Static(percent)),
            (_, Some(_) | None) => Err(format!(
                "{text:?} is no placement: write static:PERCENT with 0 to 100, random-to-ssd, lru or heat"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_placements() {
        for (text, placement) in [
            ("static", Placement::Static(50)),
            ("static:0", Placement::Static(0)),
            ("static:100", Placement::Static(100)),
            ("random-to-ssd", Placement::RandomToSsd),
            ("lru", Placement::Lru),
            ("heat", Placement::Heat),
        ] {
            assert_eq!(text.parse(), Ok(placement), "{text}");
            assert_eq!(placement.to_string().parse(), Ok(placement), "{text}");
        }
        for text in ["", "static:101", "static:x", "Heat"] {
            let wrong = text.parse::<Placement>().expect_err("it is wrong");
            assert!(wrong.contains("0 to 100"), "{wrong}");
        }
    }

    #[test]
    fn the_table_of_what_passes() {
        use Kind::{Random, Sequential};
        // Placement, kind and blocks of a request, whether it passes by.
        let rows = [
            (Placement::Static(0), Random, 1, true),
            (Placement::Static(100), Sequential, 100, false),
            (Placement::RandomToSsd, Random, SMALL, false),
            (Placement::RandomToSsd, Random, SMALL + 1, true),
            (Placement::RandomToSsd, Sequential, 1, true),
            (Placement::Lru, Sequential, 100, false),
            (Placement::Heat, Sequential, 100, false),
        ];
        for (placement, kind, blocks, passes) in rows {
            assert_eq!(placement.passes(7, kind, blocks), passes, "{placement:?} {kind:?} {blocks}");
        }
    }

    #[test]
    fn shares_are_even() {
        for percent in [1, 20, 50, 99] {
            let shared = (0..10_000).filter(|extent| is_shared(*extent, percent)).count();
            assert!(shared.abs_diff(usize::from(percent) * 100) < 50, "{shared} for {percent}");
        }
    }
}
