//! What the tests of layers share: devices built from keys as the hierarchy file would, and requests to them.

pub mod history;

/// The allocator of every test that links this crate; the program has the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives the tests of a family the module `testing`: all that is here, with the kinds of the family and of
/// these `others` by their names.
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "the kinds are the family's")]
macro_rules! with_kinds {
    ($($others:expr),*) => {
        /// What tests build devices with.
        mod testing {
            #![allow(dead_code, unused_imports)]
            pub use $crate::*;

            /// The kind of this name.
            pub fn kind(name: &str) -> &'static Kind {
                let mut all = [crate::KINDS $(, $others)*].into_iter().flatten();
                all.find(|known| known.name == name).expect("the kind is registered")
            }

            /// A sink of `kind`.
            pub fn built(name: &str, keys: Value) -> Rc<Node> {
                over(name, keys, &[])
            }

            /// A device of `kind` over others, named after its kind.
            pub fn over(name: &str, keys: Value, children: &[&Rc<Node>]) -> Rc<Node> {
                $crate::over(kind(name), keys, children)
            }

            /// Why a device cannot be built.
            pub fn refused(name: &str, keys: Value, children: &[&Rc<Node>]) -> String {
                $crate::refused(kind(name), keys, children)
            }

            /// A memory of this size.
            pub fn memory(size: &str) -> Rc<Node> {
                built("memory", json!({ "size": size }))
            }

            /// Runs `test` in a simulated world.
            pub fn simulated<F: Future<Output = ()> + 'static>(test: impl FnOnce(World) -> F) {
                $crate::simulated(kind, test);
            }
        }
    };
}

pub use lamina_block::{
    Buf, Command, Durability, Env, ErrorKind, Extent, ExtentState, Io, Kind, Node, OpKind, Result, Time,
    Unit, Zero, all,
};
pub use lamina_sim::Subject;
pub use serde_json::{Value, json};
pub use std::ops::Range;
pub use std::rc::Rc;

use lamina_block::{Address, Build, Conn, Error, Layer, Listener, OpenDisk, Pending, Pool};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A world in which nothing happens.
struct Still(Pool);

impl Env for Still {
    fn now(&self) -> Time {
        Time(0)
    }
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, _: Pin<Box<dyn Future<Output = ()>>>) {}
    fn random(&self) -> u64 {
        0
    }
    fn pool(&self) -> &Pool {
        &self.0
    }
    fn open_disk(&self, _: OpenDisk) -> Pending<Rc<dyn Layer>> {
        Box::pin(async { Err(Error::unsupported("there are no disks here")) })
    }
    fn connect(&self, _: Address) -> Pending<Rc<dyn Conn>> {
        Box::pin(async { Err(Error::unsupported("there is no network here")) })
    }
    fn listen(&self, _: Address) -> Result<Rc<dyn Listener>> {
        Err(Error::unsupported("there is no network here"))
    }
}

/// The result of something that does not have to wait.
pub fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it waits"),
    }
}

async fn build(
    env: Rc<dyn Env>,
    kind: &Kind,
    keys: Value,
    children: &[&Rc<Node>],
) -> std::result::Result<Rc<Node>, String> {
    let keys = kind.parse(&keys).map_err(|e| format!("{}: {}", e.path, e.message))?;
    let children = children.iter().map(|child| Rc::clone(child)).collect();
    let with = Build { base: "/".into(), ..Build::new(kind.name, &env, children) };
    let made = keys.build(with).await.map_err(|e| e.message().to_owned())?;
    Ok(Node::new(kind.name, kind.name, env, made))
}

fn build_at_once(kind: &Kind, keys: Value, children: &[&Rc<Node>]) -> std::result::Result<Rc<Node>, String> {
    at_once(build(Rc::new(Still(Pool::new(0))), kind, keys, children))
}

/// A device of `kind` over others, named after its kind.
pub fn over(kind: &Kind, keys: Value, children: &[&Rc<Node>]) -> Rc<Node> {
    build_at_once(kind, keys, children).expect("the device can be built")
}

/// Why a device cannot be built.
pub fn refused(kind: &Kind, keys: Value, children: &[&Rc<Node>]) -> String {
    build_at_once(kind, keys.clone(), children).map(|_| format!("{keys} was accepted")).unwrap_or_else(|e| e)
}

