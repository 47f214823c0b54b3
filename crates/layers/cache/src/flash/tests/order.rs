//! The rules of `docs/formats/flash.md`, "Order": what each is there for, and that a log without it is
//! noticed. Rules 3 and 6 have their canaries beside the layer above.

use super::super::Cache;
use super::super::format::*;
use super::super::log::How;
use super::super::reclaim::Leaves;
use super::super::segments::SMALL;
use super::super::volume::Volume;
use super::latent::get;
use super::recovery::{SIZE, VOLUME, disk, open, put};
use crate::testing::*;
use futures_util::future::{Either, join, select};
use lamina_block::{Env, Error, Geometry, Layer, Manage, Op, Passthrough, Result, Signal, Step};
use lamina_kit::flaw::failure_of;
use lamina_sim::{DiskOptions, Image, Loss, SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::time::Duration;

/// What a volume has of block 3 when the flash is opened again after `test`, and a power loss.
fn found_after<F: Future<Output = ()> + 'static>(
    (loss, seed): (Loss, u64),
    test: impl FnOnce(Rc<SimEnv>) -> F + 'static,
) -> Option<u8> {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_disk("flash", Image::blank(DiskOptions::new(SIZE)));
    let run = async move {
        Cache::format(&(Rc::clone(&env) as _), &disk(&env)).await.expect("made");
        test(Rc::clone(&env)).await;
        env.images(loss, seed)
    };
    let images = world.run(run).expect("it ends");
    let world = Simulation::from_images(1, &images);
    let env = world.env();
    let run = async move {
        let cache = open(&env).await;
        let volume = cache.volume(VOLUME, 64).await.expect("the volume");
        get(&cache, &volume, 3).await.map(|read| read.expect("read"))
    };
    world.run(run).expect("it ends")
}

async fn made(env: &Rc<SimEnv>) -> (Rc<Cache>, Rc<Volume>) {
    let cache = open(env).await;
    let volume = cache.volume(VOLUME, 64).await.expect("made");
    (cache, volume)
}

async fn attempt(cache: &Rc<Cache>, volume: &Rc<Volume>, block: u64, byte: u8) -> Result<()> {
    let how = How { dirty: true, durability: Durability::Cached, absent: 0, serial: None };
    let space = cache.reserve(1).await.expect("space");
    cache.put(space, volume, block, &Buf::from_vec(vec![byte; SLOT]), how).await.map(drop)
}

async fn put_cached(cache: &Rc<Cache>, volume: &Rc<Volume>, block: u64, byte: u8) {
    attempt(cache, volume, block, byte).await.expect("put");
}

/// All of it is on the store.
async fn bring(cache: &Rc<Cache>, volume: &Rc<Volume>) {
    let (dirty, upto) = cache.batch(volume, 1000).expect("dirty");
    cache.checkpoint(volume, upto, &dirty).await.expect("kept");
}

/// The log that has block 3 is freed from its tail on, up to where that is.
async fn free_block(cache: &Rc<Cache>, volume: &Rc<Volume>) {
    let slot = cache.runs(volume, 3..4).remove(0).slot.expect("it is there");
    let (of, wanted) = (cache.log_of(slot), cache.shape.segment_of(slot));
    cache.logs[of as usize].open.set(None);
    loop {
        let number = cache.segments.borrow().logs[of as usize][0];
        cache.finish(number).await.expect("finished");
        cache.empty_segment(of, number, Leaves::Tail).await.expect("emptied");
        cache.free(vec![(of, number)]).await.expect("freed");
        if number == wanted {
            return;
        }
    }
}

/// Rule 1: whatever the power takes of the first batch.
fn a_durable_write_in_a_new_segment() {
    for seed in 0..16 {
        let found = found_after((Loss::Writes, seed), |env| async move {
            let (cache, volume) = made(&env).await;
            put_cached(&cache, &volume, 5, 1).await;
            put(&cache, &volume, 3, 2).await;
        });
        assert_eq!(found, Some(2), "what was durable is not found");
    }
}

/// A device that keeps one write to itself until it is told what comes of it.
struct Keeper {
    below: Rc<Node>,
    keeps: Cell<bool>,
    verdict: RefCell<Option<Result<()>>>,
    told: Signal,
    /// Writes since then that have ended.
    others: Cell<u32>,
}

impl Layer for Keeper {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if !matches!(io.op, Op::Write(..)) {
            return Step::Forward(Rc::clone(&self.below));
        }
        let (is_kept, io) = (self.keeps.replace(false), io.clone());
        Step::control(async move {
            if is_kept {
                self.told.until(|| self.verdict.borrow().is_some()).await;
                self.verdict.borrow().clone().expect("told")?;
            }
            let written = self.below.submit(io).await;
            self.others.set(self.others.get() + u32::from(!is_kept));
            written
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.below)
    }
}

