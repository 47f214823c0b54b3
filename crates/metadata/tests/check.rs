//! Every damage of a store is found where it is, and a whole store has none.

use lamina_block::{Buf, Durability, Env, Io, Node};
use lamina_metadata::check::{Damage, check};
use lamina_metadata::{Change, Format, Level, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, Simulation};
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
            None => store.alloc(3 * 4064, 7).await.expect("room"),
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

/// What is found after these blocks were damaged.
fn found(level: Level, spoilt: &'static [u64]) -> Vec<Damage> {
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
            checked.damage
        })
        .expect("it ends")
}

#[test]
fn damage_is_found_where_it_is() {
    let (directory, first) = (slot(0, 0), slot(1, 0));
    assert_eq!((directory, first), (18 * BLOCK, 20 * BLOCK));
    for level in Level::ALL {
        assert_eq!(found(level, &[]), []);
        assert_eq!(found(level, &[20 * BLOCK]), [Damage::Copy { page: 1, object: 1 }]);
        assert_eq!(found(level, &[25 * BLOCK]), [Damage::Copy { page: 3, object: 1 }]);
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
