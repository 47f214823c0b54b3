//! Helpers of this crate's tests.
#![allow(dead_code, reason = "each test uses a part of it")]

use lamina_metadata::superblock::{Layout, Superblock, Uuid};

/// The size of every disk here.
pub const SIZE: u64 = 2 << 20;
/// The names of the members.
pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// Member `index` of the hierarchy number `hierarchy` at `generation`.
pub fn superblock(hierarchy: u128, index: u32, generation: u64, description: &str) -> Superblock {
    Superblock {
        hierarchy: Uuid::from_u128(hierarchy),
        hierarchy_name: "vm1".into(),
        member: Uuid::from_u128(hierarchy << 8 | u128::from(index)),
        name: NAMES[index as usize].into(),
        index,
        members: NAMES.len() as u32,
        generation,
        created: 1_700_000_000,
        clean: false,
        layout: Layout::of_size(SIZE).expect("large enough"),
        description: description.into(),
    }
}
