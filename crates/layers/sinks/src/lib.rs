//! Sinks: devices on real storage, or on none.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    file,
    memory,
    null,
    rbd,
    zoned,
}

#[cfg(test)]
lamina_testing::with_kinds!();
