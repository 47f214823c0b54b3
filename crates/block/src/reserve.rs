//! A store that several hosts reach, that keeps the records of which has a volume, and that refuses the writes of all
//! others.
//!
//! The words are those of SCSI's persistent reservations (SPC-4, 5.13): a host *registers* a key with its connections;
//! a host that takes the volume *preempts* the connections with older keys.

use crate::{Pending, Result};
use std::rc::Rc;

/// What a host registers its connections with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationKey {
    /// The volume, by its UUID.
    pub volume: u128,
    /// How often the volume has changed hands. Requests of an older generation count no more.
    pub generation: u64,
}

/// The far end of a sink, for a layer above that several hosts have.
pub trait SharedStore {
    /// Where it is, as people write it: an NBD URI.
    fn place(&self) -> String;
    /// The answer of what keeps records there ([`Records`]) to a question. Fails with `Unsupported` if nothing does.
    fn ask(&self, question: Vec<u8>) -> Pending<Vec<u8>>;
    /// All requests are those of a host with this key from now on. Fails with `Fenced` if the key is not that of the
    /// newest record. Until a sink is registered it reads, and its writes are refused.
    fn register(&self, key: ReservationKey) -> Pending;
}

/// What a sink shares ([`crate::Manage::shared`]) whose far end may be such a store.
pub struct FarEnd(pub Rc<dyn SharedStore>);

/// The far end of a sink that may answer reads without it, from what it remembers.
pub trait Probe {
    /// Ends when the far end has answered a question that came after this call.
    fn probe(&self) -> Pending;
}

/// What such a sink shares ([`crate::Manage::shared`]).
pub struct Probes(pub Rc<dyn Probe>);

/// What keeps records, in the server of such a store.
pub trait Records {
    /// Answers a question of a host.
    fn answer(&self, question: Vec<u8>) -> Pending<Answer>;
    /// Whether the newest record has this key.
    fn is_newest(&self, key: ReservationKey) -> Pending<bool>;
}

/// An answer to a question about records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is told to the host.
    pub bytes: Vec<u8>,
    /// The answer is true when nothing of this volume's older keys can happen any more.
    pub preempts: Option<ReservationKey>,
}

/// What a layer finds below it, if reads there may need no far end.
pub fn probe(shared: Option<Rc<dyn std::any::Any>>) -> Option<Rc<dyn Probe>> {
    let probes = shared.and_then(|shared| shared.downcast::<Probes>().ok());
    probes.map(|probes| Rc::clone(&probes.0))
}

/// What a layer finds below it, if that may be such a store.
pub fn far_end(shared: Option<Rc<dyn std::any::Any>>) -> Result<Rc<dyn SharedStore>> {
    let end = shared.and_then(|shared| shared.downcast::<FarEnd>().ok());
    end.map(|end| Rc::clone(&end.0)).ok_or_else(|| crate::Error::unsupported("it keeps no records of hosts"))
}
