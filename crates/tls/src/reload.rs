//! Files that are read again when they have changed: certificates are renewed while connections go on.
//!
//! A thread of its own looks at the files every few seconds, since they may lie on a file system that hangs; whoever
//! needs what is made of them gets the last that could be used, at once. While changed files cannot be used, such as
//! between the exchange of a certificate and that of its key, they are tried again, and a warning tells why, once.

use lamina_block::Result;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_secs(2);

/// What is made of files. The thread ends with the last of its clones.
#[derive(Clone)]
pub(crate) struct Loaded<T>(Arc<Mutex<T>>);

/// Another one for each change of a file, or `None` if it cannot be seen: inode, bytes, times of the last changes.
type Stamp = Option<(u64, u64, [(i64, i64); 2])>;

fn stamp(path: &PathBuf) -> Stamp {
    let meta = std::fs::metadata(path).ok()?;
    let times = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
    Some((meta.ino(), meta.len(), times))
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    paths.iter().map(stamp).collect()
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone + Send + 'static> Loaded<T> {
    /// Reads the files at `paths` with `load`.
    pub fn new<'a>(
        paths: impl IntoIterator<Item = &'a Path>,
        load: impl Fn() -> Result<T> + Send + 'static,
    ) -> Result<Loaded<T>> {
        let paths: Vec<PathBuf> = paths.into_iter().map(Path::to_owned).collect();
        // Before they are read: of a change meanwhile nothing is missed.
        let before = stamps(&paths);
        let made = Arc::new(Mutex::new(load()?));
        let seen = Arc::downgrade(&made);
        let watch = move || {
            let (mut before, mut told) = (before, String::new());
            loop {
                std::thread::sleep(EVERY);
                let Some(made) = seen.upgrade() else { return };
                let now = stamps(&paths);
                if now == before {
                    continue;
                }
                match load() {
                    Ok(changed) => {
                        tracing::info!(file = %paths[0].display(), "changed certificates are in use from now on");
                        *locked(&made) = changed;
                        (before, told) = (now, String::new());
                    }
                    Err(e) if e.to_string() != told => {
                        tracing::warn!(error = %e, "changed certificates cannot be used: the earlier ones stay in use");
                        told = e.to_string();
                    }
                    Err(_) => {}
                }
            }
        };
        // Without a thread what was read stays, as it would without a change.
        let watching = std::thread::Builder::new().name("certificates".into()).spawn(watch);
        if let Err(e) = watching {
            tracing::warn!(error = %e, "changes of certificates are not noticed");
        }
        Ok(Loaded(made))
    }

    /// What was made of the files last.
    pub fn now(&self) -> T {
        locked(&self.0).clone()
    }
}
