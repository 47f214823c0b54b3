//! What every vault promises, with one in etcd: two writers race, a paused one returns, an answer is lost, a record is
//! torn, the disk is full; and members that are hostile.

mod common;

use common::etcd::{FalseEtcd, Way};
use common::{Done, VOLUME, changes, first, never, next, simulate};
use lamina_block::{Env, ErrorKind};
use lamina_cluster::vault::{Beat, Outcome, Record, settle};
use lamina_sim::{SimEnv, Simulation};
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

const KEY: &str = "lamina/record/00000000-0000-0000-0000-000000000011";

/// Five hosts change one record while requests and answers get lost, or members come and go: how many changes there
/// were.
async fn race(env: Rc<SimEnv>, one_in: u32, dies: bool, compares: bool) -> std::result::Result<u64, String> {
    let (etcd, done) = (FalseEtcd::start(&env), Done::default());
    etcd.one_in.set(one_in);
    etcd.compares.set(compares);
    let hosts = ["a", "b", "c", "d", "e"].map(|host| {
        let vault = etcd.vault();
        env.start(changes(Rc::clone(&env), vault, host.into(), Rc::clone(&done)))
    });
    for member in (0..30).map(|n| n % 3).filter(|_| dies) {
        env.sleep(Duration::from_millis(30)).await;
        etcd.behaves(member, Way::Never);
        env.net().cut(&lamina_block::Address::Tcp(format!("etcd-{member}:2379")));
        env.sleep(Duration::from_millis(30)).await;
        etcd.behaves(member, Way::Right);
    }
    for host in hosts {
        host.ended().await?;
    }
    etcd.one_in.set(0);
    env.sleep(Duration::from_secs(4)).await;
    let newest = etcd.vault().read(VOLUME).await.expect("read").expect("a record");
    for (version, record) in done.borrow().iter() {
        if etcd.record(*version).as_ref() != Some(record) {
            return Err(format!("version {version} is not what its writer was told"));
        }
    }
    let last = done.borrow().keys().last().copied().unwrap_or(0);
    match newest.version >= last {
        true => Ok(newest.version),
        false => Err(format!("version {last} was answered, and the newest one is {}", newest.version)),
    }
}

#[test]
fn of_several_that_change_a_record_at_once_one_does() {
    for seed in 0..200 {
        let world = Simulation::new(seed);
        let env = world.env();
        let (one_in, dies) = ([0, 3, 10][seed as usize % 3], seed % 2 == 1);
        let versions = world.run(race(env, one_in, dies, true)).expect("it ends");
        let versions = versions.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(versions >= 10, "seed {seed}: {versions}");
    }
}

/// A canary: without the comparison the race is lost.
#[test]
fn an_etcd_that_does_not_compare_is_caught() {
    let caught = |seed| {
        let world = Simulation::new(seed);
        let race = race(world.env(), 0, false, false);
        world.run(race).expect("it ends").is_err_and(|e| e.contains("both made") || e.contains("was told"))
    };
    assert!((0..20).any(caught));
}

