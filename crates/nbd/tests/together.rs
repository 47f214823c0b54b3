//! Our client against our server, in the simulator: requests arrive in pieces, connections are cut, servers die.

mod common;

use common::*;
use lamina_nbd::client::Promise;

fn connections(n: u32) -> Options {
    Options { connections: n, ..Options::default() }
}

#[test]
fn every_operation_arrives() {
    simulate(0..20, Settings::default(), async |world| {
        let (_, node) = world.client(connections(1)).await.expect("connects");
        let g = node.geometry();
        assert_eq!((g.size, g.block, g.optimal), (4 << 20, 512, 4096));
        assert_eq!((g.fua, g.zero, g.discard, g.read_only), (true, true, true, false));
        let data = bytes(1, 70_000 / 512 * 512);
        write(&node, 512, &data).await.expect("writes");
        assert_eq!(read(&node, 512, data.len()).await.expect("reads"), data);
        let fua = Io::write(1 << 20, Buf::from_vec(bytes(2, 4096)), Durability::Fua);
        node.submit(fua).await.expect("writes through");
        let zero = Zero { unmap: true, fast: true, durability: Durability::Fua };
        node.submit(Io::zero(512..1024, zero)).await.expect("zeroes");
        assert_eq!(read(&node, 512, 512).await.expect("reads"), vec![0; 512]);
        node.submit(Io::discard(1 << 20..(1 << 20) + 4096)).await.expect("discards");
        node.submit(Io::flush()).await.expect("flushes");
        let runs = node.extents(0..4 << 20).await.expect("has a status");
        assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), 4 << 20);
        let below = world.node.extents(0..4 << 20).await.expect("has a status");
        assert_eq!(runs, below);
        let stats = world.node.stats();
        let completed = |op| stats.of(op).completed.get();
        assert_eq!(completed(OpKind::Write), 2);
        assert_eq!(
            (completed(OpKind::Zero), completed(OpKind::Discard), completed(OpKind::Flush)),
            (1, 1, 1)
        );
        node.close().await.expect("closes");
        world.server.shutdown().await;
        assert_eq!(world.server.connections(), 0);
    });
}

/// A client may ask for zeroing that is faster than writing only where the device can do that: elsewhere each such
/// request would fail, and is not even sent.
#[test]
fn fast_zeroing_is_offered_where_the_device_zeroes() {
    for native in [true, false] {
        let simulation = Simulation::new(7);
        let mut disk = DiskOptions::new(4 << 20);
        disk.geometry.zero = native;
        let world = World::new(simulation.env(), disk, Settings::default());
        let hung = simulation.run(async move {
            let (_, node) = world.client(connections(1)).await.expect("connects");
            write(&node, 0, &bytes(1, 8192)).await.expect("writes");
            let zero = |fast| Zero { unmap: false, fast, durability: Durability::Cached };
            let fast = node.submit(Io::zero(0..4096, zero(true))).await;
            assert_eq!(fast.map_err(|e| e.kind()), if native { Ok(()) } else { Err(ErrorKind::Unsupported) });
            assert_eq!(world.node.stats().of(OpKind::Zero).completed.get(), u64::from(native));
            let kept = if native { vec![0; 4096] } else { bytes(1, 8192)[..4096].to_vec() };
            assert_eq!(read(&node, 0, 4096).await.expect("reads"), kept);
            // Slow operations are done everywhere.
            node.submit(Io::zero(4096..8192, zero(false))).await.expect("zeroes");
            assert_eq!(read(&node, 4096, 4096).await.expect("reads"), vec![0; 4096]);
            node.close().await.expect("closes");
            world.server.shutdown().await;
        });
        assert!(hung.is_ok(), "{hung:?}");
    }
}

