//! Daemons, clients and folders that do not outlive their test.

use lamina_block::{Buf, Durability, Env, Io, Node, Result};
use lamina_graph::{Hierarchy, Plan};
use lamina_host::{Options, Reactor};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with hierarchy files.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Place {
        Place(tempfile::Builder::new().prefix("lamina-test-").tempdir().expect("a folder"))
    }

    /// A folder with `disk.toml`.
    pub fn with(text: &str) -> Place {
        let place = Place::new();
        place.write("disk.toml", text);
        place
    }

    /// The same, whose hierarchy has been created.
    pub fn made(text: &str) -> Place {
        let place = Place::with(text);
        let made = place.lamina(&["create", "disk.toml"]);
        assert_eq!(made.status.code(), Some(0), "{}", self::text(&made.stderr));
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file is written");
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("the folder");
        let name = |e: std::io::Result<std::fs::DirEntry>| {
            e.expect("an entry").file_name().into_string().expect("a name")
        };
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }

    /// `lamina` in this folder, to its end.
    pub fn lamina(&self, args: &[&str]) -> Output {
        self.output(self.command(args))
    }

    /// Another program in this folder, to its end, with the environment that `lamina` has.
    pub fn through(&self, words: &[&str]) -> Output {
        self.output(self.of_program(words[0], &words[1..]))
    }

    fn output(&self, mut command: Command) -> Output {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process");
        let drain = |pipe: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                pipe.expect("a pipe").read_to_end(&mut bytes).expect("output");
                bytes
            })
        };
        let out = drain(child.stdout.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
        let err = drain(child.stderr.take().map(|p| Box::new(p) as Box<dyn Read + Send>));
        let status = wait(&mut child);
        Output { status, stdout: out.join().expect("stdout"), stderr: err.join().expect("stderr") }
    }

    /// Serves `disk.toml`, until the ready line.
    pub fn serve(&self) -> Daemon<'_> {
        self.serve_with(&["disk.toml"], |_| {})
    }

    /// Serves with other arguments or another environment.
    pub fn serve_with(&self, args: &[&str], change: impl FnOnce(&mut Command)) -> Daemon<'_> {
        let mut command = self.command(&[&["serve"], args].concat());
        command.stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("lamina serve starts");
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let _ = sender.send(line.expect("a line"));
            }
        });
        let mut daemon = Daemon { place: self, child, said: vec![] };
        while daemon.said.last().is_none_or(|line| line != "ready") {
            daemon.said.push(lines.recv_timeout(PATIENCE).expect("the ready line"));
        }
        daemon
    }

    pub fn command(&self, args: &[&str]) -> Command {
        self.of_program(env!("CARGO_BIN_EXE_lamina"), args)
    }

    fn of_program(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.0.path());
        command.env("RUST_LOG", "error");
        for inherited in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LAMINA_CONTROL"] {
            command.env_remove(inherited);
        }
        command
    }
}

/// Standard output, or standard error, as text.
pub fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// The exit status of a process, in bounded time.
pub fn wait(child: &mut Child) -> std::process::ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("a process did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits, in bounded time, until something is so.
pub fn eventually(mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running `lamina serve`.
pub struct Daemon<'a> {
    place: &'a Place,
    pub child: Child,
    /// The lines on its standard output, up to `ready`.
    pub said: Vec<String>,
}

impl Daemon<'_> {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM, and the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        wait(&mut self.child).code()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("a signal is sent");
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("a signal is sent");
        wait(&mut self.child);
    }

    /// The URI of an NBD export, from the ready lines.
    pub fn uri(&self, export: &str) -> String {
        let prefix = format!("export {export} nbd ");
        let line = self.said.iter().find_map(|line| line.strip_prefix(&prefix));
        line.expect("a ready line of the export").to_owned()
    }

    /// An HTTP request on the control socket: status and body.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let socket = self.said.iter().find_map(|line| line.strip_prefix("control ")).expect("a control line");
        let mut stream = UnixStream::connect(self.place.path(socket)).expect("the control socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        let rest = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all((head + &rest).as_bytes()).expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// A JSON document of the control API.
    pub fn get(&self, path: &str) -> serde_json::Value {
        let (status, body) = self.http("GET", path, "");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `work` with a client of the NBD server at `uri`, and closes the client.
pub fn client<T>(uri: &str, work: impl AsyncFnOnce(Rc<Node>) -> T) -> T {
    connected(uri, async |hierarchy| {
        let result = work(hierarchy.node("c").expect("the client")).await;
        hierarchy.close().await.expect("the client is closed");
        result
    })
}

/// The same for a server that ends meanwhile: a last flush would have no receiver.
pub fn client_left_behind<T>(uri: &str, work: impl AsyncFnOnce(Rc<Node>) -> T) -> T {
    connected(uri, async |hierarchy| work(hierarchy.node("c").expect("the client")).await)
}

fn connected<T>(uri: &str, work: impl AsyncFnOnce(Hierarchy) -> T) -> T {
    let reactor = Reactor::new(Options::default()).expect("a reactor");
    let env = reactor.env() as Rc<dyn Env>;
    let keys = format!("[device.c]\ntype = \"nbd\"\naddress = \"{uri}\"\nreconnect = \"30s\"\n");
    let plan = Plan::parse(&keys, "client", Path::new("/"), std::slice::from_ref(&lamina_nbd::client::KIND));
    reactor.run(async {
        let hierarchy = Hierarchy::build(plan.expect("a plan"), env).await.expect("a connection");
        work(hierarchy).await
    })
}

/// Bytes that differ from place to place and from `seed` to `seed`.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 512) as u8 ^ (i as u8).wrapping_mul(31) ^ seed).collect()
}

pub async fn write(node: &Rc<Node>, at: u64, bytes: Vec<u8>) -> Result<()> {
    node.submit(Io::write(at, Buf::from_vec(bytes), Durability::Cached)).await
}

pub async fn flush(node: &Rc<Node>) -> Result<()> {
    node.submit(Io::flush()).await
}

pub async fn read(node: &Rc<Node>, at: u64, len: usize) -> Result<Vec<u8>> {
    let buf = Buf::zeroed(len);
    node.submit(Io::read(at, buf.clone())).await?;
    Ok(buf.to_vec())
}
