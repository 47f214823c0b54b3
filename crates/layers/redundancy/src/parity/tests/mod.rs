//! Parities over small disks.

mod canaries;
mod counts;
mod crash;
mod cut;
mod degraded;
mod forget;
mod journal;
mod math;
mod ring;
mod scrub;

use crate::mirror::tests::{Open, bytes_of, child, fill};
use crate::testing::history::work;
use crate::testing::history::{Checked, History, told};
pub use crate::testing::*;
use lamina_block::{Begin, Build, Children};
use lamina_sim::{DiskOptions, Image, Loss, SimEnv, SimKeep, Simulation};
use std::time::Duration;

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<super::Keys>(), json!({ "unit": "4KiB", "region": "16KiB" }), 3)
        .disks_of(256 << 10)
        .seeds(10)
}

mod two_parities {
    use super::*;

    lamina_sim::gauntlet!(
        gauntlet,
        Subject::layer(
            &Kind::of::<crate::parity::Keys>(),
            json!({ "unit": "4KiB", "region": "16KiB", "parity": 2, "spares": 1 }),
            5
        )
        .disks_of(256 << 10)
        .seeds(4)
    );
}

const DISK: u64 = 256 << 10;
const UNIT: u64 = 4096;

fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    for (n, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        let mut options = DiskOptions::new(DISK + 4096 * n as u64);
        options.latency_max = Duration::from_micros(if (seed >> n).is_multiple_of(2) { 100 } else { 2000 });
        options.geometry.fua = seed >> 1 & 1 == n as u64 % 2;
        options.geometry.zero = seed.is_multiple_of(3);
        options.junk = Some(0xF000_0000 + n as u32);
        world.env().put_disk(name, Image::blank(options));
    }
    world
}

fn simulate<F: Future<Output = ()> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) {
    let world = world(3);
    world.run(test(world.env())).expect("it ends");
}

fn absent(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    Node::absent(name, world, lamina_block::Error::offline("the device is not there"))
}

async fn open_with(
    env: &Rc<SimEnv>,
    legs: Children,
    keys: Value,
    begin: Begin,
    leaving: &[&str],
) -> Result<Open> {
    let (keep, _) = SimKeep::open(env, "parity").await?;
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let leaving = leaving.iter().map(|name| name.to_string()).collect();
    let with = Build { keep: Some(keep), begin, leaving, ..Build::new("parity", &world, legs.clone()) };
    let kind = Kind::of::<crate::parity::Keys>();
    let layer = kind.parse(&keys).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
    Ok(Open { env: Rc::clone(env), node: Node::new("parity", kind.name, world, layer), legs })
}

async fn open(env: &Rc<SimEnv>, over: &[&str], keys: Value, begin: Begin) -> Result<Open> {
    let legs = over.iter().map(|name| child(env, name)).collect();
    open_with(env, legs, keys, begin, &[]).await
}

fn keys() -> Value {
    json!({ "unit": "4KiB", "region": "16KiB", "leg-timeout": "1h" })
}

/// Three devices, written everywhere.
async fn filled(env: &Rc<SimEnv>) -> (Open, Vec<u8>) {
    let open = open(env, &["a", "b", "c"], keys(), Begin::Format).await.expect("made");
    let bytes = pattern(open.node.geometry().size as usize);
    put(&open, 0, &bytes).await;
    open.node.submit(Io::flush()).await.expect("flushed");
    (open, bytes)
}

async fn put(open: &Open, at: u64, bytes: &[u8]) {
    let buf = Buf::from_vec(bytes.to_vec());
    open.node.submit(Io::write(at, buf, Durability::Cached)).await.expect("written");
}

async fn all_of(open: &Open) -> Vec<u8> {
    bytes_of(&open.node, 0..open.node.geometry().size).await
}

async fn scrubbed(open: &Open) {
    open.command("scrub", json!({})).await.expect("it begins");
    open.until("the end of the scrub", |open| open.node.jobs().is_empty()).await;
}