/// Writers on ranges of their own, while the connection is cut again and again: no error, no wrong byte.
#[test]
fn cuts_are_not_noticed() {
    simulate(0..100, Settings::default(), async |world| {
        let (client, node) =
            world.client(connections(1 + world.env.random() as u32 % 3)).await.expect("connects");
        let writers = (0..4u64).map(|writer| {
            let node = Rc::clone(&node);
            world.env.start(async move {
                for round in 0..12u64 {
                    let at = (writer << 20) + (round % 5) * 40_960;
                    let data = bytes(writer << 32 | round, 512 * (1 + (round as usize * 7) % 80));
                    write(&node, at, &data).await.expect("writes");
                    if round % 3 == 0 {
                        node.submit(Io::flush()).await.expect("flushes");
                    }
                    assert_eq!(read(&node, at, data.len()).await.expect("reads"), data);
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        for _ in 0..6 {
            let pause = world.env.random() % 400_000;
            world.env.sleep(Duration::from_nanos(pause)).await;
            world.env.net().cut(&place());
        }
        for writer in writers {
            writer.ended().await;
        }
        let info = client.info();
        let reconnects = info["connections"][0]["reconnects"].as_u64();
        assert!(reconnects.is_some_and(|n| n > 0), "{info}");
    });
}

#[test]
fn a_server_that_comes_back_in_time_is_waited_for() {
    simulate(0..20, Settings::default(), async |mut world| {
        let (_, node) = world.client(connections(2)).await.expect("connects");
        write(&node, 0, &bytes(3, 8192)).await.expect("writes");
        world.kill().await;
        let waiting = Rc::clone(&node);
        let reading = world.env.start(async move { read(&waiting, 0, 8192).await });
        world.env.sleep(Duration::from_secs(20)).await;
        world.restart();
        assert_eq!(reading.ended().await.expect("reads"), bytes(3, 8192));
    });
}

#[test]
fn a_server_that_stays_away_is_given_up_and_taken_back() {
    simulate(0..20, Settings::default(), async |mut world| {
        let (_, node) = world.client(connections(1)).await.expect("connects");
        world.kill().await;
        let begin = world.env.now();
        let e = read(&node, 0, 512).await.map(drop).expect_err("nobody is there");
        assert_eq!(e.kind(), ErrorKind::Offline);
        assert!(e.message().contains("not back within 30s"), "{e}");
        let waited = world.env.now().since(begin);
        assert!(waited < Duration::from_secs(31), "{waited:?}");
        let e = read(&node, 0, 512).await.map(drop).expect_err("at once now");
        assert_eq!(e.kind(), ErrorKind::Offline);
        world.restart();
        world.env.sleep(Duration::from_secs(3)).await;
        read(&node, 0, 512).await.expect("the server is back");
    });
}

#[test]
fn a_silent_server_is_given_up() {
    simulate(0..10, Settings::default(), async |world| {
        let (_, node) = world.client(connections(1)).await.expect("connects");
        world.disk.set_presence(Presence::Silent);
        let begin = world.env.now();
        let e = read(&node, 0, 512).await.map(drop).expect_err("nothing answers");
        assert_eq!(e.kind(), ErrorKind::Offline);
        let waited = world.env.now().since(begin);
        // Every new connection is given its time to answer as long as the whole has not run out.
        assert!(waited < Duration::from_secs(60 + 30 + 60), "{waited:?}");
    });
}

/// A process that ends does not wait for a silent server. Writes that were not acknowledged need no flush; acknowledged
/// writes that may be lost are an error.
#[test]
fn a_silent_server_keeps_nobody_from_ending() {
    simulate(0..10, Settings::default(), async |world| {
        let timeout = Duration::from_secs(if world.env.random() % 3 == 0 { 0 } else { 60 });
        let (_, node) = world.client(Options { timeout, ..connections(2) }).await.expect("connects");
        let owes = world.env.random() % 2 == 0;
        if owes {
            write(&node, 8192, &bytes(1, 512)).await.expect("writes");
        }
        world.disk.set_presence(Presence::Silent);
        let writer = Rc::clone(&node);
        let under_way = world.env.start(async move { write(&writer, 0, &bytes(2, 4096)).await });
        world.env.sleep(Duration::from_secs(20)).await;
        world.env.end_soon();
        let begin = world.env.now();
        assert_eq!(under_way.ended().await.map_err(|e| e.kind()), Err(ErrorKind::Offline));
        assert_eq!(node.submit(Io::flush()).await.is_err(), owes);
        assert_eq!(node.close().await.is_err(), owes);
        let waited = world.env.now().since(begin);
        assert!(waited < Duration::from_secs(5), "{waited:?}");
    });
}

/// The client waits for a slow server that answers, however much work it has.
#[test]
fn a_slow_server_is_waited_for_to_the_end() {
    simulate(0..5, Settings::default(), async |world| {
        let (_, node) = world.client(connections(1)).await.expect("connects");
        world.env.end_soon();
        for number in 0..8 {
            let held = world.node.quiesce().await;
            let writer = Rc::clone(&node);
            let write = world.env.start(async move { write(&writer, 0, &bytes(number, 4096)).await });
            world.env.sleep(Duration::from_secs(2)).await;
            drop(held);
            write.ended().await.expect("written");
        }
        node.submit(Io::flush()).await.expect("flushed");
        node.close().await.expect("closes");
    });
}

#[test]
fn an_export_that_shrank_is_refused() {
    simulate(0..10, Settings::default(), async |mut world| {
        let (client, node) = world.client(connections(1)).await.expect("connects");
        world.kill().await;
        world.disk.resize(2 << 20);
        world.node.refresh();
        world.restart();
        let e = read(&node, 0, 512).await.map(drop).expect_err("another export");
        assert!(e.message().contains("the size was 4194304 bytes and is 2097152"), "{e}");
        let refresh = Command { name: "refresh".into(), args: serde_json::json!({}) };
        let answer = node.control(refresh).await.expect("the user wants it");
        assert_eq!(answer["size"], 2 << 20);
        assert_eq!((client.geometry().size, node.geometry().size), (2 << 20, 2 << 20));
        world.env.sleep(Duration::from_secs(3)).await;
        read(&node, 0, 512).await.expect("reads");
    });
}

#[test]
fn a_grown_export_is_seen_by_new_connections_and_by_refresh() {
    simulate(0..10, Settings::default(), async |world| {
        let (client, node) = world.client(connections(1)).await.expect("connects");
        world.disk.resize(8 << 20);
        world.node.refresh();
        let (_, new) = world.client(connections(1)).await.expect("connects");
        assert_eq!((node.geometry().size, new.geometry().size), (4 << 20, 8 << 20));
        let refresh = Command { name: "refresh".into(), args: serde_json::json!({}) };
        node.control(refresh).await.expect("refreshes");
        assert_eq!(node.geometry().size, 8 << 20);
        // The connection is older than the resize.
        write(&node, (8 << 20) - 512, &bytes(1, 512)).await.expect("writes at the new end");
        world.disk.resize(16 << 20);
        world.node.refresh();
        assert_eq!(client.info()["size_there"], 8 << 20);
        world.env.net().cut(&place());
        read(&node, 0, 512).await.expect("reads");
        assert_eq!((node.geometry().size, &client.info()["size_there"]), (8 << 20, &(16 << 20).into()));
    });
}

#[test]
fn errors_keep_their_class_and_their_words() {
    simulate(0..10, Settings::default(), async |world| {
        let (_, node) = world.client(connections(1)).await.expect("connects");
        world.disk.set_presence(Presence::Failing);
        let e = read(&node, 512, 512).await.expect_err("fails");
        assert_eq!((e.kind(), e.range()), (ErrorKind::Media, Some(&(512..1024))));
        assert!(e.message().contains("disk"), "the server's words are missing: {e}");
        world.disk.set_presence(Presence::Here);
        read(&node, 512, 512).await.expect("one error ends nothing");
    });
}

#[test]
fn a_server_that_may_lose_writes_fails_the_next_flush() {
    simulate(0..10, Settings::default(), async |mut world| {
        let options = Options { unflushed: Promise::Lost, ..Options::default() };
        let (_, node) = world.client(options).await.expect("connects");
        write(&node, 0, &bytes(1, 512)).await.expect("writes");
        node.submit(Io::flush()).await.expect("nothing is lost yet");
        world.kill().await;
        world.restart();
        node.submit(Io::flush()).await.expect("nothing was at stake");
        write(&node, 0, &bytes(2, 512)).await.expect("writes");
        world.kill().await;
        world.restart();
        let e = node.submit(Io::flush()).await.expect_err("the write may be gone");
        assert_eq!(e.kind(), ErrorKind::Media);
        node.submit(Io::flush()).await.expect("told once");
    });
}

#[test]
fn shutdown_answers_what_is_under_way() {
    simulate(0..30, Settings::default(), async |world| {
        let (_, node) = world.client(connections(2)).await.expect("connects");
        let requests: Vec<_> = (0..20u64)
            .map(|i| {
                let node = Rc::clone(&node);
                world.env.start(async move { write(&node, i * 4096, &bytes(i, 4096)).await })
            })
            .collect();
        world.env.sleep(Duration::from_micros(30)).await;
        world.server.shutdown().await;
        assert_eq!((world.server.connections(), world.node.stats().in_flight()), (0, 0));
        let done = world.node.stats().of(OpKind::Write).completed.get();
        // The others wait for a server that does not come back; they repeat their requests.
        let mut answered = 0;
        for request in requests {
            answered += u64::from(request.ended().await.is_ok());
        }
        assert_eq!(answered, done);
    });
}

#[test]
fn exports_have_names() {
    simulate(0..5, Settings::default(), async |world| {
        let connect = |name: &str| {
            let (env, target) = (world.dyn_env(), target(name));
            async move { Client::connect(&env, target, Options::default()).await.map(|client| client.geometry()) }
        };
        let e = connect("disc").await.expect_err("no such export");
        assert!(e.message().contains("has no export \"disc\"") && e.message().contains("\"disk\""), "{e}");
        connect("").await.expect("the only export there is");
        let second = ExportInfo {
            name: "second".into(),
            description: String::new(),
            node: Rc::clone(&world.node),
            read_only: true,
            memory: Rc::default(),
            records: None,
        };
        world.server.add(second.clone()).expect("a new name");
        assert!(world.server.add(second).is_err(), "the name is taken");
        connect("").await.expect_err("which one?");
        assert!(connect("second").await.expect("read-only").read_only);
        world.server.remove("second");
        connect("second").await.expect_err("it was removed");
    });
}

#[test]
fn removing_an_export_ends_its_connections_only() {
    simulate(0..10, Settings::default(), async |world| {
        let second = ExportInfo {
            name: "second".into(),
            description: String::new(),
            node: Rc::clone(&world.node),
            read_only: false,
            memory: Rc::default(),
            records: None,
        };
        world.server.add(second).expect("a new name");
        let (_, stays) = world.client(connections(1)).await.expect("connects");
        let options = Options { reconnect: Duration::from_secs(1), ..Options::default() };
        let goes = Client::connect(&world.dyn_env(), target("second"), options).await.expect("connects");
        let goes = Node::new("goes", "nbd", world.dyn_env(), goes as _);
        world.server.remove("second");
        let e = read(&goes, 0, 512).await.expect_err("it was removed");
        assert!(e.message().contains("no export"), "{e}");
        read(&stays, 0, 512).await.expect("reads");
    });
}

/// A request whose memory was taken away fails by itself, once: the connection stays, with the requests of others.
#[test]
fn memory_that_is_gone_fails_its_request_alone() {
    simulate(0..50, Settings::default(), async |world| {
        let (client, node) = world.client(connections(1)).await.expect("connects");
        let data = bytes(7, 200 * 512);
        write(&node, 0, &data).await.expect("writes");
        // Some memory is there in front, and several requests go out at once.
        let mut memory = Buf::from_vec(data[..8 * 512].to_vec());
        memory.append(lamina_sim::gone_memory(300 * 512));
        let lost = || node.submit(Io::write(1 << 20, memory.clone(), Durability::Cached));
        let before = node.submit(Io::write(2 << 20, Buf::from_vec(data.clone()), Durability::Cached));
        let after = node.submit(Io::write(3 << 20, Buf::from_vec(data.clone()), Durability::Cached));
        let unread = node.submit(Io::read(0, lamina_sim::gone_memory(data.len())));
        let results = futures_util::future::join_all([before, lost(), lost(), after, unread]).await;
        let kinds: Vec<_> = results.into_iter().map(|result| result.err().map(|e| e.kind())).collect();
        let bad = Some(ErrorKind::BadMemory);
        assert_eq!(kinds, [None, bad, bad, None, bad]);
        for at in [0, 2 << 20, 3 << 20] {
            assert_eq!(read(&node, at, data.len()).await.expect("reads"), data);
        }
        let info = client.info();
        assert_eq!(info["connections"][0]["reconnects"], 0, "{info}");
    });
}
