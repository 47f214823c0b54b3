//! Unix and TCP sockets through the reactor.

use lamina_block::{Address, Buf, Conn, Env, ErrorKind, Listener};
use lamina_host::{Access, Host, Options, Reactor};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

fn reactor() -> Reactor {
    Reactor::new(Options::default()).unwrap()
}

fn unix(folder: &Path) -> Address {
    Address::Unix(folder.join("s.sock"))
}

fn tcp() -> Address {
    Address::Tcp("127.0.0.1:0".into())
}

/// Both ends of a connection.
async fn pair(host: &Rc<Host>, listener: &Rc<dyn Listener>) -> (Rc<dyn Conn>, Rc<dyn Conn>) {
    let client = host.connect(listener.address()).await.unwrap();
    (client, listener.accept().await.unwrap())
}

/// A buffer of many uneven segments.
fn scattered(bytes: &[u8]) -> Buf {
    let mut buf = Buf::empty();
    let mut rest = bytes;
    let mut len = 1;
    while !rest.is_empty() {
        let (part, tail) = rest.split_at(len.min(rest.len()));
        buf.append(Buf::from_vec(part.to_vec()));
        rest = tail;
        len = len * 3 % 7001 + 1;
    }
    buf
}

/// Polls a receive that has nothing to receive once.
async fn begin(receive: &mut lamina_block::Pending<usize>) {
    std::future::poll_fn(|cx| {
        assert!(receive.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}

async fn receive_exactly(conn: &Rc<dyn Conn>, into: &Buf) {
    let mut done = 0;
    while done < into.len() {
        let n = conn.recv(into.slice(done..into.len())).await.unwrap();
        assert!(n > 0, "ended after {done}");
        done += n;
    }
}

async fn all<const N: usize>(futures: [Pin<Box<dyn Future<Output = ()> + '_>>; N]) {
    let mut futures: Vec<_> = futures.into();
    std::future::poll_fn(|cx| {
        futures.retain_mut(|f| f.as_mut().poll(cx).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn large_transfers_both_ways_at_once() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    for at in [unix(folder.path()), tcp()] {
        let listener = host.listen(at).unwrap();
        reactor.run(async {
            let (client, server) = pair(&host, &listener).await;
            let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
            let (there, back) = (scattered(&bytes), Buf::from_vec(bytes.clone()));
            let (got_there, got_back) = (Buf::zeroed(bytes.len()), scattered(&vec![0; bytes.len()]));
            all([
                Box::pin(async { client.send(there.clone()).await.unwrap() }),
                Box::pin(async { server.send(back.clone()).await.unwrap() }),
                Box::pin(receive_exactly(&server, &got_there)),
                Box::pin(receive_exactly(&client, &got_back)),
            ])
            .await;
            assert!(got_there.to_vec() == bytes && got_back.to_vec() == bytes);
        });
    }
}

#[test]
fn what_a_socket_takes_at_once_comes_before_what_is_sent_then() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    for at in [unix(folder.path()), tcp()] {
        let listener = host.listen(at).unwrap();
        reactor.run(async {
            let (client, server) = pair(&host, &listener).await;
            let bytes: Vec<u8> = (0..20_000_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
            let all_bytes = Buf::from_vec(bytes.clone());
            let taken = client.send_at_once(&all_bytes);
            assert!((1..bytes.len()).contains(&taken), "{taken}: nobody receives yet");
            let (rest, got) = (all_bytes.slice(taken..bytes.len()), Buf::zeroed(bytes.len()));
            all([
                Box::pin(async { client.send(rest).await.unwrap() }),
                Box::pin(receive_exactly(&server, &got)),
            ])
            .await;
            assert!(got.to_vec() == bytes);
            server.shutdown();
            drop(server);
            // The connection says why when the rest is sent.
            while client.send_at_once(&all_bytes.slice(0..1)) > 0 {
                host.sleep(Duration::from_millis(1)).await;
            }
            let e = client.send(all_bytes.slice(0..1)).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Offline, "{e}");
        });
    }
}

#[test]
fn a_closed_peer_is_an_end_and_then_an_error() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    for at in [unix(folder.path()), tcp()] {
        let listener = host.listen(at).unwrap();
        reactor.run(async {
            let (client, server) = pair(&host, &listener).await;
            client.send(Buf::from_vec(b"last".to_vec())).await.unwrap();
            drop(client);
            let into = Buf::zeroed(16);
            assert_eq!(server.recv(into.clone()).await.unwrap(), 4);
            assert_eq!(server.recv(into.clone()).await.unwrap(), 0);
            let broken = async {
                loop {
                    if let Err(e) = server.send(Buf::zeroed(1 << 16)).await {
                        return e;
                    }
                }
            };
            assert_eq!(broken.await.kind(), ErrorKind::Offline);
        });
    }
}

/// Bytes that fill the sockets and have not left this end do not arrive: the peer sees a reset, not the rest and an
/// end.
#[test]
fn an_aborted_connection_takes_back_what_it_can() {
    const LEN: usize = 64 << 20;
    let reactor = reactor();
    let host = reactor.env();
    let listener = host.listen(tcp()).unwrap();
    reactor.run(async {
        let (client, server) = pair(&host, &listener).await;
        let mut sending = client.send(Buf::zeroed(LEN));
        let mut pause = host.sleep(Duration::from_millis(50));
        std::future::poll_fn(|cx| {
            assert!(sending.as_mut().poll(cx).is_pending(), "the sockets hold less");
            pause.as_mut().poll(cx)
        })
        .await;
        client.abort();
        assert!(sending.await.is_err());
        drop(client);
        let (into, mut got) = (Buf::zeroed(1 << 20), 0);
        let end = loop {
            match server.recv(into.clone()).await {
                Ok(0) => break Ok(()),
                Ok(n) => got += n,
                Err(e) => break Err(e),
            }
        };
        assert_eq!(end.unwrap_err().kind(), ErrorKind::Offline);
        assert!(got < LEN);
    });
}

#[test]
fn shutdown_ends_a_receive_in_flight() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    for at in [unix(folder.path()), tcp()] {
        let listener = host.listen(at).unwrap();
        reactor.run(async {
            let (client, server) = pair(&host, &listener).await;
            let (other, env) = (Rc::clone(&server), Rc::clone(&host));
            host.task(async move {
                env.sleep(Duration::from_millis(5)).await;
                other.shutdown();
            });
            assert_eq!(server.recv(Buf::zeroed(1)).await.unwrap(), 0);
            assert_eq!(client.recv(Buf::zeroed(1)).await.unwrap(), 0);
        });
    }
}

#[test]
fn a_dropped_receive_takes_nothing_that_comes_later() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let listener = host.listen(unix(folder.path())).unwrap();
    reactor.run(async {
        let (client, server) = pair(&host, &listener).await;
        let forgotten = Buf::zeroed(64);
        let mut receive = server.recv(forgotten.clone());
        begin(&mut receive).await;
        host.sleep(Duration::from_millis(2)).await;
        drop(receive);
        // The cancellation is in the kernel before the bytes are.
        host.sleep(Duration::from_millis(2)).await;
        client.send(Buf::from_vec(b"hello".to_vec())).await.unwrap();
        let into = Buf::zeroed(64);
        assert_eq!(server.recv(into.clone()).await.unwrap(), 5);
        assert_eq!(forgotten.to_vec(), [0; 64]);
    });
}

#[test]
fn memory_of_a_dropped_receive_stays_until_the_kernel_has_answered() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let listener = host.listen(unix(folder.path())).unwrap();
    reactor.run(async {
        let (_client, server) = pair(&host, &listener).await;
        let memory = Buf::zeroed(4096);
        let kept = Rc::downgrade(memory.segments()[0].owner());
        let mut receive = server.recv(memory);
        begin(&mut receive).await;
        drop(receive);
        // The kernel has not even been asked to cancel it.
        assert!(kept.strong_count() > 0);
        while kept.strong_count() > 0 {
            host.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn receives_dropped_at_any_moment_leave_nothing_behind() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let listener = host.listen(unix(folder.path())).unwrap();
    reactor.run(async {
        let mut draw = fastrand::Rng::with_seed(3);
        let mut kept = Vec::new();
        for _ in 0..20 {
            let (client, server) = pair(&host, &listener).await;
            for _ in 0..50 {
                let memory = Buf::zeroed(512);
                kept.push(Rc::downgrade(memory.segments()[0].owner()));
                let mut receive = server.recv(memory);
                // Dropped before it began, before the kernel saw it, after, or with its answer there.
                let stage = draw.u8(0..4);
                if stage > 0 {
                    begin(&mut receive).await;
                }
                if stage > 1 {
                    host.sleep(Duration::from_micros(10)).await;
                }
                if stage > 2 {
                    client.send(Buf::from_vec(vec![1; 64])).await.unwrap();
                }
                if draw.bool() {
                    client.send(Buf::from_vec(vec![2; 64])).await.unwrap();
                    assert!(receive.await.unwrap() > 0);
                } else {
                    drop(receive);
                    // The kernel hears of it with the next turn, and what comes before that may go with it.
                    host.sleep(Duration::from_micros(1)).await;
                }
            }
        }
        while kept.iter().any(|memory| memory.strong_count() > 0) {
            host.sleep(Duration::from_millis(1)).await;
        }
    });
}

#[test]
fn a_unix_socket_is_private_and_goes_with_its_listener() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let Address::Unix(path) = unix(folder.path()) else { unreachable!() };
    let listener = host.listen(unix(folder.path())).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    reactor.run(async {
        let (_client, server) = pair(&host, &listener).await;
        assert!(server.peer().contains(&std::process::id().to_string()), "{}", server.peer());
    });
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced_a_live_one_and_a_file_are_not() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let Address::Unix(path) = unix(folder.path()) else { unreachable!() };
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "std leaves it behind, as a killed process does");
    let live = host.listen(unix(folder.path())).unwrap();
    let refused = host.listen(unix(folder.path())).err().unwrap();
    assert!(refused.message().contains("another process listens there (process "), "{refused}");
    // A listener leaves a file alone that another process has put in its place.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"mine").unwrap();
    drop(live);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let refused = host.listen(unix(folder.path())).err().unwrap();
    assert!(refused.message().contains("no socket"), "{refused}");
}

/// The caller may wait for an address, in a way that lets the core go on.
#[test]
fn an_address_that_is_taken_is_refused_at_once() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    for at in [unix(folder.path()), tcp()] {
        let taken = host.listen(at).unwrap();
        let begin = Instant::now();
        let here = host.listen(taken.address()).err().unwrap();
        let aside = reactor.run(host.listen_for(taken.address(), &Access::default())).err().unwrap();
        assert_eq!((here.kind(), aside.kind()), (ErrorKind::Busy, ErrorKind::Busy), "{here} {aside}");
        assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    }
}

#[test]
fn a_listener_that_goes_ends_its_accept() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    for at in [unix(folder.path()), tcp()] {
        let listener = host.listen(at).unwrap();
        let accept = listener.accept();
        let env = Rc::clone(&host);
        host.task(async move {
            env.sleep(Duration::from_millis(5)).await;
            drop(listener);
        });
        assert!(reactor.run(accept).is_err());
    }
}

#[test]
fn connections_that_cannot_be_made_say_why() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let free = host.listen(tcp()).unwrap().address();
    let long = Address::Unix(folder.path().join("x".repeat(200)));
    for (to, kind) in
        [(unix(folder.path()), ErrorKind::Offline), (free, ErrorKind::Offline), (long, ErrorKind::Invalid)]
    {
        let refused = reactor.run(host.connect(to.clone())).err().unwrap();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
}

#[test]
fn tcp_names_are_resolved_and_ports_reported() {
    let reactor = reactor();
    let host = reactor.env();
    let listener = host.listen(tcp()).unwrap();
    let Address::Tcp(at) = listener.address() else { panic!("a TCP socket listens at TCP") };
    let port = at.rsplit_once(':').unwrap().1.to_string();
    assert_ne!(port, "0");
    reactor.run(async {
        let client = host.connect(Address::Tcp(format!("localhost:{port}"))).await.unwrap();
        let server = listener.accept().await.unwrap();
        client.send(Buf::from_vec(b"x".to_vec())).await.unwrap();
        assert_eq!(server.recv(Buf::zeroed(8)).await.unwrap(), 1);
        assert!(server.peer().starts_with("tcp:127.0.0.1:"), "{}", server.peer());
    });
}
