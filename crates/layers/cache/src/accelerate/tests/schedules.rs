//! Faults of several hosts, by name: each schedule is run with some seeds, and ends with no fault left, in bounded time
//! and with every acknowledged write (`cluster/group.rs`).
//!
//! Volumes that move while both hosts are alive are in `handover.rs`. Not there yet: a late record of a `redo`, and
//! superblocks on a shared store; a surrogate and the old host with clones of one flash.

use super::cluster::*;
use super::*;
use crate::flash::SLOT;
use crate::testing::history::{Checked, told};
use futures_util::future::{Either, join, select};
use lamina_block::{Begin, OpKind};
use lamina_cluster::amend::declare_dead;
use lamina_cluster::conn::{receive, send};
use lamina_cluster::host::Name;
use lamina_cluster::vault::{FolderVault, Mode};
use lamina_cluster::wire::{Frame, Hello};
use lamina_sim::{Fate, Loss, Presence, Reach};
use std::pin::pin;

/// Seeds of a schedule.
const SEEDS: u64 = 5;
/// A write waits for a peer that is lost no longer than this: a timeout of a peer, and a change of the vault.
const STALL: Duration = Duration::from_secs(2);
/// A volume is taken from a host that is silent in so long.
const TAKEN: Duration = Duration::from_secs(10);

/// What of `work` is done with one seed.
pub fn play<F: Future<Output = Checked> + 'static>(
    seed: u64,
    (hosts, peers): (usize, usize),
    work: impl FnOnce(Group) -> F + 'static,
) -> Checked {
    let world = world(seed);
    let env = world.env();
    let _logs = tell_logs(&env);
    let run = async move {
        let group = Group::begin(&env, hosts, peers).await?;
        group.hosts[0].paired().await?;
        let seen = Rc::clone(&group.seen);
        work(group).await?;
        seen.check()
    };
    world.run(run).map_err(|hang| format!("I10: {hang}"))?
}

