//! Damage to the map is found and told, what follows from the rest is repaired, and no byte that is left is lost by it.

use super::super::format::{Head, record_at};
use super::scene::*;
use crate::testing::*;
use lamina_block::{Begin, Class, Finding, Level};
use lamina_metadata::Change;
use lamina_metadata::extents::{Entry, Pxb, Root};
use lamina_sim::SimEnv;
use std::future::Future;

/// Bytes of a page of the store on disk, and of what a layer has in it.
const BLOCK: usize = 4096;
const PAGE: u64 = 4064;
/// Tags of the objects in the store.
const TABLE: u64 = 2;
const MAP: u64 = 3;
const MAP_BITS: u64 = 4;
const BITS: u64 = 16;
const COUNTS: u64 = 17;

/// Bytes that are different everywhere, with two snapshots.
async fn prepared(vol: &Open) -> (Vec<u8>, [Vec<u8>; 2]) {
    for i in 0..24 {
        vol.write(i << 13, i as u8 + 1, 8 << 10).await.unwrap();
    }
    vol.command("snapshot", json!({"name": "one"})).await.unwrap();
    let one = vol.all().await;
    vol.write(64 << 10, 99, 12 << 10).await.unwrap();
    vol.command("snapshot", json!({"name": "two"})).await.unwrap();
    let two = vol.all().await;
    vol.write(0, 77, 4096).await.unwrap();
    vol.write(400 << 10, 55, 4096).await.unwrap();
    vol.flush().await.unwrap();
    (vol.all().await, [one, two])
}

fn run<F: Future<Output = ()> + 'static>(level: Level, test: impl FnOnce(How, Open) -> F + 'static) {
    let how = How::new(level);
    let world = world(&how, 11);
    let env = world.env();
    let story = async move {
        let vol = open(&env, &how, Begin::Format).await.expect("it is made");
        test(how, vol).await;
    };
    world.run(story).expect("it ends");
}

async fn again(env: &Rc<SimEnv>, how: &How) -> Open {
    open(env, how, Begin::Open).await.expect("it can be opened")
}

/// Flips a bit in the copies of page `index` of an object, on disk; so many of them.
async fn spoil(env: &Rc<SimEnv>, owner: u64, index: usize, copies: usize) {
    let node = disk(env, DISK);
    let bytes = fetch(&node, 0..node.geometry().size / BLOCK as u64 * BLOCK as u64).await;
    let word = |block: &[u8], at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
    let mut pages: Vec<(u64, usize)> = Vec::new();
    for (i, block) in bytes.chunks_exact(BLOCK).enumerate() {
        let whole = crc32c(&block[..BLOCK - 4]) == u32::from_le_bytes(block[BLOCK - 4..].try_into().unwrap());
        if whole && word(block, 4064) == owner {
            pages.push((word(block, 4088) & u64::from(u32::MAX), i));
        }
    }
    pages.sort_unstable();
    let mut numbers: Vec<u64> = pages.iter().map(|page| page.0).collect();
    numbers.dedup();
    let number = numbers[index];
    for (_, block) in pages.iter().filter(|page| page.0 == number).take(copies) {
        let mut bad = bytes[block * BLOCK..][..BLOCK].to_vec();
        bad[1000] ^= 4;
        let io = Io::write((block * BLOCK) as u64, Buf::from_vec(bad), Durability::Fua);
        node.submit(io).await.expect("written");
    }
}

/// The checksum of a page, as the store's format says: CRC-32C.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82F6_3B78 & 0u32.wrapping_sub(crc & 1)))
    })
}

fn id(vol: &Open, tag: u64) -> u64 {
    vol.core.store.find(tag).expect("there is such an object").0
}

async fn check(vol: &Open, repair: bool) -> Vec<Finding> {
    vol.node.check(repair).await.expect("it can be checked")
}

fn of(found: &[Finding], class: Class) -> Vec<&str> {
    found.iter().filter(|f| f.class == class).map(|f| f.words.as_str()).collect()
}

/// Nothing is wrong.
async fn is_good(vol: &Open) {
    let found = check(vol, false).await;
    assert!(matches!(&found[..], [Finding { class: Class::Good, .. }]), "{found:?}");
}

/// Everything is as it was.
async fn holds(vol: &Open, now: &[u8], snapshots: &[Vec<u8>; 2]) {
    assert_eq!(vol.all().await, now);
    let kept = vol.snapshots().await;
    assert_eq!((&kept["one"], &kept["two"]), (&snapshots[0], &snapshots[1]));
}

