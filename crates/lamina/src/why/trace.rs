//! The slowest requests in the trace event format, as a JSON object, which Perfetto (ui.perfetto.dev) and the tracing
//! page of Chrome open: a track for each request, with its parts below it.
//!
//! Source: the document "Trace Event Format" of the Chromium project; complete events ("X") and metadata events ("M").

use crate::api::{Share, SlowRequest, Why};
use lamina_block::Bytes;
use serde_json::{Value, json};

/// The process of all events: the export.
const PROCESS: u32 = 1;

/// The trace; times are microseconds since the first of the requests began.
pub fn trace(why: &Why) -> Value {
    let ago = |request: &SlowRequest| request.seconds_ago * 1e6;
    let first = why.slowest.iter().map(ago).fold(0.0, f64::max);
    let mut events = vec![named("process_name", 0, &format!("{} of {}", why.export, why.device))];
    for (n, request) in why.slowest.iter().enumerate() {
        let (thread, begun) = (n + 1, first - ago(request));
        let what = format!("{} of {}", request.operation, Bytes(request.bytes));
        events.push(named("thread_name", thread, &what));
        events.push(complete(&what, &request.operation, thread, (begun, request.us), json!({})));
        let mut from = begun;
        for Share { device, kind, cause, us } in &request.parts {
            let name = if cause == "itself" { device.clone() } else { format!("{device}: {cause}") };
            let about = json!({ "device": device, "kind": kind, "cause": cause });
            events.push(complete(&name, cause, thread, (from, *us), about));
            from += us;
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" })
}

/// Something that has taken time.
fn complete(name: &str, category: &str, thread: usize, (from, took): (f64, f64), args: Value) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "ts": from, "dur": took, "pid": PROCESS, "tid": thread, "args": args,
    })
}

/// The name of a process, or of a thread.
fn named(what: &str, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": PROCESS, "tid": thread, "args": { "name": name } })
}
