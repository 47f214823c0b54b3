//! The rules of `cats`, one by one, and what must hold under load.

use super::super::testing::{MS, order, point, read, sent, write};
use super::*;
use lamina_drive::Request;

/// A policy with a cache of 4 segments of 100 sectors and a prefetch of 10, on the paper's drive.
fn cats(change: impl FnOnce(&mut Keys)) -> Cats {
    let mut keys = Keys::default();
    keys.cats.cache = Some(Cache { segments: 4, segment_sectors: 100, prefetch_sectors: 10 });
    change(&mut keys);
    Cats::new(&keys, Model::named("cheetah-15k4").as_ref())
}

/// Without a cache.
fn plain(change: impl FnOnce(&mut Keys)) -> Cats {
    let mut keys = Keys::default();
    change(&mut keys);
    Cats::new(&keys, None)
}

fn at(ms: u64, queued: Queued) -> Queued {
    Queued { arrived: Time(ms * MS), ..queued }
}

#[test]
fn the_papers_example() {
    let mut policy = plain(|_| {});
    assert_eq!(order(&mut policy, [point(1, 100)]), [1], "the arm is at 100");
    assert_eq!(order(&mut policy, [point(2, 20), point(3, 82), point(4, 120), point(5, 200)]), [4, 3, 2, 5]);
}

#[test]
fn a_sequence_is_kept_until_a_read_comes() {
    let mut policy = plain(|_| {});
    order(&mut policy, [point(1, 100)]);
    [point(2, 20), point(3, 82), point(4, 120), point(5, 200)].into_iter().for_each(|q| policy.arrived(q));
    assert_eq!(sent(policy.choose(Time(0))), 4);
    policy.arrived(write(6, 115));
    assert_eq!((sent(policy.choose(Time(0))), policy.tables), (3, 2));
    policy.arrived(point(7, 83));
    assert_eq!((order(&mut policy, []), policy.tables), (vec![7, 2, 5, 6], 3));
}

#[test]
fn of_too_many_reads_the_oldest_are_in_the_table() {
    let mut policy = plain(|keys| keys.cats.table = NonZeroU32::MIN.saturating_add(1));
    // The third and fourth are near, and wait until the first two have gone.
    let all = [point(1, 5000), point(2, 4000), point(3, 10), point(4, 20)];
    assert_eq!(order(&mut policy, all), [2, 1, 4, 3]);
}

#[test]
fn predicted_hits_go_first_and_do_not_move_the_arm() {
    let mut policy = cats(|_| {});
    assert_eq!(order(&mut policy, [read(1, 1000)]), [1]);
    // In the prefetch of the first; 1011 reaches beyond it.
    let all = [read(2, 1010), read(3, 1012), read(4, 1008), read(5, 900)];
    // Each hit is a segment of its own, with its prefetch: then 1012 is a hit, too.
    assert_eq!(order(&mut policy, all), [2, 3, 4, 5]);
    assert_eq!(policy.head.sector, 908);
    let mut policy = cats(|_| {});
    order(&mut policy, [read(1, 1000)]);
    order(&mut policy, [read(2, 1010)]);
    assert_eq!(policy.head.sector, 1008, "of the request that moved it");
    assert_eq!(order(&mut policy, [write(3, 1000), read(4, 5000)]), [4, 3], "a write is never a hit");
}

#[test]
fn reads_go_before_writes_until_writes_have_waited() {
    let batch = |keys: &mut Keys| keys.cats.write_batch = NonZeroU32::MIN.saturating_add(1);
    let mut policy = plain(batch);
    (1..=5).for_each(|id| policy.arrived(read(id, 100 * id)));
    (6..=9).for_each(|id| policy.arrived(write(id, 50 + 100 * (id - 5))));
    assert_eq!(order(&mut policy, []), [1, 2, 3, 4, 5, 6, 7, 8, 9][..]);
    let mut policy = plain(batch);
    (1..=5).for_each(|id| policy.arrived(at(590, read(id, 100 * id))));
    (6..=9).for_each(|id| policy.arrived(write(id, 50 + 100 * (id - 5))));
    let order: Vec<u64> = (0..9).map(|_| sent(policy.choose(Time(600 * MS)))).collect();
    assert_eq!(
        order,
        [1, 2, 7, 8, 3, 4, 9, 6, 5],
        "two of each in turn, writes upwards from where the arm is"
    );
}

#[test]
fn reads_go_upwards_while_the_oldest_has_waited_too_long() {
    let all =
        || [at(0, point(2, 990)), at(50, point(3, 1500)), at(50, point(4, 1200)), at(50, point(5, 100))];
    for (now, expected) in [(90, [2, 4, 3, 5]), (101, [4, 3, 5, 2])] {
        let mut policy = plain(|_| {});
        order(&mut policy, [point(1, 1000)]);
        all().into_iter().for_each(|q| policy.arrived(q));
        let order: Vec<u64> = (0..4).map(|_| sent(policy.choose(Time(now * MS)))).collect();
        assert_eq!(order, expected, "{now} ms");
    }
}

#[test]
fn beyond_the_age_limit_every_eighth_choice_is_the_oldest() {
    let mut policy = cats(|_| {});
    policy.arrived(write(1, 0));
    policy.arrived(read(2, 1_000_000));
    (3..=30).for_each(|id| policy.arrived(at(1900, read(id, 5000))));
    let order: Vec<u64> = (0..20).map(|_| sent(policy.choose(Time(2000 * MS)))).collect();
    assert_eq!(order[..9], [1, 3, 4, 5, 6, 7, 8, 9, 2], "{order:?}");
    assert!(order[9..].is_sorted(), "{order:?}");
}

