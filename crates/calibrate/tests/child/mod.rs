//! The drive that nobody described, as a child process.

use lamina_calibrate::Probe;
use lamina_drive::{Op, Request};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The example `hidden_drive`.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let folder = test.ancestors().nth(2).expect("target/PROFILE");
    let program = folder.join("examples/hidden_drive");
    assert!(program.exists(), "build it: cargo build -p lamina-calibrate --example hidden_drive");
    program
}

/// A drive from a seed, which answers as long as this lives.
pub struct Hidden {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    sectors: u64,
}

impl Hidden {
    pub fn start(seed: u64, sectors: u64) -> Hidden {
        let mut command = Command::new(program());
        command.args(["--seed", &seed.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the drive");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Hidden { child, to, from, sectors }
    }

    /// Asks for `what`, a word of the drive's, at a place.
    pub fn say(&mut self, what: &str, request: Request, think_us: f64) -> Result<f64, String> {
        writeln!(self.to, "{what} {} {} {think_us}", request.lbn, request.sectors)
            .map_err(|e| e.to_string())?;
        let mut line = String::new();
        self.from.read_line(&mut line).map_err(|e| e.to_string())?;
        line.trim().parse().map_err(|e| format!("{line:?}: {e}"))
    }
}

impl Probe for Hidden {
    fn ask(&mut self, request: Request, think_us: f64) -> Result<f64, String> {
        let op = match request.op {
            Op::Read => "R",
            Op::Write => "W",
            Op::Flush | Op::Discard => return Err("the drive takes reads and writes".into()),
        };
        self.say(op, request, think_us)
    }

    fn sectors(&self) -> u64 {
        self.sectors
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
