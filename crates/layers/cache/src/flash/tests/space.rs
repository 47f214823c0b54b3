//! Writes that waits for space, and readers that keep the segments that it is made of.

use super::super::cache_of;
use super::super::format::SLOT;
use crate::accelerate::tests::report::made;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use futures_util::future::join;
use lamina_block::{Begin, Env, Geometry, Layer, Manage, Op, Passthrough, Signal, Step};
use lamina_kit::flaw::failure_of;
use lamina_sim::{SimEnv, Simulation};
use std::cell::Cell;
use std::time::Duration;

async fn write(top: &Rc<Node>, blocks: Range<u64>, byte: u8) {
    let data = Buf::from_vec(vec![byte; (blocks.end - blocks.start) as usize * SLOT]);
    top.submit(Io::write(blocks.start * SLOT as u64, data, Durability::Cached)).await.expect("written");
}

async fn read(top: &Rc<Node>, blocks: Range<u64>) -> Vec<u8> {
    let data = Buf::zeroed((blocks.end - blocks.start) as usize * SLOT);
    top.submit(Io::read(blocks.start * SLOT as u64, data.clone())).await.expect("read");
    data.to_vec().chunks(SLOT).map(|block| block[0]).collect()
}

/// A read has one block from a segment that is being compacted, and waits for a write where the flash has
/// nothing; the write waits for space, which is to come from that segment.
#[test]
fn a_read_that_waits_for_a_write_keeps_no_segment() {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &[("store", 1 << 20), ("flash", 2 << 20)]);
    let run = async move {
        let env: Rc<SimEnv> = env;
        let kind = Kind::of::<super::super::Keys>();
        let flash = made(&env, Begin::Format, &kind, "flash", json!({}), vec![disk(&env, "flash")]).await;
        let (kind, over) =
            (Kind::of::<crate::accelerate::Keys>(), vec![disk(&env, "store"), Rc::clone(&flash)]);
        let top = made(&env, Begin::Format, &kind, "top", json!({}), over).await;
        let cache = cache_of(&flash, &(Rc::clone(&env) as _)).expect("a flash");
        // A full segment, more than a half of which is old then, and all on the store.
        for block in (0..7).chain(0..4) {
            write(&top, block..block + 1, 1).await;
        }
        env.sleep(Duration::from_secs(2)).await;
        let volume = cache.volumes.borrow().iter().flatten().next().cloned().expect("a volume");
        let slot = cache.runs(&volume, 6..7)[0].slot.expect("it is there");
        assert_eq!(cache.shape.segment_of(slot), 0);
        cache.segments.borrow_mut().free.truncate(cache.low_water() - 1);
        cache.reclaim_soon();
        while !cache.index.borrow().word(slot).is_moving() {
            assert_eq!(cache.runs(&volume, 6..7)[0].slot, Some(slot), "it has been moved");
            env.sleep(Duration::from_micros(1)).await;
        }
        let (_, found) = join(write(&top, 8..32, 2), read(&top, 6..9)).await;
        assert_eq!(found, [1, 0, 2]);
    };
    world.run(run).expect("it ends");
}

/// A flash that keeps one write back.
struct Held {
    below: Rc<Node>,
    /// The next write is the one.
    holds: Cell<bool>,
    released: Signal,
}

impl Layer for Held {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Write(..) if self.holds.replace(false) => {
                let io = io.take();
                Step::control(async move {
                    self.released.wait().await;
                    self.below.submit(io).await
                })
            }
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => {
                Step::Forward(Rc::clone(&self.below))
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.below)
    }
}

impl Manage for Held {}

/// A tail has nothing dirty when it is chosen, and then a batch ends there that had been on its way. A volume that
/// keeps what is dirty until its space is needed is not told of this need by a reclaim that waits for the tail.
fn a_batch_ends_in_a_tail() {
    let world = Simulation::new(1);
    let env = world.env();
    put_disks(&env, &[("store", 1 << 20), ("flash", 2 << 20)]);
    let run = async move {
        let any: Rc<dyn Env> = Rc::clone(&env) as _;
        let (below, kind) = (disk(&env, "flash"), Kind::of::<super::super::Keys>());
        let held = Rc::new(Held { below, holds: Cell::new(false), released: Signal::new() });
        let over = vec![Node::new("held", "held", Rc::clone(&any), Rc::clone(&held) as _)];
        let flash = made(&env, Begin::Format, &kind, "flash", json!({}), over).await;
        let over = vec![disk(&env, "store"), Rc::clone(&flash)];
        let top = made(&env, Begin::Format, &Kind::of::<crate::tier::Keys>(), "top", json!({}), over).await;
        let cache = cache_of(&flash, &any).expect("a flash");
        // The first segment is full, and all of it is on the store.
        for block in 0..7 {
            write(&top, block..block + 1, 1).await;
        }
        top.control(Command { name: "drain".into(), args: json!({}) }).await.expect("drained");
        // The second one has old versions and the write that is kept back, and the third one is open.
        write(&top, 10..11, 1).await;
        held.holds.set(true);
        let one = Rc::clone(&top);
        let late = env.start(async move { write(&one, 11..12, 1).await });
        env.sleep(Duration::from_millis(10)).await;
        for byte in 2..8 {
            write(&top, 10..11, byte).await;
        }
        let logs = cache.segments.borrow().logs.clone();
        assert_eq!((&logs[0], logs[1].len()), (&[0, 1, 2].into(), 0), "the small log");
        assert_eq!(cache.segments.borrow().list[1].dirty, 0);
        let few = cache.low_water() * 3 / 4;
        cache.segments.borrow_mut().free.truncate(few);
        cache.reclaim_soon();
        env.sleep(Duration::from_secs(1)).await;
        held.released.notify();
        late.ended().await;
        write(&top, 20..21, 9).await;
        assert_eq!(read(&top, 10..21).await, [7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    };
    world.run(run).expect("it ends");
}

#[test]
fn nobody_waits_for_a_tail_that_becomes_dirty() {
    a_batch_ends_in_a_tail();
    let words = failure_of("a tail that becomes dirty is waited for", a_batch_ends_in_a_tail);
    assert!(words.contains("it ends: Deadlock"), "{words}");
}
