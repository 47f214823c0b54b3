//! Stacked graphs, read from hierarchy files, run the gauntlet.

#[path = "common/stacks.rs"]
mod stacks;

use lamina_block::Level;
use lamina_sim::{Check, Run, gauntlet, run};

/// A stack at every consistency level.
macro_rules! at_every_level {
    ($($name:ident,)*) => {$(
        mod $name {
            use super::*;
            gauntlet!(lazy, crate::stacks::$name().level(Level::Lazy).seeds(1));
            gauntlet!(shadow, crate::stacks::$name().level(Level::Shadow).seeds(1));
            gauntlet!(atomic, crate::stacks::$name().level(Level::Atomic).seeds(1));
        }
    )*};
}

at_every_level! {
    snapshot_over_stripe,
    partition_over_snapshot_over_concat,
    snapshot_over_snapshot,
    tower_of_maps,
    figure_11,
}

gauntlet!(linear_over_stripe, crate::stacks::linear_over_stripe());
gauntlet!(concat_over_stripes, crate::stacks::concat_over_stripes());
gauntlet!(stripe_over_shared_parts, crate::stacks::stripe_over_shared_parts());
gauntlet!(partition_over_concat, crate::stacks::partition_over_concat());
gauntlet!(tower, crate::stacks::tower());
gauntlet!(stripe_over_mirrors, crate::stacks::stripe_over_mirrors().seeds(4));
gauntlet!(mirror_over_integrity, crate::stacks::mirror_over_integrity().seeds(2));
gauntlet!(snapshot_over_parity_over_crypt, crate::stacks::snapshot_over_parity_over_crypt().seeds(1));
gauntlet!(parity_over_integrity, crate::stacks::parity_over_integrity().seeds(1));
gauntlet!(accelerated, crate::stacks::accelerated("write-back").seeds(1));
gauntlet!(two_on_one_flash, crate::stacks::two_on_one_flash().seeds(1));
gauntlet!(one_store_away, crate::stacks::one_store_away().seeds(1));
gauntlet!(epochs, crate::stacks::epochs().seeds(1));
gauntlet!(crypt_over_tier_over_parity, crate::stacks::crypt_over_tier_over_parity().seeds(1));
gauntlet!(
    snapshot_over_tier_over_sequentialize,
    crate::stacks::snapshot_over_tier_over_sequentialize().seeds(1)
);
gauntlet!(integrity_over_mirror, crate::stacks::integrity_over_mirror().seeds(2));
gauntlet!(integrity_over_crypt_over_parity, crate::stacks::integrity_over_crypt_over_parity().seeds(1));
gauntlet!(
    snapshot_over_crypt_over_sequentialize,
    crate::stacks::snapshot_over_crypt_over_sequentialize().seeds(1)
);
gauntlet!(snapshot_over_crypt_over_homes, crate::stacks::snapshot_over_crypt_over_homes().seeds(1));

/// The canary: a file that is well formed and wrong.
#[test]
fn parts_that_overlap_are_caught() {
    let wrong = stacks::overlapping_parts();
    let caught = (0..50).find_map(|seed| run(&wrong, Check::Model, seed, Run::Full).err());
    let failure = caught.expect("one disk's bytes are two devices' bytes");
    assert_eq!(failure.check, Check::Model);
}
