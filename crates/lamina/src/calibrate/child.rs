//! A program that stands in for a drive: `R|W lbn sectors think_us` on its input, microseconds on its output.
//!
//! ```text
//!   R 81920 1 0       ──▶                 sector 81920, at once
//!                     ◀──  7312.402       it took 7.3 ms
//!   R 40960 8 500     ──▶                 8 sectors, half a millisecond of the drive's time later
//! ```
//!
//! One line a request, one line an answer; nothing else is required of the program. Numbers that are sent are whole. An
//! answer that is no number of microseconds refuses the request; so does the program's end, after which it is started
//! anew. That is how the size is found if it is not given: by doubling and bisecting for the first sector that is
//! refused. A program that does not answer at all is an error.

use lamina_calibrate::Probe;
use lamina_calibrate::trace::MICROSECONDS_MAX;
use lamina_drive::{Op, Request};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// How long an answer may take. A drive's time passes at once, so that this is time for computing.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The first sector number that is tried for the size, and the last.
const SIZES: (u64, u64) = (1 << 10, 1 << 42);
/// Sectors of a request to a drive that does not answer for one.
const BLOCK: u32 = 8;
/// The longest answer, in bytes.
const ANSWER_MAX: u64 = 4096;
/// How long a program that has closed its output may take to end by itself.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// A program that is asked.
pub struct ChildProbe {
    command: String,
    sectors: u64,
    /// Sectors of the shortest request that is answered.
    block: u32,
    running: Running,
}

/// A program that runs.
struct Running {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<std::io::Result<String>>,
}

/// What came for a request.
enum Answer {
    Took(f64),
    /// The line that was no time.
    Refused(String),
    /// The program has ended.
    Ended,
}

impl ChildProbe {
    /// Starts `command`, a line for the shell. The size is looked for if it is not given.
    pub fn start(command: &str, sectors: Option<u64>) -> Result<ChildProbe, String> {
        let running = Running::start(command)?;
        let mut probe = ChildProbe {
            command: command.to_owned(),
            sectors: sectors.unwrap_or(u64::MAX),
            block: 1,
            running,
        };
        if sectors.is_none() {
            probe.sectors = probe.find_size()?;
            // The drive begins anew, with nothing in its cache.
            probe.running = Running::start(command)?;
        }
        Ok(probe)
    }

    /// The first sector that is refused.
    fn find_size(&mut self) -> Result<u64, String> {
        if !self.has(0)? {
            // A drive with sectors of 4 KiB answers only for whole ones.
            self.block = BLOCK;
        }
        match self.running.ask(self.first(0), 0)? {
            Answer::Took(_) => {}
            Answer::Refused(line) => {
                return Err(format!(
                    "{}: a read of sector 0 is answered with {line:?}, not with microseconds",
                    self.command
                ));
            }
            Answer::Ended => {
                return Err(format!(
                    "{}: ended when it was asked for sector 0{}",
                    self.command,
                    self.running.status()
                ));
            }
        }
        let (mut there, mut refused) = (0, SIZES.0);
        while self.has(refused)? {
            (there, refused) = (refused, refused * 2);
            if refused > SIZES.1 {
                return Err(format!(
                    "{}: answers for any sector: say how large the drive is with --size",
                    self.command
                ));
            }
        }
        while refused - there > 1 {
            let middle = there + (refused - there) / 2;
            if self.has(middle)? { there = middle } else { refused = middle }
        }
        Ok(refused * u64::from(self.block))
    }

    /// A read of the block with this number.
    fn first(&self, block: u64) -> Request {
        Request { op: Op::Read, lbn: block * u64::from(self.block), sectors: self.block }
    }

    fn has(&mut self, block: u64) -> Result<bool, String> {
        match self.running.ask(self.first(block), 0)? {
            Answer::Took(_) => Ok(true),
            Answer::Refused(_) => Ok(false),
            Answer::Ended => {
                self.running = Running::start(&self.command)?;
                Ok(false)
            }
        }
    }
}

impl Probe for ChildProbe {
    fn ask(&mut self, request: Request, think_us: f64) -> Result<f64, String> {
        let Request { op, lbn, sectors } = request;
        let name = match op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush | Op::Discard => {
                return Err(format!("{}: only reads and writes are sent to it", self.command));
            }
        };
        match self.running.ask(request, think_us.round() as u64)? {
            Answer::Took(us) => Ok(us),
            Answer::Refused(line) => Err(format!(
                "{}: a {name} of {sectors} sectors at {lbn} is answered with {line:?}, not with microseconds; the size \
                 was taken to be {} sectors",
                self.command, self.sectors
            )),
            Answer::Ended => Err(format!(
                "{}: ended at a {name} of {sectors} sectors at {lbn}{}",
                self.command,
                self.running.status()
            )),
        }
    }

    fn sectors(&self) -> u64 {
        self.sectors
    }
}

