//! Three to five hosts, and everything that can happen to them: the volume is served by one after the other, and each
//! that answers does so rightly (`cluster/invariants.rs`). At the end nothing is wrong any more, and the volume is
//! there in bounded time (I10), with every acknowledged write, on the host that has it and on the store (I5, I8).
//!
//! Several things are wrong at a time: a trouble that is not over in its round goes on through the next ones.
//! `LAMINA_SEEDS` says which seeds are run, as "100" or "35..36":
//!
//! ```text
//! LAMINA_SEEDS=1000..2000 cargo test --release -p lamina-cache --lib hosts_in_a_storm
//! LAMINA_SEEDS=78..79 LAMINA_STORY=1 cargo test -p lamina-cache --lib hosts_in_a_storm -- --nocapture
//! ```
//!
//! The latter tells what happens.

use super::cluster::*;
use super::*;
use crate::testing::history::Checked;
use lamina_cluster::amend::declare_dead;
use lamina_cluster::host::Name;
use lamina_cluster::vault::FolderVault;
use lamina_sim::{Fate, Loss, Presence, Reach};

/// Each begins with guests on a host, and something that happens to them.
const ROUNDS: usize = 10;

/// What is wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Nothing gets from one host to another.
    Link(usize, usize),
    /// What becomes of a host's calls of the vault.
    Vault(usize, Fate),
    /// One call of a host in three fails in any way.
    Calls(usize),
    Store(usize, Reach),
    Flash(usize),
    /// The same, with the state records, which the device of the flash has.
    Device(usize),
}

struct Storm {
    group: Group,
    guests: Vec<(usize, Rc<Guest>)>,
    troubles: Vec<Trouble>,
}

impl std::ops::Deref for Storm {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl Storm {
    fn other(&self, than: usize) -> usize {
        (than + 1 + self.draw(self.hosts.len() - 1)) % self.hosts.len()
    }

    fn is_dead(&self, host: usize) -> bool {
        self.hosts[host].env.is_dead()
    }

    /// A process begins anew, and has the troubles of its host.
    async fn start(&mut self, host: usize) -> Checked {
        self.tell(format!("{} begins", HOSTS[host]));
        // Without its records there is no host.
        set_device(&self.world, HOSTS[host], Presence::Here);
        self.group.start(host).await?;
        self.troubles.iter().for_each(|trouble| self.set(*trouble, true));
        Ok(())
    }

    /// Says what happens, with `LAMINA_STORY`.
    fn tell(&self, what: impl std::fmt::Display) {
        tell(&self.world, what);
    }

    /// The process, or the machine, ends.
    fn end(&self, host: usize) {
        let serves = &self.hosts[host];
        if self.is_dead(host) {
            return;
        }
        let is_process = self.draw(2) == 0;
        self.tell(format!("{} dies: {}", HOSTS[host], if is_process { "process" } else { "power" }));
        match is_process {
            true => serves.kill(),
            false => {
                self.seen.loses_power(serves);
                serves.lose_power(Loss::ALL[self.draw(4)]);
            }
        }
    }

    fn set(&self, trouble: Trouble, is_on: bool) {
        let folder = |host: usize| self.hosts[host].env.shared_folder(VAULT);
        let presence = if is_on { Presence::Failing } else { Presence::Here };
        match trouble {
            Trouble::Link(from, to) if is_on => self.world.net().block(HOSTS[from], HOSTS[to]),
            Trouble::Link(from, to) => self.world.net().unblock(HOSTS[from], HOSTS[to]),
            Trouble::Vault(host, fate) => folder(host).set_fate(if is_on { fate } else { Fate::Done }),
            Trouble::Calls(host) => folder(host).set_faults(if is_on { 3 } else { 0 }),
            Trouble::Store(host, reach) => {
                self.hosts[host].store.set_reach(if is_on { reach } else { Reach::Here })
            }
            Trouble::Flash(host) => {
                self.world.disk(format!("flash-{}", HOSTS[host])).expect("a disk").set_presence(presence);
            }
            Trouble::Device(host) => set_device(&self.world, HOSTS[host], presence),
        }
    }

    fn begin(&mut self, trouble: Trouble) {
        self.tell(format!("{trouble:?}"));
        self.set(trouble, true);
        self.troubles.push(trouble);
    }

