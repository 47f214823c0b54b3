//! The cache of `accelerate` itself: the layer on a flash in memory, in the simulator's world.
//!
//! ```text
//!      trace ──▶ accelerate ──▶ null      the store
//!                    │
//!                  flash ──▶ memory       as large as the cache wants it
//! ```
//!
//! Each request of a trace is one of the layer, and the next one comes when it has been answered and what it
//! began is on the flash. So nothing shares a batch with others: each fill and each write takes a head of its
//! own, which is the worst that can happen to a log.

use super::policy::Hits;
use super::trace::{BLOCK, Request, Trace};
use lamina_block::{Begin, Buf, Build, Durability, Env, Error, Io, Node, Result};
use lamina_sim::{SimEnv, SimKeep, Simulation};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// Time between two requests: enough for what the one before has begun, and for the destager now and then.
const PAUSE: Duration = Duration::from_millis(1);
/// Requests of one run of the simulator, which has no more steps and no more time than a test needs.
const CHUNK: usize = 1000;

/// What the layer makes of a trace.
#[derive(Clone, Copy, Default)]
pub struct Replay {
    pub reads: Hits,
    /// Blocks of all requests.
    pub asked: u64,
    /// Slots of the flash that were written, heads and summaries with them.
    pub written: u64,
}

/// A volume of the layer, and its flash.
struct Scene {
    flash: Rc<Node>,
    volume: Rc<Node>,
}

async fn over(env: &Rc<SimEnv>, kind: &str, keys: Value, children: &[&Rc<Node>]) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind);
    let kind = kind.ok_or_else(|| Error::invalid("no such kind"))?;
    let keys = kind.parse(&keys).map_err(|e| Error::invalid(format!("{}: {}", e.path, e.message)))?;
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let mut with = Build::new(kind.name, &world, children.iter().map(|child| Rc::clone(child)).collect());
    if kind.traits.keeps {
        with.keep = Some(SimKeep::open(env, kind.name).await?.0);
        with.begin = Begin::Format;
    }
    let made = keys.build(with).await?;
    Ok(Node::new(kind.name, kind.name, world, made))
}

impl Scene {
    /// A store of `store` bytes behind a flash on a device of `device` bytes.
    async fn build(env: Rc<SimEnv>, store: u64, device: u64) -> Result<Rc<Scene>> {
        let store = over(&env, "null", json!({ "size": store }), &[]).await?;
        let device = over(&env, "memory", json!({ "size": device }), &[]).await?;
        let flash = over(&env, "flash", json!({}), &[&device]).await?;
        let volume = over(&env, "accelerate", json!({ "policy": "write-back" }), &[&store, &flash]).await?;
        Ok(Rc::new(Scene { flash, volume }))
    }

    /// What `info` of a device says, in blocks.
    fn blocks(node: &Node, key: &str) -> u64 {
        node.info()[key].as_u64().unwrap_or_default() / BLOCK
    }

    fn counted(&self) -> [u64; 2] {
        let info = self.volume.info();
        ["hit_bytes", "missed_bytes"].map(|key| info[key].as_u64().unwrap_or_default() / BLOCK)
    }

    /// Hits and misses are counted around each read: a write of a part of a block reads the rest of it, too.
    async fn ask(&self, request: &Request, replay: &mut Replay) -> Result<()> {
        let buf = Buf::zeroed((request.bytes.end - request.bytes.start) as usize);
        let (at, blocks) = (request.bytes.start, request.blocks());
        replay.asked += blocks.end - blocks.start;
        if request.is_write {
            return self.volume.submit(Io::write(at, buf, Durability::Cached)).await;
        }
        let before = self.counted();
        self.volume.submit(Io::read(at, buf)).await?;
        let after = self.counted();
        let [hits, misses] = [0, 1].map(|which| after[which] - before[which]);
        replay.reads.hits += hits;
        replay.reads.of += blocks.end - blocks.start;
        assert_eq!(hits + misses, blocks.end - blocks.start, "a block was not counted once");
        Ok(())
    }
}

/// Runs something in a world that goes on.
fn within<T: 'static>(world: &Simulation, work: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    world.run(work).unwrap_or_else(|hang| Err(Error::invalid(hang.to_string())))
}

/// Blocks that a flash on a device of `slots` blocks has room for; `None` if it is too small for a flash.
fn room(slots: u64) -> Option<u64> {
    let world = Simulation::new(1);
    let scene = within(&world, Scene::build(world.env(), 1 << 20, slots * BLOCK)).ok()?;
    Some(Scene::blocks(&scene.volume, "share_bytes"))
}

/// Blocks of the device whose flash has room for `blocks` as nearly as it gets; `None` if the smallest has more.
pub fn device(blocks: u64) -> Option<u64> {
    // The room rises with the device, but for a part that is kept free and summaries.
    let (mut below, mut enough) = (0, 2 * blocks + 1024);
    while below + 1 < enough {
        let middle = below.midpoint(enough);
        match room(middle) {
            Some(room) if room >= blocks => enough = middle,
            Some(_) | None => below = middle,
        }
    }
    let (less, more) = (room(below), room(enough)?);
    match less {
        Some(less) if blocks - less < more - blocks => Some(below),
        None if more > blocks => None,
        Some(_) | None => Some(enough),
    }
}

/// Replays a trace through a cache on a device of `device` blocks.
pub fn replay(trace: &Trace, device: u64) -> Result<Replay> {
    let world = Simulation::new(1);
    let end = trace.requests.iter().map(|request| request.blocks().end).max().unwrap_or(1);
    let scene = within(&world, Scene::build(world.env(), end * BLOCK, device * BLOCK))?;
    let mut replay = Replay::default();
    for requests in trace.requests.chunks(CHUNK) {
        let (env, scene, requests) = (world.env(), Rc::clone(&scene), requests.to_vec());
        replay = within(&world, async move {
            for request in &requests {
                scene.ask(request, &mut replay).await?;
                env.sleep(PAUSE).await;
            }
            Ok(replay)
        })?;
    }
    Ok(Replay { written: Scene::blocks(&scene.flash, "written_bytes"), ..replay })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    fn replayed(requests: &[(bool, Range<u64>)]) -> Replay {
        let requests =
            requests.iter().map(|(is_write, bytes)| Request { is_write: *is_write, bytes: bytes.clone() });
        let device = device(150).expect("the smallest");
        replay(&Trace::new("few", requests.collect()), device).expect("replayed")
    }

    #[test]
    fn reads_count_once_for_each_block() {
        let replay = replayed(&[(false, 512..4608), (true, 8192..8704), (false, 0..12288)]);
        // The write has left a block that is there in part, which is no hit of a read of all of it.
        assert_eq!((replay.reads.hits, replay.reads.of, replay.asked), (2, 5, 6));
    }

    #[test]
    fn the_smallest_device_is_known() {
        assert_eq!((device(149), device(150)), (None, Some(264)));
        let fits = |blocks: u64| room(device(blocks).expect("large enough")).expect("room").abs_diff(blocks);
        assert!([1000, 9000, 60_000].map(fits).iter().all(|off| *off <= 64));
    }
}
