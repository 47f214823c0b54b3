//! The reactor against the real kernel: tasks, timers, other threads, eventfds, and futures that are dropped.

use lamina_block::Env;
use lamina_host::{Gone, Options, Reactor};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn reactor() -> Reactor {
    Reactor::new(Options::default()).unwrap()
}

/// Lets everything else that is ready run once.
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

#[test]
fn sleeps_end_in_order_and_time_moves_between_turns_only() {
    let reactor = reactor();
    let host = reactor.env();
    let order = Rc::new(RefCell::new(Vec::new()));
    for n in [3u32, 1, 2] {
        let (env, order) = (Rc::clone(&host), Rc::clone(&order));
        host.task(async move {
            env.sleep(n * 4 * MS).await;
            order.borrow_mut().push(n);
        });
    }
    reactor.run(async {
        host.sleep(MS).await;
        let before = host.now();
        std::thread::sleep(2 * MS);
        assert_eq!(host.now(), before);
        yield_now().await;
        assert!(host.now().since(before) >= 2 * MS);
        while order.borrow().len() < 3 {
            host.sleep(MS).await;
        }
    });
    assert_eq!(*order.borrow(), [1, 2, 3]);
}

#[test]
fn spinning_changes_nothing_but_the_waiting() {
    let reactor = Reactor::new(Options { spin: 50 * MS, ..Options::default() }).unwrap();
    let host = reactor.env();
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let event = host.event(fd.try_clone().unwrap());
    let remote = reactor.remote();
    let other = std::thread::spawn(move || {
        rustix::io::write(&fd, &5u64.to_ne_bytes()).unwrap();
        remote.send(|_| {}).unwrap();
    });
    reactor.run(async {
        host.sleep(MS).await;
        assert_eq!(event.wait().await.unwrap(), 5);
    });
    other.join().unwrap();
}

#[test]
fn other_threads_call_in_order_and_learn_of_the_end() {
    let reactor = reactor();
    let remote = reactor.remote();
    let done = Arc::new(AtomicBool::new(false));
    let other = {
        let (remote, done) = (remote.clone(), Arc::clone(&done));
        std::thread::spawn(move || {
            for _ in 0..1000 {
                remote.send(|host| host.spawn(Box::pin(async {}))).unwrap();
            }
            remote.send(move |_| done.store(true, Ordering::SeqCst)).unwrap();
        })
    };
    let host = reactor.env();
    reactor.run(async {
        while !done.load(Ordering::SeqCst) {
            host.sleep(MS).await;
        }
    });
    other.join().unwrap();
    drop(host);
    drop(reactor);
    assert_eq!(remote.send(|_| {}), Err(Gone));
}

#[test]
fn a_sleeping_reactor_is_woken_by_another_thread() {
    let reactor = reactor();
    let remote = reactor.remote();
    let (send, receive) = futures_channel::oneshot::channel();
    let other = std::thread::spawn(move || {
        // Long enough for the reactor to be asleep; if it is not, the test proves less, but is right.
        std::thread::sleep(20 * MS);
        remote.send(move |_| send.send(7).unwrap()).unwrap();
    });
    assert_eq!(reactor.run(receive), Ok(7));
    other.join().unwrap();
}

#[test]
fn eventfds_count_with_and_without_blocking() {
    let reactor = reactor();
    let host = reactor.env();
    for flags in [EventfdFlags::CLOEXEC, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK] {
        let fd = eventfd(0, flags).unwrap();
        let event = host.event(fd.try_clone().unwrap());
        reactor.run(async {
            for n in 1..=3u64 {
                let other = fd.try_clone().unwrap();
                let env = Rc::clone(&host);
                host.task(async move {
                    env.sleep(MS).await;
                    rustix::io::write(&other, &n.to_ne_bytes()).unwrap();
                });
                assert_eq!(event.wait().await.unwrap(), n);
            }
        });
    }
}

#[test]
fn what_is_no_eventfd_is_an_error() {
    let reactor = reactor();
    let event = reactor.env().event(std::fs::File::open("/dev/null").unwrap().into());
    assert!(reactor.run(event.wait()).is_err());
}

#[test]
fn a_reactor_drops_its_tasks_and_what_the_kernel_had() {
    let kept = Rc::new(());
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    {
        let reactor = reactor();
        let host = reactor.env();
        for _ in 0..100 {
            let (kept, event) = (Rc::clone(&kept), host.event(fd.try_clone().unwrap()));
            host.task(async move {
                let _kept = kept;
                event.wait().await.unwrap();
                pending::<()>().await;
            });
        }
        reactor.run(async { host.sleep(MS).await });
        assert_eq!(Rc::strong_count(&kept), 101);
    }
    assert_eq!(Rc::strong_count(&kept), 1);
    // No read of the ring is left that would take this.
    rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
    let mut counter = [0; 8];
    rustix::io::read(&fd, &mut counter).unwrap();
    assert_eq!(u64::from_ne_bytes(counter), 1);
}

#[test]
fn a_host_that_outlives_its_reactor_runs_nothing() {
    let first = reactor();
    let host = first.env();
    drop(first);
    let kept = Rc::new(());
    let inside = Rc::clone(&kept);
    host.task(async move { drop(inside) });
    assert_eq!(Rc::strong_count(&kept), 1);
    // The thread is free for another one.
    drop(reactor());
}

#[test]
fn one_reactor_a_thread() {
    let _first = reactor();
    let second = Reactor::new(Options::default());
    assert_eq!(second.err().unwrap().kind(), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn more_operations_than_the_queues_have_places() {
    let reactor = Reactor::new(Options { entries: 4, ..Options::default() }).unwrap();
    let host = reactor.env();
    let done = Rc::new(Cell::new(0));
    let fds: Vec<_> = (0..200).map(|_| eventfd(0, EventfdFlags::CLOEXEC).unwrap()).collect();
    for fd in &fds {
        let (event, done) = (host.event(fd.try_clone().unwrap()), Rc::clone(&done));
        host.task(async move {
            for _ in 0..5 {
                assert_eq!(event.wait().await.unwrap(), 1);
                done.set(done.get() + 1);
            }
        });
    }
    reactor.run(async {
        for round in 1..=5 {
            // All at once: far more completions than the completion queue has places, too.
            for fd in &fds {
                rustix::io::write(fd, &1u64.to_ne_bytes()).unwrap();
            }
            while done.get() < round * fds.len() {
                host.sleep(MS).await;
            }
        }
    });
}
