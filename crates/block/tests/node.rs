//! The work of a node around its layer: admission, gates, emulation, errors, statistics.

use lamina_block::{
    Absent, Buf, Command, Difference, Durability, Env, Error, ErrorKind, Extent, ExtentState, Geometry, Io,
    Layer, Manage, Passthrough,
};
use lamina_block::{Node, Op, OpKind, Pending, Request, Result, Signal, Step, Time, Watch, Zero};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

const SIZE: u64 = 1 << 20;

/// A layer that records the requests that reach it, and answers on command.
struct Desk {
    geometry: Cell<Geometry>,
    seen: RefCell<Vec<String>>,
    /// Requests are answered while this is true.
    open: Cell<bool>,
    moved: Signal,
    /// The answers for the next requests of a kind.
    failing: Cell<Option<OpKind>>,
    closed: Cell<u32>,
}

impl Desk {
    fn new(geometry: Geometry) -> Rc<Desk> {
        Rc::new(Desk {
            geometry: Cell::new(geometry),
            seen: RefCell::default(),
            open: Cell::new(true),
            moved: Signal::new(),
            failing: Cell::new(None),
            closed: Cell::new(0),
        })
    }

    fn set_open(&self, open: bool) {
        self.open.set(open);
        self.moved.notify();
    }

    fn seen(&self) -> Vec<String> {
        self.seen.take()
    }
}

impl Layer for Desk {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let how = match &io.op {
            Op::Write(_, Durability::Fua) | Op::Zero(Zero { durability: Durability::Fua, .. }) => " fua",
            Op::Write(..) | Op::Zero(_) | Op::Read(_) | Op::Discard | Op::Flush => "",
        };
        let by = if io.client == 0 { String::new() } else { format!(" by {}", io.client) };
        self.seen.borrow_mut().push(format!("{} {:?}{how}{by}", io.op.kind().name(), io.at));
        if self.failing.get() == Some(io.op.kind()) {
            return Error::media("it is broken").into();
        }
        match self.open.get() {
            true => Step::Done(Ok(())),
            false => Step::control(async move {
                self.moved.until(|| self.open.get()).await;
                Ok(())
            }),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn changed(self: Rc<Self>, since: String, at: Range<u64>) -> Pending<Vec<Difference>> {
        self.seen.borrow_mut().push(format!("changed since {since} {at:?}"));
        Box::pin(async move { Ok(vec![Difference { len: at.end - at.start, changed: true }]) })
    }

    fn snapshots(&self) -> Vec<String> {
        vec!["monday".into()]
    }

    fn close(self: Rc<Self>) -> Pending {
        self.closed.set(self.closed.get() + 1);
        Box::pin(async { Ok(()) })
    }
}

impl Manage for Desk {
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            let size = command.args["size"].as_u64().ok_or_else(|| Error::invalid("no size"))?;
            self.geometry.set(self.geometry.get().with_size(size));
            Ok(Value::Bool(true))
        })
    }
}

/// A layer that only forwards, `offset` bytes further on.
struct Shift {
    child: Rc<Node>,
    offset: u64,
}

impl Layer for Shift {
    fn geometry(&self) -> Geometry {
        let below = self.child.geometry();
        below.with_size(below.size - self.offset)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        io.move_to(io.at.start + self.offset);
        Step::Forward(Rc::clone(&self.child))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.child, self.offset)
    }
}

impl Manage for Shift {}

fn native() -> Geometry {
    Geometry { discard: true, zero: true, fua: true, ..Geometry::new(SIZE) }
}

fn node(env: &Rc<SimEnv>, name: &str, layer: Rc<dyn Layer>) -> Rc<Node> {
    Node::new(name, "test", Rc::clone(env) as Rc<dyn Env>, layer)
}

/// Runs a test on a desk under a node called `desk`.
fn with_desk<F>(geometry: Geometry, test: impl FnOnce(Rc<SimEnv>, Rc<Desk>, Rc<Node>) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let world = Simulation::new(7);
    let desk = Desk::new(geometry);
    let node = node(&world.env(), "desk", Rc::clone(&desk) as Rc<dyn Layer>);
    assert_eq!(world.run(test(world.env(), desk, node)), Ok(()));
}

fn read(at: u64, len: usize) -> Io {
    Io::read(at, Buf::zeroed(len))
}

