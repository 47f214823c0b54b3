//! A batch that failed, and is on the device all the same, does not cover what is written home after it, and is not
//! found after a crash by those that have read what was there before.

use super::super::Keys;
use super::home::build_on;
use crate::testing::*;
use lamina_block::{Begin, Error, Op};
use lamina_kit::flaw::FLAW;
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use std::time::Duration;

/// Bytes of the disk; the log is its last half.
const DISK: u64 = 1 << 20;
const FLAWED: &str = "a failed batch is forgotten at once";

async fn opened(env: &Rc<SimEnv>, begin: Begin) -> Rc<Node> {
    open(env, json!({ "mode": "home", "reserve": 50 }), begin).await
}

async fn open(env: &Rc<SimEnv>, keys: Value, begin: Begin) -> Rc<Node> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let disk = Node::new("disk", "simulated", Rc::clone(&world), env.disk("disk").expect("it is there"));
    let keys = Kind::of::<Keys>().parse(&keys);
    let with = build_on(env, &disk, begin).await;
    let layer = keys.unwrap_or_else(|e| panic!("{}", e.message)).build(with).await.expect("opened");
    Node::new("log", "sequentialize", world, layer)
}

fn write(
    node: &Rc<Node>,
    at: u64,
    bytes: Vec<u8>,
    durability: Durability,
) -> impl Future<Output = Result<()>> {
    node.submit(Io::write(at, Buf::from_vec(bytes), durability))
}

/// The disks after a small write whose batch failed, and a large one to the same block that is durable, while no
/// checkpoint can be made.
fn before(seed: u64) -> Images {
    let world = Simulation::new(seed);
    let env = world.env();
    env.put_disk("disk", Image::blank(DiskOptions::new(DISK)));
    let images = Rc::new(std::cell::RefCell::new(None));
    let (into, of) = (Rc::clone(&images), Rc::clone(&env));
    let run = async move {
        let log = opened(&of, Begin::Format).await;
        let mut writes = 0;
        let checkpoints = DISK / 2 + 4096..DISK / 2 + 3 * 4096;
        of.set_fault(Some(Box::new(move |_, _, io| {
            let is_write = matches!(io.op, Op::Write(..));
            writes += u32::from(is_write);
            let fails = is_write && (writes == 1 || checkpoints.contains(&io.at.start));
            fails.then(|| Error::new(ErrorKind::Media, "it is told to fail"))
        })));
        write(&log, 8192, vec![1; 4096], Durability::Cached).await.expect_err("its batch fails");
        // The checkpoint that would have it forgotten fails, too.
        of.sleep(Duration::from_millis(10)).await;
        write(&log, 0, vec![2; 64 << 10], Durability::Fua).await.expect("durable");
        *into.borrow_mut() = Some(of.images(Loss::All, seed));
        of.set_fault(None);
    };
    world.run(run).expect("it ends");
    images.take().expect("it ended")
}

fn is_newest(seed: u64) -> bool {
    let world = Simulation::from_images(seed, &before(seed));
    let env = world.env();
    let is_newest = Rc::new(std::cell::Cell::new(false));
    let into = Rc::clone(&is_newest);
    let run = async move {
        let log = opened(&env, Begin::Open).await;
        let bytes = super::home::get(&log, 8192, 4096).await;
        into.set(bytes == [2; 4096]);
    };
    world.run(run).expect("it ends");
    is_newest.get()
}

#[test]
fn what_failed_covers_nothing() {
    let mut seeds = 0..16;
    assert!(seeds.clone().all(is_newest));
    FLAW.set(Some(FLAWED));
    let is_noticed = !seeds.all(is_newest);
    FLAW.set(None);
    assert!(is_noticed);
}

/// Writes a block, durably, and again, which fails; what is read then, and the disks.
fn read_after_error(seed: u64) -> (Vec<u8>, Images) {
    let world = Simulation::new(seed);
    let env = world.env();
    env.put_disk("disk", Image::blank(DiskOptions::new(DISK)));
    let found = Rc::new(std::cell::RefCell::new(None));
    let (into, of) = (Rc::clone(&found), Rc::clone(&env));
    let run = async move {
        let log = open(&of, json!({}), Begin::Format).await;
        write(&log, 8192, vec![1; 4096], Durability::Fua).await.expect("durable");
        let mut is_first = true;
        of.set_fault(Some(Box::new(move |_, _, io| {
            let fails = matches!(io.op, Op::Write(..)) && std::mem::take(&mut is_first);
            fails.then(|| Error::new(ErrorKind::Media, "it is told to fail"))
        })));
        write(&log, 8192, vec![2; 4096], Durability::Cached).await.expect_err("its batch fails");
        let read = super::home::get(&log, 8192, 4096).await;
        *into.borrow_mut() = Some((read, of.orphans()));
    };
    world.run(run).expect("it ends");
    found.take().expect("it ended")
}

fn is_read_again(seed: u64) -> bool {
    let (read, images) = read_after_error(seed);
    let world = Simulation::from_images(seed, &images);
    let (env, is_same) = (world.env(), Rc::new(std::cell::Cell::new(false)));
    let into = Rc::clone(&is_same);
    let run = async move {
        let log = open(&env, json!({}), Begin::Open).await;
        into.set(super::home::get(&log, 8192, 4096).await == read);
    };
    world.run(run).expect("it ends");
    is_same.get()
}

#[test]
fn what_was_read_after_an_error_stays() {
    let mut seeds = 0..16;
    assert!(seeds.clone().all(is_read_again));
    FLAW.set(Some("a failed batch is found again"));
    let is_noticed = !seeds.all(is_read_again);
    FLAW.set(None);
    assert!(is_noticed);
}
