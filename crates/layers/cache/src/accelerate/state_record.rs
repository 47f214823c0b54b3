//! What is kept with the hierarchy (`docs/formats/kept.md`): which volume of the flash it is, whether that
//! counts, and whether it may have what the store has not.
//!
//! Invariants:
//! * Before anything is written to the store past a flash that is not up to date with it, it is kept that the
//!   volume does not count any more (`attached`). So a flash that comes back later never brings old blocks
//!   back.
//! * Before a write is acknowledged that the store has not, it is kept that there may be such (`owes`).

use super::Policy;
use crate::flash::{Cache, Volume};
use lamina_block::{Begin, Build, Error, ErrorKind, Keep, Result};
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
        VolumeRecord { version: VERSION, uuid: hex(uuid), attached: true, owes }
    }

    /// Reads what was kept.
    pub fn read(words: &Value) -> Result<VolumeRecord> {
        let words = match version(words) {
            Some(1) => {
                let uuid = read::<First>(words, 1, "volume")?.uuid;
                VolumeRecord { version: VERSION, uuid, attached: true, owes: true }
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
}

impl Recorder {
    fn new(keep: &Rc<dyn Keep>, words: VolumeRecord) -> Recorder {
        Recorder {
            keep: Rc::clone(keep),
            words: RefCell::new(words),
            lock: Mutex::default(),
            is_unsure: Cell::new(false),
        }
    }

    pub fn words(&self) -> VolumeRecord {
        self.words.borrow().clone()
    }

    pub fn is_attached(&self) -> bool {
        self.words.borrow().attached
    }

    pub fn is_unsure(&self) -> bool {
        self.is_unsure.get()
    }

    /// Keeps what `change` makes of the words. It is durable when this returns.
    pub async fn change(&self, change: impl FnOnce(&mut VolumeRecord)) -> Result<()> {
        let _lock = self.lock.lock().await;
        let mut words = self.words();
        change(&mut words);
        if words == *self.words.borrow() && !self.is_unsure.get() {
            return Ok(());
        }
        self.is_unsure.set(true);
        self.keep.set(write(&words)).await?;
        self.is_unsure.set(false);
        *self.words.borrow_mut() = words;
        Ok(())
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

/// The volume of the flash that it is, of `size` blocks.
pub async fn open(with: &Build, cache: &Cache, size: u64, policy: Policy, read_only: bool) -> Result<Opened> {
    let Some(keep) = &with.keep else {
        return Err(no_words());
    };
    let owes = policy == Policy::WriteBack;
    let draw = || u128::from(with.env.random()) << 64 | u128::from(with.env.random());
    let words = match (with.begin, keep.get()) {
        (Begin::Format | Begin::Adopt, _) => {
            cache.check()?;
            let uuid = draw();
            // The flash first: what is kept is known there.
            let volume = cache.volume(uuid, size).await?;
            let words = VolumeRecord::new(uuid, owes);
            keep.set(write(&words)).await?;
            return Ok(Opened { volume, kept: Recorder::new(keep, words), trouble: None, is_unknown: false });
        }
        (Begin::Open, None) => return Err(corrupt("volume", "nothing is kept")),
        (Begin::Open, Some(words)) => VolumeRecord::read(&words)?,
    };
    let (uuid, kept) = (words.uuid(), Recorder::new(keep, words));
    let VolumeRecord { attached, owes: owed, .. } = kept.words();
    let without = |kept, e| {
        let volume = Rc::new(Volume::nowhere(uuid, size));
        Opened { volume, kept, trouble: Some(e), is_unknown: attached && owed }
    };
    if attached {
        let unusable = cache.check().err().or_else(|| (!cache.has(uuid)).then(unknown));
        let Some(e) = unusable else {
            let volume = cache.known(uuid, size)?;
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
        let uuid = draw();
        Ok((uuid, cache.volume(uuid, size).await?))
    };
    match anew.await {
        Err(e) => Ok(without(kept, e)),
        Ok((uuid, volume)) => {
            let words = VolumeRecord::new(uuid, owes);
            kept.change(|kept| *kept = words).await.inspect_err(|_| volume.is_open.set(false))?;
            Ok(Opened { volume, kept, trouble: None, is_unknown: false })
        }
    }
}

fn unknown() -> Error {
    let message = "the cache does not know this volume: the cache is another one, or was made anew; data that the \
                   store does not have is on the cache before";
    Error::new(ErrorKind::Corrupt, message)
}
