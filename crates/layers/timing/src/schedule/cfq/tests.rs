//! `cfq` with clients that ask again after their answers.

use super::*;
use crate::schedule::testing::{Client, MS, Sent, closed_loop, read, sent, write};

fn cfq(change: impl FnOnce(&mut Parameters)) -> Cfq {
    let mut keys = Keys::default();
    change(&mut keys.cfq);
    Cfq::new(&keys)
}

/// A client that reads one block after the other.
fn sequential(lbn: u64, think_ms: u64) -> Client {
    Client { op: Op::Read, think_ms, lbn, stride: 8 }
}

/// A client whose requests are far apart.
fn seeking(lbn: u64, think_ms: u64) -> Client {
    Client { op: Op::Read, think_ms, lbn, stride: 1_000_000 }
}

/// How often the drive went from one client to another.
fn changes(all: &[Sent]) -> usize {
    all.windows(2).filter(|pair| pair[0].client != pair[1].client).count()
}

fn share(all: &[Sent], client: usize) -> f64 {
    all.iter().filter(|sent| sent.client == client).count() as f64 / all.len() as f64
}

#[test]
fn a_client_that_comes_back_soon_has_the_drive_for_its_slice() {
    let clients = [sequential(0, 2), sequential(100_000_000, 2)];
    let waited_for = closed_loop(&mut cfq(|_| {}), &clients, 3, 2000);
    assert!((10..=22).contains(&changes(&waited_for)), "{}", changes(&waited_for));
    assert!((0.4..0.6).contains(&share(&waited_for, 0)));
    let not = closed_loop(&mut cfq(|p| p.slice_idle.0 = Duration::ZERO), &clients, 3, 2000);
    assert!(changes(&not) > 200, "without idling they take turns: {}", changes(&not));
}

#[test]
fn a_client_that_thinks_for_long_is_not_waited_for() {
    let clients = [sequential(0, 30), sequential(100_000_000, 30)];
    let mut policy = cfq(|_| {});
    let all = closed_loop(&mut policy, &clients, 3, 5000);
    assert!(policy.info()["idled"].as_u64().unwrap() < 10, "{}", policy.info());
    assert!(all[20..].iter().all(|sent| sent.waited_ms <= 3), "the drive is idle most of the time");
}

#[test]
fn a_client_that_seeks_is_waited_for_only_shortly() {
    for (stride, idle_ms) in [(8, 8), (1_000_000, 2)] {
        let mut policy = cfq(|_| {});
        let mut last = Choice::Idle;
        for id in 1..=10 {
            let (now, of) = (Time(id * 2 * MS), |id| Queued { client: 1, ..read(id, id * stride) });
            policy.arrived(Queued { arrived: now, ..of(id) });
            assert_eq!(policy.choose(now), Choice::Send(id));
            if id == 10 {
                // Far from what the first client does.
                policy.arrived(Queued { client: 2, arrived: now, ..read(11, 1 << 40) });
            }
            let end = now.after(Duration::from_millis(1));
            policy.completed(end, now, &of(id));
            last = policy.choose(end);
        }
        assert_eq!(last, Choice::Wait(Time((21 + idle_ms) * MS)), "stride {stride}");
    }
}

#[test]
fn when_the_client_does_not_come_the_next_one_is_served() {
    let mut policy = cfq(|_| {});
    policy.arrived(Queued { client: 1, ..read(1, 0) });
    assert_eq!(sent(policy.choose(Time(0))), 1);
    policy.arrived(Queued { client: 2, arrived: Time(MS), ..read(2, 1 << 30) });
    policy.completed(Time(3 * MS), Time(0), &Queued { client: 1, ..read(1, 0) });
    assert_eq!(policy.choose(Time(3 * MS)), Choice::Wait(Time(11 * MS)));
    assert_eq!(policy.choose(Time(10 * MS)), Choice::Wait(Time(11 * MS)));
    assert_eq!(policy.choose(Time(11 * MS)), Choice::Send(2));
}

/// `CIC_SEEK_THR` counts as long as the client's own distances are not known.
#[test]
fn what_is_near_goes_before_the_wait_for_a_client_of_which_little_is_known() {
    for (lbn, expected) in [(8200, Choice::Send(2)), (8201, Choice::Wait(Time(11 * MS)))] {
        let mut policy = cfq(|_| {});
        policy.arrived(Queued { client: 1, ..read(1, 0) });
        assert_eq!(sent(policy.choose(Time(0))), 1);
        policy.arrived(Queued { client: 2, arrived: Time(MS), ..read(2, lbn) });
        policy.completed(Time(3 * MS), Time(0), &Queued { client: 1, ..read(1, 0) });
        assert_eq!(policy.choose(Time(3 * MS)), expected, "{lbn}");
    }
}

