//! The protection of files with keys and passphrases, and of a process that has read one.
//!
//! Keys lie in many places of the memory afterwards, also in those of libraries: ciphers expand them, TLS derives
//! others. So the whole process is kept out of core dumps and out of swap, from before the first key is in it until its
//! end. Guests' memory is an exception: lamina-vhost-user, which maps it, unlocks it again.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{DumpableBehavior, Resource, getrlimit, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

/// The warning if memory cannot be locked.
const SWAP: &str = "keys may get into swap: let this process lock memory (LimitMEMLOCK=infinity), or have none \
                    (MemorySwapMax=0)";

/// A file with a key is going to be read: no memory of this process is in a core dump or in swap from now on, and a
/// warning tells if others can read the file.
pub(crate) fn guard(path: &Path, meta: &Metadata) {
    guard_memory();
    let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
    if let Some(warning) = exposed(path, meta.mode(), credentials.as_deref()) {
        tracing::warn!("{warning}");
    }
}

/// A secret is going to be in the memory of this process, which is in no core dump and not in swap from now on.
pub(crate) fn guard_memory() {
    if let Err(e) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(error = %e, "keys may get into core dumps");
    }
    static LOCKED: Once = Once::new();
    LOCKED.call_once(|| match lock() {
        Ok(true) => {}
        Ok(false) => tracing::warn!("{SWAP}"),
        Err(e) => tracing::warn!(error = %e, "{SWAP}"),
    });
}

/// Locks all present and future memory of this process, on first use. False if that is limited: beyond the limit all
/// further memory would be refused.
fn lock() -> rustix::io::Result<bool> {
    let is_limited = getrlimit(Resource::Memlock).current.is_some();
    if is_limited && !capabilities(None)?.effective.contains(CapabilitySet::IPC_LOCK) {
        return Ok(false);
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map(|()| true)
}

/// The problem with the mode of a file with a key. In the folder of systemd's credentials there is none: files there
/// are the service's alone, and the mode has the rights of the service as those of a group.
fn exposed(path: &Path, mode: u32, credentials: Option<&Path>) -> Option<String> {
    if credentials.is_some_and(|folder| path.starts_with(folder)) {
        return None;
    }
    let others = match (mode & 0o040 != 0, mode & 0o004 != 0) {
        (_, true) => "everybody",
        (true, false) => "its group",
        (false, false) => return None,
    };
    let (path, mode) = (path.display(), mode & 0o7777);
    Some(format!("{path} has a key, and {others} can read it (mode {mode:04o}): chmod 600 {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::dumpable_behavior;

    #[test]
    fn a_file_that_others_can_read_is_named_with_its_mode() {
        let said = |mode| exposed(Path::new("/etc/vm.key"), mode, Some(Path::new("/run/credentials/vm")));
        assert_eq!([said(0o100600), said(0o100400), said(0o100711)], [None, None, None]);
        let everybody = said(0o100644).unwrap();
        assert!(everybody.contains("everybody") && everybody.contains("(mode 0644): chmod 600 /etc/vm.key"));
        assert!(said(0o100640).unwrap().contains("its group can read it (mode 0640)"));
        let credentials = Path::new("/run/credentials/vm");
        assert_eq!(exposed(&credentials.join("vm.key"), 0o100440, Some(credentials)), None);
    }

    #[test]
    fn a_process_that_read_a_key_leaves_no_core_dump_and_is_not_swapped_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        guard(file.path(), &file.as_file().metadata().unwrap());
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
        // Locked, unless that is not allowed here.
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).expect("a line");
        assert_eq!(locked.trim() != "0 kB", lock().unwrap());
    }
}
