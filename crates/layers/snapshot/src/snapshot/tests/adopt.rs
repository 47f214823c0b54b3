//! A device that is in use is taken over as it is, and left again.

use super::scene::*;
use crate::testing::*;
use lamina_block::{Begin, Level};

/// Extents of 8 KiB, the last one short.
const BELOW: u64 = (1 << 20) + 4096;

fn how(level: Level) -> How {
    How { keys: json!({ "extent": "8KiB" }), disk: BELOW, meta: Some(4 << 20), level }
}

fn adopted<F: Future<Output = ()> + 'static>(level: Level, test: impl FnOnce(Open, Vec<u8>) -> F + 'static) {
    let how = how(level);
    let world = world(&how, 5);
    let env = world.env();
    let run = async move {
        let below = disk(&env, DISK);
        let bytes = pattern(BELOW as usize);
        below.submit(Io::write(0, Buf::from_vec(bytes.clone()), Durability::Cached)).await.expect("written");
        let vol = open(&env, &how, Begin::Adopt).await.expect("taken over");
        test(vol, bytes).await;
    };
    world.run(run).expect("it ends");
}

#[test]
fn what_was_there_is_there_until_it_is_left() {
    for level in [Level::Lazy, Level::Shadow] {
        adopted(level, move |vol, mut bytes| async move {
            assert_eq!(vol.all().await, bytes);
            vol.write(BELOW - 4096, 7, 4096).await.unwrap();
            bytes[(BELOW - 4096) as usize..].fill(7);
            vol.flush().await.unwrap();
            let layer = vol.node.quiesce().await.layer();
            Rc::clone(&layer).detach().await.expect("nothing has moved");
            let below = disk(&vol.env, DISK);
            assert_eq!(fetch(&below, 0..BELOW).await, bytes);
            vol.command("snapshot", json!({"name": "x"})).await.unwrap();
            let refused = Rc::clone(&layer).detach().await.unwrap_err();
            assert!(refused.message().contains("delete them first"), "{refused}");
            // All extents are in use: a snapshot has no room.
            let full = vol.write(0, 1, 4096).await.unwrap_err();
            assert_eq!(full.kind(), ErrorKind::NoSpace);
            vol.command("delete", json!({"name": "x"})).await.unwrap();
            vol.reclaimed().await;
            // A discard makes some.
            vol.node.submit(Io::discard(64 << 10..128 << 10)).await.unwrap();
            bytes[64 << 10..128 << 10].fill(0);
            vol.flush().await.unwrap();
            let moved = layer.detach().await.unwrap_err();
            assert!(moved.message().contains("have moved"), "{moved}");
            vol.command("snapshot", json!({"name": "y"})).await.unwrap();
            vol.write(4096, 9, 8192).await.unwrap();
            vol.write(BELOW - 4096, 8, 512).await.unwrap();
            vol.flush().await.unwrap();
            assert_eq!(vol.snapshots().await["y"], bytes);
            vol.command("rollback", json!({"name": "y"})).await.unwrap();
            vol.reclaimed().await;
            assert_eq!(vol.all().await, bytes);
            vol.command("resize", json!({"size": BELOW + 4096})).await.unwrap();
            bytes.extend([0; 4096]);
            assert_eq!(vol.all().await, bytes);
            vol.node.close().await.unwrap();
            let vol = open(&vol.env, &how(level), Begin::Open).await.expect("opened");
            assert_eq!(vol.all().await, bytes);
        });
    }
}

#[test]
fn at_atomic_there_must_be_room() {
    let how = how(Level::Atomic);
    let world = world(&how, 5);
    let env = world.env();
    let run = async move {
        let refused = open(&env, &how, Begin::Adopt).await.err().expect("there is no room to write");
        assert!(refused.message().contains("atomic"), "{refused}");
    };
    world.run(run).expect("it ends");
}
