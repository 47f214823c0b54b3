//! Answers the control API.

use super::schema;
use super::tracing::{self, Tracing};
use crate::api::{
    Applied, Apply, ByteMap, Cluster, Control, Device, Event, Export, Health, Job, Problem, Snapshot, Steer,
    Verb, Why,
};
use crate::class::{self, Class};
use crate::events::Journal;
use crate::files;
use crate::metrics;
use crate::verbs::{self, Denied};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use lamina_block::{Command, Error, ErrorKind, Kind};
use serde::Deserialize;
use serde_json::Value;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// An answer of the daemon that is still to come.
pub type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The calls of the API to the daemon.
pub trait Daemon: Send + Sync + 'static {
    /// Everything, copied from the cores now.
    fn snapshot(&self) -> Answer<Snapshot>;
    /// Sends a command to a device; `None` if there is no such device.
    fn control(&self, device: String, command: Command) -> Answer<Option<Result<Value, Denied>>>;
    /// Steers a job of a device, if possible, and returns its state; `None` if there is no such job.
    fn steer(&self, device: String, job: String, steer: Steer) -> Answer<Option<Result<Job, Error>>>;
    /// Begins to trace a device, or an export; `None` if there is no such device.
    fn trace(&self, device: String) -> Answer<Option<Result<Tracing, Error>>>;
    /// Where the time of an export's requests goes; `None` if there is no such export.
    fn why(&self, export: String) -> Answer<Option<Why>>;
    /// Where byte `at` of a device, or of an export, lies; `None` if there is no such device.
    fn map(&self, device: String, at: u64) -> Answer<Option<Result<ByteMap, Error>>>;
    /// Makes the hierarchies of a file what it says, or says what that would take.
    fn apply(&self, apply: Apply) -> Answer<Result<Applied, Denied>>;
    /// A signal has come and requests in flight are being completed.
    fn draining(&self) -> bool;
}

type Shared = State<Arc<dyn Daemon>>;

#[derive(OpenApi)]
#[openapi(info(
    title = "Lamina control API",
    description = "A running `lamina serve`, on its control socket. Answers other than 200 carry a `Problem`."
))]
struct Document;

fn routes() -> OpenApiRouter<Arc<dyn Daemon>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(health))
        .routes(routes!(hierarchy))
        .routes(routes!(cluster))
        .routes(routes!(device))
        .routes(routes!(commands))
        .routes(routes!(control))
        .routes(routes!(trace))
        .routes(routes!(map))
        .routes(routes!(why))
        .routes(routes!(jobs))
        .routes(routes!(steer))
        .routes(routes!(apply))
        .routes(routes!(exports))
        .routes(routes!(events))
        .routes(routes!(metrics_text))
        .routes(routes!(document))
}

/// The API as a service.
pub fn router(daemon: Arc<dyn Daemon>, journal: Arc<Journal>) -> axum::Router {
    let routes = routes().fallback(no_such_path).with_state(daemon).split_for_parts().0;
    routes.layer(Extension(journal))
}

/// The document that describes it, as JSON.
pub fn openapi() -> String {
    document_with(&files::kinds())
}

/// The same with what these kinds declare.
pub(crate) fn document_with(kinds: &[Kind]) -> String {
    let mut document = routes().split_for_parts().1;
    schema::add(&mut document, kinds);
    document.to_pretty_json().expect("a document made of strings is JSON")
}

/// Whether the daemon answers.
#[utoipa::path(get, path = "/v1/health", responses((status = 200, body = Health)))]
async fn health(State(daemon): Shared) -> Json<Health> {
    let state = if daemon.draining() { "draining" } else { "serving" };
    let version = env!("CARGO_PKG_VERSION").into();
    Json(Health { state: state.into(), version, pid: std::process::id() })
}

/// All hierarchies with their devices, counters and exports.
#[utoipa::path(get, path = "/v1/hierarchy", responses((status = 200, body = Snapshot)))]
async fn hierarchy(State(daemon): Shared) -> Json<Snapshot> {
    Json(daemon.snapshot().await)
}

/// The volumes that several hosts reach, and those hosts, as the daemon knows them: it asks nobody.
#[utoipa::path(get, path = "/v1/cluster", responses((status = 200, body = Cluster)))]
async fn cluster(State(daemon): Shared) -> Json<Cluster> {
    Json(Cluster::of(&daemon.snapshot().await))
}

/// One device.
#[utoipa::path(get, path = "/v1/devices/{name}", params(("name" = String, Path, description = "Name in the hierarchy \
    file")),
    responses((status = 200, body = Device), (status = 404, body = Problem)))]
async fn device(State(daemon): Shared, Path(name): Path<String>) -> Result<Json<Device>, Refusal> {
    let snapshot = daemon.snapshot().await;
    let found = snapshot.hierarchies.into_iter().flat_map(|h| h.devices).find(|d| d.name == name);
    found.map(Json).ok_or_else(|| Refusal::no_device(&name))
}

