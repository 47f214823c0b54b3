//! The bytes of an intent, version 1 (`docs/formats/intent.md`): sheets of 512 bytes, each complete in itself.
//!
//! Invariant: a sheet that is decoded here has a right checksum and the expected shape; no other is trusted.

use super::Bits;
use lamina_block::{Error, ErrorKind, Result};
use std::ops::Range;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a sheet: disks write it in whole or not at all.
pub const SHEET: usize = 512;
/// Bytes of bits in a sheet.
const BITS: usize = SHEET - size_of::<Head>();
/// Regions of a sheet.
const REGIONS: u64 = BITS as u64 * 8;
/// The most regions: 64 KiB of bits.
const REGIONS_MAX: u64 = 64 << 13;
/// Regions may have so many bytes.
pub const REGION: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 40;
/// The least region unless the user asks for another one.
const REGION_DEFAULT: u64 = 4 << 20;

const MAGIC: [u8; 8] = *b"LAMINTNT";
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U32,
    crc: U32,
    id: U64,
    size: U64,
    index: U32,
    shift: u8,
    zero: [u8; 3],
}

const CRC: usize = std::mem::offset_of!(Head, crc);

/// The shape of an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Drawn when the intent was made: sheets of another intent are not taken for its own.
    pub id: u64,
    /// Bytes of the device.
    pub size: u64,
    /// Bytes of a region: a power of two.
    pub region: u64,
}

/// Which sheets of an area are whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheets {
    /// By number.
    whole: Vec<bool>,
    /// The area has no sheet, not even a damaged one: it has other bytes, or none.
    pub gone: bool,
}

impl Sheets {
    /// True if no sheet is damaged or absent.
    pub fn are_whole(&self) -> bool {
        !self.whole.is_empty() && self.whole.iter().all(|whole| *whole)
    }

    /// Adds the sheets that are whole in `other`, which has the same shape.
    pub fn join(&mut self, other: &Sheets) {
        self.whole.resize(self.whole.len().max(other.whole.len()), false);
        self.whole.iter_mut().zip(&other.whole).for_each(|(whole, other)| *whole |= other);
    }
}

impl Shape {
    /// The region for `size` bytes by default: 4 MiB, or more where there would be too many.
    pub fn region_for(size: u64) -> u64 {
        size.div_ceil(REGIONS_MAX / 8).next_power_of_two().max(REGION_DEFAULT)
    }

