//! A device that fails a request may have been without power for a moment; and what is freed, copied or written over
//! while something fails.

use super::super::Cache;
use super::super::format::*;
use super::super::log::How;
use super::super::reclaim::Leaves;
use super::super::segments::SMALL;
use super::super::volume::Volume;
use super::recovery::{VOLUME, lost as made, open, put};
use crate::testing::*;
use lamina_block::{Error, Op};
use lamina_kit::flaw::failure_of;
use lamina_sim::SimEnv;
use std::time::Duration;

fn run<F: Future<Output = ()> + 'static>(
    test: impl FnOnce(Rc<SimEnv>, Rc<Cache>, Rc<Volume>) -> F + 'static,
) {
    made(move |env| async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        test(env, cache, volume).await;
    });
}

async fn written(cache: &Rc<Cache>, volume: &Rc<Volume>, block: u64) -> Result<u64> {
    let how = How { dirty: true, durability: Durability::Cached, absent: 0, serial: None };
    let space = cache.reserve(1).await?;
    cache.put(space, volume, block, &Buf::from_vec(vec![7; SLOT]), how).await
}

/// The next request that is like this fails, and no other.
fn fail_once(env: &Rc<SimEnv>, is_meant: fn(&Op) -> bool) {
    let mut is_over = false;
    env.set_fault(Some(Box::new(move |_, _, io| {
        let fails = !is_over && is_meant(&io.op);
        is_over |= fails;
        fails.then(|| Error::media("it fails once"))
    })));
}

/// A write of one volume is not durable, one of another volume fails, and both flush.
fn lost(is_gone: bool) {
    run(move |env, cache, volume| async move {
        let other = cache.volume(VOLUME + 1, 64).await.expect("made");
        written(&cache, &volume, 3).await.expect("written");
        let slot = u64::from(cache.runs(&volume, 3..4)[0].slot.expect("it is there"));
        if is_gone {
            env.disk("flash").expect("a disk").rot(&(slot * SLOT as u64..(slot + 1) * SLOT as u64));
        }
        fail_once(&env, |op| matches!(op, Op::Write(..)));
        written(&cache, &other, 3).await.expect_err("it fails");
        assert_eq!(cache.flush().await.is_err(), is_gone, "what is gone is durable");
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(cache.flush().await.is_err(), is_gone, "what is gone is durable a second later");
        assert_eq!(cache.check().is_err(), is_gone, "it has to be opened again");
        if !is_gone {
            written(&cache, &other, 3).await.expect("one write has failed, and no more");
        }
    });
}

#[test]
fn a_flush_does_not_make_durable_what_is_gone() {
    lost(false);
    lost(true);
    let words = failure_of("a device that has failed something has lost nothing", || lost(true));
    assert!(words.contains("what is gone is durable"), "{words}");
}

/// While a flush compares what is in a segment, another one makes that durable, and the segment is used again.
#[test]
fn what_another_flush_has_made_durable_is_no_loss() {
    run(|env, cache, volume| async move {
        for block in [3, 4] {
            written(&cache, &volume, block).await.expect("written");
        }
        let slot = cache.runs(&volume, 4..5)[0].slot.expect("it is there");
        cache.suspect(&Err(Error::media("it fails once")));
        let verifies = Rc::clone(&cache);
        let verified = env.start(async move { verifies.verify().await });
        env.sleep(Duration::from_nanos(1)).await;
        cache.segments.borrow_mut().get(cache.shape.segment_of(slot)).durable = cache.shape.batch_slots();
        let place = u64::from(slot) * SLOT as u64;
        env.disk("flash").expect("a disk").rot(&(place..place + SLOT as u64));
        verified.ended().await.expect("nothing is lost");
        cache.check().expect("it goes on");
    });
}

/// A segment that ends with a block of which the store has all.
async fn ended(cache: &Rc<Cache>, volume: &Rc<Volume>, block: u64) -> u32 {
    put(cache, volume, block, 1).await;
    let slot = cache.runs(volume, block..block + 1)[0].slot.expect("it is there");
    let number = cache.shape.segment_of(slot);
    cache.logs[SMALL as usize].open.set(None);
    cache.finish(number).await.expect("finished");
    let (dirty, upto) = cache.batch(volume, 1000).expect("dirty");
    cache.checkpoint(volume, upto, &dirty).await.expect("kept");
    number
}

fn tails(cache: &Cache) -> Vec<u32> {
    cache.segments.borrow().logs[SMALL as usize].iter().copied().collect()
}

/// What was forgotten is freed as a tail, in the order in which it was forgotten: a later version goes after it.
#[test]
fn an_emptied_tail_goes_before_all_others() {
    run(|env, cache, volume| async move {
        let number = ended(&cache, &volume, 3).await;
        cache.empty_segment(SMALL, number, Leaves::Tail).await.expect("emptied");
        cache.compact_some().await;
        assert_eq!(tails(&cache), [number], "it is compacted");
        fail_once(&env, |op| matches!(op, Op::Flush));
        cache.free(vec![(SMALL, number)]).await.expect("it is tried again");
        assert!(tails(&cache).is_empty());
    });
}

/// Whoever reads from a segment may wait for a store that hangs.
#[test]
fn compaction_does_not_wait_for_readers() {
    run(|env, cache, volume| async move {
        let [first, second] = [ended(&cache, &volume, 3).await, ended(&cache, &volume, 4).await];
        let (compacting, before) = (Rc::clone(&cache), cache.segments.borrow().free.len());
        let compacted = env.start(async move { compacting.compact_some().await });
        env.sleep(Duration::from_nanos(1)).await;
        let pin = cache.pin(first);
        compacted.ended().await;
        let left = tails(&cache);
        assert!(left.contains(&first) && !left.contains(&second), "{left:?}");
        assert!(cache.segments.borrow().free.len() >= before);
        drop(pin);
        cache.compact_some().await;
        assert!(!tails(&cache).contains(&first));
    });
}
