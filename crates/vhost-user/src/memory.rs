//! The guest's memory: the mappings from the front-end, and the guest's addresses into them.
//!
//! Invariants: every address that leaves this module is inside a mapping, and comes with the mapping's owner. Mappings
//! are shared with the guest, so their bytes may change at any time: they are only read and written through raw
//! pointers, and values that decide something are read once.
//!
//! Files are mapped by the control thread and unmapped by [`Disposal`]: both may take long. An access to a mapping must
//! not, so the file is memory, unless the export allows any file ([`Mapper`]).
//!
//! A front-end may shrink the file behind its memory (QEMU seals its own against it). The size is checked when the file
//! is mapped; if it shrinks later, [`crate::truncation`] puts zeroes in place of the memory, and the queues stop.

use crate::disposal::Disposal;
use crate::truncation::Guard;
use rustix::fs::fcntl_get_seals;
use rustix::mm::{MapFlags, ProtFlags, mmap, munlock, munmap};
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::rc::Rc;

/// The most regions a front-end may share. Each costs a mapping.
pub(crate) const REGIONS_MAX: usize = 256;

/// How the files of a front-end become memory.
#[derive(Clone, Default)]
pub(crate) struct Mapper {
    /// Any file is mapped. An access to the memory then waits for the file's disk, or for as long as the server of its
    /// file system likes, and with it the whole core.
    pub any_file: bool,
    pub disposal: Disposal,
}

impl Mapper {
    /// Maps `len` bytes from `offset` of `file`. For the control thread.
    pub fn map(&self, file: &File, offset: u64, len: u64) -> io::Result<Piece> {
        // Seals are asked of memory only (tmpfs, memfd, huge pages), and asking does not enter any file system.
        if !self.any_file && fcntl_get_seals(file).is_err() {
            let message = "a file that is not memory (memfd, tmpfs, huge pages) is not accepted: every access could \
                           wait for the file; the export's key memory-files = \"any\" allows any file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "memory beyond the address space");
        let offset = usize::try_from(offset).map_err(|_| invalid())?;
        let len = usize::try_from(len).map_err(|_| invalid())?;
        self.disposal.keep_up();
        let mapped = Mapped::new(file, offset.checked_add(len).ok_or_else(invalid)?)?;
        Ok(Piece { mapped: Some(mapped), offset, len, disposal: self.disposal.clone() })
    }
}

/// A part of a file mapped shared, for reading and writing. Unmapped with its last owner, a little later.
pub(crate) struct Piece {
    /// Always `Some`, until the drop.
    mapped: Option<Mapped>,
    offset: usize,
    len: usize,
    disposal: Disposal,
}

impl Piece {
    /// A run of its bytes.
    pub fn at(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: the mapping has `self.offset + self.len` bytes, and `offset` is inside of it, checked above.
        self.mapped.as_ref().map(|mapped| unsafe { mapped.start.add(self.offset + offset) })
    }

