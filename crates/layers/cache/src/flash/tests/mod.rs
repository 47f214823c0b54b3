//! What a flash does for several volumes.

mod format;
mod gone;
mod latent;
mod order;
mod recovery;
mod space;

use crate::testing::*;

/// Two volumes on one flash, in front of two disks, one behind the other.
pub fn subject() -> Subject {
    Subject::new("flash", |rig| async move {
        let flash = rig.build(&Kind::of::<super::Keys>(), "flash", json!({}), vec![rig.disk(2)]).await?;
        let accelerate = Kind::of::<crate::accelerate::Keys>();
        let mut volumes = Vec::new();
        for (i, policy) in ["write-back", "write-through"].into_iter().enumerate() {
            let keys = json!({ "policy": policy, "share": 40 });
            let over = vec![rig.disk(i), Rc::clone(&flash)];
            volumes.push(rig.build(&accelerate, &format!("volume{i}"), keys, over).await?);
        }
        rig.build(&Kind::of::<lamina_address::concat::Keys>(), "top", json!({}), volumes).await
    })
    .disks_of(1200 << 10)
    .seeds(2)
}
