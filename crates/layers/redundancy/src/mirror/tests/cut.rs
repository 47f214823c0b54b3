//! Legs that were cut short, and may have their size back, with zeroes: they get everything, and nobody gets theirs.

use super::*;
use lamina_block::Error;
use lamina_kit::flaw::FLAW;

/// Everything from byte `from` on is zeroes, as in a file that was cut there and made as long as before.
pub async fn cut(env: &Rc<SimEnv>, name: &str, from: u64) {
    let node = child(env, name);
    let size = node.geometry().size;
    let zeroes = Buf::zeroed((size - from) as usize);
    node.submit(Io::write(from, zeroes, Durability::Fua)).await.expect("cut");
}

/// Every request to a disk fails as of one that has lost its end while it was open.
pub fn truncated(env: &Rc<SimEnv>, name: &'static str) {
    env.set_fault(Some(Box::new(move |_, disk, _| {
        (disk == name).then(|| Error::new(ErrorKind::Truncated, "a simulated cut"))
    })));
}

async fn filled(env: &Rc<SimEnv>) -> Open {
    let open = open(env, &["a", "b"], keys(), Begin::Format).await.expect("made");
    let bytes = Buf::from_vec(pattern(SIZE as usize));
    open.node.submit(Io::write(0, bytes, Durability::Cached)).await.expect("written");
    open.node.submit(Io::flush()).await.expect("flushed");
    open
}

/// Opens both, waits, and looks at every byte, of each leg too.
async fn becomes_right(env: &Rc<SimEnv>, copied: u64) {
    let open = open(env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
    assert!(bytes_of(&open.node, 0..SIZE).await == pattern(SIZE as usize), "at once");
    env.sleep(Duration::from_secs(2)).await;
    open.whole().await;
    assert_eq!(
        (open.roles(), open.node.info()["copied"].as_u64()),
        (vec!["in sync".into(); 2], Some(copied))
    );
    open.same().await.expect("the same");
    assert!(bytes_of(&open.node, 0..SIZE).await == pattern(SIZE as usize));
    open.node.close().await.expect("closed");
}

fn simulate<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = world(3);
    world.run(test(world.env())).expect("it ends");
}

pub fn a_leg_that_was_cut_short_while_closed_gets_everything() {
    for (name, from) in [("a", 0), ("b", 65536), ("a", 65536), ("a", SIZE)] {
        simulate(|env| async move {
            filled(&env).await.node.close().await.expect("closed");
            cut(&env, name, from).await;
            becomes_right(&env, SIZE).await;
            becomes_right(&env, 0).await;
        });
    }
}

#[test]
fn while_closed() {
    a_leg_that_was_cut_short_while_closed_gets_everything();
    FLAW.set(Some("a leg without its end is trusted"));
    let caught = std::panic::catch_unwind(a_leg_that_was_cut_short_while_closed_gets_everything);
    FLAW.set(None);
    assert!(caught.is_err(), "a leg that is trusted is not caught");
}

#[test]
fn after_a_crash() {
    for name in ["a", "b"] {
        let world = world(3);
        let env = world.env();
        let images =
            world.run(async move { (filled(&env).await, env.images(Loss::All, 1)).1 }).expect("it ends");
        let world = Simulation::from_images(4, &images);
        let env = world.env();
        world
            .run(async move {
                cut(&env, name, 65536).await;
                becomes_right(&env, SIZE).await;
            })
            .expect("it ends");
    }
}

#[test]
fn a_leg_that_was_cut_short_while_it_was_away_gets_everything() {
    simulate(|env| async move {
        let open = filled(&env).await;
        open.set_here("b", false);
        open.node.submit(Io::flush()).await.expect("flushed");
        assert_eq!(open.roles(), ["in sync", "away"]);
        open.set_here("b", true);
        cut(&env, "b", 65536).await;
        env.sleep(Duration::from_secs(2)).await;
        open.whole().await;
        assert_eq!(
            (open.roles(), open.node.info()["copied"].as_u64()),
            (vec!["in sync".into(); 2], Some(SIZE))
        );
        open.same().await.expect("the same");
        assert!(bytes_of(&open.node, 0..SIZE).await == pattern(SIZE as usize));
    });
}

/// A cut that is noticed while it is open: the leg has nothing from then on, also after a crash and when its
/// intent is there.
#[test]
fn while_open() {
    for request in [Io::read(0, Buf::zeroed(SIZE as usize)), Io::flush()] {
        for name in ["a", "b"] {
            let (world, request) = (world(3), request.clone());
            let env = world.env();
            let images = world
                .run(async move {
                    let open = filled(&env).await;
                    truncated(&env, name);
                    for _ in 0..4 {
                        open.node.submit(request.clone()).await.expect("the other one has it");
                    }
                    let leg = usize::from(name == "b");
                    assert_eq!(open.roles()[leg], "away");
                    assert_eq!(open.node.info()["legs"][leg]["out_of_sync_bytes"], SIZE);
                    open.node.submit(Io::flush()).await.expect("kept");
                    env.set_fault(None);
                    let data = Buf::zeroed(SIZE as usize - 65536);
                    child(&env, name).submit(Io::write(65536, data, Durability::Fua)).await.expect("lost");
                    env.images(Loss::All, 1)
                })
                .expect("it ends");
            let world = Simulation::from_images(4, &images);
            let env = world.env();
            world.run(async move { becomes_right(&env, SIZE).await }).expect("it ends");
        }
    }
}

#[test]
fn the_last_leg_that_is_cut_short_fails_what_is_asked() {
    simulate(|env| async move {
        let open = open(&env, &["a"], keys(), Begin::Format).await.expect("made");
        truncated(&env, "a");
        for io in
            [Io::read(0, Buf::zeroed(512)), Io::write(0, Buf::zeroed(512), Durability::Cached), Io::flush()]
        {
            assert_eq!(open.node.submit(io).await.unwrap_err().kind(), ErrorKind::Truncated);
        }
    });
}

#[test]
fn what_one_intent_says_counts_when_the_other_is_damaged() {
    simulate(|env| async move {
        filled(&env).await.node.close().await.expect("closed");
        let a = child(&env, "a");
        let mut sheet = bytes_of(&a, SIZE..SIZE + 512).await;
        sheet[100] ^= 1;
        a.submit(Io::write(SIZE, Buf::from_vec(sheet), Durability::Fua)).await.expect("damaged");
        let open = open(&env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
        assert_eq!(
            (open.roles(), open.node.info()["needs_resync_bytes"].as_u64()),
            (vec!["in sync".into(); 2], Some(0))
        );
        open.node.close().await.expect("closed");
        // It is written anew.
        assert_eq!(bytes_of(&a, SIZE..SIZE + 512).await, bytes_of(&child(&env, "b"), SIZE..SIZE + 512).await);
    });
}

#[test]
fn a_leg_that_is_too_short_is_out_until_it_has_its_size_back() {
    simulate(|env| async move {
        filled(&env).await.node.close().await.expect("closed");
        let disk = env.disk("b").expect("a disk");
        let size = child(&env, "b").geometry().size;
        disk.resize(65536);
        let open = open(&env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
        env.sleep(Duration::from_secs(3)).await;
        assert_eq!(open.roles(), ["in sync", "away"]);
        assert!(bytes_of(&open.node, 0..SIZE).await == pattern(SIZE as usize));
        open.node.close().await.expect("closed");
        disk.resize(size);
        becomes_right(&env, SIZE).await;
    });
}
