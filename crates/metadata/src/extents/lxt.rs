//! The table from logical to physical extents.
//!
//! Invariant: an entry lies in one page, so at every level it is old or new as a whole.

use crate::{Change, Id, Object, Store};
use lamina_block::{Error, ErrorKind, Result};
use std::ops::Range;

/// Flags that an extent has.
const FLAGS: u32 = 3;
const FLAG_BITS: u64 = (1 << FLAGS) - 1;

/// Bytes of an entry over so many physical extents. Both divide a page.
pub(crate) fn width(physical: u64) -> usize {
    if physical < (1 << (32 - FLAGS)) - 1 { 4 } else { 8 }
}

/// The place of a logical extent, and the layer's flags for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The physical extent; `None` if there is none.
    pub physical: Option<u64>,
    /// Three flags, the layer's own: bits 0 to 2.
    pub flags: u8,
}

/// A table from logical to physical extents, in an object.
pub struct Lxt {
    object: Object,
    logical: u64,
    physical: u64,
    width: usize,
}

impl Lxt {
    /// A new table of `logical` extents, all without a place, over a device of `physical` extents. The table is there
    /// after a crash if it was committed; `tag` finds it again.
    pub async fn create(store: &Store, logical: u64, physical: u64, tag: u64) -> Result<Lxt> {
        if physical > 1 << 60 {
            return Err(Error::invalid(format!("a table cannot name {physical} extents")));
        }
        let object = store.alloc(super::lxt_len(logical, physical), tag).await?;
        Ok(Lxt { object, logical, physical, width: width(physical) })
    }

    /// The table in object `id`, with the numbers that it was created with. `Corrupt` if the object has another length.
    pub fn open(store: &Store, id: Id, logical: u64, physical: u64) -> Result<Lxt> {
        let object = store.load(id)?;
        match object.len() == super::lxt_len(logical, physical) {
            true => Ok(Lxt { object, logical, physical, width: width(physical) }),
            false => {
                let message =
                    format!("object {} has {} bytes, and is no table of {logical}", id.0, object.len());
                Err(Error::new(ErrorKind::Corrupt, message))
            }
        }
    }

    /// Its object.
    pub fn id(&self) -> Id {
        self.object.id()
    }

    /// Logical extents.
    pub fn logical(&self) -> u64 {
        self.logical
    }

    /// The place of one extent.
    pub async fn get(&self, extent: u64) -> Result<Mapping> {
        let mut bytes = [0; 8];
        self.object.read(self.offset(extent)?, &mut bytes[..self.width]).await?;
        self.decode(extent, u64::from_le_bytes(bytes))
    }

    /// Where each of several extents lies.
    pub async fn get_all(&self, extents: Range<u64>) -> Result<Vec<Mapping>> {
        if extents.is_empty() {
            return Ok(Vec::new());
        }
        self.offset(extents.end - 1)?;
        let mut bytes = vec![0; (extents.end - extents.start) as usize * self.width];
        self.object.read(self.offset(extents.start)?, &mut bytes).await?;
        let entries = bytes.chunks_exact(self.width).map(|entry| {
            let mut value = [0; 8];
            value[..self.width].copy_from_slice(entry);
            u64::from_le_bytes(value)
        });
        extents.zip(entries).map(|(extent, entry)| self.decode(extent, entry)).collect()
    }

    /// Adds to `change`: the extent lies at `to` from now on.
    pub fn set(&self, change: Change, extent: u64, to: Mapping) -> Result<Change> {
        let place = match to.physical {
            Some(physical) if physical >= self.physical => {
                return Err(Error::invalid(format!("there is no physical extent {physical}")));
            }
            Some(physical) => physical + 1,
            None => 0,
        };
        if u64::from(to.flags) > FLAG_BITS {
            return Err(Error::invalid(format!("flags {:#x} are more than three bits", to.flags)));
        }
        let entry = place << FLAGS | u64::from(to.flags);
        Ok(change.write(self.id(), self.offset(extent)?, &entry.to_le_bytes()[..self.width]))
    }

    /// Adds to `change`: the extent's flags lose those in `clear`, then get those in `set`. Its place stays.
    pub fn flag(&self, change: Change, extent: u64, clear: u8, set: u8) -> Result<Change> {
        if u64::from(clear | set) > FLAG_BITS {
            return Err(Error::invalid("flags are three bits"));
        }
        // The lowest byte holds all flags.
        let update = move |byte: &mut [u8]| byte[0] = byte[0] & !clear | set;
        Ok(change.update(self.id(), self.offset(extent)?, 1, update))
    }

    fn offset(&self, extent: u64) -> Result<u64> {
        match extent < self.logical {
            true => Ok(extent * self.width as u64),
            false => Err(Error::invalid(format!("there is no logical extent {extent}"))),
        }
    }

    fn decode(&self, extent: u64, entry: u64) -> Result<Mapping> {
        let (place, flags) = (entry >> FLAGS, (entry & FLAG_BITS) as u8);
        match place <= self.physical {
            true => Ok(Mapping { physical: place.checked_sub(1), flags }),
            false => {
                let message = format!("logical extent {extent} lies at {}, beyond the end", place - 1);
                Err(Error::new(ErrorKind::Corrupt, message))
            }
        }
    }
}
