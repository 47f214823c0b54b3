//! The invariants of a volume on several hosts, as far as they are seen from outside: in the vault, in what guests are
//! answered, and in what would be found if everything ended now.
//!
//! At every change of the vault: of one generation there is one holder (I2), and generations and checkpoints never
//! fall (I6). At every answer: no host of a later generation had answered anything when the request was made (I2),
//! and a read gives nothing that is older than what was acknowledged (I7). At drawn moments
//! ([`Invariants::ends_now`]): a member that takes the volume after the death of all processes has every acknowledged
//! write (I1); after a power loss of all hosts, every flushed one, and nothing of it is older than what the store has
//! (I3), unless its flash had failed, and then the store becomes as old; and the same after a power loss of the store
//! at the same time, so that nothing was dropped before the store had it durably (I4). Late writes, recovery, loss
//! and progress (I5, I8, I9, I10) show in reads and at the end; the storm and the schedules look there.
//!
//! A machine that has lost its power, and takes the volume back before anybody else has it, lacks what was not flushed
//! (decision 0025): from there on that is not certain any more. One that lost its power while nobody took it out of the
//! vault, and takes the volume as a peer, is the same to the vault.
//!
//! A machine that was stopped with its clock cannot know that time has passed. Until it looks into the vault, its
//! guest, which was stopped with it, reads what there was when it was stopped, or what the store has got from others
//! since (I7: "from a generation *known* to have ended"), also if another host had taken the volume just before, and
//! waited. No write of it is acknowledged. That ends with its lease, if nobody had the volume when it went on.

use super::*;
use lamina_block::Keep;
use lamina_cluster::amend::declare_dead;
use lamina_cluster::host::Name;
use lamina_cluster::vault::{FolderVault, Record};
use lamina_sim::Images;
use std::collections::BTreeMap;
use std::ops::Range;

/// A machine that has stood still with its clock, and answers with nothing older than at a moment.
#[derive(Clone, Copy)]
struct Still {
    /// When it stopped; or, if it went on with the volume, when that was taken: `None` if it was not.
    since: Option<u64>,
    /// When it will have looked into the vault, by its own clock, if it goes on.
    until: Option<Time>,
}

/// A request was made at a tick, of a host that had stood still since a moment; the store may hold up the answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    at: u64,
    still: Option<u64>,
}

/// What was seen of a volume, and what is wrong.
pub struct Invariants {
    world: Weak<SimEnv>,
    pub history: Rc<History>,
    /// The newest record of the vault.
    record: RefCell<Option<Record>>,
    /// Who had the volume, from which tick on, in which generation.
    holders: RefCell<Vec<(u64, u64, Option<String>)>>,
    /// When the holder of a generation first answered something.
    served: RefCell<BTreeMap<u64, u64>>,
    /// Flashes of hosts.
    flashes: RefCell<BTreeMap<Uuid, &'static str>>,
    /// Members that have lost their power, and when: what was not flushed may be missing there.
    outages: RefCell<BTreeMap<Uuid, u64>>,
    /// Hosts whose clock has stood still, while another one may have taken the volume.
    still: RefCell<BTreeMap<String, Still>>,
    broken: RefCell<Option<String>>,
}

impl Invariants {
    /// Looks from now on.
    pub fn watch(world: &Rc<SimEnv>) -> Rc<Invariants> {
        let seen = Rc::new(Invariants {
            world: Rc::downgrade(world),
            history: Rc::default(),
            record: RefCell::default(),
            holders: RefCell::default(),
            served: RefCell::default(),
            flashes: RefCell::default(),
            outages: RefCell::default(),
            still: RefCell::default(),
            broken: RefCell::default(),
        });
        seen.history.ids.set(1);
        let me = Rc::downgrade(&seen);
        let watcher = move |name: &str, bytes: &[u8]| {
            // One that is torn is told of by whoever reads it.
            if let (Some(me), true, Ok(record)) =
                (me.upgrade(), name.contains(".record."), Record::decode(bytes))
            {
                me.saw(record);
            }
        };
        world.shared_folder(VAULT).watch(Some(Rc::new(watcher)));
        seen
    }

    fn world(&self) -> Rc<SimEnv> {
        self.world.upgrade().expect("it is there while somebody looks")
    }

    pub fn breaks(&self, what: String) {
        self.broken.borrow_mut().get_or_insert(what);
    }

    /// What is wrong, if anything is.
    pub fn check(&self) -> Checked {
        // What a process had begun on a disk when it died is given up half-way.
        if let Some(finding) = self.world().take_finding().filter(|of| !of.ends_with("was given up half-way"))
        {
            return Err(finding);
        }
        self.broken.borrow().clone().map_or(Ok(()), Err)
    }