#[test]
fn what_is_whole_is_good() {
    for level in Level::ALL {
        run(level, |how, vol| async move {
            is_good(&vol).await;
            let (now, snapshots) = prepared(&vol).await;
            is_good(&vol).await;
            assert_eq!(of(&check(&vol, true).await, Class::Good), ["the map is good: 2 snapshots, 3 pages"]);
            holds(&vol, &now, &snapshots).await;
            vol.node.close().await.unwrap();
            let vol = again(&vol.env, &how).await;
            is_good(&vol).await;
            holds(&vol, &now, &snapshots).await;
        });
    }
}

/// Objects that follow from the versions are damaged: the volume can be read and written, and is repaired.
fn follows(tag: u64, copies: usize, words: &'static str) {
    for level in Level::ALL {
        run(level, move |how, vol| async move {
            let (mut now, snapshots) = prepared(&vol).await;
            let (env, owner) = (Rc::clone(&vol.env), id(&vol, tag));
            vol.node.close().await.unwrap();
            // Written back twice, so that there are two copies.
            let vol = again(&env, &how).await;
            vol.write(408 << 10, 56, 4096).await.unwrap();
            now[408 << 10..412 << 10].fill(56);
            vol.node.close().await.unwrap();
            spoil(&env, owner, 0, copies).await;
            let vol = again(&env, &how).await;
            holds(&vol, &now, &snapshots).await;
            let found = check(&vol, false).await;
            assert_eq!(of(&found, Class::Lost), [""; 0]);
            let repaired = check(&vol, true).await;
            // There, a crash may have left it half-written: the other copy counts, and is corrected if it is older.
            if (level, copies) != (Level::Lazy, 1) {
                for (found, class) in [(found, Class::Repairable), (repaired, Class::Repaired)] {
                    assert!(
                        of(&found, class).iter().any(|said| said.contains(words)),
                        "{level:?}: {found:?}"
                    );
                }
            }
            is_good(&vol).await;
            vol.node.close().await.unwrap();
            let vol = again(&env, &how).await;
            is_good(&vol).await;
            holds(&vol, &now, &snapshots).await;
            vol.write(200 << 10, 9, 8192).await.expect("there is room again");
            vol.flush().await.expect("flushed");
            vol.reclaimed().await;
            vol.audit(true).await;
        });
    }
}

#[test]
fn a_bitmap_of_which_both_copies_are_damaged_is_made_again() {
    follows(BITS, 2, "the bits of extents 0 to");
}

#[test]
fn a_bitmap_of_which_one_copy_is_damaged_is_made_again() {
    follows(BITS, 1, "the bits of extents 0 to");
}

#[test]
fn counts_that_are_damaged_are_counted_again() {
    follows(COUNTS, 2, "counts of extents in use are damaged");
}

#[test]
fn the_bitmap_of_the_map_is_made_again() {
    follows(MAP_BITS, 2, "the bits of pages of the map 0 to");
}

#[test]
fn with_a_damaged_bitmap_what_has_its_place_is_written() {
    run(Level::Shadow, |how, vol| async move {
        let (mut now, snapshots) = prepared(&vol).await;
        let (env, owner) = (Rc::clone(&vol.env), id(&vol, BITS));
        vol.node.close().await.unwrap();
        spoil(&env, owner, 0, 2).await;
        let vol = again(&env, &how).await;
        vol.write(4096, 78, 4096).await.expect("it has its place");
        now[4096..8192].fill(78);
        let full = vol.write(300 << 10, 1, 4096).await.unwrap_err();
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        vol.node.submit(Io::discard(400 << 10..408 << 10)).await.expect("it is nowhere now");
        now[400 << 10..408 << 10].fill(0);
        vol.flush().await.expect("flushed");
        holds(&vol, &now, &snapshots).await;
        check(&vol, true).await;
        is_good(&vol).await;
        vol.write(300 << 10, 1, 4096).await.expect("there is room again");
        vol.node.close().await.unwrap();
    });
}

