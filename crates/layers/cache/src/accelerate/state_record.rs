//! What is kept with the hierarchy (`docs/formats/kept.md`): which volume of the flash it is, whether that
//! counts, and whether it may have what the store has not.
//!
//! Invariants:
//! * Before anything is written to the store past a flash that is not up to date with it, it is kept that the
//!   volume does not count any more (`attached`). So a flash that comes back later never brings old blocks
//!   back.
//! * Before a write is acknowledged that the store has not, it is kept that there may be such (`owes`).
//! * Before the store gets from a peer what this flash may not keep without power, that is kept (`behind`).
//!
//! Over a `reservation` the vault says `owes` to all hosts, and first. What the flash has counts if no other one
//! had the volume since the generation that is kept. The device of the flash may be the one that keeps this record, and
//! fail with it: then the vault says that this flash does not count. It is no member any more, and when the store has
//! everything this host has no flash.

use super::Policy;
use crate::flash::{Cache, Volume};
use lamina_block::{Begin, Build, Error, ErrorKind, Keep, Result};
use lamina_cluster::Uuid;
use lamina_cluster::host::Held;
use lamina_cluster::reservation::Reservation;
use lamina_cluster::vault::{Mode, Record};
use lamina_kit::flaw::flawed;
use lamina_kit::mutex::Mutex;
use lamina_kit::state_record::{corrupt, read, version, write};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

pub const VERSION: u64 = 2;

/// What is kept.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeRecord {
    version: u64,
    /// Of the volume, on the flash.
    uuid: String,
    /// What the flash has counts.
    pub attached: bool,
    /// The flash may have what the store has not.
    pub owes: bool,
    /// The store may be past what the flash keeps without power: blocks that are not dirty there do not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub behind: bool,
    /// The generation of a reservation in which the flash was used last; 0: none.
    #[serde(default, skip_serializing_if = "is_none")]
    generation: u64,
}

fn is_none(generation: &u64) -> bool {
    *generation == 0
}

/// As version 1 had it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct First {
    #[expect(dead_code, reason = "it has been looked at")]
    version: u64,
    uuid: String,
}

impl VolumeRecord {
    pub fn new(uuid: u128, owes: bool) -> VolumeRecord {
        VolumeRecord { version: VERSION, uuid: hex(uuid), attached: true, owes, behind: false, generation: 0 }
    }

    /// Reads what was kept.
    pub fn read(words: &Value) -> Result<VolumeRecord> {
        let words = match version(words) {
            Some(1) => {
                let uuid = read::<First>(words, 1, "volume")?.uuid;
                VolumeRecord { uuid, ..VolumeRecord::new(0, true) }
            }
            _ => read(words, VERSION, "volume")?,
        };
        match u128::from_str_radix(&words.uuid, 16).map_err(|e| corrupt("volume", e))? {
            0 => Err(corrupt("volume", "no volume has this number")),
            _ => Ok(words),
        }
    }

    pub fn uuid(&self) -> u128 {
        u128::from_str_radix(&self.uuid, 16).unwrap_or_default()
    }

    pub fn set_uuid(&mut self, uuid: u128) {
        self.uuid = hex(uuid);
    }
}

fn hex(uuid: u128) -> String {
    format!("{uuid:032x}")
}

/// The words, and where they are kept.
pub struct Recorder {
    keep: Rc<dyn Keep>,
    words: RefCell<VolumeRecord>,
    /// One change at a time.
    lock: Mutex,
    /// Keeping them failed: either the old or the new may be found.
    is_unsure: Cell<bool>,
    /// By words that cannot be kept the flash counts less: the vault says that it does not count.
    is_disowned: Cell<bool>,
    /// What the vault is told, over a reservation: what this host has, and its flash.
    vault: RefCell<Option<(Rc<Held>, Uuid)>>,
    /// Flashes of other hosts that have what the store lacks, too.
    peers: RefCell<Vec<Uuid>>,
    /// The vault is to be told of what is owed, and this device has not taken the volume there.
    is_apart: Cell<bool>,
}

impl Recorder {
    fn new(keep: &Rc<dyn Keep>, words: VolumeRecord) -> Recorder {
        Recorder {
            keep: Rc::clone(keep),
            words: RefCell::new(words),
            lock: Mutex::default(),
            is_unsure: Cell::new(false),
            is_disowned: Cell::new(false),
            vault: RefCell::default(),
            peers: RefCell::default(),
            is_apart: Cell::new(false),
        }
    }