fn plays<F: Future<Output = Checked> + 'static>(
    of: (usize, usize),
    work: impl Fn(Group) -> F + Clone + 'static,
) {
    for seed in 0..SEEDS {
        play(seed, of, work.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Fails unless `is_so`.
fn holds(is_so: bool, what: impl Into<String>) -> Checked {
    if is_so { Ok(()) } else { Err(what.into()) }
}

impl Group {
    async fn within(&self, most: Duration, what: &str, work: impl Future<Output = Checked>) -> Checked {
        match select(pin!(work), self.world.sleep(most)).await {
            Either::Left((done, _)) => done.map_err(|e| format!("{what}: {e}")),
            Either::Right(_) => Err(format!("I10: {what}: not within {most:?}")),
        }
    }

    /// A host asks until it has the volume.
    async fn takes(&self, host: usize) -> Checked {
        while let Err(e) = self.read(host).await {
            if is_wrong(&e) {
                return Err(e);
            }
            self.world.sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// A host that may not have the volume says so, in these words.
    async fn refuses(&self, host: usize, words: &[&str]) -> Checked {
        match self.read(host).await {
            Err(e) if words.iter().any(|words| e.contains(words)) => Ok(()),
            other => Err(format!("{} should refuse with {words:?}: {other:?}", HOSTS[host])),
        }
    }

    fn members(&self) -> usize {
        self.seen.record().map_or(0, |record| record.mode.members().len())
    }

    fn is_through(&self) -> bool {
        self.seen.record().is_some_and(|record| record.mode == Mode::Through)
    }

    fn link(&self, from: usize, to: usize, is_cut: bool) {
        match is_cut {
            true => self.world.net().block(HOSTS[from], HOSTS[to]),
            false => self.world.net().unblock(HOSTS[from], HOSTS[to]),
        }
    }

    async fn until(&self, most: Duration, what: &str, is_so: impl Fn() -> bool) -> Checked {
        let looks = async {
            while !is_so() {
                self.world.sleep(Duration::from_millis(10)).await;
            }
            Ok(())
        };
        self.within(most, what, looks).await
    }

    /// One write.
    async fn writes(&self, host: usize) -> Checked {
        let block = self.world.random() % BLOCKS;
        let written =
            cluster::write(&self.seen.history, &self.world, &self.hosts[host].vm, block..block + 1, false)
                .await;
        written.map_err(told("a write"))
    }

    /// Guests on a host write, and the store fails what it does later; they have ended then.
    async fn writes_that_come_late(&self, host: usize) -> Checked {
        let guests = self.guests(host, u64::MAX);
        self.wait(Duration::from_secs(1)).await;
        self.hosts[host].store.set_reach(Reach::Late);
        self.wait(Duration::from_secs(2)).await;
        for guest in guests {
            guest.ended(&self.world).await?;
        }
        Ok(())
    }

    fn flash(&self, host: usize) -> Rc<lamina_sim::SimDisk> {
        self.world.disk(format!("flash-{}", HOSTS[host])).expect("a disk")
    }
}

/// Hosts lose each other in some directions: writes go on when the vault does not name the peer any more, which takes
/// nothing as long as the other one is alive; and when the network is whole again, they pair again.
pub async fn lost_links(mut on: Group, links: &[(usize, usize)]) -> Checked {
    let guests = on.guests(0, u64::MAX);
    on.wait(Duration::from_secs(1)).await;
    links.iter().for_each(|(from, to)| on.link(*from, *to, true));
    // What goes one way alone is answered by nobody.
    on.until(Duration::from_secs(5), "the vault names the lost peer no more", || on.members() < 2).await?;
    on.within(STALL, "writes go on", on.writes(0)).await?;
    on.refuses(1, &["is alive", "only flash"]).await?;
    on.until(Duration::from_secs(5), "the store has everything", || on.is_through()).await?;
    links.iter().for_each(|(from, to)| on.link(*from, *to, false));
    on.hosts[0].paired().await?;
    for guest in guests {
        guest.ended(&on.world).await?;
        holds(guest.failed.borrow().is_none(), format!("a request has failed: {:?}", guest.failed.borrow()))?;
    }
    on.ends().await
}

#[test]
fn a_primary_reaches_the_store_and_not_its_peer() {
    plays((2, 1), |on| lost_links(on, &[(0, 1), (1, 0)]));
}

#[test]
fn a_link_loses_what_the_primary_says() {
    plays((2, 1), |on| lost_links(on, &[(0, 1)]));
}

#[test]
fn a_link_loses_what_the_peer_says() {
    plays((2, 1), |on| lost_links(on, &[(1, 0)]));
}

/// The reverse: its peer, and not the store.
#[test]
fn a_primary_reaches_its_peer_and_not_the_store() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        for _ in 0..40 {
            on.within(STALL, "a write is acknowledged from flash", on.writes(0)).await?;
        }
        on.world.sleep(LEASE * 2).await;
        holds(on.hosts[0].is_write_back() && on.members() == 2, "the peer has stayed")?;
        on.hosts[0].kill();
        on.within(TAKEN, "a peer takes over", on.read(1)).await?;
        // The new host reaches the store.
        on.until(Duration::from_secs(20), "the store gets everything once", || {
            on.hosts[1].vm.info()["dirty_bytes"] != json!(null)
        })
        .await?;
        on.work(1, 20).await?;
        on.ends().await
    });
}

#[test]
fn two_peers_race() {
    plays((3, 2), |mut on| async move {
        on.work(0, 20).await?;
        on.hosts[0].kill();
        let (b, c) = join(on.read(1), on.read(2)).await;
        let (winner, loser, lost) = match (b, c) {
            (Ok(()), Err(e)) => (1, 2, e),
            (Err(e), Ok(())) => (2, 1, e),
            both => return Err(format!("I2: one of two has the volume: {both:?}")),
        };
        holds(["is alive", "only flash", "is silent"].iter().any(|words| lost.contains(words)), lost)?;
        on.work(winner, 20).await?;
        on.refuses(loser, &["is alive", "only flash"]).await?;
        on.ends().await
    });
}

/// The host that has the volume stops with writes under way to the store, which get there when another one has written
/// the same blocks; then it goes on where it was, and says when nothing of it comes any more.
pub async fn stopped(mut on: Group, with_clock: bool) -> Checked {
    let guests = on.guests(0, u64::MAX);
    on.wait(Duration::from_secs(2)).await;
    on.hosts[0].store.set_reach(Reach::Held);
    on.wait(Duration::from_secs(2)).await;
    on.stop(0, with_clock);
    on.within(TAKEN, "a peer takes over", on.read(1)).await?;
    on.work(1, 100).await?;
    on.world.sleep(Duration::from_secs(60)).await;
    let seen = Rc::clone(&on.seen);
    let is_awaited = || seen.record().is_some_and(|record| record.unfenced.is_some());
    holds(is_awaited(), "late writes of a host that stands still are not waited for")?;
    on.hosts[0].store.set_reach(Reach::Here);
    on.go_on(0);
    on.world.sleep(Duration::from_secs(3)).await;
    for guest in guests {
        guest.ended(&on.world).await?;
    }
    on.seen.check()?;
    on.refuses(0, &["has it now", "does not answer"]).await?;
    on.read(1).await.map_err(|e| format!("I5: after late writes: {e}"))?;
    on.until(TAKEN, "the host that goes on says that none come any more", || !is_awaited()).await?;
    on.start(0).await?;
    on.hosts[1].paired().await?;
    holds(on.hosts[1].vm.info()["quarantine_bytes"] == json!(0), "I10: the quarantine does not end")?;
    on.read(1).await.map_err(|e| format!("I5: after the quarantine: {e}"))?;
    on.ends().await
}

#[test]
fn a_primary_is_stopped_for_a_minute_and_its_late_writes_land() {
    plays((2, 1), |on| stopped(on, false));
}

#[test]
fn a_machine_is_stopped_with_its_clock() {
    plays((2, 1), |on| stopped(on, true));
}

/// The flash of the host that has taken the volume fails when late writes have come over what the store was given, and
/// before it was given that once more: it says what would be lost, and loses nothing.
#[test]
fn a_flash_fails_when_late_writes_have_ended() {
    plays((2, 1), overwritten);
}

pub async fn overwritten(mut on: Group) -> Checked {
    let guests = on.guests(0, u64::MAX);
    on.wait(Duration::from_secs(2)).await;
    on.hosts[0].store.set_reach(Reach::Held);
    on.wait(Duration::from_secs(2)).await;
    on.stop(0, false);
    on.within(TAKEN, "a peer takes over", on.read(1)).await?;
    let rests = || on.hosts[1].vm.info()["dirty_bytes"] == on.hosts[1].vm.info()["quarantine_bytes"];
    on.until(TAKEN, "the store has been given everything", rests).await?;
    on.world.sleep(Duration::from_secs(3)).await;
    on.flash(1).set_presence(Presence::Failing);
    on.hosts[0].store.set_reach(Reach::Here);
    on.world.sleep(Duration::from_secs(3)).await;
    on.hosts[0].kill();
    drop(guests);
    let vault = FolderVault::new(Rc::clone(&on.world) as _, on.world.shared_folder(VAULT));
    declare_dead(&vault, &*on.world, Name::new("vm1").uuid, "a").await.map_err(told("said"))?;
    on.world.sleep(Duration::from_secs(5)).await;
    if on.hosts[1].vm.info()["dirty_bytes"] != json!(0) {
        on.refuses(1, &["the flash has failed"]).await?;
    }
    on.read(1).await.or_else(|e| if e.contains("the flash has failed") { Ok(()) } else { Err(e) })?;
    on.flash(1).set_presence(Presence::Here);
    on.ends().await
}

/// The process of the primary dies, is there again at once, and has brought everything to the store and gone on before
/// what the one before had begun there is done.
#[test]
fn late_writes_of_the_same_hosts_past_land() {
    plays((2, 1), past);
}

pub async fn past(mut on: Group) -> Checked {
    for _ in 0..4 {
        let guests = on.guests(0, u64::MAX);
        on.wait(Duration::from_secs(1)).await;
        on.hosts[0].store.set_reach(Reach::Held);
        on.world.sleep(Duration::from_secs(2)).await;
        on.hosts[0].kill();
        drop(guests);
        on.start(0).await?;
        on.within(TAKEN, "it has the volume still", on.read(0)).await?;
        on.work(0, 20).await?;
        on.hosts[0].paired().await?;
        on.read(0).await.map_err(|e| format!("I5: {e}"))?;
    }
    on.ends().await
}

/// The clock of the primary is slow, that of the peer is fast, and jumps ahead.
#[test]
fn clocks_drift_and_jump() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].env.set_clock_rate(900);
        on.hosts[1].env.set_clock_rate(1100);
        let guests = on.guests(0, u64::MAX);
        on.wait(LEASE * 2).await;
        on.hosts[0].env.jump(LEASE);
        on.wait(LEASE * 2).await;
        on.hosts[1].env.jump(LEASE / 8);
        on.refuses(1, &["is alive"]).await?;
        on.hosts[0].env.stop();
        on.within(TAKEN, "a peer takes over", on.read(1)).await?;
        on.work(1, 20).await?;
        on.hosts[0].env.go_on();
        on.wait(Duration::from_secs(3)).await;
        for guest in guests {
            guest.ended(&on.world).await?;
        }
        on.ends().await
    });
}

