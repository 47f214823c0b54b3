//! Writes that waits for space, and readers that keep the segments that it is made of.

use super::super::cache_of;
use super::super::format::SLOT;
use crate::accelerate::tests::report::made;
use crate::redo::tests::{disk, put_disks};
use crate::testing::*;
use futures_util::future::join;
use lamina_block::{Begin, Env};
use lamina_sim::{SimEnv, Simulation};
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