    /// Why the flash is not to be used before the device is opened again, if it is not.
    pub fn apart(&self) -> Option<Error> {
        let message = "the device was made while this host did not have the volume of its reservation: its flash is \
                       used when it is opened again";
        self.is_apart.get().then(|| Error::unsupported(message))
    }

    /// The volume of a reservation that this host has.
    pub fn held(&self) -> Option<Rc<Held>> {
        self.vault.borrow().as_ref().map(|(held, _)| Rc::clone(held))
    }

    /// Why nothing may be read or written any more, if another host has the volume.
    pub fn fenced(&self) -> Option<Error> {
        self.vault.borrow().as_ref().and_then(|(held, _)| held.fenced())
    }

    /// With the next change the vault names these flashes of other hosts.
    pub fn set_peers(&self, flashes: Vec<Uuid>) {
        self.peers.replace(flashes);
    }

    /// What the vault is to say: where the writes are, and the flash of this host. Fails if no flash has them.
    fn for_vault(&self, words: &VolumeRecord, flash: Uuid, says: &Record) -> Result<(Mode, Option<Uuid>)> {
        let is_disowned = self.is_disowned.get();
        let own = Some(flash).filter(|_| !is_disowned);
        let members: Vec<Uuid> = own.into_iter().chain(self.peers.borrow().iter().copied()).collect();
        match (words.owes, words.attached) {
            (true, _) if members.is_empty() => Err(Error::offline("no other flash has what the store lacks")),
            // Peers answer the host whose flash the vault knows.
            (true, _) => Ok((Mode::Back { members }, Some(flash))),
            (false, _) if is_disowned => Ok((Mode::Through, None)),
            (false, true) => Ok((Mode::Through, Some(flash))),
            (false, false) => Ok((Mode::Through, says.holder.as_ref().and_then(|holder| holder.flash))),
        }
    }

    /// Tells the vault what it does not say yet.
    async fn tell_vault(&self, words: &VolumeRecord) -> Result<()> {
        let Some((held, flash)) = self.vault.borrow().clone() else { return Ok(()) };
        let record = held.record();
        let (mode, flash) = self.for_vault(words, flash, &record)?;
        let is_known = record.mode == mode && record.holder.is_none_or(|holder| holder.flash == flash);
        if is_known || flawed("the vault is not told of writes that the store lacks") {
            return Ok(());
        }
        let names = |record: &mut Record| {
            record.mode = mode.clone();
            if let Some(holder) = record.holder.as_mut().filter(|holder| holder.flash != flash) {
                holder.flash = flash;
                record.since = record.generation;
            }
            if flawed("a generation falls") {
                record.generation = record.since;
            }
        };
        held.change(names).await
    }

    pub fn words(&self) -> VolumeRecord {
        self.words.borrow().clone()
    }

    pub fn is_attached(&self) -> bool {
        self.words.borrow().attached
    }

    /// This flash, or one of a peer, may have what the store has not.
    pub fn owes(&self) -> bool {
        self.words.borrow().owes
    }

    pub fn is_unsure(&self) -> bool {
        self.is_unsure.get()
    }

    /// Keeps what `change` makes of the words. It is durable when this returns.
    pub async fn change(&self, change: impl FnOnce(&mut VolumeRecord)) -> Result<()> {
        let _lock = self.lock.lock().await;
        let before = self.words();
        let mut words = before.clone();
        change(&mut words);
        if let Some(held) = self.held().filter(|_| words.attached) {
            words.generation = held.record().generation;
        }
        let was_unsure = self.is_unsure.replace(true);
        let is_kept = words == before && !was_unsure;
        // A flash that counts from now on is known here first: the vault may say that this host has none.
        let counts = words.attached && !before.attached;
        if counts {
            self.keep(&words).await?;
        }
        self.tell_vault(&words).await?;
        if !is_kept && !counts {
            let counts_less = !words.attached || words.behind && !before.behind;
            match self.keep(&words).await {
                Err(e) if counts_less => self.disown(&words, e).await?,
                kept => kept?,
            }
        }
        self.is_unsure.set(false);
        *self.words.borrow_mut() = words;
        Ok(())
    }

