//! An export that several hosts share: what a host has under way, or sends later, does nothing when another one was
//! told that it has the volume.

mod common;

use common::*;
use std::cell::Cell;

const SEEDS: u64 = 1500;
const VOLUME: u128 = 0x11;
/// Places where the hosts write, and how often the volume changes hands.
const PLACES: u64 = 4;
const HANDS: u64 = 6;
const LEN: usize = 2048;

/// Records that each host which asks for the volume gets it.
#[derive(Default)]
struct Taken {
    generation: Cell<u64>,
    /// A canary: nobody is ended.
    is_lax: Cell<bool>,
}

impl Records for Taken {
    fn answer(&self, question: Vec<u8>) -> Pending<Answer> {
        assert_eq!(question, b"take");
        self.generation.set(self.generation.get() + 1);
        let key = key(self.generation.get());
        let answer = Answer {
            bytes: key.generation.to_be_bytes().repeat(2000),
            preempts: (!self.is_lax.get()).then_some(key),
        };
        Box::pin(async move { Ok(answer) })
    }

    fn is_newest(&self, of: ReservationKey) -> Pending<bool> {
        let is_newest = of == key(self.generation.get());
        Box::pin(async move { Ok(is_newest) })
    }
}

fn key(generation: u64) -> ReservationKey {
    ReservationKey { volume: VOLUME, generation }
}

fn store(client: &Rc<Client>) -> Rc<dyn SharedStore> {
    far_end(client.shared()).expect("a sink has one")
}

/// Asks for the volume until there is an answer.
async fn take(env: &Rc<SimEnv>, store: &Rc<dyn SharedStore>) -> u64 {
    loop {
        if let Ok(bytes) = store.ask(b"take".to_vec()).await {
            assert_eq!(bytes.len(), 16_000);
            return u64::from_be_bytes(*bytes.first_chunk().expect("eight bytes"));
        }
        env.sleep(Duration::from_millis(2)).await;
    }
}

/// Writes at each place again and again, until a write fails.
async fn writes(env: Rc<SimEnv>, node: Rc<Node>, generation: u64) -> u64 {
    let mut done = 0;
    loop {
        let place = env.random() % PLACES;
        let data = bytes(generation << 32 | done, LEN);
        if write(&node, place << 16, &data).await.is_err() {
            return done;
        }
        done += 1;
    }
}

/// One seed: hosts that take the volume from each other, over connections that are lost in all ways. Returns how often
/// a place had other data than the host which has the volume has written.
async fn storm(world: World) -> u64 {
    let (env, mut wrong) = (Rc::clone(&world.env), 0);
    let mut before = None;
    for _ in 0..HANDS {
        let reconnect = Duration::from_secs(if env.random().is_multiple_of(2) { 30 } else { 0 });
        let options = Options { connections: 1 + (env.random() % 3) as u32, reconnect, ..Options::default() };
        let Ok((client, node)) = world.client(options).await else {
            world.env.net().heal(&place());
            continue;
        };
        let end = store(&client);
        let generation = take(&env, &end).await;
        // It may be cut off while it registers.
        if end.register(key(generation)).await.is_err() {
            world.env.net().heal(&place());
            continue;
        }
        for place in 0..PLACES {
            let data = bytes(generation << 48 | place, LEN);
            if write(&node, place << 16, &data).await.is_err() {
                continue;
            }
            let pause = env.random() % 6_000_000;
            env.sleep(Duration::from_nanos(pause)).await;
            wrong += u64::from(read(&world.node, place << 16, LEN).await.expect("reads") != data);
        }
        // What it has under way when the next one comes.
        for _ in 0..3 {
            let (env, node) = (Rc::clone(&env), Rc::clone(&node));
            world.env.spawn(Box::pin(async move {
                writes(env, node, generation).await;
            }));
        }
        let pause = env.random() % 8_000_000;
        env.sleep(Duration::from_nanos(pause)).await;
        match env.random() % 4 {
            0 => world.env.net().cut(&place()),
            1 | 2 => world.env.net().strand(&place()),
            _ => {}
        }
        let pause = env.random() % 3_000_000;
        env.sleep(Duration::from_nanos(pause)).await;
        world.env.net().heal(&place());
        before = Some((client, node));
    }
    drop(before);
    wrong
}

fn wrong_bytes(seed: u64, is_lax: bool) -> u64 {
    let simulation = Simulation::new(seed);
    // Slow beside the time that a connection takes.
    let disk = DiskOptions { latency_max: Duration::from_millis(5), ..DiskOptions::new(1 << 20) };
    let records = Rc::new(Taken::default());
    records.is_lax.set(is_lax);
    let world = World::new(simulation.env(), disk, Settings::default()).shared(records);
    let wrong = Rc::new(Cell::new(0));
    let count = Rc::clone(&wrong);
    let hung = simulation.run(async move { count.set(storm(world).await) }).err();
    assert!(hung.is_none(), "seed {seed} hangs: {hung:?}");
    wrong.get()
}