/// The commands that a device understands.
#[utoipa::path(get, path = "/v1/devices/{name}/commands",
    params(("name" = String, Path, description = "Name in the hierarchy file")),
    responses((status = 200, body = Vec<Verb>), (status = 404, body = Problem)))]
async fn commands(State(daemon): Shared, Path(name): Path<String>) -> Result<Json<Vec<Verb>>, Refusal> {
    let snapshot = daemon.snapshot().await;
    let device = snapshot.devices().find(|d| d.name == name).ok_or_else(|| Refusal::no_device(&name))?;
    Ok(Json(verbs::of(&device.kind)))
}

/// The background work of all devices.
#[utoipa::path(get, path = "/v1/jobs", responses((status = 200, body = Vec<Job>)))]
async fn jobs(State(daemon): Shared) -> Json<Vec<Job>> {
    let devices = daemon.snapshot().await.hierarchies.into_iter().flat_map(|h| h.devices);
    Json(devices.flat_map(|d| d.jobs).collect())
}

/// Pauses, resumes, cancels or slows down a job. The layer defines the meaning of cancelling: see its manual.
#[utoipa::path(post, path = "/v1/devices/{name}/jobs/{job}", request_body = Steer,
    params(("name" = String, Path, description = "Name in the hierarchy file"),
        ("job" = String, Path, description = "Name of the job")),
    responses((status = 200, body = Job)))]
pub(crate) async fn steer(
    State(daemon): Shared,
    Path((name, job)): Path<(String, String)>,
    body: Result<Json<Steer>, JsonRejection>,
) -> Result<Json<Job>, Refusal> {
    let Json(steer) = body?;
    if steer == (Steer::Limit { limit: Some(0) }) {
        return Err(Error::invalid("limit: 0 would never end; pause the job instead").into());
    }
    match daemon.steer(name.clone(), job.clone(), steer).await {
        Some(steered) => Ok(Json(steered?)),
        None => {
            let message = format!("there is no job {job:?} of a device {name:?}: GET /v1/jobs lists all");
            Err(Refusal::of(&class::NOT_FOUND, message))
        }
    }
}

/// Sends a command to a device. The answer is the layer's own. Each kind of layer has its commands: see the schemas
/// called `KIND.COMMAND`. A command that would lose data which it does not name is refused with 409 and `unconfirmed`,
/// unless its argument `force` is true.
#[utoipa::path(post, path = "/v1/devices/{name}/control", request_body = Control,
    params(("name" = String, Path, description = "Name in the hierarchy file")),
    responses((status = 200, body = Value)))]
async fn control(
    State(daemon): Shared,
    Path(name): Path<String>,
    body: Result<Json<Control>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let Json(control) = body?;
    if !control.args.is_object() {
        return Err(Error::invalid("args: an object is expected").into());
    }
    let command = Command { name: control.name, args: control.args };
    match daemon.control(name.clone(), command).await {
        Some(answer) => Ok(Json(answer?)),
        None => Err(Refusal::no_device(&name)),
    }
}

/// The requests of a device, or of an export, as they come: lines of `t_us,op,dev,offset_bytes,size_bytes` (op R, W, F
/// for flush, D for discard), until the client closes the connection. If the client is too slow, a line `# lost N` says
/// how many requests are missing there. A device has one trace at a time.
#[utoipa::path(get, path = "/v1/devices/{name}/trace",
    params(("name" = String, Path, description = "Name in the hierarchy file, of a device or of an export")),
    responses((status = 200, body = String, content_type = "text/csv"), (status = 404, body = Problem),
        (status = 409, body = Problem)))]
async fn trace(State(daemon): Shared, Path(name): Path<String>) -> Result<Response, Refusal> {
    match daemon.trace(name.clone()).await {
        Some(begun) => Ok(tracing::answer(begun?, name)),
        None => Err(Refusal::no_device(&name)),
    }
}

/// The byte that is asked for.
#[derive(Deserialize)]
struct At {
    at: u64,
}

/// Where a byte lies now: on the device, and on each device below that has it, a copy or a parity of it.
#[utoipa::path(get, path = "/v1/devices/{name}/map",
    params(("name" = String, Path, description = "Name in the hierarchy file, of a device or of an export"),
        ("at" = u64, Query, description = "Address in bytes")),
    responses((status = 200, body = ByteMap), (status = 404, body = Problem)))]
async fn map(
    State(daemon): Shared,
    Path(name): Path<String>,
    Query(At { at }): Query<At>,
) -> Result<Json<ByteMap>, Refusal> {
    match daemon.map(name.clone(), at).await {
        Some(map) => Ok(Json(map?)),
        None => Err(Refusal::no_device(&name)),
    }
}

