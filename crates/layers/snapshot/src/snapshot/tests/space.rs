//! The space of snapshots, beside one that is counted extent by extent.

use super::scene::*;
use crate::testing::*;
use lamina_block::{Begin, Level};
use lamina_metadata::extents::{Entry, Root};
use std::collections::BTreeSet;

/// Extents of 4 KiB; the map of the larger size has one level more.
const EXTENT: u64 = 4096;
const SMALL: u64 = 1 << 20;
const LARGE: u64 = 8 << 20;

/// Bytes of all snapshots, and of each alone.
type Space = (u64, Vec<u64>);

async fn said(vol: &Open) -> Space {
    let answer = vol.command("space", json!({})).await.expect("it is counted");
    let each = answer["snapshots"].as_array().expect("a list").iter();
    let alone = each.map(|snapshot| snapshot["exclusive_bytes"].as_u64().expect("bytes")).collect();
    (answer["all_snapshots_bytes"].as_u64().expect("bytes"), alone)
}

async fn counted(vol: &Open) -> Space {
    vol.flush().await.expect("flushed");
    let (core, head) = (&vol.core, vol.core.head());
    let roots: Vec<Root> =
        core.state().versions.snapshots().iter().map(|snapshot| snapshot.record.root).collect();
    let place = async |root: Root, extent: u64| match core.tree.get(root, extent).await.expect("found").entry
    {
        Entry::At { place, .. } => Some(place),
        Entry::Absent if extent < head.adopted => Some(u64::MAX),
        Entry::Absent | Entry::Hole => None,
    };
    let (mut all, mut alone) = (0, vec![0; roots.len()]);
    for extent in 0..(LARGE / EXTENT).max(head.adopted) {
        let now = place(head.root, extent).await;
        let mut places = Vec::new();
        for root in &roots {
            places.push(place(*root, extent).await.filter(|there| Some(*there) != now));
        }
        all += places.iter().flatten().collect::<BTreeSet<_>>().len() as u64;
        for (alone, there) in alone.iter_mut().zip(&places).filter(|(_, there)| there.is_some()) {
            *alone += u64::from(places.iter().filter(|other| *other == there).count() == 1);
        }
    }
    (all * core.extent(), alone.iter().map(|extents| extents * core.extent()).collect())
}

fn opened<F: Future<Output = ()> + 'static>(
    seed: u64,
    how: How,
    begin: Begin,
    test: impl FnOnce(Open) -> F + 'static,
) {
    let world = world(&how, seed);
    let env = world.env();
    world
        .run(async move { test(open(&env, &how, begin).await.expect("it is made")).await })
        .expect("it ends");
}

fn large(disk: u64) -> How {
    let keys = json!({ "extent": "4KiB", "size": SMALL });
    How { keys, disk, ..How::new(Level::Lazy) }
}

#[test]
fn what_one_snapshot_has_and_what_several_have() {
    opened(1, large(8 << 20), Begin::Format, |vol| async move {
        assert_eq!(said(&vol).await, (0, vec![]));
        vol.write(0, 1, 40 << 10).await.unwrap();
        vol.command("snapshot", json!({ "name": "monday" })).await.unwrap();
        assert_eq!(said(&vol).await, (0, vec![0]));
        vol.write(0, 2, 12 << 10).await.unwrap();
        vol.command("snapshot", json!({ "name": "tuesday" })).await.unwrap();
        // Two extents that both have, and one that is of tuesday alone.
        vol.write(8 << 10, 3, 12 << 10).await.unwrap();
        assert_eq!(said(&vol).await, (6 * EXTENT, vec![3 * EXTENT, EXTENT]));
        vol.node.submit(Io::discard(0..SMALL)).await.unwrap();
        assert_eq!(said(&vol).await, (13 * EXTENT, vec![3 * EXTENT, 3 * EXTENT]));
        vol.command("delete", json!({ "name": "monday" })).await.unwrap();
        assert_eq!(said(&vol).await, (10 * EXTENT, vec![10 * EXTENT]));
        vol.node.close().await.unwrap();
    });
}

/// Anything that happens to versions, also of an adopted device.
async fn lives(vol: Open) {
    for step in 0..24 {
        let (size, number) = (vol.node.geometry().size, vol.env.random());
        let names: Vec<String> = vol.snapshots().await.into_keys().collect();
        let name = (!names.is_empty()).then(|| names[number as usize % names.len()].clone());
        match (number >> 32) % 8 {
            0 | 1 => drop(vol.command("snapshot", json!({ "name": format!("s{step}") })).await.unwrap()),
            2 if let Some(name) = name => drop(vol.command("delete", json!({ "name": name })).await.unwrap()),
            3 if let Some(name) = name => {
                vol.command("rollback", json!({ "name": name, "force": true })).await.unwrap();
            }
            4 => {
                let _no_room = vol.command("resize", json!({ "size": LARGE })).await;
            }
            5 => {
                let from = number % (size / EXTENT) * EXTENT;
                vol.node.submit(Io::discard(from..(from + 64 * EXTENT).min(size))).await.unwrap();
            }
            _ => {
                let from = number % (size / EXTENT) * EXTENT;
                let _no_room = vol.write(from, 7, (16 * EXTENT).min(size - from) as usize).await;
            }
        }
        assert_eq!(said(&vol).await, counted(&vol).await, "step {step}");
    }
    vol.node.close().await.unwrap();
}

#[test]
fn it_is_the_space_that_is_counted_extent_by_extent() {
    for seed in 0..30 {
        opened(seed, large(32 << 20), Begin::Format, lives);
        let adopted = How { meta: Some(8 << 20), keys: json!({ "extent": "4KiB" }), ..large(4 << 20) };
        opened(seed, adopted, Begin::Adopt, lives);
    }
}
