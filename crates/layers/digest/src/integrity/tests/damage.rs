//! Bytes that change on their own, in the data and in the table.

use super::*;
use crate::sums::scene::{Open, open, run};
use lamina_block::{Begin, Class, Error};

fn is_corrupt(error: &Error, at: Range<u64>) {
    assert_eq!((error.kind(), error.device(), error.range()), (ErrorKind::Corrupt, Some("top"), Some(&at)));
}

/// A device with a pattern in its first 64 KiB, nothing in doubt.
async fn filled(env: &Rc<lamina_sim::SimEnv>, how: &How) -> Open {
    let open = open(env, how, Begin::Format).await.expect("made");
    open.write(0, &pattern(64 << 10)).await.expect("written");
    open
}

#[test]
pub fn a_changed_byte_is_an_error_there_and_nowhere_else() {
    for checksum in ["crc32c", "xxh3"] {
        run(move |env| async move {
            let top = filled(&env, &how(json!({ "checksum": checksum }))).await;
            for at in [5000, 12288, 16383] {
                top.flip(at).await;
            }
            is_corrupt(&top.read(0..64 << 10).await.expect_err("wrong"), 4096..8192);
            is_corrupt(&top.read(4608..5120).await.expect_err("wrong, if only next to it"), 4096..8192);
            is_corrupt(&top.read(8192..20480).await.expect_err("wrong"), 12288..16384);
            let good = pattern(64 << 10);
            assert_eq!(top.read(0..4096).await.expect("right"), good[..4096]);
            assert_eq!(top.read(16384..65536).await.expect("right"), good[16384..]);
            let info = top.node.info();
            assert_eq!(info["corrupt_at"], json!([4096, 12288]));
            assert_eq!(info["corrupt"], json!(4));
        });
    }
}

#[test]
fn what_was_never_written_is_zeroes_and_nothing_else() {
    run(|env| async move {
        let top = filled(&env, &how(json!({}))).await;
        assert_eq!(top.read(64 << 10..80 << 10).await.expect("zeroes"), vec![0; 16 << 10]);
        top.flip(70_000).await;
        is_corrupt(&top.read(64 << 10..80 << 10).await.expect_err("wrong"), 69_632..73_728);
        let runs = top.node.extents(64 << 10..80 << 10).await.expect("runs");
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 16 << 10);
    });
}

/// Data that read as zeroes below are not shown as a hole.
#[test]
fn a_hole_that_should_be_none_is_data() {
    run(|env| async move {
        let top = filled(&env, &how(json!({}))).await;
        let at = top.sums.below(8192)..top.sums.below(16384);
        top.disk.submit(Io::zero(at, Zero { unmap: true, ..Zero::default() })).await.expect("lost");
        let runs = top.node.extents(4096..20480).await.expect("runs");
        assert_eq!(runs, [data(16384)]);
        is_corrupt(&top.read(4096..20480).await.expect_err("wrong"), 8192..16384);
    });
}

/// As a mirror does: reads elsewhere, and writes back.
#[test]
fn a_whole_block_makes_a_wrong_one_right_and_a_part_does_not() {
    run(|env| async move {
        let top = filled(&env, &how(json!({}))).await;
        top.flip(4096).await;
        let wrong = top.write(4608, &[1; 512]).await.expect_err("nobody knows the rest");
        is_corrupt(&wrong, 4096..8192);
        top.write(4096, &pattern(4096)).await.expect("written");
        assert_eq!(top.read(4096..8192).await.expect("right"), pattern(4096));
        top.write(4608, &[1; 512]).await.expect("written");
        assert_eq!(top.read(4608..5120).await.expect("right"), [1; 512]);
        top.flip(4096).await;
        top.node.submit(Io::zero(4096..8192, Zero::default())).await.expect("zeroed");
        assert_eq!(top.read(4096..8192).await.expect("right"), [0; 4096]);
    });
}

#[test]
fn scrub_finds_and_counts_and_can_be_steered() {
    run(|env| async move {
        let top = filled(&env, &how(json!({}))).await;
        top.flip(100).await;
        top.flip(40_000).await;
        top.command("scrub", json!({ "limit": "64KiB" })).await.expect("begun");
        assert!(top.command("scrub", json!({})).await.is_err(), "one at a time");
        let job = top.node.jobs().remove(0);
        assert_eq!((job.name(), job.limit()), ("scrub", Some(64 << 10)));
        job.pause();
        env.sleep(std::time::Duration::from_secs(60)).await;
        assert_eq!(top.node.info()["passes"], json!(0));
        job.set_limit(None);
        job.resume();
        top.rested().await;
        let info = top.node.info();
        assert_eq!((&info["corrupt"], &info["passes"]), (&json!(2), &json!(1)));
        assert_eq!(info["corrupt_at"], json!([0, 36_864]));
    });
}