fn write(at: u64, len: usize, durability: Durability) -> Io {
    Io::write(at, Buf::zeroed(len), durability)
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().map(|e| e.kind())
}

/// Lets tasks run.
async fn settle(env: &SimEnv) {
    env.sleep(Duration::from_micros(1)).await;
}

/// Polls a request in the background.
fn start(env: &SimEnv, request: Request) -> Rc<RefCell<Option<Result<()>>>> {
    let slot = Rc::new(RefCell::new(None));
    let result = Rc::clone(&slot);
    env.spawn(Box::pin(async move {
        let ended = request.await;
        *result.borrow_mut() = Some(ended);
    }));
    slot
}

#[test]
fn wrong_requests_do_not_reach_the_layer() {
    with_desk(native(), |_, desk, node| async move {
        let reversed = Io { at: std::ops::Range { start: 4096, end: 512 }, ..Io::discard(0..0) };
        let wrong = [
            (read(SIZE, 512), "out of range: the device has 1048576 bytes"),
            (read(SIZE - 512, 1024), "out of range"),
            (read(u64::MAX - 511, 512), "out of range"),
            (Io::discard(0..u64::MAX), "out of range"),
            (reversed, "out of range"),
            (read(1, 512), "misaligned: requests are multiples of 512 bytes"),
            (read(0, 100), "misaligned"),
            (Io { at: 0..512, ..Io::read(0, Buf::zeroed(1024)) }, "the buffer has 1024 bytes"),
            (Io { at: 0..512, ..Io::write(0, Buf::empty(), Durability::Fua) }, "the buffer has 0 bytes"),
        ];
        for (io, message) in wrong {
            let at = io.at.clone();
            let e = node.submit(io).await.unwrap_err();
            assert_eq!((e.kind(), e.device(), e.range()), (ErrorKind::Invalid, Some("desk"), Some(&at)));
            assert!(e.message().starts_with(message), "{e}");
        }
        assert_eq!(desk.seen(), [""; 0]);
        assert_eq!(node.stats().in_flight(), 0);
    });
}

#[test]
fn nothing_to_do_is_done_without_the_layer() {
    with_desk(native(), |_, desk, node| async move {
        for io in [
            read(SIZE, 0),
            write(0, 0, Durability::Fua),
            Io::discard(512..512),
            Io::zero(0..0, Zero::default()),
        ] {
            assert_eq!(node.submit(io).ready(), Some(Ok(())));
        }
        assert_eq!(desk.seen(), [""; 0]);
    });
}

#[test]
fn a_read_only_device_is_only_read() {
    with_desk(Geometry { read_only: true, ..native() }, |_, desk, node| async move {
        assert_eq!(node.submit(read(0, 512)).await, Ok(()));
        assert_eq!(node.submit(Io::flush()).await, Ok(()));
        for io in [write(0, 512, Durability::Cached), Io::discard(0..512), Io::zero(0..512, Zero::default())]
        {
            assert_eq!(kind(node.submit(io).await), Some(ErrorKind::ReadOnly));
        }
        assert_eq!(desk.seen(), ["read 0..512", "flush 0..0"]);
    });
}

#[test]
fn what_a_layer_does_natively_is_left_to_it() {
    with_desk(native(), |_, desk, node| async move {
        let how = Zero { fast: true, unmap: true, durability: Durability::Fua };
        for io in [write(0, 512, Durability::Fua), Io::zero(0..1024, how), Io::discard(0..512)] {
            assert_eq!(node.submit(io).ready(), Some(Ok(())));
        }
        assert_eq!(desk.seen(), ["write 0..512 fua", "zero 0..1024 fua", "discard 0..512"]);
    });
}

#[test]
fn a_write_is_made_durable_by_a_flush() {
    with_desk(Geometry { fua: false, ..native() }, |_, desk, node| async move {
        let how = Zero { durability: Durability::Fua, ..Zero::default() };
        node.submit(write(0, 512, Durability::Fua)).await.unwrap();
        node.submit(Io::zero(0..512, how)).await.unwrap();
        assert_eq!(desk.seen(), ["write 0..512", "flush 0..0", "zero 0..512", "flush 0..0"]);
        desk.failing.set(Some(OpKind::Flush));
        assert_eq!(kind(node.submit(write(0, 512, Durability::Fua)).await), Some(ErrorKind::Media));
        desk.seen();
        desk.failing.set(Some(OpKind::Write));
        assert_eq!(kind(node.submit(write(0, 512, Durability::Fua)).await), Some(ErrorKind::Media));
        assert_eq!(desk.seen(), ["write 0..512"], "what failed is not flushed");
    });
}

