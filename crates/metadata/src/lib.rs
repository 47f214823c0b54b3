//! What Lamina keeps on disk about a hierarchy, beside its data.
//!
//! * [`superblock`]: what every member says of itself and of its hierarchy, twice;
//! * [`member`]: the layer that hides it from those above, and who belongs together.
//!
//! Invariant: whatever is read from a disk is checked before it is believed, and a power loss at any moment leaves
//! what was there before or what was to be there after. This crate knows no operating system: it works on nodes.

pub mod member;
pub mod superblock;
