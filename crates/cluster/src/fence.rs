//! Late writes: what a host that is silent may still do to the store when another one takes its volume.
//!
//! ```text
//!      the store keeps the vault            the store refuses them, before anybody is told of the new host
//!      the flash here has all of them       *quarantine*: they are written again when the old host has ended
//!      otherwise                            the volume is taken when the old host has been fenced
//! ```
//!
//! A host is *fenced off* by a program ([`Env::fence`](lamina_block::Env::fence)) that switches it off or cuts it off
//! from its stores, or by a person who says that this is so ([`declare_dead`](crate::amend::declare_dead)); never by a
//! time that has passed.

use crate::amend::{amend, is_awaited, leaves};
use crate::held::Held;
use crate::host::Host;
use crate::reservation::Reservation;
use crate::vault::{Holder, Record};
use futures_util::future::select;
use lamina_block::{Error, ErrorKind, Result};
use std::pin::pin;
use std::rc::Rc;

/// What stops late writes of a host that is silent, and whose volume another one takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// A program or a person that sees to it that the host is off.
    Confirmed,
    /// Whoever takes the volume, if its flash has what the old host may still write: it writes that again when the old
    /// host has ended.
    Quarantine,
}

impl Host {
    /// What stops late writes of a host whose volume this one takes.
    pub fn set_fence(&self, fence: Fence) {
        self.fence.set(fence);
    }

    /// A record that leaves nothing to fence, if the vault does that.
    pub(crate) fn fenced_by_vault(&self, record: Record) -> Record {
        match self.vault().fences() {
            true => Record { unfenced: None, ..record },
            false => record,
        }
    }

    /// The silent holder of `newest`, if this host may not have the volume (as in `next`) before that one is fenced.
    pub(crate) fn to_be_fenced<'a>(&self, newest: &'a Record, next: &Record) -> Option<&'a Holder> {
        let holder = newest.holder.as_ref().filter(|_| next.unfenced == Some(newest.generation))?;
        let flash = self.holder.borrow().flash;
        let has_all = flash.is_some_and(|flash| newest.mode.members().contains(&flash));
        // Of one host before at a time late writes are known.
        let is_kept_apart = self.fence.get() == Fence::Quarantine && has_all && newest.unfenced.is_none();
        (!is_kept_apart && !self.vault().fences()).then_some(holder)
    }

    /// Sees to it that the silent holder of a volume writes to the store no more. Fails with `Offline`, and with what a
    /// person can do, if this host cannot.
    pub(crate) async fn fence_holder(&self, record: &Record, holder: &Holder) -> Result<()> {
        self.fence_off(&holder.host, record).await.map_err(|e| {
            let tried = match e.kind() {
                ErrorKind::Unsupported => String::new(),
                _ => format!(" {}.", e.message()),
            };
            Error::offline(format!(
                "{holder} has the volume in generation {}, and is silent: it may be cut off, and still write to the \
                 store.{tried} See to it that the host is off, and then say so with `lamina vault VAULT host-is-dead \
                 {}`, where VAULT is what the key `vault` says",
                record.generation, holder.host
            ))
        })
    }

    /// Fences a host that has the volume in `record`, or whose late writes may come there, and says so in the vault.
    async fn fence_off(&self, host: &str, record: &Record) -> Result<()> {
        self.env.fence(host).await?;
        let volume = &self.volume.name;
        tracing::warn!(volume, host, "the host is fenced: nothing of it reaches the store any more");
        let is_off = |now: &mut Record| {
            if now.unfenced == record.unfenced && is_awaited(now, host) {
                now.unfenced = None;
            }
            // A host that was switched on again may have taken the volume anew since: that is another generation.
            let has_it = now.holder.as_ref().is_some_and(|holder| holder.host == host);
            if has_it && now.generation == record.generation {
                leaves(now);
            }
            Ok(())
        };
        amend(self.vault(), &*self.env, self.volume.uuid, is_off).await.map(drop)
    }
}

impl Reservation {
    /// Late writes of the host before may come: it is fenced, if this host can do that. One that is alive, and can say
    /// itself that it has ended, has time for it.
    pub(crate) fn fences_the_host_before(&self, held: &Rc<Held>) {
        let (record, me) = (held.record(), self.host().name());
        let awaited = record.previous.as_ref().filter(|before| is_awaited(&record, &before.host));
        let Some(before) = awaited.filter(|before| before.host != me).map(|before| before.host.clone())
        else {
            return;
        };
        let patience = self.settles().map(|settles| settles + self.host().lease() * 2);
        let (held, host) = (Rc::clone(held), Rc::clone(self.host()));
        let env = Rc::clone(&host.env);
        env.spawn(Box::pin(async move {
            let fences = async {
                host.sleep(patience.unwrap_or_default()).await;
                while let Err(e) = host.fence_off(&before, &record).await
                    && e.kind() != ErrorKind::Unsupported
                {
                    tracing::warn!(volume = %host.volume().name, error = %e, "late writes may come");
                    host.sleep(host.lease()).await;
                }
            };
            select(pin!(held.until_alone()), pin!(fences)).await;
        }));
    }
}
