//! A volume that changes hands while both hosts are alive: the host that wants it asks the one that has it.
//!
//! ```text
//!      b: a request comes ── Take ──▶ a: does a client use it here? ── yes ──▶ Refuse
//!                                     │ no
//!                                     ▼
//!                                     requests wait; what the store lacks gets there, or b's flash has it
//!                                     the vault: nobody has it
//!      b: asks the vault ◀── Given ───┘
//! ```
//!
//! The vault alone decides: an answer says that it is worth looking again, and nothing else.

use crate::conn::{receive, send};
use crate::host::{Held, Host};
use crate::link::in_time;
use crate::remote::{Remains, Remote};
use crate::vault::{Beat, Record};
use crate::wire::{Asking, Frame};
use lamina_block::{Address, Buf, Conn, Env, Error, ErrorKind, Pending, Result};
use std::rc::Rc;
use std::time::Duration;

/// The version of the protocol from which on hosts ask each other for volumes.
pub(crate) const MOVES: u16 = 2;
/// How often at most a host that is alive is asked for its volume.
pub(crate) const ASKS: Duration = Duration::from_millis(200);

/// A host that has given its volume to another one, which was alive.
#[derive(Clone, Debug)]
pub struct Giver {
    host: String,
    address: Address,
    /// The generation in which it had the volume.
    pub(crate) generation: u64,
}

impl Giver {
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// The host that has the volume as this record says, if it can be asked.
    pub(crate) fn of(record: &Record, beat: Option<&Beat>) -> Option<Giver> {
        let (host, generation) = (record.holder.as_ref()?.host.clone(), record.generation);
        Some(Giver { host, address: beat?.address.as_ref()?.parse().ok()?, generation })
    }
}

/// A device that has a volume, and may give it to another host.
pub trait Gives {
    /// Gives the volume back to the vault: nothing of this host is under way to the store when this returns. Fails with
    /// `Busy` if a client uses it here.
    fn give(&self, take: Asking) -> Pending;
    /// What this host still has of the volume in the generation in which the asking one was given it. Fails if it has
    /// nothing of that.
    fn remains(&self, asking: Asking) -> Pending<Rc<dyn Remains>>;
}

/// Asks over a connection for a volume, for as long as `at_most`. Fails with the host's words if it does not give it.
async fn ask(env: &dyn Env, conn: Rc<dyn Conn>, take: Asking, at_most: Duration) -> Result<()> {
    let asks = async {
        send(&*conn, &Frame::Take(take), Buf::empty()).await?;
        let answer = receive(&*conn, env).await;
        conn.shutdown();
        match answer? {
            Some((Frame::Given(_), _)) => Ok(()),
            Some((Frame::Refuse(refuse), _)) => Err(Error::busy(refuse.why)),
            Some(_) => Err(Error::new(ErrorKind::Corrupt, "a frame that answers no request for a volume")),
            None => Err(Error::offline("it ends the connection: one of version 1 gives no volume away")),
        }
    };
    in_time(env, at_most, asks).await
}

impl Host {
    /// Asks the host that has the volume for it, as long as `at_most`.
    pub(crate) async fn asks(&self, giver: Giver, at_most: Duration) -> Result<Giver> {
        let asking = self.asking(giver.generation)?;
        let conn = self.connect(&giver.host, giver.address.clone(), self.lease).await?;
        ask(&*self.env, conn, asking, at_most.max(ASKS)).await?;
        Ok(giver)
    }

    /// This host, as it asks another one for what that has, or had, in a generation.
    fn asking(&self, generation: u64) -> Result<Asking> {
        if self.versions().1 < MOVES {
            let message = "a volume is asked for with version 2 of the protocol, and `protocol` allows 1";
            return Err(Error::unsupported(message));
        }
        let me = self.holder.borrow();
        let (host, flash) = (me.host.clone(), me.flash.unwrap_or_default());
        Ok(Asking { versions: self.versions(), volume: self.volume.uuid, generation, flash, host })
    }
}

impl Held {
    /// What the flash of a peer of this host has of the volume, to be read.
    pub async fn reads_from_peer(&self, peer: &str, timeout: Duration) -> Result<Rc<Remote>> {
        let others = self.host.others().await?;
        let found = others.into_iter().find(|offer| offer.host == peer);
        let found = found.ok_or_else(|| Error::offline(format!("host {peer} is silent")))?;
        let asking = self.host.asking(self.record().generation)?;
        let conn = self.host.connect(&found.host, found.address, timeout).await?;
        Remote::begin(Rc::clone(&self.host.env), conn, asking, timeout).await
    }

    /// The host that has given the volume to this one; once, as only a device that sees all writes since can use it.
    pub fn take_giver(&self) -> Option<Giver> {
        self.giver.take()
    }

    /// What the flash of the host that has given the volume to this one still has of it, to be read.
    pub async fn reads_from(&self, giver: Giver, timeout: Duration) -> Result<Rc<Remote>> {
        let Giver { host, address, generation } = giver;
        let asking = self.host.asking(generation)?;
        let conn = self.host.connect(&host, address, timeout).await?;
        Remote::begin(Rc::clone(&self.host.env), conn, asking, timeout).await
    }
}
