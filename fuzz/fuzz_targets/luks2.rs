//! LUKS2 headers: any bytes are the beginning of a device on which a volume is to be opened.
//!
//! The first byte says which copies get the fields and the checksum that they ought to have, so that the JSON behind
//! them is fuzzed, and that everything which costs time costs little. What must hold: no panic, memory within bounds,
//! nothing is written by opening; a volume that opens can be read at both ends and lies on the device.

#![no_main]

use lamina_block::{Buf, Build, Durability, Env, Io, Node, OpKind};
use lamina_sim::Simulation;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::rc::Rc;

const SIZE: usize = 256 << 10;
const LENGTH: usize = 16 << 10;
/// More iterations than this take too long to try thousands of times a second.
const DIGITS_MAX: usize = 4;

async fn layer(env: &Rc<dyn Env>, kind: &str, keys: Value, over: Vec<Rc<Node>>) -> Option<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("there is such a layer");
    let keys = kind.parse(&keys).expect("good keys");
    let made = keys.build(Build::new(kind.name, env, over)).await.ok()?;
    Some(Node::new(kind.name, kind.name, Rc::clone(env), made))
}

/// Cuts numbers that say how long something takes.
fn cheapen(bytes: &mut Vec<u8>) {
    const NAME: &[u8] = b"\"iterations\":";
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(NAME.len()).position(|window| window == NAME) {
        at += found + NAME.len();
        let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        bytes.drain(at..at + digits.saturating_sub(DIGITS_MAX));
    }
}

/// Makes a copy one that is believed as far as its first 4096 bytes go.
fn seal(copy: &mut [u8], magic: &[u8; 6], offset: u64) {
    copy[..6].copy_from_slice(magic);
    copy[6..8].copy_from_slice(&2u16.to_be_bytes());
    copy[8..16].copy_from_slice(&(LENGTH as u64).to_be_bytes());
    copy[72..104].fill(0);
    copy[72..78].copy_from_slice(b"sha256");
    copy[256..264].copy_from_slice(&offset.to_be_bytes());
    copy[448..512].fill(0);
    let sum = Sha256::digest(&copy);
    copy[448..480].copy_from_slice(&sum);
}

async fn run(env: Rc<dyn Env>, bytes: Vec<u8>) {
    let device = layer(&env, "memory", json!({ "size": SIZE }), vec![]).await.expect("it can be built");
    device.submit(Io::write(0, Buf::from_vec(bytes), Durability::Cached)).await.expect("written");
    let keys = json!({ "key-file": "/key", "kdf-memory": "32KiB", "kdf-memory-max": "64KiB" });
    let vault = layer(&env, "crypt", keys, vec![Rc::clone(&device)]).await;
    assert_eq!(device.stats().of(OpKind::Write).completed.get(), 1, "something was written");
    let Some(vault) = vault else { return };
    let geometry = vault.geometry();
    assert!(geometry.size < SIZE as u64);
    for offset in [0, geometry.size.saturating_sub(u64::from(geometry.block))] {
        let block = (geometry.block as usize).min(geometry.size as usize);
        vault.submit(Io::read(offset, Buf::zeroed(block))).await.expect("it can be read");
    }
    vault.info();
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let mut bytes = rest[..rest.len().min(SIZE)].to_vec();
    cheapen(&mut bytes);
    if mode & 4 != 0 {
        // All of the input is JSON.
        bytes.splice(0..0, [0; 4096]);
    }
    bytes.resize(SIZE, 0);
    if mode & 1 != 0 {
        seal(&mut bytes[..LENGTH], b"LUKS\xba\xbe", 0);
    }
    if mode & 2 != 0 {
        seal(&mut bytes[LENGTH..2 * LENGTH], b"SKUL\xba\xbe", LENGTH as u64);
    }
    let world = Simulation::new(1);
    world.env().put_file("/key", b"the key\nand more of it");
    world.run(run(world.env(), bytes)).expect("ends");
});