#[test]
fn zeroing_becomes_writes_of_bounded_size() {
    with_desk(Geometry { zero: false, fua: false, ..native() }, |_, desk, node| async move {
        node.submit(Io::zero(512..(600 << 10) + 512, Zero::default())).await.unwrap();
        assert_eq!(desk.seen(), ["write 512..262656", "write 262656..524800", "write 524800..614912"]);
        let fast = Zero { fast: true, ..Zero::default() };
        assert_eq!(kind(node.submit(Io::zero(0..512, fast)).await), Some(ErrorKind::Unsupported));
        assert_eq!(desk.seen(), [""; 0]);
        let durable = Zero { durability: Durability::Fua, ..Zero::default() };
        node.submit(Io::zero(0..512, durable)).await.unwrap();
        assert_eq!(desk.seen(), ["write 0..512", "flush 0..0"]);
    });
}

#[test]
fn what_is_done_instead_is_for_the_same_client() {
    with_desk(Geometry { zero: false, fua: false, ..native() }, |_, desk, node| async move {
        node.submit(write(0, 512, Durability::Fua).by(9)).await.unwrap();
        node.submit(Io::zero(0..512, Zero::default()).by(8)).await.unwrap();
        assert_eq!(desk.seen(), ["write 0..512 by 9", "flush 0..0", "write 0..512 by 8"]);
        desk.geometry.set(Geometry { fua: false, ..native() });
        node.refresh();
        let durable = Zero { durability: Durability::Fua, ..Zero::default() };
        node.submit(Io::zero(0..512, durable).by(7)).await.unwrap();
        assert_eq!(desk.seen(), ["zero 0..512 by 7", "flush 0..0"]);
    });
}

#[test]
fn emulated_zeroes_are_zeroes() {
    let world = Simulation::new(3);
    let env = world.env();
    let run = world.run(async move {
        let mut options = DiskOptions::new(SIZE);
        options.geometry.zero = false;
        options.junk = Some(1);
        let node = node(&env, "disk", env.put_disk("disk", Image::blank(options)));
        // Memory of the pool that was used before.
        let dirty = env.pool().take(256 << 10);
        dirty.fill(0xFF);
        drop(dirty);
        node.submit(Io::zero(512..SIZE - 512, Zero::default())).await.unwrap();
        let buf = Buf::zeroed(SIZE as usize);
        node.submit(Io::read(0, buf.clone())).await.unwrap();
        let bytes = buf.to_vec();
        assert!(bytes[512..bytes.len() - 512].iter().all(|b| *b == 0));
        assert!(bytes[..512].iter().any(|b| *b != 0) && bytes[bytes.len() - 512..].iter().any(|b| *b != 0));
    });
    assert_eq!(run, Ok(()));
}

#[test]
fn discards_a_layer_cannot_do_complete() {
    with_desk(Geometry { discard: false, ..native() }, |_, desk, node| async move {
        assert_eq!(node.submit(Io::discard(0..SIZE)).ready(), Some(Ok(())));
        assert_eq!(kind(node.submit(Io::discard(0..SIZE + 512)).await), Some(ErrorKind::Invalid));
        assert_eq!(desk.seen(), [""; 0]);
    });
}

#[test]
fn errors_name_the_deepest_device_and_its_range() {
    let world = Simulation::new(7);
    let env = world.env();
    let run = world.run(async move {
        let desk = Desk::new(native());
        desk.failing.set(Some(OpKind::Read));
        let bottom = node(&env, "bottom", desk);
        let middle = node(&env, "middle", Rc::new(Shift { child: bottom, offset: 4096 }));
        let top = node(&env, "top", Rc::new(Shift { child: middle, offset: 512 }));
        let e = top.submit(read(0, 512)).await.unwrap_err();
        assert_eq!(e.to_string(), "bottom: it is broken");
        let e = top.submit(read(SIZE, 512)).await.unwrap_err();
        assert_eq!((e.device(), e.range()), (Some("top"), Some(&(SIZE..SIZE + 512))));
    });
    assert_eq!(run, Ok(()));
}