/// A record of which a part is there is an error, which names the file, and nobody believes the one before it.
#[test]
fn a_record_of_the_vault_is_torn() {
    plays((2, 1), |mut on| async move {
        on.work(0, 10).await?;
        on.hosts[0].kill();
        let folder = on.world.shared_folder(VAULT);
        let record = on.seen.record().ok_or("no record")?;
        let name = |version| format!("{}.record.{version}", record.volume);
        let bytes = folder.get(&name(record.version)).ok_or("no file")?;
        let is_last = on.draw(2) == 0;
        // The newest one itself, or one that came after it.
        let torn = if is_last { record.version } else { record.version + 1 };
        folder.put(&name(torn), &bytes[..on.draw(bytes.len())]);
        on.refuses(1, &["no valid record", "a record of a vault"]).await?;
        // A copy has it whole.
        folder.put(&name(torn), &bytes);
        if !is_last {
            let remove = lamina_block::Folder::remove(&*folder, &name(torn));
            remove.await.map_err(told("removed"))?;
        }
        on.within(TAKEN * 2, "a peer takes over", on.read(1)).await?;
        on.ends().await
    });
}

/// A change of the record is done, and its writer is not told: no write is acknowledged until it knows.
#[test]
fn a_change_of_the_vault_is_done_and_its_answer_is_lost() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].env.shared_folder(VAULT).set_fate_of_changes(Fate::Unanswered);
        on.hosts[1].kill();
        on.world.sleep(Duration::from_secs(2)).await;
        let written = on.writes(0).await;
        holds(written.is_err(), "I1: acknowledged by one flash, and the vault may name two")?;
        holds(on.members() == 1, "the vault has been changed")?;
        on.hosts[0].env.shared_folder(VAULT).set_fate_of_changes(Fate::Done);
        on.within(STALL, "writes go on", on.writes(0)).await?;
        on.start(1).await?;
        on.hosts[0].paired().await?;
        on.ends().await
    });
}

/// The vault names the lost peer no more, and the primary dies before it acknowledges what waited.
#[test]
fn death_between_the_change_of_the_vault_and_the_release() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        on.hosts[0].store.set_reach(Reach::Held);
        on.wait(Duration::from_secs(1)).await;
        on.hosts[0].env.shared_folder(VAULT).set_fate_of_changes(Fate::Unanswered);
        on.link(0, 1, true);
        on.until(Duration::from_secs(5), "the vault names the lost peer no more", || on.members() == 1)
            .await?;
        on.hosts[0].kill();
        drop(guests);
        on.link(0, 1, false);
        on.refuses(1, &["only flash"]).await?;
        on.seen.ends_now(1)?;
        on.start(0).await?;
        on.within(TAKEN, "it has the volume still", on.read(0)).await?;
        on.ends().await
    });
}

