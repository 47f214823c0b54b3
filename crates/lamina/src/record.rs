//! `lamina trace`: what a device of a running daemon is asked, into a file that can be replayed.
//!
//! The daemon sends lines as requests come; nothing is kept there but what this program is too slow to read, up to a
//! bound. Without a trace under way a device pays nothing.

use crate::cli;
use crate::control::{Client, LOST};
use crate::exit::Failure;
use crate::uri::encoded;
use std::fs::File;
use std::io::{self, BufWriter, Write};

/// Runs `lamina trace`.
pub fn run(args: &cli::Trace) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let path = format!("/v1/devices/{}/trace", encoded(&args.device, ""));
    let mut lines = match &args.output {
        Some(file) => {
            let made = File::create(file);
            let made = made.map_err(|e| Failure::failed(format!("{}: {e}", file.display())))?;
            Lines::new(Box::new(made))
        }
        None => Lines::new(Box::new(io::stdout())),
    };
    let ended = client.stream(&path, args.time.map(|time| time.0), &mut lines);
    lines.out.flush()?;
    eprintln!("{} requests, {} lost", lines.requests, lines.lost);
    ended
}

/// Writes a trace, and counts what is in it.
struct Lines {
    out: BufWriter<Box<dyn Write>>,
    /// A line that is not whole yet.
    begun: Vec<u8>,
    requests: u64,
    lost: u64,
}

impl Lines {
    fn new(out: Box<dyn Write>) -> Lines {
        Lines { out: BufWriter::new(out), begun: Vec::new(), requests: 0, lost: 0 }
    }

    fn count(&mut self) {
        let line = String::from_utf8_lossy(&self.begun);
        if let Some(lost) = line.strip_prefix(LOST) {
            let number = lost.split(' ').next().and_then(|number| number.parse::<u64>().ok());
            self.lost += number.unwrap_or(0);
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            self.requests += 1;
        }
    }
}

impl Write for Lines {
    /// Writes whole lines: what is left of the last one is written with its end.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.count();
                self.out.write_all(&self.begun)?;
                self.begun.clear();
            }
        }
        // A person may look at the file meanwhile; pieces have many lines when there is much to write.
        self.out.flush()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_lines_are_written_and_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.csv");
        let mut lines = Lines::new(Box::new(File::create(&path).expect("a file")));
        for piece in ["t_us,op\n1,R,a", ",0,512\n# lost 5 requests\n2,", "W,a,0,1\n3,R"] {
            lines.write_all(piece.as_bytes()).expect("written");
        }
        lines.flush().expect("written");
        assert_eq!((lines.requests, lines.lost), (2, 5));
        let written = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(written, "t_us,op\n1,R,a,0,512\n# lost 5 requests\n2,W,a,0,1\n");
    }
}