    pub fn record(&self) -> Option<Record> {
        self.record.borrow().clone()
    }

    /// True if the vault says that a host has the volume.
    pub fn has_it(&self, host: &str) -> bool {
        self.holders.borrow().last().is_some_and(|(_, _, holder)| holder.as_deref() == Some(host))
    }

    /// True if the vault names this flash.
    pub fn is_member(&self, flash: Uuid) -> bool {
        self.record.borrow().as_ref().is_some_and(|record| record.mode.members().contains(&flash))
    }

    fn saw(&self, record: Record) {
        let before = self.record.borrow().clone();
        if let Some(before) = &before {
            if record.version < before.version || record == *before {
                // It was there, and was not made again.
                return;
            }
            let holder = |of: &Record| of.holder.as_ref().map(|holder| holder.host.clone());
            let is_next = record.version == before.version + 1;
            let rises = record.generation >= before.generation && record.checkpoint >= before.checkpoint;
            if !is_next || !rises {
                self.breaks(format!("I6: {before:?} is followed by {record:?}"));
            }
            let is_same = record.generation == before.generation;
            let is_right = match holder(&record) {
                None => is_same,
                found => !is_same && record.generation == before.generation + 1 || found == holder(before),
            };
            if !is_right {
                self.breaks(format!("I2: {before:?} is followed by {record:?}"));
            }
        }
        if is_told() {
            let holder = record.holder.as_ref().map_or("nobody", |holder| &holder.host);
            let flashes = self.flashes.borrow();
            let members: Vec<_> = record.mode.members().iter().map(|flash| flashes.get(flash)).collect();
            let (generation, unfenced) = (record.generation, record.unfenced);
            tell(
                &self.world(),
                format!("{holder} has it, {generation}, {members:?}, not fenced: {unfenced:?}"),
            );
        }
        let holder = record.holder.clone();
        let is_taken = before.is_none_or(|before| before.generation != record.generation);
        self.outages.borrow_mut().retain(|flash, at| {
            let is_member = record.mode.members().contains(flash);
            let takes = is_taken && holder.as_ref().is_some_and(|holder| holder.flash == Some(*flash));
            if is_member && takes {
                self.history.lost_power(*at);
            }
            is_member && !takes
        });
        if is_taken {
            self.still.borrow_mut().values_mut().for_each(|still| {
                still.since.get_or_insert(self.world().tick());
            });
        }
        let now = (self.world().tick(), record.generation, holder.map(|holder| holder.host));
        self.holders.borrow_mut().push(now);
        self.record.replace(Some(record));
    }

    /// True if a host has the volume for all that it can know: another one that has taken it has not answered anything.
    fn may_answer(&self, host: &str) -> bool {
        let (holders, served) = (self.holders.borrow(), self.served.borrow());
        let last = holders.iter().rposition(|(_, _, holder)| holder.as_deref() == Some(host));
        let Some((_, generation, _)) = last.map(|last| &holders[last]) else { return false };
        let is_next = |(_, next, holder): &(u64, u64, Option<String>)| {
            holder.is_some() && *next == generation + 1 && !served.contains_key(next)
        };
        holders[last.unwrap_or_default() + 1..].iter().all(is_next)
    }

    /// The machine of a host that has the volume stops with its clock.
    pub fn stands_still(&self, host: &str) {
        if self.may_answer(host) {
            let since = Some(self.world().tick());
            self.still.borrow_mut().insert(host.into(), Still { since, until: None });
        }
    }

    /// A machine goes on. If it has the volume still, it may be taken just now, and goes on answering until it has
    /// looked, or a lease is over.
    pub fn goes_on(&self, host: &str) {
        if let Some(still) = self.still.borrow_mut().get_mut(host).filter(|_| self.has_it(host)) {
            *still = Still { since: None, until: Some(self.world().now().after(LEASE)) };
        }
    }

    /// Since when a host has not known that another one may have the volume.
    fn still_since(&self, host: &str) -> Option<u64> {
        let now = self.world().now();
        let still = self.still.borrow().get(host).copied();
        still.filter(|still| still.until.is_none_or(|until| now < until)).and_then(|still| still.since)
    }

    /// A process of a host has begun.
    pub fn knows(&self, serves: &Serves) {
        self.still.borrow_mut().remove(serves.name);
        self.flashes.borrow_mut().extend(serves.flash().map(|flash| (flash, serves.name)));
    }

    /// The machine of a host loses its power now.
    pub fn loses_power(&self, serves: &Serves) {
        // Its process may have found a flash that failed.
        let known =
            || self.flashes.borrow().iter().find(|(_, of)| **of == serves.name).map(|(flash, _)| *flash);
        if let Some(flash) = serves.flash().or_else(known).filter(|flash| self.is_member(*flash)) {
            self.outages.borrow_mut().insert(flash, self.world().tick());
        }
    }