#[test]
fn a_forwarded_request_is_counted_in_every_node_it_passed() {
    let world = Simulation::new(7);
    let env = world.env();
    let run = world.run(async move {
        let desk = Desk::new(native());
        let bottom = node(&env, "bottom", Rc::clone(&desk) as Rc<dyn Layer>);
        let middle = node(&env, "middle", Rc::new(Shift { child: Rc::clone(&bottom), offset: 4096 }));
        let top = node(&env, "top", Rc::new(Shift { child: Rc::clone(&middle), offset: 512 }));
        let nodes = [&bottom, &middle, &top];
        // At once.
        top.submit(read(0, 512)).await.unwrap();
        assert_eq!(desk.seen(), ["read 4608..5120"]);
        for node in nodes {
            let reads = node.stats().of(OpKind::Read);
            assert_eq!((reads.completed.get(), reads.bytes.get(), reads.errors.get()), (1, 512, 0));
            assert_eq!(reads.latency.buckets().len(), 1);
        }
        // Later, and from the middle.
        desk.set_open(false);
        let long = start(&env, top.submit(write(0, 1024, Durability::Cached)));
        let short = start(&env, middle.submit(write(0, 512, Durability::Cached)));
        settle(&env).await;
        assert_eq!(nodes.map(|node| node.stats().in_flight()), [2, 2, 1]);
        env.sleep(Duration::from_millis(3)).await;
        desk.set_open(true);
        settle(&env).await;
        assert_eq!((long.take(), short.take()), (Some(Ok(())), Some(Ok(()))));
        assert_eq!(nodes.map(|node| node.stats().in_flight()), [0, 0, 0]);
        let writes = nodes.map(|node| node.stats().of(OpKind::Write).completed.get());
        let bytes = nodes.map(|node| node.stats().of(OpKind::Write).bytes.get());
        assert_eq!((writes, bytes), ([2, 2, 1], [1536, 1536, 1024]));
        let (slowest, count) = top.stats().of(OpKind::Write).latency.buckets()[0];
        assert!((3_000_000..3_500_000).contains(&slowest) && count == 1);
        // Errors count no bytes.
        desk.failing.set(Some(OpKind::Write));
        assert!(top.submit(write(0, 512, Durability::Cached)).await.is_err());
        for node in nodes {
            assert_eq!(node.stats().of(OpKind::Write).errors.get(), 1);
        }
        assert_eq!(top.stats().of(OpKind::Write).bytes.get(), 1024);
    });
    assert_eq!(run, Ok(()));
}

#[test]
fn a_walk_may_be_of_any_length() {
    let world = Simulation::new(7);
    let env = world.env();
    let run = world.run(async move {
        let desk = Desk::new(native());
        let mut nodes = vec![node(&env, "bottom", Rc::clone(&desk) as Rc<dyn Layer>)];
        for number in 0..40 {
            let child = Rc::clone(&nodes[number]);
            nodes.push(node(&env, &format!("n{number}"), Rc::new(Shift { child, offset: 512 })));
            let top = nodes.last().unwrap();
            let counts =
                |op| nodes.iter().map(|node| node.stats().of(op).completed.get()).rev().collect::<Vec<_>>();
            let rising: Vec<u64> = (1..=number as u64 + 1).chain([number as u64 + 1]).collect();
            // At once, later, given up, and failing.
            desk.set_open(true);
            top.submit(read(0, 512)).await.unwrap();
            assert_eq!(counts(OpKind::Read), rising);
            desk.set_open(false);
            let later = start(&env, top.submit(write(0, 512, Durability::Cached)));
            let given_up = top.submit(write(0, 512, Durability::Cached));
            settle(&env).await;
            assert!(nodes.iter().all(|node| node.stats().in_flight() == 2));
            drop(given_up);
            assert!(nodes.iter().all(|node| node.stats().in_flight() == 1));
            desk.set_open(true);
            settle(&env).await;
            assert_eq!(later.take(), Some(Ok(())));
            assert!(nodes.iter().all(|node| node.stats().in_flight() == 0));
            assert_eq!(counts(OpKind::Write), rising);
            desk.failing.set(Some(OpKind::Flush));
            assert_eq!(top.submit(Io::flush()).await.unwrap_err().device(), Some("bottom"));
            desk.failing.set(None);
        }
    });
    run.unwrap();
}

