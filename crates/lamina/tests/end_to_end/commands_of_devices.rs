//! `lamina ctl` and `lamina jobs` against a daemon: a persistent hierarchy with partitions.

use crate::rig::{Place, client, eventually, pattern, text, write};
use serde_json::{Value, json};

const PARTS: &str = r#"
[hierarchy]
name = "parts"

[device.san]
type = "file"
path = "san.img"
size = "64MiB"

[device.slow]
type = "delay"
over = "san"

[device.table]
type = "partition"
over = "slow"
partitions = [{ name = "root", size = "4MiB" }]

[device.root]
type = "view"
over = "table"
name = "root"

[export.root]
device = "root"
nbd = "unix:root.nbd"
"#;

/// The output of `lamina ctl`, which must succeed.
fn ctl(place: &Place, words: &[&str]) -> String {
    let done = place.lamina(&[&["ctl"], words].concat());
    assert_eq!(done.status.code(), Some(0), "{words:?}: {}", text(&done.stderr));
    text(&done.stdout).to_owned()
}

#[test]
fn partitions_grow_under_their_clients_and_are_there_after_a_restart() {
    let place = Place::made(PARTS);
    let daemon = place.serve();
    let bytes = pattern(4096, 7);
    client(&daemon.uri("root"), async |node| write(&node, 0, bytes).await.expect("a write"));
    ctl(&place, &["table", "create", "data", "8MiB"]);
    ctl(&place, &["table", "resize", "size=6MiB", "root"]);
    assert_eq!(daemon.get("/v1/exports")[0]["size"], 6 << 20);
    let list: Value = serde_json::from_str(&ctl(&place, &["table", "list"])).expect("JSON");
    assert_eq!(list["partitions"][0]["pieces"].as_array().expect("a list").len(), 2, "{list}");
    client(&daemon.uri("root"), async |node| {
        assert_eq!(node.geometry().size, 6 << 20);
        let into = lamina_block::Buf::zeroed(2 << 20);
        node.submit(lamina_block::Io::read(4 << 20, into.clone())).await.expect("a read");
        assert!(into.to_vec().iter().all(|byte| *byte == 0), "old bytes");
        write(&node, (4 << 20) - 2048, pattern(4096, 8)).await.expect("a write over the border");
    });
    let busy = place.lamina(&["ctl", "table", "delete", "root"]);
    assert_eq!(busy.status.code(), Some(7));
    assert!(text(&busy.stderr).contains("take away the device of type \"view\""), "{}", text(&busy.stderr));
    ctl(&place, &["table", "rename", "data", "to=rest"]);
    daemon.terminate();
    let daemon = place.serve();
    assert_eq!(daemon.get("/v1/devices/table")["info"]["partitions"][1]["name"], "rest");
    client(&daemon.uri("root"), async |node| {
        let into = lamina_block::Buf::zeroed(4096);
        node.submit(lamina_block::Io::read((4 << 20) - 2048, into.clone())).await.expect("a read");
        assert_eq!(into.to_vec(), pattern(4096, 8));
    });
}

#[test]
fn commands_are_explained_and_checked_before_they_are_sent() {
    let place = Place::made(PARTS);
    let daemon = place.serve();
    let help = ctl(&place, &["table", "help"]);
    assert!(help.contains("  create NAME SIZE\n      makes a partition"), "{help}");
    assert!(ctl(&place, &["san", "help"]).contains("resize [size=SIZE] [force=true]"));
    for (device, kind, key) in
        [("table", "partition", "partitions"), ("slow", "delay", "read"), ("san", "file", "member")]
    {
        let info: Value = serde_json::from_str(&ctl(&place, &[device, "info"])).expect("JSON");
        assert_eq!((&info["type"], info["geometry"]["block"].is_u64()), (&json!(kind), true), "{info}");
        assert!(info["info"].get(key).is_some(), "{info}");
    }
    for (words, says) in [
        (&["table", "format"][..], "there is create, resize, rename, delete, list"),
        (&["table", "create", "x"], "size: is missing: write create NAME SIZE"),
        (&["table", "create", "x", "much"], "size: \"much\" is no size"),
        (&["root", "create", "x", "1MiB"], "no command \"create\""),
        (&["slow", "set", "parallel=many"], "parallel: \"many\" is no number"),
        (&["table", "job", "zero"], "job NAME pause, resume, cancel or limit=RATE"),
    ] {
        let wrong = place.lamina(&[&["ctl"], words].concat());
        assert_eq!(wrong.status.code(), Some(2), "{words:?}: {}", text(&wrong.stderr));
        assert!(text(&wrong.stderr).contains(says), "{words:?}: {}", text(&wrong.stderr));
    }
    // The daemon checks as well, and names the device.
    let body = json!({ "name": "create", "args": { "name": "x" } }).to_string();
    let (status, answer) = daemon.http("POST", "/v1/devices/table/control", &body);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.contains("table: size: is missing"), "{answer}");
    assert_eq!(daemon.get("/v1/devices/table/commands")[0]["args"][1]["type"], "size");
}

#[test]
fn jobs_are_listed_slowed_down_and_cancelled() {
    let place = Place::made(PARTS);
    let daemon = place.serve();
    assert_eq!(text(&place.lamina(&["jobs"]).stdout), "no device works in the background\n");
    let none = place.lamina(&["ctl", "table", "job", "zero", "pause"]);
    assert!(
        text(&none.stderr).contains("there is no job \"zero\" of a device \"table\""),
        "{}",
        text(&none.stderr)
    );
    // Each piece takes a while, so that it can be steered between them.
    ctl(&place, &["slow", "set", "write=300ms"]);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| place.lamina(&["ctl", "table", "create", "data", "48MiB"]));
        eventually(|| daemon.get("/v1/jobs")[0]["name"] == "zero");
        let paused = ctl(&place, &["table", "job", "zero", "pause"]);
        assert!(paused.contains("table   zero  paused"), "{paused}");
        let limited = ctl(&place, &["table", "job", "zero", "limit=1MiB/s"]);
        assert!(limited.contains("1.0 MiB/s"), "{limited}");
        let listed = place.lamina(&["jobs", "--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
        assert_eq!((&listed[0]["total"], &listed[0]["limit"]), (&json!(48 << 20), &json!(1 << 20)));
        let shown = place.lamina(&["show", "--interval", "10ms"]);
        assert!(text(&shown.stdout).contains("zero  paused"), "{}", text(&shown.stdout));
        let (_, metrics) = daemon.http("GET", "/metrics", "");
        assert!(metrics.contains("lamina_job_paused{device=\"table\",job=\"zero\"} 1\n"), "{metrics}");
        let path = "/v1/devices/table/jobs/zero";
        assert_eq!(daemon.http("POST", path, "{\"action\":\"limit\",\"limit\":0}").0, 400);
        assert_eq!(daemon.http("POST", path, "{\"action\":\"explode\"}").0, 422);
        ctl(&place, &["table", "job", "zero", "cancel"]);
        let created = create.join().expect("it ends");
        assert_eq!(created.status.code(), Some(10));
        assert!(text(&created.stderr).contains("zero was cancelled"), "{}", text(&created.stderr));
    });
    assert_eq!(daemon.get("/v1/jobs"), json!([]));
    assert_eq!(daemon.get("/v1/devices/table")["info"]["partitions"].as_array().expect("a list").len(), 1);
}
