use super::testing::{Client, closed_loop};
use super::*;
use crate::testing::{Buf, Subject, World, all, json, memory, refused, simulated, xorshift};
use lamina_block::{Durability, ErrorKind, Interval, Kind};
use lamina_sim::{Check, replay, test};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

const MODEL: &str = "cheetah-15k4";

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<Keys>(), json!({ "policy": "cfq", "depth": 2 }), 1)
}

/// The keys of a policy, with all that it needs.
fn keys(policy: Name, depth: u32) -> Value {
    json!({ "policy": policy.text(), "depth": depth, "model": MODEL })
}

/// A queue over a disk of 64 MiB that takes its time.
async fn queue(world: &World, keys: Value) -> Rc<Node> {
    let below = world.memory("64MiB").await;
    let disk = world.over("emulate", json!({ "model": MODEL }), &[&below]).await;
    world.over("schedule", keys, &[&disk]).await
}

fn read(node: &Rc<Node>, block: u64) -> lamina_block::Request {
    node.submit(Io::read(block * 4096, Buf::zeroed(4096)))
}

fn write(node: &Rc<Node>, block: u64) -> lamina_block::Request {
    node.submit(Io::write(block * 4096, Buf::zeroed(4096), Durability::Cached))
}

async fn set(node: &Rc<Node>, args: Value) -> Result<Value> {
    node.control(Command { name: "set".into(), args }).await
}

/// The order in which reads of these blocks end that come together.
async fn order(world: &World, queue: &Rc<Node>, blocks: &[u64]) -> Vec<u64> {
    let ended = Rc::new(RefCell::new(Vec::new()));
    let reads: Vec<_> = blocks
        .iter()
        .map(|block| {
            let (ended, queue, block) = (Rc::clone(&ended), Rc::clone(queue), *block);
            world.sim.start(async move {
                read(&queue, block).await.expect("it is read");
                ended.borrow_mut().push(block);
            })
        })
        .collect();
    for read in reads {
        read.ended().await;
    }
    ended.take()
}

#[test]
fn each_policy_passes_the_model_check_and_changes_under_load() {
    for policy in Name::ALL {
        let subject = Subject::layer(&Kind::of::<Keys>(), keys(policy, 1), 1);
        test(&subject, Check::Model, &replay!());
        test(&subject, Check::Change, &replay!());
    }
}

#[test]
fn no_policy_starves_a_request_under_constant_load() {
    let client = |op, lbn, stride| Client { op, think_ms: 0, lbn, stride };
    let near = (0..6).map(|n| client(lamina_drive::Op::Read, 1000 * n, 8));
    let far = [(lamina_drive::Op::Read, 0), (lamina_drive::Op::Write, 64)];
    let far = far.map(|(op, stride)| client(op, 100_000_000, stride));
    let clients: Vec<Client> = near.chain(far).collect();
    for policy in Name::ALL {
        let keys = Keys { policy, ..Keys::default() };
        let mut policy_at_work = keys.policy(Model::named(MODEL).as_ref()).unwrap();
        let all = closed_loop(&mut *policy_at_work, &clients, 5, 60_000);
        for number in 0..clients.len() {
            let waits = || all.iter().filter(|sent| sent.client == number).map(|sent| sent.waited_ms);
            let (sent, longest) = (waits().count(), waits().max().unwrap_or(u64::MAX));
            assert!(sent >= 8 && longest < 8000, "{policy:?}, client {number}: {sent} sent, {longest} ms");
        }
    }
}

#[test]
fn the_policy_decides_the_order() {
    simulated(|world| async move {
        for (policy, expected) in [("sstf", [300, 100, 900, 9000]), ("cscan", [900, 9000, 100, 300])] {
            let queue = queue(&world, json!({ "policy": policy })).await;
            // The first goes at once, whichever it is: the queue was empty.
            let first = world.sim.start(read(&queue, 500));
            world.env.sleep(Duration::from_micros(1)).await;
            assert_eq!(order(&world, &queue, &[9000, 300, 100, 900]).await, expected, "{policy}");
            first.ended().await.unwrap();
        }
    });
}

