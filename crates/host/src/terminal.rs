//! The terminal of this process, where a person types a secret that is not shown.
//!
//! The terminal neither echoes nor interprets meanwhile. Ctrl-C is a byte like others: the terminal is as it was before
//! that ends the process. The keys that correct a line do so here.

use lamina_block::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// How often a read looks whether the answer is still wanted.
const GLANCE: Duration = Duration::from_millis(50);
/// The time for this process to end by Ctrl-C. Otherwise it goes on without an answer.
const ENDING: Duration = Duration::from_secs(2);

/// A terminal that shows nothing of what is typed, until the drop.
pub(crate) struct Terminal {
    tty: OwnedFd,
    before: Termios,
}

/// What was typed at the terminal.
#[derive(Debug)]
enum Typed {
    Line(Zeroizing<Vec<u8>>),
    TooLong,
    /// The end of the file, or the answer is not wanted any more.
    Nothing,
    Interrupt,
}

impl Terminal {
    /// Opens the terminal at `path`. `Unsupported` if there is none.
    pub fn open(path: &Path) -> Result<Terminal> {
        let none = |e: Errno| {
            Error::unsupported(format!("there is no terminal to ask at ({}: {e})", path.display()))
        };
        let tty = open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).map_err(none)?;
        let before = tcgetattr(&tty).map_err(none)?;
        let mut hidden = before.clone();
        let shown = LocalModes::ECHO | LocalModes::ECHONL;
        hidden.local_modes -= shown | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN;
        hidden.special_codes[SpecialCodeIndex::VMIN] = 1;
        hidden.special_codes[SpecialCodeIndex::VTIME] = 0;
        // Bytes that were typed, and shown, before the question are no part of a secret.
        retry_on_intr(|| tcsetattr(&tty, OptionalActions::Flush, &hidden)).map_err(none)?;
        Ok(Terminal { tty, before })
    }

    /// Shows `prompt`, and reads a line of at most `max` bytes, unless `given_up` says that the answer is not wanted
    /// any more. Ctrl-C ends this process, as it would without the question.
    pub fn read(&self, prompt: &str, max: usize, given_up: &dyn Fn() -> bool) -> Result<Zeroizing<Vec<u8>>> {
        self.show(prompt)?;
        let typed = self.line(max, given_up)?;
        self.show("\n")?;
        if let Typed::Interrupt = typed {
            self.restore();
            interrupt(given_up)?;
        }
        match typed {
            Typed::Line(line) => Ok(line),
            Typed::TooLong => Err(Error::invalid(format!("the answer is longer than {max} bytes"))),
            Typed::Nothing | Typed::Interrupt => Err(Error::new(ErrorKind::Cancelled, "no answer was given")),
        }
    }

    fn line(&self, max: usize, given_up: &dyn Fn() -> bool) -> Result<Typed> {
        // Memory that does not move, which would leave a copy behind.
        let mut line = Zeroizing::new(Vec::with_capacity(max));
        let mut too_long = false;
        let is = |code: SpecialCodeIndex, byte: u8| byte != 0 && self.before.special_codes[code] == byte;
        loop {
            match self.byte(given_up)? {
                None => return Ok(Typed::Nothing),
                Some(b'\n' | b'\r') if too_long => return Ok(Typed::TooLong),
                Some(b'\n' | b'\r') => return Ok(Typed::Line(line)),
                Some(byte) if is(SpecialCodeIndex::VINTR, byte) || is(SpecialCodeIndex::VQUIT, byte) => {
                    return Ok(Typed::Interrupt);
                }
                Some(byte) if is(SpecialCodeIndex::VEOF, byte) && line.is_empty() => {
                    return Ok(Typed::Nothing);
                }
                Some(byte) if is(SpecialCodeIndex::VEOF, byte) => return Ok(Typed::Line(line)),
                // Some terminals send the other one of the two.
                Some(0x08 | 0x7F) => erase(&mut line),
                Some(byte) if is(SpecialCodeIndex::VERASE, byte) => erase(&mut line),
                Some(byte) if is(SpecialCodeIndex::VKILL, byte) => {
                    line.clear();
                    too_long = false;
                }
                Some(byte) if is(SpecialCodeIndex::VSUSP, byte) => {}
                Some(byte) if line.len() < max => line.push(byte),
                Some(_) => too_long = true,
            }
        }
    }

    /// The next byte; `None` if the terminal is gone, or no byte is wanted any more.
    fn byte(&self, given_up: &dyn Fn() -> bool) -> Result<Option<u8>> {
        let glance = Timespec { tv_sec: 0, tv_nsec: GLANCE.as_nanos() as i64 };
        let mut byte = [0];
        loop {
            if given_up() {
                return Ok(None);
            }
            let ready = retry_on_intr(|| poll(&mut [PollFd::new(&self.tty, PollFlags::IN)], Some(&glance)));
            if ready.map_err(failed)? > 0 {
                // A terminal that was hung up has an end, or fails.
                let got = retry_on_intr(|| read(&self.tty, &mut byte)).unwrap_or(0);
                return Ok((got > 0).then_some(byte[0]));
            }
        }
    }

    /// A name from elsewhere moves no cursor.
    fn show(&self, text: &str) -> Result<()> {
        let safe: String = text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect();
        let mut rest = safe.as_bytes();
        while !rest.is_empty() {
            let shown = retry_on_intr(|| write(&self.tty, rest)).map_err(failed)?;
            rest = &rest[shown..];
        }
        Ok(())
    }

    fn restore(&self) {
        // A terminal that is gone has nothing to restore.
        let _ = retry_on_intr(|| tcsetattr(&self.tty, OptionalActions::Drain, &self.before));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.restore();
    }
}

