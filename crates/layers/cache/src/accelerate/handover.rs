//! A device with peers gives its volume to another host that asks, and keeps that one's writes from then on.
//!
//! ```text
//!      does a client use it here? ── yes ──▶ refused, unless that host is expected
//!         │ no
//!         ▼
//!      is what the store lacks on the other host's flash? ── no ──▶ the store gets everything, while requests pass
//!         │ yes                                                          │
//!         ▼                                                              ▼
//!      requests wait ──▶ closed, without a request under way ──▶ the vault: nobody has it ──▶ standby
//! ```
//!
//! A virtual machine that moves has stopped here before it asks for something there. So a client that could ask for
//! something here is a reason to refuse: two hosts that start one virtual machine are told so, and neither loses data.
//!
//! Invariants:
//! * The vault says that nobody has the volume when nothing of this host can reach the store or the flash any more.
//! * The store has everything then, or the host that asks has it, durably.

use super::remote::may_read;
use super::standby::Standby;
use super::{Accelerate, Policy};
use futures_util::future::select;
use lamina_block::{Command, Error, ErrorKind, Node, Pending, Result};
use lamina_cluster::Uuid;
use lamina_cluster::handover::Gives;
use lamina_cluster::remote::Remains;
use lamina_cluster::vault::{Holder, Mode, is_name};
use lamina_cluster::wire::Asking;
use lamina_kit::command::args;
use lamina_kit::flaw::flawed;
use serde::Deserialize;
use serde_json::{Value, json};
use std::pin::pin;
use std::rc::Rc;

impl Gives for Standby {
    fn give(&self, take: Asking) -> Pending {
        let me = self.here();
        Box::pin(async move {
            let Some((accelerate, node)) = me.now_primary() else {
                return Err(me.not_given());
            };
            me.may_give(&accelerate, &take)?;
            if !accelerate.is_at(take.flash) {
                accelerate.drained_to_give().await?;
                // Time has passed.
                me.may_give(&accelerate, &take)?;
            }
            let is_same = me.now_primary().is_some_and(|(now, _)| Rc::ptr_eq(&now, &accelerate));
            let leaving = if is_same { me.begin_to_leave() } else { None };
            let (host, Some(leaving)) = (&take.host, leaving) else {
                return Err(Error::busy("it is about to give the volume away"));
            };
            tracing::info!(device = %me.name(), host, "the volume is given to a host that asks for it");
            let left = me.leave(&accelerate, &node, take.flash).await;
            drop(leaving);
            left
        })
    }

    fn remains(&self, asking: Asking) -> Pending<Rc<dyn Remains>> {
        let me = self.here();
        Box::pin(async move {
            let is_it = |holder: &Holder| holder.host == asking.host && holder.flash == Some(asking.flash);
            let record = me.record().await?.filter(|record| record.holder.as_ref().is_some_and(is_it));
            match record {
                Some(record) if record.generation == asking.generation + 1 => {
                    may_read(me.left().as_ref(), asking.generation)
                }
                // Its flash has failed, and this one has the same.
                Some(record) if record.generation == asking.generation => {
                    may_read(me.kept(&record).as_ref(), asking.generation)
                }
                Some(_) | None => {
                    Err(Error::new(ErrorKind::Fenced, "the vault says that another host has the volume"))
                }
            }
        })
    }
}

/// The argument of `expect`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    host: String,
}

impl Standby {
    /// A host may take the volume from now on, until the next change of hands. If it is no peer, the store gets
    /// everything before this returns, and writes wait for the store.
    pub(super) async fn expect(&self, accelerate: &Rc<Accelerate>, command: Command) -> Result<Value> {
        let Expect { host } = args(command)?;
        if !is_name(&host) {
            return Err(Error::invalid(format!("host: {host:?} is no name of a host")));
        }
        let is_peer = accelerate.peers.as_ref().is_some_and(|peers| peers.has_host(&host));
        if !is_peer && accelerate.policy.get() == Policy::WriteBack {
            accelerate.set_policy(Policy::WriteThrough).await?;
        }
        self.expected().replace(Some(host.clone()));
        Ok(json!({ "expected": host, "policy": accelerate.policy.get() }))
    }

    /// Fails unless the volume may be given away now.
    fn may_give(&self, accelerate: &Rc<Accelerate>, take: &Asking) -> Result<()> {
        if let Some(why) = accelerate.failure.stopped() {
            return Err(why);
        }
        accelerate.needs_no_quarantine()?;
        if accelerate.kept.held().is_none_or(|held| held.record().generation != take.generation) {
            return Err(Error::busy("it has the volume in another generation"));
        }
        if self.has_commands() {
            return Err(Error::busy("a command is under way there"));
        }
        if self.is_in_use() && self.expected().borrow().as_ref() != Some(&take.host) {
            let message = format!(
                "a client uses it there: stop that client, or tell that host that the volume moves with the command \
                 `expect {}` of device {:?}",
                take.host,
                self.name()
            );
            return Err(Error::busy(message));
        }
        Ok(())
    }

    /// Nobody has the volume from now on, and this host keeps the writes of the one that takes it. Requests wait
    /// meanwhile.
    async fn leave(&self, accelerate: &Rc<Accelerate>, node: &Rc<Node>, to: Uuid) -> Result<()> {
        if flawed("a volume is given away while writes are under way") {
            return self.give_back().await;
        }
        accelerate.gives_to.set(Some(to));
        let closed = node.close().await;
        // What is under way to the store has an end, or the volume stays here.
        accelerate.tasks.ended().await;
        self.is_idle_below().await;
        closed?;
        // The vault has been told before anything was acknowledged that is not on the store.
        let mode = accelerate.kept.held().map(|held| held.record().mode);
        match mode {
            Some(mode) if mode == Mode::Through || mode.members().contains(&to) => self.give_back().await,
            _ => Err(Error::busy("a peer or the store was lost meanwhile: only this host has all writes")),
        }
    }
}

impl Accelerate {
    /// True if the flash with this UUID gets everything that is acknowledged before the store has it.
    pub(super) fn is_at(&self, flash: Uuid) -> bool {
        let is_peer = self.peers.as_ref().is_some_and(|peers| peers.has(flash));
        is_peer && self.policy.get() == Policy::WriteBack
    }

    /// The store has everything, as long as requests wait for it.
    async fn drained_to_give(&self) -> Result<()> {
        let (drained, waits) = (pin!(self.drained()), pin!(self.env.sleep(self.keys.store_timeout.0)));
        select(drained, waits).await;
        match self.is_drained() {
            true => Ok(()),
            false => Err(Error::busy("the store lacks writes that the flash has, and does not take them")),
        }
    }
}
