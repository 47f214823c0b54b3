//! The class of a failure, from the failed device to the status of the control API and the exit code of the command
//! line.

use crate::rig::{Daemon, Place, client, text};
use serde_json::{Value, json};

/// A partition over a device that can be made to fail.
const TABLE: &str = r#"
[hierarchy]
name = "table"

[device.san]
type = "file"
path = "san.img"
size = "64MiB"

[device.bad]
type = "fault"
over = "san"

[device.table]
type = "partition"
over = "bad"
partitions = [{ name = "root", size = "4MiB" }]

[device.root]
type = "view"
over = "table"
name = "root"

[export.root]
device = "root"
nbd = "unix:root.nbd"
"#;

/// A disk whose hierarchy is changed.
const DISK: &str = r#"
[hierarchy]
name = "disk"

[device.a]
type = "file"
path = "a.img"
size = "8MiB"

[device.vm]
type = "linear"
over = "a"

[export.vm]
device = "vm"
nbd = "unix:vm.nbd"

[export.more]
device = "vm"
nbd = "unix:more.nbd"
"#;

/// Without a `[hierarchy]`, so that the places of its bytes cannot change.
const JOINED: &str = r#"
[device.left]
type = "memory"
size = "1MiB"

[device.joined]
type = "concat"
over = "left"

[export.joined]
device = "joined"
nbd = "unix:joined.nbd"
"#;

/// Status, class and message of the API's answer.
fn posted(daemon: &Daemon, path: &str, body: &Value) -> (u16, String, String) {
    let (status, answer) = daemon.http("POST", path, &body.to_string());
    let problem: Value = serde_json::from_str(&answer).expect("JSON");
    let word = |key: &str| problem[key].as_str().unwrap_or_default().to_owned();
    (status, word("kind"), word("message"))
}

#[test]
fn the_class_of_a_failed_command_is_that_of_the_device_that_failed() {
    let place = Place::made(TABLE);
    let daemon = place.serve();
    for (error, kind, status, exit) in [
        ("media", "media", 500, 14),
        ("no-space", "no-space", 507, 13),
        ("read-only", "read-only", 409, 8),
        ("fenced", "fenced", 409, 9),
        ("offline", "offline", 503, 11),
        ("timed-out", "timed-out", 504, 12),
        ("bad-memory", "bad-memory", 500, 17),
    ] {
        let rules = json!({ "rules": [{ "op": ["write", "zero", "discard"], "error": error }] }).to_string();
        assert_eq!(place.lamina(&["ctl", "bad", "set", &rules]).status.code(), Some(0));
        let create = json!({ "name": "create", "args": { "name": "data", "size": "1MiB" } });
        let (answered, class, message) = posted(&daemon, "/v1/devices/table/control", &create);
        assert_eq!((answered, &class[..]), (status, kind), "{message}");
        assert!(message.contains("a fault was injected"), "{message}");
        let done = place.lamina(&["ctl", "table", "create", "data", "1MiB"]);
        assert_eq!(done.status.code(), Some(exit), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains(&message), "{}", text(&done.stderr));
    }
    assert_eq!(place.lamina(&["ctl", "bad", "clear"]).status.code(), Some(0));
    for (args, says, kind, status, exit) in [
        (json!({ "name": "data", "size": "1GiB" }), "is free", "no-space", 507, 13),
        (json!({ "name": "root", "size": "1MiB" }), "root", "invalid", 400, 2),
    ] {
        let create = json!({ "name": "create", "args": args });
        let (answered, class, message) = posted(&daemon, "/v1/devices/table/control", &create);
        assert_eq!((answered, &class[..]), (status, kind), "{message}");
        let done = place.lamina(&["ctl", "table", "create", &args.to_string()]);
        assert_eq!(done.status.code(), Some(exit), "{}", text(&done.stderr));
        assert!(message.contains(says) && text(&done.stderr).contains(&message), "{message}");
    }
    let nobody = place.lamina(&["ctl", "nobody", "info"]);
    assert_eq!(nobody.status.code(), Some(5), "{}", text(&nobody.stderr));
}

