//! What is owed to files with keys and passphrases, and to a process that has read one.
//!
//! Keys lie in many places of the memory afterwards, also in those of libraries: ciphers expand them, TLS derives others.
//! So it is the process as a whole that is kept out of core dumps, from before the first key is in it until its end. What
//! it deliberately does not do: lock that memory, which would be all of the process with its guests' mapped memory in it;
//! swap is the service manager's (docs/hierarchy.md).

use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file with a key is going to be read: nothing of this process is in a core dump from now on, and whoever looks after it
/// is told if others can read the file, too.
pub(crate) fn guard(path: &Path, meta: &Metadata) {
    if let Err(e) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(error = %e, "keys may get into core dumps");
    }
    if let Some(warning) = exposed(path, meta.mode()) {
        tracing::warn!("{warning}");
    }
}

/// What is wrong with the mode of a file with a key.
fn exposed(path: &Path, mode: u32) -> Option<String> {
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
        let said = |mode| exposed(Path::new("/etc/vm.key"), mode);
        assert_eq!([said(0o100600), said(0o100400), said(0o100711)], [None, None, None]);
        let everybody = said(0o100644).unwrap();
        assert!(everybody.contains("everybody") && everybody.contains("(mode 0644): chmod 600 /etc/vm.key"));
        assert!(said(0o100640).unwrap().contains("its group can read it (mode 0640)"));
    }

    #[test]
    fn a_process_that_read_a_key_leaves_no_core_dump() {
        let file = tempfile::NamedTempFile::new().unwrap();
        guard(file.path(), &file.as_file().metadata().unwrap());
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }
}
