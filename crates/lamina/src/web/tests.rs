//! The page as its clients see it: headers, refusals, texts.

use super::*;
use crate::api::{Applied, Apply, ByteMap, Job, Snapshot, Steer, Why};
use crate::control::Tracing;
use crate::control::server::Answer;
use crate::show::tests::{later, snapshot};
use crate::verbs::Denied;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use lamina_block::{Command, Error};
use std::sync::Mutex;

const TOKEN: &str = "0123456789abcdef";

/// A daemon with one hierarchy, which does what it is told and nothing else.
#[derive(Default)]
struct Fake {
    shown: Mutex<Option<Snapshot>>,
    snapshots: Mutex<u32>,
    steered: Mutex<Vec<(String, String, Steer)>>,
    commands: Mutex<Vec<(String, Command)>>,
}

impl Daemon for Fake {
    fn snapshot(&self) -> Answer<Snapshot> {
        *self.snapshots.lock().expect("a lock") += 1;
        let shown = self.shown.lock().expect("a lock").clone().unwrap_or_else(snapshot);
        Box::pin(async move { shown })
    }

    fn control(&self, device: String, command: Command) -> Answer<Option<Result<Value, Denied>>> {
        self.commands.lock().expect("a lock").push((device, command));
        Box::pin(async { Some(Ok(json!({ "bytes": 1, "cells": [] }))) })
    }

    fn steer(&self, device: String, job: String, steer: Steer) -> Answer<Option<Result<Job, Error>>> {
        self.steered.lock().expect("a lock").push((device, job, steer));
        Box::pin(async { Some(Err(Error::busy("it was told"))) })
    }

    fn map(&self, _device: String, _at: u64) -> Answer<Option<Result<ByteMap, Error>>> {
        Box::pin(async { None })
    }

    fn trace(&self, _device: String) -> Answer<Option<Result<Tracing, Error>>> {
        Box::pin(async { None })
    }

    fn why(&self, export: String) -> Answer<Option<Why>> {
        Box::pin(async move { Some(Why { export, samples: 100, ..Why::default() }) })
    }

    fn apply(&self, _apply: Apply) -> Answer<Result<Applied, Denied>> {
        Box::pin(async { Err(Error::unsupported("not here").into()) })
    }

    fn draining(&self) -> bool {
        false
    }
}

struct Answered {
    status: StatusCode,
    headers: axum::http::HeaderMap,
    body: String,
}

/// A page without or with a token.
struct Page {
    daemon: Arc<Fake>,
    board: Arc<Board>,
    router: Router,
    runtime: tokio::runtime::Runtime,
}

impl Page {
    fn new(token: Option<&str>) -> Page {
        let daemon = Arc::new(Fake::default());
        let access = Arc::new(Access::new(token.map(Token::of)));
        let board = Board::new(Arc::clone(&daemon) as Arc<dyn Daemon>, Arc::default(), access.may_steer());
        let board = Arc::new(board);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Page { daemon, router: router(&board, access), board, runtime }
    }

    fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answered {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:8080");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).expect("a request");
        let service = TowerToHyperService::new(self.router.clone());
        self.runtime.block_on(async {
            let answer = service.call(request).await.expect("an answer");
            let (parts, body) = answer.into_parts();
            let body = body.collect().await.expect("a body").to_bytes();
            Answered {
                status: parts.status,
                headers: parts.headers,
                body: String::from_utf8_lossy(&body).into(),
            }
        })
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answered {
        self.ask("GET", path, headers, "")
    }

    fn status(&self, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.get(path, headers).status.as_u16()
    }
}

fn json_of(answered: &Answered) -> Value {
    serde_json::from_str(&answered.body).expect("JSON")
}

#[test]
fn every_answer_has_strict_headers() {
    let page = Page::new(None);
    let refused = page.get("/web/state", &[("host", "evil.example")]);
    for answered in [page.get("/", &[]), page.get("/web/state", &[]), page.get("/none", &[]), refused] {
        let of =
            |name: &str| answered.headers.get(name).map(|value| value.to_str().expect("text").to_owned());
        let policy = of("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'"), "{policy}");
        assert!(policy.ends_with("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(of(name).as_deref(), Some(value), "{}", answered.status);
        }
        assert_eq!(of("access-control-allow-origin"), None);
    }
}

#[test]
fn the_page_has_no_inline_script_and_nothing_from_elsewhere() {
    for (path, _, text) in PARTS {
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick="]
        {
            assert!(!text.contains(forbidden), "{path} has {forbidden}");
        }
        let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!elsewhere.contains("://") || path.ends_with(".js") && !elsewhere.contains("http"), "{path}");
        let long = text.lines().position(|line| line.chars().count() > 120);
        assert_eq!(long.map(|line| line + 1), None, "{path} has a line of more than 120 columns");
        assert!(text.lines().count() <= 550, "{path} has {} lines: split it by idea", text.lines().count());
    }
    let html = PARTS[0].2;
    assert_eq!((html.matches("<script").count(), html.matches("</script>").count()), (1, 1));
    assert!(html.contains("<script type=\"module\" src=\"/page.js\"></script>"));
}

#[test]
fn every_part_is_served() {
    let page = Page::new(Some(TOKEN));
    for (path, kind, text) in PARTS {
        let answered = page.get(path, &[]);
        assert_eq!((answered.status, &answered.body[..]), (StatusCode::OK, text), "{path}");
        assert_eq!(answered.headers[header::CONTENT_TYPE], kind);
    }
}

#[test]
fn without_a_token_only_names_of_this_machine_are_answered() {
    let page = Page::new(None);
    for (host, status) in [
        ("localhost:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example:8080", 403),
        ("10.1.2.3", 403),
    ] {
        assert_eq!(page.status("/web/state", &[("host", host)]), status, "{host}");
        assert_eq!(page.status("/", &[("host", host)]), status, "{host}");
    }
}

#[test]
fn other_origins_get_no_data() {
    let page = Page::new(None);
    for (name, value, status) in [
        ("origin", "http://127.0.0.1:8080", 200),
        ("origin", "http://evil.example", 403),
        ("origin", "http://127.0.0.1:9999", 403),
        ("origin", "null", 403),
        ("sec-fetch-site", "same-origin", 200),
        ("sec-fetch-site", "none", 200),
        ("sec-fetch-site", "same-site", 403),
        ("sec-fetch-site", "cross-site", 403),
    ] {
        assert_eq!(page.status("/web/state", &[(name, value)]), status, "{name}: {value}");
    }
    // A link from elsewhere opens the page, which has no data in it.
    assert_eq!(page.status("/", &[("sec-fetch-site", "cross-site")]), 200);
}

#[test]
fn the_token_is_asked_for() {
    let page = Page::new(Some(TOKEN));
    let bearer = format!("Bearer {TOKEN}");
    for (headers, status) in [
        (vec![], 401),
        (vec![("authorization", "Bearer 0123456789abcdeg")], 401),
        (vec![("authorization", "Bearer ")], 401),
        (vec![("authorization", TOKEN)], 401),
        (vec![("authorization", &bearer[..])], 200),
        // A proxy passes on its own name.
        (
            vec![
                ("authorization", &bearer[..]),
                ("host", "storage.example"),
                ("origin", "https://storage.example"),
            ],
            200,
        ),
        (vec![("authorization", &bearer[..]), ("origin", "https://evil.example")], 403),
    ] {
        assert_eq!(page.status("/web/state", &headers), status, "{headers:?}");
    }
    for path in [
        &format!("/web/state?token={TOKEN}")[..],
        "/web/events",
        "/web/volumes/vm1",
        "/web/history",
        "/web/maps/a",
    ] {
        let refused = page.get(path, &[]);
        assert_eq!(refused.status.as_u16(), 401, "{path}");
        assert_eq!(json_of(&refused)["kind"], "unauthorized");
        assert_eq!(refused.headers[header::WWW_AUTHENTICATE], "Bearer");
    }
}

