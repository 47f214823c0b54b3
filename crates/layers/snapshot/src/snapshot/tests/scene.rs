//! A volume over a simulated disk, and what it should hold.

use super::super::core::Core;
use super::super::{Keys, Volume, begin};
use crate::testing::*;
use lamina_block::{Begin, Build, Level, Made};
use lamina_metadata::extents::Entry;
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub const DISK: &str = "disk";
/// The disk for the metadata, if there is one.
pub const META: &str = "meta";

/// How a volume is built.
#[derive(Clone)]
pub struct How {
    pub keys: Value,
    pub level: Level,
    pub disk: u64,
    pub meta: Option<u64>,
}

impl How {
    pub fn new(level: Level) -> How {
        How { keys: json!({ "extent": "8KiB", "size": "512KiB" }), level, disk: 2 << 20, meta: None }
    }
}

pub fn options(size: u64, latency: Duration) -> DiskOptions {
    let mut options = DiskOptions::new(size);
    options.latency_max = latency;
    options.geometry.discard = true;
    options.geometry.zero = true;
    options.junk = Some(0xF000_0001);
    options
}

pub fn world(how: &How, seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    let latency = Duration::from_micros(100);
    world.env().put_disk(DISK, Image::blank(options(how.disk, latency)));
    if let Some(meta) = how.meta {
        world.env().put_disk(META, Image::blank(options(meta, latency)));
    }
    world
}

pub fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as _, env.disk(name).expect("it was put there"))
}

/// A volume, open.
#[derive(Clone)]
pub struct Open {
    pub env: Rc<SimEnv>,
    pub node: Rc<Node>,
    pub core: Rc<Core>,
}

pub async fn open(env: &Rc<SimEnv>, how: &How, begin: Begin) -> Result<Open> {
    let child = disk(env, DISK);
    open_over(env, how, begin, child).await
}

pub async fn open_over(env: &Rc<SimEnv>, how: &How, begin: Begin, child: Rc<Node>) -> Result<Open> {
    let dyn_env: Rc<dyn Env> = Rc::clone(env) as _;
    let metadata = how.meta.map(|_| disk(env, META));
    let with = Build { begin, metadata, level: how.level, ..Build::new("vol", &dyn_env, vec![child]) };
    let keys: Keys = serde_json::from_value(how.keys.clone()).expect("the keys are right");
    let core = begin::volume(keys, with).await?;
    let node = Node::new("vol", "snapshot", dyn_env, Rc::new(Volume(Rc::clone(&core))));
    Ok(Open { env: Rc::clone(env), node, core })
}

impl Open {
    pub async fn write(&self, at: u64, value: u8, len: usize) -> Result<()> {
        let buf = Buf::from_vec(vec![value; len]);
        self.node.submit(Io::write(at, buf, Durability::Cached)).await
    }

    pub async fn flush(&self) -> Result<()> {
        self.node.submit(Io::flush()).await
    }

    pub async fn read(&self, at: Range<u64>) -> Vec<u8> {
        fetch(&self.node, at).await
    }

    pub async fn all(&self) -> Vec<u8> {
        self.read(0..self.node.geometry().size).await
    }

    pub async fn command(&self, name: &str, args: Value) -> Result<Value> {
        self.node.control(Command { name: name.into(), args }).await
    }

    pub async fn view(&self, name: &str) -> Rc<Node> {
        let view: Made = self.node.view(name).await.expect("there is such a snapshot");
        Node::new(name, "view", Rc::clone(&self.env) as _, view)
    }

    /// Every snapshot with what it holds.
    pub async fn snapshots(&self) -> BTreeMap<String, Vec<u8>> {
        let names = self.core.list();
        let mut all = BTreeMap::new();
        for snapshot in names.as_array().expect("a list") {
            let name = snapshot["name"].as_str().expect("a name");
            let view = self.view(name).await;
            all.insert(name.to_owned(), fetch(&view, 0..view.geometry().size).await);
            view.close().await.expect("closed");
        }
        all
    }

    /// Waits until there is no garbage any more.
    pub async fn reclaimed(&self) {
        self.core.moved.until(|| !self.core.state().garbage.is_running()).await;
        self.flush().await.expect("flushed");
        self.core.all_released().await;
    }

    /// The bitmaps agree with the map. `exactly`: nothing else is in use.
    pub async fn audit(&self, exactly: bool) {
        self.flush().await.expect("flushed");
        let (core, mut pages, mut extents) = (&self.core, BTreeSet::new(), BTreeSet::new());
        let mut roots = vec![core.head().root];
        roots.extend(core.state().versions.snapshots().iter().map(|snapshot| snapshot.record.root));
        for root in roots {
            let mut stack = vec![(root.page, root.levels)];
            while let Some((Entry::At { place, .. }, levels)) = stack.pop() {
                match levels {
                    0 => {
                        extents.insert(place);
                    }
                    _ if pages.insert(place) => {
                        let entries = core.tree.page(place).await.expect("a page");
                        let used = entries.into_iter().filter(|e| matches!(e, Entry::At { .. }));
                        stack.extend(used.map(|entry| (entry, levels - 1)));
                    }
                    _ => {}
                }
            }
        }
        let space = Rc::clone(&core.space.borrow());
        for (bitmap, used, what) in [(&*space, extents, "extents"), (&core.pages, pages, "pages")] {
            let (mut from, mut bits) = (0, BTreeSet::new());
            while from < bitmap.physical() {
                let (some, next) = bitmap.used(from).await.expect("bits");
                bits.extend(some);
                from = next;
            }
            let missing: Vec<_> = used.difference(&bits).collect();
            assert!(missing.is_empty(), "{what} are used and free: {missing:?}");
            let leaked: Vec<_> = bits.difference(&used).collect();
            assert!(!exactly || leaked.is_empty(), "{what} are lost: {leaked:?}");
        }
    }
}

pub async fn fetch(node: &Rc<Node>, at: Range<u64>) -> Vec<u8> {
    let buf = Buf::from_vec(vec![0xEE; (at.end - at.start) as usize]);
    node.submit(Io::read(at.start, buf.clone())).await.expect("read");
    buf.to_vec()
}

/// Takes images of the disks before each change, until it is told to end. `one_in`: of so many, one.
pub struct Camera(Rc<RefCell<Vec<Images>>>);

impl Camera {
    pub fn start(env: &Rc<SimEnv>, seed: u64, one_in: u64) -> Camera {
        let images = Rc::new(RefCell::new(Vec::new()));
        let (weak, into) = (Rc::downgrade(env), Rc::clone(&images));
        let random = RefCell::new(xorshift(seed * 2 + 1));
        env.observe(Some(Rc::new(move || {
            let draw = || (random.borrow_mut())();
            let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0) else { return };
            into.borrow_mut().push(env.after_death(draw() >> 8, draw()));
        })));
        Camera(images)
    }

    pub fn end(self, env: &Rc<SimEnv>) -> Vec<Images> {
        env.observe(None);
        self.0.take()
    }

    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }
}
