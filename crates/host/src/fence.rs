//! The program that fences hosts: it switches one off, or cuts it off from its stores.
//!
//! For a host it runs once at a time. Whoever asks meanwhile waits for a run of its own, which begins when that one has
//! ended, and is for all who wait by then: a run that had begun before may have been before what is to be fenced.

use futures_channel::oneshot;
use lamina_block::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

/// A program that takes longer is ended.
const LONGEST: Timespec = Timespec { tv_sec: 120, tv_nsec: 0 };
/// A run that has failed is followed by another one after this.
const PAUSE: Duration = Duration::from_secs(5);

type Waiting = Vec<oneshot::Sender<Result<()>>>;

/// A program that fences hosts, for all reactors of a process.
#[derive(Debug)]
pub struct Fencer {
    program: PathBuf,
    /// Hosts that a thread sees to, and who waits for its next run.
    hosts: Mutex<BTreeMap<String, Waiting>>,
}

impl Fencer {
    /// `program` is started with `LAMINA_FENCE_HOST` in its environment. Exit status 0 means that nothing of that host
    /// reaches a store any more.
    pub fn new(program: PathBuf) -> Arc<Fencer> {
        Arc::new(Fencer { program, hosts: Mutex::default() })
    }

    /// Runs the program; completes when it has ended with status 0.
    pub(crate) async fn fence(self: Arc<Self>, host: String) -> Result<()> {
        let (tell, told) = oneshot::channel();
        let is_first = {
            let mut hosts = self.lock();
            let is_first = !hosts.contains_key(&host);
            hosts.entry(host.clone()).or_default().push(tell);
            is_first
        };
        if is_first {
            let (me, of) = (Arc::clone(&self), host.clone());
            // A thread of its own: a program that takes long is in nobody's way.
            let begun = thread::Builder::new().name("fence".into()).spawn(move || me.see_to(&of));
            if let Err(e) = begun {
                self.lock().remove(&host);
                return Err(e.into());
            }
        }
        told.await.map_err(|_| self.failed(&host, "it was not begun"))?
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Waiting>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the program until nobody waits for that.
    fn see_to(&self, host: &str) {
        loop {
            let waiting = {
                let mut hosts = self.lock();
                match hosts.get_mut(host).map(std::mem::take) {
                    Some(waiting) if !waiting.is_empty() => waiting,
                    _ => {
                        hosts.remove(host);
                        return;
                    }
                }
            };
            let done = match run(&self.program, host) {
                Ok(Some(status)) if status.success() => Ok(()),
                Ok(Some(status)) => Err(self.failed(host, status)),
                Ok(None) => {
                    Err(self.failed(host, format_args!("it was ended after {} seconds", LONGEST.tv_sec)))
                }
                Err(e) => Err(self.failed(host, e)),
            };
            let has_failed = done.is_err();
            for waits in waiting {
                // Perhaps nobody waits any more.
                let _ = waits.send(done.clone());
            }
            if has_failed {
                thread::sleep(PAUSE);
            }
        }
    }

    fn failed(&self, host: &str, why: impl std::fmt::Display) -> Error {
        let message = format!("{} has not fenced host {host}: {why}", self.program.display());
        Error::new(ErrorKind::Offline, message)
    }
}

/// How the program has ended; `None` if it did not.
fn run(program: &Path, host: &str) -> io::Result<Option<ExitStatus>> {
    let mut command = Command::new(program);
    command.env("LAMINA_FENCE_HOST", host).stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    let ended = pidfd_open(pid, PidfdFlags::empty())
        .and_then(|fd| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&LONGEST)));
    if !matches!(ended, Ok(1)) {
        child.kill()?;
        child.wait()?;
        ended?;
        return Ok(None);
    }
    child.wait().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn script(folder: &tempfile::TempDir, text: &str) -> PathBuf {
        let path = folder.path().join("fence");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
        path
    }

    fn fenced(fencer: &Arc<Fencer>, host: &str) -> thread::JoinHandle<Result<()>> {
        let asked = Arc::clone(fencer).fence(host.into());
        thread::spawn(move || crate::Reactor::new(crate::Options::default()).expect("a reactor").run(asked))
    }

    #[test]
    fn the_program_is_told_the_host_and_is_believed() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = script(
            &folder,
            r#"echo "$LAMINA_FENCE_HOST" >> "$(dirname "$0")/log"; [ "$LAMINA_FENCE_HOST" = a ]"#,
        );
        let fencer = Fencer::new(of);
        assert_eq!(fenced(&fencer, "a").join().expect("it ends"), Ok(()));
        let e = fenced(&fencer, "b; reboot").join().expect("it ends").expect_err("another host");
        assert!(
            e.kind() == ErrorKind::Offline && e.message().contains("host b; reboot: exit status: 1"),
            "{e}"
        );
        let log = fs::read_to_string(folder.path().join("log")).expect("it was run");
        assert_eq!(log, "a\nb; reboot\n");
        let none = Fencer::new(folder.path().join("none"));
        let e = fenced(&none, "a").join().expect("it ends").expect_err("there is none");
        assert!(e.message().contains("No such file"), "{e}");
    }

    /// Eight devices lose the same host: it is shot once for the first, and once more for all that came later.
    #[test]
    fn who_asks_while_it_runs_shares_the_next_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = script(
            &folder,
            r#"cd "$(dirname "$0")"; echo run >> log; while [ ! -e go ]; do sleep 0.01; done"#,
        );
        let (fencer, log) = (Fencer::new(of), folder.path().join("log"));
        let first = fenced(&fencer, "a");
        while !log.exists() {
            thread::yield_now();
        }
        let others: Vec<_> = (0..7).map(|_| fenced(&fencer, "a")).collect();
        while fencer.lock()["a"].len() < 7 {
            thread::yield_now();
        }
        fs::write(folder.path().join("go"), "").expect("a file");
        for asked in [first].into_iter().chain(others) {
            assert_eq!(asked.join().expect("it ends"), Ok(()));
        }
        assert_eq!(fs::read_to_string(&log).expect("it was run"), "run\nrun\n");
        while !fencer.lock().is_empty() {
            thread::yield_now();
        }
    }
}
