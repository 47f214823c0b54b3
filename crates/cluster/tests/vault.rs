//! What every vault promises, whatever keeps it: two writers race, a paused one returns, an answer is lost, a record is
//! torn, the disk is full.

mod common;

use common::{Done, VOLUME, changes, first, never, next, simulate};
use lamina_block::{Env, Error, ErrorKind, Folder, Pending, Records, ReservationKey, Result, SharedStore};
use lamina_cluster::vault::{Beat, FolderVault, Outcome, Record, StoreRecords, StoreVault, Vault, settle};
use lamina_sim::{SimEnv, SimFolder, Simulation};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use uuid::Uuid;

fn vault(env: &Rc<SimEnv>) -> (Rc<dyn Vault>, Rc<SimFolder>) {
    let folder = env.shared_folder("/vault");
    (Rc::new(FolderVault::new(Rc::clone(env) as _, Rc::clone(&folder) as _)), folder)
}

/// Five hosts change one record, and some calls fail before they are done, after, or are done later: how many changes
/// there were.
fn race(
    seed: u64,
    one_in: u32,
    make: impl Fn(&Rc<SimEnv>) -> Rc<dyn Vault> + 'static,
) -> std::result::Result<u64, String> {
    let world = Simulation::new(seed);
    let env = world.env();
    let run = async move {
        env.shared_folder("/vault").set_faults(one_in);
        let done = Done::default();
        let hosts = ["a", "b", "c", "d", "e"].map(|host| {
            let vault = make(&env);
            env.start(changes(Rc::clone(&env), vault, host.into(), Rc::clone(&done)))
        });
        for host in hosts {
            host.ended().await?;
        }
        let folder = env.shared_folder("/vault");
        folder.set_faults(0);
        env.sleep(Duration::from_secs(3)).await;
        let newest = make(&env).read(VOLUME).await.map_err(|e| e.to_string())?.expect("a record");
        for (version, record) in done.borrow().iter() {
            let bytes = folder.get(&format!("{VOLUME}.record.{version}")).ok_or("a record is gone")?;
            if Record::decode(&bytes).as_ref() != Ok(record) {
                return Err(format!("version {version} is not what its writer was told"));
            }
        }
        let last = done.borrow().keys().last().copied().unwrap_or(0);
        match newest.version >= last {
            true => Ok(newest.version),
            false => Err(format!("version {last} was answered, and the newest one is {}", newest.version)),
        }
    };
    world.run(run).expect("it ends")
}

#[test]
fn of_several_that_change_a_record_at_once_one_does() {
    for (seed, one_in) in (0..300).map(|seed| (seed, [0, 3, 10][seed as usize % 3])) {
        let versions = race(seed, one_in, |env| vault(env).0).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(versions >= 10, "seed {seed}: {versions}");
    }
}

/// The store that keeps the records, beside those who ask it: calls and answers get lost.
struct Near {
    env: Rc<SimEnv>,
    records: Rc<StoreRecords>,
    one_in: u32,
    /// What was preempted.
    preempted: RefCell<Vec<ReservationKey>>,
}

impl Near {
    fn new(env: &Rc<SimEnv>, one_in: u32) -> Rc<Near> {
        let records = StoreRecords::new(vault(env).0);
        Rc::new(Near { env: Rc::clone(env), records, one_in, preempted: RefCell::default() })
    }

    fn is_lost(&self) -> bool {
        self.one_in > 0 && self.env.random().is_multiple_of(self.one_in.into())
    }

    /// What it says to these bytes.
    async fn says(self: &Rc<Self>, question: &str) -> String {
        let answer = self.records.answer(question.into()).await.expect("answered");
        assert_eq!(answer.preempts, None);
        String::from_utf8(answer.bytes).expect("text")
    }
}

struct Asks(Rc<Near>);

impl SharedStore for Asks {
    fn place(&self) -> String {
        "nbd://store/disk".into()
    }

