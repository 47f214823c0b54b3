//! What a scheduler decides: which of the waiting requests goes to the drive next, if any.

use lamina_block::Time;
use lamina_drive::Request;

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Its number; later requests have higher ones.
    pub id: u64,
    /// Who asks: an export or a volume. 0 for requests that layers make by themselves.
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
    /// None goes before that time, unless another request comes or one ends: the policy is asked again then.
    Wait(Time),
    /// Nothing waits.
    Idle,
}

/// The order of requests: a plain struct that decides synchronously.
///
/// The layer asks [`Policy::choose`] only while the drive may be given another request, after each arrival and each
/// end. Every request that arrived is sent in the end: no policy may starve one while others come.
pub trait Policy {
    /// A request comes. It waits until it is chosen.
    fn arrived(&mut self, request: Queued);
    /// Which request is next. One that is chosen has gone to the drive.
    fn choose(&mut self, now: Time) -> Choice;
    /// A request that went to the drive at `sent` has ended.
    fn completed(&mut self, now: Time, sent: Time, request: &Queued);
    /// Gives up all waiting requests, oldest first, for another policy to take.
    fn drain(&mut self) -> Vec<Queued>;
}
