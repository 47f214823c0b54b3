//! The cost of a request: how many requests the devices get.

use super::*;

/// Reads and writes of all legs.
fn count(open: &Open) -> (u64, u64) {
    let sum = |kind| open.legs.iter().map(|leg| leg.stats().of(kind).completed.get()).sum();
    (sum(OpKind::Read), sum(OpKind::Write))
}

/// What `ios`, submitted together, cost.
async fn cost(open: &Open, ios: Vec<Io>) -> (u64, u64) {
    let before = count(open);
    all(ios.into_iter().map(|io| open.node.submit(io))).await.expect("done");
    let after = count(open);
    (after.0 - before.0, after.1 - before.1)
}

fn write(at: u64, len: u64) -> Io {
    Io::write(at, Buf::from_vec(pattern(len as usize)), Durability::Cached)
}

/// Makes one, with the intent of its beginning marked.
async fn made(env: &Rc<SimEnv>, over: &[&str], parity: usize) -> Open {
    let keys = json!({ "unit": "4KiB", "region": "128KiB", "parity": parity });
    let open = open(env, over, keys, Begin::Format).await.expect("made");
    let all = open.node.geometry().size;
    open.node.submit(write(0, all)).await.expect("written");
    open
}

#[test]
fn a_small_write_is_two_reads_and_two_writes() {
    simulate(|env| async move {
        let open = made(&env, &["a", "b", "c", "d", "e"], 1).await;
        let stripe = 4 * UNIT;
        for at in [0, 512, UNIT, stripe + 3 * UNIT, 5 * stripe + 1024] {
            assert_eq!(cost(&open, vec![write(at, 512)]).await, (2, 2), "at {at}");
        }
        assert_eq!(cost(&open, vec![write(0, UNIT)]).await, (2, 2));
        // Half of the stripe and more: the rest is read.
        assert_eq!(cost(&open, vec![write(0, 2 * UNIT)]).await, (2, 3));
        assert_eq!(cost(&open, vec![write(0, 3 * UNIT)]).await, (1, 4));
        // Rows apart are changed apart.
        assert_eq!(cost(&open, vec![write(UNIT - 512, 1024)]).await, (4, 4));
    });
}

#[test]
fn a_small_write_with_two_parities_is_three_and_three() {
    simulate(|env| async move {
        let open = made(&env, &["a", "b", "c", "d", "e"], 2).await;
        assert_eq!(cost(&open, vec![write(512, 512)]).await, (2, 3), "of three, the other two are read");
        let open = made(&env, &["a", "b", "c", "d"], 2).await;
        assert_eq!(cost(&open, vec![write(512, 512)]).await, (1, 3), "of two, the other one is read");
    });
}

#[test]
fn whole_stripes_read_nothing() {
    simulate(|env| async move {
        let open = made(&env, &["a", "b", "c", "d"], 1).await;
        let stripe = 3 * UNIT;
        assert_eq!(cost(&open, vec![write(0, stripe)]).await, (0, 4));
        // Each device gets one request, however many stripes there are.
        assert_eq!(cost(&open, vec![write(stripe, 5 * stripe)]).await, (0, 4));
        let zero = Io::zero(0..4 * stripe, Zero::default());
        assert_eq!(cost(&open, vec![zero]).await.0, 0);
        assert_eq!(bytes_of(&open.node, 0..4 * stripe).await, vec![0; 4 * stripe as usize]);
    });
}

#[test]
fn writes_that_wait_together_are_done_as_one() {
    simulate(|env| async move {
        let open = made(&env, &["a", "b", "c", "d", "e"], 1).await;
        let small = |at: u64| write(at, 1024);
        // Sixteen small writes are one whole stripe.
        assert_eq!(cost(&open, (0..16).map(|n| small(n * 1024)).collect()).await, (0, 5));
        assert_eq!(bytes_of(&open.node, 1024..2048).await, pattern(1024));
    });
}

#[test]
fn reads_go_to_one_device_for_each_unit() {
    simulate(|env| async move {
        let open = made(&env, &["a", "b", "c", "d"], 1).await;
        let read = |at, len| Io::read(at, Buf::zeroed(len));
        assert_eq!(cost(&open, vec![read(512, 1024)]).await, (1, 0));
        assert_eq!(cost(&open, vec![read(0, 3 * UNIT as usize)]).await, (3, 0));
        // Units that lie side by side are read at once.
        let (reads, writes) = cost(&open, vec![read(0, 12 * UNIT as usize)]).await;
        assert!(reads <= 8 && writes == 0, "{reads} reads");
    });
}