fn failed(e: Errno) -> Error {
    Error::offline(format!("the terminal failed: {e}"))
}

/// Removes the last character, which may have several bytes.
fn erase(line: &mut Vec<u8>) {
    while line.pop().is_some_and(|byte| byte & 0xC0 == 0x80) {}
}

/// Interrupts this process. A program that listens to the signal ends in its own way: it has time for that.
fn interrupt(given_up: &dyn Fn() -> bool) -> Result<()> {
    kill_process(getpid(), Signal::INT).map_err(failed)?;
    let begun = Instant::now();
    while !given_up() && begun.elapsed() < ENDING {
        std::thread::sleep(GLANCE);
    }
    Ok(())
}

/// Pseudoterminals.
#[cfg(test)]
pub(crate) mod testing {
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::os::fd::OwnedFd;
    use std::path::PathBuf;

    /// The person's side of a terminal, its path, and the shell that holds it open.
    pub fn pty() -> (OwnedFd, PathBuf, OwnedFd) {
        let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudoterminal");
        grantpt(&person).and_then(|()| unlockpt(&person)).expect("a terminal");
        let path = PathBuf::from(ptsname(&person, Vec::new()).expect("a name").into_string().expect("text"));
        let shell = open(&path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the terminal");
        (person, path, shell)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::pty;
    use super::*;

    fn echoes(path: &Path) -> bool {
        let tty = open(path, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the terminal");
        tcgetattr(&tty).expect("its settings").local_modes.contains(LocalModes::ECHO | LocalModes::ISIG)
    }

    /// The line that the terminal showed.
    fn seen(person: &OwnedFd) -> String {
        let (mut seen, mut bytes) = (String::new(), [0; 1024]);
        while !seen.ends_with('\n') {
            let len = read(person, &mut bytes).expect("output");
            seen.push_str(std::str::from_utf8(&bytes[..len]).expect("text"));
        }
        seen
    }

    /// The answer to a question, and what the terminal showed.
    fn answer(typed: &[u8]) -> (Result<Zeroizing<Vec<u8>>>, String) {
        let (person, path, _shell) = pty();
        let terminal = Terminal::open(&path).expect("a terminal");
        assert!(!echoes(&path));
        write(&person, typed).expect("typed");
        let read = terminal.read("Passphrase\u{1b}: ", 8, &|| false);
        drop(terminal);
        assert!(echoes(&path), "the terminal stays as it was in the question");
        (read, seen(&person))
    }

    #[test]
    fn a_line_is_read_and_not_shown() {
        for (typed, line) in [
            (&b"secret\n"[..], &b"secret"[..]),
            (b"secret\r", b"secret"),
            (b"12345678\n", b"12345678"),
            (b"\n", b""),
            (b"sex\x7fcret\n", b"secret"),
            ("s\u{e4}\x7fecret\n".as_bytes(), b"secret"),
            (b"\x7f\x7fse\n", b"se"),
            (b"wrong, and long\x15secret\n", b"secret"),
            (b"\x1asecret\n", b"secret"),
            (b"secret\x04", b"secret"),
        ] {
            let (read, shown) = answer(typed);
            assert_eq!(read.expect("a line").as_slice(), line, "{typed:?}");
            assert_eq!(shown, "Passphrase?: \r\n");
        }
    }

    #[test]
    fn an_answer_may_be_missing_or_too_long() {
        for (typed, says) in [(&b"\x04"[..], "no answer was given"), (b"123456789\n", "longer than 8 bytes")]
        {
            let (read, _) = answer(typed);
            assert!(read.unwrap_err().message().contains(says), "{typed:?}");
        }
        let error = Terminal::open(Path::new("/dev/null")).err().expect("no terminal");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn an_answer_that_is_not_wanted_any_more_is_not_waited_for() {
        let (_person, path, _shell) = pty();
        let terminal = Terminal::open(&path).expect("a terminal");
        let error = terminal.read("Passphrase: ", 8, &|| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        drop(terminal);
        assert!(echoes(&path));
    }
}
