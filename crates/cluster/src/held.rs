//! A volume that this host has: its record can be changed here, until another host has the volume.
//!
//! Invariant: of the hosts that hold a volume at most one can change its record; the others are told that they are
//! fenced.

use crate::amend::leaves;
use crate::handover::Giver;
use crate::host::Host;
use crate::vault::{Holder, Outcome, Record, settle};
use lamina_block::{Error, ErrorKind, Result, Signal};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A volume that this host has.
pub struct Held {
    pub(crate) host: Rc<Host>,
    record: RefCell<Record>,
    /// An earlier process of this host had it until this one.
    is_again: bool,
    /// A change is under way; others wait.
    is_changing: Cell<bool>,
    /// Another host has the volume now.
    fenced: RefCell<Option<Error>>,
    /// It has been given back, or there was an attempt.
    is_over: Cell<bool>,
    /// The record has changed, or this host is fenced.
    moved: Signal,
    /// The flash came after the volume was taken, and nothing is known of it yet.
    has_new_flash: Cell<bool>,
    /// The host that has given the volume to this one.
    pub(crate) giver: RefCell<Option<Giver>>,
}

fn fenced(record: &Record) -> Error {
    let who = record.holder.as_ref().map_or("nobody".into(), Holder::to_string);
    let message = format!("volume {:?}: {who} has it now, in generation {}", record.name, record.generation);
    Error::new(ErrorKind::Fenced, message)
}

/// A change of the record is under way; perhaps nobody waits for its end.
struct Changes<'a>(&'a Held);

impl Drop for Changes<'_> {
    fn drop(&mut self) {
        self.0.is_changing.set(false);
        self.0.moved.notify();
    }
}

/// The volume is being given back; perhaps nobody waits for the end of that.
struct GivesBack<'a>(&'a Held);

impl Drop for GivesBack<'_> {
    fn drop(&mut self) {
        self.0.is_over.set(true);
        self.0.moved.notify();
    }
}

impl Held {
    pub(crate) fn new(host: &Rc<Host>, record: Record, giver: Option<Giver>, is_again: bool) -> Held {
        Held {
            host: Rc::clone(host),
            record: record.into(),
            is_again,
            is_changing: Cell::new(false),
            fenced: RefCell::default(),
            is_over: Cell::new(false),
            moved: Signal::new(),
            has_new_flash: Cell::new(false),
            giver: giver.into(),
        }
    }

    /// True if an earlier process of this host had it until this one, whoever had it before.
    pub fn is_again(&self) -> bool {
        self.is_again
    }

    /// What the flash of this host had of the volume, also in this generation, is older than the store.
    pub fn has_new_flash(&self) -> bool {
        self.has_new_flash.get()
    }

    /// The flash of this host begins to have the volume.
    pub(crate) fn begins_with_flash(&self) {
        self.has_new_flash.set(true);
    }

    /// It is kept in which generation the flash of this host has the volume.
    pub fn knows_flash(&self) {
        self.has_new_flash.set(false);
    }

    pub(crate) fn is_changing(&self) -> bool {
        self.is_changing.get()
    }

    /// What the vault says, as far as this host knows.
    pub fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Why nothing may be read or written any more, if another host has the volume.
    pub fn fenced(&self) -> Option<Error> {
        self.fenced.borrow().clone()
    }

    /// True if a record, perhaps of somebody else, leaves the volume with this host as it is.
    pub(crate) fn is_mine(&self, newest: &Record) -> bool {
        newest.generation == self.record.borrow().generation && newest.holder.is_some()
    }

    /// Somebody else has changed the record, and this host has the volume all the same.
    pub(crate) fn saw(&self, newest: Record) {
        if newest.version > self.record.borrow().version {
            self.record.replace(newest);
            self.moved.notify();
        }
    }

    /// Ends when nothing of an older generation can reach the store any more, or when another host has the volume.
    pub async fn until_alone(&self) {
        let is_alone = || self.record.borrow().unfenced.is_none();
        self.moved.until(|| is_alone() || self.fenced.borrow().is_some() || self.is_over.get()).await;
    }

    /// Ends when another host has the volume, or when this one has given it back: `None`. While it is being given back,
    /// another host may still take it.
    pub async fn until_fenced(&self) -> Option<Error> {
        self.moved.until(|| self.fenced.borrow().is_some() || self.is_over.get()).await;
        self.fenced()
    }

    pub(crate) fn is_fenced_by(&self, newest: &Record) -> Error {
        let e = fenced(newest);
        if self.fenced.borrow().is_none() {
            tracing::error!(volume = %newest.name, error = %e, "fenced: nothing is read or written here any more");
            self.host.knows(newest.clone());
            self.fenced.replace(Some(e.clone()));
            self.moved.notify();
        }
        e
    }

    /// Changes the record. When this returns the vault says so, durably. Fails with `Fenced` if another host has the
    /// volume now: nothing may be acknowledged any more.
    pub async fn change(&self, change: impl Fn(&mut Record)) -> Result<()> {
        self.moved.until(|| !self.is_changing.replace(true)).await;
        let _changes = Changes(self);
        loop {
            let before = self.record();
            let mut record = self.host.after(&before, before.clone());
            change(&mut record);
            let gives_up = |_: &Error| self.host.is_stopped();
            let settled = settle(self.host.vault(), &*self.host.env, &record, gives_up).await;
            match settled {
                Ok(Outcome::Done) => {
                    self.host.knows(record.clone());
                    self.record.replace(record);
                    return Ok(());
                }
                Ok(Outcome::Lost(newest)) if self.is_mine(&newest) => self.saw(*newest),
                Ok(Outcome::Lost(newest)) => return Err(self.is_fenced_by(&newest)),
                Err(e) => return Err(e),
            }
        }
    }

    /// Nobody has the volume from now on.
    pub async fn give_back(&self) -> Result<()> {
        self.host.forget_held();
        let _gives_back = GivesBack(self);
        self.change(leaves).await
    }
}
