//! The false environment by itself: time, tasks, disks, connections, and that a seed says everything.

use lamina_block::{Address, Buf, Conn, Durability, Env, ErrorKind, Io, Node, OpenDisk, Result, Time, all};
use lamina_sim::{DiskOptions, Hang, Image, Loss, Presence, SimEnv, Simulation};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let disk = env.put_disk(name, Image::blank(DiskOptions::new(1 << 30)));
    Node::new(name, "simulated", Rc::clone(env) as Rc<dyn Env>, disk)
}

fn open(path: &str) -> OpenDisk {
    OpenDisk { path: path.into(), read_only: false, direct: true, create: None, block: None }
}

#[test]
fn time_jumps_when_nothing_can_run() {
    let world = Simulation::new(1);
    let env = world.env();
    let ended = world.run(async move {
        let long = env.start({
            let env = Rc::clone(&env);
            async move { env.sleep(Duration::from_secs(600)).await }
        });
        env.sleep(Duration::from_secs(60)).await;
        assert_eq!(env.now(), Time(60_000_000_000));
        long.ended().await;
        env.now()
    });
    assert_eq!(ended, Ok(Time(600_000_000_000)));
}

#[test]
fn what_hangs_is_reported() {
    let world = Simulation::new(1);
    let waits = world.run(std::future::pending::<()>());
    assert_eq!(waits, Err(Hang::Deadlock { tasks: 1 }));
    let env = world.env();
    let ticks = world.run(async move {
        loop {
            env.sleep(Duration::from_millis(1)).await;
        }
        #[expect(unreachable_code, reason = "it has no end")]
        ()
    });
    assert_eq!(ticks, Err(Hang::Livelock));
}

#[test]
fn a_world_may_go_on_for_longer_than_one_run() {
    let world = Simulation::new(1);
    let wait = |minutes: u64| {
        let env = world.env();
        world.run(async move {
            for _ in 0..minutes {
                env.sleep(Duration::from_secs(60)).await;
            }
            env.now()
        })
    };
    assert_eq!(wait(50), Ok(Time(50 * 60_000_000_000)));
    assert_eq!(wait(50), Ok(Time(100 * 60_000_000_000)));
    assert_eq!(wait(61), Err(Hang::Livelock));
}

#[test]
fn a_world_at_the_end_of_time_runs_on() {
    let world = Simulation::measuring(1);
    let wait = |d: Duration| {
        let env = world.env();
        world.run(async move {
            env.sleep(d).await;
            env.now()
        })
    };
    assert_eq!(wait(Duration::MAX), Ok(Time(u64::MAX)));
    assert_eq!(wait(Duration::from_secs(1)), Ok(Time(u64::MAX)));
}

#[test]
fn all_orders_of_tasks_are_explored() {
    let mut orders = BTreeSet::new();
    for seed in 0..100 {
        let world = Simulation::new(seed);
        let (env, order) = (world.env(), Rc::new(RefCell::new(Vec::new())));
        let into = Rc::clone(&order);
        let run = world.run(async move {
            let started: Vec<_> = (0..3)
                .map(|i| {
                    let into = Rc::clone(&into);
                    env.start(async move { into.borrow_mut().push(i) })
                })
                .collect();
            for task in started {
                task.ended().await;
            }
        });
        assert_eq!(run, Ok(()));
        orders.insert(order.take());
    }
    assert_eq!(orders.len(), 6);
}

/// A run with disks, tasks, time and a connection; its trace.
fn trace(seed: u64) -> u64 {
    let world = Simulation::new(seed);
    let env = world.env();
    let run = world.run(async move {
        let disk = disk(&env, "disk");
        let at: Address = "unix:socket".parse().unwrap();
        let listener = env.listen(at.clone()).unwrap();
        let writes = (0..50).map(|_| {
            let at = env.random() % 1000 * 512;
            disk.submit(Io::write(at, Buf::zeroed(4096), Durability::Cached))
        });
        let written = env.start(all(writes.collect::<Vec<_>>()));
        let client = env.connect(at).await.unwrap();
        let server = listener.accept().await.unwrap();
        client.send(Buf::zeroed(100_000).slice(0..50_000)).await.unwrap();
        receive(&server, 50_000).await;
        written.ended().await.unwrap();
    });
    assert_eq!(run, Ok(()));
    world.env().trace_hash()
}

#[test]
fn a_seed_says_everything() {
    let traces: Vec<u64> = (0..20).map(trace).collect();
    assert_eq!(traces, (0..20).map(trace).collect::<Vec<_>>());
    assert_eq!(traces.iter().collect::<BTreeSet<_>>().len(), 20);
}

