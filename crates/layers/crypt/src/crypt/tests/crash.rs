//! The power fails at every write while keyslots change: one of the keys that were good opens the volume, always.

use super::*;
use lamina_sim::{DiskOptions, Image, Images, Loss};
use std::cell::RefCell;
use std::future::Future;

const MIB: u64 = 1 << 20;

fn wide() -> Value {
    keys(json!({ "header-size": MIB }))
}

fn with_key(path: &str) -> Value {
    let mut keys = wide();
    keys["key-file"] = path.into();
    keys
}

fn disk(env: &Rc<SimEnv>) -> Rc<Node> {
    let disk = env.disk("disk").unwrap_or_else(|| {
        let geometry = Geometry::new(MIB + (64 << 10));
        let options = DiskOptions { geometry, ..DiskOptions::new(geometry.size) };
        env.put_disk("disk", Image::blank(options))
    });
    Node::new("disk", "simulated", Rc::clone(env) as Rc<dyn Env>, disk)
}

/// Takes images of the disk before each change of it.
fn camera(env: &Rc<SimEnv>, seed: u64) -> Rc<RefCell<Vec<Images>>> {
    let images = Rc::new(RefCell::new(Vec::new()));
    let (weak, into, random) = (Rc::downgrade(env), Rc::clone(&images), RefCell::new(xorshift(seed * 2 + 1)));
    env.observe(Some(Rc::new(move || {
        let draw = || (random.borrow_mut())();
        let Some(env) = weak.upgrade() else { return };
        into.borrow_mut().push(env.after_death(draw() >> 8, draw()));
    })));
    images
}

/// The state of a volume, opened by one of two keys.
struct Opened {
    vault: Rc<Node>,
    by: &'static str,
}

async fn open_by_either(env: &Rc<SimEnv>) -> Result<Opened> {
    let mut result = Err(Error::offline("it was not tried"));
    for by in ["/key", "/new"] {
        match open(env, &disk(env), with_key(by), Begin::Open).await {
            Ok(vault) => return Ok(Opened { vault, by }),
            Err(e) => result = Err(e),
        }
    }
    result
}

/// Makes a volume, carries out `work` on it, and gives what a crash at every moment of it leaves.
fn crashes<F: Future<Output = ()> + 'static>(
    seed: u64,
    work: impl FnOnce(Rc<SimEnv>, Rc<Node>) -> F + 'static,
) -> Vec<Images> {
    let (world, env) = scene(seed);
    world
        .run(async move {
            let vault = open(&env, &disk(&env), wide(), Begin::Format).await.unwrap();
            put(&vault, 0, &pattern(4096)).await;
            vault.submit(Io::flush()).await.unwrap();
            let images = camera(&env, seed);
            work(Rc::clone(&env), vault).await;
            env.observe(None);
            images.borrow_mut().push(env.images(Loss::All, seed));
            images.take()
        })
        .expect("it ends")
}

/// After a crash: runs `then` with the volume, which must open and hold its data.
fn after<F: Future<Output = ()> + 'static>(
    images: &Images,
    then: impl FnOnce(Rc<SimEnv>, Opened) -> F + 'static,
) {
    let world = Simulation::from_images(3, images);
    let env = world.env();
    put_keys(&env);
    world
        .run(async move {
            let opened = open_by_either(&env).await.expect("no key opens the volume after a crash");
            assert_eq!(get(&opened.vault, 0, 4096).await, pattern(4096));
            then(env, opened).await;
        })
        .expect("it ends");
}

#[test]
fn a_change_of_the_key_can_crash_anywhere_and_be_given_again() {
    let mut seen = HashSet::new();
    for seed in 0..4 {
        let images = crashes(seed, |_, vault| async move {
            tell(&vault, "key-change", json!({ "key-file": "/new" })).await.unwrap();
        });
        assert!(images.len() > 8, "{} moments", images.len());
        for image in &images {
            let by = Rc::new(RefCell::new(""));
            let told = Rc::clone(&by);
            after(image, |env, opened| async move {
                *told.borrow_mut() = opened.by;
                if opened.by == "/key" {
                    tell(&opened.vault, "key-change", json!({ "key-file": "/new" })).await.unwrap();
                }
                drop(opened);
                open(&env, &disk(&env), with_key("/new"), Begin::Open).await.expect("the new key opens it");
                let old = open(&env, &disk(&env), with_key("/key"), Begin::Open).await;
                assert!(old.is_err(), "the old key still opens it");
            });
            seen.insert(*by.borrow());
        }
    }
    assert_eq!(seen.len(), 2, "crashes before and after the change: {seen:?}");
}