#[test]
fn what_was_predicted_is_compared_with_what_was() {
    let mut policy = cats(|_| {});
    let ids = order(&mut policy, [read(1, 1000), read(2, 1002), read(3, 1004)]);
    assert_eq!(ids, [1, 2, 3]);
    // A miss, a hit of 0.25 ms behind it, and one that was none.
    for (id, lbn, ended_us) in [(1, 1000, 5000), (2, 1002, 5300), (3, 1004, 9000)] {
        policy.completed(Time(ended_us * 1000), Time(0), &read(id, lbn));
    }
    assert_eq!(policy.hits(), Some(Hits { predicted: 2, right: 1 }));
    assert_eq!(plain(|_| {}).hits(), None);
}

#[test]
fn parameters_are_live() {
    let mut policy = cats(|_| {});
    order(&mut policy, [read(1, 1000)]);
    let mut keys = Keys { cats: policy.parameters.clone(), ..Keys::default() };
    keys.cats.read_delay.0 = Duration::from_millis(10);
    policy.tune(&keys);
    assert!(policy.is_hit(&read(2, 1000)), "the same cache keeps what it has");
    keys.cats.cache = None;
    policy.tune(&keys);
    assert!(!policy.is_hit(&read(2, 1000)), "the model's, empty");
    policy.arrived(read(2, 990));
    policy.arrived(read(3, 2000));
    assert_eq!(sent(policy.choose(Time(11 * MS))), 3, "late after 10 ms");
    policy.arrived(write(4, 0));
    let left = policy.drain().iter().map(|q| q.id).collect::<Vec<_>>();
    assert_eq!((left, policy.choose(Time(11 * MS))), (vec![2, 4], Choice::Idle));
}

#[test]
fn keys_have_ranges() {
    for (json, says) in [
        (json!({"table": 0}), "nonzero"),
        (json!({"table": 2000}), "table 2000 is not in 1..=1024"),
        (json!({"read-delay": "soon"}), "soon"),
        (json!({"cache": {"segments": 3}}), "segment-sectors"),
    ] {
        let message = serde_json::from_value::<Parameters>(json.clone()).expect_err("wrong").to_string();
        assert!(message.contains(says), "{json}: {message}");
    }
}

/// A load of clients: one in ten requests are writes, and seven in eight go on from where the client's last one ended.
struct Load {
    random: Box<dyn FnMut() -> u64>,
    ends: Vec<u64>,
    last: u64,
}

impl Load {
    fn next(&mut self, now: Time, client: usize) -> Queued {
        let random = &mut self.random;
        let lbn = if random().is_multiple_of(8) { random() % 100_000_000 } else { self.ends[client] };
        let op = if random().is_multiple_of(10) { Op::Write } else { Op::Read };
        let request = Request { op, lbn, sectors: 1 + (random() % 64) as u32 };
        self.last += 1;
        self.ends[client] = request.end();
        Queued { id: self.last, client: client as u32, arrived: now, request }
    }
}

#[test]
fn every_request_is_sent_once_and_soon_and_no_hit_is_kept_waiting() {
    let mut waited = 0;
    for seed in 1..=8 {
        let clients = 3 * seed as usize;
        let mut policy = cats(|keys| keys.age_limit.0 = Duration::from_millis(300));
        let mut load =
            Load { random: Box::new(lamina_testing::xorshift(seed)), ends: vec![0; clients], last: 0 };
        let (mut wakes, mut waiting): (Vec<Option<u64>>, Vec<Queued>) = (vec![Some(0); clients], Vec::new());
        let (mut now, mut waits, mut longest) = (0, 0, Duration::ZERO);
        for _ in 0..4000 {
            for (client, wake) in wakes.iter_mut().enumerate() {
                if wake.take_if(|at| *at <= now).is_some() {
                    let queued = load.next(Time(now), client);
                    waiting.push(queued);
                    policy.arrived(queued);
                }
            }
            let next = wakes.iter().flatten().min().copied();
            let id = match policy.choose(Time(now)) {
                Choice::Send(id) => id,
                Choice::Wait(until) => {
                    waits += 1;
                    assert!(until > Time(now), "{until:?}");
                    assert!(!waiting.iter().any(|queued| policy.is_hit(queued)), "a hit is predicted");
                    now = next.map_or(until.0, |next| next.min(until.0));
                    continue;
                }
                Choice::Idle => {
                    assert!(waiting.is_empty());
                    now = next.expect("all think");
                    continue;
                }
            };
            let place =
                waiting.iter().position(|queued| queued.id == id).expect("it waits, and is sent once");
            let queued = waiting.swap_remove(place);
            longest = longest.max(Time(now).since(queued.arrived));
            let service = if policy.predicted.contains(&id) { MS / 4 } else { 5 * MS };
            policy.completed(Time(now + service), Time(now), &queued);
            now += service;
            wakes[queued.client as usize] = Some(now + MS / 5 + (load.random)() % MS);
        }
        // Each eighth choice is the oldest.
        assert!(longest <= Duration::from_millis(300 + 8 * 24 * 5), "seed {seed}: {longest:?}");
        waited += waits;
    }
    assert!(waited > 100, "{waited}");
}
