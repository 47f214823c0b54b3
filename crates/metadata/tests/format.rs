//! The bytes of a superblock: the golden file of version 1, every field at its place, and every damage noticed.

#[path = "common/members.rs"]
mod common;

use common::superblock;
use lamina_metadata::superblock::{
    COPY_LEN, DESCRIPTION_MAX, Damage, Found, Layout, Place, Superblock, Uuid, decode, encode,
};
use std::path::Path;

fn sample() -> Superblock {
    Superblock {
        hierarchy: Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff),
        hierarchy_name: "vm1".into(),
        member: Uuid::from_u128(0x01234567_89ab_4cde_8f01_23456789abcd),
        name: "left".into(),
        index: 1,
        members: 3,
        generation: 0x1122,
        created: 1_700_000_000,
        clean: true,
        layout: Layout { data: 1 << 20..15 << 20, metadata: 64 << 10..1 << 20 },
        description: "[hierarchy]\nname = \"vm1\"\n".into(),
    }
}

#[test]
fn the_golden_file_is_what_is_written_and_is_read() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/superblock-1.bin");
    let written = encode(&sample(), Place::First);
    if std::env::var_os("LAMINA_REWRITE").is_some_and(|v| v == "1") && !path.exists() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &written).expect("a file");
    }
    let golden = std::fs::read(&path).expect("the golden file");
    assert!(golden == written, "version 1 has changed: that needs a new version, and this file stays");
    assert_eq!(decode(&golden, Place::First), Ok(sample()));
}

#[test]
fn every_field_is_where_the_drawing_has_it() {
    let bytes = encode(&sample(), Place::Second);
    let at = |range: std::ops::Range<usize>| &bytes[range];
    let u32_at = |n: usize| u32::from_le_bytes(bytes[n..n + 4].try_into().expect("four bytes"));
    let u64_at = |n: usize| u64::from_le_bytes(bytes[n..n + 8].try_into().expect("eight bytes"));
    assert_eq!(at(0..8), b"LAMINASB");
    assert_eq!([u32_at(8), u32_at(12), u32_at(20)], [1, 4096, 1]);
    assert_eq!(at(24..40), sample().hierarchy.as_bytes());
    assert_eq!(at(40..56), sample().member.as_bytes());
    assert_eq!([u64_at(56), u64_at(64)], [0x1122, 1_700_000_000]);
    assert_eq!([u32_at(72), u32_at(76)], [1, 3]);
    assert_eq!([u64_at(80), u64_at(88), u64_at(96), u64_at(104)], [1 << 20, 14 << 20, 64 << 10, 960 << 10]);
    assert_eq!(u32_at(112) as usize, sample().description.len());
    assert_eq!(u32_at(116), crc32c::crc32c(sample().description.as_bytes()));
    assert_eq!([u32_at(120), u32_at(124)], [1, 0]);
    assert_eq!((at(128..133), at(192..196)), (&b"left\0"[..], &b"vm1\0"[..]));
    assert!(at(256..4096).iter().all(|b| *b == 0));
    assert_eq!(&bytes[4096..], sample().description.as_bytes());
    let mut header = bytes[..4096].to_vec();
    header[16..20].fill(0);
    assert_eq!(u32_at(16), crc32c::crc32c(&header));
}

#[test]
fn no_bit_turns_unnoticed() {
    let bytes = encode(&sample(), Place::First);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let read = decode(&damaged, Place::First);
        assert!(
            matches!(read, Err(Damage::Absent | Damage::Header | Damage::Description)),
            "{bit}: {read:?}"
        );
    }
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len], Place::First).is_err(), "{len}");
    }
}

#[test]
fn the_largest_description_fits() {
    let large = Superblock { description: "x".repeat(DESCRIPTION_MAX), ..sample() };
    let bytes = encode(&large, Place::First);
    assert_eq!(bytes.len() as u64, COPY_LEN);
    assert_eq!(decode(&bytes, Place::First), Ok(large));
}

/// A disk in memory with a member on it.
fn disk(size: u64, superblock: &Superblock, places: &[Place]) -> Vec<u8> {
    let mut disk = vec![0; size as usize];
    for place in places {
        let (at, bytes) = (place.offset(&superblock.layout) as usize, encode(superblock, *place));
        disk[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    disk
}

fn look(disk: &[u8]) -> Found {
    Found::look(disk.len() as u64, |at, len| Ok(disk[at as usize..at as usize + len].to_vec()))
}

#[test]
fn the_newest_whole_copy_counts() {
    let of = |generation| superblock(1, 0, generation, "old");
    let both = disk(common::SIZE, &of(3), &Place::ALL);
    assert_eq!(look(&both).newest(), Some(&of(3)));
    let mut newer_second = both.clone();
    let at = Place::Second.offset(&of(4).layout) as usize;
    let bytes = encode(&of(4), Place::Second);
    newer_second[at..at + bytes.len()].copy_from_slice(&bytes);
    assert_eq!(look(&newer_second).newest(), Some(&of(4)));
    newer_second[at + 300] ^= 1;
    assert_eq!(look(&newer_second).newest(), Some(&of(3)));
    assert_eq!(look(&newer_second).half(), Some((Place::Second, &Damage::Header)));
}

#[test]
fn a_device_that_grew_is_known_by_its_first_copy_only() {
    let one = superblock(1, 0, 1, "one");
    let mut grown = disk(common::SIZE, &one, &Place::ALL);
    grown.resize(4 << 20, 0);
    assert_eq!(look(&grown).copies, [Ok(one.clone()), Ok(one.clone())]);
    grown[0] = 0;
    assert!(look(&grown).is_absent());
    // The end need not be a whole copy's place.
    let odd = disk(common::SIZE + 12_345, &one, &[Place::Second]);
    assert_eq!(look(&odd).newest(), Some(&one));
    assert_eq!(Layout::of_size(common::SIZE + 12_345), Ok(one.layout));
}

#[test]
fn a_device_of_any_size_is_looked_at() {
    for size in [0, 1, 511, 4095, 65_535, 65_536, 131_071, 131_072, 1 << 20] {
        assert!(look(&vec![0; size]).is_absent(), "{size}");
        assert!(Layout::of_size(size as u64).is_err(), "{size}");
    }
}
