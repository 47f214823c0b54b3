//! What a fuzz target calls.

use super::{Checkpoint, HEAD_MAGIC, Head, SLOT, Super, checkpoint};
use lamina_kit::sealed_page;

/// A log of 1 MiB.
const OF: Super = Super {
    segment_slots: 8,
    segments: 30,
    segments_at: 8,
    blocks: 60,
    checkpoint_slots: 1,
    uuid: 1,
    key: 7,
    is_home: false,
    stride: 16,
    class_limit: 0,
};
/// The same beside homes.
const BESIDE: Super = Super { is_home: true, ..OF };

/// `bytes` as a page of this log with this magic number.
fn page(bytes: &[u8], magic: [u8; 8]) -> Vec<u8> {
    let mut page = bytes.get(..SLOT).unwrap_or(bytes).to_vec();
    page.resize(SLOT, 0);
    page[..8].copy_from_slice(&magic);
    page[16..24].copy_from_slice(&OF.key.to_le_bytes());
    sealed_page::seal(&mut page, OF.key);
    page
}

/// Whatever `bytes` are, what is decoded lies on the device, and is the same when it is written again. Panics if not.
pub fn fuzz(bytes: &[u8]) {
    let size = 1 << 40;
    if let Ok(of) = Super::decode(bytes, size) {
        assert_eq!(Super::decode(&of.encode(), size), Ok(of));
    }
    fuzz_of(bytes, &OF);
    fuzz_of(bytes, &BESIDE);
}

fn fuzz_of(bytes: &[u8], of: &Super) {
    // With right checksums, what stands behind them is looked at too.
    if let Some(head) = Head::decode(&page(bytes, HEAD_MAGIC), of) {
        assert!(head.at + head.slots <= of.segment_slots);
        assert!(head.entries.iter().all(|entry| entry.slot + entry.slots() <= head.at + head.slots));
        let mut again = vec![0; SLOT];
        head.encode_into(&mut again, of.key);
        assert_eq!(Head::decode(&again, of), Some(head));
    }
    if let Some(checkpoint) = Checkpoint::decode(&page(bytes, checkpoint::MAGIC), of) {
        assert!(checkpoint.free.iter().all(|segment| *segment < of.segments));
        assert_eq!(Checkpoint::decode(&checkpoint.encode(of.key), of), Some(checkpoint));
    }
}
