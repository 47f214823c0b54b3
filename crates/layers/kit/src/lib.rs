//! What layers share: one small piece each, with its tests.
//!
//! A piece belongs here when two layers need it and it means the same to both; what only one family of layers needs stays
//! with the family. Pieces stand on the contract and on the metadata store, and know no layer.
//!
//! * [`command`]: the arguments of a command, and the answer to one that is not known.
//! * [`consent`]: what a layer that remembers something of what is below says to a change of it.
//! * [`fan_out`]: one request for several children, and their shapes taken together.
//! * [`flaw`]: what a test lets a layer do wrong, to see that it is noticed (canaries).
//! * [`home`]: where a layer's metadata store lies, and how it is found again.
//! * [`intent`]: which regions of a device are being written, known after a crash.
//! * [`kinds`]: the list of a family's kinds.
//! * [`mutex`]: one at a time, in the order in which they came.
//! * [`range_locks`]: locks on ranges of addresses; those that overlap are held one after the other, in the order in which
//!   they were asked for.
//! * [`sealed_page`]: bytes on disk that say what they are, and whether they are whole.
//! * [`single_flight`]: saving that many ask for at a time; one save serves all who asked before it began.
//! * [`size`]: blocks and sizes from the file.
//! * [`state_record`]: what a device keeps with its hierarchy, JSON with a version.
//! * [`tasks`]: work in the background that the end waits for.

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
pub mod tasks;

#[cfg(test)]
use lamina_testing as testing;
