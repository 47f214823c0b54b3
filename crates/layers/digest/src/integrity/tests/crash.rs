//! The power fails at every write; afterwards bytes change on their own. What was there before is never
//! called wrong, and what changed outside of what was being written is always found.

use super::*;
use crate::sums::scene::{Camera, Open, open, world};
use lamina_block::Begin;
use lamina_sim::{Images, Simulation};

/// Random writes, some of them after quiet times, so that intents come and go.
async fn work(top: &Open, seed: u64) {
    let mut draw = xorshift(seed * 2 + 99);
    for step in 0..40 {
        let at = draw() % 64 * 512;
        let len = (draw() % 24 + 1) * 512;
        match draw() % 8 {
            0 => top.node.submit(Io::flush()).await.expect("flushed"),
            1 => top.node.submit(Io::zero(at..at + len, Zero::default())).await.expect("zeroed"),
            2 => top.env.sleep(std::time::Duration::from_millis(1)).await,
            _ => top.write(at, &vec![step + 1; len as usize]).await.expect("written"),
        }
    }
}

/// Opens what is left, finds it readable, and then finds every block that changes.
fn recover(how: &How, seed: u64, images: &Images) -> u64 {
    let world = Simulation::from_images(seed, images);
    let (env, how) = (world.env(), how.clone());
    let test = async move {
        let top = open(&env, &how, Begin::Open).await.expect("it opens after a crash");
        let needs_resync = top.sums.needs_resync_bytes();
        let size = top.node.geometry().size;
        for at in (0..size).step_by(4096) {
            if top.sums.needs_resync_at(&(at..at + 4096)) {
                continue;
            }
            top.flip(at + 77).await;
            let found = top.read(at..at + 4096).await.expect_err("it was not being written");
            assert_eq!((found.kind(), found.range()), (ErrorKind::Corrupt, Some(&(at..at + 4096))));
            top.flip(at + 77).await;
        }
        let all = top.read(0..size).await.expect("all of it is what it was");
        top.resynced().await;
        assert_eq!(top.sums.needs_resync_bytes(), 0);
        for at in (0..size).step_by(4096) {
            top.flip(at + 99).await;
            assert!(top.read(at..at + 512).await.is_err(), "no region needs a resync any more");
            top.flip(at + 99).await;
        }
        assert_eq!(top.read(0..size).await.expect("all of it is what it was"), all);
        needs_resync
    };
    world.run(test).expect("it ends")
}

/// The crashes of a run after which something was in doubt, and those after which nothing was. `meta`: the table has a
/// device of its own.
pub fn survives(seed: u64, meta: bool) -> (usize, usize) {
    let how = How { meta, ..how(json!({ "region": "16KiB" })) };
    let world = world(seed);
    let (env, made) = (world.env(), how.clone());
    let images = world.run(async move {
        let top = open(&env, &made, Begin::Format).await.expect("made");
        let camera = Camera::start(&env, seed, 3);
        work(&top, seed).await;
        top.resynced().await;
        top.node.close().await.expect("closed");
        camera.end(&env)
    });
    let images = images.expect("it ends");
    let some = images.iter().filter(|images| recover(&how, seed, images) > 0).count();
    (some, images.len() - some)
}

#[test]
fn nothing_is_called_wrong_and_what_is_wrong_is_found() {
    let found: Vec<_> = (0..4).map(|seed| survives(seed, seed % 2 == 1)).collect();
    let (some, none) = found.iter().fold((0, 0), |all, found| (all.0 + found.0, all.1 + found.1));
    assert!(some > 20 && none > 0, "{some} crashes with a resync, {none} without");
}