#[test]
fn what_a_device_cannot_do_is_told_from_what_is_asked_wrongly() {
    let place = Place::with(JOINED);
    let daemon = place.serve();
    let (status, class, message) =
        posted(&daemon, "/v1/devices/joined/control", &json!({ "name": "resize" }));
    assert_eq!((status, &class[..]), (501, "unsupported"), "{message}");
    let refused = place.lamina(&["ctl", "joined", "resize"]);
    assert_eq!(refused.status.code(), Some(6), "{}", text(&refused.stderr));
    assert_eq!(text(&refused.stderr), format!("lamina: {message}\n"));
    let wrong = json!({ "name": "resize", "args": { "size": "much" } });
    assert_eq!(posted(&daemon, "/v1/devices/joined/control", &wrong).0, 400);
}

#[test]
fn the_class_of_a_change_that_fails_is_that_of_what_failed_first() {
    let place = Place::made(DISK);
    let daemon = place.serve();
    let small = std::fs::File::create(place.path("small.img")).expect("a file");
    small.set_len(4 << 20).expect("a size");
    let held = std::fs::File::create(place.path("held.img")).expect("a file");
    held.set_len(64 << 20).expect("a size");
    held.lock().expect("a lock");
    let over = |kind: &str, other: &str| {
        DISK.replace("over = \"a\"", "over = \"both\"")
            + &format!("[device.both]\ntype = \"{kind}\"\nover = [\"a\", \"b\"]\n[device.b]\n{other}\n")
    };
    let file = |path: &str| format!("type = \"file\"\npath = \"{path}\"\nsize = \"64MiB\"");
    for (changed, says, kind, status, exit) in [
        (
            DISK.replace("nbd = \"unix:vm.nbd\"", "nbd = \"unix:vm.nbd\"\nread-only = true"),
            "is served with other keys",
            "invalid",
            400,
            2,
        ),
        (over("mirror", &file("held.img")), "held.img is in use", "busy", 409, 7),
        (over("mirror", "type = \"nbd\"\naddress = \"unix:nobody.sock\""), "nobody.sock", "offline", 503, 11),
        (over("mirror", &file("small.img").replace("64MiB", "4MiB")), "device \"both\"", "no-space", 507, 13),
        (
            over("stripe", &file("new.img")),
            "cannot be put over devices that are in use",
            "unsupported",
            501,
            6,
        ),
    ] {
        place.write("changed.toml", &changed);
        let apply = json!({ "file": place.path("changed.toml") });
        let (answered, class, message) = posted(&daemon, "/v1/apply", &apply);
        assert_eq!((answered, &class[..]), (status, kind), "{message}");
        assert!(message.contains(says), "{message}");
        let done = place.lamina(&["apply", "changed.toml"]);
        assert_eq!(done.status.code(), Some(exit), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains(says), "{}", text(&done.stderr));
    }
    // A signature that would be lost, as with a command that loses something.
    std::fs::write(place.path("used.img"), [&b"LUKS\xba\xbe\x00\x02"[..], &[0; 1 << 20]].concat())
        .expect("a file");
    place.write("changed.toml", &over("mirror", &file("used.img")));
    let (status, class, message) =
        posted(&daemon, "/v1/apply", &json!({ "file": place.path("changed.toml") }));
    assert_eq!((status, &class[..]), (409, "unconfirmed"), "{message}");
    assert!(message.contains("--force overwrites it"), "{message}");
    // An export with a client.
    let less = DISK.split("[export.more]").next().expect("the rest");
    place.write("changed.toml", less);
    client(&daemon.uri("more"), async |_| {
        let done = place.lamina(&["apply", "changed.toml"]);
        assert_eq!(done.status.code(), Some(7), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains("export \"more\" is in use by"), "{}", text(&done.stderr));
    });
    assert_eq!(daemon.get("/v1/exports").as_array().map(Vec::len), Some(2), "nothing has changed");
}
