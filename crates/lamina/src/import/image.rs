//! An image, as QEMU's tools read it.

use crate::exit::Failure;
use crate::uri::encoded;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// So long `qemu-nbd` may take to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// An image.
#[derive(Debug)]
pub struct Image {
    /// Its absolute path, which is never taken for a protocol of QEMU's (`nbd:`, `json:`).
    path: PathBuf,
    format: String,
    /// Bytes of the disk in it.
    pub size: u64,
    /// Its snapshots, the oldest first, and the present state.
    pub states: Vec<State>,
}

/// A state of the disk in an image.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    /// The name of the snapshot; none for the present state.
    pub name: Option<String>,
    /// Its number in the image.
    id: String,
}

/// What `qemu-img info` says.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Info {
    virtual_size: u64,
    backing_filename: Option<String>,
    #[serde(default)]
    format_specific: Value,
    #[serde(default)]
    snapshots: Vec<Internal>,
}

/// A snapshot inside an image.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Internal {
    id: String,
    name: String,
    #[serde(default)]
    date_sec: u64,
    #[serde(default)]
    date_nsec: u64,
}

impl Image {
    /// Looks at an image in `format`, which is never guessed: an image of a guest's may look like another. Unless
    /// `others`, an image that reads from another file is refused: its author has chosen which.
    pub fn look(path: &Path, format: &str, others: bool) -> Result<Image, Failure> {
        let path = std::path::absolute(path).map_err(Failure::failed)?;
        let told = qemu("qemu-img").args(["info", "--output=json", "-f", format]).arg(&path).output();
        let told = told.map_err(|e| missing("qemu-img", &e))?;
        if !told.status.success() {
            return Err(Failure::failed(String::from_utf8_lossy(&told.stderr).trim()));
        }
        let info: Info = serde_json::from_slice(&told.stdout).map_err(|e| {
            Failure::failed(format!("qemu-img info has an answer that is not understood: {e}"))
        })?;
        Image::of(path, format, info, others)
    }

    fn of(path: PathBuf, format: &str, mut info: Info, others: bool) -> Result<Image, Failure> {
        let data_file = info.format_specific["data"]["data-file"].as_str().map(str::to_owned);
        if let Some(other) = info.backing_filename.or(data_file).filter(|_| !others) {
            return Err(Failure::failed(format!(
                "{} reads from another file, {other:?}: if the image is yours, --backing allows that",
                path.display()
            )));
        }
        info.snapshots.sort_by_key(|snapshot| (snapshot.date_sec, snapshot.date_nsec));
        let snapshots =
            info.snapshots.into_iter().map(|Internal { id, name, .. }| State { name: Some(name), id });
        let states = snapshots.chain([State { name: None, id: String::new() }]).collect();
        Ok(Image { path, format: format.into(), size: info.virtual_size, states })
    }

    /// Serves a state of it, for reading.
    pub fn serve(&self, state: &State) -> Result<Served, Failure> {
        let folder = tempfile::tempdir().map_err(Failure::failed)?;
        let socket = folder.path().join("image");
        let mut command = qemu("qemu-nbd");
        command.args(["--read-only", "--persistent", "--format", &self.format, "--socket"]).arg(&socket);
        if state.name.is_some() {
            // A comma ends a value, unless there are two.
            command.arg("--load-snapshot").arg(format!("snapshot.id={}", state.id.replace(',', ",,")));
        }
        let child = command.arg(&self.path).spawn().map_err(|e| missing("qemu-nbd", &e))?;
        let mut served = Served { child, socket, _folder: folder };
        served.wait()?;
        Ok(served)
    }
}

/// A program of QEMU's, with nothing to read.
fn qemu(name: &str) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn missing(name: &str, e: &std::io::Error) -> Failure {
    Failure::failed(format!("{name} cannot be started: {e}; the package qemu-utils has it"))
}

/// A state of an image on an NBD socket, until this is dropped.
pub struct Served {
    child: Child,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Served {
    /// Where it is.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", encoded(&self.socket.to_string_lossy(), "/"))
    }

    /// Waits until clients can connect.
    fn wait(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        // The socket is in its folder before clients can connect.
        while UnixStream::connect(&self.socket).is_err() {
            if self.child.try_wait()?.is_some() || begun.elapsed() > BEGIN {
                let _ = self.child.kill();
                let mut said = String::new();
                if let Some(mut stderr) = self.child.stderr.take() {
                    let _ = stderr.read_to_string(&mut said);
                }
                return Err(Failure::failed(format!("the image cannot be read: {}", said.trim())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(info: Value, others: bool) -> Result<Image, String> {
        let info = serde_json::from_value(info).expect("an answer");
        Image::of("/srv/a.qcow2".into(), "qcow2", info, others).map_err(Failure::into_message)
    }

    #[test]
    fn states_come_in_their_order_of_time() {
        let snapshot = |id, name, sec| json!({ "id": id, "name": name, "date-sec": sec, "vm-state-size": 0 });
        let snapshots = [snapshot("1", "late", 9), snapshot("2", "early", 5)];
        let image = of(json!({ "virtual-size": 4096, "format": "qcow2", "snapshots": snapshots }), false);
        let image = image.expect("an image");
        let names: Vec<_> = image.states.iter().map(|state| state.name.as_deref()).collect();
        assert_eq!((names, image.size), (vec![Some("early"), Some("late"), None], 4096));
        assert_eq!(image.states[0].id, "2");
    }

    #[test]
    fn other_files_are_read_only_if_allowed() {
        for other in [
            json!({ "virtual-size": 1, "backing-filename": "/etc/shadow" }),
            json!({ "virtual-size": 1, "format-specific": { "data": { "data-file": "/etc/shadow" } } }),
        ] {
            let refused = of(other.clone(), false).expect_err("refused");
            assert!(refused.contains("reads from another file, \"/etc/shadow\""), "{refused}");
            of(other, true).expect("allowed");
        }
    }
}