/// The peer is lost, the store gets everything, and the primary dies meanwhile: it alone can go on.
#[test]
fn death_during_the_drain() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        on.wait(Duration::from_secs(1)).await;
        let reach = [Reach::Lost, Reach::Held, Reach::Late][on.draw(3)];
        on.hosts[0].store.set_reach(reach);
        on.writes(0).await?;
        on.hosts[1].kill();
        on.until(Duration::from_secs(5), "the vault names the lost peer no more", || on.members() == 1)
            .await?;
        on.wait(Duration::from_secs(2)).await;
        on.hosts[0].kill();
        drop(guests);
        on.start(1).await?;
        on.refuses(1, &["only flash"]).await?;
        on.start(0).await?;
        on.within(TAKEN, "it has the volume still", on.read(0)).await?;
        on.ends().await
    });
}

#[test]
fn a_peers_flash_fails_in_the_midst_of_a_batch() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        on.wait(Duration::from_secs(1)).await;
        on.flash(1).set_presence(Presence::Failing);
        on.until(Duration::from_secs(5), "the vault names the lost peer no more", || on.members() < 2)
            .await?;
        on.within(STALL, "writes go on", on.writes(0)).await?;
        on.flash(1).set_presence(Presence::Here);
        on.hosts[0].paired().await?;
        let peers = &on.hosts[0].vm.info()["peers"];
        holds(peers["joined"] == json!(2) && peers["lost"] == json!(1), peers.to_string())?;
        for guest in guests {
            guest.ended(&on.world).await?;
            holds(
                guest.failed.borrow().is_none(),
                format!("a request has failed: {:?}", guest.failed.borrow()),
            )?;
        }
        on.hosts[0].kill();
        on.within(TAKEN, "a peer takes over", on.read(1)).await?;
        on.ends().await
    });
}

/// The flash of the primary fails, and the store lacks what was there: the peer has it, and no request fails.
#[test]
fn a_primarys_flash_fails_and_its_peer_has_what_it_had() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        on.wait(Duration::from_secs(1)).await;
        on.flash(0).set_presence(Presence::Failing);
        let is_uncached = |on: &Group| on.hosts[0].vm.info()["policy"] == json!("uncached");
        on.until(Duration::from_secs(10), "it goes on without its flash", || is_uncached(&on)).await?;
        on.until(Duration::from_secs(5), "the vault names nobody", || on.is_through()).await?;
        for guest in guests {
            guest.ended(&on.world).await?;
            holds(
                guest.failed.borrow().is_none(),
                format!("a request has failed: {:?}", guest.failed.borrow()),
            )?;
        }
        // Without its flash a device orders no writes of the same place: now there are no others.
        on.within(STALL, "writes go on", on.writes(0)).await?;
        on.flash(0).set_presence(Presence::Here);
        on.world.sleep(Duration::from_secs(2)).await;
        let back = on.hosts[0].command("set-policy", json!({ "policy": "write-back" })).await;
        back.map_err(told("the flash is used again"))?;
        on.hosts[0].paired().await?;
        on.within(STALL, "writes go on", on.writes(0)).await?;
        on.hosts[0].kill();
        on.within(TAKEN, "a peer takes over", on.read(1)).await?;
        on.ends().await
    });
}

/// The flash of the primary fails just when its peer stands still, which is lost with writes that it has not made
/// durable: the device goes on when its flash works again.
#[test]
fn a_flash_works_again_while_a_lost_peer_is_named() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        let (seen, vm) = (Rc::clone(&on.seen), Rc::clone(&on.hosts[0].vm));
        cluster::write(&seen.history, &on.world, &vm, 0..8, false).await.map_err(told("a write"))?;
        on.stop(1, false);
        on.flash(0).set_presence(Presence::Failing);
        // The flash is asked before the peer is found lost.
        let _fails = seen.read(&vm, 0..8).await;
        let is_stopped = |on: &Group| on.hosts[0].vm.info()["alerts"]["stopped"] == json!(true);
        on.until(Duration::from_secs(30), "it stops", || is_stopped(&on)).await?;
        on.flash(0).set_presence(Presence::Here);
        on.hosts[0].store.set_reach(Reach::Here);
        on.until(Duration::from_secs(30), "it goes on", || !is_stopped(&on)).await?;
        on.within(TAKEN, "it is read", on.read(0)).await?;
        on.work(0, 20).await?;
        on.ends().await
    });
}