    fn ask(&self, question: Vec<u8>) -> Pending<Vec<u8>> {
        let near = Rc::clone(&self.0);
        Box::pin(async move {
            let pause = near.env.random() % 5_000_000;
            near.env.sleep(Duration::from_nanos(pause)).await;
            if near.is_lost() {
                return Err(Error::offline("the question is lost"));
            }
            let answer = near.records.answer(question).await?;
            near.preempted.borrow_mut().extend(answer.preempts);
            match near.is_lost() {
                true => Err(Error::offline("the answer is lost")),
                false => Ok(answer.bytes),
            }
        })
    }

    fn register(&self, _: ReservationKey) -> Pending {
        Box::pin(async { Ok(()) })
    }
}

fn of_store(near: &Rc<Near>) -> Rc<dyn Vault> {
    Rc::new(StoreVault::new(Rc::new(Asks(Rc::clone(near)))))
}

#[test]
fn of_several_that_ask_a_store_at_once_one_does() {
    for (seed, one_in) in (0..300).map(|seed| (seed, [0, 3, 10][seed as usize % 3])) {
        let near = OnceCell::new();
        let make = move |env: &Rc<SimEnv>| of_store(near.get_or_init(|| Near::new(env, one_in)));
        // At the end there is another process, which loses nothing.
        let asked = Cell::new(0);
        let make = move |env: &Rc<SimEnv>| {
            asked.set(asked.get() + 1);
            if asked.get() <= 5 { make(env) } else { of_store(&Near::new(env, 0)) }
        };
        let versions = race(seed, one_in, make).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        // Three times as many losses as without a store in between.
        assert!(versions >= 5, "seed {seed}: {versions}");
    }
}

#[test]
fn a_store_says_whose_requests_are_over() {
    simulate(5, |env| async move {
        let near = Near::new(&env, 0);
        let vault = of_store(&near);
        assert!(vault.fences());
        let key = |generation| ReservationKey { volume: VOLUME.as_u128(), generation };
        let is_newest = async |generation| near.records.is_newest(key(generation)).await.expect("read");
        assert!(!is_newest(1).await);
        let one = first(&env, "a");
        assert_eq!(vault.append(&one).await, Ok(Outcome::Done));
        let two = next(&env, "b", Some(one.clone()));
        assert_eq!(vault.append(&two).await, Ok(Outcome::Done));
        assert!(is_newest(2).await && !is_newest(1).await && !is_newest(3).await);
        // A change in the same generation, and one that is lost.
        let more = Record { version: 3, checkpoint: 7, ..two.clone() };
        assert_eq!(vault.append(&more).await, Ok(Outcome::Done));
        let late = next(&env, "a", Some(one));
        assert_eq!(vault.append(&late).await, Ok(Outcome::Lost(Box::new(more.clone()))));
        assert_eq!(*near.preempted.borrow(), [key(1), key(2), key(2)]);
        // Nobody has it: nobody writes.
        let given = Record { version: 4, holder: None, ..more };
        assert_eq!(vault.append(&given).await, Ok(Outcome::Done));
        assert_eq!(near.preempted.borrow().last(), Some(&key(3)));
        assert!(!is_newest(2).await && !is_newest(3).await);
        let beat = Beat { process: VOLUME, counter: 1, lease: 5000, address: None, domain: None, room: None };
        vault.beat("a.x", beat.clone()).await.expect("beaten");
        assert_eq!(vault.heard("a.x").await, Ok(Some(beat)));
        assert_eq!(vault.heard("b.x").await, Ok(None));
        assert_eq!(vault.beating().await, Ok(vec!["a.x".to_owned()]));
        assert_eq!(vault.volumes().await, Ok(vec![VOLUME]));
    });
}

#[test]
fn a_host_that_is_cut_off_while_it_appends_holds_nobody_up() {
    simulate(8, |env| async move {
        let near = Near::new(&env, 0);
        let one = first(&env, "a");
        let question = serde_json::json!({ "version": 1, "question": { "append": one } }).to_string();
        let mut asks = near.records.answer(question.into());
        let is_done = std::future::poll_fn(|cx| Poll::Ready(asks.as_mut().poll(cx).is_ready())).await;
        assert!(!is_done, "it is under way");
        drop(asks);
        assert_eq!(of_store(&near).append(&one).await, Ok(Outcome::Done));
    });
}

