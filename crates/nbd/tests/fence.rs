//! Lost connections: the server still works on requests from one, or receives them long after the client has come back
//! over another. No old write may land on a newer one.

mod common;

use common::*;
use std::cell::Cell;

/// Seeds with the fence, and at most as many without it until one goes wrong.
const SEEDS: u64 = 3000;
/// Writers, each with a place of its own, and how often each writes there.
const WRITERS: u64 = 4;
const ROUNDS: u64 = 25;
const LEN: usize = 2048;
/// How often connections are lost.
const LOSSES: usize = 12;

/// One seed: writers that write again and again at their place, over connections that are lost in all ways. Returns how
/// often a place had other data than was last acknowledged.
fn wrong_bytes(seed: u64, sessions: bool) -> u64 {
    let simulation = Simulation::new(seed);
    // Slow beside the time that a reconnect takes.
    let disk = DiskOptions { latency_max: Duration::from_millis(5), ..DiskOptions::new(1 << 20) };
    let settings = Settings { sessions, ..Settings::default() };
    let world = World::new(simulation.env(), disk, settings);
    let wrong = Rc::new(Cell::new(0));
    let count = Rc::clone(&wrong);
    let hung = simulation.run(async move { count.set(storm(world).await) }).err();
    assert!(hung.is_none(), "seed {seed} hangs: {hung:?}");
    wrong.get()
}

async fn storm(world: World) -> u64 {
    let random = |n: u64| world.env.random() % n;
    // Some clients have no patience: their requests fail, and come again over whatever connection there is.
    let reconnect = Duration::from_secs(if random(2) == 0 { 30 } else { 0 });
    let options = Options { connections: 1 + random(3) as u32, reconnect, ..Options::default() };
    let (_, node) = world.client(options).await.expect("connects");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (env, node, below) = (Rc::clone(&world.env), Rc::clone(&node), Rc::clone(&world.node));
            world.env.start(writer_at(env, node, below, writer << 16))
        })
        .collect();
    for _ in 0..LOSSES {
        let (before, after) = (random(3_000_000), random(3_000_000));
        world.env.sleep(Duration::from_nanos(before)).await;
        match random(3) {
            0 => world.env.net().cut(&place()),
            _ => world.env.net().strand(&place()),
        }
        world.env.sleep(Duration::from_nanos(after)).await;
        if random(2) == 0 {
            world.env.net().heal(&place());
        }
    }
    world.env.net().heal(&place());
    let mut wrong = 0;
    for writer in writers {
        wrong += writer.ended().await;
    }
    wrong
}

/// Writes at `at` again and again, and checks on the disk itself that acknowledged writes stay there. Returns the
/// number of failures.
async fn writer_at(env: Rc<SimEnv>, node: Rc<Node>, below: Rc<Node>, at: u64) -> u64 {
    let (mut round, mut attempt, mut wrong) = (0, at << 16, 0);
    while round < ROUNDS {
        attempt += 1;
        let data = bytes(attempt, LEN);
        // A failed write may have been done or not; a later write that is done counts.
        if write(&node, at, &data).await.is_err() {
            env.sleep(Duration::from_micros(100)).await;
            continue;
        }
        round += 1;
        let pause = env.random() % 4_000_000;
        env.sleep(Duration::from_nanos(pause)).await;
        wrong += u64::from(read(&below, at, LEN).await.expect("reads") != data);
    }
    wrong
}

#[test]
fn no_old_write_lands_on_a_newer_one() {
    for seed in 0..SEEDS {
        assert_eq!(wrong_bytes(seed, true), 0, "seed {seed}");
    }
}

/// The canary: without the fence the same storm ends with wrong bytes, so the test above can see them.
#[test]
fn without_the_fence_old_writes_land_on_newer_ones() {
    assert!((0..SEEDS).any(|seed| wrong_bytes(seed, false) > 0), "the storm is too gentle");
}

/// The server cannot end the client's lost connection: it refuses the client, with the reason.
#[test]
fn a_connection_that_does_not_end_holds_its_successor_off() {
    simulate(0..10, Settings::default(), async |world| {
        let options = Options { reconnect: Duration::from_secs(20), ..Options::default() };
        let (client, node) = world.client(options).await.expect("connects");
        write(&node, 0, &bytes(1, 512)).await.expect("writes");
        world.disk.set_presence(Presence::Silent);
        let stuck = Rc::clone(&node);
        let stuck = world.env.start(async move { write(&stuck, 0, &bytes(2, 512)).await });
        world.env.sleep(Duration::from_secs(1)).await;
        world.env.net().cut(&place());
        let begin = world.env.now();
        let e = stuck.ended().await.expect_err("it stays under way");
        assert!(e.message().contains("lost connection are still under way after 5s"), "{e}");
        assert!(world.env.now().since(begin) < Duration::from_secs(21));
        world.disk.set_presence(Presence::Here);
        world.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(client.info()["connections"][0]["connected"], false, "the old request is still there");
        // Another session has nothing to wait for.
        let (_, other) = world.client(connections(1)).await.expect("connects");
        assert_eq!(read(&other, 0, 512).await.expect("reads"), bytes(1, 512));
    });
}

fn connections(n: u32) -> Options {
    Options { connections: n, ..Options::default() }
}

/// A server that knew sessions and does not any more could have anything still under way.
#[test]
fn a_fence_that_was_there_must_be_there_again() {
    simulate(0..10, Settings::default(), async |mut world| {
        let options = Options { reconnect: Duration::from_secs(2), ..Options::default() };
        let (_, node) = world.client(options).await.expect("connects");
        world.kill().await;
        world.settings.sessions = false;
        world.restart();
        let e = read(&node, 0, 512).await.expect_err("not the same any more");
        assert!(e.message().contains("the export has no fence for lost connections any more"), "{e}");
    });
}

/// Several connections of one client are sessions of their own: none ends another.
#[test]
fn connections_of_one_client_do_not_end_each_other() {
    simulate(0..20, Settings::default(), async |world| {
        let (client, node) = world.client(connections(4)).await.expect("connects");
        for i in 0..40 {
            write(&node, i * 4096, &bytes(i, 4096)).await.expect("writes");
        }
        assert_eq!(world.server.connections(), 4);
        let info = client.info();
        let reconnects =
            info["connections"].as_array().expect("a list").iter().map(|link| &link["reconnects"]);
        assert!(reconnects.into_iter().all(|n| n == 0), "{info}");
    });
}