/// Changes hierarchies at work to what a file says, under load: clients see a pause, no error. An impossible change is
/// refused before the first step; where data has to be moved, finished stages stay, and the message tells.
#[utoipa::path(post, path = "/v1/apply", request_body = Apply,
    responses((status = 200, body = Applied)))]
async fn apply(
    State(daemon): Shared,
    body: Result<Json<Apply>, JsonRejection>,
) -> Result<Json<Applied>, Refusal> {
    let Json(apply) = body?;
    Ok(Json(daemon.apply(apply).await?))
}

/// All exports and where clients reach them.
#[utoipa::path(get, path = "/v1/exports", responses((status = 200, body = Vec<Export>)))]
async fn exports(State(daemon): Shared) -> Json<Vec<Export>> {
    Json(daemon.snapshot().await.hierarchies.into_iter().flat_map(|h| h.exports).collect())
}

/// Where the time of an export's requests goes: of some of them, the last ones. At each moment the time counts for what
/// the request waited for; of several devices, for the one that ended last.
#[utoipa::path(get, path = "/v1/exports/{name}/why",
    params(("name" = String, Path, description = "Name of the export")),
    responses((status = 200, body = Why), (status = 404, body = Problem)))]
async fn why(State(daemon): Shared, Path(name): Path<String>) -> Result<Json<Why>, Refusal> {
    let found = daemon.why(name.clone()).await;
    found.map(Json).ok_or_else(|| Refusal::of(&class::NOT_FOUND, format!("there is no export {name:?}")))
}

/// The part of the events that is wanted.
#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    after: u64,
}

/// What has happened to devices, as far as it is kept: the last 1,000 events, the newest last.
#[utoipa::path(get, path = "/v1/events",
    params(("after" = Option<u64>, Query, description = "Only events with a larger number")),
    responses((status = 200, body = Vec<Event>)))]
async fn events(
    Extension(journal): Extension<Arc<Journal>>,
    Query(wanted): Query<Wanted>,
) -> Json<Vec<Event>> {
    Json(journal.after(wanted.after))
}

/// Counters for Prometheus.
#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain")))]
async fn metrics_text(State(daemon): Shared) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::text(&daemon.snapshot().await))
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200, body = Value)))]
async fn document() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi())
}

async fn no_such_path() -> Refusal {
    Refusal::of(&class::NOT_FOUND, "there is no such path; see /openapi.json")
}

/// An answer that is not 200.
pub(crate) struct Refusal {
    status: StatusCode,
    problem: Problem,
}

impl Refusal {
    pub(crate) fn of(class: &Class, message: impl Into<String>) -> Refusal {
        let status = StatusCode::from_u16(class.status).expect("the table has statuses; a test says so");
        Refusal { status, problem: Problem { kind: class.name.into(), message: message.into() } }
    }

    fn no_device(name: &str) -> Refusal {
        Refusal::of(&class::NOT_FOUND, format!("there is no device {name:?}: `lamina ctl` lists them"))
    }
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Refusal {
        Refusal::of(Class::of(e.kind()), e.to_string())
    }
}

impl From<JsonRejection> for Refusal {
    /// A body that cannot be read is invalid; its status says more: too long, not said to be JSON, of another shape.
    fn from(e: JsonRejection) -> Refusal {
        Refusal { status: e.status(), ..Refusal::of(Class::of(ErrorKind::Invalid), e.body_text()) }
    }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Refusal {
        match denied {
            Denied::Failed(e) => e.into(),
            Denied::Unconfirmed(message) => Refusal::of(&class::UNCONFIRMED, message),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, Json(self.problem)).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed document describes the daemon. To renew it: `LAMINA_BLESS=1 cargo test -p lamina openapi`.
    #[test]
    fn the_committed_openapi_document_is_true() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let document = openapi() + "\n";
        if std::env::var_os("LAMINA_BLESS").is_some() {
            std::fs::write(path, &document).expect("docs/openapi.json is written");
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == document, "docs/openapi.json is out of date: run with LAMINA_BLESS=1");
    }

    #[test]
    fn every_path_is_described() {
        let document: Value = serde_json::from_str(&openapi()).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        assert_eq!(paths.len(), 16);
        for (path, operations) in paths {
            for (method, operation) in operations.as_object().expect("operations") {
                assert!(operation["summary"].is_string(), "{method} {path}");
            }
        }
        let schemas = &document["components"]["schemas"];
        assert!(schemas["Snapshot"].is_object());
        let create = &schemas["partition.create"]["properties"]["args"];
        assert_eq!(create["required"], serde_json::json!(["name", "size"]), "{create}");
        assert_eq!(create["additionalProperties"], false);
        let control = &document["paths"]["/v1/devices/{name}/control"]["post"];
        let body = &control["requestBody"]["content"]["application/json"]["schema"];
        assert_eq!(body["$ref"], "#/components/schemas/Command", "{body}");
    }
}
