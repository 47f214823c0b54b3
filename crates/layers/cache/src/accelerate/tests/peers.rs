//! Hosts with peers: a write is on two flashes before it is acknowledged, and any one of the hosts can die, be stopped,
//! or be cut off, at any moment.

use super::cluster::*;
use super::*;
use crate::testing::history::{Checked, told};
use lamina_block::Begin;
use lamina_cluster::conn::{receive, send};
use lamina_cluster::host::Name;
use lamina_cluster::vault::{FolderVault, Vault};
use lamina_cluster::wire::{Frame, Hello};

/// What goes on beside a host that works.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    /// Connections to the other host are cut now and then.
    Cut,
}

/// The host that has the volume dies in the midst of writes, again and again; the other one takes the volume by itself,
/// and the dead one becomes its peer.
fn deaths(seed: u64, trouble: Trouble) -> Checked {
    let world = world(seed);
    let env = world.env();
    let run = async move {
        create(&env, &["a", "b"]).await?;
        let open = async |host| Serves::open(&env, host, 1, Begin::Open).await.map_err(told("opened"));
        let (mut here, mut there) = (open("a").await?, open("b").await?);
        let seen = Invariants::watch(&env);
        let history = &seen.history;
        history.write(&env, &here.vm, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
        for round in 0..4 {
            if !env.random().is_multiple_of(4) {
                here.paired().await.map_err(|e| format!("round {round}: {e}"))?;
            }
            let guests: Vec<_> = (0..WORKERS).map(|n| guest(&seen, &here, n, 400)).collect();
            let cuts = if trouble == Trouble::Cut { env.random() % 3 } else { 0 };
            for _ in 0..cuts {
                env.sleep(Duration::from_micros(env.random() % 300_000)).await;
                env.net().cut(&address(there.name));
            }
            env.sleep(Duration::from_micros(env.random() % 300_000)).await;
            for guest in &guests {
                if let Some(e) = &*guest.failed.borrow() {
                    return Err(format!("round {round}: {e}"));
                }
            }
            here.kill();
            let vault = FolderVault::new(Rc::clone(&env) as _, env.shared_folder(VAULT));
            let record = vault.read(Name::new("vm1").uuid).await.map_err(told("the vault"))?;
            let is_member = record.is_some_and(|record| record.mode.members().len() == 2);
            let began = env.now();
            let taken = seen.read(&there.vm, 0..BLOCKS).await;
            match taken {
                Ok(()) if is_member && env.now().since(began) > LEASE * 2 => {
                    return Err(format!("round {round}: it took {:?}", env.now().since(began)));
                }
                Ok(()) => {}
                // The vault does not name it: the store has all that was acknowledged, or the dead host alone has it.
                Err(e) if !is_member && (e.contains("only flash") || e.contains("is silent")) => {}
                Err(e) => return Err(format!("round {round}, member: {is_member}: {e}")),
            }
            let dead = here.name;
            let back = open(dead).await?;
            if there.vm.info()["policy"] == json!("standby") {
                // It is back, and has the volume still.
                seen.read(&back.vm, 0..BLOCKS).await.map_err(|e| format!("round {round}: back: {e}"))?;
                here = back;
                continue;
            }
            let guests = guest(&seen, &there, 0, 30);
            guests.has_done(&env, 30).await.map_err(|e| format!("round {round}: after: {e}"))?;
            there.paired().await.map_err(|e| format!("round {round}: again: {e}"))?;
            seen.read(&there.vm, 0..BLOCKS).await?;
            (here, there) = (there, back);
        }
        here.close().await.map_err(told("closed"))?;
        // The store has everything.
        seen.read(&there.vm, 0..BLOCKS).await?;
        there.close().await.map_err(told("closed"))
    };
    world.run(run).map_err(|hang| hang.to_string())?
}

#[test]
fn a_peer_takes_over_by_itself_and_has_every_write() {
    for seed in 0..12 {
        deaths(seed, Trouble::None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(caught("a write that peers do not get", |seed| deaths(seed, Trouble::None), 12));
}

#[test]
fn a_peer_that_is_cut_off_is_taken_out_of_the_vault_first() {
    for seed in 0..20 {
        deaths(seed, Trouble::Cut).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(caught("acknowledged before the vault knows", |seed| deaths(seed, Trouble::Cut), 60));
}

/// The host that has the volume is stopped in the midst of everything, and goes on when the other one has written.
fn pause(seed: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let run = async move {
        create(&env, &["a", "b"]).await?;
        let open = async |host| Serves::open(&env, host, 1, Begin::Open).await.map_err(told("opened"));
        let (a, b) = (open("a").await?, open("b").await?);
        let seen = Invariants::watch(&env);
        let history = &seen.history;
        history.write(&env, &a.vm, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
        a.paired().await?;
        let guests: Vec<_> = (0..WORKERS).map(|n| guest(&seen, &a, n, 40_000)).collect();
        env.sleep(Duration::from_micros(100_000 + env.random() % 900_000)).await;
        a.env.stop();
        seen.read(&b.vm, 0..BLOCKS).await.map_err(|e| format!("taken: {e}"))?;
        let after = guest(&seen, &b, 1, 100);
        after.has_done(&env, 100).await?;
        // What it had under way gets to the store now, over what was written since.
        a.env.go_on();
        env.sleep(Duration::from_secs(3)).await;
        for guest in &guests {
            match &*guest.failed.borrow() {
                Some(e) if e.contains("has it now") || e.contains("does not answer") => {}
                other => return Err(format!("a guest of a host that is fenced: {other:?}")),
            }
        }
        seen.read(&b.vm, 0..BLOCKS).await.map_err(|e| format!("after it went on: {e}"))?;
        if b.vm.info()["quarantine_bytes"] == json!(0) && history.blocks.borrow().len() > 1 {
            tracing::debug!("nothing was dirty");
        }
        a.kill();
        let a = open("a").await?;
        b.paired().await.map_err(|e| format!("a is back: {e}"))?;
        if b.vm.info()["quarantine_bytes"] != json!(0) {
            return Err("the quarantine does not end".into());
        }
        b.close().await.map_err(told("closed"))?;
        // The store alone.
        seen.read(&a.vm, 0..BLOCKS).await.map_err(|e| format!("at last: {e}"))?;
        a.close().await.map_err(told("closed"))
    };
    world.run(run).map_err(|hang| hang.to_string())?
}

#[test]
fn late_writes_of_a_host_that_was_stopped_do_no_harm() {
    for seed in 0..20 {
        pause(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(caught("quarantine is forgotten", pause, 60));
}

/// Whoever connects and is not the host that the vault says: its connection ends, and nobody else's.
#[test]
fn a_host_that_the_vault_does_not_name_disturbs_nobody() {
    let world = world(5);
    let env = world.env();
    let run = async move {
        create(&env, &["a", "b"]).await?;
        let open = async |host| Serves::open(&env, host, 1, Begin::Open).await.map_err(told("opened"));
        let (a, b) = (open("a").await?, open("b").await?);
        let seen = Invariants::watch(&env);
        let history = &seen.history;
        history.write(&env, &a.vm, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
        a.paired().await?;
        let vault = FolderVault::new(Rc::clone(&env) as _, env.shared_folder(VAULT));
        let record = vault.read(Name::new("vm1").uuid).await.map_err(told("the vault"))?.expect("a record");
        let flash = record.holder.as_ref().and_then(|holder| holder.flash).expect("a flash");
        let hello = Hello {
            versions: (1, 1),
            volume: record.volume,
            size: SIZE,
            generation: record.generation,
            flash,
            is_anew: true,
        };
        let forged = [
            // As the host itself would say it, while the vault names the peer.
            (hello, "forgets nothing"),
            (Hello { is_anew: false, ..hello }, "from the beginning on alone"),
            (Hello { generation: 99, ..hello }, "another host has the volume"),
            (Hello { flash: lamina_cluster::Uuid::from_u128(7), ..hello }, "another host has the volume"),
            (Hello { size: 4096, ..hello }, "4096 bytes there"),
            (Hello { volume: lamina_cluster::Uuid::from_u128(7), ..hello }, "alone is kept here"),
        ];
        for (hello, words) in forged {
            let conn = env.connect(address("b")).await.map_err(told("connected"))?;
            send(&*conn, &Frame::Hello(hello), Buf::empty()).await.map_err(told("sent"))?;
            match receive(&*conn, &*env).await.map_err(told("received"))? {
                Some((Frame::Refuse(refuse), _)) if refuse.why.contains(words) => {}
                other => return Err(format!("{words}: {other:?}")),
            }
        }
        // More than are listened to at once, which say nothing, or nonsense.
        let mut silent = Vec::new();
        for _ in 0..40 {
            let conn = env.connect(address("b")).await.map_err(told("connected"))?;
            let _ = conn.send(Buf::from_vec(vec![7; env.random() as usize % 100])).await;
            silent.push(conn);
        }
        let guest = guest(&seen, &a, 0, 50);
        guest.has_done(&env, 50).await?;
        if !a.is_write_back() || a.vm.info()["peers"]["there"] != json!(1) {
            return Err(format!("{}", a.vm.info()["peers"]));
        }
        a.kill();
        seen.read(&b.vm, 0..BLOCKS).await?;
        b.close().await.map_err(told("closed"))
    };
    world.run(run).expect("it ends").unwrap_or_else(|e: String| panic!("{e}"));
}

/// What a device shows that finds no peer, and what one that has lost it.
pub fn without_and_with() -> Vec<Value> {
    let world = world(8);
    let env = world.env();
    let shown = world.run(async move {
        create(&env, &["a", "b"]).await.expect("created");
        let a = Serves::open(&env, "a", 1, Begin::Open).await?;
        a.vm.submit(Io::read(0, Buf::zeroed(4096))).await?;
        env.sleep(Duration::from_secs(3)).await;
        let alone = a.vm.info();
        let b = Serves::open(&env, "b", 1, Begin::Open).await?;
        a.paired().await.expect("b is there");
        let paired = a.vm.info();
        a.close().await?;
        b.close().await?;
        Ok::<_, lamina_block::Error>(vec![alone, paired])
    });
    shown.expect("it ends").expect("shown")
}
