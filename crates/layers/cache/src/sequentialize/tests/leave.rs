//! A disk with data gets a log beside them, and goes on without it.

use super::home::{get, made, put};
use crate::testing::*;
use lamina_block::Begin;

/// A disk whose first three quarters have data.
async fn used(world: &World) -> (Rc<Node>, Vec<u8>) {
    let disk = world.memory("4MiB").await;
    let bytes = pattern(3 << 20);
    put(&disk, 0, &bytes).await;
    (disk, bytes)
}

#[test]
fn a_disk_in_use_is_taken_over_and_left() {
    simulated(|world| async move {
        let (disk, mut bytes) = used(&world).await;
        let keys = json!({ "mode": "home", "size": "3MiB" });
        let log = made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there is room");
        assert_eq!(log.geometry().size, 3 << 20);
        assert_eq!(get(&log, 0, bytes.len()).await, bytes);
        let mut random = xorshift(3);
        for turn in 0..300 {
            let at = random() % (3 << 11) * 512;
            let end = (at + 4096).min(3 << 20);
            bytes[at as usize..end as usize].fill(turn as u8);
            put(&log, at, &bytes[at as usize..end as usize]).await;
        }
        let quiesced = log.quiesce().await;
        quiesced.layer().detach().await.expect("all can go home");
        assert_eq!(get(&disk, 0, bytes.len()).await, bytes);
        assert_eq!(log.info()["live_bytes"], json!(0));
        // The device below has its end again, and the layer that goes leaves it alone.
        put(&disk, 3 << 20, &[9; 1 << 20]).await;
        quiesced.layer().close().await.expect("closed");
        assert_eq!(get(&disk, 3 << 20, 1 << 20).await, [9; 1 << 20]);
        let refused = made(&world, &disk, keys, Begin::Adopt).await.err().expect("refused");
        assert!(refused.contains("make the device larger first"), "{refused}");
    });
}

/// The change of which it was a part did not come about.
#[test]
fn what_was_to_leave_can_stay() {
    simulated(|world| async move {
        let (disk, _) = used(&world).await;
        let keys = json!({ "mode": "home", "size": "3MiB" });
        let log = made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there is room");
        put(&log, 8192, &[1; 4096]).await;
        let quiesced = log.quiesce().await;
        quiesced.layer().detach().await.expect("all can go home");
        drop(quiesced);
        put(&log, 8192, &[2; 4096]).await;
        assert_eq!(get(&disk, 8192, 4096).await, [1; 4096]);
        log.close().await.expect("closed");
        let log = made(&world, &disk, keys, Begin::Open).await.expect("opened");
        assert_eq!(get(&log, 8192, 4096).await, [2; 4096]);
    });
}

#[test]
fn draining_keeps_writes_out_of_the_log() {
    simulated(|world| async move {
        let (disk, _) = used(&world).await;
        let keys = json!({ "mode": "home", "size": "3MiB" });
        let log = made(&world, &disk, keys, Begin::Adopt).await.expect("there is room");
        for block in 0..50 {
            put(&log, block * 12288, &[block as u8; 4096]).await;
        }
        let drain = Command { name: "drain".into(), args: json!({}) };
        let done = log.control(drain).await.expect("drained");
        assert_eq!(done, json!({ "brought_bytes": 50 * 4096 }));
        put(&log, 4096, &[7; 4096]).await;
        assert_eq!(get(&disk, 4096, 4096).await, [7; 4096]);
    });
}

#[test]
fn a_log_that_was_left_can_come_again() {
    simulated(|world| async move {
        let (disk, _) = used(&world).await;
        let keys = json!({ "mode": "home", "size": "3MiB" });
        let log = made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there is room");
        for block in 0..100 {
            put(&log, block * 12288, &[block as u8; 4096]).await;
        }
        let quiesced = log.quiesce().await;
        quiesced.layer().detach().await.expect("all can go home");
        quiesced.layer().close().await.expect("closed");
        let log = made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there is room");
        assert_eq!(get(&log, 12288, 4096).await, [1; 4096]);
        // Behind the superblock.
        put(&disk, (3 << 20) + 2 * 4096, &[5; 512]).await;
        made(&world, &disk, keys, Begin::Adopt).await.err().expect("refused");
    });
}

#[test]
fn an_attempt_that_was_not_finished_is_in_nobodys_way() {
    simulated(|world| async move {
        let (disk, _) = used(&world).await;
        let keys = json!({ "mode": "home", "size": "3MiB" });
        made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there is room");
        made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there still is");
        // The process ends between two of the writes of a third one: a superblock and a checkpoint have other keys.
        let slots: Vec<Vec<u8>> =
            vec![get(&disk, 3 << 20, 4096).await, get(&disk, (3 << 20) + 4096, 4096).await];
        made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there still is");
        put(&disk, 3 << 20, &slots[0]).await;
        made(&world, &disk, keys.clone(), Begin::Adopt).await.expect("there still is");
        put(&disk, (3 << 20) + 4096, &slots[1]).await;
        made(&world, &disk, keys, Begin::Adopt).await.expect("there still is");
    });
}

#[test]
fn data_are_never_cut_off() {
    simulated(|world| async move {
        let (disk, _) = used(&world).await;
        for (keys, says) in [
            (json!({ "mode": "home", "reserve": 26 }), "there are data from"),
            (json!({ "mode": "home", "size": "2MiB" }), "there are data from 2MiB"),
            (json!({}), "mode = \"home\""),
        ] {
            let refused = made(&world, &disk, keys, Begin::Adopt).await.err().expect("refused");
            assert!(refused.contains(says), "{refused}");
        }
        let log = made(&world, &disk, json!({}), Begin::Format).await.expect("a log");
        let quiesced = log.quiesce().await;
        assert!(quiesced.layer().detach().await.is_err(), "nothing is in its place");
    });
}