#[test]
fn a_paused_host_finds_its_change_lost() {
    simulate(1, |env| async move {
        let etcd = FalseEtcd::start(&env);
        let vault = etcd.vault();
        let one = first(&env, "a");
        assert_eq!(vault.append(&one).await, Ok(Outcome::Done));
        let stale = next(&env, "paused", Some(one.clone()));
        let two = next(&env, "b", Some(one));
        assert_eq!(vault.append(&two).await, Ok(Outcome::Done));
        assert_eq!(vault.append(&stale).await, Ok(Outcome::Lost(Box::new(two.clone()))));
        let three = next(&env, "b", Some(two.clone()));
        assert_eq!(vault.append(&three).await, Ok(Outcome::Done));
        assert_eq!(vault.append(&stale).await, Ok(Outcome::Lost(Box::new(three.clone()))));
        // Done once more, as when the answer was lost.
        assert_eq!(vault.append(&three).await, Ok(Outcome::Done));
        assert_eq!(vault.volumes().await, Ok(vec![VOLUME]));
    });
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again() {
    for seed in 0..50 {
        simulate(seed, |env| async move {
            let etcd = FalseEtcd::start(&env);
            let vault = etcd.vault();
            let one = first(&env, "a");
            etcd.one_in.set(2);
            assert_eq!(settle(&*vault, &*env, &one, never).await, Ok(Outcome::Done));
            let two = next(&env, "a", Some(one));
            let _ = settle(&*vault, &*env, &two, |_| true).await;
            etcd.one_in.set(0);
            assert_eq!(vault.append(&two).await, Ok(Outcome::Done), "nobody else has changed it");
        });
    }
}

#[test]
fn a_torn_record_is_an_error_that_names_its_key() {
    simulate(2, |env| async move {
        let etcd = FalseEtcd::start(&env);
        let vault = etcd.vault();
        let one = first(&env, "a");
        vault.append(&one).await.expect("appended");
        let two = next(&env, "a", Some(one));
        let (bytes, long) = (two.encode(), vec![b' '; 20_000]);
        for torn in [&bytes[..0], &bytes[..60], &bytes[..bytes.len() - 1], &long] {
            etcd.put(KEY, torn);
            let found = [vault.read(VOLUME).await.map(drop), vault.append(&two).await.map(drop)];
            for e in found.map(|found| found.expect_err("torn")) {
                assert!(e.kind() == ErrorKind::Corrupt && e.message().contains(KEY), "{e}");
            }
        }
        etcd.put(KEY, &Record { volume: Uuid::from_u128(1), ..two.clone() }.encode());
        assert!(vault.read(VOLUME).await.is_err_and(|e| e.message().contains("another volume")));
        // An operator has put back what a backup had.
        etcd.put(KEY, &bytes);
        assert_eq!(vault.read(VOLUME).await, Ok(Some(two.clone())));
        assert_eq!(vault.append(&next(&env, "b", Some(two))).await, Ok(Outcome::Done));
    });
}

#[test]
fn a_full_database_leaves_the_record_as_it_is_and_says_what_to_do() {
    simulate(3, |env| async move {
        let etcd = FalseEtcd::start(&env);
        let vault = etcd.vault();
        let one = first(&env, "a");
        vault.append(&one).await.expect("appended");
        let full = r#"{"error":"etcdserver: mvcc: database space exceeded","code":8}"#;
        etcd.behaves(0, Way::Status(429, full.into()));
        let e = vault.beat("a", beat(1)).await.expect_err("full");
        assert!(e.kind() == ErrorKind::NoSpace && e.message().contains("`etcdctl alarm disarm`"), "{e}");
        etcd.behaves(0, Way::Right);
        assert_eq!(vault.read(VOLUME).await, Ok(Some(one)));
    });
}

#[test]
fn a_record_that_is_gone_is_no_new_volume() {
    simulate(4, |env| async move {
        let etcd = FalseEtcd::start(&env);
        let vault = etcd.vault();
        assert_eq!(vault.read(VOLUME).await, Ok(None));
        let e = vault
            .append(&next(&env, "a", Some(first(&env, "a"))))
            .await
            .expect_err("there is none before it");
        assert!(e.message().contains("is gone"), "{e}");
        assert_eq!(etcd.record(2), None);
    });
}

fn beat(counter: u64) -> Beat {
    Beat {
        process: Uuid::from_u128(7),
        counter,
        lease: 2000,
        address: None,
        domain: Some("rack 1".into()),
        room: Some(1 << 40),
    }
}

#[test]
fn beats_are_heard_and_hosts_listed() {
    simulate(5, |env| async move {
        let etcd = FalseEtcd::start(&env);
        let vault = etcd.vault();
        assert_eq!((vault.heard("a").await, vault.beating().await), (Ok(None), Ok(vec![])));
        for counter in 1..3 {
            vault.beat("a", beat(counter)).await.expect("beaten");
        }
        vault.beat("b.example", beat(9)).await.expect("beaten");
        assert_eq!(vault.heard("a").await, Ok(Some(beat(2))));
        assert_eq!(vault.beating().await, Ok(vec!["a".to_owned(), "b.example".to_owned()]));
        // What others have put there is no beat.
        etcd.put("lamina/beat/a", b"{}");
        etcd.put("lamina0", b"");
        assert_eq!(vault.heard("a").await, Ok(None));
        assert_eq!(vault.volumes().await, Ok(vec![]));
    });
}

#[test]
fn one_member_that_lives_is_enough_for_a_client() {
    simulate(6, |env| async move {
        let etcd = FalseEtcd::start(&env);
        let vault = etcd.vault();
        etcd.behaves(0, Way::Never);
        etcd.behaves(1, Way::Status(503, r#"{"error":"etcdserver: no leader"}"#.into()));
        let began = env.now();
        assert_eq!(vault.append(&first(&env, "a")).await, Ok(Outcome::Done));
        assert!(env.now().since(began) < Duration::from_secs(2), "{:?}", env.now().since(began));
        // The one that has answered is asked first from now on, over the connection that there is.
        let began = env.now();
        vault.beat("a", beat(1)).await.expect("beaten");
        assert!(env.now().since(began) < Duration::from_millis(50), "{:?}", env.now().since(began));
        etcd.behaves(2, Way::Never);
        let e = vault.read(VOLUME).await.expect_err("none answers");
        for words in ["etcd-0:2379: it does not answer", "etcd-1:2379: etcdserver: no leader", "etcd-2:2379"]
        {
            assert!(e.message().contains(words), "{e}");
        }
        etcd.behaves(0, Way::Right);
        assert!(vault.read(VOLUME).await.is_ok());
    });
}

#[test]
fn what_is_no_etcd_is_an_error_in_bounded_memory_and_time() {
    let chunk = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec();
    let heads = [&b"HTTP/1.1 200 OK\r\n"[..], &b"x: y\r\n".repeat(100_000)].concat();
    let json = |body: &str| Way::Status(200, body.into());
    let ways = [
        Way::Never,
        Way::Endless,
        Way::Bytes(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec()),
        Way::Bytes(chunk),
        Way::Bytes(heads),
        Way::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()),
        Way::Status(404, "404 page not found".into()),
        Way::Status(403, r#"{"error":"etcdserver: permission denied","code":7}"#.into()),
        Way::Status(500, "\u{1b}[31m".repeat(1000)),
        Way::Status(500, format!(r#"{{"error": "{}"}}"#, "\\u001b[31m".repeat(1000))),
        json("no JSON"),
        json(r#"{"kvs": 7}"#),
        json(r#"{"kvs": [{"key": "/", "mod_revision": "1"}]}"#),
        json(&"[".repeat(100_000)),
    ];
    for (n, way) in ways.into_iter().enumerate() {
        simulate(n as u64, |env| async move {
            let etcd = FalseEtcd::start(&env);
            (0..3).for_each(|member| etcd.behaves(member, way.clone()));
            let (vault, began) = (etcd.vault(), env.now());
            let e = vault.read(VOLUME).await.expect_err("no answer");
            assert!(e.message().contains("etcd"), "{n}: {e}");
            assert!(
                e.message().len() < 2000 && !e.message().contains('\u{1b}'),
                "{n}: {} bytes",
                e.message().len()
            );
            assert!(env.now().since(began) < Duration::from_secs(20), "{n}: {:?}", env.now().since(began));
            (0..3).for_each(|member| etcd.behaves(member, Way::Right));
            assert_eq!(vault.append(&first(&env, "a")).await, Ok(Outcome::Done), "{n}");
        });
    }
}
