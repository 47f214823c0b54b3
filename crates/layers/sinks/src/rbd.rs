//! `rbd`: an image of a Ceph cluster (RADOS block device). A sink.
//!
//! librbd, which is loaded when the first image is opened, talks to the cluster. A write has ended when all replicas
//! have it, so that flushes and forced writes cost nothing more.
//!
//! ```text
//!        device
//!      0 ─────────────────────────── size
//!      │ object │ object │ … │ object  │      each on the OSDs of its placement group
//!      0 ─────────────────────────── size
//!        POOL/IMAGE
//! ```
//!
//! Keys:
//! * `image`: the image, such as "vms/vm1", or "vms/customer/vm1" in a namespace of the pool. `rbd create` makes it.
//! * `user` ("admin"): the user of the cluster, without "client.".
//! * `conf` ("/etc/ceph/ceph.conf"): the file that says where the monitors and the user's keyring are.
//! * `read-only` (false): open for reading only.
//! * `shared` (false): other hosts open the image as well, because a `reservation` above says which one uses it.
//!   Otherwise the image is locked while it is open, and cannot be opened by another Lamina.
//!
//! Commands: `resize` takes over the present size of the image, after `rbd resize`.
//!
//! A cluster that does not answer keeps requests waiting until it does, as a disk does that hangs; the time limit of a
//! layer above ends that. A client whose lock another one has broken is shut out by the cluster: its requests fail
//! until the process starts again.
//!
//! A reservation right above asks the cluster itself whether it can be reached, and not the image: librbd answers some
//! reads without the cluster.
//!
//! The sink deliberately makes no image, no snapshot and no clone: `rbd` does that, and a snapshot of the image in
//! Ceph has what layers above have written to it by then.

use lamina_block::{
    Build, Config, Error, Growth, Made, OpenRbd, Outside, Over, Pending, Result, Traits, Verb,
};
use serde::Deserialize;
use std::path::PathBuf;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    image: String,
    #[serde(default = "admin")]
    user: String,
    #[serde(default = "conf")]
    conf: PathBuf,
    #[serde(default)]
    read_only: bool,
    #[serde(default)]
    shared: bool,
}

fn admin() -> String {
    "admin".into()
}

fn conf() -> PathBuf {
    "/etc/ceph/ceph.conf".into()
}

impl Config for Keys {
    const KIND: &'static str = "rbd";
    const SUMMARY: &'static str = "an image of a Ceph cluster";
    const CHILDREN: std::ops::RangeInclusive<usize> = 0..=0;
    const TRAITS: Traits = Traits {
        growth: Growth::Outside("resize"),
        elsewhere: &["ceph", "rados", "librbd"],
        outside: &[Outside::server("image"), Outside::local("conf")],
        verbs: &[Verb::new("resize", "takes over the present size")],
        ..Traits::NONE
    };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        self.named().map(drop)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let [pool, namespace, image] = self.named()?.map(String::from);
            let (conf, user) = (with.path(&self.conf), self.user);
            let (read_only, shared) = (self.read_only, self.shared);
            let image =
                with.env.open_rbd(OpenRbd { pool, namespace, image, user, conf, read_only, shared }).await?;
            Ok(image as Made)
        })
    }
}

impl Keys {
    /// The pool, the namespace and the name of the image.
    fn named(&self) -> Result<[&str; 3]> {
        let parts: Vec<&str> = self.image.split('/').collect();
        let named = match parts[..] {
            [pool, image] => [pool, "", image],
            [pool, namespace, image] if !namespace.is_empty() => [pool, namespace, image],
            _ => ["", "", ""],
        };
        let is_name = |part: &str| !part.contains(|c: char| c == '@' || c.is_control());
        if named[0].is_empty() || named[2].is_empty() || !parts.into_iter().all(is_name) {
            return Err(Error::invalid(format!(
                "image: {:?} is no image: write \"POOL/IMAGE\" or \"POOL/NAMESPACE/IMAGE\"",
                self.image
            )));
        }
        Ok(named)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::new("rbd", |rig| async move {
            rig.sim_disk(0);
            rig.build(&Kind::of::<super::Keys>(), "top", json!({ "image": "vms/disk0" }), vec![]).await
        })
    }

    #[test]
    fn names_of_images() {
        simulated(|world| async move {
            for image in ["vm1", "", "vms/", "/vm1", "vms//vm1", "a/b/c/d", "vms/vm1@monday", "vms/a\0b"] {
                let message =
                    world.try_over("rbd", json!({ "image": image }), &[]).await.err().expect("refused");
                assert!(message.contains("write \"POOL/IMAGE\""), "{image}: {message}");
            }
            for image in ["vms/vm1", "vms/a/vm1"] {
                let missing =
                    world.try_over("rbd", json!({ "image": image }), &[]).await.err().expect("missing");
                assert!(missing.contains("no simulated disk"), "{missing}");
            }
        });
    }
}