#[test]
fn a_dropped_request_is_in_flight_no_more_and_not_counted() {
    with_desk(native(), |env, desk, node| async move {
        desk.set_open(false);
        let request = node.submit(read(0, 512));
        assert_eq!(node.stats().in_flight(), 1);
        drop(request);
        assert_eq!(node.stats().in_flight(), 0);
        assert_eq!(node.stats().of(OpKind::Read).completed.get(), 0);
        // Nor does it delay a task that wants to quiesce the node.
        let request = node.submit(read(0, 512));
        let holding = env.start({
            let node = Rc::clone(&node);
            async move { drop(node.quiesce().await) }
        });
        settle(&env).await;
        drop(request);
        holding.ended().await;
    });
}

#[test]
fn a_held_node_drains_and_lets_nothing_pass() {
    with_desk(native(), |env, desk, node| async move {
        desk.set_open(false);
        let before = start(&env, node.submit(read(0, 512)));
        let holding = env.start({
            let node = Rc::clone(&node);
            async move { node.quiesce().await }
        });
        settle(&env).await;
        assert_eq!(before.take(), None);
        let after = start(&env, node.submit(read(512, 512)));
        settle(&env).await;
        assert_eq!(desk.seen(), ["read 0..512"], "a request that comes while the node drains waits");
        desk.set_open(true);
        let held = holding.ended().await;
        assert_eq!(before.take(), Some(Ok(())));
        settle(&env).await;
        assert_eq!((node.stats().in_flight(), after.take()), (0, None));
        drop(held);
        settle(&env).await;
        assert_eq!(after.take(), Some(Ok(())));
        assert_eq!(desk.seen(), ["read 512..1024"]);
    });
}

#[test]
fn a_layer_is_replaced_under_waiting_requests() {
    with_desk(native(), |env, desk, node| async move {
        let held = node.quiesce().await;
        let fits = start(&env, node.submit(read(0, 512)));
        let no_longer = start(&env, node.submit(read(SIZE - 512, 512)));
        let resized = env.start({
            let node = Rc::clone(&node);
            async move { node.resized().await }
        });
        settle(&env).await;
        let other = Desk::new(native().with_size(SIZE / 2));
        held.replace(node.kind(), Rc::clone(&other) as Rc<dyn Layer>);
        drop(held);
        settle(&env).await;
        assert_eq!(fits.take(), Some(Ok(())));
        assert_eq!(no_longer.take().and_then(kind), Some(ErrorKind::Invalid));
        assert_eq!((desk.seen(), other.seen()), (vec![], vec!["read 0..512".to_owned()]));
        assert_eq!(node.geometry().size, SIZE / 2);
        resized.ended().await;
    });
}

#[test]
fn holders_take_turns() {
    with_desk(native(), |env, _desk, node| async move {
        let first = node.quiesce().await;
        let inside = Rc::new(Cell::new(0));
        let others: Vec<_> = (0..3)
            .map(|_| {
                let (env2, node, inside) = (Rc::clone(&env), Rc::clone(&node), Rc::clone(&inside));
                env.start(async move {
                    let _held = node.quiesce().await;
                    assert_eq!(inside.replace(1), 0);
                    env2.sleep(Duration::from_micros(5)).await;
                    inside.set(0);
                })
            })
            .collect();
        let waiting = start(&env, node.submit(read(0, 512)));
        settle(&env).await;
        drop(first);
        for other in others {
            other.ended().await;
        }
        settle(&env).await;
        assert_eq!(waiting.take(), Some(Ok(())));
    });
}

#[test]
fn a_hold_given_up_opens_the_node_again() {
    with_desk(native(), |env, desk, node| async move {
        desk.set_open(false);
        let before = start(&env, node.submit(read(0, 512)));
        settle(&env).await;
        {
            let mut holding = Box::pin(node.quiesce());
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(holding.as_mut().poll(&mut cx).is_pending());
        }
        desk.set_open(true);
        assert_eq!(node.submit(read(512, 512)).await, Ok(()));
        settle(&env).await;
        assert_eq!(before.take(), Some(Ok(())));
    });
}

