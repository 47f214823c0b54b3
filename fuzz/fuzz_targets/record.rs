//! The log of `record`: any bytes are the log that is found when the layer starts.
//!
//! The first byte says how the bytes become a log: as they are, or with a good first sector in front, so that its
//! entries are what is fuzzed. What must hold: no panic, no hang; a log that is refused is left as it was; one that is
//! taken is continued behind its end, and what it held is still there; it is taken again, with all entries.

#![no_main]

use lamina_block::{Buf, Build, Durability, Env, Io, Layer, Node, OpenDisk, Result};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::rc::Rc;

const SECTOR: usize = 512;
const SIZE: u64 = 64 << 10;
/// More than any input, so that there may be room for more.
const LOG_MAX: usize = 32 << 10;

/// The first sector of a log of `entries` entries.
fn head(entries: u8) -> Vec<u8> {
    let magic = 0x006a_7366_7773_6872_u64.to_le_bytes();
    let version = 1u64.to_le_bytes();
    let mut sector = [magic, version, u64::from(entries).to_le_bytes()].concat();
    sector.extend((SECTOR as u32).to_le_bytes());
    sector.resize(SECTOR, 0);
    sector
}

async fn disk(env: &Rc<SimEnv>, path: &str) -> Rc<Node> {
    let open = OpenDisk {
        path: path.into(),
        read_only: false,
        direct: false,
        create: None,
        block: Some(SECTOR as u32),
    };
    let disk = env.open_disk(open).await.expect("it is there");
    Node::new(path, "sim", Rc::clone(env) as _, disk)
}

async fn start(env: &Rc<SimEnv>, below: &Rc<Node>) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|kind| kind.name == "record").expect("there is such a layer");
    let keys = kind.parse(&json!({ "log": "log" })).expect("good keys");
    let dyn_env: Rc<dyn Env> = Rc::clone(env) as _;
    let with = Build { base: "/".into(), ..Build::new("record", &dyn_env, vec![Rc::clone(below)]) };
    let layer: Rc<dyn Layer> = keys.build(with).await?;
    Ok(Node::new("record", "record", dyn_env, layer))
}

async fn bytes(node: &Rc<Node>, len: usize) -> Vec<u8> {
    let buf = Buf::zeroed(len);
    node.submit(Io::read(0, buf.clone())).await.expect("reads");
    buf.to_vec()
}

fn number(node: &Node, what: &str) -> u64 {
    node.info()[what].as_u64().expect("a number")
}

async fn run(env: Rc<SimEnv>, mut log: Vec<u8>) {
    log.resize(log.len().next_multiple_of(SECTOR).clamp(SECTOR, LOG_MAX), 0);
    let (below, there) = (disk(&env, "/below").await, disk(&env, "/log").await);
    there.submit(Io::write(0, Buf::from_vec(log.clone()), Durability::Fua)).await.expect("writes");
    let Ok(node) = start(&env, &below).await else {
        assert!(bytes(&there, log.len()).await == log, "a log was refused, and changed");
        return;
    };
    let (entries, end) = (number(&node, "entries"), number(&node, "log_used") as usize);
    assert!(end <= LOG_MAX);
    let written = node.submit(Io::write(0, Buf::zeroed(SECTOR), Durability::Fua)).await;
    assert!(written.is_ok() || end + 2 * SECTOR > LOG_MAX);
    let _ = node.close().await;
    let now = bytes(&there, LOG_MAX).await;
    let before = end.min(log.len());
    assert!(before <= SECTOR || now[SECTOR..before] == log[SECTOR..before], "entries were changed");
    let again = start(&env, &below).await.expect("what was taken is taken again");
    let more = number(&again, "entries") - entries;
    assert!(more >= u64::from(written.is_ok()), "what was acknowledged is not in the log");
    // What it wants to log at its end may not fit.
    let _ = again.close().await;
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let log = if mode & 1 == 0 { rest.to_vec() } else { [head(mode >> 1), rest.to_vec()].concat() };
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("/below", Image::blank(DiskOptions::new(SIZE)));
    env.put_disk("/log", Image::blank(DiskOptions::new(LOG_MAX as u64)));
    world.run(run(world.env(), log)).expect("ends");
});