impl Manage for Keeper {}

/// A cache on such a device.
async fn kept(env: &Rc<SimEnv>) -> (Rc<Keeper>, Rc<Cache>, Rc<Volume>) {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let keeper = Rc::new(Keeper {
        below: disk(env),
        keeps: Cell::new(false),
        verdict: RefCell::new(None),
        told: Signal::new(),
        others: Cell::new(0),
    });
    let node = Node::new("keeper", "keeper", Rc::clone(&world), Rc::clone(&keeper) as _);
    let cache = Cache::open("flash", &world, node).await.expect("opened");
    let volume = cache.volume(VOLUME, 64).await.expect("made");
    (keeper, cache, volume)
}

/// Block 3 is durable as 1, and written as 2 behind the first batch of a new segment, which ends as `verdict` says.
/// Returns what comes of that write.
async fn written_behind_the_first(env: Rc<SimEnv>, verdict: Result<()>) -> Result<()> {
    let (keeper, cache, volume) = kept(&env).await;
    put(&cache, &volume, 3, 1).await;
    cache.logs[SMALL as usize].open.set(None);
    keeper.keeps.set(true);
    let first = pin!(attempt(&cache, &volume, 5, 1));
    let Either::Right((_, first)) = select(first, env.sleep(Duration::from_millis(1))).await else {
        panic!("the first batch is kept");
    };
    let before = keeper.others.get();
    let behind = pin!(attempt(&cache, &volume, 3, 2));
    let behind = match select(behind, env.sleep(Duration::from_millis(50))).await {
        Either::Left((ended, _)) => return ended,
        Either::Right((_, behind)) => behind,
    };
    assert_eq!(keeper.others.get(), before + 1, "it is sent at once");
    *keeper.verdict.borrow_mut() = Some(verdict.clone());
    keeper.told.notify();
    let (first, behind) = join(first, behind).await;
    assert_eq!(first.is_ok(), verdict.is_ok());
    behind
}

/// Rule 1: the process ends when the write is acknowledged; all that the device was given stays.
fn a_write_behind_the_first_batch() {
    let found = found_after((Loss::Nothing, 1), |env| async move {
        written_behind_the_first(env, Ok(())).await.expect("written");
    });
    assert_eq!(found, Some(2), "what was acknowledged is not found");
}

/// Rules 1 and 2: only what the first batch has fails.
fn the_first_batch_fails() {
    let found = found_after((Loss::Nothing, 1), |env| async move {
        let failed = Err(Error::media("no"));
        written_behind_the_first(env, failed).await.expect("written elsewhere");
    });
    assert_eq!(found, Some(2), "what was acknowledged is not found");
}

/// A device that says of a write that it failed, and has written it.
struct Liar(Rc<Node>, Rc<Cell<bool>>);

impl Layer for Liar {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Write(..) if self.1.replace(false) => {
                let written = self.0.submit(io.clone());
                Step::control(async move { written.await.and(Err(Error::media("no"))) })
            }
            _ => Step::Forward(Rc::clone(&self.0)),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }
}

impl Manage for Liar {}

/// Rule 2.
fn a_write_that_failed_and_is_there() {
    let found = found_after((Loss::All, 1), |env| async move {
        let (world, lies): (Rc<dyn Env>, _) = (Rc::clone(&env) as _, Rc::new(Cell::new(false)));
        let liar = Node::new("liar", "liar", Rc::clone(&world), Rc::new(Liar(disk(&env), Rc::clone(&lies))));
        let cache = Cache::open("flash", &world, liar).await.expect("opened");
        let volume = cache.volume(VOLUME, 64).await.expect("made");
        put(&cache, &volume, 3, 1).await;
        lies.set(true);
        let how = How { dirty: true, durability: Durability::Fua, absent: 0, serial: None };
        let space = cache.reserve(1).await.expect("space");
        cache.put(space, &volume, 3, &Buf::from_vec(vec![2; SLOT]), how).await.expect_err("it fails");
    });
    assert_eq!(found, Some(1), "a write that failed is there");
}

