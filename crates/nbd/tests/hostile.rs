//! Peers that break the protocol, stall, flood or lie: they lose their connection, and nothing else happens.

mod common;

use common::*;
use lamina_nbd::errno;
use lamina_nbd::wire::{self, chunk, cmd, cmd_flag, opt};

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let len = data.len() as u32;
    [&wire::OPTION_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

fn go() -> Vec<u8> {
    option(opt::GO, b"\0\0\0\x04disk\0\0")
}

fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    [
        &wire::REQUEST_MAGIC.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &command.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &len.to_be_bytes(),
    ]
    .concat()
}

/// Flags, structured replies if wanted, and GO.
fn begin(structured: bool) -> Vec<u8> {
    let structured = if structured { option(opt::STRUCTURED_REPLY, &[]) } else { Vec::new() };
    [vec![0, 0, 0, 3], structured, go()].concat()
}

/// How many bytes the server says before transmission.
const HELLO: usize = 18 + (20 + 12) + (20 + 14) + 20;

async fn send(conn: &Rc<dyn Conn>, bytes: Vec<u8>) -> Result<()> {
    conn.send(Buf::from_vec(bytes)).await
}

/// Receives exactly `n` bytes.
async fn exactly(conn: &Rc<dyn Conn>, n: usize) -> Vec<u8> {
    let buf = Buf::zeroed(n);
    let mut got = 0;
    while got < n {
        match conn.recv(buf.slice(got..n)).await {
            Ok(more @ 1..) => got += more,
            end => panic!("{end:?} after {got} of {n} bytes"),
        }
    }
    buf.to_vec()
}

/// The server still works.
async fn works(world: &World) {
    let (_, node) = world.client(Options::default()).await.expect("connects");
    write(&node, 0, &bytes(1, 4096)).await.expect("writes");
    assert_eq!(read(&node, 0, 4096).await.expect("reads"), bytes(1, 4096));
    node.close().await.expect("closes");
}

