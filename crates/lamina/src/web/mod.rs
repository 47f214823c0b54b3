//! The web page of a daemon: `lamina serve --web tcp:127.0.0.1:PORT`.
//!
//! ```text
//!   thread "web" (tokio)
//!   listener ──▶ guard ──▶ page.html, page.css, *.js          the same for everybody, without data
//!   (limits,     (Host,    /web/state    one text for all viewers, at most one a second  ◀── board ──▶ cores
//!    TLS)        Origin,   /web/volumes/NAME, /web/history     the opened volume, charts  ◀── history
//!                token)    POST /web/devices/NAME/jobs/JOB     only with a token
//! ```
//!
//! Invariants: nothing listens without `--web`. Another machine reaches the page only over TLS and with a token.
//! Without a token the page changes nothing: every process of this machine reaches a loopback address, and so do guests
//! with user networking. With one, it steers jobs; no command that loses data is offered. The page has a thread of its
//! own, which asks the cores at most once a second, however many viewers there are.
//!
//! The page's knowledge of a layer follows from the declarations of its kind: figures, notices, commands.

mod access;
mod board;
mod history;
mod listener;
mod notes;
mod state;
mod token;
mod volume;

use crate::api::Event;
use crate::class;
use crate::cli::ServeOptions;
use crate::control::server::{self, Daemon, Refusal};
use crate::events::Journal;
use crate::exit::Failure;
use access::Access;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use board::Board;
use lamina_block::{Address, Kind};
use lamina_tls::ServerTls;
use listener::Listener;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use token::Token;

/// The longest body of a request, in bytes.
const BODY_MAX: usize = 4 << 10;
/// So far back go the events that are shown, and so many of them.
const EVENTS_AGE: Duration = Duration::from_secs(24 * 3600);
const EVENTS_MAX: usize = 300;
/// The command of devices that draw one.
const HEAT_MAP: &str = "heat-map";

/// The parts of the page: path, content type, text.
const PARTS: [(&str, &str, &str); 7] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/charts.js", "text/javascript; charset=utf-8", include_str!("charts.js")),
    ("/dom.js", "text/javascript; charset=utf-8", include_str!("dom.js")),
    ("/volume.js", "text/javascript; charset=utf-8", include_str!("volume.js")),
    ("/icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

/// A page that listens, and does not answer yet.
pub struct Web {
    listener: Listener,
    token: Option<Token>,
}

impl Web {
    /// Listens as the options say; `None` without `--web`. An address that other machines reach is refused without
    /// token and TLS.
    pub fn claim(options: &ServeOptions) -> Result<Option<Web>, Failure> {
        let Some(address) = &options.web else { return Ok(None) };
        let Address::Tcp(to) = address else {
            return Err(Failure::usage(format!(
                "--web {address}: write tcp:HOST:PORT; browsers open no Unix socket"
            )));
        };
        let token = options.web_token.as_deref().map(Token::read).transpose()?;
        let tls = match (&options.web_certificate, &options.web_key) {
            (Some(certificate), Some(key)) => {
                let wrong = |e| Failure::usage(format!("--web: {e}"));
                Some(ServerTls::load(certificate, key, None, true).map_err(wrong)?)
            }
            _ => None,
        };
        if !address.is_local() && (token.is_none() || tls.is_none()) {
            return Err(Failure::usage(format!(
                "--web {address}: other machines reach this address: add --web-token FILE, --web-certificate FILE and \
                 --web-key FILE; or serve the page on tcp:127.0.0.1:PORT, and reach it through an SSH tunnel"
            )));
        }
        Ok(Some(Web { listener: Listener::bind(to, tls)?, token }))
    }

    /// The address for a browser.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Answers from now on, in a thread of its own, until the process ends.
    pub fn answer(self, daemon: Arc<dyn Daemon>, journal: Arc<Journal>) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::failed(format!("the web page cannot be served: {e}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            self.listener.start().map_err(failed)?
        };
        let access = Arc::new(Access::new(self.token));
        let board = Arc::new(Board::new(daemon, journal, access.may_steer()));
        let router = router(&board, access);
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    never = listener.answer(router) => match never {},
                    never = board.take_samples() => match never {},
                }
            })
        };
        std::thread::Builder::new().name("web".into()).spawn(work).map_err(failed)?;
        Ok(())
    }
}

