//! The layers of Lamina and its sinks: one file each, and one line each in the list below.
//!
//! A layer reads like the paragraph that explains it: what it is, its invariant, a drawing, its keys, and what it
//! deliberately does not do. It depends on the contract in [`lamina_block`] and on nothing else that is Lamina's:
//! time, randomness and disks come from the environment that it is built with, and everything that is the same for
//! all layers (checks, counting, holding, emulation) is done by its node.
//!
//! A new layer: `make new-layer NAME=x FAMILY=lab` copies [`lab::template`] and adds the line.

mod kit;

use lamina_block::Kind;

/// Declares the families and their modules, lists their kinds, looks for the figures that each declares, and puts each through
/// the gauntlet. The module of a kind has its keys in a struct called `Keys`, and in its tests a function `subject` that says
/// how the gauntlet builds it; what several kinds of a family share stands in brackets.
macro_rules! kinds {
    (
        [$($alone:ident),*]
        $($(#[$about:meta])* $family:ident { $($name:ident,)* } $([$($see:vis $shared:ident),*])?)*
    ) => {
        $(pub mod $alone;)*
        $($(#[$about])* pub mod $family {
            $(pub mod $name;)*
            $($($see mod $shared;)*)?
        })*

        /// Every kind of layer that is here.
        pub static KINDS: &[Kind] = &[
            $(Kind::of::<$alone::Keys>(),)*
            $($(Kind::of::<$family::$name::Keys>(),)*)*
        ];

        #[cfg(test)]
        mod figures {
            $(#[test]
            fn $alone() {
                let kind = lamina_block::Kind::of::<crate::$alone::Keys>();
                crate::testing::has_its_figures(&kind, &crate::$alone::tests::subject());
            })*
            $($(#[test]
            fn $name() {
                let kind = lamina_block::Kind::of::<crate::$family::$name::Keys>();
                crate::testing::has_its_figures(&kind, &crate::$family::$name::tests::subject());
            })*)*
        }

        #[cfg(test)]
        mod gauntlet {
            $(lamina_sim::gauntlet!($alone, crate::$alone::tests::subject());)*
            $($(lamina_sim::gauntlet!($name, crate::$family::$name::tests::subject());)*)*

            pub fn subjects() -> Vec<lamina_sim::Subject> {
                vec![
                    $(crate::$alone::tests::subject(),)*
                    $($(crate::$family::$name::tests::subject(),)*)*
                ]
            }
        }
    };
}

kinds! {
    // A family each.
    [crypt, snapshot]

    /// Sinks: devices on real storage, or on none.
    sinks {
        file,
        memory,
        null,
    }

    /// Where bytes lie: parts of devices, several in a row or in turn, partitions, and what moves data between them.
    address {
        concat,
        linear,
        migrate,
        partition,
        stripe,
        view,
    } [reshape]

    /// The same bytes several times, or what they can be computed from.
    redundancy {
        mirror,
        parity,
    } [pub intent, pub(crate) legs]

    /// Digests of what was written: to notice what is wrong, and what has changed.
    digest {
        fingerprint,
        integrity,
    } [pub(crate) sums]

    /// Fast storage before slow storage, and writes that get there in order.
    cache {
        accelerate,
        flash,
        redo,
    }

    /// For tests and measurements, and to begin a layer with.
    lab {
        delay,
        fault,
        record,
        template,
    }
}

#[cfg(test)]
mod graphs;
#[cfg(test)]
mod testing;
