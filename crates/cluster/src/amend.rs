//! Changes of records from outside of the hosts that have volumes: what a person says, and a host of its own past.

use crate::vault::{Mode, Outcome, Record, Vault, settle};
use lamina_block::{Env, Error, Result};
use uuid::Uuid;

/// A UUID that nobody else has.
pub(crate) fn draw(env: &dyn Env) -> Uuid {
    Uuid::from_u64_pair(env.random(), env.random())
}

/// Changes the record of a volume from outside of all hosts that have one; fails as `change` does, if that refuses.
pub(crate) async fn amend(
    vault: &dyn Vault,
    env: &dyn Env,
    volume: Uuid,
    change: impl Fn(&mut Record) -> Result<()>,
) -> Result<Record> {
    loop {
        let Some(newest) = vault.read(volume).await? else {
            return Err(Error::invalid(format!("the vault has no volume {volume}")));
        };
        let mut record = Record { version: newest.version + 1, nonce: draw(env), ..newest };
        change(&mut record)?;
        if settle(vault, env, &record, |_| true).await? == Outcome::Done {
            return Ok(record);
        }
    }
}

/// Nobody has a volume that `host` had, which is dead: a person has seen to it that it writes no more. If another host
/// has taken it since, that one is told that no late writes come any more. Fails with `Invalid` if another host has it,
/// or none.
pub async fn declare_dead(vault: &dyn Vault, env: &dyn Env, volume: Uuid, host: &str) -> Result<Record> {
    let change = |record: &mut Record| match &record.holder {
        _ if is_awaited(record, host) => {
            record.unfenced = None;
            Ok(())
        }
        Some(holder) if holder.host == host => {
            leaves(record);
            Ok(())
        }
        _ => Err(Error::invalid(format!("host {host:?} does not have volume {:?}", record.name))),
    };
    amend(vault, env, volume, change).await
}

/// Nobody has the volume any more. While late writes of the host before may come, that one is the one to ask for.
pub(crate) fn leaves(record: &mut Record) {
    let holder = record.holder.take();
    if record.unfenced.is_none() {
        record.previous = holder;
    }
}

/// True if late writes of `host` may come.
pub fn is_awaited(record: &Record, host: &str) -> bool {
    record.unfenced.is_some() && record.previous.as_ref().is_some_and(|previous| previous.host == host)
}

/// What only flashes have of a volume is given up: the store counts as it is. Fails with `Busy` while a host has the
/// volume.
pub async fn accept_loss(vault: &dyn Vault, env: &dyn Env, volume: Uuid) -> Result<Record> {
    let change = |record: &mut Record| match &record.holder {
        Some(holder) => Err(Error::busy(format!(
            "{holder} has volume {:?}: stop it, or say that it is dead",
            record.name
        ))),
        None => {
            let lost = std::mem::replace(&mut record.mode, Mode::Through);
            // The store is past the flash of a host that was no member any more.
            let is_past = |flash: &Uuid| lost != Mode::Through && !lost.members().contains(flash);
            if let Some(previous) = &mut record.previous {
                previous.flash = previous.flash.filter(|flash| !is_past(flash));
            }
            Ok(())
        }
    };
    amend(vault, env, volume, change).await
}
