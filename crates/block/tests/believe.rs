//! Data that is believed at opening is durable.

use lamina_block::{Buf, Durability, Env, Error, Io, Node, OpKind, believe};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use std::rc::Rc;

fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as Rc<dyn Env>, env.disk(name).expect("it was put there"))
}

/// Two disks after the death of a process that has written to both.
fn orphans() -> Images {
    let world = Simulation::new(1);
    let env = world.env();
    let run = async move {
        for name in ["a", "b"] {
            env.put_disk(name, Image::blank(DiskOptions::new(1 << 20)));
            let bytes = Buf::from_vec(vec![7; 512]);
            disk(&env, name).submit(Io::write(0, bytes, Durability::Cached)).await.expect("written");
        }
        env.orphans()
    };
    world.run(run).expect("it ends")
}

/// The first bytes of the disks after the loss of everything that may be lost.
fn first_bytes(images: &Images) -> Vec<u8> {
    let world = Simulation::from_images(3, images);
    let env = world.env();
    let run = async move {
        let mut first = Vec::new();
        for name in ["a", "b"] {
            let buf = Buf::zeroed(512);
            disk(&env, name).submit(Io::read(0, buf.clone())).await.expect("read");
            first.push(buf.to_vec()[0]);
        }
        first
    };
    world.run(run).expect("it ends")
}

#[test]
fn what_a_dead_process_left_stays_if_it_is_believed() {
    let lost = |believes: bool| {
        let world = Simulation::from_images(2, &orphans());
        let env = world.env();
        let run = async move {
            if believes {
                believe([&disk(&env, "a"), &disk(&env, "b")]).await;
            }
            env.images(Loss::All, 1)
        };
        first_bytes(&world.run(run).expect("it ends"))
    };
    assert_eq!(lost(false), [0, 0]);
    assert_eq!(lost(true), [7, 7]);
}

#[test]
fn a_device_that_is_absent_or_cannot_flush_keeps_no_other_from_being_believed() {
    let world = Simulation::from_images(2, &orphans());
    let env = world.env();
    let run = async move {
        let absent = Node::absent("c", Rc::clone(&env) as Rc<dyn Env>, Error::offline("is not there"));
        let fails = |name: &str, io: &Io| name == "a" && io.op.kind() == OpKind::Flush;
        env.set_fault(Some(Box::new(move |_, name, io| fails(name, io).then(|| Error::media("worn out")))));
        believe([&absent, &disk(&env, "a"), &disk(&env, "b")]).await;
        assert_eq!(absent.stats().of(OpKind::Flush).completed.get(), 0);
        env.set_fault(None);
        env.images(Loss::All, 1)
    };
    assert_eq!(first_bytes(&world.run(run).expect("it ends")), [0, 7]);
}