    /// A request is made of a host.
    pub fn asks(&self, host: &str) -> Asked {
        Asked { at: self.world().tick(), still: self.still_since(host) }
    }

    /// A host has answered a request.
    pub fn answered(&self, host: &str, asked: Asked, is_write: bool) -> Checked {
        let (holders, mut served) = (self.holders.borrow(), self.served.borrow_mut());
        let last = holders.iter().rev().find(|(_, _, holder)| holder.as_deref() == Some(host));
        let has_ended = match last {
            // It may not know that another one has the volume, until that one answers.
            Some((_, last, _)) => served.range(last + 1..).any(|(_, served)| *served < asked.at),
            None => true,
        };
        if has_ended && (is_write || asked.still.is_none()) {
            self.breaks(format!(
                "I2: {host} has answered, and does not have the volume: {last:?}, {served:?}, {asked:?}, \
                 write: {is_write}"
            ));
        }
        if let Some((_, generation, _)) = last.filter(|_| self.has_it(host)) {
            served.entry(*generation).or_insert_with(|| self.world().tick());
        }
        drop((holders, served));
        self.check()
    }

    /// Flushes. One that a host is asked for before it has answered anything covers nothing, also after a loss of
    /// power: whoever asks has neither written nor read.
    pub async fn flush(&self, host: &str, vm: &Rc<Node>) -> Result<()> {
        let generation = self.holders.borrow().last().map(|(_, generation, _)| *generation);
        let is_back = |flash| self.flashes.borrow().get(flash) == Some(&host);
        let serves = self.has_it(host)
            && self.served.borrow().contains_key(&generation.unwrap_or_default())
            && !self.outages.borrow().keys().any(is_back);
        match serves {
            true => self.history.flush(&self.world(), vm).await,
            false => vm.submit(Io::flush()).await,
        }
    }

    /// Reads and checks.
    pub async fn read(&self, vm: &Rc<Node>, at: Range<u64>) -> Checked {
        let still = vm.name().strip_prefix("vm-").and_then(|host| self.still_since(host));
        let read = self.history.read(&self.world(), vm, at.clone(), None).await;
        match (&read, still) {
            // It answers with nothing older than at that moment.
            (Err(e), Some(since)) if is_wrong(e) => {
                let read = self.history.read_since(vm, at, since).await;
                self.judge("I7, of a machine that stood still", read)
            }
            _ => self.judge("I7", read),
        }
    }

    /// Blocks that hold what they must not break an invariant; other errors are the caller's to judge.
    pub fn judge(&self, invariant: &str, read: Checked) -> Checked {
        let read = read.map_err(|e| match is_wrong(&e) {
            true => format!("{invariant}: {e}"),
            false => e,
        });
        if let Some(e) = read.as_ref().err().filter(|e| is_wrong(e)) {
            self.breaks(e.clone());
        }
        read
    }

    /// A host that has the volume gets further and no less far, in one generation.
    pub fn look(&self, serves: &Serves) {
        let info = serves.vm.info();
        let checkpoint = info["checkpoint"].as_u64().filter(|_| info["policy"] != json!("standby"));
        let generation = self.record().map_or(0, |record| record.generation);
        let now = checkpoint.map(|checkpoint| (generation, checkpoint));
        if let (Some((before, least)), Some(checkpoint)) = (serves.checkpoint.replace(now), checkpoint)
            && before == generation
            && checkpoint < least
        {
            self.breaks(format!("I6: {}: checkpoint {checkpoint} after {least}", serves.name));
        }
        // Loss is told with its place.
        let e = serves.vm.info()["flash_trouble"].as_str().unwrap_or_default().to_owned();
        if e.contains("not on the store are") && !e.contains(" bytes at ") {
            self.breaks(format!("I9: {}: {e}", serves.name));
        }
    }

