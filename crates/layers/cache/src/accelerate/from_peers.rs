//! What the flash had that the store lacks, from the flash of a peer (SYSTEMS C7): the flash of this host has failed,
//! and its virtual machine lives.
//!
//! ```text
//!      which blocks: the index, in memory ──▶ a peer: ReadFrom, in this generation ──▶ Read, Found … ──▶ store
//! ```
//!
//! Invariants:
//! * A peer is asked for what was acknowledged, and has that: the vault names its flash.
//! * What the store gets is durable on the peers. The flash of this host may come back without it: so it is kept before
//!   that the flash is behind the store, and after a crash clean blocks there do not count.
//! * What is under way is in memory, and gets to the store after that.

use super::Accelerate;
use super::destage::PAUSE;
use super::failure::{SideError, SideResult};
use crate::flash::{Dirty, SLOT};
use lamina_block::{Buf, Error, Result};
use lamina_cluster::remote::Remote;
use lamina_kit::flaw::flawed;
use std::cell::Cell;
use std::rc::Rc;

/// Blocks that are read together, at most.
const READ: usize = 256;
/// A peer has so many times longer for a read than for a sign of life: its flash is read.
const SLOW: u32 = 10;

impl Accelerate {
    /// Brings to the store what the flash had and the store lacks, with everything else at rest. Fails if no peer has
    /// it, or the store takes nothing for as long as requests wait for it.
    pub(super) async fn bring_from_peers(&self) -> Result<()> {
        let hosts = self.peers.as_ref().map_or(Vec::new(), |peers| peers.hosts());
        let Some(held) = self.kept.held() else { return Err(Error::offline("there is no peer")) };
        self.durable_at_peers().await?;
        if !flawed("a flash that is behind the store counts") {
            self.kept.change(|words| words.behind = true).await?;
        }
        let dirty = self.cache.everything(&self.volume).map_or(Vec::new(), |(dirty, _)| dirty);
        let mut why = Error::offline("there is no peer");
        for host in hosts {
            match held.reads_from_peer(&host, self.keys.peer_timeout.0 * SLOW).await {
                Ok(remote) => {
                    let brought = self.bring_from(&remote, &dirty).await;
                    remote.end();
                    match brought {
                        Ok(()) => {
                            let blocks = dirty.len();
                            tracing::warn!(device = %self.name, host, blocks, "the store has what a peer had");
                            return Ok(());
                        }
                        Err(SideError::Flash(e)) => why = e,
                        Err(SideError::Store(e)) => return Err(e),
                    }
                }
                Err(e) => why = e,
            }
        }
        Err(why)
    }

    /// Waits while the flash has failed, and the device has stopped or gets from peers what the store lacks. Nothing is
    /// acknowledged then, and the copies of peers are perhaps the only ones: the vault goes on naming them.
    pub(super) async fn is_settled(&self) {
        self.moved.until(|| self.failure.hopeless().is_none() || self.is_over() || self.is_detached()).await;
    }

    /// The flash was left, and the store has also what was on its way then.
    pub(super) fn store_has_all(&self) {
        let last = self.volume.serial.get();
        self.proceed(|progress| progress.store(last));
        self.proceed(|progress| progress.make_durable(last));
    }

    async fn bring_from(&self, remote: &Rc<Remote>, dirty: &[Dirty]) -> SideResult<()> {
        let (mut since, slowest) = (self.env.now(), Cell::default());
        for run in dirty.chunk_by(|a, b| b.block == a.block + 1).flat_map(|run| run.chunks(READ)) {
            let (first, last) = (run[0].block, run[run.len() - 1].block);
            let data = remote.read(first..last + 1).await.ok_or_else(|| {
                SideError::Flash(Error::offline("a peer does not have all that the store lacks"))
            })?;
            let block = |n: usize| data.slice(n * SLOT..(n + 1) * SLOT);
            let run: Vec<(Dirty, Buf)> =
                run.iter().enumerate().map(|(n, dirty)| (*dirty, block(n))).collect();
            while let Err(e) = self.write_blocks(&run, &slowest).await {
                let e = Error::from(e);
                if self.is_over() || !self.is_patient(&e, since) {
                    return Err(SideError::Store(e));
                }
                self.env.sleep(PAUSE).await;
            }
            since = self.env.now();
        }
        Ok(())
    }
}
