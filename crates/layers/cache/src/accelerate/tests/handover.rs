//! A volume changes hands while both hosts are alive, and while they die of it.

use super::cluster::*;
use crate::testing::history::{Checked, told};
use lamina_block::{Begin, Command, Env, InUse};
use lamina_cluster::host::Name;
use lamina_cluster::vault::{FolderVault, Vault};
use lamina_sim::SimEnv;
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;

/// What a new volume is written with, on the host that takes it.
async fn written(env: &Rc<SimEnv>, serves: &Serves) -> std::result::Result<Rc<Invariants>, String> {
    let seen = Invariants::watch(env);
    seen.history.ids.set(1);
    seen.history.write(env, &serves.vm, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
    Ok(seen)
}

/// A machine runs on one host after the other. What it wrote is there, wherever it runs, and no host has it while
/// another one uses it. Now and then a host dies in the midst of a move.
fn moves(seed: u64, peers: usize, deaths: bool) -> Checked {
    let world = world(seed);
    let env = world.env();
    let run = async move {
        create(&env, &["a", "b"]).await?;
        let open = async |host| Serves::open(&env, host, peers, Begin::Open).await.map_err(told("opened"));
        let (mut here, mut there) = (open("a").await?, open("b").await?);
        let seen = written(&env, &here).await?;
        let history = &seen.history;
        for round in 0..4 {
            let (from, to) = (here.name, there.name);
            let at = |e: String| format!("round {round}, {from} to {to}: {e}");
            if peers > 0 && env.random().is_multiple_of(2) {
                here.paired().await.map_err(at)?;
            }
            let uses: InUse = here.vm.use_it();
            let guests: Vec<_> = (0..WORKERS).map(|n| guest(&seen, &here, n, 30)).collect();
            // Nobody takes the volume from a machine that runs.
            let refused = history.read(&env, &there.vm, 0..1, None).await;
            match refused {
                Err(e) if e.contains("a client uses it there") => {}
                other => return Err(at(format!("it was in use: {other:?}"))),
            }
            for guest in &guests {
                guest.ended(&env).await.map_err(at)?;
                if let Some(e) = &*guest.failed.borrow() {
                    return Err(at(e.clone()));
                }
            }
            for n in 0..8 {
                request(&seen, &env, here.name, &here.vm, n % WORKERS).await.map_err(at)?;
            }
            drop(uses);
            let (is_member, began) = (here.is_write_back(), env.now());
            let dies = deaths && env.random().is_multiple_of(2);
            if dies {
                let (host, clock) = (Rc::clone(&here.env), Rc::clone(&env));
                let after = Duration::from_micros(env.random() % 60_000);
                env.spawn(Box::pin(async move {
                    clock.sleep(after).await;
                    host.kill();
                }));
            }
            let found = history.read(&env, &there.vm, 0..BLOCKS, None).await;
            if dies {
                env.sleep(Duration::from_millis(60)).await;
                here.kill();
                here = open(here.name).await?;
            }
            match found {
                Ok(()) => {}
                // Its flash alone has what the store lacks, or a person's word is needed.
                Err(e) if dies && (e.contains("only flash") || e.contains("is silent")) => {
                    history.read(&env, &here.vm, 0..BLOCKS, None).await?;
                    continue;
                }
                Err(e) => return Err(format!("round {round}: moved: {e}")),
            }
            let took = env.now().since(began);
            // What the store lacked had to get there, but for a peer.
            if !dies && took > if is_member { Duration::from_millis(500) } else { LEASE } {
                return Err(format!("round {round}: it took {took:?}, member: {is_member}"));
            }
            (here, there) = (there, here);
        }
        if peers > 0 {
            // Late writes of a host that has died come no more.
            here.paired().await?;
        }
        here.close().await.map_err(told("closed"))?;
        // The store has everything.
        history.read(&env, &there.vm, 0..BLOCKS, None).await?;
        there.close().await.map_err(told("closed"))
    };
    world.run(run).map_err(|hang| hang.to_string())?
}

#[test]
fn a_volume_moves_with_its_machine() {
    for seed in 0..10 {
        for peers in 0..2 {
            moves(seed, peers, false).unwrap_or_else(|e| panic!("seed {seed}, {peers} peers: {e}"));
        }
    }
    assert!(caught("a volume is given away while writes are under way", |seed| moves(seed, 1, false), 20));
}

#[test]
fn a_host_that_dies_while_it_gives_the_volume_away_loses_nothing() {
    for seed in 0..20 {
        for peers in 0..2 {
            moves(seed, peers, true).unwrap_or_else(|e| panic!("seed {seed}, {peers} peers: {e}"));
        }
    }
}

/// A client that is still connected is no reason to refuse a host that is expected.
#[test]
fn an_expected_host_takes_the_volume_from_a_client() {
    for peers in 0..2 {
        let world = world(3);
        let env = world.env();
        let run = async move {
            create(&env, &["a", "b"]).await?;
            let open =
                async |host| Serves::open(&env, host, peers, Begin::Open).await.map_err(told("opened"));
            let (a, b) = (open("a").await?, open("b").await?);
            let seen = written(&env, &a).await?;
            let history = &seen.history;
            if peers > 0 {
                a.paired().await?;
            }
            let _uses = a.vm.use_it();
            let expect = |host: &str| Command { name: "expect".into(), args: json!({ "host": host }) };
            for wrong in ["", "a b"] {
                let e = a.vm.control(expect(wrong)).await.expect_err("it is no name");
                assert!(e.message().contains("no name of a host"), "{e}");
            }
            a.vm.control(expect("c")).await.map_err(told("expected"))?;
            let refused = history.read(&env, &b.vm, 0..1, None).await.expect_err("another one is expected");
            assert!(refused.contains("a client uses it there") && refused.contains("expect b"), "{refused}");
            if peers > 0 {
                // It was no peer: writes have waited for the store since.
                assert!(!a.is_write_back());
                let back = Command { name: "set-policy".into(), args: json!({ "policy": "write-back" }) };
                a.vm.control(back).await.map_err(told("write-back"))?;
                a.paired().await?;
            }
            let expected = a.vm.control(expect("b")).await.map_err(told("expected"))?;
            assert_eq!(expected["policy"], json!(if peers > 0 { "write-back" } else { "write-through" }));
            let began = env.now();
            history.read(&env, &b.vm, 0..BLOCKS, None).await?;
            assert!(env.now().since(began) < Duration::from_millis(500), "{:?}", env.now().since(began));
            // The client on the other host has no word that it may take the volume back.
            let _used = b.vm.use_it();
            let refused = history.read(&env, &a.vm, 0..1, None).await.expect_err("it is in use");
            assert!(refused.contains("expect a"), "{refused}");
            let vault = FolderVault::new(Rc::clone(&env) as _, env.shared_folder(VAULT));
            let record =
                vault.read(Name::new("vm1").uuid).await.map_err(told("the vault"))?.expect("a record");
            assert_eq!((record.holder.expect("b has it").host, record.unfenced), ("b".into(), None));
            b.close().await.map_err(told("closed"))?;
            a.close().await.map_err(told("closed"))
        };
        world.run(run).expect("it ends").unwrap_or_else(|e: String| panic!("{e}"));
    }
}

/// A volume that has moved is read from the flash that it came from, but for what was written since.
fn warm(seed: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let run = async move {
        create(&env, &["a", "b"]).await?;
        let open = async |host| Serves::open(&env, host, 0, Begin::Open).await.map_err(told("opened"));
        let (a, b) = (open("a").await?, open("b").await?);
        let seen = written(&env, &a).await?;
        let history = &seen.history;
        let figure = |name: &str| b.vm.info()[name].as_u64().expect("a number");
        // In a half of the volume.
        let writes = async |from: u64| {
            for _ in 0..30 {
                let at = from + env.random() % (BLOCKS / 2 - 16);
                let id = history.ids.get() + 1;
                history.ids.set(id);
                let to = at + 1 + env.random() % 16;
                history.write(&env, &b.vm, at..to, id, false).await.map_err(told("a write"))?;
            }
            Ok::<_, String>(())
        };
        let reads = async || {
            for at in (0..BLOCKS).step_by(32) {
                history.read(&env, &b.vm, at..at + 32, None).await?;
            }
            Ok::<_, String>(())
        };
        writes(0).await?;
        // What was written is on the store, and leaves the flash here.
        let policy = |policy: &str| Command { name: "set-policy".into(), args: json!({ "policy": policy }) };
        b.vm.control(policy("uncached")).await.map_err(told("uncached"))?;
        b.vm.control(policy("write-back")).await.map_err(told("write-back"))?;
        reads().await?;
        let remote = figure("remote_bytes");
        if remote == 0 {
            return Err("nothing was read from the other flash".into());
        }
        // What is written past the flash is not known to be newer, so that the other one is not asked any more.
        b.vm.control(policy("uncached")).await.map_err(told("uncached"))?;
        writes(BLOCKS / 2).await?;
        b.vm.control(policy("write-back")).await.map_err(told("write-back"))?;
        reads().await?;
        if figure("remote_bytes") > remote {
            return Err("the other flash is asked after writes past this one".into());
        }
        // Everything is here now.
        let missed = figure("missed_bytes");
        history.read(&env, &b.vm, 0..BLOCKS, None).await?;
        if figure("missed_bytes") > missed {
            return Err("it is not kept".into());
        }
        // And back: the other flash has what was read and written here.
        request(&seen, &env, "a", &a.vm, 0).await?;
        history.read(&env, &a.vm, 0..BLOCKS, None).await?;
        // A host that is gone is not asked, and holds nobody up for long.
        let at_b = b.vm.control(policy("write-back")).await;
        if at_b.is_ok() {
            return Err("it does not have the volume".into());
        }
        b.env.stop();
        let began = env.now();
        history.read(&env, &a.vm, 0..BLOCKS, None).await?;
        if env.now().since(began) > Duration::from_secs(3) {
            return Err(format!("it took {:?}", env.now().since(began)));
        }
        b.env.go_on();
        a.close().await.map_err(told("closed"))?;
        history.read(&env, &b.vm, 0..BLOCKS, None).await?;
        b.close().await.map_err(told("closed"))
    };
    world.run(run).map_err(|hang| hang.to_string())?
}

#[test]
fn a_volume_is_read_from_the_flash_that_it_came_from() {
    for seed in 0..10 {
        warm(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(caught("a remote read after an overwrite", warm, 20));
}
