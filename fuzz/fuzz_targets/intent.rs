//! An intent: any bytes are the area that is found.
//!
//! The first bytes say what the intent is of, and whether sheets get right checksums, so that what stands
//! behind them is fuzzed. What must hold: no panic, memory within bounds; every bit is of a region that there
//! is; what is not damaged is the same when it is written again.

#![no_main]

use lamina_layers::kit::intent::{Bits, SHEET, Shape};
use libfuzzer_sys::fuzz_target;

fn seal(sheet: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&sheet[..12]), &[0; 4]);
    let crc = crc32c::crc32c_append(crc, &sheet[16..]);
    sheet[12..16].copy_from_slice(&crc.to_le_bytes());
}

fuzz_target!(|input: &[u8]| {
    let [mode, a, b, c, shift, rest @ ..] = input else { return };
    let size = u64::from(u32::from_le_bytes([0, *a, *b, *c])) + 512;
    let region = 1u64.checked_shl(u32::from(*shift)).unwrap_or(0);
    let shape = Shape { id: 7, size, region };
    if shape.check().is_err() {
        return;
    }
    let mut area = rest.to_vec();
    if mode & 1 == 1 {
        for (index, sheet) in area.chunks_exact_mut(SHEET).enumerate() {
            sheet[..8].copy_from_slice(b"LAMINTNT");
            sheet[8..12].copy_from_slice(&1u32.to_le_bytes());
            sheet[16..24].copy_from_slice(&7u64.to_le_bytes());
            sheet[24..32].copy_from_slice(&size.to_le_bytes());
            sheet[32..36].copy_from_slice(&(index as u32).to_le_bytes());
            sheet[36..40].copy_from_slice(&[*shift, 0, 0, 0]);
            seal(sheet);
        }
    }
    let mut bits = Bits::none(size, region);
    let Ok(damaged) = shape.decode(&area, &mut bits) else { return };
    assert!(damaged <= shape.sheets() && bits.bytes() <= size);
    assert!(bits.runs().all(|run| run.start < run.end && run.end <= size));
    if mode & 1 == 1 {
        assert_eq!(damaged, shape.sheets().saturating_sub((area.len() / SHEET) as u64));
    }
    let again: Vec<u8> =
        (0..shape.area(4096) / 4096).flat_map(|page| shape.encode(page, 4096, &bits)).collect();
    let mut same = Bits::none(size, region);
    assert_eq!(shape.decode(&again, &mut same), Ok(0));
    assert!(same == bits);
});