#[test]
fn a_closed_node_is_offline() {
    with_desk(native(), |env, desk, node| async move {
        desk.set_open(false);
        let before = start(&env, node.submit(write(0, 512, Durability::Cached)));
        let closing = env.start({
            let node = Rc::clone(&node);
            async move { node.close().await }
        });
        settle(&env).await;
        let meanwhile = start(&env, node.submit(read(0, 512)));
        settle(&env).await;
        assert_eq!(desk.closed.get(), 0);
        desk.set_open(true);
        assert_eq!(closing.ended().await, Ok(()));
        settle(&env).await;
        assert_eq!(before.take(), Some(Ok(())));
        assert_eq!(meanwhile.take().and_then(kind), Some(ErrorKind::Offline));
        assert_eq!(desk.seen(), ["write 0..512", "flush 0..0"]);
        assert_eq!(desk.closed.get(), 1);
        for io in [read(0, 512), write(0, 512, Durability::Fua), Io::discard(0..512), Io::flush()] {
            assert_eq!(kind(node.submit(io).await), Some(ErrorKind::Offline));
        }
        assert_eq!(node.extents(0..512).await.unwrap_err().kind(), ErrorKind::Offline);
        assert_eq!(node.close().await, Ok(()), "closing again does nothing");
        node.fence();
        assert_eq!(kind(node.submit(read(0, 512)).await), Some(ErrorKind::Offline));
        assert_eq!((desk.seen(), desk.closed.get()), (vec![], 1));
    });
}

#[test]
fn a_failed_flush_is_reported_by_close() {
    with_desk(native(), |_, desk, node| async move {
        desk.failing.set(Some(OpKind::Flush));
        let e = node.close().await.unwrap_err();
        assert_eq!(e.to_string(), "desk: it is broken");
        assert_eq!(desk.closed.get(), 1, "it is closed all the same");
        assert_eq!(kind(node.submit(Io::flush()).await), Some(ErrorKind::Offline));
    });
}

#[test]
fn a_fenced_node_can_only_be_read() {
    with_desk(native(), |_, desk, node| async move {
        node.fence();
        assert_eq!(node.submit(read(0, 512)).await, Ok(()));
        for io in [
            write(0, 512, Durability::Fua),
            Io::discard(0..512),
            Io::zero(0..512, Zero::default()),
            Io::flush(),
        ] {
            assert_eq!(kind(node.submit(io).await), Some(ErrorKind::Fenced));
        }
        assert_eq!(desk.seen(), ["read 0..512"]);
        drop(node.quiesce().await);
        assert_eq!(kind(node.submit(Io::flush()).await), Some(ErrorKind::Fenced), "a hold does not lift it");
    });
}

#[test]
fn a_fence_does_not_disturb_who_holds_the_node() {
    with_desk(native(), |env, desk, node| async move {
        // While the node drains: the holder still gets it, when the last request is done.
        desk.set_open(false);
        let before = start(&env, node.submit(write(0, 512, Durability::Cached)));
        let holding = env.start({
            let node = Rc::clone(&node);
            async move { node.quiesce().await }
        });
        settle(&env).await;
        node.fence();
        let reads = start(&env, node.submit(read(0, 512)));
        settle(&env).await;
        desk.seen();
        desk.set_open(true);
        let held = holding.ended().await;
        assert_eq!(before.take(), Some(Ok(())));
        // While the node is quiesced: not even a read passes.
        settle(&env).await;
        assert_eq!((reads.take(), desk.seen()), (None, vec![]));
        drop(held);
        settle(&env).await;
        assert_eq!(reads.take(), Some(Ok(())));
        assert_eq!(kind(node.submit(Io::flush()).await), Some(ErrorKind::Fenced));
    });
}

#[test]
fn a_node_fenced_while_it_closes_is_closed() {
    with_desk(native(), |env, desk, node| async move {
        desk.set_open(false);
        let before = start(&env, node.submit(read(0, 512)));
        let closing = env.start({
            let node = Rc::clone(&node);
            async move { node.close().await }
        });
        settle(&env).await;
        node.fence();
        desk.set_open(true);
        assert_eq!(closing.ended().await, Ok(()));
        settle(&env).await;
        assert_eq!(before.take(), Some(Ok(())));
        assert_eq!(kind(node.submit(read(0, 512)).await), Some(ErrorKind::Offline));
        assert_eq!(desk.seen(), ["read 0..512"], "a fenced device is not flushed: it belongs to another");
    });
}

