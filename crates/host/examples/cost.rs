//! The costs of the reactor itself: a task, a wake-up, a timer, an eventfd, a message over a socket. Best of five.

use lamina_block::{Address, Buf, Env};
use lamina_host::{Host, Options, Reactor};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Runs `round` five times and prints the best time for one of its `n` parts.
fn measure(what: &str, n: u32, mut round: impl FnMut()) {
    let best = (0..5).map(|_| {
        let begun = Instant::now();
        round();
        begun.elapsed()
    });
    println!("{what}: {:.0} ns", best.min().expect("five").as_nanos() as f64 / f64::from(n));
}

async fn yield_now() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Runs `work` as a task, as exports do, and waits for it.
fn run(reactor: &Reactor, work: impl Future<Output = ()> + 'static) {
    let done = Rc::new(Cell::new(false));
    let set = Rc::clone(&done);
    let (send, receive) = futures_channel::oneshot::channel();
    reactor.env().task(async move {
        work.await;
        set.set(true);
        let _ = send.send(());
    });
    reactor.run(receive).expect("the task ends");
    assert!(done.get());
}

fn tasks(reactor: &Reactor, host: &Rc<Host>) {
    const N: u32 = 100_000;
    measure("a task that is spawned and ends", N, || {
        for _ in 0..N / 100 {
            for _ in 0..100 {
                host.task(async {});
            }
            run(reactor, async {});
        }
    });
    measure("a boxed task that is spawned and ends", N, || {
        for _ in 0..N / 100 {
            for _ in 0..100 {
                host.spawn(Box::pin(async {}));
            }
            run(reactor, async {});
        }
    });
    measure("a wake-up on this thread", N, || {
        run(reactor, async {
            for _ in 0..N {
                yield_now().await;
            }
        });
    });
}

fn kernel(reactor: &Reactor, host: &Rc<Host>) {
    const N: u32 = 20_000;
    for (name, flags) in [("", EventfdFlags::empty()), (", non-blocking", EventfdFlags::NONBLOCK)] {
        let fd = eventfd(0, flags).expect("an eventfd");
        let event = host.event(fd.try_clone().expect("a copy"));
        let kick = Rc::new(fd);
        measure(&format!("an eventfd written and read{name}"), N, || {
            let (event, kick) = (Rc::clone(&event), Rc::clone(&kick));
            run(reactor, async move {
                for _ in 0..N {
                    rustix::io::write(&*kick, &1u64.to_ne_bytes()).expect("a kick");
                    event.wait().await.expect("the kick");
                }
            });
        });
    }
    let env = Rc::clone(host);
    let begun = Instant::now();
    run(reactor, async move {
        for _ in 0..1000 {
            env.sleep(Duration::from_micros(100)).await;
        }
    });
    println!("a sleep of 100 us: {} us", begun.elapsed().as_micros() / 1000);
}

fn sockets(reactor: &Reactor, host: &Rc<Host>) {
    const N: u32 = 20_000;
    let path = std::env::temp_dir().join(format!("lamina-cost-{}.sock", std::process::id()));
    let listener = host.listen(Address::Unix(path)).expect("a socket");
    let (client, server) = reactor.run(async {
        let client = host.connect(listener.address()).await.expect("a connection");
        (client, listener.accept().await.expect("a connection"))
    });
    let echo = Rc::clone(&server);
    host.task(async move {
        let buf = Buf::zeroed(64);
        while echo.recv(buf.clone()).await.is_ok_and(|n| n > 0) {
            if echo.send(buf.clone()).await.is_err() {
                return;
            }
        }
    });
    measure("64 bytes over a Unix socket and back, both ends here", N, || {
        let client = Rc::clone(&client);
        run(reactor, async move {
            let buf = Buf::zeroed(64);
            for _ in 0..N {
                client.send(buf.clone()).await.expect("sent");
                client.recv(buf.clone()).await.expect("received");
            }
        });
    });
}

fn main() {
    let reactor = Reactor::new(Options::default()).expect("a reactor");
    let host = reactor.env();
    tasks(&reactor, &host);
    kernel(&reactor, &host);
    sockets(&reactor, &host);
}
