//! The locations of bytes: parts of devices, several in a row or in rotation, partitions, and moving data
//! between them.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    concat,
    linear,
    migrate,
    partition,
    stripe,
    view,
}

mod reshape;

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS, lamina_lab::KINDS);
