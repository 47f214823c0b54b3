//! The layers of Lamina and its sinks: one file each, and one line each in the list below.
//!
//! A layer reads like the paragraph that explains it: what it is, its invariant, a drawing, its keys, and what it
//! deliberately does not do. It depends on the contract in [`lamina_block`] and on nothing else that is Lamina's:
//! time, randomness and disks come from the environment that it is built with, and everything that is the same for
//! all layers (checks, counting, holding, emulation) is done by its node.
//!
//! A new layer: `make new-layer NAME=x` copies [`template`] and adds the line.

mod command;
mod consent;
mod flaw;
mod home;
pub mod intent;
mod kept;
mod legs;
mod reshape;
mod several;
mod sums;

use lamina_block::Kind;

/// Declares the modules, lists their kinds, and puts each through the gauntlet. A module has its keys in a struct
/// called `Keys`, and in its tests a function `subject` that says how the gauntlet builds it.
macro_rules! kinds {
    ($($name:ident,)*) => {
        $(pub mod $name;)*

        /// Every kind of layer that is here.
        pub static KINDS: &[Kind] = &[$(Kind::of::<$name::Keys>()),*];

        #[cfg(test)]
        mod gauntlet {
            $(lamina_sim::gauntlet!($name, crate::$name::tests::subject());)*

            pub fn subjects() -> Vec<lamina_sim::Subject> {
                vec![$(crate::$name::tests::subject()),*]
            }
        }
    };
}

kinds! {
    accelerate,
    concat,
    crypt,
    delay,
    fault,
    file,
    fingerprint,
    flash,
    integrity,
    linear,
    memory,
    migrate,
    mirror,
    null,
    parity,
    partition,
    record,
    redo,
    snapshot,
    stripe,
    template,
    view,
}

#[cfg(test)]
mod graphs;
#[cfg(test)]
mod testing;
