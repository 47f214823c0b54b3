//! What version 1 of the format puts into the store, byte for byte: `tests/golden/snapshot-1.txt`. A change
//! of it is a new version.

use super::super::format::{Head, SnapshotRecord, record_at};
use super::scene::*;
use crate::testing::*;
use lamina_block::{Begin, Level};
use lamina_metadata::extents::{EPOCH_MAX, Entry, PLACES_MAX};

const GOLDEN: &str = include_str!("../../../tests/golden/snapshot-1.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The head, the snapshots, the entries of the map, the bits.
async fn dump(vol: &Open) -> String {
    let core = &vol.core;
    let mut lines = Vec::new();
    let mut head = vec![0; 72];
    core.store.load(core.head_id).expect("a head").read(0, &mut head).await.expect("read");
    lines.push(format!("head {}", hex(&head)));
    let table = core.store.load(core.table_id).expect("a table");
    for index in 0..3 {
        let mut kept = vec![0; 96];
        table.read(record_at(index), &mut kept).await.expect("read");
        lines.push(format!("snapshot {}", hex(&kept)));
    }
    let map = core.store.load(core.store.find(3).expect("a map")).expect("a map");
    for page in core.pages.used(0).await.expect("bits").0 {
        let mut bytes = vec![0; 4064];
        map.read(page * 4064, &mut bytes).await.expect("read");
        for (slot, entry) in bytes.chunks(8).enumerate().filter(|(_, entry)| entry.iter().any(|b| *b != 0)) {
            lines.push(format!("page {page} entry {slot} {}", hex(entry)));
        }
    }
    for (id, _, tag) in core.store.objects().into_iter().filter(|(_, _, tag)| [4, 5, 16, 17].contains(tag)) {
        let mut bytes = vec![0; 24.min(core.store.load(id).expect("bits").len() as usize)];
        core.store.load(id).expect("bits").read(0, &mut bytes).await.expect("read");
        lines.push(format!("object {tag} {}", hex(&bytes)));
    }
    lines.join("\n") + "\n"
}

#[test]
fn version_1_is_as_it_was() {
    let how = How::new(Level::Shadow);
    let world = world(&how, 1);
    let env = world.env();
    let text = world
        .run(async move {
            let vol = open(&env, &how, Begin::Format).await.expect("made");
            vol.write(0, 1, 20 << 10).await.expect("written");
            vol.command("snapshot", json!({"name": "monday"})).await.expect("kept");
            vol.write(8 << 10, 2, 4 << 10).await.expect("written");
            vol.command("resize", json!({"size": "8MiB"})).await.expect("larger");
            vol.write(6 << 20, 3, 4 << 10).await.expect("written");
            vol.command("snapshot", json!({"name": "tuesday"})).await.expect("kept");
            vol.flush().await.expect("flushed");
            dump(&vol).await
        })
        .expect("it ends");
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/snapshot-1.txt");
        std::fs::write(path, &text).expect("it can be written");
    }
    assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/snapshot.md");
}

fn bytes(prefix: &str) -> Vec<Vec<u8>> {
    let lines = GOLDEN.lines().filter_map(|line| line.strip_prefix(prefix));
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("two digits");
    lines.map(|hex| (0..hex.len() / 2).map(|i| byte(&hex[2 * i..2 * i + 2])).collect()).collect()
}

#[test]
fn version_1_is_read() {
    let head = Head::decode(&bytes("head ")[0]).expect("a head");
    assert_eq!((head.extent(), head.size, head.epoch, head.root.levels), (8192, 8 << 20, 3, 2));
    assert_eq!(head.encode(), bytes("head ")[0]);
    let kept: Vec<Option<SnapshotRecord>> = bytes("snapshot ")
        .iter()
        .map(|bytes| SnapshotRecord::decode(bytes, 8192).expect("an entry"))
        .collect();
    let names: Vec<_> = kept.iter().flatten().map(|kept| (&kept.name[..], kept.epoch)).collect();
    assert_eq!(names, [("monday", 1), ("tuesday", 2)]);
    assert!(matches!(head.root.page, Entry::At { born: 2, .. }));
}

#[test]
fn damage_is_refused() {
    let good = &bytes("head ")[0];
    for at in (0..14).chain(14..16).chain([52, 65]) {
        let mut bad = good.clone();
        bad[at] ^= 0x80;
        let read = Head::decode(&bad);
        assert!(read.is_err() || (48..56).contains(&at), "byte {at}: {read:?}");
    }
    let mut newer = good.clone();
    newer[8] = 2;
    assert_eq!(Head::decode(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
    let mut nameless = bytes("snapshot ")[0].clone();
    nameless[4] = 65;
    assert_eq!(SnapshotRecord::decode(&nameless, 8192).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(Head::decode(&good[..71]).is_err());
}

/// Numbers with which other numbers are made: none of them may go over what there is room for.
#[test]
fn numbers_that_are_too_large_are_refused() {
    let good = Head::decode(&bytes("head ")[0]).expect("a head");
    let wrong = [
        Head { size: u64::MAX, ..good },
        Head { physical: PLACES_MAX, ..good },
        Head { adopted: 1, data: 8192, ..good },
        Head { adopted: good.physical + 2, data: 0, ..good },
        Head { epoch: 0, ..good },
        Head { epoch: EPOCH_MAX + 1, ..good },
        Head { space: u32::MAX, ..good },
    ];
    for head in wrong {
        assert_eq!(
            Head::decode(&head.encode()).expect_err("impossible").kind(),
            ErrorKind::Corrupt,
            "{head:?}"
        );
    }
    let one = SnapshotRecord::decode(&bytes("snapshot ")[0], 8192).expect("an entry").expect("a snapshot");
    for (epoch, size) in
        [(EPOCH_MAX, 4096), (u32::MAX, 4096), (1, 0), (1, 8192 * PLACES_MAX + 1), (1, u64::MAX)]
    {
        let kept = SnapshotRecord { epoch, size, ..one.clone() };
        assert!(SnapshotRecord::decode(&kept.encode(), 8192).is_err(), "{kept:?}");
    }
}

/// A record from before there was a time has zeroes in its place, and a reader of that time passes the time over.
#[test]
fn a_snapshot_has_its_time_behind_its_name() {
    let one = SnapshotRecord::decode(&bytes("snapshot ")[0], 8192).expect("an entry").expect("a snapshot");
    assert_eq!(one.taken, 0);
    for (name, taken) in [("x".to_owned(), 1_795_900_123), ("n".repeat(56), u64::MAX), ("n".repeat(57), 0)] {
        let kept = SnapshotRecord { name, taken: 1_795_900_123.max(taken), ..one.clone() };
        let read = SnapshotRecord::decode(&kept.encode(), 8192).expect("an entry").expect("a snapshot");
        assert_eq!((read.name, read.taken), (kept.name, taken));
    }
}
