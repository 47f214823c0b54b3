//! The answer of layers to a command that changes the bytes below them ([`lamina_block::Manage::consent`]).

use lamina_block::{Consent, Effect, Fate};

/// For layers without unflushed writes after a flush, and with state that depends on the bytes below, as
/// `why` says.
pub fn unless_replaced(effect: &Effect, why: impl FnOnce() -> String) -> Consent {
    match effect.bytes {
        Fate::Stay | Fate::Captured => Consent::Agrees,
        Fate::Replaced => Consent::Refuses(why()),
    }
}