#[test]
fn a_command_may_change_the_geometry() {
    with_desk(native(), |_, _, node| async move {
        let resized = node.resized();
        let args = serde_json::json!({ "size": 2 * SIZE });
        let answer = node.control(Command { name: "resize".into(), args }).await;
        assert_eq!(answer, Ok(Value::Bool(true)));
        assert_eq!(node.geometry().size, 2 * SIZE);
        resized.await;
        assert_eq!(node.submit(read(SIZE, 512)).await, Ok(()));
        let e = node.control(Command { name: "resize".into(), args: Value::Null }).await.unwrap_err();
        assert_eq!(e.to_string(), "desk: no size");
    });
}

#[test]
fn extents_are_checked_and_wait_for_a_hold() {
    with_desk(native(), |env, _, node| async move {
        let whole = vec![Extent { len: SIZE, state: ExtentState::Data }];
        assert_eq!(node.extents(0..SIZE).await, Ok(whole));
        let e = node.extents(0..SIZE + 512).await.unwrap_err();
        assert_eq!((e.kind(), e.device()), (ErrorKind::Invalid, Some("desk")));
        let held = node.quiesce().await;
        let waiting = env.start({
            let node = Rc::clone(&node);
            async move { node.extents(0..512).await }
        });
        settle(&env).await;
        drop(held);
        assert!(waiting.ended().await.is_ok());
        assert_eq!(node.stats().in_flight(), 0);
    });
}

#[test]
fn a_question_about_a_snapshot_goes_down_to_the_device_that_has_it() {
    with_desk(native(), |env, desk, bottom| async move {
        let top = node(&env, "top", Rc::new(Shift { child: Rc::clone(&bottom), offset: 4096 }));
        assert_eq!(top.snapshots(), ["monday"]);
        let runs = top.changed("monday".into(), 512..1024).await;
        assert_eq!(runs, Ok(vec![Difference { len: 512, changed: true }]));
        assert_eq!(desk.seen(), ["changed since monday 4608..5120"]);
        let e = top.changed("monday".into(), 0..SIZE).await.unwrap_err();
        assert_eq!((e.kind(), e.device()), (ErrorKind::Invalid, Some("top")));
        let held = bottom.quiesce().await;
        let waiting = env.start(async move { top.changed("monday".into(), 0..512).await });
        settle(&env).await;
        assert_eq!(desk.seen(), Vec::<String>::new());
        drop(held);
        assert!(waiting.ended().await.is_ok());
        let disk = env.put_disk("disk", Image::blank(DiskOptions::new(SIZE)));
        let without = node(&env, "without", disk);
        assert_eq!(without.snapshots(), Vec::<String>::new());
        let e = without.changed("monday".into(), 0..512).await.unwrap_err();
        assert_eq!((e.kind(), e.device()), (ErrorKind::Unsupported, Some("without")));
        let absent = Node::absent("leg", Rc::clone(&env) as Rc<dyn Env>, Error::media("it is not there"));
        let e = absent.changed("monday".into(), 0..512).await.unwrap_err();
        assert_eq!((e.kind(), absent.snapshots()), (ErrorKind::Offline, Vec::new()));
    });
}

#[test]
fn healing_is_checked_waits_for_a_hold_and_is_no_request() {
    with_desk(native(), |env, _, node| async move {
        let heal = async |at| node.heal(at, Rc::new(|_| true)).await.map(|healed| healed.is_some());
        assert_eq!(heal(0..512).await, Ok(false), "it has one copy");
        for at in [SIZE..SIZE + 512, 0..100, 512..512] {
            let e = heal(at).await.unwrap_err();
            assert_eq!((e.kind(), e.device()), (ErrorKind::Invalid, Some("desk")));
        }
        let held = node.quiesce().await;
        let waiting = env.start({
            let node = Rc::clone(&node);
            async move { node.heal(0..512, Rc::new(|_| true)).await.map(|healed| healed.is_some()) }
        });
        settle(&env).await;
        drop(held);
        assert_eq!(waiting.ended().await, Ok(false));
        assert_eq!((node.stats().in_flight(), node.stats().of(OpKind::Read).completed.get()), (0, 0));
        node.fence();
        assert_eq!(heal(0..512).await.unwrap_err().kind(), ErrorKind::Fenced);
        node.close().await.unwrap();
        assert_eq!(heal(0..512).await.unwrap_err().kind(), ErrorKind::Offline);
    });
}