impl Running {
    fn start(command: &str) -> Result<Running, String> {
        // A group of its own, so that what the shell starts can be ended with it.
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = shell.spawn().map_err(|e| format!("{command}: cannot be started: {e}"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, output) = pipes.ok_or_else(|| format!("{command}: has no pipes"))?;
        // A program that talks without being asked has to wait.
        let (lines, answers) = sync_channel(1);
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            // The other end is gone when the probe is.
            while let Some(line) = answer(&mut output).transpose() {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Running { child, requests, answers })
    }

    fn ask(&mut self, request: Request, think_us: u64) -> Result<Answer, String> {
        if let Ok(Ok(early)) = self.answers.try_recv() {
            return Err(format!(
                "the probe says {early:?} without being asked: one line a request is expected"
            ));
        }
        let Request { op, lbn, sectors } = request;
        let op = if op == Op::Write { "W" } else { "R" };
        let line = format!("{op} {lbn} {sectors} {think_us}\n");
        if self.requests.write_all(line.as_bytes()).and_then(|()| self.requests.flush()).is_err() {
            return Ok(Answer::Ended);
        }
        match self.answers.recv_timeout(ANSWER_TIMEOUT) {
            Ok(Ok(answer)) => Ok(match answer.trim().parse::<f64>() {
                Ok(us) if (0.0..=MICROSECONDS_MAX).contains(&us) => Answer::Took(us),
                Ok(_) | Err(_) => Answer::Refused(answer.trim_end().to_owned()),
            }),
            Ok(Err(e)) => Err(format!("the probe's answer cannot be read: {e}")),
            Err(RecvTimeoutError::Disconnected) => Ok(Answer::Ended),
            Err(RecvTimeoutError::Timeout) => {
                let seconds = ANSWER_TIMEOUT.as_secs();
                Err(format!(
                    "the probe did not answer {:?} within {seconds} s: is its output flushed?",
                    line.trim()
                ))
            }
        }
    }

    /// How the program ended, for a message.
    fn status(&mut self) -> String {
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT {
            if let Ok(Some(status)) = self.child.try_wait() {
                return format!(" ({status})");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        " (its output is closed, and it runs on)".into()
    }
}

/// The next line of a program, if there is one.
fn answer(output: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = String::new();
    let read = output.take(ANSWER_MAX).read_line(&mut line)?;
    if read as u64 == ANSWER_MAX {
        return Err(std::io::Error::other(format!("longer than {ANSWER_MAX} bytes")));
    }
    Ok((read > 0).then_some(line))
}

impl Drop for Running {
    fn drop(&mut self) {
        // The group is the child's, which is not waited for before.
        if let Ok(None) = self.child.try_wait()
            && let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers 1500.5 for sectors below 5000 and ends for others, in the shell.
    const ENDS: &str = "while read op lbn n think; do [ $lbn -lt 5000 ] || exit 3; echo 1500.5; done";
    const REFUSES: &str = "while read op lbn n think; do [ $lbn -lt 5000 ] && echo 2.5 || echo -1; done";

    #[test]
    fn sizes_are_found() {
        for command in [ENDS, REFUSES] {
            let probe = ChildProbe::start(command, None).expect("a size");
            assert_eq!(probe.sectors(), 5000, "{command}");
        }
    }

    #[test]
    fn answers_are_times() {
        let mut probe = ChildProbe::start(ENDS, Some(9000)).expect("a program");
        let read = |lbn| Request { op: Op::Read, lbn, sectors: 1 };
        assert_eq!(probe.ask(read(4999), 10.0), Ok(1500.5));
        let ended = probe.ask(read(5000), 0.0).expect_err("beyond the end");
        assert!(ended.contains("ended at a read of 1 sectors at 5000 (exit status: 3)"), "{ended}");
    }

    #[test]
    fn other_programs_are_refused() {
        for (command, message) in [
            ("true", "ended when it was asked for sector 0"),
            ("while read x; do echo hello; done", "answered with \"hello\""),
            ("while read x; do echo nan; done", "answered with \"nan\""),
            ("while read x; do echo 1; done", "--size"),
            ("while read x; do echo 1e12; done", "answered with \"1e12\""),
            ("tr -d '\\n' </dev/zero", "longer than 4096 bytes"),
            ("exec >&-; while read x; do :; done", "its output is closed, and it runs on"),
        ] {
            let error = ChildProbe::start(command, None).err().unwrap_or_default();
            assert!(error.contains(message), "{command}: {error}");
        }
    }

    #[test]
    fn answers_to_nothing_are_refused() {
        // The first ones may come between a question and the look at the answer.
        let mut probe = ChildProbe::start("yes 1500", Some(9000)).expect("a program");
        let error = loop {
            match probe.ask(Request { op: Op::Read, lbn: 0, sectors: 1 }, 0.0) {
                Ok(us) => assert_eq!(us, 1500.0),
                Err(error) => break error,
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(error.contains("\"1500\\n\" without being asked"), "{error}");
    }
}