#[test]
fn other_spellings_of_a_path_are_no_way_around_the_token() {
    let page = Page::new(Some(TOKEN));
    for path in [
        "/%77eb/state",
        "//web/state",
        "/./web/state",
        "/web%2fstate",
        "/web/./state",
        "/WEB/state",
        "/page.js/../web/state",
    ] {
        let answered = page.get(path, &[]);
        assert_eq!(answered.status.as_u16(), 401, "{path}: {}", answered.body);
    }
    assert_eq!(page.ask("POST", "/", &[], "").status.as_u16(), 405);
}

#[test]
fn jobs_are_steered_with_a_token_alone() {
    let (path, json) = ("/web/devices/a/jobs/move", ("content-type", "application/json"));
    let page = Page::new(None);
    let refused = page.ask("POST", path, &[json], r#"{"action": "cancel"}"#);
    assert_eq!((refused.status.as_u16(), page.daemon.steered.lock().expect("a lock").len()), (403, 0));
    assert!(refused.body.contains("--web-token"), "{}", refused.body);
    let page = Page::new(Some(TOKEN));
    let bearer = format!("Bearer {TOKEN}");
    let auth = ("authorization", &bearer[..]);
    assert_eq!(page.ask("POST", path, &[json], r#"{"action": "cancel"}"#).status.as_u16(), 401);
    assert_eq!(page.ask("POST", path, &[auth], r#"{"action": "cancel"}"#).status.as_u16(), 415);
    assert_eq!(page.ask("POST", path, &[auth, json], "x").status.as_u16(), 400);
    let long = format!(r#"{{"action": "{}"}}"#, "x".repeat(BODY_MAX));
    assert_eq!(page.ask("POST", path, &[auth, json], &long).status.as_u16(), 413);
    assert!(page.daemon.steered.lock().expect("a lock").is_empty());
    let answered = page.ask("POST", path, &[auth, json], r#"{"action": "pause"}"#);
    assert_eq!((answered.status.as_u16(), &json_of(&answered)["message"]), (409, &json!("it was told")));
    let steered = page.daemon.steered.lock().expect("a lock");
    assert_eq!(*steered, [("a".to_owned(), "move".to_owned(), Steer::Pause)]);
}

#[test]
fn there_are_no_other_ways_to_change_anything() {
    let page = Page::new(Some(TOKEN));
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("authorization", &bearer[..]), ("content-type", "application/json")];
    for (method, path, status) in [
        ("POST", "/v1/devices/a/control", 404),
        ("POST", "/web/devices/a/control", 404),
        ("POST", "/v1/apply", 404),
        ("POST", "/web/state", 405),
        ("POST", "/web/maps/a", 405),
        ("PUT", "/web/devices/a/jobs/move", 405),
        ("DELETE", "/web/devices/a/jobs/move", 405),
        ("OPTIONS", "/web/state", 405),
        ("GET", "/web/devices/a/jobs/move", 405),
    ] {
        let answered = page.ask(method, path, &headers, r#"{"action": "pause"}"#);
        assert_eq!(answered.status.as_u16(), status, "{method} {path}");
    }
}

#[test]
fn a_hostile_description_is_text() {
    let hostile = "</script><script>alert(1)</script>\u{2028}\"'<img src=x onerror=alert(1)>\u{202e}\0";
    let page = Page::new(None);
    let mut shown = snapshot();
    shown.hierarchies[0].exports[0].description = hostile.into();
    *page.daemon.shown.lock().expect("a lock") = Some(shown);
    for path in ["/web/state", "/web/volumes/vm1"] {
        let answered = page.get(path, &[]);
        assert_eq!(answered.headers[header::CONTENT_TYPE], "application/json");
        let told = json_of(&answered);
        let description = told.get("description").unwrap_or(&told["volumes"][0]["description"]);
        assert_eq!(description, hostile);
    }
}

#[test]
fn viewers_share_what_is_asked_of_the_cores() {
    let page = Page::new(None);
    let first = page.get("/web/state", &[]);
    *page.daemon.shown.lock().expect("a lock") = Some(later());
    for _ in 0..20 {
        assert_eq!(page.get("/web/state", &[]).body, first.body);
        page.get("/web/volumes/vm1", &[]);
    }
    assert_eq!(*page.daemon.snapshots.lock().expect("a lock"), 1);
}

#[test]
fn an_opened_volume_and_its_hour_are_told() {
    let page = Page::new(None);
    assert_eq!(json_of(&page.get("/web/volumes/vm1", &[]))["rows"].as_array().map(Vec::len), Some(3));
    for (path, says) in [
        ("/web/volumes/none", "there is no export"),
        ("/web/history/none", "there is no export"),
        ("/web/maps/none", "there is no device"),
        ("/web/maps/a", "with a heat map"),
        ("/v1/hierarchy", "there is no such path"),
    ] {
        let answered = page.get(path, &[]);
        assert_eq!(answered.status.as_u16(), 404, "{path}");
        assert!(answered.body.contains(says), "{}", answered.body);
    }
    // A page that is opened at once has nothing to draw, and nothing to complain of.
    assert_eq!(json_of(&page.get("/web/history/vm1", &[]))["bands"], json!([]));
    page.board.history().add(1, &snapshot(), &later());
    for path in ["/web/history/vm1", "/web/history/*"] {
        assert_eq!(json_of(&page.get(path, &[]))["iops"], json!([100]), "{path}");
    }
    assert_eq!(json_of(&page.get("/web/history", &[])), json!({ "vm1": [100] }));
    assert_eq!(json_of(&page.get("/web/events", &[])), json!([]));
}

#[test]
fn heat_maps_are_of_kinds_that_have_them_and_made_once_for_all() {
    let page = Page::new(None);
    let mut shown = snapshot();
    shown.hierarchies[0].devices[0].kind = "tier".into();
    *page.daemon.shown.lock().expect("a lock") = Some(shown);
    assert_eq!(json_of(&page.get("/web/maps/a", &[]))["bytes"], 1);
    assert_eq!((page.status("/web/maps/a", &[]), page.status("/web/maps/b", &[])), (200, 404));
    let commands = page.daemon.commands.lock().expect("a lock");
    let asked: Vec<(&str, &str)> = commands.iter().map(|(device, c)| (&device[..], &c.name[..])).collect();
    assert_eq!(asked, [("a", HEAT_MAP)]);
}

#[test]
fn an_address_that_others_reach_needs_a_token_and_tls() {
    use clap::Parser;
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, TOKEN).expect("a file");
    let claim = |words: &[&str]| {
        let cli = crate::cli::Cli::parse_from(["lamina", "serve", "vm.toml"].iter().chain(words));
        let crate::cli::Command::Serve(serve) = cli.command else { panic!("another command") };
        Web::claim(&serve.options)
    };
    assert!(claim(&[]).is_ok_and(|web| web.is_none()), "the page is there without --web");
    let token = token.to_str().expect("a path");
    for words in [
        &["--web", "tcp:0.0.0.0:0"][..],
        &["--web", "tcp:0.0.0.0:0", "--web-token", token],
        &["--web", "tcp:[::]:0"],
    ] {
        let refused = claim(words).err().expect("refused").into_message();
        assert!(
            refused.contains("add --web-token FILE, --web-certificate FILE and --web-key FILE"),
            "{refused}"
        );
        assert!(refused.contains("SSH tunnel"), "{refused}");
    }
    let refused = claim(&["--web", "unix:/tmp/page"]).err().expect("refused").into_message();
    assert!(refused.contains("write tcp:HOST:PORT"), "{refused}");
    let web = claim(&["--web", "tcp:127.0.0.1:0"]).ok().flatten().expect("a page");
    assert!(web.url().starts_with("http://127.0.0.1:") && !web.url().ends_with(":0/"), "{}", web.url());
}
