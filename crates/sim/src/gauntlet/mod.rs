//! The gauntlet: seven checks that every layer and every graph passes. `lamina_sim::gauntlet!` adds them as tests.
//!
//! 1. [`Check::Model`]: random requests against a model of the allowed contents.
//! 2. [`Check::Crash`]: the power fails before every change of any disk; flushed data is there, the rest is old or new,
//!    block by block.
//! 3. [`Check::Faults`]: each request to a disk fails once in turn, or the disk stays away.
//! 4. [`Check::Change`]: quiesce, replace, grow, close and reopen while requests run.
//! 5. [`Check::Edges`]: the ends of the device, wrong requests, read-only disks, disks that do nothing natively.
//! 6. [`Check::Deaths`]: the process dies or the power fails, again and again, with load between: data that is believed
//!    at the open stays.
//! 7. [`Check::Heal`]: another copy that something below has is found from above.
//!
//! A run is a function of the subject, the check and a seed. A failure names the three and the command that runs it
//! again.

mod change;
mod crash;
mod deaths;
mod edges;
mod faults;
mod heal;
mod history;
mod keep;
mod load;
mod model_check;
mod run;
mod scene;
mod soak;
mod subject;

pub use keep::SimKeep;
pub use run::{Check, Failure, Replay, Run, run, shown, test};
pub use soak::{Soaked, simulate, soak, soak_test};
pub use subject::{Rig, Subject};

/// Puts a subject through the gauntlet: a module of tests, one for each check.
///
/// ```ignore
/// lamina_sim::gauntlet!(linear, Subject::layer(&Kind::of::<Keys>(), json!({ "offset": "16KiB" }), 1));
/// lamina_sim::gauntlet!(two_over_three, Subject::new("two over three", |rig| async move { ... }));
/// ```
///
/// `LAMINA_SEEDS` says how many seeds each test runs, `LAMINA_SEED` runs a single one.
#[macro_export]
macro_rules! gauntlet {
    ($name:ident, $subject:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the subject names parts from outside")]
            use super::*;

            fn go(check: $crate::Check) {
                $crate::test(&$subject, check, &$crate::replay!());
            }

            #[test]
            fn model_check() {
                go($crate::Check::Model);
            }

            #[test]
            fn crash_at_every_write() {
                go($crate::Check::Crash);
            }

            #[test]
            fn faults() {
                go($crate::Check::Faults);
            }

            #[test]
            fn change_under_load() {
                go($crate::Check::Change);
            }

            #[test]
            fn contract_edges() {
                go($crate::Check::Edges);
            }

            #[test]
            fn deaths_in_a_row() {
                go($crate::Check::Deaths);
            }

            #[test]
            fn healing_reaches_below() {
                go($crate::Check::Heal);
            }
        }
    };
}