#[test]
fn an_export_is_that_of_one_volume() {
    simulate(6, |env| async move {
        let near = Near::new(&env, 0);
        let vault = of_store(&near);
        assert_eq!(vault.append(&first(&env, "a")).await, Ok(Outcome::Done));
        let other = Record { volume: Uuid::from_u128(0x12), name: "vm2".into(), ..first(&env, "a") };
        let e = vault.append(&other).await.expect_err("it has another volume");
        let words = "this export is that of volume \"vm1\", and not of \"vm2\"";
        assert!(e.kind() == ErrorKind::Invalid && e.message().contains(words), "{e}");
    });
}

#[test]
fn a_store_answers_strangers_with_what_is_wrong() {
    simulate(7, |env| async move {
        let near = Near::new(&env, 0);
        let folder = env.shared_folder("/vault");
        folder.put("secret.beat", b"{}");
        for (question, words) in [
            ("", "no question"),
            ("{\"version\":1,\"question\":\"format\"}", "no question"),
            ("{\"version\":2,\"question\":\"volumes\"}", "version 2 are not known here"),
            ("{\"version\":1,\"question\":{\"heard\":\"../secret\"}}", "a name of letters"),
            ("{\"version\":1,\"question\":{\"heard\":\".partial-a\"}}", "a name of letters"),
            ("{\"version\":1,\"question\":{\"heard\":\"\"}}", "a name of letters"),
        ] {
            let said = near.says(question).await;
            assert!(said.contains("failed") && said.contains(words), "{question}: {said}");
        }
        let long = format!("{{\"version\":1,\"question\":{{\"heard\":{:?}}}}}", "a".repeat(200));
        assert!(near.says(&long).await.contains("a name of letters"));
        assert_eq!(folder.names(), ["secret.beat"]);
        // A record that contradicts itself is kept out.
        let wrong = Record { since: 9, ..first(&env, "a") };
        let e = of_store(&near).append(&wrong).await.expect_err("since before it was");
        assert!(e.message().contains("contradict each other"), "{e}");
    });
}

/// A vault that replaces one file, whose version it has looked at before.
struct Replaced(Rc<SimFolder>);

impl Vault for Replaced {
    fn volumes(&self) -> Pending<Vec<Uuid>> {
        Box::pin(async { Ok(vec![VOLUME]) })
    }

    fn heard(&self, _: &str) -> Pending<Option<Beat>> {
        Box::pin(async { Ok(None) })
    }

    fn beat(&self, _: &str, _: Beat) -> Pending {
        Box::pin(async { Ok(()) })
    }

    fn beating(&self) -> Pending<Vec<String>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn read(&self, volume: Uuid) -> Pending<Option<Record>> {
        let read = self.0.read(&format!("{volume}.record.1"), 1 << 20);
        Box::pin(async move { read.await?.map(|bytes| Record::decode(&bytes)).transpose() })
    }

    fn append(&self, record: &Record) -> Pending<Outcome> {
        let (read, record, folder) = (self.read(record.volume), record.clone(), Rc::clone(&self.0));
        Box::pin(async move {
            match read.await? {
                Some(newest) if newest.version >= record.version => Ok(Outcome::Lost(Box::new(newest))),
                _ => folder
                    .replace(&format!("{}.record.1", record.volume), record.encode())
                    .await
                    .map(|()| Outcome::Done),
            }
        })
    }
}

/// A canary: a look before a change is no comparison.
#[test]
fn a_vault_that_looks_and_replaces_is_caught() {
    let make = |env: &Rc<SimEnv>| Rc::new(Replaced(env.shared_folder("/vault"))) as Rc<dyn Vault>;
    assert!((0..20).any(|seed| race(seed, 0, make).is_err_and(|e| e.contains("both made"))));
}