/// The flash of the primary fails while the store is away, and its peer is lost for some time: the device has stopped,
/// and the vault goes on naming the peer, which has everything.
#[test]
fn a_host_that_has_stopped_takes_no_peer_out_of_the_vault() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        for _ in 0..20 {
            on.writes(0).await?;
        }
        on.seen.history.flush(&on.world, &on.hosts[0].vm).await.map_err(told("flushed"))?;
        on.flash(0).set_presence(Presence::Failing);
        let has_stopped = |on: &Group| on.hosts[0].vm.info()["alerts"]["stopped"] == json!(true);
        on.until(Duration::from_secs(30), "it stops", || has_stopped(&on)).await?;
        let accepted = on.hosts[0].command("accept-loss", json!({})).await;
        let is_refused = accepted.as_ref().is_err_and(|e| e.message().contains("another one takes over"));
        holds(is_refused, format!("what a peer has is given up: {accepted:?}"))?;
        on.start(1).await?;
        on.wait(Duration::from_secs(20)).await;
        holds(on.members() == 2, format!("the vault names {} flashes", on.members()))?;
        on.hosts[0].store.set_reach(Reach::Here);
        on.hosts[0].kill();
        on.within(TAKEN * 2, "its peer takes over", on.read(1)).await?;
        on.flash(0).set_presence(Presence::Here);
        on.ends().await
    });
}

/// The same, where the vault says that the flash does not count: its host is there again, and cannot have the volume.
#[test]
fn a_host_whose_flash_does_not_count_is_followed_by_its_peer() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        for _ in 0..20 {
            on.writes(0).await?;
        }
        set_device(&on.world, HOSTS[0], Presence::Failing);
        let has_stopped = |on: &Group| on.hosts[0].vm.info()["alerts"]["stopped"] == json!(true);
        on.until(Duration::from_secs(30), "it stops", || has_stopped(&on)).await?;
        holds(on.members() == 1, format!("the vault names {} flashes", on.members()))?;
        on.hosts[0].kill();
        set_device(&on.world, HOSTS[0], Presence::Here);
        on.start(0).await?;
        on.refuses(0, &["only flash"]).await?;
        on.within(TAKEN * 2, "its peer takes over", on.takes(1)).await?;
        on.hosts[1].paired().await?;
        on.ends().await
    });
}

/// The same, and everything ends at some moment: the flash is there again, without what it had not kept, and is not
/// older than the store for whoever reads.
#[test]
fn a_primarys_flash_fails_and_is_back_after_a_crash() {
    plays((2, 1), |on| left(on, false));
}

/// The same, where the device of the flash has the state records, too: the vault says instead that the flash does not
/// count.
#[test]
fn a_primarys_flash_fails_with_its_records_and_is_back_after_a_crash() {
    plays((2, 1), |on| left(on, true));
}

pub async fn left(mut on: Group, with_records: bool) -> Checked {
    let guests = on.guests(0, u64::MAX);
    on.wait(Duration::from_secs(1)).await;
    on.hosts[0].store.set_reach(Reach::Lost);
    on.wait(Duration::from_secs(1)).await;
    on.hosts[0].store.set_reach(Reach::Here);
    match with_records {
        true => set_device(&on.world, HOSTS[0], Presence::Failing),
        false => on.flash(0).set_presence(Presence::Failing),
    }
    let is_uncached = |on: &Group| on.hosts[0].vm.info()["policy"] == json!("uncached");
    for _ in 0..200 {
        on.world.sleep(Duration::from_millis(2)).await;
        on.seen.ends_now(1)?;
        if is_uncached(&on) {
            break;
        }
    }
    on.until(Duration::from_secs(10), "it goes on without its flash", || is_uncached(&on)).await?;
    for guest in guests {
        guest.ended(&on.world).await?;
    }
    on.seen.ends_now(1)?;
    set_device(&on.world, HOSTS[0], Presence::Here);
    on.ends().await
}

/// The store takes nothing, and the flash of the peer is full: one that is as large as that of the primary stays. One
/// that is smaller refuses and is lost, no acknowledged write is, and it joins again; or it takes the volume.
#[test]
fn a_peers_flash_is_full() {
    for (seed, flash) in (0..SEEDS).flat_map(|seed| [(seed, FLASH), (seed, FLASH / 4 * 3)]) {
        let world = world(seed);
        let env = world.env();
        let run = async move {
            put_flash(&env, "b", flash);
            let mut on = Group::begin(&env, 2, 1).await?;
            on.hosts[0].paired().await?;
            on.hosts[0].store.set_reach(Reach::Held);
            let guests = on.guests(0, u64::MAX);
            on.world.sleep(Duration::from_secs(20)).await;
            let has_stayed = on.hosts[0].is_write_back() && on.members() == 2;
            let peers = on.hosts[0].vm.info()["peers"].to_string();
            holds(has_stayed || flash < FLASH, format!("I10: a full peer is lost: {peers}"))?;
            on.seen.ends_now(1)?;
            if seed == 0 && has_stayed {
                on.hosts[0].kill();
                on.within(TAKEN, "a peer takes over", on.read(1)).await?;
                return on.ends().await;
            }
            on.hosts[0].store.set_reach(Reach::Here);
            for guest in guests {
                guest.ended(&on.world).await?;
            }
            on.hosts[0].paired().await?;
            on.work(0, 40).await?;
            on.ends().await
        };
        let ended = world.run(run).map_err(|hang| format!("I10: {hang}")).and_then(|done| done);
        ended.unwrap_or_else(|e| panic!("seed {seed}, {flash} bytes: {e}"));
    }
}

