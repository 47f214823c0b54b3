//! Superblocks: any bytes are the two copies on a device, and a few devices are put together.
//!
//! The first byte says how many devices there are and whether their checksums are made good, so that what
//! lies behind them is fuzzed too. What must hold: no panic; a copy that is taken is written again byte by
//! byte as it was; what is judged to be a hierarchy carries one state, and no member of it is out; a
//! description that is printed is a file or is refused.

#![no_main]

use lamina_metadata::member::{Candidate, gather, judge};
use lamina_metadata::superblock::{Found, Place, decode, encode};
use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;

const HEADER: usize = 4096;
const COPY: usize = 64 << 10;
/// The smallest member.
const SIZE: usize = (1 << 20) + 2 * COPY;

/// Spreads the input over a header, whose bytes behind 256 are zeroes, and a description, and makes checksums good.
fn copy(input: &[u8], seal: bool) -> Vec<u8> {
    let used = input.len().min(256);
    let mut bytes = vec![0; HEADER];
    bytes[..used].copy_from_slice(&input[..used]);
    bytes.extend(&input[used..input.len().min(COPY - HEADER)]);
    if seal {
        bytes[..8].copy_from_slice(b"LAMINASB");
        bytes[12..16].copy_from_slice(&(HEADER as u32).to_le_bytes());
        let len = (bytes.len() - HEADER) as u32;
        bytes[112..116].copy_from_slice(&len.to_le_bytes());
        let description = crc32c::crc32c(&bytes[HEADER..]);
        bytes[116..120].copy_from_slice(&description.to_le_bytes());
        bytes[16..20].fill(0);
        let header = crc32c::crc32c(&bytes[..HEADER]);
        bytes[16..20].copy_from_slice(&header.to_le_bytes());
    }
    bytes
}

fn device(input: &[u8], seal: bool) -> Found {
    let (first, second) = input.split_at(input.len() / 2);
    let copies = [copy(first, seal), copy(second, seal)];
    for (bytes, place) in copies.iter().zip(Place::ALL) {
        if let Ok(taken) = decode(bytes, place) {
            let again = encode(&taken, place);
            assert!(again == bytes[..again.len()], "a copy is written unlike it was read");
        }
    }
    Found::look(SIZE as u64, |at, len| {
        let mut bytes = copies[usize::from(at > 0)].clone();
        bytes.resize(len, 0);
        Ok(bytes)
    })
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let count = usize::from(mode >> 1) % 4 + 1;
    let parts = rest.chunks(rest.len().div_ceil(count).max(1));
    let candidates: Vec<Candidate> = parts
        .enumerate()
        .map(|(n, part)| Candidate {
            device: format!("d{n}"),
            found: device(part, mode & 1 == 1),
            anew: false,
        })
        .collect();
    let Ok(found) = gather(&candidates) else { return };
    let named: Vec<Candidate> = found
        .members
        .iter()
        .map(|(name, n)| Candidate { device: name.clone(), found: candidates[*n].found.clone(), anew: false })
        .collect();
    let Ok(assembly) = judge(&found.superblock.hierarchy_name, &named, &["e"], mode & 128 != 0) else {
        return;
    };
    let first = &assembly.members[0];
    for member in &assembly.members {
        assert!(named.iter().any(|candidate| candidate.device == member.name));
        assert!(!assembly.evicted.contains_key(&member.name) && !assembly.lost.contains_key(&member.name));
        assert!(member.hierarchy == first.hierarchy && member.generation == first.generation);
        assert!(member.description == first.description);
    }
    assert!(assembly.back.iter().all(|member| assembly.evicted.contains_key(&member.name)));
    let paths: BTreeMap<String, String> =
        named.iter().map(|c| (c.device.clone(), "/dev/x".to_owned())).collect();
    if let Some(text) = lamina_graph::with_paths(&first.description, &paths) {
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    }
});
