//! Every damage of a store is found where it is, and a whole store has none, nor has one that outlived a crash.

mod common;

use common::{Dies, REGION, nothing, open, work};
use lamina_block::{Buf, Durability, Env, Geometry, Io, Layer, Manage, Node, Passthrough, Step};
use lamina_metadata::check::{Checked, Damage, check};
use lamina_metadata::{Change, Format, Level, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use std::rc::Rc;

const BLOCK: u64 = 4096;
const LOG: u64 = 16;

/// Where a slot of a page lies, as `docs/formats/metadata.md` draws it.
fn slot(page: u64, slot: u64) -> u64 {
    (2 + LOG + 2 * page + slot) * BLOCK
}

/// A closed store with an object of three pages, all of them written twice.
async fn store(env: &Rc<dyn Env>, node: &Rc<Node>, level: Level) {
    let region = Region::new(Rc::clone(node), 0..2 << 20).expect("it fits");
    let format = Format { level, log: LOG * BLOCK, objects: 62 };
    Store::format(env, &region, format).await.expect("made");
    for value in [1, 2] {
        let store = Store::open(env, region.clone(), Options::default()).await.expect("opened");
        let table = match store.find(7) {
            Some(id) => store.load(id).expect("there"),
            None => store.alloc(3 * 4064, 7).await.expect("space"),
        };
        let change =
            (0..3).fold(Change::new(), |change, page| change.write(table.id(), page * 4064, [value; 8]));
        store.change(change).await.expect("changed");
        store.flush().await.expect("written back");
        store.close().await.expect("closed");
    }
}

async fn spoil(node: &Rc<Node>, at: u64) {
    let buf = Buf::zeroed(BLOCK as usize);
    node.submit(Io::read(at, buf.clone())).await.expect("read");
    let mut bytes = buf.to_vec();
    bytes[100] ^= 1;
    node.submit(Io::write(at, Buf::from_vec(bytes), Durability::Fua)).await.expect("written");
}

/// The findings after these blocks were damaged.
fn checked(level: Level, spoilt: &'static [u64]) -> Checked {
    let world = Simulation::new(1);
    let env: Rc<dyn Env> = world.env();
    let disk = world.env().put_disk("disk", Image::blank(DiskOptions::new(2 << 20)));
    world
        .run(async move {
            let node = Node::new("disk", "simulated", Rc::clone(&env), disk);
            store(&env, &node, level).await;
            for at in spoilt {
                spoil(&node, *at).await;
            }
            let checked = check(&node).await.expect("it can be looked at");
            assert_eq!((checked.level, checked.objects, checked.pages), (level, 1, 4));
            assert_eq!(checked.damaged, checked.damage.len() as u64);
            checked
        })
        .expect("it ends")
}

fn found(level: Level, spoilt: &'static [u64]) -> Vec<Damage> {
    checked(level, spoilt).damage
}

#[test]
fn damage_is_found_where_it_is() {
    let (directory, first) = (slot(0, 0), slot(1, 0));
    assert_eq!((directory, first), (18 * BLOCK, 20 * BLOCK));
    for level in Level::ALL {
        assert_eq!(found(level, &[]), []);
        // There, a crash may have left the copy half-written, and damage cannot be told apart.
        let lazy = level == Level::Lazy;
        let copy = |page| if lazy { vec![] } else { vec![Damage::Copy { page, object: 1 }] };
        assert_eq!(found(level, &[20 * BLOCK]), copy(1));
        assert_eq!(found(level, &[25 * BLOCK]), copy(3));
        assert_eq!(checked(level, &[20 * BLOCK, 25 * BLOCK]).half_written, if lazy { 2 } else { 0 });
        assert_eq!(found(level, &[22 * BLOCK, 23 * BLOCK]), [Damage::Page { page: 2, object: 1 }]);
        // Not in use.
        assert_eq!(found(level, &[60 * BLOCK]), []);
    }
    assert_eq!(found(Level::Shadow, &[0]), [Damage::Root(0)]);
    assert_eq!(found(Level::Shadow, &[BLOCK]), [Damage::Root(1)]);
}

#[test]
fn what_is_no_store_is_refused() {
    let world = Simulation::new(1);
    let env: Rc<dyn Env> = world.env();
    for (size, says) in [(4096, "too small"), (1 << 20, "no metadata store")] {
        let disk = world.env().put_disk("disk", Image::blank(DiskOptions::new(size)));
        let node = Node::new("disk", "simulated", Rc::clone(&env), disk);
        let e = world.run(async move { check(&node).await }).expect("it ends").expect_err("no store");
        assert!(e.message().contains(says), "{e}");
    }
}

/// The region of the store as a device of its own.
struct Part(Rc<Node>);

impl Layer for Part {
    fn geometry(&self) -> Geometry {
        self.0.geometry().with_size(REGION.end - REGION.start)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        io.move_to(io.at.start + REGION.start);
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.0, REGION.start)
    }
}

impl Manage for Part {}

fn part(env: &Rc<SimEnv>) -> Rc<Node> {
    let part = Rc::new(Part(common::node(env, &nothing())));
    Node::new("part", "part", Rc::clone(env) as _, part)
}

/// The findings when a store was opened after the power has failed: no damage. Under `lazy` pages are half written now
/// and then, which is no damage either.
#[test]
fn a_crash_is_no_damage() {
    for level in Level::ALL {
        let mut half_written = 0;
        for seed in 0..4 {
            let (_, crashes) = work(level, seed, 60, 4, &nothing(), Dies::Machine).expect("it works");
            for (i, crash) in crashes.iter().enumerate() {
                let world = Simulation::from_images(seed, &crash.images);
                let env = world.env();
                let checked = world.run(async move {
                    let store = open(&env, &nothing()).await.expect("it opens");
                    let checked = check(&part(&env)).await.expect("it can be looked at");
                    store.close().await.expect("it closes");
                    checked
                });
                let checked = checked.expect("it ends");
                assert_eq!(checked.damage, [], "{level:?}, seed {seed}, crash {i}");
                half_written += checked.half_written;
            }
        }
        assert_eq!(
            half_written > 0,
            level == Level::Lazy,
            "{level:?}: {half_written} pages were half-written"
        );
    }
}
