//! Layers for tests and measurements, and one to begin a layer with.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    delay,
    fault,
    record,
    template,
}

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS);
