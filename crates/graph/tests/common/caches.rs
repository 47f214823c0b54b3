//! Stacks with a flash: caches and tiers, and what stands above and below them.

use super::{CRYPT, stack};
use lamina_sim::Subject;

/// A disk behind a flash, which goes round.
pub fn accelerated(policy: &str) -> Subject {
    let text = format!(
        r#"
[device]
top = {{ type = "accelerate", over = ["d0", "flash"], policy = "{policy}", sequential-cutoff = "64KiB" }}
flash = {{ type = "flash", over = "d1" }}
d0 = {{ type = "disk", number = 0 }}
d1 = {{ type = "disk", number = 1 }}
"#
    );
    stack(&format!("{policy} over a flash"), text).disks_of(1200 << 10)
}

/// A volume whose store is always what it was at one moment, slow, and with its log on a mirror.
pub fn epochs() -> Subject {
    stack("a flash over a redo", EPOCHS).disks_of(1200 << 10)
}

const EPOCHS: &str = r#"
[device]
top = { type = "accelerate", over = ["store", "flash"], sequential-cutoff = "64KiB" }
store = { type = "redo", over = "slow", metadata = "log" }
slow = { type = "delay", over = "d0", write = "1ms", flush = "2ms" }
log = { type = "mirror", over = ["d2", "d3"], region = "64KiB" }
flash = { type = "flash", over = "d1" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
d3 = { type = "disk", number = 3 }
"#;

/// Two volumes that share a flash of two disks, each with a policy of its own.
pub fn two_on_one_flash() -> Subject {
    stack("two volumes on one flash", TWO_ON_ONE_FLASH).disks_of(1200 << 10)
}

const TWO_ON_ONE_FLASH: &str = r#"
[device]
top = { type = "concat", over = ["a", "b"] }
a = { type = "accelerate", over = ["slow", "flash"], share = 30 }
b = { type = "accelerate", over = ["d1", "flash"], policy = "write-through" }
slow = { type = "delay", over = "d0", write = "1ms", flush = "2ms" }
flash = { type = "flash", over = "twice" }
twice = { type = "mirror", over = ["d2", "d3"], region = "64KiB" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
d3 = { type = "disk", number = 3 }
"#;

/// Two volumes that share a flash, which goes round: the store of one is away now and then, slow, or does not answer at
/// all; the other works. A rest smaller than a block goes to the store at once, and does not get past its failures: the
/// end is spared.
pub fn one_store_away() -> Subject {
    stack("two volumes on one flash, one store away", ONE_STORE_AWAY).disks_of(1200 << 10)
}

const ONE_STORE_AWAY: &str = r#"
[device]
top = { type = "concat", over = ["a", "b"] }
a = { type = "accelerate", over = ["poor", "flash"], sequential-cutoff = "64KiB" }
b = { type = "accelerate", over = ["d1", "flash"], sequential-cutoff = "64KiB" }
poor = { type = "fault", over = "d0", rules = [
    { size = "1MiB", op = ["write"], skip = 8, every = 16, hang = "700ms", error = "timed-out" },
    { size = "1MiB", op = ["read", "write"], skip = 12, count = 20, error = "offline" },
    { size = "1MiB", op = ["read", "write"], probability = 0.3, error = "offline" },
] }
flash = { type = "flash", over = "d2" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
"#;

/// An encrypted volume on a slow array and a fast disk, between which blocks move as they are asked for.
pub fn crypt_over_tier_over_parity() -> Subject {
    let text = CRYPT_OVER_TIER.replace("CRYPT", CRYPT);
    stack("crypt over tier over parity", text).disks_of(1200 << 10)
}

const CRYPT_OVER_TIER: &str = r#"
[device.top]
type = "crypt"
over = "tiers"
CRYPT
[device.tiers]
type = "tier"
over = ["slow", "fast"]
placement = "lru"
[device.slow]
type = "parity"
over = ["d0", "d1", "d2"]
unit = "8KiB"
region = "16KiB"
[device.fast]
type = "flash"
over = "d3"
[device]
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
d3 = { type = "disk", number = 3 }
"#;

/// A volume with snapshots on a fast disk and a slow one that is written in order, and that collects while blocks move.
pub fn snapshot_over_tier_over_sequentialize() -> Subject {
    stack("snapshot over tier over sequentialize", SNAPSHOT_OVER_TIER).disks_of(4 << 20)
}

const SNAPSHOT_OVER_TIER: &str = r#"
[device]
top = { type = "snapshot", over = "tiers", extent = "8KiB", size = "512KiB" }
tiers = { type = "tier", over = ["slow", "fast"] }
slow = { type = "sequentialize", over = "d0", mode = "log" }
fast = { type = "flash", over = "d1" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;
