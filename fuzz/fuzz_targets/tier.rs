//! The notes of a tier's monitor: any bytes are what it finds of them.
//!
//! The input is pieces: each says which page of notes, where in it, and the bytes; then the checksum of the page is
//! made right, if the piece asks for that. What must hold: no panic, no hang; the tier opens, shows what it knows, has
//! the data that it had, closes, and opens again.

#![no_main]

use lamina_block::{Begin, Buf, Build, Command, Durability, Env, Io, Keep, Node, Pending, Result};
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const PAGE: usize = 4096;
const FLASH: u64 = 4 << 20;
const STORE: u64 = 64 << 20;

/// The state record in memory.
#[derive(Default)]
struct Words(RefCell<Option<Value>>);

impl Keep for Words {
    fn get(&self) -> Option<Value> {
        self.0.borrow().clone()
    }

    fn set(&self, value: Value) -> Pending {
        *self.0.borrow_mut() = Some(value);
        Box::pin(async { Ok(()) })
    }
}

fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "sim", Rc::clone(env) as _, env.disk(name).expect("it is there"))
}

async fn layer(env: &Rc<SimEnv>, kind: &str, with: Build) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("there is such a layer");
    let made = kind.parse(&json!({})).expect("good keys").build(with).await?;
    Ok(Node::new(kind.name, kind.name, Rc::clone(env) as _, made))
}

/// The flash, and a tier on it.
async fn open(env: &Rc<SimEnv>, words: &Rc<Words>, begin: Begin) -> Result<[Rc<Node>; 2]> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let with = Build { begin, ..Build::new("flash", &world, vec![disk(env, "flash")]) };
    let flash = layer(env, "flash", with).await?;
    let keep: Option<Rc<dyn Keep>> = Some(Rc::clone(words) as _);
    let over = vec![disk(env, "store"), Rc::clone(&flash)];
    let with = Build { begin, keep, ..Build::new("tier", &world, over) };
    Ok([layer(env, "tier", with).await?, flash])
}

async fn close(devices: [Rc<Node>; 2]) {
    for device in devices {
        device.close().await.expect("closed");
    }
}

async fn read(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let buf = Buf::zeroed(len);
    node.submit(Io::read(at, buf.clone())).await.expect("read");
    buf.to_vec()
}

/// A tier that was used and closed, and the slots of its flash that have notes.
fn good() -> (Images, Value, Vec<u64>) {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("flash", Image::blank(DiskOptions::new(FLASH)));
    env.put_disk("store", Image::blank(DiskOptions::new(STORE)));
    let making = async move {
        let words = Rc::new(Words::default());
        let open = open(&env, &words, Begin::Format).await.expect("made");
        let data = Buf::from_vec(vec![7; PAGE]);
        open[0].submit(Io::write(0, data, Durability::Cached)).await.expect("written");
        for extent in 0..200 {
            read(&open[0], extent << 18, PAGE).await;
        }
        close(open).await;
        let flash = disk(&env, "flash");
        let mut notes = Vec::new();
        for slot in 0..FLASH / PAGE as u64 {
            if read(&flash, slot * PAGE as u64, PAGE).await.starts_with(b"LAMTIERM") {
                notes.push(slot);
            }
        }
        (env.twins(), words.get().expect("a record"), notes)
    };
    world.run(making).expect("it ends")
}

thread_local! {
    static GOOD: OnceCell<(Images, Value, Vec<u64>)> = const { OnceCell::new() };
}

async fn damage(env: &Rc<SimEnv>, notes: &[u64], mut input: &[u8]) {
    let flash = disk(env, "flash");
    while let [which, low, high, len, rest @ ..] = input {
        let at = notes[usize::from(*which & 0x7F) % notes.len()] * PAGE as u64;
        let mut page = read(&flash, at, PAGE).await;
        let place = usize::from(u16::from_le_bytes([*low, *high])) % PAGE;
        let bytes = &rest[..rest.len().min(usize::from(*len)).min(PAGE - place)];
        page[place..place + bytes.len()].copy_from_slice(bytes);
        if which & 0x80 != 0 {
            page[8..16].fill(0);
            let key = u64::from_le_bytes(page[16..24].try_into().expect("eight bytes"));
            let sum = xxh3_64_with_seed(&page, key);
            page[8..16].copy_from_slice(&sum.to_le_bytes());
        }
        flash.submit(Io::write(at, Buf::from_vec(page), Durability::Fua)).await.expect("written");
        input = &rest[bytes.len()..];
    }
}

async fn use_it(env: &Rc<SimEnv>, words: &Rc<Words>) {
    let open = open(env, words, Begin::Open).await.expect("notes keep no tier from opening");
    let ask = |name: &str| open[0].control(Command { name: name.into(), args: json!({}) });
    let top = ask("top").await.expect("what is known");
    let map = ask("heat-map").await.expect("a map");
    assert!(top["extents"].as_array().is_some_and(|list| list.len() <= 20));
    assert!(map["cells"].as_array().is_some_and(|list| list.len() <= 256));
    assert_eq!(read(&open[0], 0, PAGE).await, [7; PAGE]);
    read(&open[0], 1 << 20, PAGE).await;
    close(open).await;
}

fuzz_target!(|input: &[u8]| {
    let (images, record, notes) = GOOD.with(|known| known.get_or_init(good).clone());
    let world = Simulation::from_images(1, &images);
    let env = world.env();
    let input = input.to_vec();
    let run = async move {
        damage(&env, &notes, &input).await;
        let words = Rc::new(Words(RefCell::new(Some(record))));
        use_it(&env, &words).await;
        use_it(&env, &words).await;
    };
    world.run(run).expect("it ends");
});