#[test]
fn an_absent_device_fails_everything_until_it_comes() {
    with_desk(native(), |env, desk, _| async move {
        let why = Error::media("there is no disk.img");
        let node = Node::absent("leg", Rc::clone(&env) as Rc<dyn Env>, why);
        assert!(node.is_absent());
        let offline = |result: Result<()>| {
            let e = result.unwrap_err();
            assert_eq!((e.kind(), e.device()), (ErrorKind::Offline, Some("leg")), "{e}");
            assert!(e.message().contains("there is no disk.img"), "{e}");
        };
        for io in [
            read(0, 512),
            write(SIZE, 512, Durability::Fua),
            write(0, 512, Durability::Cached),
            Io::zero(0..SIZE, Zero::default()),
            Io::discard(0..SIZE),
            Io::flush(),
        ] {
            offline(node.submit(io).await);
        }
        offline(node.extents(0..SIZE).await.map(drop));
        offline(node.control(Command { name: "resize".into(), args: Value::Null }).await.map(drop));
        offline(node.view("monday").await.map(drop));
        offline(node.evacuate(Vec::new()).await);
        offline(node.check(true).await.map(drop));
        let came = node.resized();
        let held = node.quiesce().await;
        held.flush().await.unwrap();
        let absent = held.replace("test", Rc::clone(&desk) as Rc<dyn Layer>);
        drop(held);
        came.await;
        assert!(!node.is_absent());
        assert_eq!(node.submit(read(0, 512)).await, Ok(()));
        node.quiesce().await.replace(Absent::KIND, absent);
        offline(node.submit(read(0, 512)).await);
        assert_eq!(node.close().await, Ok(()));
    });
}

/// Remembers what was asked.
#[derive(Default)]
struct Watcher(RefCell<Vec<String>>);

impl Watch for Watcher {
    fn asked(&self, _now: Time, io: &Io) {
        self.0.borrow_mut().push(format!("{} {:?}", io.op.kind().name(), io.at));
    }
}

#[test]
fn a_watched_device_shows_every_request_that_passes_once() {
    with_desk(native(), |env, desk, node| async move {
        let watcher = Rc::new(Watcher::default());
        node.submit(read(0, 512)).await.expect("a read");
        assert!(!node.is_watched());
        node.watch(Some(Rc::clone(&watcher) as Rc<dyn Watch>));
        node.submit(read(512, 512)).await.expect("a read");
        node.submit(write(0, 1024, Durability::Fua)).await.expect("a write");
        node.submit(Io::flush()).await.expect("a flush");
        assert_eq!(kind(node.submit(read(SIZE, 512)).await), Some(ErrorKind::Invalid));
        // A request that waits for the gate is seen when it passes.
        let quiesced = node.quiesce().await;
        let waits = start(&env, node.submit(read(1024, 512)));
        settle(&env).await;
        assert_eq!(watcher.0.take(), ["read 512..1024", "write 0..1024", "flush 0..0"]);
        drop(quiesced);
        settle(&env).await;
        assert!(waits.borrow().is_some());
        assert_eq!(watcher.0.take(), ["read 1024..1536"]);
        node.watch(None);
        node.submit(read(0, 512)).await.expect("a read");
        assert!(watcher.0.take().is_empty());
        assert_eq!(desk.seen().len(), 6);
    });
}

#[test]
fn a_client_uses_what_is_below() {
    let world = Simulation::new(0);
    let env = world.env();
    let run = async move {
        let desk = |name| node(&env, name, Desk::new(native()));
        let [export, device, store, other] = ["export", "device", "store", "other"].map(desk);
        device.set_above(vec![Rc::downgrade(&export)]);
        store.set_above(vec![Rc::downgrade(&other), Rc::downgrade(&device)]);
        assert!(!store.is_in_use());
        let (first, second) = (export.use_it(), export.use_it());
        assert!(store.is_in_use() && device.is_in_use() && !other.is_in_use());
        drop(first);
        assert!(store.is_in_use());
        drop(second);
        assert!(!store.is_in_use());
        // A node that is gone uses nothing.
        let _uses = other.use_it();
        assert!(store.is_in_use());
        store.set_above(vec![Rc::downgrade(&device)]);
        assert!(!store.is_in_use());
    };
    world.run(run).expect("nothing hangs");
}