    async fn keep(&self, words: &VolumeRecord) -> Result<()> {
        self.keep.set(write(words)).await?;
        if words.attached {
            self.is_disowned.set(false);
            if let Some(held) = self.held() {
                held.knows_flash();
            }
        }
        Ok(())
    }

    /// The vault says that the flash does not count, as the words cannot be kept. Fails with `e` if it cannot say that.
    async fn disown(&self, words: &VolumeRecord, e: Error) -> Result<()> {
        let was_disowned = self.is_disowned.replace(true);
        let told = match flawed("a flash whose record is old counts") {
            true => Ok(()),
            false => self.tell_vault(words).await,
        };
        if self.vault.borrow().is_none() || told.is_err() {
            self.is_disowned.set(was_disowned);
            return Err(e);
        }
        tracing::warn!(error = %e, "the vault says that the flash does not count, as the state record cannot be kept");
        Ok(())
    }

    /// The flash works again, and has what it had: it counts. Fails if that cannot be kept.
    pub async fn own(&self) -> Result<()> {
        if self.is_disowned.get() && self.is_attached() {
            let _lock = self.lock.lock().await;
            self.keep(&self.words()).await?;
        }
        self.change(|_| {}).await
    }

    /// They are so, and it does not have to be known later.
    pub fn assume(&self, change: impl FnOnce(&mut VolumeRecord)) {
        change(&mut self.words.borrow_mut());
    }
}

/// What a device finds when it is opened.
pub struct Opened {
    pub volume: Rc<Volume>,
    pub kept: Recorder,
    /// Why the flash is not used, if it is not.
    pub trouble: Option<Error>,
    /// It is not known what the flash had that the store has not.
    pub is_unknown: bool,
}

pub fn no_words() -> Error {
    Error::invalid("it has to be known again: give the file a [hierarchy] table")
}

fn draw(with: &Build) -> u128 {
    u128::from(with.env.random()) << 64 | u128::from(with.env.random())
}

/// A new volume of the flash, of `size` blocks, and what is kept of it.
async fn make(
    with: &Build,
    keep: &Rc<dyn Keep>,
    cache: &Cache,
    size: u64,
    owes: bool,
) -> Result<(Rc<Volume>, VolumeRecord)> {
    cache.check()?;
    let uuid = draw(with);
    // The flash first: what is kept is known there.
    let volume = cache.volume(uuid, size).await?;
    let words = VolumeRecord::new(uuid, owes);
    keep.set(write(&words)).await?;
    Ok((volume, words))
}

/// The volume of the flash, of `size` blocks, for the writes of another host; none if the flash that the state record
/// is of may have what the store lacks, and is not this one.
pub async fn for_writes_of_others(with: &Build, cache: &Cache, size: u64) -> Result<Option<Rc<Volume>>> {
    let keep = with.keep.as_ref().ok_or_else(no_words)?;
    let words = match (with.begin, keep.get()) {
        (Begin::Format | Begin::Adopt, _) => {
            return make(with, keep, cache, size, false).await.map(|(volume, _)| Some(volume));
        }
        (Begin::Open, None) => return Err(corrupt("volume", "nothing is kept")),
        (Begin::Open, Some(words)) => VolumeRecord::read(&words)?,
    };
    match cache.has(words.uuid()) {
        true if words.attached => cache.known(words.uuid(), size).map(Some),
        _ if words.owes || cache.check().is_err() => Ok(None),
        // What the flash had does not count.
        true => {
            cache.drop_volume(words.uuid(), true).await?;
            make(with, keep, cache, size, false).await.map(|(volume, _)| Some(volume))
        }
        false => make(with, keep, cache, size, false).await.map(|(volume, _)| Some(volume)),
    }
}

