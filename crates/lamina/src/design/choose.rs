//! Which layers, over how many devices, of which size. A decision without any I/O.
//!
//! From below: the devices; `integrity` on each, so that layers above know which copy is wrong; a layer that survives
//! the loss of devices, or joins them; `crypt` once over that, so that a block is encrypted once however often it is
//! stored; `snapshot` on top, so that its map is encrypted too.

use crate::cli::Prefer;
use lamina_block::Bytes;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;
/// More space than any layer takes for itself: superblocks, heads, journals, the rounding of sizes.
const EACH: u64 = 64 * MIB;

/// The wanted properties.
pub struct Wish {
    /// The name of the hierarchy, and of its disk.
    pub name: String,
    /// Bytes of the disk.
    pub size: u64,
    /// So many devices may be lost.
    pub survive: usize,
    pub prefer: Prefer,
    pub encrypt: bool,
    pub snapshots: bool,
    pub checksums: bool,
    pub legs: Vec<Leg>,
}

/// A device, as it is now.
pub struct Leg {
    pub path: String,
    /// `None` if the device is not there yet.
    pub size: Option<Bytes>,
    pub is_block_device: bool,
}

/// How the devices become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// There is only one.
    Alone,
    /// All together, without redundancy (RAID 0).
    Stripe,
    /// The same on so many of them; the others are spares.
    Mirror { legs: usize },
    /// A stripe over mirrors of two (RAID 1+0).
    Pairs,
    /// So many of them for parity (RAID 5 and 6).
    Parity { parity: usize },
}

/// The proposal.
pub struct Design {
    pub wish: Wish,
    pub spread: Spread,
    /// Bytes that each device must have.
    pub each: u64,
}

impl Design {
    /// Chooses, or says what does not fit.
    pub fn of(wish: Wish) -> Result<Design, String> {
        let count = wish.legs.len();
        let paths: BTreeSet<&str> = wish.legs.iter().map(|leg| leg.path.as_str()).collect();
        if paths.len() < count {
            return Err("--devices: a device is named twice".into());
        }
        if wish.size < MIB {
            return Err("--size: at least 1MiB".into());
        }
        let spread = spread(count, wish.survive, wish.prefer)?;
        let each = each(&wish, spread).ok_or("--size: no devices are so large")?;
        for leg in &wish.legs {
            let Some(size) = leg.size.filter(|size| size.0 < each) else { continue };
            return Err(format!(
                "--devices: {} has {size}, and {} are needed on each for a disk of {}",
                leg.path,
                Bytes(each),
                Bytes(wish.size)
            ));
        }
        Ok(Design { wish, spread, each })
    }
}

fn spread(count: usize, survive: usize, prefer: Prefer) -> Result<Spread, String> {
    if count <= survive {
        return Err(format!(
            "--survive {survive} needs at least {} devices, and --devices names {count}",
            survive + 1
        ));
    }
    Ok(match (survive, count) {
        (0, 1) => Spread::Alone,
        (0, _) => Spread::Stripe,
        (1, 4..) if prefer == Prefer::Speed && count.is_multiple_of(2) => Spread::Pairs,
        // One stripe has parity on two devices at most.
        (1 | 2, _) if count > survive + 1 && prefer == Prefer::Space => Spread::Parity { parity: survive },
        _ => Spread::Mirror { legs: survive + 1 },
    })
}

/// Bytes that each device must have; `None` if they cannot be counted.
fn each(wish: &Wish, spread: Spread) -> Option<u64> {
    let count = wish.legs.len() as u64;
    let mut bytes = wish.size;
    let more = |bytes: u64, part: u64| bytes.checked_add(bytes / part)?.checked_add(EACH);
    if wish.snapshots {
        // A fifth for changes after a snapshot, and the map.
        bytes = more(bytes, 5)?;
        bytes = more(bytes, 100)?;
    }
    if wish.encrypt {
        bytes = bytes.checked_add(EACH)?;
    }
    let over = match spread {
        Spread::Alone | Spread::Mirror { .. } => 1,
        Spread::Stripe => count,
        Spread::Pairs => count / 2,
        Spread::Parity { parity } => count - parity as u64,
    };
    bytes = bytes.div_ceil(over).checked_add(EACH)?;
    if wish.checksums {
        // Eight bytes for each 4 KiB, twice.
        bytes = more(bytes, 200)?;
    }
    bytes.checked_add(EACH)?.checked_next_multiple_of(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(count: usize, survive: usize) -> Wish {
        let leg = |n| Leg { path: format!("d{n}.img"), size: None, is_block_device: false };
        Wish {
            name: "vm1".into(),
            size: 20 << 30,
            survive,
            prefer: Prefer::Space,
            encrypt: false,
            snapshots: false,
            checksums: false,
            legs: (0..count).map(leg).collect(),
        }
    }

    #[test]
    fn what_is_chosen() {
        for (count, survive, space, speed) in [
            (1, 0, Spread::Alone, Spread::Alone),
            (3, 0, Spread::Stripe, Spread::Stripe),
            (2, 1, Spread::Mirror { legs: 2 }, Spread::Mirror { legs: 2 }),
            (3, 1, Spread::Parity { parity: 1 }, Spread::Mirror { legs: 2 }),
            (4, 1, Spread::Parity { parity: 1 }, Spread::Pairs),
            (3, 2, Spread::Mirror { legs: 3 }, Spread::Mirror { legs: 3 }),
            (5, 2, Spread::Parity { parity: 2 }, Spread::Mirror { legs: 3 }),
            (6, 4, Spread::Mirror { legs: 5 }, Spread::Mirror { legs: 5 }),
        ] {
            assert_eq!(self::spread(count, survive, Prefer::Space), Ok(space), "{count} devices, {survive}");
            assert_eq!(self::spread(count, survive, Prefer::Speed), Ok(speed), "{count} devices, {survive}");
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        let refused = |wish| Design::of(wish).err().expect("it is refused");
        assert!(refused(wish(1, 1)).contains("needs at least 2 devices"));
        assert!(refused(Wish { size: u64::MAX, ..wish(2, 1) }).contains("--size"));
        assert!(refused(Wish { size: 5, ..wish(2, 1) }).contains("1MiB"));
        let mut small = wish(3, 1);
        small.legs[1].size = Some(Bytes(9 << 30));
        assert!(refused(small).contains("d1.img has 9GiB, and 10"));
        let mut twice = wish(3, 1);
        twice.legs[1].path = "d0.img".into();
        assert!(refused(twice).contains("twice"));
    }

    #[test]
    fn parity_takes_less_than_a_mirror() {
        let each = |wish| Design::of(wish).map(|design| design.each).expect("it fits");
        assert!(each(wish(3, 1)) < 11 << 30);
        assert!(each(wish(2, 1)) > 20 << 30);
        let all = Wish { encrypt: true, snapshots: true, checksums: true, ..wish(3, 1) };
        assert!((12 << 30..14 << 30).contains(&each(all)));
    }
}
