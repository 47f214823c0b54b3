//! When a write is acknowledged, and how that changes while the device is used.

use super::Accelerate;
use futures_util::future::{Either, select};
use lamina_block::{Error, Io, Result};
use lamina_kit::flaw::flawed;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::pin::pin;

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// When the flash has it.
    #[default]
    WriteBack,
    /// When the store has it too.
    WriteThrough,
    /// The flash is not used.
    Uncached,
}

/// When what is dirty gets to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Destage {
    /// As soon as the store takes it.
    #[default]
    Soon,
    /// When its space on the flash is needed.
    Late,
}

/// The argument of `set-policy`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetPolicy {
    pub policy: Policy,
}

/// The argument of `set-share`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetShare {
    pub share: u32,
}

impl Accelerate {
    /// The store has everything, and the flash nothing that counts.
    pub(super) async fn forget(&self) -> Result<()> {
        // What has been read is still being put on the flash: it would be there afterwards.
        let _all = self.lock(&(0..u64::MAX)).await;
        self.drained().await?;
        self.cache.forget(&self.volume).await
    }

    pub(super) async fn set_policy(&self, policy: Policy) -> Result<Value> {
        let before = self.policy.get();
        if !flawed("a policy that ignores the failing flash") {
            self.while_leaving().await;
        }
        if let Some(why) = self.failure.stopped() {
            return Err(why);
        }
        if policy == Policy::Uncached {
            self.needs_no_quarantine()?;
        }
        if let Some(answer) = self.set_policy_with_peers(policy).await? {
            return Ok(answer);
        }
        // With peers they say when writes can be acknowledged from flash.
        let policy =
            if self.peers.is_some() && policy == Policy::WriteBack { Policy::WriteThrough } else { policy };
        if let Some(why) = self.kept.apart().filter(|_| policy != Policy::Uncached) {
            return Err(why.on(&self.name));
        }
        if self.is_detached() && policy != Policy::Uncached {
            if before != Policy::Uncached {
                // Writes go past the flash now, and this command did not quiesce the device.
                return Err(self.left_meanwhile());
            }
            self.attach(policy).await?;
        }
        match (before, policy) {
            (Policy::Uncached, Policy::WriteBack | Policy::WriteThrough) => {
                // Over a `redo`: what was written directly is no part of the next epoch.
                self.store.submit(Io::flush()).await?;
                self.use_flash(policy).await?;
            }
            (_, Policy::WriteBack) => self.use_flash(policy).await?,
            (_, Policy::WriteThrough) => {
                // From now on every write waits for the store.
                self.policy.set(policy);
                let drained = self.drained().await;
                if self.policy.get() == Policy::WriteThrough {
                    drained?;
                    self.cache.settle(&self.volume).await?;
                    self.keep_owes().await?;
                }
            }
            (_, Policy::Uncached) if self.is_detached() => {}
            (_, Policy::Uncached) => {
                self.forget().await?;
                self.policy.set(policy);
                self.keep_owes().await?;
            }
        }
        tracing::info!(device = %self.name, ?before, ?policy, "the policy has changed");
        Ok(json!({ "policy": self.policy.get(), "before": before }))
    }

    /// Changes to a policy that uses the flash. The device may have been detached while the state record was busy: the
    /// policy is then as that has left it, or writes would be acknowledged that no copy counts of.
    async fn use_flash(&self, policy: Policy) -> Result<()> {
        self.kept.change(|words| words.owes |= words.attached && policy == Policy::WriteBack).await?;
        if self.is_detached() && !flawed("a policy that ignores the failing flash") {
            return Err(self.left_meanwhile());
        }
        self.policy.set(policy);
        Ok(())
    }

    /// Another policy is wanted: the answer, if peers decide when it holds.
    pub(super) async fn set_policy_with_peers(&self, policy: Policy) -> Result<Option<Value>> {
        let Some(peers) = &self.peers else { return Ok(None) };
        let before = peers.policy.get();
        peers.set_policy(policy);
        if policy == Policy::WriteBack {
            if self.policy.get() == Policy::Uncached {
                return Ok(None);
            }
            return Ok(Some(json!({ "policy": policy, "before": before })));
        }
        self.peers_leave(policy).await.inspect_err(|_| peers.set_policy(before))?;
        Ok(None)
    }

    /// Waits until no peer has anything that counts, for as long as requests wait for a store.
    pub(super) async fn peers_leave(&self, policy: Policy) -> Result<()> {
        let Some(peers) = &self.peers else { return Ok(()) };
        peers.set_policy(policy);
        let have_left = pin!(peers.moved.until(|| self.volume.tap.borrow().is_none() || self.is_over()));
        match select(have_left, self.env.sleep(self.keys.store_timeout.0)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => {
                let message = "the store or the vault does not answer: peers may have what the store lacks";
                Err(Error::offline(message).on(&self.name))
            }
        }
    }

    /// Fails while late writes of another host may come.
    pub(super) fn needs_no_quarantine(&self) -> Result<()> {
        match self.volume.quarantine.is_empty() {
            true => Ok(()),
            false => {
                Err(Error::busy("late writes of the host that had the volume before may come").on(&self.name))
            }
        }
    }

    fn left_meanwhile(&self) -> Error {
        let message = "the flash has failed meanwhile, and the device goes on without it: `set-policy` attaches the \
                       device again when the flash works";
        Error::offline(message).on(&self.name)
    }
}

/// Percent of the flash, as thousandths.
pub fn permille(share: u32) -> Result<u32> {
    match share {
        1..=100 => Ok(share * 10),
        _ => Err(Error::invalid("share: is from 1 to 100 percent")),
    }
}
