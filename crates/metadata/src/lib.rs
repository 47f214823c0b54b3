//! Lamina's metadata on disk.
//!
//! * [`superblock`]: the description of a member and of its hierarchy, twice on every member;
//! * [`member`]: the layer that hides the superblocks from layers above, and the search for members that belong
//!   together;
//! * [`Store`]: the metadata of layers: objects that survive a crash, in a region of a device;
//! * [`extents`]: maps of extents, kept in a store;
//! * [`check`]: whether every page of a store is whole.
//!
//! Invariant: data from a disk is checked before it is believed, and a power loss at any moment leaves the old state or
//! the new one. This crate knows no operating system: all its I/O goes through nodes.
//!
//! # The store
//!
//! A [`Store`] holds objects, arrays of bytes with a number. A layer changes them in memory and commits; the store
//! brings their pages into memory when they are asked for, writes them back, and keeps within the memory it was given.
//!
//! ```text
//!   Change ──▶ pages in memory ──commit──▶ log: one record, one flush
//!                    └──write-back──▶ each page to the older of its two slots, flush, root: tail moves
//! ```
//!
//! # What a crash leaves
//!
//! At every level: the store opens; every earlier commit is there; a committed object is there with its length; an
//! object never shows bytes of another. And, with `commit` meaning one that completed:
//!
//! | level | after a crash | commits by itself |
//! |---|---|---|
//! | [`Level::Lazy`] | each page is of the last commit or later; objects come and go whole | every few seconds |
//! | [`Level::Shadow`] | everything is as after some [`Change`], not before the last commit | the same |
//! | [`Level::Atomic`] | everything is as at a [`Store::commit`] (or `flush`), the last one or later | never |
//!
//! Under `atomic` the layer decides when metadata moves: it makes its data durable first, then commits, and does not
//! overwrite data that the last commit refers to. Then data and metadata go back together.
//!
//! # What it costs
//!
//! | | writes | flushes |
//! |---|---:|---:|
//! | commit, `shadow` and `atomic` | 1 (2 where the log wraps around) | 1 |
//! | commit, `lazy` | 1 for each page changed | 1 |
//! | … that also adds or removes objects | 1 more | 1 more |
//! | write-back: when the log or half the memory is full | 1 for each page changed, 1 root | 2 |
//!
//! A record is a multiple of 4 KiB; a change of n bytes takes n + 16 of it. Commits at the same time share one.
//!
//! # Using it
//!
//! ```no_run
//! use lamina_metadata::{Change, Format, Options, Region, Store};
//! # use lamina_block::{Env, Node, Result};
//! # use std::rc::Rc;
//! # async fn example(env: Rc<dyn Env>, device: Rc<Node>) -> Result<()> {
//! /// The layer's own, to find its object again.
//! const TABLE: u64 = 1;
//! let region = Region::new(device, 64 << 10..64 << 20)?;
//! Store::format(&env, &region, Format::default()).await?;
//! let store = Store::open(&env, region, Options::default()).await?;
//! let table = match store.find(TABLE) {
//!     Some(id) => store.load(id)?,
//!     None => store.alloc(1 << 20, TABLE).await?,
//! };
//! // Both or none.
//! let change = Change::new().write(table.id(), 0, [1; 8]).write(table.id(), 512 << 10, [2; 8]);
//! store.change(change).await?;
//! // Before a flush of the volume is acknowledged:
//! store.commit().await?;
//! let mut entry = [0; 8];
//! table.read(512 << 10, &mut entry).await?;
//! store.close().await
//! # }
//! ```
//!
//! Deliberate limits: objects do not grow (add another, move, free); one store does not span devices (give it a
//! mirror); a page of which a copy is damaged is an error, never an older copy in silence.

pub mod check;
pub mod extents;
pub mod member;
pub mod superblock;

mod directory;
mod format;
mod open;
mod options;
mod region;
mod service;
mod state;
mod store;

pub use lamina_block::Level;
pub use options::{Format, Id, Options};
pub use region::Region;
pub use store::{Change, Object, Store, pages};