/// A simulated world to build devices in.
pub struct World {
    /// The world, to break devices in.
    pub sim: Rc<lamina_sim::SimEnv>,
    /// The same, as devices see it.
    pub env: Rc<dyn Env>,
    find: fn(&str) -> &'static Kind,
}

impl World {
    /// A device of `kind`, or why it cannot be built.
    pub async fn try_over(
        &self,
        kind: &str,
        keys: Value,
        children: &[&Rc<Node>],
    ) -> std::result::Result<Rc<Node>, String> {
        build(Rc::clone(&self.env), (self.find)(kind), keys, children).await
    }

    /// A device of `kind`; panics if it cannot be built.
    pub async fn over(&self, kind: &str, keys: Value, children: &[&Rc<Node>]) -> Rc<Node> {
        self.try_over(kind, keys, children).await.expect("the device can be built")
    }

    /// A memory of this size.
    pub async fn memory(&self, size: &str) -> Rc<Node> {
        self.over("memory", json!({ "size": size }), &[]).await
    }
}

/// Runs `test` in a simulated world.
pub fn simulated<F: Future<Output = ()> + 'static>(
    find: fn(&str) -> &'static Kind,
    test: impl FnOnce(World) -> F,
) {
    let simulation = lamina_sim::Simulation::new(1);
    let sim = simulation.env();
    let world = World { env: Rc::clone(&sim) as Rc<dyn Env>, sim, find };
    simulation.run(test(world)).expect("it ends");
}

/// Fails unless a device of `kind` shows every figure that the kind declares, where it is declared to be, and what its
/// notices are about.
pub fn has_its_figures(kind: &Kind, subject: &Subject) {
    let info = lamina_sim::shown(subject, kind.name);
    for figure in kind.traits.figures {
        let there = info.pointer(figure.at);
        assert!(figure.is_in(&info), "{}: {} is {there:?} in {info:#}", kind.name, figure.at);
        for other in figure.only_if.iter().chain(match &figure.unit {
            Unit::Pieces(of) => Some(of),
            _ => None,
        }) {
            assert!(info.pointer(other).is_some_and(Value::is_number), "{}: {other} is no number", kind.name);
        }
    }
    for notice in kind.traits.notices {
        let (at, says) = (notice.when, notice.says);
        assert!(info.pointer(at).is_some() || lamina_block::is_null(&info, at), "{}: {at}", kind.name);
        for place in notice.places().filter(|place| *place != at) {
            let is_known = kind.traits.figures.iter().any(|figure| figure.at == place);
            assert!(is_known, "{}: {place} is no figure: {says}", kind.name);
        }
    }
}

/// What becomes of a request that does not have to wait.
pub fn submit(node: &Rc<Node>, io: Io) -> Result<()> {
    at_once(node.submit(io))
}

/// Writes `len` bytes of this value.
pub fn write(node: &Rc<Node>, offset: u64, value: u8, len: usize) {
    write_bytes(node, offset, &vec![value; len]);
}

/// Writes these bytes.
pub fn write_bytes(node: &Rc<Node>, offset: u64, bytes: &[u8]) {
    submit(node, Io::write(offset, Buf::from_vec(bytes.to_vec()), Durability::Cached)).expect("written");
}

/// The bytes there.
pub fn read(node: &Rc<Node>, offset: u64, len: usize) -> Vec<u8> {
    let into = Buf::from_vec(vec![0xEE; len]);
    submit(node, Io::read(offset, into.clone())).expect("read");
    into.to_vec()
}

/// What the device says of a range.
pub fn extents(node: &Rc<Node>, at: Range<u64>) -> Vec<Extent> {
    at_once(node.extents(at)).expect("extents")
}

/// The answer to a command.
pub fn command(node: &Rc<Node>, name: &str, args: Value) -> Result<Value> {
    at_once(node.control(Command { name: name.into(), args }))
}

/// An extent of data.
pub fn data(len: u64) -> Extent {
    Extent { len, state: ExtentState::Data }
}

/// An extent of a hole.
pub fn hole(len: u64) -> Extent {
    Extent { len, state: ExtentState::Hole }
}

/// Bytes that differ from block to block and within a block.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 512 * 31 + 1) as u8).collect()
}

/// Numbers that look random and are the same every time.
pub fn xorshift(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
