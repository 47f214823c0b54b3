//! The size of the map, and the bytes of a flush: the figures in `docs/formats/snapshot.md`.

use super::super::format::space_pages;
use crate::testing::*;
use lamina_block::{Begin, Build, Level};
use lamina_metadata::extents::pages_for;
use std::cell::RefCell;

const PAGE: &str = include_str!("../../../../../../docs/formats/snapshot.md");
const TIB: u64 = 1 << 40;

/// MiB, with a decimal if there are few.
fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 100.0 { format!("{mib:.1}") } else { format!("{mib:.0}") }
}

#[test]
fn the_table_of_sizes_is_true() {
    for (extent, name) in [(4u64 << 10, "4 KiB"), (32 << 10, "32 KiB"), (1 << 20, "1 MiB")] {
        let extents = TIB / extent;
        let (map, bits) = (pages_for(extents), space_pages(extents));
        // Always in memory: two bytes for each page of a bitmap, of extents and of pages of the map.
        let always = 2 * (extents.div_ceil(32512) + map.div_ceil(32512));
        let row = format!(
            "| {name} | {} | {} | {:.1} KiB | {} |",
            mib(map * 4096),
            mib(bits * 4096),
            always as f64 / 1024.0,
            mib((map + bits) * 8192)
        );
        assert!(PAGE.contains(&row), "the page lacks: {row}");
    }
}

/// Writes and flushes of a device since it was made.
fn counts(node: &Rc<Node>) -> (u64, u64) {
    let of = |op| node.stats().of(op).completed.get();
    (of(OpKind::Write), of(OpKind::Flush))
}

/// A volume, seen from outside.
struct Plain(Rc<Node>);

impl Plain {
    /// Sixteen writes of 4 KiB at once, each for another leaf of the map, and a flush: requests to the device
    /// of the map.
    async fn sixteen(&self, meta: &Rc<Node>, value: u8) -> (u64, u64) {
        let before = counts(meta);
        let write = |i: u64| {
            let buf = Buf::from_vec(vec![value; 4096]);
            self.0.submit(Io::write(i * (600 << 13), buf, Durability::Cached))
        };
        lamina_block::all((0..16).map(write)).await.expect("written");
        self.0.submit(Io::flush()).await.expect("flushed");
        let after = counts(meta);
        (after.0 - before.0, after.1 - before.1)
    }
}

/// The bytes written to the device of the map: row by row of the page's table.
async fn row(world: World, level: Level) -> String {
    let (data, meta) = (world.memory("64MiB").await, world.memory("256MiB").await);
    let with = Build {
        begin: Begin::Format,
        metadata: Some(Rc::clone(&meta)),
        level,
        ..Build::new("vol", &world.env, vec![data])
    };
    let keys = json!({ "extent": "8KiB", "size": "128MiB" });
    let made = Kind::of::<super::super::Keys>().parse(&keys).expect("keys").build(with).await.expect("made");
    let vol = Plain(Node::new("vol", "snapshot", Rc::clone(&world.env), made));
    let first = vol.sixteen(&meta, 1).await;
    let again = vol.sixteen(&meta, 2).await;
    let keep = Command { name: "snapshot".into(), args: json!({"name": "x"}) };
    vol.0.control(keep).await.expect("kept");
    let after = vol.sixteen(&meta, 3).await;
    let show = |(writes, flushes): (u64, u64)| format!("{writes} + {flushes}");
    format!("| `{}` | {} | {} | {} |", level.name(), show(first), show(again), show(after))
}

#[test]
fn the_table_of_writes_is_true() {
    let rows = Rc::new(RefCell::new(Vec::new()));
    for level in Level::ALL {
        let rows = Rc::clone(&rows);
        simulated(move |world| async move {
            let row = row(world, level).await;
            rows.borrow_mut().push(row);
        });
    }
    let rows = rows.borrow().join("\n");
    assert!(PAGE.contains(&rows), "the page lacks:\n{rows}");
}

/// 16 TiB, thin: made, written here and there, kept, opened again; the map stays within its memory.
#[test]
fn a_large_volume_takes_little_memory() {
    const WRITES: u64 = 3000;
    simulated(|world| async move {
        let below = world.memory("20TiB").await;
        let keys = || json!({ "size": "16TiB", "memory": "8MiB" });
        let kind = Kind::of::<super::super::Keys>();
        let build = |begin| {
            let with = Build { begin, ..Build::new("vol", &world.env, vec![Rc::clone(&below)]) };
            kind.parse(&keys()).expect("keys").build(with)
        };
        let node = |made| Node::new("vol", "snapshot", Rc::clone(&world.env), made);
        let vol = node(build(Begin::Format).await.expect("made"));
        let place = |i: u64| ((i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) % (16 << 28)) * 4096;
        for i in 0..WRITES {
            let buf = Buf::from_vec(vec![i as u8; 4096]);
            vol.submit(Io::write(place(i), buf, Durability::Cached)).await.expect("written");
            if i == WRITES / 2 {
                let keep = Command { name: "snapshot".into(), args: json!({"name": "x"}) };
                vol.control(keep).await.expect("kept");
            }
        }
        let memory = |vol: &Rc<Node>| vol.info()["memory"].as_u64().expect("a number");
        // The pages' budget, and the counts of both bitmaps.
        assert!(memory(&vol) < 9 << 20, "{}", memory(&vol));
        vol.close().await.expect("closed");
        let vol = node(build(Begin::Open).await.expect("opened"));
        for i in (0..WRITES).step_by(7) {
            let buf = Buf::zeroed(4096);
            vol.submit(Io::read(place(i), buf.clone())).await.expect("read");
            assert_eq!(buf.to_vec(), vec![i as u8; 4096], "write {i}");
        }
        assert!(memory(&vol) < 9 << 20, "{}", memory(&vol));
        vol.close().await.expect("closed");
    });
}
