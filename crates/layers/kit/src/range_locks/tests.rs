use super::*;
use crate::testing::at_once;
use futures_util::future::{Either, select};
use lamina_block::Env;
use lamina_sim::{SimEnv, Simulation};
use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

type Locking = Pin<Box<dyn Future<Output = RangeLock>>>;

fn locking(locks: &Rc<RangeLocks>, at: Range<u64>) -> Locking {
    let locks = Rc::clone(locks);
    Box::pin(async move { locks.lock(&at).await })
}

/// The lock, if it can be had now.
fn poll(locking: &mut Locking) -> Option<RangeLock> {
    match locking.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(lock) => Some(lock),
        Poll::Pending => None,
    }
}

#[test]
fn what_does_not_overlap_is_held_together() {
    let locks = Rc::new(RangeLocks::default());
    let held: Vec<_> = [0..10, 10..11, 20..30].iter().map(|at| locks.try_lock(at).expect("free")).collect();
    for at in [0..1, 9..10, 5..25, 10..11, 29..40, 0..100] {
        assert!(locks.try_lock(&at).is_none() && locks.is_locked(&at), "{at:?}");
    }
    assert!(!locks.is_locked(&(11..20)) && !locks.is_locked(&(30..31)));
    assert_eq!(locks.in_use(), [0..10, 10..11, 20..30]);
    drop(held);
    assert!(locks.try_lock(&(0..100)).is_some());
    assert!(locks.in_use().is_empty());
}

#[test]
fn nobody_passes_who_came_before() {
    let locks = Rc::new(RangeLocks::default());
    let first = at_once(locks.lock(&(0..10)));
    let (mut wide, mut late, mut other) =
        (locking(&locks, 5..20), locking(&locks, 15..16), locking(&locks, 20..21));
    assert!(poll(&mut wide).is_none() && poll(&mut late).is_none());
    assert!(poll(&mut other).is_some(), "nobody wants that");
    assert!(locks.try_lock(&(15..16)).is_none(), "somebody waits for it");
    assert!(locks.is_in_use(&(15..16)) && !locks.is_locked(&(15..16)));
    drop(first);
    assert!(locks.is_locked(&(5..20)), "it is held before it is asked for");
    assert!(poll(&mut late).is_none());
    let wide = poll(&mut wide).expect("it was first");
    assert!(poll(&mut late).is_none());
    drop(wide);
    assert!(poll(&mut late).is_some());
}

#[test]
fn who_gives_up_is_not_waited_for() {
    let locks = Rc::new(RangeLocks::default());
    let first = at_once(locks.lock(&(0..10)));
    let (mut wide, mut late) = (locking(&locks, 5..20), locking(&locks, 15..16));
    assert!(poll(&mut wide).is_none() && poll(&mut late).is_none());
    drop(wide);
    let late = poll(&mut late).expect("nobody wants it any more");
    let mut wide = locking(&locks, 5..20);
    assert!(poll(&mut wide).is_none());
    drop((first, late));
    // It has its lock, and does not know.
    assert!(locks.is_locked(&(5..20)));
    drop(wide);
    assert!(locks.in_use().is_empty());
}

#[test]
fn what_is_widened_is_in_use_all_the_time() {
    let locks = Rc::new(RangeLocks::default());
    let (part, other) = (at_once(locks.lock(&(4..5))), at_once(locks.lock(&(7..8))));
    let of = Rc::clone(&locks);
    let mut wider: Locking = Box::pin(async move { of.widen(part, &(0..8)).await });
    assert!(poll(&mut wider).is_none());
    assert!(!locks.is_locked(&(4..5)) && locks.is_in_use(&(4..5)) && locks.is_in_use(&(0..1)));
    drop(other);
    assert!(poll(&mut wider).is_some_and(|_| locks.is_locked(&(0..8))));
}

/// The shared state of the tasks of a run.
#[derive(Default)]
struct Model {
    held: RefCell<Vec<(u64, Range<u64>)>>,
    waiting: RefCell<Vec<(u64, Range<u64>)>>,
    next: Cell<u64>,
    done: Cell<u64>,
}

async fn use_locks(env: Rc<SimEnv>, locks: Rc<RangeLocks>, model: Rc<Model>) {
    for _ in 0..20 {
        let start = env.random() % 32;
        let at = start..start + 1 + env.random() % 8;
        let number = model.next.replace(model.next.get() + 1);
        model.waiting.borrow_mut().push((number, at.clone()));
        let patience = env.sleep(Duration::from_micros(env.random() % 400));
        let got = match select(pin!(locks.lock(&at)), patience).await {
            Either::Left((lock, _)) => Some(lock),
            Either::Right(_) => None,
        };
        locks.state.borrow().check();
        model.waiting.borrow_mut().retain(|(known, _)| *known != number);
        let Some(lock) = got else { continue };
        let passed = model.waiting.borrow().iter().any(|(known, of)| *known < number && overlap(of, &at));
        assert!(!passed, "{at:?} came later");
        assert!(!model.held.borrow().iter().any(|(_, of)| overlap(of, &at)), "{at:?} is held twice");
        model.held.borrow_mut().push((number, at));
        env.sleep(Duration::from_micros(env.random() % 100)).await;
        model.held.borrow_mut().retain(|(known, _)| *known != number);
        drop(lock);
        locks.state.borrow().check();
        model.done.set(model.done.get() + 1);
    }
}

#[test]
fn many_who_come_and_give_up_get_what_they_wait_for_in_order() {
    for seed in 0..200 {
        let world = Simulation::new(seed);
        let (env, locks, model) = (world.env(), Rc::<RangeLocks>::default(), Rc::<Model>::default());
        let tasks: Vec<_> =
            (0..8).map(|_| env.start(use_locks(env.clone(), locks.clone(), model.clone()))).collect();
        let all = async move {
            for task in tasks {
                task.ended().await;
            }
        };
        world.run(all).unwrap_or_else(|hang| panic!("seed {seed}: {hang:?}"));
        assert!(model.done.get() > 60, "seed {seed}: {} locks were had", model.done.get());
        assert!(locks.in_use().is_empty(), "seed {seed}");
    }
}