#[test]
fn a_peer_dies_while_it_joins() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        for _ in 0..6 {
            on.hosts[1].kill();
            on.until(Duration::from_secs(5), "the store has everything", || on.is_through()).await?;
            on.start(1).await?;
            // It beats, is found and asked to forget what it had, and is named.
            on.wait(Duration::from_millis(1500)).await;
            on.seen.ends_now(1)?;
        }
        on.start(1).await?;
        on.hosts[0].paired().await?;
        for guest in guests {
            guest.ended(&on.world).await?;
            holds(
                guest.failed.borrow().is_none(),
                format!("a request has failed: {:?}", guest.failed.borrow()),
            )?;
        }
        on.ends().await
    });
}

/// Another peer goes on while the vault names it, which is until the new host has opened the volume; then that host is
/// waited for, or a person.
#[test]
fn a_replaying_peer_dies_and_another_one_goes_on_or_waits_for_it() {
    plays((3, 2), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        for _ in 0..30 {
            on.writes(0).await?;
        }
        on.hosts[0].kill();
        {
            let taken = pin!(on.read(1));
            let has_it = on.until(TAKEN, "a peer takes over", || on.seen.has_it("b"));
            let (_, has_it) = join(select(taken, on.world.sleep(TAKEN)), has_it).await;
            has_it?;
        }
        on.wait(Duration::from_millis(50)).await;
        on.hosts[1].kill();
        let vault = FolderVault::new(Rc::clone(&on.world) as _, on.world.shared_folder(VAULT));
        on.world.sleep(Duration::from_secs(1)).await;
        for host in ["a", "b"] {
            let _said = declare_dead(&vault, &*on.world, Name::new("vm1").uuid, host).await;
        }
        match on.read(2).await {
            Ok(()) => on.work(2, 20).await?,
            Err(e) if e.contains("only flash") && on.members() == 1 => {}
            Err(e) => return Err(e),
        }
        on.ends().await
    });
}

#[test]
fn a_host_returns_two_generations_late() {
    plays((3, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        on.wait(Duration::from_secs(2)).await;
        on.hosts[0].env.stop();
        // The peer is the one that takes it.
        let peer = if on.read(1).await.is_ok() { 1 } else { 2 };
        on.read(peer).await?;
        on.work(peer, 30).await?;
        let next = 3 - peer;
        let vault = FolderVault::new(Rc::clone(&on.world) as _, on.world.shared_folder(VAULT));
        // A person has seen to it that it writes no more, whatever it was about to.
        on.hosts[0].store.set_reach(Reach::Lost);
        declare_dead(&vault, &*on.world, Name::new("vm1").uuid, "a").await.map_err(told("said"))?;
        on.until(LEASE, "the quarantine ends", || on.hosts[peer].vm.info()["quarantine_bytes"] == json!(0))
            .await?;
        on.hosts[peer].close().await.map_err(told("closed"))?;
        on.read(next).await?;
        on.work(next, 30).await?;
        on.hosts[0].env.go_on();
        on.world.sleep(Duration::from_secs(3)).await;
        for guest in guests {
            guest.ended(&on.world).await?;
        }
        on.refuses(0, &["has it now", "does not answer"]).await?;
        on.start(0).await?;
        let uses = on.hosts[next].vm.use_it();
        on.refuses(0, &["is alive", "only flash"]).await?;
        drop(uses);
        on.read(next).await?;
        on.ends().await
    });
}

/// The name of a host says nothing of what it has: the vault names flashes.
#[test]
fn a_flash_is_formatted_anew_under_an_old_name() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        for _ in 0..30 {
            on.writes(0).await?;
        }
        on.hosts[0].kill();
        let old = on.flash(0).twin();
        put_flash(&on.world, "a", FLASH);
        let formatted = Serves::open(&on.world, "a", 1, Begin::Format).await.map_err(told("formatted"))?;
        formatted.close().await.map_err(told("closed"))?;
        formatted.env.kill();
        drop(old);
        on.start(0).await?;
        on.refuses(0, &["only flash"]).await?;
        // It is silent under the old name, as if it were dead.
        on.within(TAKEN * 2, "a peer takes over", on.takes(1)).await?;
        on.work(1, 20).await?;
        on.ends().await
    });
}

/// Both flashes fail while the store is away: every error names what is lost, and nothing is lost when they are back.
#[test]
fn a_loss_names_its_ranges() {
    plays((2, 1), loss);
}

pub async fn loss(mut on: Group) -> Checked {
    on.hosts[0].store.set_reach(Reach::Lost);
    for _ in 0..20 {
        on.writes(0).await?;
    }
    on.flash(0).set_presence(Presence::Failing);
    on.flash(1).set_presence(Presence::Failing);
    let mut lost = None;
    for _ in 0..20 {
        lost = on.writes(0).await.err().filter(|e| e.contains("the flash has failed")).or(lost);
    }
    let e = lost.ok_or("I9: the flash has failed, and no request says so")?;
    holds(
        e.contains("not on the store are") && e.contains(" bytes at "),
        format!("I9: without ranges: {e}"),
    )?;
    on.flash(0).set_presence(Presence::Here);
    on.flash(1).set_presence(Presence::Here);
    on.ends().await
}

/// A late one would discard what another host has written since: there is none.
#[test]
fn a_device_with_peers_discards_nothing() {
    plays((2, 1), |mut on| async move {
        for serves in &on.hosts {
            let io = lamina_block::Io::discard(0..4096);
            holds(!serves.vm.geometry().discard, "I5: a discard may come late")?;
            let discarded = serves.vm.submit(io).await;
            holds(discarded.is_err() || !serves.vm.geometry().discard, "I5: it has discarded")?;
        }
        on.read(0).await?;
        on.ends().await
    });
}