#[test]
fn a_damaged_page_of_a_version_is_lost_and_the_others_stay() {
    for level in Level::ALL {
        run(level, move |how, vol| async move {
            let (now, [one, two]) = prepared(&vol).await;
            let (env, owner) = (Rc::clone(&vol.env), id(&vol, MAP));
            let root = vol.core.state().versions.snapshots()[0].record.root;
            let Entry::At { place, .. } = root.page else { panic!("it is empty") };
            vol.node.close().await.unwrap();
            spoil(&env, owner, place as usize, 2).await;
            let vol = again(&env, &how).await;
            assert_eq!(vol.all().await, now);
            let view = vol.view("two").await;
            assert_eq!(fetch(&view, 0..view.geometry().size).await, two);
            view.close().await.unwrap();
            let found = check(&vol, false).await;
            let lost = of(&found, Class::Lost);
            let says = format!(
                "page {place} of the map cannot be read: bytes 0 to 524288 of snapshot \"one\" are lost"
            );
            // At `lazy` a page of which one copy is damaged is believed.
            assert_eq!(lost, [says.as_str()], "{level:?}");
            // Nothing that it may have is given back, and repairing does not make it worse.
            let found = check(&vol, true).await;
            assert_eq!(of(&found, Class::Lost).len(), 1);
            assert_eq!(of(&found, Class::Repaired), [""; 0]);
            assert_eq!(vol.all().await, now);
            vol.write(300 << 10, 5, 4096).await.expect("it goes on");
            // A user that does not need it any more takes it away.
            vol.command("delete", json!({"name": "one"})).await.unwrap();
            vol.reclaimed().await;
            is_good(&vol).await;
            drop(one);
            vol.node.close().await.unwrap();
        });
    }
}

#[test]
fn a_bitmap_is_cautious_while_a_version_is_lost() {
    run(Level::Shadow, |how, vol| async move {
        let (now, [_, two]) = prepared(&vol).await;
        let (env, map, bits) = (Rc::clone(&vol.env), id(&vol, MAP), id(&vol, BITS));
        vol.node.close().await.unwrap();
        spoil(&env, map, 0, 2).await;
        spoil(&env, bits, 0, 2).await;
        let vol = again(&env, &how).await;
        let found = check(&vol, true).await;
        assert_eq!(of(&found, Class::Lost).len(), 1, "{found:?}");
        assert!(
            of(&found, Class::Repaired)[0].ends_with("all count as in use, as a part of a version is lost")
        );
        assert_eq!(vol.core.space.borrow().free_extents(), 0);
        assert_eq!(vol.all().await, now);
        let view = vol.view("two").await;
        assert_eq!(fetch(&view, 0..view.geometry().size).await, two);
        view.close().await.unwrap();
        vol.node.close().await.unwrap();
    });
}

/// Forges something in an open volume, and tells what a check then says, and what it says after a repair.
async fn forged(vol: &Open, change: Change) -> (Vec<Finding>, Vec<Finding>) {
    vol.core.stage(change).await.unwrap();
    vol.core.commit().await.unwrap();
    let found = check(vol, false).await;
    let repaired = check(vol, true).await;
    (found, repaired)
}

/// The leaf of the volume as it is now.
fn leaf(vol: &Open) -> u64 {
    let Root { page: Entry::At { place, .. }, levels: 1 } = vol.core.head().root else {
        panic!("the map has one page")
    };
    place
}

#[test]
fn an_extent_behind_the_end_is_lost() {
    run(Level::Shadow, |_, vol| async move {
        prepared(&vol).await;
        let physical = vol.core.head().physical;
        let entry = Entry::At { place: physical, born: 1 };
        let change = vol.core.tree.correct(Change::new(), leaf(&vol), 3, entry);
        let (found, repaired) = forged(&vol, change).await;
        let says = format!(
            "bytes 24576 to 32768 of the volume are said to lie in extent {physical}, and there are only {physical}: \
             they are lost"
        );
        assert_eq!(of(&found, Class::Lost), [says.as_str()]);
        assert_eq!(of(&found, Class::Leak), [""; 0], "what it was may still be there");
        assert_eq!(of(&repaired, Class::Lost), [says.as_str()]);
    });
}

#[test]
fn an_entry_that_says_nothing_is_lost() {
    run(Level::Shadow, |_, vol| async move {
        prepared(&vol).await;
        let map = vol.core.store.find(MAP).unwrap();
        let change = Change::new().write(map, leaf(&vol) * PAGE + 5 * 8, [0xFF; 8]);
        let (found, _) = forged(&vol, change).await;
        assert!(
            of(&found, Class::Lost)[0].contains("bytes 40960 to 49152 of the volume: they are lost"),
            "{found:?}"
        );
        // Those beside it are read.
        assert_eq!(vol.read(0..4096).await, [77; 4096]);
        assert_eq!(vol.read(48 << 10..56 << 10).await, [7; 8192]);
    });
}