#[test]
fn the_device_below_has_no_more_than_depth_says_and_a_change_of_it_counts_at_once() {
    simulated(|world| async move {
        for policy in Name::ALL {
            let queue = queue(&world, keys(policy, 2)).await;
            let reads = world.sim.start({
                let queue = Rc::clone(&queue);
                async move { all((0..20).map(|n| read(&queue, n * 700))).await }
            });
            world.env.sleep(Duration::from_micros(1)).await;
            assert_eq!(queue.info()["in-drive"], 2, "{policy:?}");
            assert_eq!(queue.info()["waiting"], 18, "{policy:?}");
            set(&queue, json!({ "depth": 4 })).await.unwrap();
            assert_eq!(queue.info()["in-drive"], 4, "{policy:?}");
            reads.ended().await.unwrap();
            let info = queue.info();
            assert_eq!(
                (&info["in-drive"], &info["waiting"], &info["reads"]["sent"]),
                (&json!(0), &json!(0), &json!(20))
            );
            assert!(info["reads"]["longest"].as_f64().unwrap() >= info["reads"]["mean"].as_f64().unwrap());
            assert!(info["reads"]["mean"].as_f64().unwrap() > 0.0);
        }
    });
}

/// A client with blocks of its own: writes and reads back, and finds what it wrote last.
async fn client(node: Rc<Node>, number: u64) -> u64 {
    let mut random = xorshift(number + 1);
    let mut blocks = [0u8; 16];
    for round in 0..60 {
        let block = random() % 16;
        let offset = (number * 1000 + block) * 4096;
        if random().is_multiple_of(2) {
            let value = round as u8 + 1;
            let data = Buf::from_vec(vec![value; 4096]);
            let io = Io::write(offset, data, Durability::Cached).by(number as u32);
            node.submit(io).await.expect("it is written");
            blocks[block as usize] = value;
        } else {
            let data = Buf::zeroed(4096);
            node.submit(Io::read(offset, data.clone()).by(number as u32)).await.expect("it is read");
            assert_eq!(data.to_vec(), vec![blocks[block as usize]; 4096], "client {number}, block {block}");
        }
    }
    60
}

#[test]
fn policies_change_under_load_and_nothing_is_lost() {
    simulated(|world| async move {
        let queue = queue(&world, keys(Name::Noop, 1)).await;
        let clients: Vec<_> = (0..8).map(|n| world.sim.start(client(Rc::clone(&queue), n))).collect();
        for round in 0..60 {
            let policy = Name::ALL[round % Name::ALL.len()];
            set(&queue, keys(policy, 1 + round as u32 % 3)).await.unwrap();
            set(&queue, json!({ "cfq": { "slice-idle": format!("{}ms", round % 9) } })).await.unwrap();
            world.env.sleep(Duration::from_millis(31)).await;
        }
        let mut requests = 0;
        for client in clients {
            requests += client.ended().await;
        }
        let info = queue.info();
        let sent = info["reads"]["sent"].as_u64().unwrap() + info["writes"]["sent"].as_u64().unwrap();
        assert_eq!((sent, &info["waiting"], &info["in-drive"]), (requests, &json!(0), &json!(0)));
        assert!(info["reads"]["longest"].as_f64().unwrap() < 5.0, "{info:#}");
    });
}

#[test]
fn requests_that_are_given_up_leave_their_places() {
    simulated(|world| async move {
        for policy in Name::ALL {
            let queue = queue(&world, keys(policy, 1)).await;
            let mut given_up: Vec<lamina_block::Request> = (0..6).map(|n| read(&queue, n * 100)).collect();
            for request in &mut given_up {
                let _ = Pin::new(request).poll(&mut Context::from_waker(Waker::noop()));
            }
            let waiting = all((6..12).map(|n| read(&queue, n * 100)));
            drop(given_up);
            waiting.await.unwrap();
            let info = queue.info();
            assert_eq!((&info["in-drive"], &info["waiting"]), (&json!(0), &json!(0)), "{policy:?}");
            // What another policy takes over has none of them either.
            let first = read(&queue, 0);
            let mut second = read(&queue, 1);
            let _ = Pin::new(&mut second).poll(&mut Context::from_waker(Waker::noop()));
            drop(second);
            set(&queue, json!({ "policy": "scan" })).await.unwrap();
            all([first, read(&queue, 5)]).await.unwrap();
        }
    });
}

