//! The list of a family's kinds.

/// Declares the modules of a family, one for each kind, lists the kinds, looks for the figures that each
/// declares, and puts each through the gauntlet. A module has the keys of its kind in a struct called `Keys`,
/// and in its tests a function `subject` that says how the gauntlet builds a device of that kind.
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "the modules are the family's")]
macro_rules! kinds {
    ($($name:ident,)*) => {
        $(pub mod $name;)*

        /// Every kind of this family.
        pub const KINDS: &[lamina_block::Kind] = &[$(lamina_block::Kind::of::<$name::Keys>(),)*];

        #[cfg(test)]
        mod figures {
            $(#[test]
            fn $name() {
                let kind = lamina_block::Kind::of::<crate::$name::Keys>();
                lamina_testing::has_its_figures(&kind, &crate::$name::tests::subject());
            })*
        }

        #[cfg(test)]
        mod gauntlet {
            $(lamina_sim::gauntlet!($name, crate::$name::tests::subject());)*

            /// `LAMINA_SOAK` is the number of seeds, `LAMINA_SOAK_FROM` the first.
            #[test]
            fn soak() {
                let subjects = [$(crate::$name::tests::subject(),)*];
                let seeds = 80 * subjects.len() as u64;
                lamina_sim::soak_test(&subjects, seeds, "soak", &lamina_sim::replay!());
            }
        }
    };
}
