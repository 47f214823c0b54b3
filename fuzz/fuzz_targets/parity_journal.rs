//! A journal of a parity: any bytes are the slot that is found.
//!
//! The first byte says whether the record gets a right checksum, so that what stands behind it is fuzzed.
//! What must hold: no panic, memory within bounds; a record that is believed is the same when it is written
//! again and read.

#![no_main]

use lamina_layers::redundancy::parity::{Record, Shape};
use libfuzzer_sys::fuzz_target;

const SHAPE: Shape = Shape { slots: 2, head: 4096, load: 8192 };

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let mut slot = rest.to_vec();
    if mode & 1 == 1 {
        slot.resize(slot.len().clamp(4096, 12288), 0);
        slot[..8].copy_from_slice(b"LAMPJRNL");
        slot[8..12].copy_from_slice(&1u32.to_le_bytes());
        // So many writes as there may be, each of no more bytes than there are behind the head.
        slot[48..52].copy_from_slice(&u32::from(mode >> 1).to_le_bytes());
        let mut load = 0usize;
        for write in 0..usize::from(mode >> 1) {
            let len = 56 + write * 16 + 8;
            let bytes = usize::from(slot[len]).min(slot.len() - 4096 - load);
            slot[len..len + 4].copy_from_slice(&(bytes as u32).to_le_bytes());
            load += bytes;
        }
        let record = 4096 + load;
        slot[12..16].fill(0);
        let sum = xxhash_rust::xxh3::xxh3_64(&slot[..record]) as u32;
        slot[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    match Record::decode(&SHAPE, &slot) {
        Ok(Some(record)) => {
            let load: usize = record.writes.iter().map(|(_, _, bytes)| bytes.len()).sum();
            assert!(load as u64 <= SHAPE.load && load + 4096 <= slot.len());
            let again = Record::decode(&SHAPE, &record.encode(4096));
            assert_eq!(again.ok().flatten(), Some(record));
        }
        Ok(None) => assert!(mode & 1 == 0, "a record with a right checksum is one"),
        Err(_) => assert!(mode & 1 == 0),
    }
});
