//! What every vault promises, whatever keeps it: two writers race, a paused one returns, an answer is lost, a record is
//! torn, the disk is full.

mod common;

use common::{Done, VOLUME, changes, first, never, next, simulate};
use lamina_block::{Env, ErrorKind, Folder, Pending, Result};
use lamina_cluster::vault::{Beat, FolderVault, Outcome, Record, Vault, settle};
use lamina_sim::{SimEnv, SimFolder, Simulation};
use std::rc::Rc;
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
