//! kill -9 and starting again.

use crate::rig::{Place, client, flush, pattern, read, write};
use crate::serving::DISK;
use std::future::poll_fn;
use std::task::Poll;

#[test]
fn sockets_left_by_a_killed_daemon_are_replaced() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    client(&daemon.uri("vm1"), async |node| {
        write(&node, 0, pattern(8192, 1)).await.expect("a write");
        flush(&node).await.expect("a flush");
    });
    daemon.kill();
    assert_eq!(place.names(), ["disk.toml", "disk.toml.ctl.sock", "san.img", "vm1.nbd", "vm1.vhost"]);
    let daemon = place.serve();
    let got = client(&daemon.uri("vm1"), async |node| read(&node, 0, 8192).await.expect("a read"));
    assert_eq!(got, pattern(8192, 1));
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(place.names(), ["disk.toml", "san.img"]);
}

#[test]
fn a_client_sees_no_error_while_its_daemon_is_killed_and_started_again() {
    let place = Place::with(DISK);
    let mut daemon = place.serve();
    let uri = daemon.uri("vm1");
    let daemon = client(&uri, async |node| {
        for round in 0..5u8 {
            let at = round as u64 * 65536;
            write(&node, at, pattern(65536, round)).await.expect("a write before the kill");
            // Sent before the daemon is gone or after, answered when it is there again.
            let mut under_way = std::pin::pin!(write(&node, at + 4096, pattern(4096, !round)));
            let polled = poll_fn(|cx| Poll::Ready(under_way.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            daemon.kill();
            daemon = place.serve();
            under_way.await.expect("the write under way");
            let got = read(&node, at, 65536).await.expect("a read after the kill");
            let mut wanted = pattern(65536, round);
            wanted[4096..8192].copy_from_slice(&pattern(4096, !round));
            assert_eq!(got, wanted, "round {round}");
        }
        flush(&node).await.expect("a flush");
        daemon
    });
    assert_eq!(daemon.terminate(), Some(0));
}
