//! A cache on flash: any bytes are what it finds.
//!
//! The first byte says which good flash it was: closed, or left by a power loss. The rest are pieces: each
//! says which slot, where in it, and the bytes; then the checksum of what the slot seems to be (a superblock,
//! a state, a head, a summary) is made right, if the piece asks for that. What must hold: no panic, no hang;
//! an error, or a cache with a volume that can be read from end to end, brought to its store, closed, and
//! opened again.

#![no_main]

use lamina_block::{Begin, Buf, Build, Command, Durability, Env, Io, Keep, Node, Pending, Result};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const SLOT: usize = 4096;
/// Segments of 16 slots.
const SLOTS: u64 = 8 + 18 * 16;
const STORE: u64 = 64 * SLOT as u64;

/// Words in memory.
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

async fn layer(env: &Rc<SimEnv>, kind: &str, keys: Value, with: Build) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("there is such a layer");
    let made = kind.parse(&keys).expect("good keys").build(with).await?;
    Ok(Node::new(kind.name, kind.name, Rc::clone(env) as _, made))
}

/// The cache, and a volume on it.
async fn open(env: &Rc<SimEnv>, words: &Rc<Words>, begin: Begin) -> Result<(Rc<Node>, Rc<Node>)> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let with = Build { begin, ..Build::new("flash", &world, vec![disk(env, "flash")]) };
    let flash = layer(env, "flash", json!({}), with).await?;
    let keep: Option<Rc<dyn Keep>> = Some(Rc::clone(words) as _);
    let over = vec![disk(env, "store"), Rc::clone(&flash)];
    let with = Build { begin, keep, ..Build::new("volume", &world, over) };
    match layer(env, "accelerate", json!({}), with).await {
        Ok(volume) => Ok((flash, volume)),
        Err(e) => {
            flash.close().await?;
            Err(e)
        }
    }
}

/// A flash with segments that have summaries, and some that have none; in the second case the power fails.
fn good(fails: bool) -> (Images, Value) {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("flash", Image::blank(DiskOptions::new(SLOTS * SLOT as u64)));
    env.put_disk("store", Image::blank(DiskOptions::new(STORE)));
    let making = async move {
        let words = Rc::new(Words::default());
        let (flash, volume) = open(&env, &words, Begin::Format).await?;
        for round in 0..12u64 {
            let at = round * 5 % 24 * SLOT as u64;
            volume
                .submit(Io::write(at, Buf::from_vec(vec![round as u8 + 1; 2 * SLOT]), Durability::Cached))
                .await?;
            volume.submit(Io::read(STORE / 2 + at, Buf::zeroed(SLOT))).await?;
            env.sleep(Duration::from_millis(round % 3)).await;
        }
        volume.submit(Io::discard(0..2 * SLOT as u64)).await?;
        let images = match fails {
            true => env.images(Loss::Nothing, 7),
            false => {
                volume.close().await?;
                flash.close().await?;
                env.twins()
            }
        };
        Ok::<_, lamina_block::Error>((images, words.get().expect("words")))
    };
    world.run(making).expect("it ends").expect("a good flash")
}

thread_local! {
    static GOOD: [OnceCell<(Images, Value)>; 2] = const { [OnceCell::new(), OnceCell::new()] };
}

/// Slots of what begins in a slot, and the key of its checksum.
fn shape(slot: &[u8], key: u64) -> Option<(u64, u64)> {
    match &slot[..8] {
        b"LAMFLASH" => Some((1, 0)),
        b"LAMFLSTA" => Some((2, key)),
        b"LAMFLHEA" => Some((1, key)),
        b"LAMFLSUM" => {
            let entries = u32::from_le_bytes(slot[32..36].try_into().expect("four bytes")).min(200);
            Some(((64 + u64::from(entries) * 40).div_ceil(SLOT as u64), key))
        }
        _ => None,
    }
}

async fn damage(env: &Rc<SimEnv>, mut input: &[u8]) {
    let disk = disk(env, "flash");
    let read = async |slot: u64, slots: u64| {
        let buf = Buf::zeroed((slots * SLOT as u64) as usize);
        disk.submit(Io::read(slot * SLOT as u64, buf.clone())).await.expect("reads");
        buf.to_vec()
    };
    while let [low, high, flags, place, len, rest @ ..] = input {
        let slot = (u64::from(*low) | u64::from(*high & 1) << 8) % SLOTS;
        // A field of what stands first, or of a volume or an entry.
        let at = match flags >> 1 & 3 {
            0 => usize::from(*place),
            1 => 64 + usize::from(*place) % 120 * 56,
            _ => 64 + usize::from(*place) % 100 * 40 + usize::from(flags >> 3),
        };
        let len = usize::from(*len).min(rest.len());
        let (bytes, rest) = rest.split_at(len);
        input = rest;
        let key = read(0, 1).await[48..56].try_into().expect("eight bytes");
        let mut whole = read(slot, 1).await;
        let end = (at + len).min(SLOT);
        whole[at.min(end)..end].copy_from_slice(&bytes[..end - at.min(end)]);
        let found = shape(&whole, u64::from_le_bytes(key)).filter(|(slots, _)| slot + slots <= SLOTS);
        if let (1, Some((slots, key))) = (flags & 1, found) {
            if slots > 1 {
                whole.extend(read(slot + 1, slots - 1).await);
            }
            whole[8..16].fill(0);
            let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&whole, key);
            whole[8..16].copy_from_slice(&sum.to_le_bytes());
        }
        let write = Io::write(slot * SLOT as u64, Buf::from_vec(whole), Durability::Fua);
        disk.submit(write).await.expect("writes");
    }
}

/// True if it was there.
async fn use_it(env: &Rc<SimEnv>, words: &Rc<Words>) -> bool {
    let Ok((flash, volume)) = open(env, words, Begin::Open).await else { return false };
    for at in (0..volume.geometry().size).step_by(8 * SLOT) {
        let _may_be_damaged = volume.submit(Io::read(at, Buf::zeroed(8 * SLOT))).await;
    }
    let _may_be_damaged = volume.extents(0..STORE).await;
    let _may_fail = volume.control(Command { name: "drain".into(), args: json!({}) }).await;
    let _ = (flash.info(), volume.info());
    let _may_fail = volume.close().await;
    let _may_fail = flash.close().await;
    true
}

fuzz_target!(|input: &[u8]| {
    let [which, input @ ..] = input else { return };
    let which = usize::from(*which) % 2;
    let (images, words) = GOOD.with(|good| good[which].get_or_init(|| self::good(which == 1)).clone());
    let world = Simulation::from_images(1, &images);
    let (env, input) = (world.env(), input.to_vec());
    let run = async move {
        let words = Rc::new(Words(RefCell::new(Some(words))));
        damage(&env, &input).await;
        if use_it(&env, &words).await {
            assert!(use_it(&env, &words).await, "what was opened is opened again");
        }
    };
    world.run(run).expect("ends");
    assert_eq!(world.env().take_finding(), None);
});