#[test]
fn a_host_that_was_followed_changes_nothing_any_more() {
    for seed in 0..SEEDS {
        assert_eq!(wrong_bytes(seed, false), 0, "seed {seed}");
    }
}

/// The canary: a server that lets the connections of the host before go on is found out.
#[test]
fn a_server_that_preempts_nobody_is_caught() {
    assert!((0..SEEDS).any(|seed| wrong_bytes(seed, true) > 0), "the storm is too gentle");
}

#[test]
fn a_connection_writes_with_the_newest_key_alone() {
    simulate(0..10, Settings::default(), async |world| {
        let world = world.shared(Rc::new(Taken::default()));
        let (a, of_a) = world.client(Options::default()).await.expect("connects");
        let e = write(&of_a, 0, &bytes(1, 512)).await.expect_err("it has no key");
        assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e}");
        assert_eq!(read(&of_a, 0, 512).await.expect("reads"), vec![0; 512]);
        let e = store(&a).register(key(1)).await.expect_err("nobody has it");
        assert_eq!(e.kind(), ErrorKind::Fenced, "{e}");
        let generation = take(&world.env, &store(&a)).await;
        store(&a).register(key(generation)).await.expect("it has it");
        write(&of_a, 0, &bytes(1, 512)).await.expect("writes");

        let (b, of_b) = world.client(Options::default()).await.expect("connects");
        let generation = take(&world.env, &store(&b)).await;
        // From here on, whether b has said so or not.
        let e = write(&of_a, 0, &bytes(2, 512)).await.expect_err("it was followed");
        assert_eq!(e.kind(), ErrorKind::ReadOnly, "{e}");
        store(&b).register(key(generation)).await.expect("it has it");
        write(&of_b, 0, &bytes(3, 512)).await.expect("writes");
        // The one before may look, and take it again.
        assert_eq!(read(&of_a, 0, 512).await.expect("reads"), bytes(3, 512));
        let generation = take(&world.env, &store(&a)).await;
        store(&a).register(key(generation)).await.expect("it has it");
        write(&of_a, 0, &bytes(4, 512)).await.expect("writes");
    });
}

#[test]
fn the_key_outlives_the_connection_and_the_server() {
    simulate(0..10, Settings::default(), async |world| {
        let mut world = world.shared(Rc::new(Taken::default()));
        let (client, node) = world.client(Options::default()).await.expect("connects");
        let generation = take(&world.env, &store(&client)).await;
        store(&client).register(key(generation)).await.expect("it has it");
        world.env.net().cut(&place());
        write(&node, 0, &bytes(1, 512)).await.expect("over a new connection");
        world.kill().await;
        world.restart();
        write(&node, 0, &bytes(2, 512)).await.expect("to a new server");
        assert_eq!(read(&world.node, 0, 512).await.expect("reads"), bytes(2, 512));
    });
}

/// The volume is not another host's before what the one before had begun is done.
#[test]
fn a_request_that_does_not_end_holds_the_next_host_off() {
    simulate(0..10, Settings::default(), async |world| {
        let world = world.shared(Rc::new(Taken::default()));
        let (a, of_a) = world.client(Options::default()).await.expect("connects");
        let generation = take(&world.env, &store(&a)).await;
        store(&a).register(key(generation)).await.expect("it has it");
        world.disk.set_presence(Presence::Silent);
        world.env.spawn(Box::pin(async move { drop(write(&of_a, 0, &bytes(1, 512)).await) }));
        world.env.sleep(Duration::from_secs(1)).await;
        let (b, _) = world.client(Options::default()).await.expect("connects");
        let e = store(&b).ask(b"take".to_vec()).await.expect_err("a's write is under way");
        let words = "requests of the host that had the volume before are still under way after 5s";
        assert!(e.message().contains(words), "{e}");
    });
}

#[test]
fn an_export_of_one_host_keeps_no_records() {
    simulate(0..3, Settings::default(), async |world| {
        let (client, node) = world.client(Options::default()).await.expect("connects");
        let e = store(&client).ask(b"take".to_vec()).await.expect_err("it knows nothing of that");
        assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
        assert!(e.message().contains("give it the key `vault` there"), "{e}");
        assert_eq!(store(&client).register(key(1)).await.map_err(|e| e.kind()), Err(ErrorKind::Fenced));
        write(&node, 0, &bytes(1, 512)).await.expect("anyone writes");
    });
}