/// Everything that the page asks for.
fn router(board: &Arc<Board>, access: Arc<Access>) -> Router {
    let steering = Router::new()
        .route("/web/devices/{name}/jobs/{job}", post(server::steer))
        .with_state(Arc::clone(board.daemon()));
    let mut router = Router::new()
        .route("/web/state", get(state))
        .route("/web/volumes/{name}", get(volume))
        .route("/web/history", get(histories))
        .route("/web/history/{name}", get(history))
        .route("/web/events", get(events))
        .route("/web/maps/{name}", get(map));
    for (path, kind, text) in PARTS {
        router = router.route(path, get(move || async move { ([(header::CONTENT_TYPE, kind)], text) }));
    }
    let router = router.fallback(no_such_path).with_state(Arc::clone(board)).merge(steering);
    router.layer(DefaultBodyLimit::max(BODY_MAX)).layer(middleware::from_fn_with_state(access, access::guard))
}

/// True if devices of a kind draw a heat map.
fn has_map(kind: &Kind) -> bool {
    kind.traits.verbs.iter().any(|verb| verb.name == HEAT_MAP)
}

/// JSON that was made before, for others who look at the page too.
fn made(text: axum::body::Bytes) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

/// Everything but the opened volumes.
async fn state(State(board): State<Arc<Board>>) -> Response {
    made(board.view().await.state.clone())
}

/// An export with the tree below it.
async fn volume(State(board): State<Arc<Board>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    let text = board.volume(&name).await;
    text.map(made).ok_or_else(|| Refusal::of(&class::NOT_FOUND, format!("there is no export {name:?}")))
}

/// The requests of all volumes in the last hour, in minutes.
async fn histories(State(board): State<Arc<Board>>) -> Json<Value> {
    let view = board.view().await;
    let history = board.history();
    let exports = view.snapshot.exports();
    let minutes = exports.map(|export| (export.name.clone(), json!(history.minutes(&export.device))));
    Json(Value::Object(minutes.collect()))
}

/// The last hour of a volume, or of all of them together (`*`, which is no name).
async fn history(State(board): State<Arc<Board>>, Path(name): Path<String>) -> Result<Json<Value>, Refusal> {
    let view = board.view().await;
    let device = view.snapshot.exports().find(|export| export.name == name).map(|export| &export.device[..]);
    let of = if name == history::ALL { Some(history::ALL) } else { device };
    let told = of.map(|of| board.history().of(of));
    told.map(Json).ok_or_else(|| Refusal::of(&class::NOT_FOUND, format!("there is no export {name:?}")))
}

/// The events of the last day, the newest first.
async fn events(State(board): State<Arc<Board>>) -> Json<Vec<Event>> {
    let since = SystemTime::now() - EVENTS_AGE;
    let since = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let mut events = board.journal().after(0);
    events.retain(|event| event.time_ms >= since);
    events.reverse();
    events.truncate(EVENTS_MAX);
    Json(events)
}

/// The heat map of a device whose kind has one.
async fn map(State(board): State<Arc<Board>>, Path(name): Path<String>) -> Result<Json<Value>, Refusal> {
    match board.map(&name).await {
        Some(answer) => Ok(Json(answer?)),
        None => Err(Refusal::of(&class::NOT_FOUND, format!("there is no device {name:?} with a heat map"))),
    }
}

async fn no_such_path() -> Refusal {
    Refusal::of(&class::NOT_FOUND, "there is no such path: the page is /")
}

#[cfg(test)]
mod tests;
