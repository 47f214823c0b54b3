//! Reads are spread so that no leg waits while requests wait at another one.

use super::*;
use crate::mirror::Keys;
use std::cell::Cell;

/// Requests in flight.
const DEPTH: usize = 16;
/// For so long.
const LENGTH: Duration = Duration::from_millis(100);

/// A leg that takes four reads at a time, as devices do.
async fn leg(world: &World, name: &str) -> Rc<Node> {
    let memory = world.memory("1MiB").await;
    let kind = crate::testing::kind("delay");
    let keys =
        kind.parse(&json!({ "read": "400us", "parallel": 4 })).unwrap_or_else(|e| panic!("{}", e.message));
    let made = keys.build(Build::new(name, &world.env, vec![memory])).await.expect("it is built");
    Node::new(name, kind.name, Rc::clone(&world.env), made)
}

/// How many reads of 4 KiB `node` does meanwhile.
async fn reads(env: &Rc<SimEnv>, node: &Rc<Node>, sequential: bool) -> usize {
    let (begin, next, done) = (env.now(), Cell::new(0), Cell::new(0));
    let blocks = node.geometry().size / 4096;
    let worker = || async {
        while env.now().since(begin) < LENGTH {
            let block = if sequential { next.replace(next.get() + 1) } else { env.random() };
            let into = Buf::zeroed(4096);
            node.submit(Io::read(block % blocks * 4096, into)).await.expect("read");
            done.set(done.get() + 1);
        }
    };
    futures_util::future::join_all((0..DEPTH).map(|_| worker())).await;
    done.get()
}

#[test]
fn many_reads_keep_every_leg_at_work() {
    for (count, sequential) in [(2, false), (2, true), (3, false), (3, true)] {
        simulated(move |world| async move {
            let mut legs = Vec::new();
            for name in &["a", "b", "c"][..count] {
                legs.push(leg(&world, name).await);
            }
            let alone = reads(&world.sim, &legs[0], sequential).await;
            let (keep, _) = SimKeep::open(&world.sim, "mirror").await.expect("words");
            let with =
                Build { keep: Some(keep), begin: Begin::Format, ..Build::new("mirror", &world.env, legs) };
            let keys = Kind::of::<Keys>().parse(&keys()).unwrap_or_else(|e| panic!("{}", e.message));
            let layer = keys.build(with).await.expect("it is built");
            let mirror = Node::new("mirror", "mirror", Rc::clone(&world.env), layer);
            let together = reads(&world.sim, &mirror, sequential).await;
            assert!(
                together * 100 >= alone * count * 97,
                "{count} legs, sequential {sequential}: {together} reads, where one leg does {alone}"
            );
            mirror.close().await.expect("closed");
        });
    }
}