    /// Fails unless the shape is possible.
    pub fn check(&self) -> Result<()> {
        let right = self.region.is_power_of_two() && REGION.contains(&self.region) && self.size > 0;
        match right && self.size.div_ceil(self.region) <= REGIONS_MAX {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "region: {} is not possible for {}; it is a power of two from {} to {}, and there are at most \
                 {REGIONS_MAX} \
                 regions",
                lamina_block::Bytes(self.region),
                lamina_block::Bytes(self.size),
                lamina_block::Bytes(*REGION.start()),
                lamina_block::Bytes(*REGION.end())
            ))),
        }
    }

    /// The number of sheets.
    pub fn sheets(&self) -> u64 {
        self.size.div_ceil(self.region).div_ceil(REGIONS)
    }

    /// Bytes of the area, written in pages of `page` bytes.
    pub fn area(&self, page: usize) -> u64 {
        (self.sheets() * SHEET as u64).next_multiple_of(page as u64)
    }

    /// The bytes of the device that a sheet covers.
    fn part(&self, index: u64) -> Range<u64> {
        let len = REGIONS.saturating_mul(self.region);
        (index.saturating_mul(len)).min(self.size)..(index + 1).saturating_mul(len).min(self.size)
    }

    /// The pages, of `page` bytes, of the sheets that cover `at`.
    pub(super) fn pages(&self, at: &Range<u64>, page: usize) -> Range<u64> {
        let len = REGIONS.saturating_mul(self.region).saturating_mul((page / SHEET) as u64);
        at.start / len..at.end.div_ceil(len)
    }

    /// The bytes of the device that a page covers.
    pub(super) fn page_part(&self, number: u64, page: usize) -> Range<u64> {
        let sheets = (page / SHEET) as u64;
        self.part(number * sheets).start..self.part(number * sheets + sheets - 1).end
    }

    /// Encodes page `number` of `bits`.
    pub fn encode(&self, number: u64, page: usize, bits: &Bits) -> Vec<u8> {
        let sheets = (page / SHEET) as u64;
        let within = (number * sheets..(number + 1) * sheets).map(|index| match index < self.sheets() {
            true => self.sheet(index, bits),
            false => vec![0; SHEET],
        });
        within.flatten().collect()
    }

    fn sheet(&self, index: u64, bits: &Bits) -> Vec<u8> {
        let head = Head {
            magic: MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            id: self.id.into(),
            size: self.size.into(),
            index: (index as u32).into(),
            shift: self.region.trailing_zeros() as u8,
            zero: [0; 3],
        };
        let mut sheet = head.as_bytes().to_vec();
        sheet.resize(SHEET, 0);
        let (part, mut from) = (self.part(index), self.part(index).start);
        while let Some(region) = bits.next(from).filter(|region| region.start < part.end) {
            let bit = (region.start - part.start) / self.region;
            sheet[size_of::<Head>() + (bit / 8) as usize] |= 1 << (bit % 8);
            from = region.end;
        }
        let crc = checksum(&sheet);
        sheet[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
        sheet
    }

    /// Adds the sheets of an area to `bits`. A damaged sheet adds all of its part.
    ///
    /// Returns the number of damaged sheets; fails with `Unsupported` if a sheet is of a later version.
    pub fn decode(&self, area: &[u8], bits: &mut Bits) -> Result<u64> {
        let sheets = self.look(area, bits)?;
        Ok(self.mark_damaged(&sheets, bits))
    }

    /// Adds the whole sheets of an area to `bits`, and nothing for the others.
    ///
    /// Fails with `Unsupported` if a sheet is of a later version.
    pub fn look(&self, area: &[u8], bits: &mut Bits) -> Result<Sheets> {
        let mut found = Sheets { whole: Vec::new(), gone: true };
        for index in 0..self.sheets() {
            let sheet = area.chunks_exact(SHEET).nth(index as usize).unwrap_or_default();
            found.gone &= !sheet.starts_with(&MAGIC);
            match self.read(index, sheet, bits) {
                Ok(()) => found.whole.push(true),
                Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
                Err(_) => found.whole.push(false),
            }
        }
        Ok(found)
    }

    /// Adds to `bits` the parts of those sheets that are not whole; returns their number.
    pub fn mark_damaged(&self, sheets: &Sheets, bits: &mut Bits) -> u64 {
        let whole = |index: u64| sheets.whole.get(index as usize).is_some_and(|whole| *whole);
        let damaged: Vec<u64> = (0..self.sheets()).filter(|index| !whole(*index)).collect();
        damaged.iter().for_each(|index| bits.add(&self.part(*index)));
        damaged.len() as u64
    }

    fn read(&self, index: u64, sheet: &[u8], bits: &mut Bits) -> Result<()> {
        let wrong = || Error::new(ErrorKind::Corrupt, "a sheet of the intent is damaged");
        let (head, flags) = Head::ref_from_prefix(sheet).map_err(|_| wrong())?;
        if head.magic != MAGIC || checksum(sheet) != head.crc.get() {
            return Err(wrong());
        }
        if head.version.get() != VERSION {
            let message = format!("an intent has format {}; this program knows {VERSION}", head.version);
            return Err(Error::unsupported(message));
        }
        let says = Shape {
            id: head.id.get(),
            size: head.size.get(),
            region: 1u64.checked_shl(head.shift.into()).unwrap_or(0),
        };
        if says != *self || u64::from(head.index.get()) != index || head.zero != [0; 3] {
            return Err(wrong());
        }
        let part = self.part(index);
        for (byte, flags) in flags.iter().enumerate().filter(|(_, flags)| **flags != 0) {
            for bit in (0..8).filter(|bit| flags >> bit & 1 == 1) {
                let start = part.start.saturating_add((byte as u64 * 8 + bit).saturating_mul(self.region));
                if start < part.end {
                    bits.add(&(start..start + 1));
                }
            }
        }
        Ok(())
    }
}

/// The checksum of a sheet as if its own four bytes were zero.
fn checksum(sheet: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&sheet[..CRC]), &[0; 4]);
    crc32c::crc32c_append(crc, &sheet[CRC + 4..])
}
