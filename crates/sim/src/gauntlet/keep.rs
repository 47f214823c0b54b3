//! The state records of a simulated hierarchy: each on a disk of one block, which is never written in part.

use crate::disk::{Image, SimDisk};
use crate::env::SimEnv;
use crate::options::DiskOptions;
use lamina_block::{
    Buf, Durability, Env, Error, ErrorKind, Geometry, Io, Keep, Node, Pending, Result, believe,
};
use serde_json::Value;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// The disk's only block.
const LEN: usize = 64 << 10;

/// A state record on its own disk.
pub struct SimKeep {
    node: Rc<Node>,
    words: RefCell<Option<Value>>,
}

impl SimKeep {
    /// The state record of the device `name` in `env`; true if the device is seen for the first time.
    pub async fn open(env: &Rc<SimEnv>, name: &str) -> Result<(Rc<SimKeep>, bool)> {
        let path = format!("keep-{name}");
        let is_new = env.disk(&path).is_none();
        let disk = env.disk(&path).unwrap_or_else(|| env.put_disk(&path, Image::blank(options())));
        let keep = SimKeep { node: node(env, &path, disk), words: RefCell::default() };
        if !is_new {
            believe([&keep.node]).await;
            let buf = Buf::zeroed(LEN);
            keep.node.submit(Io::read(0, buf.clone())).await?;
            let bytes = buf.to_vec();
            let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            *keep.words.borrow_mut() = serde_json::from_slice(text).ok();
        }
        Ok((Rc::new(keep), is_new))
    }
}

fn options() -> DiskOptions {
    let geometry =
        Geometry { block: LEN as u32, optimal: LEN as u32, fua: true, ..Geometry::new(LEN as u64) };
    DiskOptions { geometry, latency_max: Duration::from_millis(1), ..DiskOptions::new(0) }
}

fn node(env: &Rc<SimEnv>, name: &str, disk: Rc<SimDisk>) -> Rc<Node> {
    Node::new(name, "kept", Rc::clone(env) as Rc<dyn Env>, disk)
}

impl Keep for SimKeep {
    fn get(&self) -> Option<Value> {
        self.words.borrow().clone()
    }

    fn set(&self, value: Value) -> Pending {
        let (text, node) = (value.to_string(), Rc::clone(&self.node));
        if text.len() > LEN {
            return Box::pin(async { Err(Error::new(ErrorKind::NoSpace, "the state record is too long")) });
        }
        *self.words.borrow_mut() = Some(value);
        Box::pin(async move {
            let buf = Buf::zeroed(LEN);
            buf.write(0, text.as_bytes());
            node.submit(Io::write(0, buf, Durability::Fua)).await
        })
    }
}