    /// Troubles end: all of them, or those that are drawn.
    fn heal(&mut self, all: bool) {
        let troubles = std::mem::take(&mut self.troubles);
        let (over, goes_on) = troubles.into_iter().partition(|_| all || self.draw(4) > 0);
        self.troubles = goes_on;
        let over: Vec<Trouble> = over;
        self.tell(format!("over: {over:?}"));
        over.into_iter().for_each(|trouble| self.set(trouble, false));
        self.troubles.iter().for_each(|trouble| self.set(*trouble, true));
    }

    /// Something happens to the host that has guests, and to others.
    async fn strike(&mut self, here: usize) -> Checked {
        let other = self.other(here);
        let one = if self.draw(2) == 0 { here } else { other };
        match self.draw(20) {
            0..=2 => self.end(here),
            3 => self.end(other),
            4 => {
                let (first, then) = if self.draw(2) == 0 { (here, other) } else { (other, here) };
                self.end(first);
                self.wait(Duration::from_secs(3)).await;
                self.end(then);
            }
            5..=7 => {
                let host = if self.draw(3) == 0 { other } else { here };
                let with_clock = self.draw(2) == 0;
                self.tell(format!("{} stops, with its clock: {with_clock}", HOSTS[host]));
                self.stop(host, with_clock);
                // What it has under way at the store stays there in any case.
                if self.draw(2) == 0 {
                    self.begin(Trouble::Store(host, Reach::Held));
                }
                self.wait(Duration::from_secs(9)).await;
            }
            8 => {
                self.tell(format!("connections of {} end", HOSTS[one]));
                self.world.net().cut_host(HOSTS[one]);
                if self.draw(2) == 0 {
                    self.wait(Duration::from_millis(300)).await;
                    self.end(here);
                }
            }
            9..=11 => {
                let which = self.draw(3);
                if which != 0 {
                    self.begin(Trouble::Link(here, other));
                }
                if which != 1 {
                    self.begin(Trouble::Link(other, here));
                }
            }
            12 => {
                let fate = [Fate::Lost, Fate::Unanswered, Fate::Late][self.draw(3)];
                let hosts: Vec<usize> = (0..self.hosts.len()).filter(|_| self.draw(2) == 0).collect();
                hosts.into_iter().for_each(|host| self.begin(Trouble::Vault(host, fate)));
            }
            13 => (0..self.hosts.len()).for_each(|host| self.begin(Trouble::Calls(host))),
            14 | 15 => {
                let reach = [Reach::Lost, Reach::Late, Reach::Held][self.draw(3)];
                let hosts: Vec<usize> = (0..self.hosts.len()).filter(|_| self.draw(2) == 0).collect();
                hosts.into_iter().chain([here]).for_each(|host| self.begin(Trouble::Store(host, reach)));
            }
            16 if self.draw(2) == 0 => self.begin(Trouble::Device(one)),
            16 => self.begin(Trouble::Flash(one)),
            17 => {
                self.tell(format!("a person says that {} is dead", HOSTS[here]));
                self.end(here);
                self.world.sleep(Duration::from_secs(1)).await;
                let vault = FolderVault::new(Rc::clone(&self.world) as _, self.world.shared_folder(VAULT));
                // Another one may have the volume by now.
                let _said = declare_dead(&vault, &*self.world, Name::new("vm1").uuid, HOSTS[here]).await;
            }
            _ => {
                self.tell(format!("the guest moves away from {}", HOSTS[here]));
                for (_, guest) in self.guests.iter().filter(|(host, _)| *host == here) {
                    guest.ends.set(true);
                }
                self.wait(Duration::from_secs(2)).await;
                let closes = Box::pin(self.hosts[here].close());
                let limit = self.world.sleep(Duration::from_secs(40));
                drop(futures_util::future::select(closes, limit).await);
                self.hosts[here].kill();
            }
        }
        Ok(())
    }

    /// A guest is on one host at a time. One whose host had the volume may still be there, and believe that it has it;
    /// but none waits for its turn to take the volume.
    fn may_have_guests(&self, here: usize) -> bool {
        let is_past = |host: usize| host != here && self.seen.has_it(HOSTS[host]);
        !self.is_dead(here) && self.guests.iter().all(|(host, guest)| !guest.may_write() || is_past(*host))
    }

