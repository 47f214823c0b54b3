//! The control API, and the commands that use it.

use crate::rig::{Place, client, eventually, pattern, text, write};
use crate::serving::DISK;
use serde_json::{Value, json};

#[test]
fn counters_reach_api_metrics_and_show() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    client(&daemon.uri("vm1"), async |node| {
        for i in 0..10 {
            write(&node, i * 4096, pattern(4096, 1)).await.expect("a write");
        }
    });
    let device = daemon.get("/v1/devices/vm1");
    assert_eq!(device["kind"], "linear");
    assert_eq!(device["over"], json!(["san"]));
    assert_eq!(device["geometry"]["size"], 8 << 20);
    let writes = &device["operations"]["write"];
    assert_eq!(
        (&writes["completed"], &writes["bytes"], &writes["errors"]),
        (&json!(10), &json!(40960), &json!(0))
    );
    let counted: u64 = writes["latency"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|b| b["count"].as_u64().expect("a count"))
        .sum();
    assert_eq!(counted, 10);
    let (status, metrics) = daemon.http("GET", "/metrics", "");
    assert_eq!(status, 200);
    for line in [
        "lamina_device_requests_total{device=\"san\",operation=\"write\"} 10\n",
        "lamina_device_bytes_total{device=\"vm1\",operation=\"write\"} 40960\n",
        "lamina_device_latency_seconds_count{device=\"vm1\",operation=\"write\"} 10\n",
        "# TYPE process_resident_memory_bytes gauge\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }
    let tree = place.lamina(&["show", "--interval", "10ms"]);
    assert!(text(&tree.stdout).contains("\nvm1     linear  8MiB"), "{}", text(&tree.stdout));
    assert!(text(&tree.stdout).contains("└─ san  file"));
    let json = place.lamina(&["show", "--json", "--interval", "10ms", "--control", "disk.toml.ctl.sock"]);
    let rates: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(rates["devices"][1]["name"], "vm1");
    assert_eq!(rates["devices"][1]["operations"]["write"]["iops"], 0.0);
}

#[test]
fn documents_are_what_they_say() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let health = daemon.get("/v1/health");
    assert_eq!((&health["state"], &health["pid"]), (&json!("serving"), &json!(daemon.pid())));
    let exports = daemon.get("/v1/exports");
    assert_eq!(exports[0]["description"], "the disk of vm1");
    assert_eq!(exports[0]["endpoints"][1]["address"], daemon.uri("vm1"));
    assert_eq!(exports[0]["clients"], json!([]));
    let committed = include_str!("../../../../docs/openapi.json");
    assert_eq!(daemon.http("GET", "/openapi.json", "").1, committed.trim_end());
    let document: Value = serde_json::from_str(committed).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    // A trace has no end.
    for (path, operations) in paths.iter().filter(|(path, _)| !path.ends_with("/trace")) {
        let query = if path.ends_with("/map") { "?at=4096" } else { "" };
        let path = path.replace("{name}", "vm1").replace("{job}", "move") + query;
        let (status, _) = daemon.http("GET", &path, "");
        assert_eq!(status, if operations["get"].is_null() { 405 } else { 200 }, "{path}");
    }
}

#[test]
fn wrong_requests_get_a_problem() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    for (method, path, body, wanted, kind) in [
        ("GET", "/v1/devices/nope", "", 404, "not-found"),
        ("GET", "/v2", "", 404, "not-found"),
        ("POST", "/v1/devices/nope/control", "{\"name\":\"x\"}", 404, "not-found"),
        ("POST", "/v1/devices/vm1/control", "{\"name\":\"x\"}", 501, "unsupported"),
        ("POST", "/v1/devices/vm1/control", "{\"name\":\"x\",\"args\":[]}", 400, "invalid"),
        ("POST", "/v1/devices/vm1/control", "{\"nome\":\"x\"}", 422, "invalid"),
        ("POST", "/v1/devices/vm1/control", "{", 400, "invalid"),
        (
            "POST",
            "/v1/devices/san/control",
            "{\"name\":\"resize\",\"args\":{\"size\":\"lots\"}}",
            400,
            "invalid",
        ),
    ] {
        let (status, answer) = daemon.http(method, path, body);
        assert_eq!(status, wanted, "{path} {body}: {answer}");
        let problem: Value = serde_json::from_str(&answer).expect("a problem");
        assert_eq!(problem["kind"], kind, "{answer}");
        assert!(problem["message"].as_str().is_some_and(|m| !m.is_empty()), "{answer}");
    }
}

#[test]
fn a_resize_reaches_the_devices_above() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let done = place.lamina(&["ctl", "san", "resize", "size=16MiB"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(daemon.get("/v1/devices/vm1")["geometry"]["size"], 16 << 20);
    assert_eq!(daemon.get("/v1/exports")[0]["size"], 16 << 20);
    client(&daemon.uri("vm1"), async |node| {
        assert_eq!(node.geometry().size, 16 << 20);
        write(&node, 12 << 20, pattern(4096, 1)).await.expect("a write in the new part");
    });
    let refused = place.lamina(&["ctl", "san", "explode"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("explode"), "{}", text(&refused.stderr));
    let unknown = place.lamina(&["ctl", "nope", "resize"]);
    assert_eq!(text(&unknown.stderr), "lamina: there is no device \"nope\": `lamina ctl` lists them\n");
}

#[test]
fn without_a_daemon_the_message_says_so() {
    let place = Place::new();
    let none = place.lamina(&["show"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("--control"), "{}", text(&none.stderr));
    let gone = place.lamina(&["ctl", "--control", "gone.sock", "a", "b"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("is `lamina serve` running"), "{}", text(&gone.stderr));
}

#[test]
fn a_device_is_traced_and_the_trace_replays() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let traced = || std::fs::read_to_string(place.path("vm1.csv")).unwrap_or_default();
    let tracing = std::thread::scope(|scope| {
        let tracing = scope.spawn(|| place.lamina(&["trace", "vm1", "-o", "vm1.csv"]));
        // The trace has begun when its file has its head.
        eventually(|| traced().starts_with("t_us,op,dev,offset_bytes,size_bytes\n"));
        let second = place.lamina(&["trace", "vm1"]);
        assert_eq!(second.status.code(), Some(7), "{}", text(&second.stderr));
        client(&daemon.uri("vm1"), async |node| {
            for i in 0..10 {
                write(&node, i * 4096, pattern(4096, 1)).await.expect("a write");
            }
        });
        eventually(|| traced().contains(",W,vm1,36864,4096\n"));
        let gone = place.lamina(&["trace", "vm2"]);
        assert_eq!(gone.status.code(), Some(5), "{}", text(&gone.stderr));
        // The end of the daemon is the end of the trace.
        assert_eq!(daemon.terminate(), Some(0));
        tracing.join().expect("a trace")
    });
    assert_eq!(tracing.status.code(), Some(1));
    assert!(text(&tracing.stderr).contains(" requests, 0 lost\n"), "{}", text(&tracing.stderr));
    assert_eq!(traced().lines().filter(|line| line.contains(",W,vm1,")).count(), 10, "{}", traced());
    let replay = ["bench", "disk.toml", "--workload", "trace:vm1.csv,depth=2", "--force", "--json"];
    let replayed = place.lamina(&replay);
    assert!(replayed.status.success(), "{}", text(&replayed.stderr));
    let report: Value = serde_json::from_slice(&replayed.stdout).expect("JSON");
    assert_eq!(report["write"]["requests"], 10, "{report}");
}
