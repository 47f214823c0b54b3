//! The file of events: a line of JSON each, the newest last, for people and programs. It is a log: a line that is no
//! event is left out, and nothing but `lamina events` believes it.

use super::MOST;
use crate::api::Event;
use std::fs::{File, OpenOptions};
use std::io::{Read, Result, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// With so many lines it is written anew, with the events that are kept.
const LINES: usize = 4 * MOST;
/// So much of its end is read, at most.
const READ: u64 = 4 << 20;

/// A file of events.
pub struct LogFile {
    path: PathBuf,
    file: File,
    lines: usize,
    /// A crash has cut off the last line.
    is_cut_off: bool,
}

impl LogFile {
    /// Opens the file, or makes it; and the events in it.
    pub fn open(path: &Path) -> Result<(LogFile, Vec<Event>)> {
        let mut file = open(path, false)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(READ)))?;
        let mut bytes = Vec::new();
        // It may be a device that has no end.
        (&file).take(READ).read_to_end(&mut bytes)?;
        let is_cut_off = bytes.last().is_some_and(|last| *last != b'\n');
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        Ok((LogFile { path: path.into(), file, lines, is_cut_off }, parse(&bytes)))
    }

    /// Adds events; `all` are those that are kept.
    pub fn add(&mut self, events: &[Event], all: impl FnOnce() -> Vec<Event>) -> Result<()> {
        if self.lines + events.len() > LINES {
            return self.write_anew(&all());
        }
        if std::mem::take(&mut self.is_cut_off) {
            self.file.write_all(b"\n")?;
        }
        self.lines += events.len();
        self.file.write_all(&lines(events))
    }

    /// Another file takes its place.
    fn write_anew(&mut self, events: &[Event]) -> Result<()> {
        let mut next = self.path.clone().into_os_string();
        next.push(".new");
        let mut file = open(Path::new(&next), true)?;
        file.write_all(&lines(events))?;
        std::fs::rename(&next, &self.path)?;
        (self.file, self.lines, self.is_cut_off) = (file, events.len(), false);
        Ok(())
    }
}

/// What is in it may be in no other user's interest.
fn open(path: &Path, is_anew: bool) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .append(!is_anew)
        .write(true)
        .truncate(is_anew)
        .create(true)
        .mode(0o640)
        .open(path)
}

fn lines(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        serde_json::to_writer(&mut bytes, event).expect("an event is strings and numbers");
        bytes.push(b'\n');
    }
    bytes
}

/// The events of a file, whose numbers rise.
fn parse(bytes: &[u8]) -> Vec<Event> {
    let mut events: Vec<Event> = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Ok(event) = serde_json::from_slice::<Event>(line)
            && events.last().is_none_or(|last| last.number < event.number)
            // The next one has a number, too.
            && event.number < u64::MAX >> 1
        {
            events.push(event);
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64) -> Event {
        Event {
            number,
            time_ms: 1_795_900_000_000,
            severity: "warning".into(),
            device: Some("vm1".into()),
            message: format!("leg {number}\nis lost"),
            times: 1,
        }
    }

    #[test]
    fn events_are_there_again_but_for_a_line_that_was_cut_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events");
        let (mut file, none) = LogFile::open(&path).expect("made");
        assert_eq!(none, []);
        file.add(&[event(1), event(2)], Vec::new).expect("added");
        drop(file);
        let text = std::fs::read(&path).expect("read");
        std::fs::write(&path, &text[..text.len() - 9]).expect("cut off");
        let (mut file, found) = LogFile::open(&path).expect("opened");
        assert_eq!(found, [event(1)]);
        file.add(&[event(3)], Vec::new).expect("added");
        assert_eq!(LogFile::open(&path).expect("opened").1, [event(1), event(3)]);
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events");
        let (mut file, _) = LogFile::open(&path).expect("made");
        for n in 1..=LINES as u64 + 1 {
            file.add(&[event(n)], || vec![event(n - 1), event(n)]).expect("added");
        }
        file.add(&[event(9000)], Vec::new).expect("added");
        let numbers: Vec<u64> =
            LogFile::open(&path).expect("opened").1.iter().map(|event| event.number).collect();
        assert_eq!(numbers, [LINES as u64, LINES as u64 + 1, 9000]);
    }

    #[test]
    fn whatever_else_is_there_is_left_out() {
        let good = String::from_utf8(lines(&[event(5)])).expect("text");
        let deep = "[".repeat(100_000);
        let largest = good.replace("\"number\":5", "\"number\":18446744073709551615");
        for bad in
            ["{", "null", "{\"number\": -1}", "\u{0}\u{1}", &deep, &largest, &good.replace("5,", "\"5\",")]
        {
            let text = format!("{bad}\n{good}{bad}\n");
            assert_eq!(parse(text.as_bytes()), [event(5)], "{}", &bad[..bad.len().min(40)]);
        }
        // Bytes that change: no panic, and no more events than lines.
        for at in 0..good.len() {
            for byte in [0, b'"', b'\n', 0xFF] {
                let mut bytes = good.clone().into_bytes();
                bytes[at] = byte;
                assert!(parse(&bytes).len() <= 2);
            }
        }
    }
}