#[test]
fn an_extent_with_two_owners_is_told() {
    run(Level::Atomic, |_, vol| async move {
        prepared(&vol).await;
        let place = |number| vol.core.look(&vol.core.state(), number).unwrap().unwrap().at.unwrap();
        vol.core.load(50).await.unwrap();
        let other = place(50);
        let entry = Entry::At { place: other.number, born: other.born };
        let change = vol.core.tree.correct(Change::new(), leaf(&vol), 0, entry);
        let (found, _) = forged(&vol, change).await;
        let lost = of(&found, Class::Lost);
        assert!(
            lost[0].starts_with("bytes 409600 to 417792 of the volume are said to lie in extent"),
            "{lost:?}"
        );
        assert!(lost[0].contains("so are bytes 0 to 8192"), "{lost:?}");
        assert_eq!(lost.len(), 1);
    });
}

#[test]
fn what_is_younger_than_its_version_is_shared_again() {
    run(Level::Shadow, |_, vol| async move {
        let (now, snapshots) = prepared(&vol).await;
        let root = vol.core.state().versions.snapshots()[0].record.root;
        let Entry::At { place: page, .. } = root.page else { panic!("it is empty") };
        let Ok(Entry::At { place, .. }) = vol.core.tree.entries(page).await.unwrap()[2] else {
            panic!("it is there")
        };
        let young = Entry::At { place, born: 9 };
        let change = vol.core.tree.correct(Change::new(), page, 2, young);
        let (found, repaired) = forged(&vol, change).await;
        let says = "bytes 16384 to 24576 of snapshot \"one\" are said to be younger than this version";
        assert_eq!(of(&found, Class::Repairable), [says]);
        assert_eq!(of(&repaired, Class::Repaired), [format!("{says}: from now on, it counts as shared")]);
        is_good(&vol).await;
        holds(&vol, &now, &snapshots).await;
    });
}

/// Extents of a bitmap that are in use.
async fn bits(of: &Pxb) -> Vec<u64> {
    of.used(0).await.unwrap().0
}

#[test]
fn what_is_in_use_is_not_called_free() {
    for level in Level::ALL {
        run(level, |_, vol| async move {
            let (now, snapshots) = prepared(&vol).await;
            let space = Rc::clone(&vol.core.space.borrow());
            let before = bits(&space).await;
            let change = space.free(Change::new(), before[3]).await.unwrap();
            let change = space.free(change, before[4]).await.unwrap();
            vol.core.stage(change).await.unwrap();
            vol.core.commit().await.unwrap();
            space.release(&before[3..5]);
            let found = check(&vol, false).await;
            let says = format!("extents {} to {} are in use, and called free", before[3], before[4] + 1);
            assert_eq!(of(&found, Class::Repairable), [says.as_str()]);
            assert!(bits(&space).await != before, "it has only looked");
            check(&vol, true).await;
            assert_eq!(bits(&space).await, before);
            is_good(&vol).await;
            holds(&vol, &now, &snapshots).await;
            vol.audit(true).await;
        });
    }
}

#[test]
fn what_nobody_has_is_given_back() {
    for level in Level::ALL {
        run(level, |_, vol| async move {
            let (now, snapshots) = prepared(&vol).await;
            let space = Rc::clone(&vol.core.space.borrow());
            let free = space.free_extents();
            let last = space.physical() - 1;
            let change = space.claim(Change::new(), last - 2..last).unwrap();
            let page = vol.core.tree.count() - 1;
            let change = vol.core.pages.claim(change, page..page + 1).unwrap();
            let (found, repaired) = forged(&vol, change).await;
            let leaks = of(&found, Class::Leak);
            assert!(leaks[0].starts_with("2 extents are in use without an owner"), "{found:?}");
            assert!(leaks[1].starts_with("1 pages of the map are"), "{found:?}");
            assert!(!found.iter().any(Finding::is_damage), "a leak is no damage");
            assert_eq!(of(&repaired, Class::Repaired).len(), 2);
            vol.reclaimed().await;
            is_good(&vol).await;
            assert_eq!(space.free_extents(), free);
            holds(&vol, &now, &snapshots).await;
            vol.audit(true).await;
        });
    }
}

#[test]
fn a_count_that_is_wrong_is_counted_again() {
    run(Level::Shadow, |how, vol| async move {
        let (now, snapshots) = prepared(&vol).await;
        let counts = vol.core.store.find(COUNTS).unwrap();
        let (env, free) = (Rc::clone(&vol.env), vol.core.space.borrow().free_extents());
        // More than there can be.
        vol.core.stage(Change::new().write(counts, 0, [0xFF; 2])).await.unwrap();
        vol.core.commit().await.unwrap();
        vol.node.close().await.unwrap();
        let vol = again(&env, &how).await;
        assert_eq!(vol.core.space.borrow().free_extents(), 0, "nothing is given on its word");
        let found = check(&vol, true).await;
        assert!(of(&found, Class::Repaired)[0].contains("the count of extents in use from"), "{found:?}");
        is_good(&vol).await;
        assert_eq!(vol.core.space.borrow().free_extents(), free);
        holds(&vol, &now, &snapshots).await;
    });
}

