//! The store is about to change otherwise than by a write: it is rolled back, cut off, or kept as it is.
//!
//! ```text
//!      captured:  destaged, all there is ──▶ quiesced, the rest destaged
//!      replaced:  destaged, all there is ──▶ quiesced, the rest destaged ──▶ forgotten, durably ──▶ the store changes
//! ```
//!
//! What is on the flash is of the store as it was. It stops to count before anything changes (the generation
//! from which on blocks count is raised): a crash between the two leaves a cold cache, and never an old block
//! over a new one.

use super::failure::SideResult;
use super::{Accelerate, Policy};
use crate::flash;
use lamina_block::{Config, Consent, Effect, Error, Fate, Kind, Node, Over, Result};
use std::rc::Rc;

/// Fails unless a device is over a store and a flash, in this order.
pub(crate) fn check_over(over: &Over<'_>) -> Result<()> {
    let is_flash = |kind: &Kind| kind.name == flash::Keys::KIND;
    match over.kinds {
        [_, cache] if is_flash(cache) => match over.deeper.iter().find(|kind| kind.traits.reserves) {
            None => Ok(()),
            // It would not know of the writes that only the flash has.
            Some(kind) => Err(Error::invalid(format!(
                "over: the device of kind \"{}\" further down has to be the store itself",
                kind.name
            ))),
        },
        [store, _] if is_flash(store) => {
            Err(Error::invalid("over: the store comes first, and the device of kind \"flash\" second"))
        }
        _ => Err(Error::invalid("over: the second device is to be one of kind \"flash\"")),
    }
}

impl Accelerate {
    pub(super) fn consents(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        if !Rc::ptr_eq(child, &self.store) {
            return Consent::Refuses(format!("it finds its blocks on {}", child.name()));
        }
        if let Some(why) = self.failure.stopped() {
            return Consent::Refuses(why.message().to_owned());
        }
        if self.is_detached() {
            return Consent::Agrees;
        }
        let is_replaced = match effect.bytes {
            Fate::Stay => return Consent::Agrees,
            Fate::Captured => false,
            Fate::Replaced => true,
        };
        let (me, ahead) = (Rc::clone(&self), Rc::clone(&self));
        let ahead = Box::pin(async move { Ok(ahead.nearly_drained().await?) });
        Consent::Prepares(ahead, Box::pin(async move { me.hand_over(is_replaced).await }))
    }

    /// The store has what was written before this was called.
    pub(super) async fn nearly_drained(&self) -> SideResult<()> {
        let serial = self.last_dirty();
        self.wait_for(|me| me.progress.get().durable() >= serial || me.is_drained()).await
    }

    /// The store has everything; if `is_replaced`, what the flash has does not count any more, durably.
    async fn hand_over(&self, is_replaced: bool) -> Result<()> {
        let is_written = self.policy.get() != Policy::Uncached;
        match is_replaced {
            true if self.cache.is_read_only() || self.store.geometry().read_only => {
                Err(Error::invalid("it is read-only: it cannot forget what it has of the store")
                    .on(&self.name))
            }
            true => self.forget().await,
            false if is_written => Ok(self.drained().await?),
            false => Ok(()),
        }
    }
}
