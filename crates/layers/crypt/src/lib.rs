//! Encryption, in the format of LUKS2 and dm-crypt.
//!
//! A family of layers: `crates/layers/src/lib.rs` says what a layer may stand on, and how another is begun.

lamina_kit::kinds! {
    crypt,
}

#[cfg(test)]
lamina_testing::with_kinds!(lamina_sinks::KINDS, lamina_lab::KINDS);
