//! Keys: their files, and the memory of processes that have read them.

use crate::rig::{Place, text, wait};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

const VAULT: &str = r#"
[device.san]
type = "file"
path = "san.img"
size = "32MiB"

[device.vm1]
type = "crypt"
over = "san"
key-file = "vm1.key"
format = true
kdf-memory = "8MiB"

[export.vm1]
device = "vm1"
nbd = "unix:vm1.nbd"
"#;

/// The hierarchy with a file `name` of this mode.
fn place(file: &str, name: &str, mode: u32) -> Place {
    let place = Place::with(file);
    place.write(name, "correct horse battery staple");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(place.path(name), mode).expect("a mode");
    place
}

#[test]
fn a_key_file_that_others_can_read_is_named() {
    let warns = |mode: u32| {
        // The daemon opens the devices, and then finds no place for its socket.
        let place = place(&VAULT.replace("unix:vm1.nbd", "unix:disk.toml"), "vm1.key", mode);
        let refused = place.lamina(&["--log", "warn", "serve", "disk.toml"]);
        let said = text(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains("is no socket"), "{said}");
        let path = place.path("vm1.key").display().to_string();
        said.lines().any(|line| line.contains(&format!("(mode {mode:04o}): chmod 600 {path}")))
    };
    assert_eq!([0o644, 0o640, 0o600, 0o400].map(warns), [true, true, false, false]);
}

#[test]
fn a_key_of_tls_that_others_can_read_is_named() {
    let file = "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n[export.m]\ndevice = \"m\"\nnbd = \"unix:m.nbd\"\n\
                tls = { certificate = \"none.pem\", key = \"m.pem\" }\n";
    let place = place(file, "m.pem", 0o644);
    let refused = place.lamina(&["--log", "warn", "serve", "disk.toml"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("m.pem has a key, and everybody can read it (mode 0644): chmod 600 "), "{said}");
}

/// `linux/capability.h`.
const CAP_IPC_LOCK: u64 = 14;

/// The value of `key` in `/proc/PID/status`.
fn status_line(pid: u32, key: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a status");
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    value.expect("a line").trim().to_owned()
}

/// Whether this process, and so the daemon, has a capability.
fn capability(number: u64) -> bool {
    let all = u64::from_str_radix(&status_line(std::process::id(), "CapEff"), 16).expect("a number");
    all >> number & 1 == 1
}

#[test]
fn a_daemon_with_a_key_locks_its_memory_and_leaves_no_core_dump() {
    let place = place(VAULT, "vm1.key", 0o600);
    let mut daemon = place.serve();
    let pid = Pid::from_child(&daemon.child);
    let allowed = getrlimit(Resource::Memlock).current.is_none() || capability(CAP_IPC_LOCK);
    assert_eq!(status_line(daemon.pid(), "VmLck") != "0 kB", allowed);
    let most = getrlimit(Resource::Core).maximum;
    prlimit(Some(pid), Resource::Core, Rlimit { current: most, maximum: most }).expect("a limit");
    daemon.signal(Signal::ABORT);
    let status = wait(&mut daemon.child);
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false));
    assert!(place.names().iter().all(|name| !name.starts_with("core")), "{:?}", place.names());
}
