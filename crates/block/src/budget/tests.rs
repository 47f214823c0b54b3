use super::*;

const MIB: usize = 1 << 20;

/// An account under `parent`, and its taker.
fn part(parent: &Rc<Budget>) -> (Rc<Budget>, Taker) {
    let budget = parent.part(4 * MIB, usize::MAX).expect("there is space");
    let taker = budget.taker();
    (budget, taker)
}

#[test]
fn everybody_has_a_reserve_or_is_not_let_in() {
    let export = Budget::new(24 * MIB);
    let all: Vec<_> = (0..3).map(|_| part(&export).1).collect();
    let Err(e) = export.part(4 * MIB, usize::MAX) else { panic!("there is space") };
    assert!(e.message().contains("(24MiB) is taken by others"), "{e}");
    for one in &all {
        assert!(one.take(4 * MIB, 0), "it does not wait");
    }
    drop(all);
    assert_eq!((export.reserved.get(), export.extra.get(), export.queue.borrow().len()), (0, 0, 0));
}

#[test]
fn what_is_shared_is_taken_by_turns() {
    let export = Budget::new(24 * MIB);
    let [a, b, c] = [(); 3].map(|()| part(&export).1);
    assert!(a.take(14 * MIB, 0) && !b.take(8 * MIB, 0) && !c.take(5 * MIB, 0));
    a.give(8 * MIB);
    // The request would fit, but another one is first; and a request that fits into a reserve does not wait.
    assert!(!c.take(5 * MIB, 0) && c.take(4 * MIB, 0));
    assert!(b.take(8 * MIB, 0) && c.take(MIB, 0));
    // A taker that leaves does not keep others from their turn.
    assert!(!a.take(12 * MIB, 0) && !c.take(12 * MIB, 0));
    drop(a);
    assert!(c.take(MIB, 0));
}

#[test]
fn a_request_larger_than_all_that_is_shared_gets_it_alone() {
    let export = Budget::new(24 * MIB);
    let [a, b] = [(); 2].map(|()| part(&export).1);
    assert!(a.take(100 * MIB, 0) && !b.take(5 * MIB, 0) && b.take(4 * MIB, 0));
    a.give(100 * MIB);
    assert!(b.take(MIB, 0));
}

/// Memory of one export does not keep requests of another from their turn.
#[test]
fn an_export_takes_its_own_share_and_of_the_total_what_is_left() {
    let total = Budget::new(40 * MIB);
    let exports = [(); 2].map(|()| total.child(4 * MIB, 24 * MIB));
    let [evil, other] = [(); 2].map(|()| part(&exports[0]).1);
    let good = part(&exports[1]).1;
    assert!(evil.take(16 * MIB, 0), "12 MiB beyond its reserve: all that its export shares");
    assert!(!other.take(5 * MIB, 0), "nothing is left of its export's");
    assert!(!good.take(14 * MIB, 0), "nothing is left of the total's");
    evil.give(4 * MIB);
    assert!(!other.take(9 * MIB, 0) && good.take(12 * MIB, 0));
    evil.give(12 * MIB);
    assert!(other.take(9 * MIB, 0));
}

/// Every export has enough memory to begin, however many there are.
#[test]
fn a_total_grows_with_its_exports() {
    let total = Budget::new(16 * MIB);
    let exports: Vec<_> = (0..8).map(|_| total.child(4 * MIB, 24 * MIB)).collect();
    assert_eq!(total.max(), 64 * MIB);
    assert!(exports.iter().all(|export| export.part(4 * MIB, usize::MAX).is_ok()));
    let two = exports[0].part(4 * MIB, usize::MAX).and_then(|_| exports[0].part(8 * MIB, usize::MAX));
    assert!(two.is_err(), "nobody else has more than an export's own reserve");
}

#[test]
fn a_taker_has_its_own_bound() {
    let one = Budget::new(1 << 30).part(4 * MIB, 64 * MIB).expect("space").taker();
    assert!(one.take(32 * MIB, 0) && one.take(16 * MIB, 0));
    assert!(!one.take(16 * MIB, MIB) && one.take(16 * MIB, 0));
    one.give(64 * MIB);
    assert!(one.take(100 * MIB, 0), "a single request may need more");
}

/// Several takers of one account, as the queues of a guest: no taker passes one that waits.
#[test]
fn takers_of_one_account_have_their_turns() {
    let (budget, a) = part(&Budget::new(24 * MIB));
    let b = budget.taker();
    assert!(a.take(15 * MIB, 0) && !b.take(2 * MIB, 0) && !a.take(MIB, 0));
    a.give(2 * MIB);
    assert!(b.take(2 * MIB, 0) && a.take(MIB, 0));
    assert_eq!(budget.used(), 16 * MIB);
}
