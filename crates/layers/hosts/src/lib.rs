//! Devices that know of other hosts.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    reservation,
}

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS, lamina_lab::KINDS);
