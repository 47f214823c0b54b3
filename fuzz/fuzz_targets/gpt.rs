//! GUID partition tables: any bytes are the beginning and the end of a device, and its partitions are opened.
//!
//! The first byte says how large a block is, and whether the headers and entries get the checksums that they ought to
//! have, so that what lies behind them is fuzzed too. What must hold: no panic, and memory within bounds; partitions of
//! a table that is taken lie on the device, in whole blocks, and apart from each other; each can be viewed by its
//! number and read at both ends; nothing is written.

#![no_main]

use lamina_block::{Buf, Build, Durability, Env, Io, Node, OpKind};
use lamina_layers::address::partition::gpt;
use lamina_sim::Simulation;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::rc::Rc;

const SIZE: usize = 1 << 20;

async fn layer(env: &Rc<dyn Env>, kind: &str, keys: Value, over: Vec<Rc<Node>>) -> Option<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("there is such a layer");
    let keys = kind.parse(&keys).expect("good keys");
    let made = keys.build(Build::new(kind.name, env, over)).await.ok()?;
    Some(Node::new(kind.name, kind.name, Rc::clone(env), made))
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

/// Makes the header in block `at` one that is believed as far as its checksums go.
fn seal(bytes: &mut [u8], block: usize, at: usize) {
    let start = at * block;
    bytes[start..start + 8].copy_from_slice(b"EFI PART");
    bytes[start + 12..start + 16].copy_from_slice(&92u32.to_le_bytes());
    bytes[start + 24..start + 32].copy_from_slice(&(at as u64).to_le_bytes());
    // The entries lie near, and are not many, or there would be nothing in them.
    bytes[start + 74..start + 80].fill(0);
    bytes[start + 82..start + 84].fill(0);
    bytes[start + 86..start + 88].fill(0);
    let entries = u32_at(bytes, start + 72).saturating_mul(block);
    let len = u32_at(bytes, start + 80).saturating_mul(u32_at(bytes, start + 84));
    if let Some(entries) = entries.checked_add(len).and_then(|end| bytes.get(entries..end)) {
        let sum = crc32fast::hash(entries);
        bytes[start + 88..start + 92].copy_from_slice(&sum.to_le_bytes());
    }
    bytes[start + 16..start + 20].fill(0);
    let sum = crc32fast::hash(&bytes[start..start + 92]);
    bytes[start + 16..start + 20].copy_from_slice(&sum.to_le_bytes());
}

async fn run(env: Rc<dyn Env>, bytes: Vec<u8>, block: usize) {
    let memory = json!({ "size": SIZE, "block": block });
    let device = layer(&env, "memory", memory, vec![]).await.expect("it can be built");
    device.submit(Io::write(0, Buf::from_vec(bytes), Durability::Cached)).await.expect("written");
    let found = gpt::read(&device).await;
    let table = layer(&env, "partition", json!({}), vec![Rc::clone(&device)]).await;
    let Ok(Some(found)) = found else {
        assert!(table.is_none(), "there are partitions, and no table");
        return;
    };
    let table = table.expect("what is read can be opened");
    let mut places: Vec<_> = found.partitions.iter().map(|partition| partition.at.clone()).collect();
    places.sort_by_key(|at| at.start);
    assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start), "they share space");
    for partition in &found.partitions {
        let at = &partition.at;
        assert!(at.start < at.end && at.end <= SIZE as u64 && (at.start | at.end) % block as u64 == 0);
        // A name may be the number of another one.
        let Ok(made) = table.view(&partition.number.to_string()).await else { continue };
        let view = Node::new("view", "view", Rc::clone(&env), made);
        let size = view.geometry().size;
        for offset in [0, size - block as u64] {
            view.submit(Io::read(offset, Buf::zeroed(block))).await.expect("it can be read");
        }
    }
    assert_eq!(device.stats().of(OpKind::Write).completed.get(), 1, "something was written");
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let block = if mode & 1 == 0 { 512 } else { 4096 };
    let mut bytes = vec![0; SIZE];
    let front = rest.len().min(SIZE) / 2;
    let back = rest.len().min(SIZE) - front;
    bytes[block..][..front.min(SIZE - block)].copy_from_slice(&rest[..front.min(SIZE - block)]);
    bytes[SIZE - back..].copy_from_slice(&rest[front..front + back]);
    if mode & 2 != 0 {
        seal(&mut bytes, block, 1);
    }
    if mode & 4 != 0 {
        seal(&mut bytes, block, SIZE / block - 1);
    }
    let world = Simulation::new(1);
    world.run(run(world.env(), bytes, block)).expect("ends");
});
