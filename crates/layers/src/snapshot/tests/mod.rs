//! The layer in a simulated world: through the gauntlet, alone and in graphs, and what only it does.

mod crash;
mod scene;
mod volume;

use crate::testing::*;

pub fn subject() -> Subject {
    Subject::layer(&Kind::of::<super::Keys>(), json!({ "extent": "4KiB", "size": "1MiB" }), 1).disks_of(2 << 20)
}