#[test]
fn disks_open_by_path() {
    let world = Simulation::new(1);
    let env = world.env();
    let run = world.run(async move {
        let gone = env.open_disk(open("none")).await.err().map(|e| e.kind());
        assert_eq!(gone, Some(ErrorKind::Offline));
        let create = OpenDisk { create: Some(1 << 20), block: Some(4096), ..open("new") };
        let made = env.open_disk(create).await.unwrap();
        assert_eq!((made.geometry().size, made.geometry().block), (1 << 20, 4096));
        let again = OpenDisk { read_only: true, ..open("new") };
        assert!(env.open_disk(again).await.unwrap().geometry().read_only);
        let other_block = OpenDisk { block: Some(512), ..open("new") };
        assert_eq!(env.open_disk(other_block).await.err().map(|e| e.kind()), Some(ErrorKind::Invalid));
    });
    assert_eq!(run, Ok(()));
}

#[test]
fn a_disk_fails_vanishes_and_comes_back() {
    let world = Simulation::new(1);
    let env = world.env();
    let outcome = world.run(async move {
        let node = disk(&env, "disk");
        let read = || node.submit(Io::read(0, Buf::zeroed(512)));
        env.set_fault(Some(Box::new(|n, _, io| {
            (n == 1).then(|| lamina_block::Error::media("bad").at(io.at.clone()))
        })));
        assert!(read().await.is_ok());
        let e = read().await.unwrap_err();
        assert_eq!(e.to_string(), "disk: bad (bytes 0..512)");
        let sim = env.disk("disk").unwrap();
        sim.set_presence(Presence::Failing);
        assert_eq!(read().await.unwrap_err().kind(), ErrorKind::Offline);
        sim.set_presence(Presence::Here);
        assert!(read().await.is_ok());
        sim.set_presence(Presence::Silent);
        read().await
    });
    assert_eq!(outcome.unwrap_err(), Hang::Deadlock { tasks: 1 });
}

#[test]
fn power_loss_takes_what_was_not_flushed() {
    let world = Simulation::new(1);
    let env = world.env();
    let run = world.run(async move {
        let node = disk(&env, "disk");
        let write = |at, value, how| node.submit(Io::write(at, Buf::from_vec(vec![value; 512]), how));
        write(0, 1, Durability::Cached).await?;
        node.submit(Io::flush()).await?;
        write(512, 2, Durability::Fua).await?;
        write(0, 3, Durability::Cached).await?;
        write(1024, 4, Durability::Cached).await?;
        Ok::<_, lamina_block::Error>(())
    });
    assert_eq!(run, Ok(Ok(())));
    let after = Simulation::from_images(2, &world.env().images(Loss::All, 3));
    let env = after.env();
    let read = after.run(async move {
        let disk = env.open_disk(open("disk")).await?;
        let node = Node::new("disk", "simulated", Rc::clone(&env) as Rc<dyn Env>, disk);
        let buf = Buf::zeroed(1536);
        node.submit(Io::read(0, buf.clone())).await?;
        Ok::<_, lamina_block::Error>(buf.to_vec().into_iter().step_by(512).collect::<Vec<_>>())
    });
    assert_eq!(read, Ok(Ok(vec![1, 2, 0])));
}

#[test]
fn another_life_draws_other_numbers() {
    let first = Simulation::new(1);
    disk(&first.env(), "disk");
    let second = Simulation::from_images(1, &first.env().images(Loss::All, 3));
    let third = Simulation::from_images(1, &second.env().orphans());
    let again = Simulation::from_images(1, &second.env().orphans());
    let drawn = |world: &Simulation| (0..100).map(|_| world.env().random()).collect::<BTreeSet<_>>();
    let all = [&first, &second, &third].map(drawn);
    assert!(all[0].is_disjoint(&all[1]) && all[0].is_disjoint(&all[2]) && all[1].is_disjoint(&all[2]));
    assert_eq!(drawn(&again), all[2]);
}

/// Receives exactly `n` bytes, in however many pieces.
async fn receive(conn: &Rc<dyn Conn>, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < n {
        let buf = Buf::zeroed((n - bytes.len()).min(7000));
        let got = conn.recv(buf.clone()).await.unwrap();
        assert!(got > 0, "the stream ended after {} bytes", bytes.len());
        bytes.extend(&buf.to_vec()[..got]);
    }
    bytes
}

