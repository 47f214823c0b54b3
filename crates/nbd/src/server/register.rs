//! Exports that several hosts share, and that keep the records of which has the volume.
//!
//! ```text
//!   host a   registers with generation 4 ──▶ writes
//!   host b   asks: generation 5 is b's ──▶ the record is appended ──▶ connections of 4 end, all that they had begun
//!            is done ──▶ b is told ──▶ registers with generation 5 ──▶ writes
//!   host a   (comes back) registers with generation 4 ──▶ is not registered: reads, and its writes are refused
//! ```
//!
//! Invariant: when a host is told that it has the volume in a generation, no request of an older one is under way, and
//! none is begun any more. A connection counts from before its key is compared with the newest record: it is either
//! refused, or found by whoever appends the next record.

use super::handshake::Identity;
use super::{Client, Server};
use lamina_block::{Error, Records, ReservationKey, Result};
use std::rc::Rc;

impl Server {
    /// Sees to what a connection says of itself; the key that it is registered with.
    pub(super) async fn identify(
        &self,
        client: &Client,
        identity: &Identity,
    ) -> Result<Option<ReservationKey>> {
        if let Some(session) = identity.session {
            self.fence(client, &identity.export, session).await?;
        }
        let Some(key) = identity.key else { return Ok(None) };
        client.key.replace(Some((identity.export.clone(), key)));
        let is_newest = self.records(&identity.export)?.is_newest(key).await?;
        if !is_newest {
            let (export, generation, peer) = (&identity.export, key.generation, client.conn.peer());
            tracing::warn!(export, generation, peer, "a host that has lost the volume: it may read");
            client.key.take();
        }
        Ok(is_newest.then_some(key))
    }

    /// The answer of what keeps the records of an export.
    pub(super) async fn ask(&self, export: &str, question: Vec<u8>) -> Result<Vec<u8>> {
        let answer = self.records(export)?.answer(question).await?;
        if let Some(key) = answer.preempts {
            let is_older = |other: &Client| {
                other.key.borrow().as_ref().is_some_and(|(of, held)| {
                    of == export && held.volume == key.volume && held.generation < key.generation
                })
            };
            let why = "the volume has changed hands: a connection of the host before is ended";
            self.end_all(export, is_older, why, "the host that had the volume before").await?;
        }
        Ok(answer.bytes)
    }

    fn records(&self, export: &str) -> Result<Rc<dyn Records>> {
        let exports = self.exports.borrow();
        let records = exports.get(export).and_then(|export| export.records.clone());
        records.ok_or_else(|| Error::offline("the export was removed"))
    }
}
