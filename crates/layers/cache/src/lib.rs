//! Fast storage before slow storage, and writes that get there in order.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    accelerate,
    flash,
    redo,
    sequentialize,
    tier,
}

mod ticket;

#[cfg(test)]
lamina_testing::with_kinds!(
    lamina_sinks::KINDS,
    lamina_lab::KINDS,
    lamina_address::KINDS,
    lamina_hosts::KINDS
);