/// The power of all fails while writes are on their way to the only peer: what is torn there is left out, and what was
/// flushed is there.
#[test]
fn a_record_is_torn_on_the_only_peer() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        on.wait(Duration::from_secs(1)).await;
        for host in [0, 1] {
            on.seen.loses_power(&on.hosts[host]);
            on.hosts[host].lose_power(Loss::Torn);
        }
        drop(guests);
        on.start(1).await?;
        on.within(TAKEN, "a peer takes over", on.read(1)).await?;
        on.ends().await
    });
}

/// A client whose volume another host has, or a process before this one, flushes: the store keeps what it has got. A
/// device that is closed asks nobody.
#[test]
fn a_flush_of_a_host_without_the_volume_gets_to_the_store() {
    plays((2, 1), |mut on| async move {
        let flushes = |on: &Group| on.hosts[1].below[0].stats().of(OpKind::Flush).completed.get();
        for is_used in [false, true] {
            let uses = is_used.then(|| on.hosts[1].vm.use_it());
            let before = flushes(&on);
            on.hosts[1].vm.submit(Io::flush()).await.map_err(told("flushed"))?;
            holds(flushes(&on) - before == u64::from(is_used), format!("used: {is_used}"))?;
            drop(uses);
        }
        on.read(0).await?;
        on.ends().await
    });
}

/// A process dies, and its flash fails when the next one begins: what was acknowledged may be lost with the power, and
/// a flush does not say otherwise.
#[test]
fn a_flush_fails_while_what_was_acknowledged_is_on_a_flash_that_fails() {
    plays((2, 1), |mut on| async move {
        on.hosts[0].store.set_reach(Reach::Lost);
        for _ in 0..20 {
            on.writes(0).await?;
        }
        on.hosts[0].kill();
        on.flash(0).set_presence(Presence::Failing);
        on.start(0).await?;
        let uses = on.hosts[0].vm.use_it();
        let flushed = on.seen.history.flush(&on.world, &on.hosts[0].vm).await;
        let e = flushed.err().ok_or("I1: a flush has made durable what it cannot reach")?;
        holds(e.message().contains("only flash"), format!("it says what is missing: {e}"))?;
        drop(uses);
        on.flash(0).set_presence(Presence::Here);
        on.seen.loses_power(&on.hosts[0]);
        on.hosts[0].lose_power(Loss::All);
        on.start(0).await?;
        on.read(0).await?;
        on.ends().await
    });
}

/// A process dies, and its client flushes before the next one has looked whose the volume is. What was acknowledged
/// may be undurable on the peer, which may take the volume: so the flush waits until it has no part in it.
#[test]
fn a_flush_comes_before_the_volume_is_back() {
    plays((2, 1), flushed);
}

pub async fn flushed(mut on: Group) -> Checked {
    // What is being destaged is made durable everywhere, and nothing after it.
    on.hosts[0].store.set_reach(Reach::Held);
    on.writes(0).await?;
    on.world.sleep(Duration::from_secs(1)).await;
    for _ in 0..20 {
        on.writes(0).await?;
    }
    on.start(0).await?;
    let vault = on.hosts[0].env.shared_folder(VAULT);
    vault.set_fate(Fate::Lost);
    // The next process has looked, and its peer's flash has not been flushed by itself.
    on.world.sleep(Duration::from_millis(50)).await;
    vault.set_fate(Fate::Done);
    let uses = on.hosts[0].vm.use_it();
    on.seen.history.flush(&on.world, &on.hosts[0].vm).await.map_err(told("flushed"))?;
    drop(uses);
    for host in [0, 1] {
        on.seen.loses_power(&on.hosts[host]);
        on.hosts[host].lose_power(Loss::All);
    }
    on.start(1).await?;
    on.within(TAKEN * 2, "a peer takes it, or is refused", async {
        on.read(1).await.or_else(|e| if e.contains("only flash") { Ok(()) } else { Err(e) })
    })
    .await?;
    on.ends().await
}

/// A host that speaks a later version as well is understood, and one that speaks only that is refused in words.
#[test]
fn hosts_of_mixed_versions() {
    plays((2, 1), |mut on| async move {
        on.link(0, 1, true);
        on.until(Duration::from_secs(9), "the store has everything", || on.is_through()).await?;
        let record = on.seen.record().ok_or("no record")?;
        let flash = record.holder.as_ref().and_then(|holder| holder.flash).ok_or("no flash")?;
        let hello = Hello {
            versions: (1, 2),
            volume: record.volume,
            size: SIZE,
            generation: record.generation,
            flash,
            is_anew: true,
        };
        for (versions, spoken) in [((1, 1), Some(1)), ((1, 2), Some(2)), ((2, 9), Some(2)), ((3, 9), None)] {
            let conn = on.world.connect(address("b")).await.map_err(told("connected"))?;
            let hello = Frame::Hello(Hello { versions, ..hello });
            send(&*conn, &hello, Buf::empty()).await.map_err(told("sent"))?;
            match receive(&*conn, &*on.world).await.map_err(told("received"))? {
                Some((Frame::Welcome(welcome), _)) => holds(Some(welcome.version) == spoken, "the version")?,
                Some((Frame::Refuse(refuse), _)) if spoken.is_none() => {
                    holds(refuse.why.contains("upgrade the older"), "it says why")?
                }
                other => return Err(format!("versions {versions:?}: {other:?}")),
            }
        }
        on.link(0, 1, false);
        on.hosts[0].paired().await?;
        on.ends().await
    });
}

