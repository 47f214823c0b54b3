//! The bytes of a copy: `docs/formats/superblock.md`.

use super::{
    COPY_LEN, DESCRIPTION_MAX, Damage, HEADER_LEN, Layout, MEMBERS_MAX, NAME_MAX, Place, Superblock, VERSION,
};
use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The bytes that a copy begins with.
pub const MAGIC: [u8; 8] = *b"LAMINASB";
/// Bit of `flags`: shut down cleanly.
const CLEAN: u32 = 1;
/// Bytes of the header that have a meaning.
const USED: usize = 256;
/// Where the checksum of the header stands, in every version.
const CHECKSUM_AT: usize = 16;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// Bytes that the checksum covers.
    length: U32,
    checksum: U32,
    flags: U32,
    hierarchy: [u8; 16],
    member: [u8; 16],
    generation: U64,
    created: U64,
    index: U32,
    members: U32,
    data_start: U64,
    data_length: U64,
    metadata_start: U64,
    metadata_length: U64,
    description_length: U32,
    description_checksum: U32,
    copy: U32,
    unused: U32,
    name: [u8; NAME_MAX],
    hierarchy_name: [u8; NAME_MAX],
    zeroes: [u8; HEADER_LEN - USED],
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// The bytes of a copy, without the zeroes that may follow. Names and description must not be longer than their limits:
/// the maker of a superblock has checked that.
pub fn encode(superblock: &Superblock, place: Place) -> Vec<u8> {
    let layout = &superblock.layout;
    let description = superblock.description.as_bytes();
    debug_assert!(description.len() <= DESCRIPTION_MAX);
    let mut header = Header {
        magic: MAGIC,
        version: VERSION.into(),
        length: (HEADER_LEN as u32).into(),
        checksum: 0.into(),
        flags: if superblock.clean { CLEAN } else { 0 }.into(),
        hierarchy: superblock.hierarchy.into_bytes(),
        member: superblock.member.into_bytes(),
        generation: superblock.generation.into(),
        created: superblock.created.into(),
        index: superblock.index.into(),
        members: superblock.members.into(),
        data_start: layout.data.start.into(),
        data_length: (layout.data.end - layout.data.start).into(),
        metadata_start: layout.metadata.start.into(),
        metadata_length: (layout.metadata.end - layout.metadata.start).into(),
        description_length: (description.len() as u32).into(),
        description_checksum: crc32c::crc32c(description).into(),
        copy: number(place).into(),
        unused: 0.into(),
        name: padded(&superblock.name),
        hierarchy_name: padded(&superblock.hierarchy_name),
        zeroes: [0; HEADER_LEN - USED],
    };
    header.checksum = crc32c::crc32c(header.as_bytes()).into();
    [header.as_bytes(), description].concat()
}

/// Reads a copy that was found at `place` on a device: at most [`COPY_LEN`] bytes are looked at.
pub fn decode(bytes: &[u8], place: Place) -> Result<Superblock, Damage> {
    let bytes = &bytes[..bytes.len().min(COPY_LEN as usize)];
    let Ok((header, rest)) = Header::ref_from_prefix(bytes) else { return Err(Damage::Absent) };
    if header.magic != MAGIC {
        return Err(Damage::Absent);
    }
    // Magic, version, length and checksum stand at the same places in all versions, so that a later version is told
    // from a damaged one.
    let length = header.length.get() as usize;
    if !(USED..=bytes.len()).contains(&length) || checksum(&bytes[..length]) != header.checksum.get() {
        return Err(Damage::Header);
    }
    if header.version.get() != VERSION {
        return Err(Damage::Newer(header.version.get()));
    }
    let wrong = |what| Err(Damage::Nonsense(what));
    let unused = header.unused.get() != 0 || header.zeroes.iter().any(|b| *b != 0);
    if length != HEADER_LEN || header.flags.get() & !CLEAN != 0 || unused {
        return wrong("its header has a length or flags that this version does not have");
    }
    if header.copy.get() != number(place) {
        return Err(Damage::Misplaced);
    }
    let Some(description) = rest.get(..header.description_length.get() as usize) else {
        return wrong("its description is longer than a copy");
    };
    if crc32c::crc32c(description) != header.description_checksum.get() {
        return Err(Damage::Description);
    }
    let (index, members, generation) = (header.index.get(), header.members.get(), header.generation.get());
    if index >= members || members > MEMBERS_MAX || generation == 0 {
        return wrong("the number of the member or its generation is impossible");
    }
    let Some(layout) = layout(header) else { return wrong("its layout is impossible") };
    let (name, hierarchy_name) = (text(&header.name), text(&header.hierarchy_name));
    let (Some(name), Some(hierarchy_name), Ok(description)) =
        (name, hierarchy_name, std::str::from_utf8(description))
    else {
        return wrong("its names or its description are no text");
    };
    Ok(Superblock {
        hierarchy: Uuid::from_bytes(header.hierarchy),
        hierarchy_name,
        member: Uuid::from_bytes(header.member),
        name,
        index,
        members,
        generation,
        created: header.created.get(),
        clean: header.flags.get() & CLEAN != 0,
        layout,
        description: description.to_owned(),
    })
}

fn number(place: Place) -> u32 {
    match place {
        Place::First => 0,
        Place::Second => 1,
    }
}

/// The checksum over a header whose own field counts as zero.
fn checksum(header: &[u8]) -> u32 {
    let (before, after) = header.split_at(CHECKSUM_AT);
    let zero = crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]);
    crc32c::crc32c_append(zero, &after[4..])
}

/// Areas that do not overlap, in multiples of [`COPY_LEN`], with space for data and for the second copy after it.
fn layout(header: &Header) -> Option<Layout> {
    let range = |start: u64, length: u64| {
        let end = start.checked_add(length)?;
        let whole = start.is_multiple_of(COPY_LEN) && end.is_multiple_of(COPY_LEN);
        (whole && end < i64::MAX as u64 - COPY_LEN).then_some(start..end)
    };
    let data = range(header.data_start.get(), header.data_length.get())?;
    let metadata = range(header.metadata_start.get(), header.metadata_length.get())?;
    let good = metadata.start >= COPY_LEN && metadata.end <= data.start && !data.is_empty();
    good.then_some(Layout { data, metadata })
}

fn padded(name: &str) -> [u8; NAME_MAX] {
    let mut bytes = [0; NAME_MAX];
    let len = name.len().min(NAME_MAX);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    bytes
}

/// A name of visible ASCII, followed by zeroes only. Names are printed: nothing else is let through.
fn text(field: &[u8; NAME_MAX]) -> Option<String> {
    let len = field.iter().position(|b| *b == 0).unwrap_or(NAME_MAX);
    let (name, zeroes) = field.split_at(len);
    let good = len > 0 && name.iter().all(u8::is_ascii_graphic) && zeroes.iter().all(|b| *b == 0);
    good.then(|| String::from_utf8_lossy(name).into_owned())
}
