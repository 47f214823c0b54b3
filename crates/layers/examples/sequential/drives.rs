//! Simulated drives: their models, and what they keep.

use lamina_block::{Bytes, Env, Geometry, Io, Layer, Manage, Node, Op, Passthrough, Step};
use lamina_drive::{Mechanism, Model, Rotational, Seek};
use lamina_sim::{Contents, DiskOptions, Image, SimEnv};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a block, in which drives keep what they keep.
pub const BLOCK: u64 = 4096;

/// A simulated drive that keeps the blocks that were written before the load, and nothing else.
struct Drive {
    below: Rc<Node>,
    kept: RefCell<HashMap<u64, Vec<u8>>>,
    is_loaded: Rc<Cell<bool>>,
}

fn blocks(at: &Range<u64>) -> Range<u64> {
    at.start / BLOCK..at.end / BLOCK
}

impl Drive {
    fn keep(&self, at: &Range<u64>, bytes: impl Fn(Range<usize>) -> Vec<u8>) {
        let kept = &mut *self.kept.borrow_mut();
        for block in blocks(at) {
            if !self.is_loaded.get() || kept.contains_key(&block) {
                let from = (block * BLOCK - at.start) as usize;
                kept.insert(block, bytes(from..from + BLOCK as usize));
            }
        }
    }

    fn fill(&self, at: &Range<u64>, into: &lamina_block::Buf) {
        let kept = self.kept.borrow();
        for block in blocks(at) {
            if let Some(bytes) = kept.get(&block) {
                into.write((block * BLOCK - at.start) as usize, bytes);
            }
        }
    }
}

impl Layer for Drive {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let (at, io) = (io.at.clone(), io.take());
        let into = match &io.op {
            Op::Read(into) => Some(into.clone()),
            Op::Write(from, _) => {
                self.keep(&io.at, |part| from.slice(part).to_vec());
                None
            }
            Op::Zero(_) | Op::Discard => {
                self.kept.borrow_mut().retain(|block, _| !blocks(&io.at).contains(block));
                None
            }
            Op::Flush => None,
        };
        Step::control(async move {
            self.below.submit(io).await?;
            if let Some(into) = into {
                self.fill(&at, &into);
            }
            Ok(())
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Drive {}

/// The model called so, or in the file called so.
pub fn model(name: &str) -> Result<Model, String> {
    if let Some(model) = Model::named(name) {
        return Ok(model);
    }
    let text = std::fs::read_to_string(name).map_err(|e| format!("--model={name}: {e}"))?;
    Model::parse(&text).map_err(|e| format!("--model={name}: {e}"))
}

/// Lets a hard disk seek within its first `size` bytes as far as it does over all of itself.
pub fn use_all(model: &mut Model, size: u64) {
    let scale = (size as f64 / model.size.0 as f64).min(1.0);
    if let Mechanism::Rotational(disk) = &mut model.mechanism {
        scale_seeks(disk, scale);
    }
}

fn scale_seeks(disk: &mut Rotational, scale: f64) {
    let Seek::Points(points) = &mut disk.seek else { return };
    // A seek to the next cylinder stays what it is.
    let longer = points.iter().map(|[far, ms]| [(far * scale).round(), *ms]).filter(|[far, _]| *far > 1.0);
    let mut scaled: Vec<[f64; 2]> = points.iter().copied().take(1).chain(longer).collect();
    scaled.dedup_by_key(|[far, _]| *far as u64);
    *points = scaled;
}

/// A hard disk ends its writes on the medium.
pub fn without_buffer(model: &mut Model) {
    if let Mechanism::Rotational(disk) = &mut model.mechanism {
        disk.write_buffer = None;
    }
}

/// A drive of `size` bytes with the times of `model`: the device, and what counts its requests.
pub fn made(
    env: &Rc<SimEnv>,
    number: usize,
    size: Bytes,
    model: Option<&Model>,
    is_loaded: &Rc<Cell<bool>>,
) -> (Rc<Node>, Rc<Node>) {
    let native =
        Geometry { block: BLOCK as u32, discard: true, zero: true, fua: true, ..Geometry::new(size.0) };
    let options = DiskOptions {
        geometry: native,
        latency_max: Duration::ZERO,
        contents: Contents::Zeroes,
        ..DiskOptions::new(size.0)
    };
    let name = format!("drive-{number}");
    let disk = env.put_disk(&name, Image::blank(options));
    if let Some(model) = model {
        disk.set_drive(model.drive(number as u64));
    }
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let below = Node::new(&name, "drive", Rc::clone(&world), disk);
    let drive = Drive { below: Rc::clone(&below), kept: RefCell::default(), is_loaded: Rc::clone(is_loaded) };
    (Node::new(&name, "drive", world, Rc::new(drive)), below)
}