/// The volume of the flash that it is, of `size` blocks.
pub async fn open(
    with: &Build,
    cache: &Cache,
    size: u64,
    policy: Policy,
    read_only: bool,
    reservation: Option<Rc<Reservation>>,
) -> Result<Opened> {
    let Some(keep) = &with.keep else {
        return Err(no_words());
    };
    // The vault is told before anything is owed, and has to know which generation this is: later.
    let owes = policy == Policy::WriteBack && reservation.is_none();
    let words = match (with.begin, keep.get()) {
        (Begin::Format | Begin::Adopt, _) => {
            let (volume, words) = make(with, keep, cache, size, owes).await?;
            let kept = Recorder::new(keep, words);
            // Another host may have the volume while this one's hierarchy is created.
            let trouble = match reservation {
                Some(reservation) if reservation.is_held() => {
                    let flash = cache.uuid();
                    let held = reservation.take(flash).await?;
                    kept.vault.replace(Some((held, flash.unwrap_or_default())));
                    None
                }
                Some(_) => {
                    kept.is_apart.set(true);
                    kept.apart()
                }
                None => None,
            };
            return Ok(Opened { volume, kept, trouble, is_unknown: false });
        }
        (Begin::Open, None) => return Err(corrupt("volume", "nothing is kept")),
        (Begin::Open, Some(words)) => VolumeRecord::read(&words)?,
    };
    let (uuid, kept) = (words.uuid(), Recorder::new(keep, words));
    let VolumeRecord { attached, owes: mut owed, generation, .. } = kept.words();
    // What the flash has may be older than the store.
    let mut is_old = false;
    if let Some(reservation) = reservation {
        let flash = cache.uuid();
        let held = reservation.take(flash).await?;
        let record = held.record();
        // A flash from before there was a reservation is the first one that ever had the volume, or has been missed.
        let is_first = generation == 0 && record.since == 1;
        // One that has what the vault says is missing on the store was a peer of the last host, or is its own.
        let has_all = flash.is_some_and(|flash| record.mode.members().contains(&flash));
        // One that this host has had in this generation before it had none is as old.
        let is_new = held.has_new_flash() && generation > 0;
        is_old = (generation < record.since || is_new) && !is_first && !has_all;
        is_old &= !flawed("what a flash had before another host counts");
        // What others have had since was on the store, unless the vault says otherwise.
        owed = record.mode != Mode::Through || owed && (!is_old || generation == 0);
        kept.vault.replace(Some((held, flash.unwrap_or_default())));
    }
    if !attached && kept.held().is_some_and(|held| held.record().mode != Mode::Through) {
        // The vault says that this flash has what the store lacks, and the state record that it has nothing.
        let volume = Rc::new(Volume::nowhere(uuid, size));
        return Ok(Opened { volume, kept, trouble: Some(unknown()), is_unknown: true });
    }
    let without = |kept, e| {
        let volume = Rc::new(Volume::nowhere(uuid, size));
        Opened { volume, kept, trouble: Some(e), is_unknown: attached && owed }
    };
    if attached && (!is_old || owed) {
        let other = || is_old.then(superseded).or_else(|| (!cache.has(uuid)).then(unknown));
        let unusable = cache.check().err().or_else(other);
        let Some(e) = unusable else {
            let volume = cache.known(uuid, size)?;
            if !read_only {
                kept.change(|words| words.owes |= owed).await.inspect_err(|_| volume.is_open.set(false))?;
            }
            return Ok(Opened { volume, kept, trouble: None, is_unknown: false });
        };
        match owed || read_only {
            true => kept.assume(|words| words.attached = owed),
            false => kept.change(|words| words.attached = false).await?,
        }
        return Ok(without(kept, e));
    }
    // What the flash has does not count: it begins anew.
    let anew = async {
        cache.check()?;
        if read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "it is read-only, and was used without its flash"));
        }
        if cache.has(uuid) {
            cache.drop_volume(uuid, true).await?;
        }
        let uuid = draw(with);
        Ok((uuid, cache.volume(uuid, size).await?))
    };
    match anew.await {
        Err(e) => {
            if !read_only {
                // It may be there again when the device is opened the next time, and the store is past it then.
                kept.change(|words| (words.attached, words.owes) = (false, false)).await?;
            }
            Ok(without(kept, e))
        }
        Ok((uuid, volume)) => {
            let words = VolumeRecord::new(uuid, owes);
            kept.change(|kept| *kept = words).await.inspect_err(|_| volume.is_open.set(false))?;
            Ok(Opened { volume, kept, trouble: None, is_unknown: false })
        }
    }
}

fn superseded() -> Error {
    let message = "other hosts have had the volume since this flash had writes that the store lacks";
    Error::new(ErrorKind::Corrupt, message)
}

fn unknown() -> Error {
    let message = "the cache does not know this volume: the cache is another one, or was made anew; data that the \
                   store does not have is on the cache before";
    Error::new(ErrorKind::Corrupt, message)
}
