//! Looking at devices and images for superblocks: opened for reading, nothing locked, nothing changed.

use lamina_metadata::superblock::Found;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A device or image that is open for looking at it.
pub struct Device {
    pub file: File,
    pub meta: Metadata,
    /// Its size in bytes.
    pub size: u64,
}

impl Device {
    /// Opens the device at `path`; `None` if it is neither a file nor a block device.
    pub fn open(path: &Path) -> io::Result<Option<Device>> {
        // Without O_NONBLOCK a FIFO would wait for a writer.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(nonblock).open(path)?;
        let meta = file.metadata()?;
        if !meta.file_type().is_block_device() && !meta.is_file() {
            return Ok(None);
        }
        let size = file.seek(SeekFrom::End(0))?;
        Ok(Some(Device { file, meta, size }))
    }

    /// True for a block device, false for a file.
    pub fn is_block_device(&self) -> bool {
        self.meta.file_type().is_block_device()
    }

    /// An identity that is the same for every path to the device.
    pub fn identity(&self) -> (u64, u64) {
        if self.is_block_device() { (0, self.meta.rdev()) } else { (self.meta.dev(), self.meta.ino()) }
    }

    /// The superblocks on it.
    pub fn superblocks(&self) -> Found {
        Found::look(self.size, |at, len| {
            let mut bytes = vec![0; len];
            self.file.read_exact_at(&mut bytes, at).map_err(|e| e.to_string())?;
            Ok(bytes)
        })
    }
}
