//! `file`: a file or a block device of this machine. A sink.
//!
//! The environment opens the disk: on a machine, the reactor's file; under the simulator, a simulated disk.
//! Flushed bytes are durable as far as the kernel and the device keep their word.
//!
//! ```text
//!        device
//!      0 ─────── size
//!      │  as is  │
//!      0 ─────── size
//!        file or block device
//! ```
//!
//! Keys:
//! * `path`: the file or block device; relative to the hierarchy file.
//! * `size`: a size such as "10GiB". A missing file is created, sparse, with this size. A file that exists is
//!   never resized: a smaller one is refused, a larger one is used as a whole.
//! * `direct` (false): do not use the page cache. Best for block devices and for files that no other program
//!   reads; some file systems (tmpfs) refuse it. Flushes make data durable either way.
//! * `read-only` (false): open for reading only.
//! * `block` (the device's own): the logical block in bytes to present, a power of two from 512 to 64KiB.
//!
//! Commands: `resize` takes over the present size of the file or block device; with a `size` it gives a file
//! that size first. A smaller one is taken over only with `force=true`, and the data beyond is lost.
//!
//! If another program cuts the file short while it is open, all requests fail from the moment at which that
//! is noticed, until the file is opened again: at once for a request beyond the cut, and otherwise at the
//! next write or flush. The bytes beyond the cut are lost, and are never zeroes. A mirror or parity above
//! goes on without the file, and rebuilds it when it is back.
//!
//! The sink deliberately does not resize by itself, lock against other programs than Lamina's own, or know
//! any image format: every byte of the file is a byte of the device.

use lamina_block::{
    Arg, ArgType, Build, Bytes, Config, Error, Growth, Made, OpenDisk, Outside, Over, Pending, Result,
    Traits, Verb,
};
use lamina_kit::size::{device_size, logical_block};
use serde::Deserialize;
use std::path::PathBuf;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    path: PathBuf,
    size: Option<Bytes>,
    #[serde(default)]
    direct: bool,
    #[serde(default)]
    read_only: bool,
    block: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "file";
    const SUMMARY: &'static str = "a file or block device of this machine";
    const CHILDREN: std::ops::RangeInclusive<usize> = 0..=0;
    const TRAITS: Traits = Traits {
        growth: Growth::Sized,
        member: true,
        elsewhere: &["raw", "disk", "block", "device", "image", "loop", "host-device"],
        outside: &[Outside::file("path")],
        verbs: &[Verb::new("resize", "takes over the present size").with(&[
            Arg::optional("size", ArgType::Size, "give a file this size first"),
            Arg::optional("force", ArgType::Flag, "also if it is smaller, and lose the data beyond"),
        ])],
        ..Traits::NONE
    };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        self.shape().map(drop)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(open(self, with))
    }
}

impl Keys {
    /// The block and the size, as far as they are given.
    fn shape(&self) -> Result<(Option<u32>, Option<u64>)> {
        let block = self.block.map(logical_block).transpose()?;
        if self.size.is_some() && self.read_only {
            return Err(Error::invalid("size: a read-only file cannot be created; leave the key out"));
        }
        let size = self.size.map(|size| device_size(size, block.unwrap_or(512))).transpose()?;
        Ok((block, size))
    }
}

async fn open(keys: Keys, with: Build) -> Result<Made> {
    let (block, size) = keys.shape()?;
    let path = with.path(&keys.path);
    let open =
        OpenDisk { path: path.clone(), read_only: keys.read_only, direct: keys.direct, create: size, block };
    let disk = with.env.open_disk(open).await?;
    let found = disk.geometry().size;
    match size {
        Some(size) if found < size => Err(Error::invalid(format!(
            "size: {} has {found} bytes and should have {size}: enlarge the file, or write its real size",
            path.display()
        ))),
        Some(_) | None => Ok(disk),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::new("file", |rig| async move {
            rig.sim_disk(0);
            rig.build(&Kind::of::<super::Keys>(), "top", json!({ "path": "disk0" }), vec![]).await
        })
    }

    #[test]
    fn a_missing_file_is_created_and_a_smaller_one_refused() {
        simulated(|world| async move {
            let keys = |size: &str| json!({"path": "new.img", "size": size});
            assert!(world.try_over("file", json!({"path": "new.img"}), &[]).await.is_err());
            assert_eq!(world.over("file", keys("1MiB"), &[]).await.geometry().size, 1 << 20);
            assert_eq!(world.over("file", keys("512KiB"), &[]).await.geometry().size, 1 << 20);
            let message = world.try_over("file", keys("2MiB"), &[]).await.err().expect("refused");
            assert!(message.contains("/new.img has 1048576 bytes and should have 2097152"), "{message}");
            let wrong = json!({"path": "other.img", "size": "1MiB", "read-only": true});
            assert!(world.try_over("file", wrong, &[]).await.is_err());
            let read_only = json!({"path": "new.img", "read-only": true});
            assert!(world.over("file", read_only, &[]).await.geometry().read_only);
        });
    }
}