async fn pair(env: &Rc<SimEnv>, at: &Address) -> Result<(Rc<dyn Conn>, Rc<dyn Conn>)> {
    let listener = env.listen(at.clone())?;
    let client = env.connect(at.clone()).await?;
    Ok((client, listener.accept().await?))
}

#[test]
fn streams_arrive_whole_and_in_order() {
    for seed in 0..50 {
        let world = Simulation::new(seed);
        let env = world.env();
        let run = world.run(async move {
            let (client, server) = pair(&env, &"tcp:host:10809".parse().unwrap()).await.unwrap();
            let bytes: Vec<u8> = (0..200_000u32).map(|i| (i / 7) as u8).collect();
            let sent = env.start({
                let bytes = bytes.clone();
                async move {
                    let mut two = Buf::from_vec(bytes[..99_999].to_vec());
                    two.append(Buf::from_vec(bytes[99_999..].to_vec()));
                    client.send(two).await
                }
            });
            assert_eq!(receive(&server, bytes.len()).await, bytes);
            sent.ended().await.unwrap();
            // The client is gone: the stream ends.
            assert_eq!(server.recv(Buf::zeroed(1)).await, Ok(0));
        });
        assert_eq!(run, Ok(()), "seed {seed}");
    }
}

#[test]
fn a_cut_is_seen_at_both_ends_and_can_be_repaired() {
    let world = Simulation::new(1);
    let env = world.env();
    let run = world.run(async move {
        let at: Address = "unix:socket".parse().unwrap();
        let listener = env.listen(at.clone()).unwrap();
        assert!(env.listen(at.clone()).is_err(), "the address is in use");
        let client = env.connect(at.clone()).await.unwrap();
        let server = listener.accept().await.unwrap();
        let waits = env.start(async move { server.recv(Buf::zeroed(10)).await });
        env.sleep(Duration::from_millis(1)).await;
        assert_eq!(env.net().connections(&at), 1);
        env.net().cut(&at);
        assert_eq!(waits.ended().await.unwrap_err().kind(), ErrorKind::Offline);
        assert_eq!(client.send(Buf::zeroed(10)).await.unwrap_err().kind(), ErrorKind::Offline);
        let again = env.connect(at.clone()).await.unwrap();
        let server = listener.accept().await.unwrap();
        again.send(Buf::from_vec(b"hello".to_vec())).await.unwrap();
        assert_eq!(receive(&server, 5).await, b"hello");
        drop(listener);
        assert_eq!(env.connect(at).await.err().map(|e| e.kind()), Some(ErrorKind::Offline));
    });
    assert_eq!(run, Ok(()));
}

#[test]
fn what_a_stranded_connection_carried_arrives_late() {
    let world = Simulation::new(1);
    let env = world.env();
    let run = world.run(async move {
        let at: Address = "tcp:host:1".parse().unwrap();
        let listener = env.listen(at.clone()).unwrap();
        let client = env.connect(at.clone()).await.unwrap();
        let server = listener.accept().await.unwrap();
        client.send(Buf::from_vec(b"late".to_vec())).await.unwrap();
        while env.net().connections(&at) > 0 {
            env.net().strand(&at);
        }
        assert_eq!(client.recv(Buf::zeroed(10)).await.unwrap_err().kind(), ErrorKind::Offline);
        drop(client);
        let received = env.start(async move {
            let bytes = receive(&server, 4).await;
            (bytes, server.recv(Buf::zeroed(1)).await.is_err(), server)
        });
        env.sleep(Duration::from_secs(5)).await;
        let healed = env.now();
        env.net().heal(&at);
        let (bytes, ended, server) = received.ended().await;
        assert_eq!((&bytes[..], ended), (&b"late"[..], true));
        assert!(env.now().since(healed) < Duration::from_secs(1));
        server.shutdown();
        assert_eq!(server.recv(Buf::zeroed(1)).await, Ok(0));
        env.connect(at).await.unwrap();
    });
    assert_eq!(run, Ok(()));
}

#[test]
fn a_shut_down_end_wakes_who_receives() {
    let world = Simulation::new(1);
    let env = world.env();
    let run = world.run(async move {
        let (client, _server) = pair(&env, &"unix:socket".parse().unwrap()).await.unwrap();
        let waiting = env.start({
            let client = Rc::clone(&client);
            async move { client.recv(Buf::zeroed(10)).await }
        });
        env.sleep(Duration::from_millis(1)).await;
        client.shutdown();
        assert_eq!(waiting.ended().await, Ok(0));
        assert!(client.send(Buf::zeroed(1)).await.is_err());
    });
    assert_eq!(run, Ok(()));
}
