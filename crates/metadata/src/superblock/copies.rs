//! Both copies on a device: found, chosen, written.

use super::{COPY_LEN, Damage, Layout, Place, Superblock, decode, encode, last_copy};
use lamina_block::{Buf, Durability, Error, Io, Node, Result, believe};
use std::rc::Rc;

/// The superblocks of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The size of the device in bytes.
    pub size: u64,
    /// The first copy and the second.
    pub copies: [std::result::Result<Superblock, Damage>; 2],
}

impl Found {
    /// Looks at a device of `size` bytes through `read`, which gives the bytes of a range inside it.
    pub fn look(
        size: u64,
        mut read: impl FnMut(u64, usize) -> std::result::Result<Vec<u8>, String>,
    ) -> Found {
        let mut copy = |place, offset: u64| {
            let bytes = read(offset, COPY_LEN.min(size - offset) as usize).map_err(Damage::Unreadable)?;
            decode(&bytes, place)
        };
        let first = copy(Place::First, 0);
        let second = match second_at(size, &first) {
            Some(at) => copy(Place::Second, at),
            None => Err(Damage::Beyond),
        };
        Found { size, copies: [first, in_place(second, size)] }
    }

    /// The valid copy: of the higher generation, and the first where both have the same, because it is written before
    /// the second.
    pub fn newest(&self) -> Option<&Superblock> {
        self.whole().reduce(|best, other| if other.generation > best.generation { other } else { best })
    }

    /// The copies that can be believed, the first one first.
    pub fn whole(&self) -> impl Iterator<Item = &Superblock> {
        self.copies.iter().filter_map(|copy| copy.as_ref().ok())
    }

    /// The damage of a copy whose other one is good.
    pub fn half(&self) -> Option<(Place, &Damage)> {
        match &self.copies {
            [Err(e), Ok(_)] => Some((Place::First, e)),
            [Ok(_), Err(e)] => Some((Place::Second, e)),
            _ => None,
        }
    }

    /// True if neither copy is there, nor remains of one.
    pub fn is_absent(&self) -> bool {
        let nothing = |c: &std::result::Result<_, _>| matches!(c, Err(Damage::Absent | Damage::Beyond));
        self.copies.iter().all(nothing)
    }

    /// The version of a copy that a later Lamina has written.
    pub fn newer(&self) -> Option<u32> {
        self.copies.iter().find_map(|copy| match copy {
            Err(Damage::Newer(version)) => Some(*version),
            _ => None,
        })
    }
}

/// Where the second copy is to be: where the first one says, or else at the end of the device.
fn second_at(size: u64, first: &std::result::Result<Superblock, Damage>) -> Option<u64> {
    let at = match first {
        Ok(first) => Place::Second.offset(&first.layout),
        Err(_) => last_copy(size),
    };
    (at > 0 && at.checked_add(COPY_LEN)? <= size).then_some(at)
}

/// A second copy is believed only at the place in its own layout: at the end of the device, or at the place that the
/// first names.
fn in_place(
    second: std::result::Result<Superblock, Damage>,
    size: u64,
) -> std::result::Result<Superblock, Damage> {
    match second {
        Ok(copy) if copy.layout.end() > size => Err(Damage::Misplaced),
        other => other,
    }
}

/// Looks at a device. The copies that it finds are durable.
pub async fn read(node: &Rc<Node>) -> Found {
    believe([node]).await;
    let size = node.geometry().size;
    let first = copy(node, Place::First, 0).await;
    let second = match second_at(size, &first) {
        Some(at) => copy(node, Place::Second, at).await,
        None => Err(Damage::Beyond),
    };
    Found { size, copies: [first, in_place(second, size)] }
}

async fn copy(node: &Rc<Node>, place: Place, offset: u64) -> std::result::Result<Superblock, Damage> {
    let len = COPY_LEN.min(node.geometry().size - offset) as usize;
    let buf = Buf::zeroed(len);
    let read = node.submit(Io::read(offset, buf.clone())).await;
    read.map_err(|e| Damage::Unreadable(e.message().to_owned()))?;
    decode(&buf.to_vec(), place)
}

/// Writes one copy and makes it durable.
pub async fn write(node: &Rc<Node>, superblock: &Superblock, place: Place) -> Result<()> {
    let Layout { data, .. } = &superblock.layout;
    let (size, block) = (node.geometry().size, u64::from(node.geometry().block));
    if superblock.layout.end() > size || data.is_empty() {
        return Err(Error::invalid(format!("{size} bytes are too few for the member's superblocks")));
    }
    let mut bytes = encode(superblock, place);
    let len = (bytes.len() as u64).next_multiple_of(block);
    bytes.resize(len as usize, 0);
    let at = place.offset(&superblock.layout);
    node.submit(Io::write(at, Buf::from_vec(bytes), Durability::Cached)).await?;
    node.submit(Io::flush()).await
}

/// Writes the superblocks of members that are new: the second copy of each, and when all of these are durable, the
/// first. So a first copy is never without a second.
pub async fn write_new(members: &[(Rc<Node>, Superblock)]) -> Result<()> {
    for place in [Place::Second, Place::First] {
        for (node, superblock) in members {
            write(node, superblock, place).await.map_err(|e| e.on(&superblock.name))?;
        }
    }
    Ok(())
}

/// Writes the superblocks of all members: the first copy of each, and when all of these are durable, the second of
/// each. After a power loss at any moment all members have a whole copy of the old state, or all have one of the new.
pub async fn write_all(members: &[(Rc<Node>, Superblock)]) -> Result<()> {
    for place in Place::ALL {
        for (node, superblock) in members {
            write(node, superblock, place).await.map_err(|e| e.on(&superblock.name))?;
        }
    }
    Ok(())
}
