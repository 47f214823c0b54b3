//! A folder of small files that several machines may share.

use crate::Pending;

/// A folder on a file system, perhaps one of another machine. Names have no slash. Every call may take long, and may
/// fail although it was done: a caller that must know asks again.
pub trait Folder {
    /// The names of its files, in no order; none if there is no such folder.
    fn list(&self) -> Pending<Vec<String>>;
    /// The bytes of a file of at most `max` bytes; `None` if there is none. `Invalid` if it is longer.
    fn read(&self, name: &str, max: usize) -> Pending<Option<Vec<u8>>>;
    /// Makes a file of these bytes, durably, and whole or not at all. False if there is one of this name, whose bytes
    /// stay, and are durable as well then: of several that make it at once one succeeds. Makes the folder if there is
    /// none.
    fn create(&self, name: &str, bytes: Vec<u8>) -> Pending<bool>;
    /// Makes a file of these bytes, durably, or gives the one of this name these bytes: readers find the old ones or
    /// the new ones, whole. Makes the folder if there is none.
    fn replace(&self, name: &str, bytes: Vec<u8>) -> Pending;
    /// Removes a file; nothing happens if there is none.
    fn remove(&self, name: &str) -> Pending;
}