#[test]
fn a_device_in_use_is_taken_over_and_can_be_left() {
    run(|env| async move {
        let how = How { meta: true, ..how(json!({ "region": "16KiB" })) };
        let size = crate::sums::scene::disk(&env, "disk").geometry().size;
        let below = crate::sums::scene::disk(&env, "disk");
        let bytes = pattern(size as usize);
        below.submit(Io::write(0, Buf::from_vec(bytes.clone()), Durability::Fua)).await.expect("written");
        let top = open(&env, &how, Begin::Adopt).await.expect("taken over");
        assert_eq!(top.node.geometry().size, size);
        assert_eq!(top.node.info()["needs_resync_bytes"], json!(size));
        assert_eq!(top.read(4096..12288).await.expect("as it is"), bytes[4096..12288]);
        top.resynced().await;
        assert_eq!(top.node.info()["needs_resync_bytes"], json!(0));
        assert_eq!(top.read(0..size).await.expect("as it is"), bytes);
        top.flip(300_000).await;
        assert_eq!(top.read(0..size).await.expect_err("known by now").kind(), ErrorKind::Corrupt);
        let quiesced = top.node.quiesce().await;
        quiesced.layer().detach().await.expect("the bytes lie where they lay");
    });
    run(|env| async move {
        let how = how(json!({}));
        assert!(open(&env, &how, Begin::Adopt).await.is_err(), "the table has no place");
        let top = open(&env, &how, Begin::Format).await.expect("made");
        let quiesced = top.node.quiesce().await;
        assert!(quiesced.layer().detach().await.is_err(), "the bytes lie elsewhere");
    });
}

/// Both copies of a page of the table are destroyed.
#[test]
fn a_damaged_table_is_found_and_made_anew() {
    run(|env| async move {
        let how = How { meta: true, ..how(json!({})) };
        let top = filled(&env, &how).await;
        top.node.close().await.expect("closed");
        let meta = crate::sums::scene::disk(&env, "meta");
        // The only block that has the first digest in it.
        let mut digest = Vec::new();
        crate::sums::digest::Digest::Xxh3.add(&pattern(64 << 10)[..4096], &mut digest);
        let entry: Vec<u8> = top.sums.reveal(&digest);
        for at in (0..meta.geometry().size).step_by(4096) {
            let buf = Buf::zeroed(4096);
            meta.submit(Io::read(at, buf.clone())).await.expect("read");
            if buf.to_vec().starts_with(&entry) {
                for copy in [at, at ^ 4096] {
                    buf.fill(0x99);
                    meta.submit(Io::write(copy, buf.clone(), Durability::Fua)).await.expect("written");
                }
            }
        }
        let top = open(&env, &how, Begin::Open).await.expect("opened");
        assert_eq!(top.read(0..4096).await.expect_err("no digest").kind(), ErrorKind::Corrupt);
        let found = top.node.check(false).await.expect("looked");
        assert_eq!(found.iter().map(|finding| finding.class).collect::<Vec<_>>(), [Class::Repairable]);
        let found = top.node.check(true).await.expect("repaired");
        assert_eq!(found.iter().map(|finding| finding.class).collect::<Vec<_>>(), [Class::Repaired]);
        top.resynced().await;
        assert_eq!(top.read(0..64 << 10).await.expect("as it was"), pattern(64 << 10));
        let found = top.node.check(false).await.expect("looked");
        assert_eq!(found.iter().map(|finding| finding.class).collect::<Vec<_>>(), [Class::Good]);
    });
}

#[test]
fn keys_stay_what_they_were() {
    run(|env| async move {
        let made = open(&env, &how(json!({ "checksum": "xxh3", "region": "16KiB" })), Begin::Format).await;
        made.expect("made").node.close().await.expect("closed");
        let refused = async |keys: Value| {
            let opened = open(&env, &how(keys), Begin::Open).await;
            opened.map(|_| ()).expect_err("refused").message().to_owned()
        };
        assert!(
            refused(json!({ "checksum": "crc32c" }))
                .await
                .starts_with("checksum: the table was made with xxh3")
        );
        assert!(
            refused(json!({ "region": "32KiB" })).await.starts_with("region: the table was made with 16KiB")
        );
        assert!(refused(json!({ "memory": "4KiB" })).await.starts_with("memory:"));
        open(&env, &how(json!({})), Begin::Open).await.expect("as it was made");
    });
}