/// Rule 2: the device takes its time with the zeroes over the head, and the segment could be used again.
fn a_head_that_is_zeroed_late() {
    let found = found_after((Loss::All, 1), |env| async move {
        let (keeper, cache, volume) = kept(&env).await;
        let (keeps, mut writes) = (Rc::clone(&keeper), 0);
        env.set_fault(Some(Box::new(move |_, _, io| {
            let is_write = matches!(io.op, Op::Write(..));
            writes += u32::from(is_write);
            // The batch, its summary, and the zeroes.
            keeps.keeps.set(is_write && writes == 2);
            (is_write && writes == 1).then(|| Error::media("no"))
        })));
        let (fails, of) = (Rc::clone(&cache), Rc::clone(&volume));
        let failed = env.start(async move { attempt(&fails, &of, 5, 1).await });
        env.sleep(Duration::from_millis(1)).await;
        env.set_fault(None);
        cache.empty_segment(SMALL, 0, Leaves::Tail).await.expect("emptied");
        cache.free(vec![(SMALL, 0)]).await.expect("freed");
        cache.segments.borrow_mut().free.make_contiguous().sort_unstable();
        put(&cache, &volume, 3, 2).await;
        *keeper.verdict.borrow_mut() = Some(Ok(()));
        keeper.told.notify();
        failed.ended().await.expect_err("it fails");
    });
    assert_eq!(found, Some(2), "what was durable is zeroed");
}

/// Rule 4.
fn a_new_version_is_forgotten() {
    let found = found_after((Loss::All, 1), |env| async move {
        let (cache, volume) = made(&env).await;
        for value in [1, 2] {
            for block in 0..7 {
                put(&cache, &volume, block, value).await;
            }
        }
        bring(&cache, &volume).await;
        free_block(&cache, &volume).await;
    });
    assert_eq!(found, None, "an older version is there");
}

/// Rule 5: what was written again is durable when the older version goes.
fn an_older_version_is_freed() {
    let found = found_after((Loss::All, 1), |env| async move {
        let (cache, volume) = made(&env).await;
        for block in [0, 1, 2, 4, 5, 6] {
            put(&cache, &volume, block, 1).await;
        }
        bring(&cache, &volume).await;
        put(&cache, &volume, 3, 1).await;
        cache.finish(0).await.expect("finished");
        put_cached(&cache, &volume, 10, 1).await;
        put_cached(&cache, &volume, 3, 2).await;
        cache.empty_segment(SMALL, 0, Leaves::Tail).await.expect("emptied");
        cache.free(vec![(SMALL, 0)]).await.expect("freed");
    });
    assert_eq!(found, Some(2), "what was durable is gone");
}

/// Rule 5: what is newer is not written over while what is older counts.
fn a_newer_version_is_written_over() {
    let found = found_after((Loss::All, 1), |env| async move {
        let (cache, volume) = made(&env).await;
        for value in [1, 2] {
            for block in 0..7 {
                put(&cache, &volume, block, value).await;
            }
        }
        bring(&cache, &volume).await;
        free_block(&cache, &volume).await;
        {
            let mut segments = cache.segments.borrow_mut();
            segments.free.retain(|number| *number != 1);
            segments.free.push_front(1);
        }
        put(&cache, &volume, 40, 1).await;
    });
    assert_eq!(found, None, "an older version is there");
}

/// Rule 8: the store may be changed without the flash.
fn a_volume_is_forgotten() {
    let found = found_after((Loss::All, 1), |env| async move {
        let (cache, volume) = made(&env).await;
        put(&cache, &volume, 3, 1).await;
        bring(&cache, &volume).await;
        cache.forget(&volume).await.expect("durable");
    });
    assert_eq!(found, None, "what was forgotten is there");
}

#[test]
fn the_order_is_kept() {
    a_durable_write_in_a_new_segment();
    a_write_behind_the_first_batch();
    the_first_batch_fails();
    a_write_that_failed_and_is_there();
    a_head_that_is_zeroed_late();
    a_new_version_is_forgotten();
    an_older_version_is_freed();
    a_newer_version_is_written_over();
    a_volume_is_forgotten();
}

#[test]
fn each_rule_is_needed() {
    let canaries: [(&str, fn(), &str); 8] = [
        ("durable before the first batch", a_durable_write_in_a_new_segment, "what was durable is not found"),
        (
            "acknowledged before the first batch",
            a_write_behind_the_first_batch,
            "what was acknowledged is not found",
        ),
        ("a failed write stays there", a_write_that_failed_and_is_there, "a write that failed is there"),
        ("zeroed after it is used again", a_head_that_is_zeroed_late, "what was durable is zeroed"),
        ("versions in both logs", a_new_version_is_forgotten, "an older version is there"),
        ("freed before what is newer is durable", an_older_version_is_freed, "what was durable is gone"),
        ("written again before the state", a_newer_version_is_written_over, "an older version is there"),
        ("forgotten before the state", a_volume_is_forgotten, "what was forgotten is there"),
    ];
    for (flaw, test, wanted) in canaries {
        let words = failure_of(flaw, test);
        assert!(words.contains(wanted), "{flaw}: {words}");
    }
}
