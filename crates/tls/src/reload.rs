//! Files that are read again when they have changed: certificates are renewed while connections go on.
//!
//! The next connection has what is in the files now. While that cannot be used, such as between the exchange of a
//! certificate and that of its key, the last that could be used stays, and a warning tells why, once for each change.

use lamina_block::Result;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What is made of files.
pub(crate) struct Loaded<T> {
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T> + Send + Sync>,
    /// How the files were when they were read last, and what was made of them last.
    state: Mutex<(Vec<Stamp>, T)>,
}

/// Another one for each change of a file, or `None` if there is none: inode, bytes, time of the last change.
type Stamp = Option<(u64, u64, (i64, i64))>;

fn stamp(path: &PathBuf) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    Some((meta.ino(), meta.len(), (meta.mtime(), meta.mtime_nsec())))
}

impl<T: Clone> Loaded<T> {
    /// Reads the files at `paths` with `load`.
    pub fn new<'a>(
        paths: impl IntoIterator<Item = &'a Path>,
        load: impl Fn() -> Result<T> + Send + Sync + 'static,
    ) -> Result<Loaded<T>> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Path::to_owned).collect();
        // Before they are read: of a change meanwhile nothing is missed.
        let stamps = paths.iter().map(stamp).collect();
        let made = load()?;
        Ok(Loaded { paths, load: Box::new(load), state: Mutex::new((stamps, made)) })
    }

    /// What is made of the files as they are now, if it can be used.
    pub fn now(&self) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps: Vec<Stamp> = self.paths.iter().map(stamp).collect();
        if stamps != state.0 {
            let files =
                || self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
            match (self.load)() {
                Ok(made) => {
                    tracing::info!(files = files(), "changed certificates are in use from now on");
                    state.1 = made;
                }
                Err(e) => {
                    tracing::warn!(error = %e, "changed certificates cannot be used: the earlier ones stay in use");
                }
            }
            state.0 = stamps;
        }
        state.1.clone()
    }
}