    /// A host works, something happens, and what happened is over for the most part.
    async fn round(&mut self, here: usize) -> Checked {
        self.tell(format!("guests on {}: {}", HOSTS[here], self.may_have_guests(here)));
        if self.may_have_guests(here) {
            let guests = self.group.guests(here, u64::MAX);
            self.guests.retain(|(_, guest)| guest.may_write());
            self.guests.extend(guests.into_iter().map(|guest| (here, guest)));
        }
        self.wait(Duration::from_secs(6)).await;
        if self.draw(3) == 0 {
            self.seen.ends_now(self.peers)?;
        }
        self.strike(here).await?;
        if self.draw(2) == 0 {
            self.wait(Duration::from_millis(1500)).await;
            self.seen.ends_now(self.peers)?;
        }
        self.wait(Duration::from_secs(4)).await;
        // One whose host is stopped goes on where it was, and knows of nothing.
        let runs = |guest: &Guest| guest.env.is_running();
        self.guests.iter().filter(|(_, guest)| runs(guest)).for_each(|(_, guest)| guest.ends.set(true));
        for host in 0..self.hosts.len() {
            self.seen.look(&self.hosts[host]);
        }
        if self.draw(3) == 0 {
            self.seen.ends_now(self.peers)?;
        }
        self.heal(false);
        for host in 0..self.hosts.len() {
            if !self.is_dead(host) && !self.hosts[host].env.is_running() && self.draw(2) == 0 {
                self.tell(format!("{} goes on", self.hosts[host].name));
                self.go_on(host);
            }
            if self.is_dead(host) && self.draw(3) > 0 {
                self.start(host).await?;
            }
        }
        self.wait(Duration::from_secs(2)).await;
        self.seen.check()
    }

    /// Nothing is wrong any more: what goes on ends, and everything is there.
    async fn ends(&mut self) -> Checked {
        self.heal(true);
        for host in 0..self.hosts.len() {
            self.go_on(host);
        }
        for (_, guest) in &self.guests {
            guest.ended(&self.world).await?;
        }
        self.group.ends().await
    }
}

/// Hosts in a storm.
pub fn storm(seed: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let _logs = tell_logs(&env);
    let run = async move {
        let hosts = 3 + (env.random() % 3) as usize;
        let peers = 1 + (env.random() % (hosts as u64 - 2)) as usize;
        if env.random().is_multiple_of(4) {
            // A peer refuses what a small flash has no space for.
            put_flash(&env, HOSTS[env.random() as usize % hosts], FLASH / 4 * 3);
        }
        let group = Group::begin(&env, hosts, peers).await?;
        let (mut storm, mut here) = (Storm { group, guests: Vec::new(), troubles: Vec::new() }, 0);
        for round in 0..ROUNDS {
            storm.round(here).await.map_err(|e| format!("round {round}: {e}"))?;
            if storm.draw(2) == 0 {
                here = storm.draw(hosts);
            }
            // A machine is started where that can be.
            let runs = |host: &usize| storm.hosts[*host].env.is_running();
            here = (here..here + hosts).map(|n| n % hosts).find(runs).unwrap_or(here);
        }
        storm.ends().await
    };
    world.run(run).map_err(|hang| format!("I10: {hang}"))?
}

/// The seeds to run, of which there are `count` unless `LAMINA_SEEDS` says otherwise.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(seeds) = std::env::var("LAMINA_SEEDS") else { return 0..count };
    let (from, to) = seeds.split_once("..").unwrap_or(("0", &seeds));
    let number = |text: &str| text.parse::<u64>().expect("a seed");
    number(from)..number(to)
}

#[test]
fn hosts_in_a_storm() {
    let (seeds, began, mut failed) = (seeds(30), std::time::Instant::now(), Vec::new());
    let from = seeds.start;
    for seed in seeds {
        if let Err(e) = storm(seed) {
            println!("seed {seed}: {e}");
            failed.push(seed);
        }
        if (seed + 1 - from).is_multiple_of(500) {
            println!("{} seeds in {:?}, failed: {failed:?}", seed + 1 - from, began.elapsed());
        }
    }
    assert!(failed.is_empty(), "these seeds have failed: {failed:?}");
}
