//! What version 1 of the format says, byte for byte: `tests/golden/sequentialize-1.txt`. And what is refused.

use super::super::format::*;
use crate::testing::*;

const GOLDEN: &str = include_str!("../../../tests/golden/sequentialize-1.txt");
const OF: Super = Super {
    segment_slots: 16,
    segments: 20,
    segments_at: 3,
    blocks: 100,
    checkpoint_slots: 1,
    uuid: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF,
    key: 0x0123_4567_89AB_CDEF,
    is_home: false,
    stride: 16,
    class_limit: 0,
};
const SIZE: u64 = (3 + 20 * 16) * SLOT as u64;

fn head() -> Head {
    let written = Entry { what: What::Written, block: 7, count: 3, slot: 5, from: 0, checksum: 0xAAAA };
    let copied = Entry { what: What::Copied, block: 99, count: 2, slot: 8, from: 40, checksum: 0xBBBB };
    let dropped = Entry { what: What::Dropped, block: 20, count: 80, slot: 0, from: 0, checksum: 0xCCCC };
    let entries = vec![written, copied, dropped];
    Head { segment: 12, serial: 1 << 41, checkpoint: 9, class: 1, at: 4, slots: 6, durable: 3, entries }
}

fn made() -> Checkpoint {
    let free = Row { sequence: 0, time: 0, end: 0, class: 0, state: RowState::Free };
    let mut rows = vec![free; 20];
    rows[2] = Row { sequence: 11, time: 500, end: 16, class: 1, state: RowState::Closed };
    rows[3] = Row { sequence: 12, time: 600, end: 10, class: 0, state: RowState::Open };
    rows[7] = Row { sequence: 10, time: 400, end: 16, class: 2, state: RowState::Recent };
    let free = (0..20).rev().filter(|segment| ![2, 3, 7].contains(segment)).collect();
    let pages = vec![Page { slot: 40, checksum: 0xDDDD }];
    Checkpoint { sequence: 9, serial: 1 << 40, next_segment: 13, clock: 700, pages, rows, free, window: 5 }
}

fn encoded(head: &Head) -> Vec<u8> {
    let mut slot = vec![0xFF; SLOT];
    head.encode_into(&mut slot, OF.key);
    slot
}

#[test]
fn the_format_of_version_1_is_as_it_was() {
    let line = |name: &str, bytes: &[u8]| {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let hex: String = bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {hex}\n")
    };
    let text = line("super", &OF.encode())
        + &line("head", &encoded(&head()))
        + &line("checkpoint", &made().encode(OF.key));
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sequentialize-1.txt");
        std::fs::write(path, &text).expect("written");
    }
    assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/sequentialize.md");
    assert_eq!(Super::decode(&OF.encode(), SIZE), Ok(OF));
    assert_eq!(Head::decode(&encoded(&head()), &OF), Some(head()));
    assert_eq!(Checkpoint::decode(&made().encode(OF.key), &OF), Some(made()));
}

#[test]
fn what_is_another_log_or_damaged_is_refused() {
    assert_eq!(Super::decode(&OF.encode(), SIZE - 1).unwrap_err().kind(), ErrorKind::Corrupt);
    // Its checkpoints fill the device before the log.
    let large = Super { segments_at: 1 << 20, checkpoint_slots: 1 << 18, ..OF };
    let size = u64::from(large.segments_at + 20 * 16) * SLOT as u64;
    assert_eq!(Super::decode(&large.encode(), size).unwrap_err().kind(), ErrorKind::Corrupt);
    let roomy = Super { checkpoint_slots: 1, ..large };
    assert_eq!(Super::decode(&roomy.encode(), size), Ok(roomy));
    let mut later = OF.encode();
    later[16] = 3;
    assert_eq!(Super::decode(&later, SIZE).unwrap_err().kind(), ErrorKind::Unsupported);
    let other = Super { key: 1, ..OF };
    assert_eq!(Head::decode(&encoded(&head()), &other), None);
    assert_eq!(Checkpoint::decode(&made().encode(OF.key), &other), None);
    for byte in 0..180 {
        let (mut head, mut checkpoint) = (encoded(&head()), made().encode(OF.key));
        head[byte] ^= 1;
        checkpoint[byte] ^= 1;
        assert_eq!(Head::decode(&head, &OF), None, "byte {byte}");
        assert_eq!(Checkpoint::decode(&checkpoint, &OF), None, "byte {byte}");
    }
}

/// With right checksums, and nowhere on the device.
#[test]
fn what_cannot_be_is_refused() {
    let with = |change: fn(&mut Head)| {
        let mut head = head();
        change(&mut head);
        Head::decode(&encoded(&head), &OF)
    };
    for change in [
        (|head: &mut Head| head.slots = 13) as fn(&mut Head),
        |head| head.class = 3,
        |head| head.durable = 5,
        |head| head.serial = NUMBERS,
        |head| head.entries[0].slot = 4,
        |head| head.entries[0].slot = 9,
        |head| head.entries[0].block = 100,
        |head| head.entries[1].from = 2,
        |head| head.entries[1].from = OF.slots().end - 1,
        |head| head.entries[2].count = 81,
        |head| head.entries[2].count = 0,
    ] {
        assert_eq!(with(change), None);
    }
    let mut twice = made();
    twice.free[0] = twice.free[1];
    assert_eq!(Checkpoint::decode(&twice.encode(OF.key), &OF), None);
    let mut elsewhere = made();
    elsewhere.pages[0].slot = OF.slots().end;
    assert_eq!(Checkpoint::decode(&elsewhere.encode(OF.key), &OF), None);
}

#[test]
fn any_bytes_can_be_looked_at() {
    let mut random = xorshift(3);
    for _ in 0..300 {
        let mut bytes =
            [encoded(&head()), made().encode(OF.key), OF.encode()][(random() % 3) as usize].clone();
        for _ in 0..random() % 8 {
            let at = 24 + random() as usize % 200;
            bytes[at] = random() as u8;
        }
        fuzz(&bytes);
    }
}
