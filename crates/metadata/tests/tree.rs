//! The versioned table against plain maps: the contents of a version never change, whatever is done to the others.

mod common;

use common::{DISK, dyn_env, nothing};
use fastrand::Rng;
use lamina_metadata::extents::{Draft, Entry, FANOUT, Pxb, Root, Tree, levels_for, pages_for};
use lamina_metadata::{Change, Format, Level, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, Simulation};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

type Model = BTreeMap<u64, Entry>;

const EXTENTS: u64 = 400_000;

async fn check(tree: &Tree, root: Root, model: &Model, rng: &mut Rng) {
    for (index, entry) in model {
        assert_eq!(tree.get(root, *index).await.unwrap().entry, *entry, "extent {index}");
    }
    for _ in 0..50 {
        let index = rng.u64(0..EXTENTS);
        let expected = model.get(&index).copied().unwrap_or_default();
        assert_eq!(tree.get(root, index).await.unwrap().entry, expected, "extent {index}");
    }
}

#[test]
fn versions_stay_as_they_are() {
    let world = Simulation::new(3);
    let mut disk = DiskOptions::new(16 << 20);
    disk.latency_max = Duration::ZERO;
    world.env().put_disk(DISK, Image::blank(disk));
    let env = world.env();
    let test = async move {
        let node = common::node(&env, &nothing());
        let region = Region::new(node, 0..16 << 20).unwrap();
        let format = Format { level: Level::Shadow, log: 1 << 20, objects: 60 };
        Store::format(&dyn_env(&env), &region, format).await.unwrap();
        let options = Options { memory: 512 << 10, ..Options::default() };
        let store = Store::open(&dyn_env(&env), region, options).await.unwrap();
        let in_use = Pxb::create(&store, 1500, [1, 2]).await.unwrap();
        let tree = Tree::create(&store, 1500, 3).await.unwrap();
        let mut rng = Rng::with_seed(9);
        let (mut root, mut model, mut epoch) = (Root::default(), Model::new(), 1);
        let mut kept: Vec<(Root, Model)> = Vec::new();
        for round in 0..60 {
            let shared = if kept.is_empty() { 0 } else { epoch };
            let mut draft = Draft::new(&tree, &in_use, root, epoch, shared);
            for _ in 0..3 {
                // The tree grows on demand.
                let index = rng.u64(0..EXTENTS >> (2 * (20 - round / 3).min(8)) | 1);
                let entry = match rng.u8(0..5) {
                    0 => Entry::Hole,
                    1 => Entry::Absent,
                    _ => Entry::At { place: rng.u64(0..1 << 40), born: epoch },
                };
                let before = draft.set(index, entry).await.unwrap();
                assert_eq!(before, model.insert(index, entry).unwrap_or_default());
            }
            let drawn = draft.end().unwrap();
            root = drawn.root;
            store.change(drawn.pages.and(drawn.links)).await.unwrap();
            if round % 6 == 5 {
                kept.push((root, model.clone()));
                epoch += 1;
            }
            // One that is dropped leaves nothing.
            let free = in_use.free_extents();
            let mut draft = Draft::new(&tree, &in_use, root, epoch, u32::MAX);
            draft.set(rng.u64(0..EXTENTS), Entry::Hole).await.unwrap();
            drop(draft);
            assert_eq!(in_use.free_extents(), free);
        }
        let last = (root, model);
        for (root, model) in kept.iter().chain([&last]) {
            check(&tree, *root, model, &mut rng).await;
            let first = *model.first_key_value().unwrap().0;
            assert_eq!(tree.next(*root, 0, EXTENTS).await.unwrap() / FANOUT, first / FANOUT);
        }
        // No difference between two versions is stepped over, and what they share is.
        let versions: Vec<&(Root, Model)> = kept.iter().chain([&last]).collect();
        for (i, (one, model)) in versions.iter().enumerate() {
            for (other, others) in &versions[..i] {
                let (mut unshared, mut from) = (BTreeSet::new(), 0);
                loop {
                    from = tree.next_unshared([*one, *other], from, EXTENTS).await.unwrap();
                    if from >= EXTENTS {
                        break;
                    }
                    unshared.insert(from / FANOUT);
                    from = (from / FANOUT + 1) * FANOUT;
                }
                let entry = |of: &Model, index| of.get(index).copied().unwrap_or_default();
                for index in model.keys().chain(others.keys()) {
                    let differs = entry(model, index) != entry(others, index);
                    assert!(!differs || unshared.contains(&(index / FANOUT)), "extent {index}");
                }
                for leaf in unshared {
                    let pages = [one, other].map(|root| tree.page_at(*root, leaf * FANOUT, 0));
                    let [one, other] = pages;
                    assert_ne!(one.await.unwrap(), other.await.unwrap(), "leaf {leaf}");
                }
            }
            assert_eq!(tree.next_unshared([*one, *one], 0, EXTENTS).await.unwrap(), EXTENTS);
        }
        store.change(Change::new()).await.unwrap();
    };
    world.run(test).expect("it ends");
}

#[test]
fn heights_and_sizes() {
    assert_eq!([0, 507, 508, 258_063, 258_064].map(levels_for), [1, 1, 2, 2, 3]);
    assert_eq!([1, 508, 509, 258_064, 258_065].map(pages_for), [1, 1, 3, 509, 512]);
    assert_eq!(Root::decode(&Root::default().encode()).unwrap(), Root::default());
    for bad in [[0, 0], [6, 0], [1, 1]] {
        let mut bytes = Root::default().encode();
        (bytes[8], bytes[9]) = (bad[0], bad[1]);
        assert!(Root::decode(&bytes).is_err());
    }
}
