//! Stores that become smaller and larger, also by what is no whole block.

use crate::testing::*;
use lamina_block::{Begin, Build, Keep};
use lamina_sim::{DiskOptions, Image, SimEnv, SimKeep, Simulation};
use std::time::Duration;

const STORE: u64 = 1 << 20;

/// A cache on `fast`, and a volume on it in front of `slow`.
struct Open {
    store: Rc<Node>,
    flash: Rc<Node>,
    top: Rc<Node>,
}

async fn device(env: &Rc<SimEnv>, kind: Kind, over: Vec<Rc<Node>>, begin: Begin) -> Result<Rc<Node>> {
    let any: Rc<dyn Env> = Rc::clone(env) as Rc<dyn Env>;
    let keep: Rc<dyn Keep> = SimKeep::open(env, kind.name).await?.0;
    let with = Build { keep: Some(keep), begin, ..Build::new(kind.name, &any, over) };
    let Ok(keys) = kind.parse(&json!({})) else { panic!("no keys are needed") };
    Ok(Node::new(kind.name, kind.name, any, keys.build(with).await?))
}

fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "file", Rc::clone(env) as Rc<dyn Env>, env.disk(name).expect("it was put there"))
}

impl Open {
    async fn of(env: &Rc<SimEnv>, begin: Begin) -> Result<Open> {
        let flash = device(env, Kind::of::<crate::flash::Keys>(), vec![disk(env, "fast")], begin).await?;
        let store = disk(env, "slow");
        let over = vec![Rc::clone(&store), Rc::clone(&flash)];
        let top = device(env, Kind::of::<super::super::Keys>(), over, begin).await;
        match top {
            Ok(top) => Ok(Open { store, flash, top }),
            Err(e) => {
                flash.close().await?;
                Err(e)
            }
        }
    }

    async fn drain(&self) {
        let drain = Command { name: "drain".into(), args: json!({}) };
        self.top.control(drain).await.expect("the store takes everything");
    }

    /// Takes over the size that the store has now.
    fn refresh(&self) {
        self.store.refresh();
        self.top.refresh();
    }

    async fn close(self) {
        self.top.close().await.expect("closed");
        self.flash.close().await.expect("closed");
    }
}

async fn put(node: &Rc<Node>, at: u64, len: usize, value: u8) -> Result<()> {
    node.submit(Io::write(at, Buf::from_vec(vec![value; len]), Durability::Cached)).await
}

async fn get(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let buf = Buf::zeroed(len);
    node.submit(Io::read(at, buf.clone())).await.expect("it can be read");
    buf.to_vec()
}

fn run<F: Future<Output = ()> + 'static>(size: u64, test: impl FnOnce(Rc<SimEnv>) -> F + 'static) {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("slow", Image::blank(DiskOptions::new(size)));
    env.put_disk("fast", Image::blank(DiskOptions::new(4 << 20)));
    world.run(async move { test(env).await }).unwrap_or_else(|hang| panic!("{hang:?}"));
}

fn resize(env: &Rc<SimEnv>, size: u64) {
    env.disk("slow").expect("it was put there").resize(size);
}

#[test]
fn what_was_cut_off_does_not_come_back() {
    run(STORE, |env| async move {
        let open = Open::of(&env, Begin::Format).await.expect("open");
        put(&open.top, 200 * 4096, 4096, 7).await.expect("written");
        put(&open.top, 4096, 4096, 8).await.expect("written");
        open.drain().await;
        open.close().await;
        resize(&env, STORE / 2);
        Open::of(&env, Begin::Open).await.expect("open").close().await;
        resize(&env, STORE);
        // Something else is there now.
        put(&disk(&env, "slow"), 200 * 4096, 4096, 9).await.expect("written");
        let open = Open::of(&env, Begin::Open).await.expect("open");
        assert_eq!((get(&open.top, 200 * 4096, 1024).await[0], get(&open.top, 4096, 1024).await[0]), (9, 8));
        open.close().await;
    });
}

#[test]
fn a_store_that_is_too_small_for_what_it_gets_is_an_error() {
    run(STORE, |env| async move {
        let open = Open::of(&env, Begin::Format).await.expect("open");
        put(&open.top, 200 * 4096, 4096, 7).await.expect("written");
        resize(&env, STORE / 2);
        open.refresh();
        env.sleep(Duration::from_secs(3)).await;
        let trouble = open.top.info()["store_trouble"].to_string();
        assert!(trouble.contains("give it its size back"), "{trouble}");
        open.close().await;
        let e = Open::of(&env, Begin::Open).await.err().expect("refused").to_string();
        assert!(e.contains("give it its size back"), "{e}");
        resize(&env, STORE);
        let open = Open::of(&env, Begin::Open).await.expect("open");
        open.drain().await;
        assert_eq!(get(&disk(&env, "slow"), 200 * 4096, 4096).await, [7; 4096]);
        open.close().await;
    });
}

/// What fills up the last block is never read, nor written, where the store has something by then.
#[test]
fn a_last_block_that_is_not_whole_grows() {
    for (drained, reopened) in [(true, true), (true, false), (false, true), (false, false)] {
        run(STORE + 1024, move |env| async move {
            let open = Open::of(&env, Begin::Format).await.expect("open");
            put(&open.top, STORE - 512, 1024, 5).await.expect("written");
            get(&open.top, STORE - 4096, 5120).await;
            open.top.submit(Io::flush()).await.expect("flushed");
            if drained {
                open.drain().await;
            }
            let open = match reopened {
                true => {
                    open.close().await;
                    resize(&env, STORE + 4096);
                    put(&disk(&env, "slow"), STORE + 1024, 3072, 9).await.expect("written");
                    Open::of(&env, Begin::Open).await.expect("open")
                }
                false => {
                    resize(&env, STORE + 4096);
                    put(&disk(&env, "slow"), STORE + 1024, 3072, 9).await.expect("written");
                    open.refresh();
                    open
                }
            };
            open.drain().await;
            let mut expected = vec![5; 512];
            expected.resize(1024, 0);
            expected.resize(4096, 9);
            assert_eq!(get(&disk(&env, "slow"), STORE, 4096).await, expected, "below, {drained} {reopened}");
            assert_eq!(get(&open.top, STORE, 4096).await, expected, "{drained} {reopened}");
            open.close().await;
        });
    }
}