#[test]
fn a_flush_does_not_wait_for_the_queue() {
    simulated(|world| async move {
        let below = world.memory("64MiB").await;
        let slow = world.over("schedule", json!({ "policy": "cscan" }), &[&below]).await;
        slow.submit(Io::flush()).await.unwrap();
        let queue = queue(&world, json!({ "policy": "cscan" })).await;
        let writes = world.sim.start({
            let queue = Rc::clone(&queue);
            async move { all((0..50).map(|n| write(&queue, n * 300))).await }
        });
        world.env.sleep(Duration::from_micros(1)).await;
        queue.submit(Io::flush()).await.unwrap();
        assert!(queue.info()["waiting"].as_u64().unwrap() > 40, "{:#}", queue.info());
        writes.ended().await.unwrap();
    });
}

#[test]
fn the_end_waits_for_the_queue_and_later_requests_fail() {
    simulated(|world| async move {
        for policy in Name::ALL {
            let queue = queue(&world, keys(policy, 1)).await;
            let writes = world.sim.start({
                let queue = Rc::clone(&queue);
                async move { all((0..20).map(|n| write(&queue, n * 300))).await }
            });
            world.env.sleep(Duration::from_micros(1)).await;
            queue.close().await.unwrap();
            writes.ended().await.unwrap();
            assert_eq!(read(&queue, 0).await.unwrap_err().kind(), ErrorKind::Offline);
        }
    });
}

#[test]
fn without_a_wait_nothing_is_kept() {
    let (below, io) = (memory("1MiB"), || Io::read(0, Buf::zeroed(4096)));
    let queue = crate::testing::over("schedule", json!({}), &[&below]);
    assert_eq!(queue.submit(io()).ready(), Some(Ok(())), "no future is made for it");
    let info = queue.info();
    assert_eq!(
        (&info["reads"]["sent"], &info["reads"]["mean"], &info["hits"]),
        (&json!(1), &json!(0.0), &Value::Null)
    );
}

#[test]
fn set_changes_what_is_given_and_show_shows_all() {
    simulated(|world| async move {
        let queue = queue(&world, json!({ "policy": "deadline", "deadline": { "fifo-batch": 4 } })).await;
        let shown =
            set(&queue, json!({ "deadline": { "read-expire": "80ms" }, "age-limit": "2s" })).await.unwrap();
        let keys: Keys = serde_json::from_value(shown).unwrap();
        assert_eq!((keys.policy, keys.deadline.fifo_batch.get()), (Name::Deadline, 4));
        assert_eq!(keys.deadline.read_expire, Interval(Duration::from_millis(80)));
        assert_eq!(keys.age_limit, Interval(Duration::from_secs(2)));
        let again = queue.control(Command { name: "show".into(), args: Value::Null }).await.unwrap();
        assert_eq!(serde_json::from_value::<Keys>(again).unwrap(), keys);
        for (args, says) in [
            (json!({ "policy": "fair" }), "fair"),
            (json!({ "depth": 0 }), "nonzero"),
            (json!({ "deadline": { "expire": "1s" } }), "expire"),
            (json!({ "policy": "satf" }), "model"),
            (json!({ "model": "no-such" }), "no-such"),
        ] {
            let e = set(&queue, args).await.unwrap_err();
            assert!(e.message().contains(says), "{e:?}");
        }
        let kept = queue.control(Command { name: "show".into(), args: Value::Null }).await.unwrap();
        assert_eq!(serde_json::from_value::<Keys>(kept).unwrap(), keys, "a wrong change changes nothing");
        let with = set(&queue, json!({ "model": MODEL, "policy": "satf" })).await.unwrap();
        assert_eq!(with["model"], MODEL);
        set(&queue, json!({ "policy": "noop", "model": null })).await.unwrap();
        assert_eq!(set(&queue, json!({ "policy": "satf" })).await.unwrap_err().kind(), ErrorKind::Invalid);
    });
}

#[test]
fn wrong_keys_say_what_is_wrong() {
    let below = memory("1MiB");
    for (keys, says) in [
        (json!({ "policy": "fast" }), "policy: unknown variant `fast`, expected one of `noop`"),
        (json!({ "depth": 0 }), "depth"),
        (json!({ "cfq": { "slice": "1s" } }), "slice"),
        (json!({ "deadline": { "fifo-batch": 0 } }), "deadline.fifo-batch"),
        (json!({ "policy": "satf" }), "needs the drive's model"),
        (json!({ "model": "no-such" }), "no-such"),
    ] {
        let message = refused("schedule", keys, &[&below]);
        assert!(message.contains(says), "{message}");
    }
}
