//! Shared parts of layers: one small piece each, with its tests.
//!
//! A piece belongs here when two layers need it and it means the same to both; a piece that only one family
//! of layers needs stays with the family. Pieces stand on the contract and on the metadata store, and know no
//! layer.
//!
//! * [`alarm`]: the next moment at which a layer looks again at what it waits for.
//! * [`command`]: the arguments of a command, and the answer to one that is not known.
//! * [`consent`]: the answer of a layer, with state that depends on the bytes below, to a change of them.
//! * [`fan_out`]: one request for several children, and their geometry taken together.
//! * [`flaw`]: errors that a test injects into a layer, to see that they are noticed (canaries).
//! * [`home`]: where a layer's metadata store lies, and how it is opened.
//! * [`intent`]: the regions of a device that are being written, known after a crash.
//! * [`kinds`]: the list of a family's kinds.
//! * [`mutex`]: one task at a time, in the order of arrival.
//! * [`range_locks`]: locks on ranges of addresses; overlapping ones are held one after the other, in the
//!   order of arrival.
//! * [`sealed_page`]: pages on disk with a magic number and a checksum.
//! * [`single_flight`]: one save for all tasks that asked before it began.
//! * [`size`]: blocks and sizes from the file.
//! * [`state_record`]: the state that a device keeps with its hierarchy, JSON with a version.
//! * [`streams`]: which requests go on where another one ended.
//! * [`tasks`]: background work that `close` waits for.

pub mod alarm;
pub mod command;
pub mod consent;
pub mod fan_out;
pub mod flaw;
pub mod home;
pub mod intent;
mod kinds;
pub mod mutex;
pub mod range_locks;
pub mod sealed_page;
pub mod single_flight;
pub mod size;
pub mod state_record;
pub mod streams;
pub mod tasks;

#[cfg(test)]
use lamina_testing as testing;
