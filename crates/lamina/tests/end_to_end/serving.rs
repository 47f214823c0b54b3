//! Serving: ready lines, data, refusals, draining.

use crate::rig::{
    Daemon, Place, client, client_left_behind, eventually, flush, pattern, read, text, wait, write,
};
use rustix::process::Signal;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

/// A part of a file, over NBD and over vhost-user.
pub const DISK: &str = r#"
[device.san]
type = "file"
path = "san.img"
size = "8MiB"

[device.vm1]
type = "linear"
over = "san"

[export.vm1]
device = "vm1"
description = "the disk of vm1"
nbd = "unix:vm1.nbd"
vhost-user = "vm1.vhost"
"#;

#[test]
fn what_was_written_is_there_after_a_restart() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    client(&daemon.uri("vm1"), async |node| {
        assert_eq!(node.geometry().size, 8 << 20);
        write(&node, 4096, pattern(65536, 1)).await.expect("a write");
        assert_eq!(read(&node, 4096, 65536).await.expect("a read"), pattern(65536, 1));
    });
    assert_eq!(daemon.terminate(), Some(0));
    let daemon = place.serve();
    client(&daemon.uri("vm1"), async |node| {
        assert_eq!(read(&node, 4096, 65536).await.expect("a read"), pattern(65536, 1));
        assert_eq!(read(&node, 0, 4096).await.expect("a read"), vec![0; 4096]);
    });
}

#[test]
fn ready_lines_name_every_way_in_and_the_end_is_clean() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let folder = place.path("").display().to_string();
    let folder = folder.trim_end_matches('/');
    assert_eq!(
        daemon.said,
        [
            format!("export vm1 vhost-user {folder}/vm1.vhost"),
            format!("export vm1 nbd nbd+unix:///vm1?socket={folder}/vm1.nbd"),
            "control disk.toml.ctl.sock".into(),
            "ready".into(),
        ]
    );
    for socket in ["vm1.nbd", "vm1.vhost", "disk.toml.ctl.sock"] {
        let meta = std::fs::metadata(place.path(socket)).expect("a socket");
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{socket}");
    }
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(place.names(), ["disk.toml", "san.img"]);
}

#[test]
fn a_second_daemon_is_refused_and_the_first_goes_on() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let same_socket = place.lamina(&["serve", "disk.toml"]);
    assert_eq!(same_socket.status.code(), Some(1));
    let process = format!("process {} (lamina)", daemon.pid());
    let said = text(&same_socket.stderr);
    assert!(said.contains(&format!("another daemon answers there ({process})")), "{said}");
    let same_device = place.lamina(&["serve", "disk.toml", "--control", "other.sock"]);
    assert_eq!(same_device.status.code(), Some(2));
    let message = text(&same_device.stderr);
    assert!(message.contains("disk.toml:2: device \"san\": ") && message.contains("in use"), "{message}");
    assert!(message.contains(&process), "{message}");
    assert!(!message.contains("draining"), "nothing was served: {message}");
    assert_eq!(text(&same_device.stdout), "");
    assert!(!place.path("other.sock").exists());
    client(&daemon.uri("vm1"), async |node| write(&node, 0, pattern(4096, 2)).await.expect("a write"));
}

#[test]
fn an_address_that_is_taken_is_refused_and_nothing_is_served() {
    let place = Place::with(DISK);
    let _taken = std::os::unix::net::UnixListener::bind(place.path("vm1.nbd")).expect("a socket");
    let refused = place.lamina(&["serve", "disk.toml"]);
    assert_eq!(refused.status.code(), Some(1));
    let message = text(&refused.stderr);
    assert!(message.contains("export \"vm1\": unix:") && message.contains("vm1.nbd"), "{message}");
    assert_eq!(place.names(), ["disk.toml", "san.img", "vm1.nbd"]);
}