/// Writes to the store have failed, and are still done, when another host asks for the volume: it gets that afterwards.
#[test]
fn what_a_store_has_failed_comes_before_a_move() {
    plays((2, 1), |mut on| async move {
        for _ in 0..6 {
            on.writes_that_come_late(0).await?;
            on.hosts[0].store.set_reach(Reach::Here);
            on.within(TAKEN, "it is given the volume", on.read(1)).await?;
            on.work(1, 20).await?;
            on.wait(Duration::from_secs(3)).await;
            on.read(1).await?;
            on.read(0).await?;
            on.hosts[0].paired().await?;
        }
        on.ends().await
    });
}

/// A host asks for the volume, and once more while the store holds up a request of the host that gives it: it is being
/// given all the same, and nothing is read or written there meanwhile.
#[test]
fn a_host_asks_again_while_the_volume_is_given_to_it() {
    plays((2, 1), |mut on| async move {
        on.work(0, 20).await?;
        let is_clean = || on.hosts[0].vm.info()["dirty_bytes"] == json!(0);
        on.until(TAKEN, "the store has everything", is_clean).await?;
        on.hosts[0].store.set_reach(Reach::Held);
        let store = Rc::clone(&on.hosts[0].below[0]);
        on.hosts[0].env.spawn(Box::pin(async move {
            let _read = store.submit(Io::read(0, Buf::zeroed(SLOT))).await;
        }));
        for _ in 0..2 {
            let _asked = on.within(Duration::from_secs(1), "it is given", on.read(1)).await;
            on.world.net().cut_host("b");
        }
        // The machine is back where it was.
        let read = on.within(Duration::from_secs(2), "it is read", on.read(0)).await;
        holds(read.is_err(), "I2: a volume is read that is being given away")?;
        let guests = on.guests(0, u64::MAX);
        on.world.sleep(Duration::from_secs(1)).await;
        on.hosts[0].store.set_reach(Reach::Here);
        on.wait(Duration::from_secs(3)).await;
        for guest in guests {
            guest.ended(&on.world).await?;
        }
        on.work(1, 20).await?;
        on.ends().await
    });
}

/// Writes to the store have failed, and are still done, when the device is closed: while the store does not answer, the
/// volume is not given back.
#[test]
fn what_a_store_has_failed_comes_before_the_volume_is_given_back() {
    for reach in [Reach::Here, Reach::Lost] {
        plays((2, 1), move |mut on| async move {
            on.writes_that_come_late(0).await?;
            on.hosts[0].store.set_reach(reach);
            // It may say that the store lacks something.
            let _ = on.hosts[0].close().await;
            let holder = on.seen.record().ok_or("no record")?.holder.map(|holder| holder.host);
            let expected = (reach == Reach::Lost).then(|| "a".to_owned());
            holds(holder == expected, format!("it is to be {expected:?}'s, and is {holder:?}'s"))?;
            on.hosts[0].kill();
            on.within(TAKEN * 2, "a peer takes it", on.read(1)).await?;
            on.work(1, 20).await?;
            on.ends().await
        });
    }
}

/// A volume is given away, the vault does that, and its answer is lost: the host learns of it when another one has the
/// volume. It serves nothing from then on, and can get the volume back as any host.
#[test]
fn the_answer_of_a_vault_that_has_given_a_volume_away_is_lost() {
    plays((2, 1), |mut on| async move {
        on.work(0, 20).await?;
        let vault = on.hosts[0].env.shared_folder(VAULT);
        for _ in 0..3 {
            vault.set_faults(2);
            let reads = async {
                // The host that has it may be about to give it away.
                while on.read(1).await.is_err() {
                    on.world.sleep(Duration::from_millis(300)).await;
                }
                Ok(())
            };
            on.within(TAKEN * 2, "it is given the volume, or takes it", reads).await?;
            on.work(1, 20).await?;
            vault.set_faults(0);
            on.wait(Duration::from_secs(2)).await;
            on.work(0, 20).await?;
            on.hosts[0].paired().await?;
        }
        on.ends().await
    });
}

/// Writes to the store fail, and are done all the same, later than what was tried again.
#[test]
fn a_store_fails_after_its_timeout_and_then_succeeds() {
    plays((2, 1), |mut on| async move {
        let guests = on.guests(0, u64::MAX);
        for _ in 0..4 {
            on.hosts[0].store.set_reach(Reach::Late);
            on.wait(Duration::from_secs(2)).await;
            on.hosts[0].store.set_reach(Reach::Here);
            on.wait(Duration::from_secs(2)).await;
            on.read(0).await?;
        }
        on.hosts[0].store.set_reach(Reach::Late);
        on.wait(Duration::from_secs(2)).await;
        on.hosts[0].kill();
        drop(guests);
        on.within(TAKEN, "a peer takes over", on.read(1)).await?;
        on.work(1, 30).await?;
        on.ends().await
    });
}