#[test]
fn clients_that_break_the_protocol_lose_their_connection() {
    let mut bad_magic = option(opt::LIST, &[]);
    bad_magic[3] ^= 1;
    let inputs: Vec<(&str, Vec<u8>)> = vec![
        ("unknown flags", vec![0xff; 4]),
        ("no IHAVEOPT", [vec![0, 0, 0, 3], bad_magic].concat()),
        ("an unknown export, the old way", [vec![0, 0, 0, 3], option(opt::EXPORT_NAME, b"nope")].concat()),
        ("an endless name", [vec![0, 0, 0, 3], option(opt::EXPORT_NAME, &vec![b'x'; 100_000])].concat()),
        ("ABORT", [vec![0, 0, 0, 3], option(opt::ABORT, &[])].concat()),
        ("no request", [begin(true), vec![0; 28]].concat()),
        ("a request, then none", [begin(true), request(cmd::READ, 0, 1, 0, 512), vec![1; 28]].concat()),
        ("a farewell", [begin(false), request(cmd::DISC, 0, 0, 0, 0)].concat()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: disk\r\n\r\n".to_vec()),
    ];
    simulate(0..4, Settings::default(), move |world| {
        let inputs = inputs.clone();
        async move {
            for (what, input) in inputs {
                let conn = world.connect().await;
                // The server may hang up before it has read everything.
                let _ = send(&conn, input).await;
                drain(&conn).await;
                world.env.sleep(Duration::from_millis(1)).await;
                assert_eq!(world.server.connections(), 0, "{what}");
            }
            works(&world).await;
        }
    });
}

#[test]
fn a_client_that_leaves_at_any_byte_leaves_nothing_behind() {
    let input = [
        begin(true),
        request(cmd::WRITE, 0, 1, 0, 20_000),
        vec![7; 20_000],
        request(cmd::READ, 0, 2, 0, 4096),
        request(cmd::BLOCK_STATUS, 0, 3, 0, 4096),
        request(cmd::CACHE, 0, 4, 0, 4 << 20),
        request(cmd::FLUSH, 0, 5, 0, 0),
    ]
    .concat();
    simulate(0..2, Settings::default(), move |world| {
        let input = input.clone();
        async move {
            for end in (0..input.len()).step_by(61) {
                let conn = world.connect().await;
                let _ = send(&conn, input[..end].to_vec()).await;
                drop(conn);
                world.env.sleep(Duration::from_millis(2)).await;
                assert_eq!((world.server.connections(), world.node.stats().in_flight()), (0, 0), "{end}");
            }
            works(&world).await;
        }
    });
}

#[test]
fn refused_requests_are_answered_and_the_next_one_works() {
    simulate(0..4, Settings::default(), async |world| {
        let conn = world.connect().await;
        send(&conn, begin(false)).await.expect("sends");
        exactly(&conn, HELLO).await;
        for (what, command, flags, offset, len, error) in [
            ("unknown", 77, 0, 0, 0, errno::EINVAL),
            ("flags", cmd::READ, cmd_flag::REQ_ONE, 0, 512, errno::EINVAL),
            ("misaligned", cmd::READ, 0, 1, 511, errno::EINVAL),
            ("beyond", cmd::READ, 0, u64::MAX - 100, 4096, errno::EINVAL),
            ("beyond", cmd::WRITE, 0, 4 << 20, 512, errno::ENOSPC),
            ("misaligned", cmd::WRITE, 0, 0, 100, errno::EINVAL),
            ("33 MiB", cmd::WRITE, 0, 0, 33 << 20, errno::ENOSPC),
            ("33 MiB", cmd::READ, 0, 0, 33 << 20, errno::EINVAL),
            ("status", cmd::BLOCK_STATUS, 0, 0, 512, errno::EINVAL),
            ("flush", cmd::FLUSH, 0, 512, 0, errno::EINVAL),
        ] {
            let payload = if command == cmd::WRITE { vec![9; len as usize] } else { Vec::new() };
            let input = [request(command, flags, 42, offset, len), payload].concat();
            send(&conn, input).await.expect("sends");
            let reply =
                [&wire::SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &42u64.to_be_bytes()];
            let error = exactly(&conn, 16).await;
            assert_eq!(error, reply.concat(), "{what}");
        }
        send(&conn, request(cmd::READ, 0, 43, 0, 512)).await.expect("sends");
        assert_eq!(exactly(&conn, 16 + 512).await[16..], [0; 512]);
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let settings = Settings { max_in_flight_bytes: 0, ..Settings::default() };
    simulate(0..4, settings, async |world| {
        let conn = world.connect().await;
        let reads: Vec<u8> = (0..10_000).flat_map(|i| request(cmd::READ, 0, i, 0, 1 << 20)).collect();
        let sender = Rc::clone(&conn);
        let flood = world.env.start(async move { send(&sender, [begin(false), reads].concat()).await });
        world.env.sleep(Duration::from_secs(60)).await;
        // 32 MiB are always allowed, because a request may be as large.
        let done = world.node.stats().of(OpKind::Read).completed.get();
        assert!((8..=33).contains(&done), "{done} reads of 1 MiB were done for a client that takes none");
        works(&world).await;
        conn.shutdown();
        flood.ended().await.expect_err("it was cut short");
    });
}

#[test]
fn a_client_with_many_requests_in_flight_is_held_back_by_memory_only() {
    let settings = Settings { max_in_flight_bytes: 0, ..Settings::default() };
    simulate(0..2, settings, async |world| {
        world.disk.set_presence(Presence::Silent);
        let conn = world.connect().await;
        let reads: Vec<u8> = (0..5_000).flat_map(|i| request(cmd::READ, 0, i, 0, 512)).collect();
        send(&conn, [begin(false), reads].concat()).await.expect("sends");
        world.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(world.node.stats().in_flight(), 5_000);
    });
}

#[test]
fn clients_that_do_not_negotiate_are_bounded_in_number_and_time() {
    let settings = Settings { max_handshakes: 4, ..Settings::default() };
    simulate(0..4, settings, async |world| {
        let mut idle = Vec::new();
        for _ in 0..8 {
            idle.push(world.connect().await);
            world.env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(world.server.connections(), 4);
        world.env.sleep(Duration::from_secs(13)).await;
        assert_eq!(world.server.connections(), 0);
        works(&world).await;
    });
}

/// Others hold all places and take every one that becomes free.
#[test]
fn clients_that_do_not_negotiate_shut_nobody_out() {
    let settings = Settings { max_handshakes: 4, ..Settings::default() };
    simulate(0..4, settings, async |world| {
        let mut idle = Vec::new();
        for _ in 0..12 {
            idle.push(world.connect().await);
        }
        let begun = world.env.now();
        works(&world).await;
        let waited = world.env.now().since(begun);
        assert!(waited < Duration::from_secs(5), "{waited:?}");
    });
}

#[test]
fn connections_are_bounded() {
    let settings = Settings { max_connections: 3, ..Settings::default() };
    simulate(0..4, settings, async |world| {
        let options = || Options { reconnect: Duration::from_secs(1), ..Options::default() };
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(world.client(options()).await.expect("connects"));
        }
        assert!(world.client(options()).await.is_err(), "a fourth");
        let (_, node) = clients.pop().expect("three");
        node.close().await.expect("closes");
        world.env.sleep(Duration::from_millis(10)).await;
        world.client(options()).await.expect("there is space again");
    });
}

/// Clients that fill their memory and read nothing cannot take the memory of others, and all together stay within
/// bounds.
#[test]
fn all_connections_together_are_bounded_and_nobody_starves() {
    simulate_in(64 << 20, 0..2, Settings::default(), async |world| {
        let mut floods = Vec::new();
        for _ in 0..3 {
            let conn = world.connect().await;
            let reads: Vec<u8> = (0..100).flat_map(|i| request(cmd::READ, 0, i, 0, 1 << 20)).collect();
            let sender = Rc::clone(&conn);
            let flood = world.env.start(async move { send(&sender, [begin(false), reads].concat()).await });
            floods.push((conn, flood));
        }
        world.env.sleep(Duration::from_secs(5)).await;
        let done = world.node.stats().of(OpKind::Read).completed.get();
        // Each has space for one, and 32 MiB are for all. A few more are answered and in the sockets.
        assert!((30..=3 + 32 + 3).contains(&done), "{done} reads of 1 MiB are held");
        let (_, node) = world.client(Options::default()).await.expect("it has its reserve");
        let large = vec![5; 2 << 20];
        write(&node, 0, &large).await.expect("writes");
        assert_eq!(read(&node, 0, large.len()).await.expect("reads"), large);
        drop(floods);
    });
}

#[test]
fn a_connection_without_memory_is_told_so() {
    simulate_in(5 << 20, 0..4, Settings::default(), async |world| {
        let (_, first) = world.client(Options::default()).await.expect("connects");
        let (_, second) = world.client(Options::default()).await.expect("connects");
        let Err(e) = world.client(Options::default()).await else { panic!("a third") };
        assert!(e.message().contains("memory for clients (5MiB) is taken by others"), "{e}");
        write(&first, 0, &bytes(1, 4096)).await.expect("writes");
        second.close().await.expect("closes");
        world.env.sleep(Duration::from_millis(10)).await;
        world.client(Options::default()).await.expect("there is space again");
    });
}

/// Sixty connections in the space of sixteen: those that are let in all get on, large requests and small.
#[test]
fn many_connections_share() {
    simulate_in(36 << 20, 0..2, Settings::default(), async |world| {
        let mut clients = Vec::new();
        for _ in 0..60 {
            if let Ok((_, node)) = world.client(Options::default()).await {
                clients.push(node);
            }
        }
        assert_eq!(clients.len(), 16);
        let all = clients.iter().flat_map(|node| {
            [4096, 4 << 20, 512, 2 << 20, 4 << 20].map(|len| {
                let node = Rc::clone(node);
                world.env.start(async move { read(&node, 0, len).await.map(drop) })
            })
        });
        let all: Vec<_> = all.collect();
        for one in all {
            one.ended().await.expect("reads");
        }
    });
}

/// A client that stops amid a long write does not keep the memory for it: another one gets that, and it is cut off.
#[test]
fn half_a_write_does_not_hold_memory_for_ever() {
    simulate_in(36 << 20, 0..2, Settings::default(), async |world| {
        let [first, second] = [world.connect().await, world.connect().await];
        let half = [begin(false), request(cmd::WRITE, 0, 1, 0, 4 << 20), vec![1; 1 << 20]].concat();
        let stalled: Vec<_> = (0..5).map(|_| half.clone()).collect();
        for (conn, half) in [&first, &second].into_iter().zip(stalled) {
            send(conn, half).await.expect("sends");
        }
        let conn = world.connect().await;
        let write = [begin(false), request(cmd::WRITE, 0, 1, 0, 4 << 20), vec![2; 4 << 20]].concat();
        let writing = Rc::clone(&conn);
        let long = world.env.start(async move { send(&writing, write).await });
        world.env.sleep(Duration::from_secs(40)).await;
        long.ended().await.expect("it has its turn");
        assert_eq!(world.server.connections(), 1);
        works(&world).await;
    });
}

/// The messages of an honest server to our client: greeting, no structured replies, an export of 1 MiB.
fn honest(structured: bool) -> Vec<u8> {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let len = data.len() as u32;
        [
            &wire::OPTION_REPLY_MAGIC.to_be_bytes()[..],
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &len.to_be_bytes(),
            data,
        ]
        .concat()
    };
    let greeting = [&wire::MAGIC.to_be_bytes()[..], &wire::OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat();
    let flags = wire::flag::HAS_FLAGS | wire::flag::SEND_FLUSH;
    let export = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &flags.to_be_bytes()].concat();
    let context = [&1u32.to_be_bytes()[..], b"base:allocation"].concat();
    let before = if structured {
        [
            reply(opt::STRUCTURED_REPLY, 1, &[]),
            reply(opt::SET_META_CONTEXT, 4, &context),
            reply(opt::SET_META_CONTEXT, 1, &[]),
        ]
        .concat()
    } else {
        reply(opt::STRUCTURED_REPLY, wire::rep::ERR_UNSUP, &[])
    };
    [greeting, before, reply(opt::GO, 3, &export), reply(opt::GO, 1, &[])].concat()
}

fn simple(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
    let magic = wire::SIMPLE_REPLY_MAGIC.to_be_bytes();
    [&magic[..], &error.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
}

fn chunk(flags: u16, kind: u16, cookie: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let magic = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes();
    let head =
        [&magic[..], &flags.to_be_bytes(), &kind.to_be_bytes(), &cookie.to_be_bytes(), &len.to_be_bytes()];
    [head.concat(), data.to_vec()].concat()
}

fn data(flags: u16, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let body = [&offset.to_be_bytes()[..], bytes].concat();
    chunk(flags, chunk::OFFSET_DATA, 0, body.len() as u32, &body)
}

/// A server that says `words` to everybody, whatever they ask, and then nothing.
fn babbler(env: &Rc<SimEnv>, words: Vec<u8>) {
    let listener = env.listen("unix:/sim/babbler".parse().expect("an address")).expect("listens");
    let dyn_env = Rc::clone(env);
    env.spawn(Box::pin(async move {
        while let Ok(conn) = listener.accept().await {
            let words = words.clone();
            dyn_env.spawn(Box::pin(async move {
                let _ = send(&conn, words).await;
                drain(&conn).await;
            }));
        }
    }));
}

/// Reads 512 bytes at 512 and asks for the status of 4096 from a server that says `words`.
fn listen_to(words: Vec<u8>, seed: u64) -> Result<Vec<u8>> {
    let simulation = Simulation::new(seed);
    let env = simulation.env();
    babbler(&env, words);
    let result = simulation.run(async move {
        let dyn_env: Rc<dyn Env> = Rc::clone(&env) as _;
        let seconds = Duration::from_secs(3);
        let options = Options { reconnect: seconds, timeout: seconds, ..Options::default() };
        let target = "unix:/sim/babbler".parse().expect("a place");
        let client = Client::connect(&dyn_env, target, options).await?;
        let node = Node::new("client", "nbd", dyn_env, client as _);
        let result = read(&node, 512, 512).await;
        let _ = node.extents(0..4096).await;
        result
    });
    result.expect("ends")
}

#[test]
fn servers_that_do_not_negotiate_are_refused() {
    let good = honest(true);
    let mut inputs: Vec<Vec<u8>> = (0..good.len() - 1).step_by(7).map(|end| good[..end].to_vec()).collect();
    // Every byte turned, one at a time.
    inputs.extend((0..18).map(|i| {
        let mut bad = good.clone();
        bad[i] ^= 0x80;
        bad
    }));
    inputs.push(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    for (i, words) in inputs.into_iter().enumerate() {
        let e = listen_to(words, i as u64).expect_err("no reply");
        assert!(matches!(e.kind(), ErrorKind::Offline), "{e:?}");
    }
}

#[test]
fn replies_that_do_not_fit_end_the_connection() {
    let done = chunk::FLAG_DONE;
    let sector = [5; 512];
    let good: Vec<(&str, bool, Vec<u8>)> = vec![
        ("simple", false, simple(0, 0, &sector)),
        ("one chunk", true, data(done, 512, &sector)),
        (
            "backwards",
            true,
            [
                data(0, 768, &sector[256..]),
                data(0, 512, &sector[..200]),
                data(0, 712, &sector[..56]),
                chunk(done, chunk::NONE, 0, 0, &[]),
            ]
            .concat(),
        ),
    ];
    for (what, structured, words) in good {
        for seed in 0..5 {
            let read = listen_to([honest(structured), words.clone()].concat(), seed);
            assert_eq!(read.as_deref(), Ok(&sector[..]), "{what}");
        }
    }
    let hole = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let bad: Vec<(&str, bool, Vec<u8>)> = vec![
        ("nothing", true, vec![]),
        ("no reply at all", true, vec![0; 64]),
        ("a cookie of nobody", false, simple(0, 9, &sector)),
        ("a structured reply, not agreed on", false, data(done, 512, &sector)),
        ("a simple reply to a read", true, simple(0, 0, &sector)),
        ("nothing, well done", true, chunk(done, chunk::NONE, 0, 0, &[])),
        ("NONE that is not the end", true, chunk(0, chunk::NONE, 0, 0, &[])),
        ("NONE with data", true, chunk(done, chunk::NONE, 0, 4, &[0; 4])),
        ("too little", true, data(done, 512, &sector[..100])),
        ("before the start", true, data(done, 0, &sector)),
        ("beyond the end", true, data(done, 513, &sector)),
        ("far beyond the end", true, data(done, u64::MAX - 3, &sector)),
        ("twice", true, [data(0, 512, &sector), data(done, 512, &sector)].concat()),
        ("overlapping", true, [data(0, 512, &sector[..300]), data(done, 712, &sector[..312])].concat()),
        ("4 GiB", true, chunk(done, chunk::OFFSET_DATA, 0, u32::MAX, &[0; 100])),
        ("an empty chunk", true, chunk(done, chunk::OFFSET_DATA, 0, 8, &512u64.to_be_bytes())),
        ("a hole outside", true, chunk(done, chunk::OFFSET_HOLE, 0, 12, &hole(0, 512))),
        ("a hole of nothing", true, chunk(done, chunk::OFFSET_HOLE, 0, 12, &hole(512, 0))),
        ("a short hole", true, chunk(done, chunk::OFFSET_HOLE, 0, 8, &[0; 8])),
        ("a status for a read", true, chunk(done, chunk::BLOCK_STATUS, 0, 12, &[0; 12])),
        ("an unknown chunk", true, chunk(done, 77, 0, 0, &[])),
        ("an error without body", true, chunk(done, chunk::ERROR, 0, 0, &[])),
        ("an endless error", true, chunk(done, chunk::ERROR, 0, u32::MAX, &[])),
        ("an error longer than its chunk", true, chunk(done, chunk::ERROR, 0, 6, &[0, 0, 0, 5, 9, 9])),
    ];
    for (what, structured, words) in bad {
        let e = listen_to([honest(structured), words].concat(), 1).expect_err(what);
        assert_eq!(e.kind(), ErrorKind::Offline, "{what}: {e}");
    }
}

#[test]
fn errors_of_a_server_are_told() {
    let done = chunk::FLAG_DONE;
    let message = [&[0, 0, 0, 28, 0, 4][..], b"full"].concat();
    for (structured, words, kind, said) in [
        (false, simple(errno::EIO, 0, &[]), ErrorKind::Media, "input/output error"),
        (false, simple(12345, 0, &[]), ErrorKind::Invalid, "invalid request"),
        (true, chunk(done, chunk::ERROR, 0, 10, &message), ErrorKind::NoSpace, "full"),
        (true, chunk(done, chunk::ERROR_BIT | 99, 0, 10, &message), ErrorKind::NoSpace, "full"),
    ] {
        let e = listen_to([honest(structured), words].concat(), 2).expect_err("an error");
        assert_eq!(e.kind(), kind, "{e}");
        assert!(e.message().contains(said), "{e}");
    }
}

/// A write that is too large is answered when its payload has come: before that the client does not listen. The
/// connection goes on.
#[test]
fn a_write_that_is_too_large_is_refused_after_its_payload() {
    simulate(0..2, Settings::default(), async |world| {
        let conn = world.connect().await;
        let len = wire::PAYLOAD_MAX + 4096;
        send(&conn, [begin(false), request(cmd::WRITE, 0, 7, 0, len)].concat()).await.expect("sends");
        exactly(&conn, HELLO).await;
        let payload = std::iter::repeat_n(1 << 20, len as usize >> 20).chain([4096]);
        for (n, piece) in payload.enumerate() {
            assert_eq!(world.node.stats().in_flight(), 0, "{n}");
            send(&conn, vec![0; piece]).await.expect("sends");
        }
        let refused = exactly(&conn, 16).await;
        // The disk is smaller, and that is said first.
        assert_eq!(refused[4..16], [&28u32.to_be_bytes()[..], &7u64.to_be_bytes()].concat());
        send(&conn, request(cmd::READ, 0, 8, 0, 512)).await.expect("sends");
        assert_eq!(exactly(&conn, 16 + 512).await[4..8], [0; 4]);
    });
}

/// A client that takes no replies keeps the server from stopping for two seconds, not for ever.
/// They do not end one after the other, each when it has had its turn with the memory.
#[test]
fn clients_that_take_no_replies_end_together() {
    simulate_in(32 << 20, 0..2, Settings::default(), async |world| {
        let mut silent = Vec::new();
        for _ in 0..12 {
            let conn = world.connect().await;
            let reads: Vec<u8> = (0..8).flat_map(|i| request(cmd::READ, 0, i, 0, 4 << 20)).collect();
            send(&conn, [begin(false), reads].concat()).await.expect("sends");
            silent.push(conn);
        }
        world.env.sleep(Duration::from_secs(5)).await;
        let begun = world.env.now();
        world.server.shutdown().await;
        let took = world.env.now().since(begun);
        assert!(took < Duration::from_secs(5), "{took:?}");
    });
}

#[test]
fn a_client_that_takes_no_replies_does_not_keep_the_server_from_stopping() {
    simulate(0..2, Settings::default(), async |world| {
        let conn = world.connect().await;
        let reads: Vec<u8> = (0..4).flat_map(|i| request(cmd::READ, 0, i, 0, 1 << 20)).collect();
        send(&conn, [begin(false), reads].concat()).await.expect("sends");
        world.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.server.connections(), 1, "while it serves it waits");
        let begun = world.env.now();
        world.server.shutdown().await;
        assert!(world.env.now().since(begun) < Duration::from_secs(5));
    });
}
