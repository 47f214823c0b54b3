//! Volumes with snapshots: any bytes are in what such a volume keeps of itself.
//!
//! The first byte says which good volume it was: at one of the three levels, with its map on the device or
//! beside it, made or taken over. The rest are pieces: each puts bytes into an object of the volume's
//! metadata store (the head, the table of snapshots, the map, the bitmaps), which thus has the checksums that
//! it ought to have, or turns bits of a block of the store, which then has not. What must hold: no panic, no
//! hang, memory within bounds; an error, or a volume that can be used, and opened again; and what a check has
//! repaired without losing anything is right when it is checked again.

#![no_main]

use lamina_block::{Begin, Buf, Build, Class, Command, Durability, Env, Io, Level, Node, Result, Zero};
use lamina_metadata::{Change, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const DISK: u64 = 1 << 20;
const META: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// What the volume may keep in memory (the key `memory`), and what is always there beside it.
const MEMORY: u64 = (1 << 20) + (1 << 18);
/// The most that one request is about.
const FEW: u64 = 1 << 20;

/// Where the map is, and how the volume came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Head,
    Beside,
    Adopted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct How(u8, Place);

impl How {
    fn of(mode: u8) -> How {
        let places = [Place::Head, Place::Beside, Place::Adopted];
        let place = places[usize::from(mode / 3 % 3)];
        // A device that is taken over whole has no extent left for a write at `atomic`.
        How(mode % if place == Place::Adopted { 2 } else { 3 }, place)
    }

    fn store(self) -> &'static str {
        if self.1 == Place::Head { "disk" } else { "meta" }
    }
}

fn node(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "sim", Rc::clone(env) as _, env.disk(name).expect("it is there"))
}

async fn volume(env: &Rc<SimEnv>, how: How, begin: Begin) -> Result<Rc<Node>> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let kind =
        lamina_layers::KINDS.iter().find(|kind| kind.name == "snapshot").expect("there is such a layer");
    let mut keys = json!({ "memory": "1MiB" });
    if begin == Begin::Format {
        keys["size"] = json!("512KiB");
    }
    if begin != Begin::Open {
        keys["extent"] = json!("4KiB");
    }
    let keys = kind.parse(&keys).expect("good keys");
    let metadata = (how.1 != Place::Head).then(|| node(env, "meta"));
    let level = Level::ALL[usize::from(how.0)];
    let with = Build { begin, metadata, level, ..Build::new("vol", &world, vec![node(env, "disk")]) };
    Ok(Node::new("vol", "snapshot", world, keys.build(with).await?))
}

async fn command(node: &Rc<Node>, name: &str, args: Value) -> Result<Value> {
    node.control(Command { name: name.into(), args }).await
}

async fn write(node: &Rc<Node>, at: u64, value: u8, len: usize) -> Result<()> {
    node.submit(Io::write(at, Buf::from_vec(vec![value; len]), Durability::Cached)).await
}

/// A volume with two snapshots, each of which has something of its own.
fn good(how: How) -> Images {
    let world = Simulation::new(1);
    let env = world.env();
    for (name, size) in [("disk", DISK), ("meta", META)] {
        let mut options = DiskOptions::new(size);
        (options.geometry.discard, options.geometry.zero) = (true, true);
        env.put_disk(name, Image::blank(options));
    }
    let making = async move {
        let begin = if how.1 == Place::Adopted { Begin::Adopt } else { Begin::Format };
        let vol = volume(&env, how, begin).await?;
        if how.1 == Place::Adopted {
            // There is no room for anything else, unless something is given back.
            vol.submit(Io::discard(512 << 10..1 << 20)).await?;
            vol.submit(Io::flush()).await?;
        }
        write(&vol, 0, 1, 64 << 10).await?;
        command(&vol, "snapshot", json!({ "name": "one" })).await?;
        write(&vol, 8192, 2, 8192).await?;
        command(&vol, "snapshot", json!({ "name": "two" })).await?;
        write(&vol, 256 << 10, 3, 4096).await?;
        vol.submit(Io::discard(0..8192)).await?;
        vol.submit(Io::flush()).await?;
        vol.close().await?;
        Ok::<_, lamina_block::Error>(env.twins())
    };
    world.run(making).expect("it ends").expect("a good volume")
}

thread_local! {
    static GOOD: RefCell<BTreeMap<How, Images>> = const { RefCell::new(BTreeMap::new()) };
}

