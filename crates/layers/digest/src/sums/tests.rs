//! Version 1 of the format, and heads that are not of it.

use super::digest::Digest;
use super::format::{HEAD_LEN, Head};
use super::scene::*;
use crate::testing::*;
use lamina_block::Begin;

const GOLDEN: &str = include_str!("../../tests/golden/sums-1.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The head, the digests of a few blocks, and what marks say of them.
async fn dump(open: &Open) -> String {
    let store = &open.sums.store;
    let mut lines = Vec::new();
    for (id, len, tag) in store.objects() {
        let mut bytes = vec![0; len.min(96) as usize];
        store.load(id).expect("an object").read(0, &mut bytes).await.expect("read");
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        lines.push(format!("object {tag} {len} {}", hex(&bytes[..end])));
    }
    lines.join("\n") + "\n"
}

async fn written(env: Rc<lamina_sim::SimEnv>, how: How) -> String {
    let open = open(&env, &how, Begin::Format).await.expect("made");
    open.write(0, &pattern(4096)).await.expect("written");
    if how.keys.get("hash").is_some() {
        open.command("mark", json!({"name": "monday"})).await.expect("marked");
    }
    open.write(8192, &[7; 4096]).await.expect("written");
    dump(&open).await
}

#[test]
fn version_1_is_as_it_was() {
    let mut text = String::new();
    for how in [
        crate::integrity::tests::how(json!({ "checksum": "crc32c" })),
        crate::fingerprint::tests::how(json!({"hash": "blake3"})),
    ] {
        let world = world(1);
        text += &world.run(written(world.env(), how)).expect("it ends");
    }
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sums-1.txt");
        std::fs::write(path, &text).expect("it can be written");
    }
    assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/sums.md");
}

fn heads() -> Vec<Vec<u8>> {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("two digits");
    let of = |hex: &str| {
        let mut bytes: Vec<u8> = (0..hex.len() / 2).map(|i| byte(&hex[2 * i..2 * i + 2])).collect();
        bytes.resize(HEAD_LEN, 0);
        bytes
    };
    GOLDEN.lines().filter_map(|line| line.strip_prefix("object 1 4064 ")).map(of).collect()
}

#[test]
fn version_1_is_read() {
    let read: Vec<Head> = heads().iter().map(|bytes| Head::decode(bytes).expect("a head")).collect();
    assert_eq!(read.iter().map(|head| head.digest).collect::<Vec<_>>(), [Digest::Crc32c, Digest::Blake3]);
    for (head, bytes) in read.iter().zip(heads()) {
        assert_eq!(head.block(), 4096);
        assert_eq!(head.encode(), bytes);
    }
}

#[test]
fn damage_is_refused() {
    let good = &heads()[0];
    // Magic, version, digest, block, region, zero; the lowest bytes of size, data and intent.
    for at in (0..16).chain([16, 24, 32]) {
        let mut bad = good.clone();
        bad[at] ^= 0xC1;
        assert!(Head::decode(&bad).is_err(), "byte {at}");
    }
    let mut newer = good.clone();
    newer[8] = 2;
    assert_eq!(Head::decode(&newer).expect_err("newer").kind(), ErrorKind::Unsupported);
    let mut huge = good.clone();
    huge[24..32].fill(0xFF);
    huge[24..26].fill(0);
    assert_eq!(Head::decode(&huge).expect_err("it ends beyond everything").kind(), ErrorKind::Corrupt);
    assert!(Head::decode(&good[..HEAD_LEN - 1]).is_err());
}

/// It stays as large as its table, and says what it does not use.
#[test]
fn what_the_table_has_no_room_for_is_not_used() {
    run(|env| async move {
        let with = crate::integrity::tests::how(json!({}));
        let opened = open(&env, &with, Begin::Format).await.expect("made");
        let size = opened.node.geometry().size;
        assert_eq!(opened.node.info()["unused_bytes"], json!(0));
        env.disk(DISK).expect("a disk").resize(opened.disk.geometry().size + 10_240);
        opened.disk.refresh();
        opened.node.refresh();
        assert_eq!((opened.node.geometry().size, &opened.node.info()["unused_bytes"]), (size, &json!(8192)));
        opened.write(size - 4096, &pattern(4096)).await.expect("written");
        opened.node.close().await.expect("closed");
        let opened = open(&env, &with, Begin::Open).await.expect("opened");
        assert_eq!(opened.node.geometry().size, size);
        assert_eq!(opened.read(size - 4096..size).await.expect("read"), pattern(4096));
    });
}
