//! A split virtqueue's three tables in guest memory (virtio 1.2, section 2.7), and nothing about what they mean.
//!
//! Invariant: every access is inside the tables and aligned, whatever values the guest wrote into them.

use crate::memory::Memory;
use crate::store;
use std::any::Any;
use std::ptr::NonNull;
use std::rc::Rc;

/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_LEN: usize = 16;

/// Where the front-end says that the tables are, in its own addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingAddress {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    /// Guest address of the used ring, to be logged when it changes; `None` if there is no log.
    pub log: Option<u64>,
}

/// A descriptor, read once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub address: u64,
    pub len: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    #[inline(always)]
    pub fn parse(bytes: [u8; DESCRIPTOR_LEN]) -> Descriptor {
        let low = u128::from_le_bytes(bytes);
        Descriptor {
            address: low as u64,
            len: (low >> 64) as u32,
            flags: (low >> 96) as u16,
            next: (low >> 112) as u16,
        }
    }
}

/// The tables, mapped.
pub(crate) struct Ring {
    size: u16,
    descriptors: NonNull<u8>,
    available: NonNull<u16>,
    used: NonNull<u8>,
    /// Guest address of the used ring, if its changes are to be logged.
    pub log: Option<u64>,
    _owners: [Rc<dyn Any>; 3],
}

impl Ring {
    /// Finds the tables of a queue of `size` entries; a sentence about what is wrong if they cannot be there.
    pub fn map(size: u16, at: &RingAddress, memory: &Memory) -> Result<Ring, String> {
        if !size.is_power_of_two() || size > 1 << 15 {
            return Err(format!("a queue cannot have {size} entries"));
        }
        let entries = size as usize;
        let table = |name: &str, user: u64, len: usize, align: usize| match memory.user(user, len) {
            Some((start, owner)) if (start.as_ptr() as usize).is_multiple_of(align) => Ok((start, owner)),
            Some(_) => Err(format!("the {name} at {user:#x} is not aligned")),
            None => Err(format!("the {name} at {user:#x} is not in the guest's memory")),
        };
        let (descriptors, d) = table("descriptor table", at.descriptors, entries * DESCRIPTOR_LEN, 16)?;
        let (available, a) = table("available ring", at.available, 6 + entries * 2, 2)?;
        let (used, u) = table("used ring", at.used, 6 + entries * 8, 4)?;
        Ok(Ring { size, descriptors, available: available.cast(), used, log: at.log, _owners: [d, a, u] })
    }

    /// Number of entries.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// A descriptor of the table. `index` must be less than the size.
    #[inline(always)]
    pub fn descriptor(&self, index: u16) -> Descriptor {
        assert!(index < self.size);
        // SAFETY: inside the table, checked above and when the ring was mapped. Guests may change it meanwhile.
        let bytes = unsafe {
            let at = self.descriptors.add(index as usize * DESCRIPTOR_LEN);
            at.cast::<[u8; DESCRIPTOR_LEN]>().read_volatile()
        };
        Descriptor::parse(bytes)
    }

    #[inline(always)]
    fn available(&self, word: usize) -> NonNull<u16> {
        debug_assert!(word < self.size as usize + 3);
        // SAFETY: flags, index, `size` heads and the event: all inside the ring.
        unsafe { self.available.add(word) }
    }

    /// The index up to which the guest has made chains available.
    #[inline(always)]
    pub fn available_index(&self) -> u16 {
        // SAFETY: inside the ring, aligned when it was mapped.
        u16::from_le(unsafe { store::acquire(self.available(1)) })
    }

    /// The head of the chain at `index`; anything at all.
    #[inline(always)]
    pub fn available_head(&self, index: u16) -> u16 {
        let slot = (index & (self.size - 1)) as usize;
        // SAFETY: inside the ring, aligned when it was mapped.
        u16::from_le(unsafe { self.available(2 + slot).read_volatile() })
    }

    /// The guest's flags: whether it wants to be interrupted (without event index).
    pub fn available_flags(&self) -> u16 {
        // SAFETY: inside the ring, aligned when it was mapped.
        u16::from_le(unsafe { store::acquire(self.available(0)) })
    }

    /// The used index at which the guest wants to be interrupted (with event index).
    pub fn used_event(&self) -> u16 {
        // SAFETY: inside the ring, aligned when it was mapped.
        u16::from_le(unsafe { store::acquire(self.available(2 + self.size as usize)) })
    }

    #[inline(always)]
    fn used<T>(&self, byte: usize) -> NonNull<T> {
        debug_assert!(byte + size_of::<T>() <= 6 + self.size as usize * 8);
        // SAFETY: inside the ring.
        unsafe { self.used.add(byte) }.cast()
    }

    /// The index up to which chains are used.
    pub fn used_index(&self) -> u16 {
        // SAFETY: inside the ring, aligned when it was mapped.
        u16::from_le(unsafe { store::acquire(self.used(2)) })
    }

    /// Writes the used entry at `index`; the offset of the change within the used ring.
    #[inline(always)]
    pub fn put_used(&self, index: u16, head: u16, len: u32) -> u64 {
        let offset = 4 + (index & (self.size - 1)) as usize * 8;
        // SAFETY: inside the ring; entries begin at a multiple of four, as the ring does.
        unsafe {
            store::put(self.used::<u32>(offset), (head as u32).to_le());
            store::put(self.used::<u32>(offset + 4), len.to_le());
        }
        offset as u64
    }

    /// Makes the used entries before `index` visible to the guest.
    pub fn publish_used(&self, index: u16) {
        // SAFETY: inside the ring, aligned when it was mapped.
        unsafe { store::publish(self.used(2), index.to_le()) }
    }

    /// Tells the guest whether it need kick (without event index).
    pub fn set_used_flags(&self, flags: u16) {
        // SAFETY: inside the ring, aligned when it was mapped.
        unsafe { store::publish(self.used(0), flags.to_le()) }
    }

    /// Asks the guest to kick when it makes the chain at `index` available (with event index); the offset of what
    /// changed within the used ring.
    pub fn set_available_event(&self, index: u16) -> u64 {
        let offset = 4 + self.size as usize * 8;
        // SAFETY: inside the ring, aligned when it was mapped.
        unsafe { store::publish(self.used(offset), index.to_le()) }
        offset as u64
    }
}
