//! What a scheduler decides: which of the waiting requests goes to the drive next, if any.

use super::keys::Keys;
use lamina_block::Time;
use lamina_drive::Request;
use serde_json::{Value, json};

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its number, from 1; later requests have higher ones.
    pub id: u64,
    /// Who asks ([`lamina_block::Io::client`]). 0 for requests that layers make by themselves.
    pub client: u32,
    /// When it came.
    pub arrived: Time,
    /// What is asked: a read or a write (zeroing and discards count as writes).
    pub request: Request,
}

/// A policy's decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// This request goes to the drive now.
    Send(u64),
    /// None goes before that time, unless another request comes or one ends: the policy is asked again then. Later than
    /// now, and [`NEVER`] only while the drive has a request of this policy.
    Wait(Time),
    /// Nothing waits.
    Idle,
}

/// The time of a [`Choice::Wait`] that ends with a request only.
pub const NEVER: Time = Time(u64::MAX);

/// How well a policy that knows the drive's cache has foretold its hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Requests that were foretold to be hits when they were sent, and have ended.
    pub predicted: u64,
    /// Those of them that took no longer than a hit.
    pub right: u64,
}

/// The order of requests: a plain struct that decides synchronously.
///
/// The layer asks [`Policy::choose`] only while the drive may be given another request, after each arrival and each
/// end. Every request that arrived is sent in the end: no policy may starve one while others come. Time never goes
/// backwards from call to call, except that a request taken over from another policy arrived in the past.
pub trait Policy {
    /// A request comes. It waits until it is chosen.
    fn arrived(&mut self, request: Queued);
    /// Which request is next. One that is chosen has gone to the drive.
    fn choose(&mut self, now: Time) -> Choice;
    /// A request that this policy chose at `sent` has ended.
    fn completed(&mut self, now: Time, sent: Time, request: &Queued);
    /// Gives up all waiting requests, oldest first, for another policy to take.
    fn drain(&mut self) -> Vec<Queued>;
    /// Takes over changed parameters; what waits, and what is known of the drive, stays. Unless a policy has
    /// parameters, nothing.
    fn tune(&mut self, _keys: &Keys) {}
    /// How well it foretells hits; `None` for a policy that does not.
    fn hits(&self) -> Option<Hits> {
        None
    }
    /// What else is worth showing: a JSON object. Unless a policy has something, empty.
    fn info(&self) -> Value {
        json!({})
    }
}