#[test]
fn one_bad_file_of_two_and_nothing_is_served() {
    let place = Place::with(DISK);
    place.write(
        "bad.toml",
        "[device.x]\ntype = \"file\"\npath = \"missing.img\"\n[export.x]\ndevice = \"x\"\nnbd = \
                             \"unix:x.nbd\"\n",
    );
    let refused = place.lamina(&["serve", "disk.toml", "bad.toml"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("bad.toml:1: device \"x\": "), "{}", text(&refused.stderr));
    assert_eq!(text(&refused.stdout), "");
    assert_eq!(place.names(), ["bad.toml", "disk.toml", "san.img"]);
}

#[test]
fn hierarchies_spread_over_cores_and_share_a_listener() {
    let two = |a: &str, b: &str, address: &str| {
        let one = |name: &str| {
            format!(
                "[device.{name}]\ntype = \"memory\"\nsize = \"1MiB\"\n[export.{name}]\ndevice = \"{name}\"\nnbd = \
                 \"{address}\"\n"
            )
        };
        one(a) + &one(b)
    };
    let place = Place::with(&two("a", "b", "unix:ab.nbd"));
    place.write("more.toml", &two("c", "d", "tcp:127.0.0.1:0"));
    let daemon = place.serve_with(&["disk.toml", "more.toml", "--cores", "2"], |_| {});
    for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        client(&daemon.uri(name), async |node| {
            write(&node, 0, pattern(512, i as u8)).await.expect("a write")
        });
    }
    for (i, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let got = client(&daemon.uri(name), async |node| read(&node, 0, 512).await.expect("a read"));
        assert_eq!(got, pattern(512, i as u8), "{name}");
    }
    let cores: Vec<_> = daemon.get("/v1/hierarchy")["hierarchies"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|h| h["core"].clone())
        .collect();
    assert!(cores.contains(&0.into()) && cores.contains(&1.into()), "{cores:?}");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
    let slow = "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n\
                [device.d]\ntype = \"delay\"\nover = \"m\"\nwrite = \"400ms\"\n\
                [export.d]\ndevice = \"d\"\nnbd = \"unix:d.nbd\"\n";
    let place = Place::with(slow);
    let mut daemon = place.serve();
    let uri = daemon.uri("d");
    std::thread::scope(|scope| {
        let written =
            scope.spawn(|| client_left_behind(&uri, async |node| write(&node, 0, pattern(4096, 3)).await));
        under_way(&daemon, "d");
        daemon.signal(Signal::TERM);
        written.join().expect("the client").expect("the answer to the request under way");
    });
    assert_eq!(wait(&mut daemon.child).code(), Some(0));
}

/// Waits until a request is under way in a device.
fn under_way(daemon: &Daemon<'_>, device: &str) {
    eventually(|| daemon.get(&format!("/v1/devices/{device}"))["in_flight"] == 1);
}

#[test]
fn a_second_signal_ends_at_once() {
    // The delay is longer than this test may take: only the second signal ends it.
    let slow = "[device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n\
                [device.d]\ntype = \"delay\"\nover = \"m\"\nread = \"10min\"\n\
                [export.d]\ndevice = \"d\"\nnbd = \"unix:d.nbd\"\n";
    let place = Place::with(slow);
    let mut daemon = place.serve_with(&["disk.toml", "--drain", "10min"], |_| {});
    let bench = std::thread::scope(|scope| {
        let uri = daemon.uri("d");
        let bench = scope.spawn(|| place.lamina(&["bench", &{ uri }, "--depth", "1", "--time", "1s"]));
        under_way(&daemon, "d");
        daemon.signal(Signal::TERM);
        eventually(|| daemon.get("/v1/health")["state"] == "draining");
        daemon.signal(Signal::INT);
        assert_eq!(wait(&mut daemon.child).code(), Some(1));
        bench.join().expect("the load")
    });
    assert_eq!(bench.status.code(), Some(1), "{}", text(&bench.stderr));
    assert!(!place.path("disk.toml.ctl.sock").exists());
}

#[test]
fn the_service_manager_is_told() {
    let place = Place::with(DISK);
    let socket = std::os::unix::net::UnixDatagram::bind(place.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(crate::rig::PATIENCE)).expect("a time-out");
    let path = place.path("notify");
    let daemon = place.serve_with(&["disk.toml"], |command| {
        command.env("NOTIFY_SOCKET", path);
    });
    let hear = || {
        let mut bytes = [0; 256];
        let n = socket.recv(&mut bytes).expect("a message");
        text(&bytes[..n]).to_owned()
    };
    assert_eq!(hear(), "READY=1\nSTATUS=serving 1 exports\n");
    daemon.signal(Signal::HUP);
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(hear(), "STOPPING=1\n");
}