#[test]
fn a_client_that_left_its_slice_early_comes_later() {
    let mut policy = cfq(|_| {});
    let of = |client, id, lbn, ms| Queued { client, arrived: Time(ms * MS), ..read(id, lbn) };
    policy.arrived(of(1, 1, 0, 0));
    assert_eq!(sent(policy.choose(Time(0))), 1);
    policy.completed(Time(3 * MS), Time(0), &of(1, 1, 0, 0));
    // Near the first client's, which is waited for: it loses 99 of 100 ms.
    policy.arrived(of(2, 2, 16, 4));
    assert_eq!(sent(policy.choose(Time(4 * MS))), 2);
    policy.arrived(of(1, 3, 1 << 30, 5));
    policy.arrived(of(3, 4, 1 << 31, 6));
    let turn = |client: u32| policy.queues.get((client, true)).expect("a queue").turn;
    assert_eq!((turn(1), turn(3)), (104 * MS as i64, 86 * MS as i64));
}

#[test]
fn a_request_of_the_client_ends_the_wait() {
    let mut policy = cfq(|_| {});
    policy.arrived(Queued { client: 1, ..read(1, 0) });
    assert_eq!(sent(policy.choose(Time(0))), 1);
    policy.arrived(Queued { client: 2, arrived: Time(MS), ..read(2, 1 << 30) });
    policy.completed(Time(3 * MS), Time(0), &Queued { client: 1, ..read(1, 0) });
    assert_eq!(policy.choose(Time(3 * MS)), Choice::Wait(Time(11 * MS)));
    policy.arrived(Queued { client: 1, arrived: Time(5 * MS), ..read(3, 8) });
    assert_eq!(policy.choose(Time(5 * MS)), Choice::Send(3));
}

#[test]
fn another_client_close_by_is_served_rather_than_waited() {
    // Both read the same region in turn, so that each is as near as the other's own next request.
    let clients = [
        Client { op: Op::Read, think_ms: 3, lbn: 0, stride: 16 },
        Client { op: Op::Read, think_ms: 3, lbn: 8, stride: 16 },
    ];
    let mut policy = cfq(|_| {});
    let all = closed_loop(&mut policy, &clients, 1, 1000);
    assert!(all.len() > 350, "both work without waits: {}", all.len());
}

#[test]
fn reads_go_before_writes_and_writes_are_not_starved() {
    let writer = Client { op: Op::Write, ..seeking(5_000_000, 0) };
    let clients = [seeking(0, 0), seeking(300, 0), seeking(600, 0), writer];
    let all = closed_loop(&mut cfq(|_| {}), &clients, 5, 20_000);
    let writes = share(&all, 3);
    assert!((0.005..0.25).contains(&writes), "{writes}");
    assert!(all.iter().all(|sent| sent.waited_ms < 2000), "{:?}", all.iter().map(|s| s.waited_ms).max());
}

#[test]
fn clients_get_equal_shares_of_time() {
    let clients: Vec<Client> = (0..10).map(|n| sequential(n * 10_000_000, n % 4)).collect();
    let all = closed_loop(&mut cfq(|_| {}), &clients, 4, 60_000);
    let time = |client: usize| {
        all.iter().filter(|sent| sent.client == client).count() as u64 * (4 + clients[client].think_ms)
    };
    let times: Vec<u64> = (0..10).map(time).collect();
    let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
    assert!(*most < least * 3 / 2, "{times:?}");
    assert!(all.iter().all(|sent| sent.waited_ms < 3000));
}

#[test]
fn a_queue_has_no_more_than_its_quantum_in_the_drive() {
    let mut policy = cfq(|_| {});
    (1..=20).for_each(|id| policy.arrived(Queued { client: 1, ..read(id, 8 * id) }));
    policy.arrived(Queued { client: 2, ..read(21, 1 << 30) });
    assert_eq!([0; 4].map(|at| sent(policy.choose(Time(at)))), [1, 2, 3, 4]);
    assert_eq!(policy.choose(Time(0)), Choice::Wait(NEVER));
    policy.completed(Time(MS), Time(0), &Queued { client: 1, ..read(1, 8) });
    assert_eq!(sent(policy.choose(Time(MS))), 5);
}

#[test]
fn writes_wait_until_the_drive_has_no_reads() {
    let mut policy = cfq(|p| p.slice_idle.0 = Duration::ZERO);
    policy.arrived(read(1, 0));
    policy.arrived(write(2, 8));
    assert_eq!(sent(policy.choose(Time(0))), 1);
    assert_eq!(policy.choose(Time(0)), Choice::Wait(NEVER));
    policy.completed(Time(MS), Time(0), &read(1, 0));
    assert_eq!(sent(policy.choose(Time(MS))), 2);
}

#[test]
fn what_waits_can_be_given_to_another_policy() {
    let mut policy = cfq(|_| {});
    (1..=6).for_each(|id| policy.arrived(Queued { client: id as u32 % 3, ..read(id, 100 - id) }));
    let first = sent(policy.choose(Time(0)));
    let left: Vec<u64> = policy.drain().iter().map(|queued| queued.id).collect();
    assert_eq!(left, (1..=6).filter(|id| *id != first).collect::<Vec<_>>());
    assert_eq!(policy.choose(Time(0)), Choice::Idle);
}
