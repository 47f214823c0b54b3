//! A world of small disks in which volumes change their layout.

mod change;
mod crash;
pub(crate) mod format;

use super::*;
use lamina_block::{Durability, JobState, Node};
use lamina_sim::{DiskOptions, Image, SimEnv};
pub use serde_json::json;
use std::time::Duration;

/// Bytes of the block that the record are kept in.
const WORDS: usize = 64 << 10;

/// Words on a disk of one block, which is never written in part.
pub struct DiskKeep {
    node: Rc<Node>,
    record: RefCell<Option<Value>>,
}

impl DiskKeep {
    /// The record on the disk `keep`, which is made if there is none.
    async fn open(env: &Rc<SimEnv>) -> Result<Rc<DiskKeep>> {
        let disk = env.disk("keep").unwrap_or_else(|| {
            let geometry = Geometry { block: WORDS as u32, fua: true, ..Geometry::new(WORDS as u64) };
            let options = DiskOptions { geometry, junk: None, ..DiskOptions::new(WORDS as u64) };
            env.put_disk("keep", Image::blank(options))
        });
        let node = Node::new("keep", "simulated", Rc::clone(env) as _, disk);
        let buf = lamina_block::Buf::zeroed(WORDS);
        node.submit(Io::read(0, buf.clone())).await?;
        let bytes = buf.to_vec();
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Rc::new(DiskKeep { node, record: RefCell::new(serde_json::from_slice(text).ok()) }))
    }
}

impl Keep for DiskKeep {
    fn get(&self) -> Option<Value> {
        self.record.borrow().clone()
    }

    fn set(&self, value: Value) -> Pending {
        let buf = lamina_block::Buf::zeroed(WORDS);
        buf.write(0, value.to_string().as_bytes());
        *self.record.borrow_mut() = Some(value);
        let node = Rc::clone(&self.node);
        Box::pin(async move { node.submit(Io::write(0, buf, Durability::Fua)).await })
    }
}

/// The disk `name` under a node.
pub fn child(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let disk = env.disk(name).expect("it was put there");
    Node::new(name, "simulated", Rc::clone(env) as _, disk)
}

/// The parts of a volume, besides the disks.
#[derive(Clone)]
pub struct Volume {
    pub kind: &'static str,
    pub keys: Value,
}

impl Volume {
    /// The volume over the disks `over`.
    pub async fn open(
        &self,
        env: &Rc<SimEnv>,
        over: &[&str],
        leaving: &[&str],
        begin: Begin,
    ) -> Result<Rc<Node>> {
        let children = over.iter().map(|name| child(env, name)).collect();
        self.over(env, children, leaving, begin).await
    }

    pub async fn over(
        &self,
        env: &Rc<SimEnv>,
        children: Children,
        leaving: &[&str],
        begin: Begin,
    ) -> Result<Rc<Node>> {
        let keep = DiskKeep::open(env).await?;
        let world: Rc<dyn Env> = Rc::clone(env) as _;
        let with = Build {
            keep: Some(keep),
            begin,
            leaving: leaving.iter().map(|name| name.to_string()).collect(),
            ..Build::new("volume", &world, children)
        };
        let kind = crate::testing::kind(self.kind);
        let layer = kind.parse(&self.keys).expect("the keys are right").build(with).await?;
        Ok(Node::new("volume", kind.name, world, layer))
    }
}

pub async fn command(node: &Rc<Node>, name: &str, args: Value) -> Result<Value> {
    node.control(Command { name: name.into(), args }).await
}

/// A window and its pieces.
type Walked = (Range<u64>, Vec<Range<u64>>);

impl Move {
    /// The next window and its pieces.
    fn next_pieces(&self) -> Result<Option<Walked>> {
        Ok(self.next_window()?.map(|window| (window.at, window.pieces.into_iter().map(|p| p.at).collect())))
    }

    /// Takes everything up to there for moved.
    fn skip_to(&self, position: u64) {
        self.position.set(position);
    }
}

/// The devices that bytes lie on, or are about to.
pub fn devices(node: &Node) -> Vec<String> {
    let info = node.info();
    let bands = [&info["layout"], &info["move"]["to"]].into_iter().filter_map(Value::as_array).flatten();
    let places = bands.filter_map(|band| band["on"].as_array()).flatten();
    let mut names: Vec<String> = places.filter_map(|p| Some(p["device"].as_str()?.to_owned())).collect();
    names.sort();
    names.dedup();
    names
}
