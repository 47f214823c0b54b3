//! A device that is closed, or whose process has died, leaves nothing in memory: hierarchies are closed and opened in a
//! daemon that goes on.

use super::cluster::*;
use super::*;
use crate::flash::Cache;
use lamina_block::Begin;
use std::rc::Weak;

/// What is to be gone.
#[derive(Default)]
struct Left {
    nodes: Vec<(String, Weak<Node>)>,
    caches: Vec<Weak<Cache>>,
}

impl Left {
    fn watch(&mut self, how: &str, serves: &Serves) {
        for node in serves.below.iter().chain([&serves.vm]) {
            self.nodes.push((format!("{how}: {}", node.name()), Rc::downgrade(node)));
        }
        let env: Rc<dyn Env> = Rc::clone(&serves.env) as _;
        self.caches.push(Rc::downgrade(&crate::flash::cache_of(&serves.below[1], &env).expect("a flash")));
    }

    fn check(&self) {
        let nodes = self.nodes.iter().filter(|(_, node)| node.strong_count() > 0).map(|(name, _)| name);
        let nodes: Vec<&String> = nodes.collect();
        let caches = self.caches.iter().filter(|cache| cache.strong_count() > 0).count();
        assert!(nodes.is_empty() && caches == 0, "{nodes:?} and {caches} caches are still there");
    }
}

#[test]
fn a_device_that_was_closed_leaves_nothing() {
    let world = world(1);
    let env = world.env();
    let left = world
        .run(async move {
            create(&env, &HOSTS[..2]).await.expect("created");
            let mut left = Left::default();
            for (n, how) in ["closed", "closed again", "killed"].into_iter().enumerate() {
                let a = Serves::open(&env, "a", 1, Begin::Open).await.expect("opened");
                let b = Serves::open(&env, "b", 1, Begin::Open).await.expect("opened");
                let seen = Invariants::watch(&env);
                seen.history.write(&env, &a.vm, 0..64, n as u64 + 1, false).await.expect("written");
                a.paired().await.expect("a peer");
                seen.history.write(&env, &a.vm, 0..64, n as u64 + 10, false).await.expect("written");
                left.watch(how, &a);
                left.watch(how, &b);
                for serves in [&a, &b] {
                    match how {
                        "killed" => serves.kill(),
                        _ => serves.close().await.expect("closed"),
                    }
                }
                drop((a, b));
                env.sleep(Duration::from_secs(30)).await;
                left.check();
            }
            left
        })
        .expect("it ends");
    drop(world);
    left.check();
}
