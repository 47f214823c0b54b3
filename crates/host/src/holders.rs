//! The users of a file or block device, as the kernel reports them: locks, mounts, devices stacked on top.
//!
//! Locks are read from `/proc/locks` and not tried: trying one would for a moment keep its owner out. Locks of
//! processes in other containers are not seen.

use rustix::process::Pid;
use std::fs::{Metadata, read_dir, read_to_string};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// All users found, one line each.
pub fn of(meta: &Metadata) -> Vec<String> {
    let mut found =
        read_to_string("/proc/locks").map(|t| locks(&t, meta.dev(), meta.ino())).unwrap_or_default();
    if meta.file_type().is_block_device() {
        let number = format!("{}:{}", major(meta.rdev()), minor(meta.rdev()));
        let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        found.extend(mount_points(&mounts, &number).map(|place| format!("mounted at {place}")));
        let above = read_dir(format!("/sys/dev/block/{number}/holders")).into_iter().flatten().flatten();
        found.extend(above.map(|e| format!("used by device {}", e.file_name().to_string_lossy())));
    }
    found
}

/// The process at the other end of a Unix socket, which listened or connected: ` (process 12 (lamina))`, or nothing if
/// the kernel does not say.
pub fn other_end(socket: impl AsFd) -> String {
    let pid = process_of(socket).map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    pid.map(|pid| format!(" (process {pid}{})", command(pid))).unwrap_or_default()
}

/// The process that made the other end of a Unix socket (`SO_PEERCRED`, unix(7)); none if it has no number here, such
/// as one of another container.
pub fn process_of(socket: impl AsFd) -> Option<Pid> {
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the socket is open, and `peer` has space for `len` bytes.
    let got = unsafe {
        let (socket, at) = (socket.as_fd().as_raw_fd(), peer.as_mut_ptr().cast());
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, at, &raw mut len)
    };
    // SAFETY: all zeroes are a `ucred`, and so is what the kernel has put there.
    let peer = unsafe { peer.assume_init() };
    Pid::from_raw(peer.pid).filter(|_| got == 0)
}

fn major(dev: u64) -> u32 {
    rustix::fs::major(dev)
}

fn minor(dev: u64) -> u32 {
    rustix::fs::minor(dev)
}

/// The locks on one inode. A line reads `1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF`, with the device in
/// hexadecimal (proc(5), "/proc/locks"); a waiting lock has `->` after the number.
fn locks(text: &str, dev: u64, inode: u64) -> Vec<String> {
    let wanted = format!("{:02x}:{:02x}:{inode}", major(dev), minor(dev));
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, class, _, access, pid, place, ..] = words[..] else { return None };
        let access = if access == "READ" { "shared" } else { "exclusive" };
        let owner = match pid.parse::<u32>() {
            Ok(pid) => format!("process {pid}{}", command(pid)),
            // A lock of an open file description has no process.
            Err(_) => "an open file description".into(),
        };
        (place == wanted).then(|| format!("locked ({access}, {}) by {owner}", class.to_lowercase()))
    };
    text.lines().filter_map(holder).collect()
}

/// ` (name)` of a process that can be seen. Processes choose their names, of any characters.
fn command(pid: u32) -> String {
    let name = read_to_string(format!("/proc/{pid}/comm"));
    name.map(|name| format!(" ({})", name.trim().replace(char::is_control, "?"))).unwrap_or_default()
}

/// Where the device `MAJOR:MINOR` is mounted (proc(5), "/proc/pid/mountinfo": third and fifth field).
fn mount_points<'a>(mountinfo: &'a str, number: &'a str) -> impl Iterator<Item = &'a str> {
    mountinfo.lines().filter_map(move |line| {
        let mut words = line.split(' ');
        (words.nth(2) == Some(number)).then(|| words.nth(1)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_the_inode_only() {
        let dev = rustix::fs::makedev(0xfd, 1);
        let text = "1: FLOCK  ADVISORY  WRITE 4000000000 fd:01:77 0 EOF\n\
                    1: -> FLOCK  ADVISORY  WRITE 2 fd:01:77 0 EOF\n\
                    2: OFDLCK ADVISORY  READ  -1 fd:01:77 100 101\n\
                    3: POSIX  ADVISORY  WRITE 3 fd:01:78 0 EOF\nbroken\n";
        assert_eq!(
            locks(text, dev, 77),
            [
                "locked (exclusive, flock) by process 4000000000",
                "locked (shared, ofdlck) by an open file description"
            ]
        );
    }

    #[test]
    fn mounts_of_the_device_only() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 22 8:2 / /data rw - xfs /dev/sda2 rw\n";
        assert_eq!(mount_points(text, "8:2").collect::<Vec<_>>(), ["/data"]);
    }
}
