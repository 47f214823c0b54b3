//! The bytes of the journal.

use super::*;
use crate::parity::journal::{checksum, cut};
use crate::parity::stripe::Write;
use crate::parity::{Record, Shape};

const SHAPE: Shape = Shape { slots: 4, head: 4096, load: 8192 };

fn record() -> Record {
    let writes = vec![(2, 12288, vec![0xAA; 512]), (0, 12288, vec![0xBB; 1024])];
    Record { id: 0x0123_4567_89AB_CDEF, epoch: 0x1122_3344_5566_7788, sequence: 9, first: 7, writes }
}

fn golden() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parity-journal-1.bin")
}

#[test]
fn version_1_stays_readable() {
    let bytes = record().encode(4096);
    if std::env::var_os("LAMINA_BLESS").is_some() {
        std::fs::write(golden(), &bytes).expect("written");
    }
    assert!(std::fs::read(golden()).expect("the golden file") == bytes);
    assert_eq!(Record::decode(&SHAPE, &bytes).expect("read"), Some(record()));
}

#[test]
fn what_is_damaged_is_no_record() {
    let bytes = record().encode(4096);
    for at in (0..bytes.len()).filter(|at| *at < 200 || at % 97 == 0) {
        let mut wrong = bytes.clone();
        wrong[at] ^= 0x10;
        assert_eq!(Record::decode(&SHAPE, &wrong).expect("none"), None, "byte {at}");
    }
    for len in [0, 10, 64, 4096, bytes.len() - 1] {
        assert_eq!(Record::decode(&SHAPE, &bytes[..len]).expect("none"), None);
    }
    let long = Record { writes: vec![(0, 0, vec![1; 8704])], ..record() };
    assert_eq!(Record::decode(&SHAPE, &long.encode(4096)).expect("none"), None);
}

/// A page of a metadata store ends with its own CRC-32C. What a power loss leaves of two records with such
/// pages, the head and a page of one and a page of the other, is none.
#[test]
fn half_a_record_of_sealed_pages_is_no_record() {
    let sealed = |byte: u8| {
        let mut page = vec![byte; 4092];
        page.extend(crc32c::crc32c(&page).to_le_bytes());
        page
    };
    let of = |byte| Record { writes: vec![(0, 0, sealed(byte)), (1, 0, sealed(byte))], ..record() };
    let (before, after) = (of(1).encode(4096), of(2).encode(4096));
    let torn = [&before[..4096], &after[4096..8192], &before[8192..]].concat();
    assert_eq!(Record::decode(&SHAPE, &before).expect("read"), Some(of(1)));
    assert_eq!(Record::decode(&SHAPE, &torn).expect("none"), None);
}

#[test]
fn a_later_version_is_refused() {
    let mut bytes = record().encode(4096);
    bytes[8] = 2;
    let sum = checksum(&bytes);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(Record::decode(&SHAPE, &bytes).unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Groups fit, are of the same rows on all columns, and are everything.
#[test]
fn writes_are_cut_to_fit() {
    let write = |column, start: u64, len: usize| Write { column, start, bytes: Buf::from_vec(pattern(len)) };
    let writes = [write(0, 0, 65536), write(1, 512, 4096), write(2, 0, 65536)];
    let groups = cut(&SHAPE, 512, &(0..65536), &writes);
    let mut next = 0;
    let mut sum = 0;
    for (rows, group) in groups {
        assert_eq!(rows.start, next);
        next = rows.end;
        let load: usize = group.iter().map(|write| write.bytes.len()).sum();
        assert!(load as u64 <= SHAPE.load);
        sum += load;
    }
    assert_eq!((next, sum), (65536, 65536 * 2 + 4096));
}
