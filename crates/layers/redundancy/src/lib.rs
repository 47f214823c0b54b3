//! The same bytes several times, or the parity that they can be computed from.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    mirror,
    parity,
}

mod legs;

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS, lamina_lab::KINDS);