/// And again, after the first crash, at every write of the second attempt; also when a copy of the header is stale.
#[test]
fn a_second_crash_during_the_second_attempt_loses_nothing() {
    for seed in 0..2 {
        let first = crashes(seed, |_, vault| async move {
            tell(&vault, "key-change", json!({ "key-file": "/new" })).await.unwrap();
        });
        for image in &first {
            let second = Rc::new(RefCell::new(Vec::new()));
            let into = Rc::clone(&second);
            after(image, move |env, opened| async move {
                let images = camera(&env, seed + 10);
                let to = if opened.by == "/key" { "/new" } else { "/key" };
                tell(&opened.vault, "key-change", json!({ "key-file": to })).await.unwrap();
                env.observe(None);
                into.replace(images.take());
            });
            for image in second.take() {
                after(&image, |_, _| async {});
            }
        }
    }
}

#[test]
fn keyslots_that_are_added_or_removed_can_crash_anywhere() {
    for seed in 0..4 {
        let images = crashes(seed, |_, vault| async move {
            tell(&vault, "keyslot-add", json!({ "key-file": "/new" })).await.unwrap();
            tell(&vault, "keyslot-remove", json!({ "keyslot": 1 })).await.unwrap();
        });
        for image in &images {
            after(image, |env, opened| async move {
                assert_eq!(opened.by, "/key");
                // A keyslot that nothing opens may be left, and can be taken away.
                if opened.vault.info()["keyslots"].as_array().unwrap().len() > 1 {
                    tell(&opened.vault, "keyslot-remove", json!({ "keyslot": 1 })).await.unwrap();
                }
                let new = open(&env, &disk(&env), with_key("/new"), Begin::Open).await;
                assert!(new.is_err(), "a key that was taken away opens it");
            });
        }
    }
}

/// Damages a copy of the header.
async fn damage(env: &Rc<SimEnv>, at: u64) {
    put(&disk(env), at + 4096, &[0xFF; 512]).await;
    disk(env).submit(Io::flush()).await.unwrap();
}

/// A copy is damaged, and the power fails at every write of a change. `spoil`: the change takes the damaged
/// copy for the good one, and so writes over the only good one first.
fn crashes_with_a_damaged_copy(seed: u64, at: u64, spoil: bool) -> Vec<Images> {
    let (world, env) = scene(seed);
    world
        .run(async move {
            let vault = open(&env, &disk(&env), wide(), Begin::Format).await.unwrap();
            put(&vault, 0, &pattern(4096)).await;
            vault.submit(Io::flush()).await.unwrap();
            drop(vault);
            damage(&env, at).await;
            let layer = raw(&env, &disk(&env)).await;
            assert!(layer.luks.fault().is_some());
            if spoil {
                layer.luks.take_the_other_for_good();
            }
            let images = camera(&env, seed);
            let change = Command { name: "keyslot-add".into(), args: json!({ "key-file": "/new" }) };
            layer.carry_out(change).await.unwrap();
            env.observe(None);
            images.take()
        })
        .expect("it ends")
}

#[test]
fn the_only_good_copy_is_never_written_first() {
    for at in [0, 16 << 10] {
        for image in (0..3).flat_map(|seed| crashes_with_a_damaged_copy(seed, at, false)) {
            after(&image, |_, _| async {});
        }
    }
}

#[test]
fn canary_the_only_good_copy_is_written_first() {
    let lost = (0..8).flat_map(|seed| crashes_with_a_damaged_copy(seed, 0, true)).any(|image| {
        let world = Simulation::from_images(3, &image);
        let env = world.env();
        put_keys(&env);
        world.run(async move { open_by_either(&env).await.is_err() }).expect("it ends")
    });
    assert!(lost, "nobody noticed");
}

/// The layer without its node.
async fn raw(env: &Rc<SimEnv>, child: &Rc<Node>) -> Rc<super::super::Crypt> {
    let env: Rc<dyn Env> = Rc::clone(env) as Rc<dyn Env>;
    let keys: Keys = serde_json::from_value(wide()).unwrap();
    let with = Build::new("vault", &env, vec![Rc::clone(child)]);
    Rc::new(super::super::open::open(keys, with).await.unwrap())
}
