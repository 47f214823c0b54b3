//! Front-ends: the connected one, the waiting ones, and the next turn (`docs/decisions/0017-one-front-end.md`).

use crate::socket::Socket;
use lamina_host::holders::process_of;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Front-ends that may wait for the one that is connected; the next one is sent away.
const WAITING_MAX: usize = 4;
/// How long nothing is accepted after a connection that could not be.
pub(crate) const AGAIN: Duration = Duration::from_millis(100);

/// A connection, and the process that made it.
pub(crate) struct FrontEnd {
    pub stream: UnixStream,
    /// `None` if the process has no number here, such as one of another container.
    pid: Option<Pid>,
    /// Readable when the process has ended.
    process: Option<OwnedFd>,
}

impl FrontEnd {
    pub fn new(stream: UnixStream) -> FrontEnd {
        let pid = process_of(&stream);
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        FrontEnd { stream, pid, process }
    }

    fn has_ended(&self) -> bool {
        self.process.as_ref().is_some_and(is_ready)
    }

    /// True if `other` takes the place of this one.
    fn gives_way_to(&self, other: &FrontEnd) -> bool {
        self.has_ended() || self.pid.is_some() && self.pid == other.pid
    }

    fn has_left(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

fn is_ready(fd: &OwnedFd) -> bool {
    matches!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec::default())), Ok(1))
}

/// The entry of front-ends, one at a time.
pub(crate) struct Entrance<'a> {
    socket: &'a Socket,
    waiting: RefCell<VecDeque<FrontEnd>>,
}

impl<'a> Entrance<'a> {
    pub fn new(socket: &'a Socket) -> Entrance<'a> {
        Entrance { socket, waiting: RefCell::default() }
    }

    /// The next front-end; `None` if `wake` was readable first.
    pub fn next(&self, wake: &OwnedFd) -> io::Result<Option<FrontEnd>> {
        if let Some(first) = self.waiting.borrow_mut().pop_front() {
            return Ok(Some(first));
        }
        let mut ready = [PollFd::new(self.socket, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        wait(&mut ready)?;
        if ready[1].revents().is_empty() { Ok(Some(FrontEnd::new(self.socket.accept()?))) } else { Ok(None) }
    }

    /// Waits until `present` says something; false if another front-end takes its place, which then is the next one.
    pub fn hear(&self, present: &FrontEnd) -> io::Result<bool> {
        loop {
            // No front-end gives way to one that has given up.
            self.waiting.borrow_mut().retain(|front_end| !front_end.has_left());
            let is_awaited = !self.waiting.borrow().is_empty();
            let end = present.process.as_ref().filter(|_| is_awaited).map(|process| process.as_fd());
            let mut ready =
                vec![PollFd::new(&present.stream, PollFlags::IN), PollFd::new(self.socket, PollFlags::IN)];
            ready.extend(end.map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN)));
            wait(&mut ready)?;
            let [says, comes, ended] =
                [0, 1, 2].map(|n| ready.get(n).is_some_and(|fd| !fd.revents().is_empty()));
            if ended || comes && self.let_in(present) {
                return Ok(false);
            }
            if says {
                return Ok(true);
            }
        }
    }

    /// Takes the next connection; true if it takes the place of `present`.
    fn let_in(&self, present: &FrontEnd) -> bool {
        let comes = match self.socket.accept() {
            Ok(stream) => FrontEnd::new(stream),
            Err(e) => {
                // Out of descriptors, most likely: no fault of `present`, and another try at once would not help.
                tracing::warn!("a connection was not accepted: {e}");
                std::thread::sleep(AGAIN);
                return false;
            }
        };
        let mut waiting = self.waiting.borrow_mut();
        if present.gives_way_to(&comes) {
            waiting.push_front(comes);
            return true;
        }
        if waiting.len() < WAITING_MAX {
            waiting.push_back(comes);
        }
        false
    }
}

fn wait(fds: &mut [PollFd]) -> io::Result<()> {
    loop {
        match poll(fds, None) {
            Err(Errno::INTR) => {}
            other => return other.map(drop).map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    /// One that has left. Only dropped, its end would stay open in a process that another test is just starting.
    fn gone() -> FrontEnd {
        let (one, two) = UnixStream::pair().unwrap();
        two.shutdown(Shutdown::Both).unwrap();
        FrontEnd::new(one)
    }

    #[test]
    fn a_connection_is_of_the_process_that_made_it() {
        let (one, two) = UnixStream::pair().unwrap();
        let (one, two) = (FrontEnd::new(one), FrontEnd::new(two));
        assert_eq!(one.pid, Some(rustix::process::getpid()));
        assert!(one.gives_way_to(&two));
        assert!(!one.has_left());
        assert!(gone().has_left());
    }

    #[test]
    fn a_process_that_nobody_can_see_is_no_other() {
        let unseen = || FrontEnd { pid: None, process: None, ..FrontEnd::new(UnixStream::pair().unwrap().0) };
        assert!(!unseen().gives_way_to(&unseen()));
    }

    #[test]
    fn what_a_process_has_left_behind_gives_way() {
        let mut process = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(process.id() as i32);
        let end = pidfd_open(pid.unwrap(), PidfdFlags::empty()).unwrap();
        let present = FrontEnd { pid, process: Some(end), ..FrontEnd::new(UnixStream::pair().unwrap().0) };
        let other = FrontEnd::new(UnixStream::pair().unwrap().0);
        assert!(!present.gives_way_to(&other));
        process.kill().unwrap();
        // Also before anybody has asked how it ended.
        wait(&mut [PollFd::new(present.process.as_ref().unwrap(), PollFlags::IN)]).unwrap();
        assert!(present.gives_way_to(&other));
        process.wait().unwrap();
    }

    #[test]
    fn nobody_gives_way_to_a_front_end_that_has_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let socket = Socket::listen(&folder.path().join("a.sock"), &Default::default()).unwrap();
        let entrance = Entrance::new(&socket);
        entrance.waiting.borrow_mut().push_back(gone());
        let mut process = std::process::Command::new("true").spawn().unwrap();
        let end = pidfd_open(Pid::from_raw(process.id() as i32).unwrap(), PidfdFlags::empty()).unwrap();
        process.wait().unwrap();
        let (mut peer, stream) = UnixStream::pair().unwrap();
        let present = FrontEnd { process: Some(end), ..FrontEnd::new(stream) };
        assert!(present.has_ended());
        std::io::Write::write_all(&mut peer, b"1").unwrap();
        assert!(entrance.hear(&present).unwrap(), "it is heard");
    }
}
