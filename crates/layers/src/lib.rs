//! The layers of Lamina and its sinks, in families: a crate each, in a folder beside this one.
//!
//! A layer reads like the paragraph that explains it: what it is, its invariant, a drawing, its keys, and
//! what it deliberately does not do. It depends on the contract in [`lamina_block`], on the pieces that
//! layers share ([`kit`]), a layer with much to keep on the metadata store, and on nothing else that is
//! Lamina's: time, randomness and disks come from the environment that it is built with, and everything that
//! is the same for all layers (checks, counting, quiescing, emulation) is done by its node. No family stands
//! on another.
//!
//! A new layer: `make new-layer NAME=x FAMILY=lab` copies [`lab::template`] and adds the line to its family's list.

use lamina_block::Kind;
pub use lamina_crypt::crypt;
pub use lamina_snapshot::snapshot;
use std::sync::LazyLock;
pub use {
    lamina_address as address, lamina_cache as cache, lamina_digest as digest, lamina_hosts as hosts,
    lamina_kit as kit, lamina_lab as lab, lamina_redundancy as redundancy, lamina_sinks as sinks,
    lamina_timing as timing,
};

/// Every kind of layer that is here.
pub static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let families = [
        sinks::KINDS,
        address::KINDS,
        redundancy::KINDS,
        lamina_snapshot::KINDS,
        digest::KINDS,
        lamina_crypt::KINDS,
        cache::KINDS,
        hosts::KINDS,
        lab::KINDS,
        timing::KINDS,
    ];
    families.concat()
});
