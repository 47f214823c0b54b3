//! Digests of the bytes of blocks: to notice damage, and changes.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    fingerprint,
    integrity,
}

mod sums;

#[cfg(test)]
lamina_testing::with_kinds!(
    lamina_sinks::KINDS,
    lamina_address::KINDS,
    lamina_redundancy::KINDS,
    lamina_snapshot::KINDS,
    lamina_crypt::KINDS,
    lamina_lab::KINDS
);