#[test]
fn without_its_table_a_volume_can_be_read() {
    for copies in [1, 2] {
        run(Level::Shadow, move |how, vol| async move {
            let (now, _) = prepared(&vol).await;
            let (env, owner) = (Rc::clone(&vol.env), id(&vol, TABLE));
            vol.node.close().await.unwrap();
            spoil(&env, owner, 0, copies).await;
            let vol = again(&env, &how).await;
            assert!(vol.node.geometry().read_only);
            assert_eq!(vol.all().await, now);
            assert_eq!(vol.write(0, 1, 4096).await.unwrap_err().kind(), ErrorKind::ReadOnly);
            let refused = vol.command("snapshot", json!({"name": "x"})).await.unwrap_err();
            assert!(refused.message().contains("not all snapshots can be found"), "{refused}");
            for repair in [false, true] {
                let found = check(&vol, repair).await;
                assert!(of(&found, Class::Lost)[0].contains("the volume is read-only"), "{found:?}");
                assert_eq!(of(&found, Class::Leak), [""; 0]);
            }
            assert_eq!(vol.all().await, now);
            vol.node.close().await.unwrap();
        });
    }
}

#[test]
fn a_snapshot_that_is_no_snapshot_seals_the_volume() {
    run(Level::Shadow, |how, vol| async move {
        let (now, [_, two]) = prepared(&vol).await;
        let env = Rc::clone(&vol.env);
        // The entry of "one" loses its name.
        let change = Change::new().write(vol.core.table_id, record_at(0) + 4, vec![0; 4]);
        vol.core.stage(change).await.unwrap();
        vol.core.commit().await.unwrap();
        vol.node.close().await.unwrap();
        let vol = again(&env, &how).await;
        assert!(vol.node.geometry().read_only);
        assert_eq!((vol.all().await, &vol.snapshots().await["two"]), (now, &two));
        vol.node.close().await.unwrap();
    });
}

#[test]
fn an_epoch_that_a_snapshot_has_is_left() {
    run(Level::Shadow, |how, vol| async move {
        let (now, snapshots) = prepared(&vol).await;
        let env = Rc::clone(&vol.env);
        let old = Head { epoch: 1, ..vol.core.head() };
        vol.core.stage(vol.core.with_head(Change::new(), old)).await.unwrap();
        vol.core.commit().await.unwrap();
        vol.node.close().await.unwrap();
        let vol = again(&env, &how).await;
        let found = check(&vol, false).await;
        assert_eq!(
            of(&found, Class::Repairable),
            ["the volume is in epoch 1, and there is a snapshot of it"]
        );
        check(&vol, true).await;
        is_good(&vol).await;
        holds(&vol, &now, &snapshots).await;
    });
}

#[test]
fn the_power_fails_at_every_write_of_a_repair() {
    for (level, copies) in Level::ALL.into_iter().flat_map(|level| [(level, 1), (level, 2)]) {
        let how = How::new(level);
        let world = world(&how, 3);
        let (env, made) = (world.env(), how.clone());
        let story = async move {
            let vol = open(&env, &made, Begin::Format).await.expect("it is made");
            let contents = prepared(&vol).await;
            let space = Rc::clone(&vol.core.space.borrow());
            let last = space.physical() - 1;
            vol.core.stage(space.claim(Change::new(), last..last + 1).unwrap()).await.unwrap();
            let owners = [MAP_BITS, BITS, COUNTS].map(|tag| id(&vol, tag));
            vol.node.close().await.unwrap();
            for owner in owners {
                spoil(&env, owner, 0, copies).await;
            }
            let vol = again(&env, &made).await;
            let camera = Camera::start(&env, 5, 1);
            check(&vol, true).await;
            vol.node.close().await.unwrap();
            (camera.end(&env), contents)
        };
        let (images, (now, snapshots)) = world.run(story).expect("it ends");
        assert!(images.len() > 3, "it has written");
        for images in images {
            let world = lamina_sim::Simulation::from_images(3, &images);
            let (env, how, now, snapshots) = (world.env(), how.clone(), now.clone(), snapshots.clone());
            let story = async move {
                let vol = again(&env, &how).await;
                holds(&vol, &now, &snapshots).await;
                check(&vol, true).await;
                is_good(&vol).await;
                holds(&vol, &now, &snapshots).await;
                vol.reclaimed().await;
                vol.audit(true).await;
            };
            world.run(story).expect("it ends");
        }
    }
}
