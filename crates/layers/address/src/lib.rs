//! Where bytes lie: parts of devices, several in a row or in turn, partitions, and what moves data between them.
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
