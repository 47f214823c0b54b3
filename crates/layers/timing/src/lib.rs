//! Layers that decide when requests go on: a model of a drive that holds them, and a queue that sorts them.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    emulate,
    schedule,
}

mod model;

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS);
