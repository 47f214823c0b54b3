//! The metadata store: any bytes are the region that is opened.
//!
//! The input is put over a good store, block by block: each piece says which block, where in it, and the
//! bytes; then the checksum of what the block seems to be is made right, if the piece asks for that. What
//! must hold: no panic, no hang, memory within its bound; an error, or a store that can be used, and opened
//! again as it was left.

#![no_main]

use lamina_block::{Buf, Durability, Env, Io, Node};
use lamina_metadata::{Change, Format, Level, Options, Region, Store};
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2 + 16 + 2 * 80;
/// The least that a store takes, with its directory and twice the half that may be copies.
const MEMORY: usize = 512 << 10;

fn node(env: &Rc<SimEnv>) -> Rc<Node> {
    Node::new("disk", "sim", Rc::clone(env) as _, env.disk("disk").expect("it is there"))
}

async fn open(env: &Rc<SimEnv>) -> lamina_block::Result<Store> {
    let region = Region::new(node(env), 0..BLOCKS * BLOCK as u64)?;
    let options = Options { memory: MEMORY, interval: Duration::from_millis(1) };
    Store::open(&(Rc::clone(env) as Rc<dyn Env>), region, options).await
}

/// A store with some objects, and something in its log.
fn good() -> Images {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("disk", Image::blank(DiskOptions::new(BLOCKS * BLOCK as u64)));
    let making = async move {
        let region = Region::new(node(&env), 0..BLOCKS * BLOCK as u64)?;
        let format = Format { level: Level::Shadow, log: 64 << 10, objects: 100 };
        Store::format(&(Rc::clone(&env) as Rc<dyn Env>), &region, format).await?;
        let store = open(&env).await?;
        for len in [100, 9000, 30_000] {
            store.alloc(len, len).await?.write(7, &[3; 90]).await?;
        }
        store.flush().await?;
        for id in store.objects() {
            store.change(Change::new().write(id.0, 0, [5; 10])).await?;
            store.commit().await?;
        }
        Ok::<_, lamina_block::Error>(env.twins())
    };
    world.run(making).expect("it ends").expect("a good store")
}

thread_local! {
    static GOOD: OnceCell<Images> = const { OnceCell::new() };
}

/// Makes the checksum right of what `block` seems to be.
fn repair(number: u64, block: &mut [u8]) {
    let put = |block: &mut [u8], at: usize, len: usize| {
        block[at..at + 4].fill(0);
        let crc = crc32c::crc32c(&block[..len]);
        block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    };
    match number {
        0 | 1 => put(block, 12, BLOCK),
        2..18 => {
            let len = u32::from_le_bytes([block[32], block[33], block[34], block[35]]) as usize;
            if (40..=BLOCK).contains(&len) {
                put(block, 36, len);
            }
        }
        _ => {
            let crc = crc32c::crc32c(&block[..BLOCK - 4]);
            block[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

async fn use_it(store: &Store) {
    let mut bytes = vec![0; 4096];
    for (id, len, _) in store.objects() {
        let Ok(object) = store.load(id) else { panic!("an object that is there cannot be loaded") };
        let part = len.min(4096) as usize;
        let _may_be_damaged = object.read(len - part as u64, &mut bytes[..part]).await;
        let _may_be_damaged = object.write(len - part as u64, &bytes[..part]).await;
        assert!(store.memory() <= MEMORY + (BLOCK << 10), "{} bytes", store.memory());
    }
    let _may_be_full = store.alloc(5000, 1).await;
    if let Some((id, ..)) = store.objects().first() {
        let _freed = store.free(*id).await;
    }
}

async fn run(env: Rc<SimEnv>, mut input: &[u8]) {
    let disk = node(&env);
    // A record that somebody put where the log will go on is believed when it gets there.
    let mut log_is_ours = true;
    while let [number, flags, at_low, at_high, len, rest @ ..] = input {
        let number = u64::from(*number) % BLOCKS;
        let at = (usize::from(*at_low) | usize::from(*at_high) << 8) % BLOCK;
        let len = usize::from(*len).min(rest.len()).min(BLOCK - at);
        let buf = Buf::zeroed(BLOCK);
        disk.submit(Io::read(number * BLOCK as u64, buf.clone())).await.expect("reads");
        log_is_ours &= !(2..18).contains(&number);
        let mut block = buf.to_vec();
        block[at..at + len].copy_from_slice(&rest[..len]);
        if flags & 1 == 1 {
            repair(number, &mut block);
        }
        let write = Io::write(number * BLOCK as u64, Buf::from_vec(block), Durability::Fua);
        disk.submit(write).await.expect("writes");
        input = &rest[len..];
    }
    let Ok(store) = open(&env).await else { return };
    use_it(&store).await;
    let objects = store.objects();
    if store.close().await.is_ok() && log_is_ours {
        let again = open(&env).await.expect("what was closed is opened");
        assert_eq!(again.objects(), objects);
    }
}

fuzz_target!(|input: &[u8]| {
    let images = GOOD.with(|good| good.get_or_init(self::good).clone());
    let world = Simulation::from_images(1, &images);
    let input = input.to_vec();
    let env = world.env();
    world.run(async move { run(env, &input).await }).expect("ends");
    assert_eq!(world.env().take_finding(), None);
});