/// Puts the pieces into the store.
async fn spoil(env: &Rc<SimEnv>, how: How, mut input: &[u8]) {
    let disk = node(env, how.store());
    let region = Region::new(Rc::clone(&disk), 0..disk.geometry().size).expect("it fits");
    let store =
        Store::open(&(Rc::clone(env) as Rc<dyn Env>), region, Options::default()).await.expect("it is good");
    let objects = store.objects();
    let blocks = store.region_len() / BLOCK;
    let mut turned = Vec::new();
    while let [which, at_low, at_high, len, rest @ ..] = input {
        let at = u64::from(*at_low) | u64::from(*at_high) << 8;
        let len = usize::from(*len).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        input = rest;
        if which & 0x80 != 0 {
            turned.push((at % blocks, *which & 0x7F));
            continue;
        }
        let (id, size, _) = objects[usize::from(*which) % objects.len()];
        let at = at % size;
        let change = Change::new().write(id, at, &bytes[..len.min((size - at) as usize)]);
        store.change(change).await.expect("it fits");
        store.commit().await.expect("committed");
    }
    store.close().await.expect("closed");
    for (block, mask) in turned {
        let buf = Buf::zeroed(BLOCK as usize);
        disk.submit(Io::read(block * BLOCK, buf.clone())).await.expect("reads");
        let mut bytes = buf.to_vec();
        bytes[usize::from(mask) * 32] ^= 0x55;
        let write = Io::write(block * BLOCK, Buf::from_vec(bytes), Durability::Fua);
        disk.submit(write).await.expect("writes");
    }
}

/// Requests to the volume: whatever they come to.
async fn use_it(vol: &Rc<Node>, value: u8) {
    let geometry = vol.geometry();
    let (size, block) = (geometry.size, u64::from(geometry.block));
    assert!(size > 0 && size.is_multiple_of(block), "{size} bytes in blocks of {block}");
    for at in [0, 8192, size / 2 / block * block, size - block] {
        let few = block.min(size - at.min(size));
        if few < block {
            continue;
        }
        let _ = vol.submit(Io::read(at, Buf::zeroed(block as usize))).await;
        let _ = write(vol, at, value, block as usize).await;
        let _ = vol.submit(Io::zero(at..size.min(at + 8192), Zero::default())).await;
        let _ = vol.extents(at..size.min(at + FEW)).await;
    }
    let _ = vol.submit(Io::discard(0..size.min(FEW) / 2)).await;
    let _ = vol.submit(Io::flush()).await;
}

async fn look_at_views(vol: &Rc<Node>, env: &Rc<SimEnv>) {
    let info = vol.info();
    for snapshot in info["snapshots"].as_array().expect("a list") {
        let Ok(made) = vol.view(snapshot["name"].as_str().expect("a name")).await else { continue };
        let view = Node::new("view", "view", Rc::clone(env) as _, made);
        let geometry = view.geometry();
        let (size, block) = (geometry.size, u64::from(geometry.block));
        assert!(size > 0 && size.is_multiple_of(block), "{size} bytes in blocks of {block}");
        for at in [0, size - block] {
            let _ = view.submit(Io::read(at, Buf::zeroed(block as usize))).await;
            let _ = view.extents(at..size.min(at + FEW)).await;
        }
        view.close().await.expect("a view closes");
    }
}

/// What is put right stays so.
async fn check(vol: &Rc<Node>) {
    let _ = vol.check(false).await;
    let Ok(repaired) = vol.check(true).await else { return };
    if repaired.iter().any(|finding| finding.class == Class::Lost) || vol.geometry().read_only {
        return;
    }
    let again = vol.check(false).await.expect("it was looked at before");
    assert!(!again.iter().any(|finding| finding.is_damage()), "{repaired:?} and then {again:?}");
}

fn is_within_bounds(vol: &Rc<Node>) {
    let memory = vol.info()["memory"].as_u64().expect("a number");
    assert!(memory <= MEMORY, "{memory} bytes");
}

async fn run(env: Rc<SimEnv>, how: How, input: &[u8]) {
    spoil(&env, how, input).await;
    let Ok(vol) = volume(&env, how, Begin::Open).await else { return };
    look_at_views(&vol, &env).await;
    use_it(&vol, 7).await;
    is_within_bounds(&vol);
    check(&vol).await;
    let kept = command(&vol, "snapshot", json!({ "name": "three" })).await;
    use_it(&vol, 8).await;
    let _ = command(&vol, "rollback", json!({ "name": "one" })).await;
    let _ = command(&vol, "delete", json!({ "name": "two" })).await;
    use_it(&vol, 9).await;
    look_at_views(&vol, &env).await;
    is_within_bounds(&vol);
    if vol.close().await.is_ok() {
        let vol = volume(&env, how, Begin::Open).await.expect("what was closed is opened");
        let there = command(&vol, "list", json!({})).await.expect("a list").to_string();
        assert!(kept.is_err() || there.contains("three"));
        check(&vol).await;
        let _ = vol.close().await;
    }
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let how = How::of(*mode);
    let images = GOOD.with(|good| good.borrow_mut().entry(how).or_insert_with(|| self::good(how)).clone());
    let world = Simulation::from_images(1, &images);
    let (env, rest) = (world.env(), rest.to_vec());
    world.run(async move { run(env, how, &rest).await }).expect("ends");
    assert_eq!(world.env().take_finding(), None);
});
