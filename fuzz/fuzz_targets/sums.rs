//! Layers with a table of digests: any bytes are what they find.
//!
//! The input is put over the disk of a good layer, block by block: each piece says which block, where in it,
//! and the bytes; then the checksum of what a page of the store seems to be is made right, if the piece asks
//! for that. What must hold: no panic, no hang; an error, or a layer that can be used, asked, checked,
//! repaired and closed.

#![no_main]

use lamina_block::{Begin, Buf, Build, Command, Durability, Env, Io, Node};
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::rc::Rc;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 100;
const KINDS: [&str; 2] = ["integrity", "fingerprint"];

fn disk(env: &Rc<SimEnv>) -> Rc<Node> {
    Node::new("disk", "sim", Rc::clone(env) as _, env.disk("disk").expect("it is there"))
}

async fn open(env: &Rc<SimEnv>, kind: &str, begin: Begin) -> lamina_block::Result<Rc<Node>> {
    let dyn_env: Rc<dyn Env> = Rc::clone(env) as _;
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("it is there");
    let with = Build { begin, ..Build::new("top", &dyn_env, vec![disk(env)]) };
    let layer = kind.parse(&json!({ "memory": "1MiB" })).expect("keys").build(with).await?;
    Ok(Node::new("top", kind.name, dyn_env, layer))
}

async fn ask(node: &Rc<Node>, name: &str, args: Value) {
    let _may_be_damaged = node.control(Command { name: name.into(), args }).await;
}

/// A layer with something in it, and something in its log.
fn good(kind: &'static str) -> Images {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("disk", Image::blank(DiskOptions::new(BLOCKS * BLOCK as u64)));
    let making = async move {
        let node = open(&env, kind, Begin::Format).await?;
        node.submit(Io::write(0, Buf::from_vec(vec![7; 5 * BLOCK]), Durability::Cached)).await?;
        ask(&node, "mark", json!({ "name": "m" })).await;
        node.close().await?;
        let node = open(&env, kind, Begin::Open).await?;
        node.submit(Io::write(8192, Buf::from_vec(vec![8; BLOCK]), Durability::Fua)).await?;
        ask(&node, "mark", json!({ "name": "n" })).await;
        Ok::<_, lamina_block::Error>(env.twins())
    };
    world.run(making).expect("it ends").expect("a good layer")
}

thread_local! {
    static GOOD: [OnceCell<Images>; 2] = const { [OnceCell::new(), OnceCell::new()] };
}

async fn damage(env: &Rc<SimEnv>, mut input: &[u8]) {
    let disk = disk(env);
    while let [number, flags, at_low, at_high, len, rest @ ..] = input {
        let number = u64::from(*number) % BLOCKS * BLOCK as u64;
        let at = (usize::from(*at_low) | usize::from(*at_high) << 8) % BLOCK;
        let len = usize::from(*len).min(rest.len()).min(BLOCK - at);
        let buf = Buf::zeroed(BLOCK);
        disk.submit(Io::read(number, buf.clone())).await.expect("reads");
        buf.write(at, &rest[..len]);
        if flags & 1 == 1 {
            let crc = crc32c::crc32c(&buf.to_vec()[..BLOCK - 4]);
            buf.write(BLOCK - 4, &crc.to_le_bytes());
        }
        disk.submit(Io::write(number, buf, Durability::Fua)).await.expect("writes");
        input = &rest[len..];
    }
}

async fn use_it(node: &Rc<Node>) {
    let size = node.geometry().size;
    for at in (0..size).step_by(8 * BLOCK) {
        let buf = Buf::zeroed((size - at).min(8 * BLOCK as u64) as usize);
        let _may_be_damaged = node.submit(Io::read(at, buf)).await;
    }
    for (name, args) in [
        ("scrub", json!({})),
        ("verify", json!({})),
        ("at", json!({ "offset": 8192 })),
        ("where", json!({ "hash": "00".repeat(32) })),
        ("duplicates", json!({})),
        ("changed", json!({ "name": "m" })),
        ("unmark", json!({ "name": "n" })),
    ] {
        ask(node, name, args).await;
    }
    let _may_be_damaged = node.submit(Io::write(512, Buf::zeroed(BLOCK), Durability::Cached)).await;
    let _may_fail = node.check(false).await;
    let _may_fail = node.check(true).await;
    let _may_be_damaged = node.extents(0..size).await;
    let _may_fail = node.close().await;
}

fuzz_target!(|input: &[u8]| {
    let [which, input @ ..] = input else { return };
    let which = usize::from(*which) % 2;
    let images = GOOD.with(|good| good[which].get_or_init(|| self::good(KINDS[which])).clone());
    let world = Simulation::from_images(1, &images);
    let (env, input) = (world.env(), input.to_vec());
    let run = async move {
        damage(&env, &input).await;
        if let Ok(node) = open(&env, KINDS[which], Begin::Open).await {
            use_it(&node).await;
        }
    };
    world.run(run).expect("ends");
    assert_eq!(world.env().take_finding(), None);
});
