//! Disks that take the time of a drive, and worlds that measure.

use lamina_block::{Buf, Durability, Env, Io, Node, Result, Time, all};
use lamina_drive::{Model, Request};
use lamina_sim::{Contents, DiskOptions, Image, Loss, SimEnv, Simulation};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const SIZE: u64 = 1 << 30;

fn model() -> Model {
    Model::named("cheetah-15k4").expect("a model that comes with Lamina")
}

/// A disk with the time of the model's drive.
fn disk(env: &Rc<SimEnv>, contents: Contents) -> Rc<Node> {
    let disk = env.put_disk("disk", Image::blank(DiskOptions { contents, ..DiskOptions::new(SIZE) }));
    disk.set_drive(model().drive(7));
    Node::new("disk", "simulated", Rc::clone(env) as Rc<dyn Env>, disk)
}

fn offset(n: u64) -> u64 {
    (n * 2_654_435_761 % (SIZE >> 13)) << 13
}

/// The moments when reads end that are sent at once, by their numbers.
fn ends(world: &Simulation, contents: Contents, count: u64) -> Vec<Time> {
    let env = world.env();
    let node = disk(&env, contents);
    let run = world.run(async move {
        let ended = Rc::new(RefCell::new(vec![Time(0); count as usize]));
        let reads = (0..count).map(|n| {
            let (env, ended, node) = (Rc::clone(&env), Rc::clone(&ended), Rc::clone(&node));
            env.clone().start(async move {
                node.submit(Io::read(offset(n), Buf::zeroed(8192))).await.unwrap();
                ended.borrow_mut()[n as usize] = env.now();
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.ended().await;
        }
        ended.take()
    });
    run.expect("it ends")
}

#[test]
fn requests_end_when_the_drive_ends_them() {
    for contents in [Contents::Cached, Contents::Durable, Contents::Zeroes] {
        let mut drive = model().drive(7);
        let mut expected = vec![Time(0); 50];
        for n in 0..50 {
            drive.submit(Time(0), n, Request::from(&Io::read(offset(n), Buf::zeroed(8192))));
        }
        while let Some(next) = drive.next() {
            while let Some(done) = drive.completed(next) {
                expected[done.id as usize] = done.at;
            }
        }
        assert_eq!(ends(&Simulation::measuring(1), contents, 50), expected, "{contents:?}");
    }
}

#[test]
fn a_world_that_measures_has_no_end_of_its_own_and_one_order() {
    let world = Simulation::measuring(1);
    let (env, order) = (world.env(), Rc::new(RefCell::new(Vec::new())));
    let into = Rc::clone(&order);
    let days = world.run(async move {
        let tasks: Vec<_> = (0..5)
            .map(|n| {
                let into = Rc::clone(&into);
                env.start(async move { into.borrow_mut().push(n) })
            })
            .collect();
        for task in tasks {
            task.ended().await;
        }
        for _ in 0..48 {
            env.sleep(Duration::from_secs(3600)).await;
        }
        env.now()
    });
    assert_eq!(days, Ok(Time(48 * 3_600_000_000_000)));
    assert_eq!(order.take(), [0, 1, 2, 3, 4]);
}

#[test]
fn what_is_kept_is_as_asked() {
    for (contents, read, lost) in
        [(Contents::Cached, 7, 0), (Contents::Durable, 7, 7), (Contents::Zeroes, 0, 0)]
    {
        let world = Simulation::new(1);
        let env = world.env();
        let node = disk(&env, contents);
        let run: std::result::Result<Result<Vec<u8>>, _> = world.run(async move {
            let write =
                |n: u64| node.submit(Io::write(n * 8192, Buf::from_vec(vec![7; 8192]), Durability::Cached));
            all([write(0), write(1)]).await?;
            let buf = Buf::from_vec(vec![9; 512]);
            node.submit(Io::read(8192, buf.clone())).await?;
            Ok(buf.to_vec())
        });
        assert_eq!(run.unwrap().unwrap(), [read; 512], "{contents:?}");
        let again = Simulation::from_images(2, &env.images(Loss::All, 1));
        let node = Node::new("disk", "simulated", again.env(), again.env().disk("disk").unwrap());
        let buf = Buf::from_vec(vec![9; 512]);
        let into = buf.clone();
        again.run(async move { node.submit(Io::read(0, into)).await }).unwrap().unwrap();
        assert_eq!(buf.to_vec(), [lost; 512], "{contents:?}");
    }
}