    /// What would be found if everything ended now, and a host came back that may have the volume.
    pub fn ends_now(&self, peers: usize) -> Checked {
        let (world, Some(record)) = (self.world(), self.record()) else { return Ok(()) };
        let flashes = self.flashes.borrow();
        let members = record.mode.members();
        let host = match members.len() as u64 {
            0 => match &record.holder {
                Some(holder) => HOSTS.iter().find(|host| **host == holder.host).copied(),
                None => Some("a"),
            },
            count => flashes.get(&members[(world.random() % count) as usize]).copied(),
        };
        let Some(host) = host else { return Ok(()) };
        let flash = flashes.iter().find(|(_, of)| **of == host).map(|(flash, _)| *flash);
        let has_lost = flash.is_some_and(|flash| self.outages.borrow().contains_key(&flash));
        let end = match world.random() % 3 {
            0 if !has_lost => End::Processes,
            1 => End::Power,
            _ => End::PowerOfAll,
        };
        let (seed, loss) = (world.random(), Loss::ALL[world.random() as usize % 4]);
        let alive = world.orphans();
        let mut images = if end == End::Processes { alive.clone() } else { world.images(loss, seed) };
        if end == End::Power {
            images.extend(alive.into_iter().filter(|(path, _)| path.as_os_str() == "store"));
        }
        let folder = world.shared_folder(VAULT);
        let file = |name: String| folder.get(&name).map(|bytes| (name, bytes));
        let files = folder.names().into_iter().filter_map(file).collect();
        let found = after(end, host, peers, &images, files, (Rc::clone(&self.history), world.tick()));
        match found {
            // Late writes of two hosts at once are for a person.
            Err(e) if e.contains("is silent") && record.unfenced.is_some() => Ok(()),
            found => found.map_err(|e| {
                let (death, holders) = (world.tick(), self.holders.borrow());
                format!("at {death} {end:?}, {loss:?}, then {host}: {e} ({record:?}; {holders:?})")
            }),
        }
    }
}

/// What ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Processes,
    /// Of the hosts, and not of the store.
    Power,
    PowerOfAll,
}

pub fn is_wrong(e: &str) -> bool {
    e.contains("may hold one of")
}

/// What a host finds that begins in a world where all others have ended.
fn after(
    end: End,
    host: &'static str,
    peers: usize,
    images: &Images,
    files: Vec<(String, Vec<u8>)>,
    (history, death): (Rc<History>, u64),
) -> Checked {
    let world = Simulation::from_images(death, images);
    let env = world.env();
    let run = async move {
        files.iter().for_each(|(name, bytes)| env.shared_folder(VAULT).put(name, bytes));
        let disk: Rc<dyn Env> = Rc::clone(&env) as _;
        let disk = Node::new("store", "simulated", disk, env.disk("store").expect("it is there") as _);
        let all = || Buf::zeroed(SIZE as usize);
        let (stored, found) = (all(), all());
        disk.submit(Io::read(0, stored.clone())).await.map_err(told("the store"))?;
        let (kept, _) = SimKeep::open(&env, &format!("vm-{host}")).await.map_err(told("kept"))?;
        // Its flash has failed, and the store got from peers what it may lack.
        let is_behind = kept.get().is_some_and(|kept| kept["behind"] == json!(true));
        let serves = Serves::open(&env, host, peers, Begin::Open).await.map_err(told("opened"))?;
        match end {
            End::Processes => {
                let read = history.read_after_death(&serves.vm, 0..BLOCKS, death).await;
                read.map_err(|e| format!("I1: {e}"))?;
            }
            End::Power | End::PowerOfAll => {
                let read = history.read(&env, &serves.vm, 0..BLOCKS, Some(death)).await;
                read.map_err(|e| format!("{}: {e}", if end == End::Power { "I1" } else { "I1 or I4" }))?;
            }
        }
        if end != End::Power {
            return Ok(());
        }
        serves.vm.submit(Io::read(0, found.clone())).await.map_err(told("read"))?;
        let (place, size) =
            (|n, of: &[u8]| history.place(n as u64, of), crate::testing::history::BLOCK as usize);
        let places = |of: &Buf| -> Vec<_> {
            of.to_vec().chunks(size).enumerate().map(|(n, block)| place(n, block)).collect()
        };
        let (stored, found) = (places(&stored), places(&found));
        let Some(older) = (0..found.len()).find(|block| found[*block] < stored[*block]) else {
            return Ok(());
        };
        let wrong = |what| {
            let (stored, found) = (stored[older], found[older]);
            Err(format!("I3: block {older}: write {stored:?} on the store, {found:?} here{what}"))
        };
        if !is_behind {
            return wrong("");
        }
        // What has been read stays, and so the store is to get it: a person says that nothing of the others comes.
        let vault = FolderVault::new(Rc::clone(&env) as _, env.shared_folder(VAULT));
        for other in HOSTS.iter().filter(|other| **other != host) {
            let _none_may_be_awaited = declare_dead(&vault, &*env, Name::new("vm1").uuid, other).await;
        }
        serves.command("drain", json!({})).await.map_err(told("I3: drained"))?;
        let now = all();
        disk.submit(Io::read(0, now.clone())).await.map_err(told("the store"))?;
        if places(&now) != found { wrong(", which the store does not get") } else { Ok(()) }
    };
    world.run(run).map_err(|hang| hang.to_string())?
}
