//! What layers say to a command that changes what is below them ([`lamina_block::Manage::consent`]).

use lamina_block::{Consent, Effect, Fate};

/// Of layers that keep nothing back after a flush, and remember something of what is below, as `why` says.
pub fn unless_replaced(effect: &Effect, why: impl FnOnce() -> String) -> Consent {
    match effect.bytes {
        Fate::Stay | Fate::Captured => Consent::Agrees,
        Fate::Replaced => Consent::Refuses(why()),
    }
}