#[test]
fn a_paused_host_finds_its_change_lost() {
    simulate(1, |env| async move {
        let (vault, folder) = vault(&env);
        let read = || vault.read(VOLUME);
        let one = first(&env, "a");
        assert_eq!(vault.append(&one).await, Ok(Outcome::Done));
        let stale = next(&env, "paused", Some(one));
        let mut newest = None;
        for _ in 0..20 {
            env.sleep(Duration::from_secs(60)).await;
            let record = next(&env, "b", read().await.expect("read"));
            assert_eq!(vault.append(&record).await, Ok(Outcome::Done));
            newest = Some(record);
        }
        let newest = newest.expect("twenty");
        assert!(folder.names().len() < 20, "superseded records are removed: {:?}", folder.names());
        let lost = Ok(Outcome::Lost(Box::new(newest.clone())));
        assert_eq!(vault.append(&stale).await, lost);
        // It was paused within the change, after its look: its file is made under a name that is free again.
        folder.put(&format!("{VOLUME}.record.2"), &stale.encode());
        assert_eq!((read().await, vault.append(&stale).await), (Ok(Some(newest.clone())), lost));
        assert_eq!(folder.get(&format!("{VOLUME}.latest")), Some(newest.encode()));
    });
}

#[test]
fn a_torn_record_is_an_error_that_names_its_file() {
    simulate(2, |env| async move {
        let (vault, folder) = vault(&env);
        let one = first(&env, "a");
        vault.append(&one).await.expect("appended");
        let two = next(&env, "a", Some(one));
        let (file, bytes) = (format!("{VOLUME}.record.2"), two.encode());
        for torn in [&bytes[..0], &bytes[..60], &bytes[..bytes.len() - 1]] {
            folder.put(&file, torn);
            let found: [Result<()>; 2] =
                [vault.read(VOLUME).await.map(drop), vault.append(&two).await.map(drop)];
            for e in found.map(|found| found.expect_err("torn")) {
                assert!(e.kind() == ErrorKind::Corrupt && e.message().contains(&file), "{e}");
            }
        }
        folder.put(&file, &Record { version: 3, ..two.clone() }.encode());
        assert!(vault.read(VOLUME).await.is_err_and(|e| e.message().contains("another name")));
        folder.put(&file, &bytes);
        assert_eq!(vault.read(VOLUME).await, Ok(Some(two)));
    });
}

#[test]
fn a_full_disk_leaves_the_record_as_it_is() {
    simulate(3, |env| async move {
        let (vault, folder) = vault(&env);
        let one = first(&env, "a");
        vault.append(&one).await.expect("appended");
        let two = next(&env, "a", Some(one.clone()));
        folder.set_space(0);
        assert_eq!(vault.append(&two).await.map_err(|e| e.kind()), Err(ErrorKind::NoSpace));
        assert_eq!(vault.read(VOLUME).await, Ok(Some(one)));
        folder.set_space(1 << 20);
        assert_eq!(vault.append(&two).await, Ok(Outcome::Done));
    });
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again() {
    for seed in 0..50 {
        simulate(seed, |env| async move {
            let (vault, folder) = vault(&env);
            let one = first(&env, "a");
            folder.set_faults(2);
            assert_eq!(settle(&*vault, &*env, &one, never).await, Ok(Outcome::Done));
            // Who gives up does not know.
            let two = next(&env, "a", Some(one));
            let _ = settle(&*vault, &*env, &two, |_| true).await;
            folder.set_faults(0);
            assert_eq!(vault.append(&two).await, Ok(Outcome::Done), "nobody else has changed it");
        });
    }
}

#[test]
fn a_record_that_is_gone_is_no_new_volume() {
    simulate(4, |env| async move {
        let (vault, folder) = vault(&env);
        let one = first(&env, "a");
        assert_eq!(vault.read(VOLUME).await, Ok(None));
        let e = vault.append(&next(&env, "a", Some(one))).await.expect_err("there is none before it");
        assert!(e.message().contains("are gone"), "{e}");
        assert_eq!(folder.names(), Vec::<String>::new());
    });
}
