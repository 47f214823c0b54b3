//! Devices that were cut short, and may have their size back, with zeroes.

use super::*;
use crate::mirror::tests::cut::{cut, truncated};

const ABC: [&str; 3] = ["a", "b", "c"];

/// All devices are there and rebuilt, and each can be done without.
async fn becomes_right(env: &Rc<SimEnv>, bytes: &[u8]) {
    let open = open(env, &ABC, keys(), Begin::Open).await.expect("opened");
    assert!(all_of(&open).await == bytes, "at once");
    env.sleep(Duration::from_secs(2)).await;
    open.whole().await;
    assert_eq!(open.roles(), ["in sync"; 3]);
    scrubbed(&open).await;
    assert_eq!((open.found("different"), open.found("healed")), (0, 0));
    for name in ABC {
        open.command("fail", json!({ "leg": name })).await.expect("failed");
        assert!(all_of(&open).await == bytes, "without {name}");
        open.command("rejoin", json!({ "leg": name })).await.expect("rejoins");
        open.whole().await;
    }
    open.node.close().await.expect("closed");
}

#[test]
fn while_closed() {
    for (name, from) in [("a", 0), ("b", 65536), ("c", 65536), ("a", 128 << 10)] {
        simulate(|env| async move {
            let (open, bytes) = filled(&env).await;
            open.node.close().await.expect("closed");
            cut(&env, name, from).await;
            becomes_right(&env, &bytes).await;
        });
    }
}

#[test]
fn while_open() {
    for name in ABC {
        let world = world(3);
        let env = world.env();
        let (images, bytes) = world
            .run(async move {
                let (open, mut bytes) = filled(&env).await;
                truncated(&env, name);
                bytes[..3 * UNIT as usize].fill(9);
                put(&open, 0, &[9; 3 * UNIT as usize]).await;
                open.node.submit(Io::flush()).await.expect("flushed");
                assert!(all_of(&open).await == bytes, "without {name}");
                assert_eq!(open.roles().iter().filter(|role| *role == "away").count(), 1);
                env.set_fault(None);
                let lost = Buf::zeroed(128 << 10);
                child(&env, name).submit(Io::write(65536, lost, Durability::Fua)).await.expect("lost");
                (env.images(Loss::All, 1), bytes)
            })
            .expect("it ends");
        let world = Simulation::from_images(4, &images);
        let env = world.env();
        world.run(async move { becomes_right(&env, &bytes).await }).expect("it ends");
    }
}