#[test]
fn the_watchdog_is_fed_while_the_cores_answer() {
    let place = Place::with(DISK);
    let socket = std::os::unix::net::UnixDatagram::bind(place.path("notify")).expect("a socket");
    socket.set_read_timeout(Some(crate::rig::PATIENCE)).expect("a time-out");
    let path = place.path("notify");
    let daemon = place.serve_with(&["disk.toml"], |command| {
        // Without WATCHDOG_PID it is meant for any process.
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", "200000");
    });
    let hear = || {
        let mut bytes = [0; 256];
        let n = socket.recv(&mut bytes).expect("a message");
        text(&bytes[..n]).to_owned()
    };
    assert_eq!(hear(), "READY=1\nSTATUS=serving 1 exports\n");
    for _ in 0..3 {
        assert_eq!(hear(), "WATCHDOG=1\n");
    }
    assert_eq!(daemon.terminate(), Some(0));
    let last = std::iter::repeat_with(hear).find(|message| message != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
}

#[test]
fn an_idle_daemon_sleeps_and_is_small() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    client(&daemon.uri("vm1"), async |node| {
        write(&node, 0, pattern(1 << 20, 4)).await.expect("a write");
        flush(&node).await.expect("a flush");
    });
    // How often any of its threads was woken: no timer runs, so this stops counting.
    let wakes = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).expect("tasks");
        let status =
            tasks.flatten().map(|t| std::fs::read_to_string(t.path().join("status")).unwrap_or_default());
        let switches = |text: String| -> u64 {
            let lines = text.lines().filter(|l| l.contains("voluntary_ctxt_switches"));
            lines.filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
        };
        status.map(switches).sum()
    };
    let mut before = wakes();
    let quiet = (0..20).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        let now = wakes();
        std::mem::replace(&mut before, now) == now
    });
    assert!(quiet, "an idle daemon was woken all the time");
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("its status");
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("its memory");
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 30 << 10, "{kib} KiB are resident");
}

#[test]
fn a_limit_of_open_files_that_is_too_low_is_named() {
    let place = Place::with(DISK);
    let serve = |limit: u32| {
        let script = format!("ulimit -n {limit}; exec \"$0\" serve disk.toml");
        place.through(&["sh", "-c", &script, env!("CARGO_BIN_EXE_lamina")])
    };
    // From the descriptors for loading the program up to those for serving.
    for limit in 4..32 {
        let refused = serve(limit);
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{limit}: {message}");
        let says = [format!("RLIMIT_NOFILE) is {limit}: "), "LimitNOFILE=".into(), "ulimit -n ".into()];
        assert!(says.iter().all(|words| message.contains(words)), "{limit}: {message}");
        assert_eq!(message.lines().count(), 1, "{limit}: {message}");
    }
    assert_eq!(place.names(), ["disk.toml"]);
}

#[test]
fn sockets_have_the_mode_and_the_group_of_the_file() {
    let place = Place::new();
    // Root may give a socket to any group, others only to one of theirs.
    let own = std::fs::metadata(place.path("")).expect("the folder").gid();
    let group = if rustix::process::geteuid().is_root() { own + 12345 } else { own };
    place.write("disk.toml", &format!("{DISK}socket-mode = \"0660\"\nsocket-group = \"{group}\"\n"));
    let daemon = place.serve();
    for (socket, rights) in
        [("vm1.nbd", (0o660, group)), ("vm1.vhost", (0o660, group)), ("disk.toml.ctl.sock", (0o600, own))]
    {
        let meta = std::fs::metadata(place.path(socket)).expect("a socket");
        assert_eq!((meta.permissions().mode() & 0o777, meta.gid()), rights, "{socket}");
    }
    client(&daemon.uri("vm1"), async |node| write(&node, 0, pattern(4096, 4)).await.expect("a write"));
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(place.names(), ["disk.toml", "san.img"]);
}

#[test]
fn a_group_that_is_not_there_is_named_before_anything_is_opened() {
    let place = Place::with(&format!("{DISK}socket-group = \"no-such-group\"\n"));
    let says =
        "disk.toml: export \"vm1\": key \"socket-group\": there is no group \"no-such-group\" in /etc/group";
    for command in ["serve", "check"] {
        let refused = place.lamina(&[command, "disk.toml"]);
        assert_eq!(refused.status.code(), Some(2), "{command}");
        let message = text(&refused.stderr);
        assert!(message.contains(says), "{command}: {message}");
    }
    assert_eq!(place.names(), ["disk.toml"]);
}

#[test]
fn exports_of_one_socket_agree_on_its_rights_across_files() {
    let one = |name: &str, rights: &str| {
        format!(
            "[device.{name}]\ntype = \"memory\"\nsize = \"1MiB\"\n[export.{name}]\ndevice = \"{name}\"\nnbd = \
             \"unix:ab.nbd\"\n{rights}"
        )
    };
    let place = Place::with(&one("a", "socket-mode = \"0660\"\n"));
    place.write("more.toml", &one("b", ""));
    let refused = place.lamina(&["serve", "disk.toml", "more.toml"]);
    assert_eq!(refused.status.code(), Some(2));
    let message = text(&refused.stderr);
    assert!(message.contains("more.toml: export \"b\"") && message.contains("\"socket-mode\""), "{message}");
}