    /// True if the file shrank and the memory is not shared any more.
    pub fn is_lost(&self) -> bool {
        self.mapped.as_ref().is_some_and(|mapped| mapped.guard.is_lost())
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(mapped) = self.mapped.take() {
            self.disposal.take(mapped);
        }
    }
}

/// The first bytes of a file, mapped.
struct Mapped {
    start: NonNull<u8>,
    mapped: usize,
    guard: Guard,
}

// SAFETY: a mapping belongs to the process; its address is as good on any thread.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first `len` bytes of `file`.
    ///
    /// Always from offset zero: the offsets that front-ends give within files on huge pages are not multiples of the
    /// huge page, and could not be mapped.
    fn new(file: &File, len: usize) -> io::Result<Mapped> {
        let metadata = file.metadata()?;
        if len == 0 || metadata.len() < len as u64 {
            let message = format!("a file of {} bytes cannot give {len} bytes of memory", metadata.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        // Mappings of huge pages can only be unmapped in whole ones.
        let page = usize::try_from(metadata.blksize()).unwrap_or(4096).max(4096);
        let mapped = len.checked_next_multiple_of(page).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses; nothing existing is replaced.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // From here on it is unmapped by its drop.
        let mut mapping = Mapped { start, mapped, guard: Guard::default() };
        // A process with keys locks its memory; the guest's may go to swap as before.
        // SAFETY: the mapping that was just made; nothing in it changes.
        unsafe { munlock(start.as_ptr().cast(), mapped)? };
        mapping.guard = Guard::new(start, mapped)?;
        Ok(mapping)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.guard = Guard::default();
        // SAFETY: mapped in `new` with this length, and without an owner now.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
        if let Err(e) = unmapped {
            tracing::warn!("memory of {} bytes could not be unmapped: {e}", self.mapped);
        }
    }
}

/// Where a region is, as the front-end describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionAddress {
    /// First address as the guest sees it.
    pub guest: u64,
    /// First address as the front-end sees it.
    pub user: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A run of guest memory in one mapping.
#[derive(Clone)]
pub(crate) struct Region {
    address: RegionAddress,
    start: NonNull<u8>,
    owner: Rc<dyn Any>,
}

impl Region {
    /// A region that is mapped here.
    pub fn new(address: RegionAddress, piece: Piece) -> io::Result<Region> {
        let ends = |start: u64| start.checked_add(address.len).is_some();
        let whole = usize::try_from(address.len).ok().and_then(|len| piece.at(0, len));
        match whole {
            Some(start) if address.len > 0 && ends(address.guest) && ends(address.user) => {
                Ok(Region { address, start, owner: Rc::new(piece) })
            }
            _ => {
                let message = "a memory region is empty or ends beyond the last address";
                Err(io::Error::new(io::ErrorKind::InvalidInput, message))
            }
        }
    }

    /// The owner that keeps the memory mapped.
    pub fn owner(&self) -> &Rc<dyn Any> {
        &self.owner
    }
}

/// A run of guest memory inside one region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The address of the mapping.
    pub start: NonNull<u8>,
    /// Length in bytes, not zero.
    pub len: u32,
    /// Which region of the [`Memory`] it was found in.
    pub region: u32,
    /// Its address as the guest sees it.
    pub guest: u64,
}

/// All of the guest's memory, as the front-end last described it.
#[derive(Default)]
pub(crate) struct Memory {
    /// Rising in guest addresses, without overlap.
    regions: Vec<Region>,
}

impl Memory {
    /// Memory made of `regions`; an error if there are too many or any two overlap.
    pub fn new(mut regions: Vec<Region>) -> io::Result<Memory> {
        regions.sort_by_key(|r| r.address.guest);
        let overlap = |pair: &[Region]| pair[0].address.guest + pair[0].address.len > pair[1].address.guest;
        if regions.len() > REGIONS_MAX || regions.windows(2).any(overlap) {
            let message = format!("memory regions overlap, or are more than {REGIONS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Memory { regions })
    }

    /// True if some of it is not shared with the guest any more.
    pub fn is_lost(&self) -> bool {
        let lost = |r: &Region| r.owner.downcast_ref::<Piece>().is_some_and(Piece::is_lost);
        self.regions.iter().any(lost)
    }

    /// The same memory and `region`.
    pub fn with(&self, region: Region) -> io::Result<Memory> {
        let mut regions = self.regions.clone();
        regions.push(region);
        Memory::new(regions)
    }

    /// The same memory without the region at `address`; an error if there is none.
    pub fn without(&self, address: RegionAddress) -> io::Result<Memory> {
        let left: Vec<Region> = self.regions.iter().filter(|r| r.address != address).cloned().collect();
        if left.len() == self.regions.len() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such memory region"));
        }
        Memory::new(left)
    }

    /// The region that a [`Span`] was found in.
    pub fn region(&self, span: &Span) -> &Region {
        &self.regions[span.region as usize]
    }

    /// Finds the region with `guest`. Guests have few regions, and most memory is in the first or last.
    #[inline]
    fn find(&self, guest: u64) -> Option<usize> {
        if self.regions.len() > 8 {
            let after = self.regions.partition_point(|r| r.address.guest <= guest);
            let at = after.checked_sub(1)?;
            return (guest - self.regions[at].address.guest < self.regions[at].address.len).then_some(at);
        }
        self.regions.iter().position(|r| guest.wrapping_sub(r.address.guest) < r.address.len)
    }

    /// Appends to `spans` what the guest calls `guest..guest + len`. False if a part of the range is not memory;
    /// earlier appended pieces stay.
    #[inline]
    pub fn spans(&self, mut guest: u64, mut len: u32, spans: &mut Vec<Span>) -> bool {
        while len > 0 {
            let Some(at) = self.find(guest) else { return false };
            let region = &self.regions[at];
            let offset = guest - region.address.guest;
            let here = (region.address.len - offset).min(len as u64) as u32;
            // SAFETY: `offset` lies inside the region's mapping, found above.
            let start = unsafe { region.start.add(offset as usize) };
            spans.push(Span { start, len: here, region: at as u32, guest });
            len -= here;
            // May wrap only after the last byte of the address space, where no region continues.
            guest = guest.wrapping_add(here as u64);
        }
        true
    }

    /// The mapping of the guest's `guest..guest + len`, if that is all in one region.
    pub fn guest(&self, guest: u64, len: usize) -> Option<NonNull<u8>> {
        let region = &self.regions[self.find(guest)?];
        inside(region, guest - region.address.guest, len)
    }

    /// The mapping of the front-end's `user..user + len`, if that is all in one region, and its owner.
    pub fn user(&self, user: u64, len: usize) -> Option<(NonNull<u8>, Rc<dyn Any>)> {
        let region = self.regions.iter().find(|r| user.wrapping_sub(r.address.user) < r.address.len)?;
        let start = inside(region, user - region.address.user, len)?;
        Some((start, Rc::clone(&region.owner)))
    }
}

impl fmt::Debug for Memory {
    /// The regions' addresses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address =
            |r: &Region| format!("{:#x}+{:#x} at {:#x}", r.address.guest, r.address.len, r.address.user);
        f.debug_list().entries(self.regions.iter().map(address)).finish()
    }
}

fn inside(region: &Region, offset: u64, len: usize) -> Option<NonNull<u8>> {
    if len as u64 > region.address.len - offset {
        return None;
    }
    // SAFETY: `offset` and the `len` bytes after it lie inside the region's mapping.
    Some(unsafe { region.start.add(offset as usize) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::memfd;

    fn map(address: RegionAddress, file: &File, offset: u64) -> io::Result<Region> {
        Region::new(address, Mapper::default().map(file, offset, address.len)?)
    }

    #[test]
    fn only_memory_is_mapped_unless_any_file_may_be() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = File::create_new(folder.path().join("disk")).unwrap();
        file.set_len(4096).unwrap();
        let file = File::options().read(true).write(true).open(folder.path().join("disk")).unwrap();
        let e = Mapper::default().map(&file, 0, 4096).err().expect("a disk is slow");
        assert!(e.to_string().contains("memory-files"), "{e}");
        let any = Mapper { any_file: true, ..Mapper::default() };
        assert!(any.map(&file, 0, 4096).is_ok());
        assert!(Mapper::default().map(&memfd(4096), 0, 4096).is_ok());
    }

    fn region(guest: u64, len: u64) -> Region {
        map(RegionAddress { guest, user: guest + (1 << 40), len }, &memfd(1 << 20), 0).unwrap()
    }

    #[test]
    fn a_range_over_two_regions_is_two_spans() {
        let memory = Memory::new(vec![region(8192, 4096), region(4096, 4096)]).unwrap();
        let mut spans = Vec::new();
        assert!(memory.spans(8000, 1000, &mut spans));
        assert_eq!(spans.iter().map(|s| (s.guest, s.len)).collect::<Vec<_>>(), [(8000, 192), (8192, 808)]);
        assert!(memory.guest(8000, 192).is_some());
        assert!(memory.guest(8000, 193).is_none());
        assert!(memory.user((1 << 40) + 8192, 4096).is_some());
        assert!(memory.user((1 << 40) + 8192, 4097).is_none());
    }

    #[test]
    fn nothing_outside_is_found() {
        for count in [1, 20] {
            let regions = (1..=count).map(|n| region(n * 8192, 4096)).collect();
            let memory = Memory::new(regions).unwrap();
            let mut spans = Vec::new();
            for (guest, len) in [(0, 1), (8191, 2), (8192, 4097), (12288, 1), (u64::MAX, 1), (u64::MAX, 512)]
            {
                assert!(!memory.spans(guest, len, &mut spans), "{guest} {len}");
            }
            assert!(memory.spans(8192, 4096, &mut spans));
            assert!(memory.spans(count * 8192 + 4095, 1, &mut spans));
            assert!(memory.spans(77, 0, &mut spans), "nothing is everywhere");
        }
    }

    #[test]
    fn regions_that_cannot_be_are_refused() {
        let address = |guest, len| RegionAddress { guest, user: 0, len };
        let file = memfd(8192);
        for (a, offset) in [
            (address(0, 0), 0),
            (address(0, 8193), 0),
            (address(0, 4096), 4097),
            (address(u64::MAX - 1, 4096), 0),
            (address(0, u64::MAX), 1),
            (address(0, 4096), u64::MAX),
        ] {
            assert!(map(a, &file, offset).is_err(), "{a:?} {offset}");
        }
        assert!(Memory::new(vec![region(0, 4096), region(4095, 4096)]).is_err());
    }

    #[test]
    fn memory_whose_file_shrinks_is_zeroes_and_lost() {
        let file = memfd(1 << 16);
        let address = RegionAddress { guest: 0, user: 0, len: 1 << 16 };
        let memory = Memory::new(vec![map(address, &file, 0).unwrap()]).unwrap();
        let other = Memory::new(vec![region(0, 4096)]).unwrap();
        let last = memory.guest(0xffff, 1).unwrap();
        // SAFETY: inside the region.
        unsafe { last.write_volatile(7) };
        assert!(!memory.is_lost());
        file.set_len(0).unwrap();
        let before = crate::truncation::lost();
        // SAFETY: inside the region.
        assert_eq!(unsafe { last.read_volatile() }, 0);
        // SAFETY: inside the region.
        unsafe { memory.guest(0, 1).unwrap().write_volatile(1) };
        assert!(memory.is_lost() && !other.is_lost());
        assert_ne!(crate::truncation::lost(), before);
    }

    #[test]
    fn memory_stays_while_a_region_is_held() {
        let region = region(0, 4096);
        let memory = Memory::new(vec![region.clone()]).unwrap();
        let empty = memory.without(region.address).unwrap();
        assert!(empty.without(region.address).is_err());
        drop(memory);
        // SAFETY: `region` keeps the mapping.
        unsafe { region.start.write_volatile(1) };
    }
}
