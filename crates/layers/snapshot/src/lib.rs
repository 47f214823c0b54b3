//! Volumes with snapshots: versions of the data that share the extents they have in common.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    snapshot,
}

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS, lamina_address::KINDS);
