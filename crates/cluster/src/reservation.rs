//! A reservation: what a device of kind `reservation` shares with the layers above it that keep what the store lacks.
//!
//! The volume is taken by the first layer or request that needs it, and given back at close. A layer that acknowledges
//! writes from a flash of this host says so to the vault before it does ([`Held::change`]).

use crate::host::{Held, Host};
use futures_util::future::{Either, select};
use lamina_block::{Error, Node, Result, Signal};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// How long a device that is closed waits for the vault.
pub const LAST: Duration = Duration::from_secs(10);

/// A volume that this host takes when it is needed.
pub struct Reservation {
    host: Rc<Host>,
    held: RefCell<Option<Rc<Held>>>,
    is_taking: Cell<bool>,
    moved: Signal,
}

impl Reservation {
    /// Of a host that beats.
    pub fn new(host: Rc<Host>) -> Rc<Reservation> {
        Rc::new(Reservation {
            host,
            held: RefCell::default(),
            is_taking: Cell::new(false),
            moved: Signal::new(),
        })
    }

    /// The volume, if this host has it.
    pub fn held(&self) -> Option<Rc<Held>> {
        self.held.borrow().clone()
    }

    /// True if this host has taken it, and has not given it back.
    pub fn is_held(&self) -> bool {
        self.held.borrow().is_some()
    }

    /// Why nothing may be read or written any more, if another host has the volume.
    pub fn fenced(&self) -> Option<Error> {
        self.held.borrow().as_ref().and_then(|held| held.fenced())
    }

    /// Takes the volume, unless this host has it already; `flash` is what keeps writes that the store lacks. Waits as
    /// long as it takes to see that another host is silent.
    pub async fn take(&self, flash: Option<Uuid>) -> Result<Rc<Held>> {
        self.moved.until(|| !self.is_taking.replace(true)).await;
        let taken = self.take_alone(flash).await;
        self.is_taking.set(false);
        self.moved.notify();
        taken
    }

    async fn take_alone(&self, flash: Option<Uuid>) -> Result<Rc<Held>> {
        if let Some(held) = self.held() {
            if flash.is_some() && held.record().holder.is_none_or(|holder| holder.flash != flash) {
                // What this flash had of the volume before is older than the store.
                held.change(|record| {
                    record.since = record.generation;
                    if let Some(holder) = &mut record.holder {
                        holder.flash = flash;
                    }
                })
                .await?;
            }
            return Ok(held);
        }
        self.host.set_flash(flash);
        let held = self.host.take(self.longest_wait()).await?;
        self.held.replace(Some(Rc::clone(&held)));
        Ok(held)
    }

    /// Long enough to see a host's silence.
    fn longest_wait(&self) -> Duration {
        self.host.lease() * 2
    }

    /// Nobody has the volume from now on, if this host had it, and the vault answers in time; the host beats no more.
    pub async fn end(&self) {
        if let Some(held) = self.held.take().filter(|held| held.fenced().is_none()) {
            let (gives, waits) = (pin!(held.give_back()), pin!(self.host.sleep(LAST)));
            if let Either::Right(_) | Either::Left((Err(_), _)) = select(gives, waits).await {
                tracing::warn!("the vault was not told that this host has given back its volume");
            }
        }
        self.host.stop();
    }
}

/// The reservation that a device is, if it is one.
pub fn reservation_of(node: &Rc<Node>) -> Option<Rc<Reservation>> {
    node.shared().and_then(|shared| shared.downcast::<Reservation>().ok())
}
