//! Requests that are answered: from this page, from whoever knows the token.
//!
//! A browser lets every page of the Internet send requests to loopback addresses. So a request whose `Host` could be
//! the name of another machine (DNS rebinding) is refused, and one of another origin (`Sec-Fetch-Site`, `Origin`). With
//! a token any host is taken, as no other page has the token, and a reverse proxy passes on its own name.

use super::PARTS;
use super::token::Token;
use crate::api::Problem;
use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use lamina_block::Address;
use std::sync::Arc;
use std::time::Duration;

/// The longest that an answer may take: the cores answer in microseconds, unless one hangs.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The headers of every answer. No inline script or style, nothing from elsewhere, no frame around the page.
const HEADERS: [(header::HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The rules.
pub struct Access {
    token: Option<Token>,
}

/// A request that is not answered: status, class, message.
type Refused = (StatusCode, &'static str, &'static str);

impl Access {
    /// With this token, if there is one.
    pub fn new(token: Option<Token>) -> Access {
        Access { token }
    }

    /// True if the page can do more than show.
    pub fn may_steer(&self) -> bool {
        self.token.is_some()
    }

    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refused> {
        if method != Method::GET && method != Method::POST {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "invalid", "the methods are GET and POST"));
        }
        let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
        let host = text(header::HOST).unwrap_or_default();
        if self.token.is_none() && !is_loopback(host) {
            let message =
                "without a token the page is answered under the names localhost, 127.0.0.1 and [::1] alone";
            return Err((StatusCode::FORBIDDEN, "forbidden", message));
        }
        // Everything else is data.
        if PARTS.iter().any(|(part, ..)| *part == path) {
            return Ok(());
        }
        let site = text(header::HeaderName::from_static("sec-fetch-site"));
        let origin = text(header::ORIGIN).map(|origin| origin.split_once("://").map_or("", |(_, host)| host));
        if !matches!(site, None | Some("same-origin" | "none")) || origin.is_some_and(|origin| origin != host)
        {
            return Err((StatusCode::FORBIDDEN, "forbidden", "a page of another origin gets no answer"));
        }
        let Some(token) = &self.token else {
            let message = "without a token the page only shows: start the daemon with --web-token FILE";
            return if method == Method::POST {
                Err((StatusCode::FORBIDDEN, "forbidden", message))
            } else {
                Ok(())
            };
        };
        let told = text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        match told.is_some_and(|told| token.is(told)) {
            true => Ok(()),
            false => Err((StatusCode::UNAUTHORIZED, "unauthorized", "the token is missing or wrong")),
        }
    }
}

/// True if a `Host` header names this machine in a way that no name server can.
fn is_loopback(host: &str) -> bool {
    let has_port =
        host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok());
    let is_bare = host.starts_with('[') && host.ends_with(']') || !has_port;
    let host = if is_bare { format!("{host}:0") } else { host.to_owned() };
    Address::Tcp(host.to_ascii_lowercase()).is_local()
}

/// Answers a request that is allowed, in time; adds the headers of every answer.
pub async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let mut response = match access.check(request.method(), request.uri().path(), request.headers()) {
        Err(refused) => refusal(refused),
        Ok(()) => match tokio::time::timeout(ANSWER_TIME, next.run(request)).await {
            Ok(response) => response,
            Err(_) => refusal((StatusCode::GATEWAY_TIMEOUT, "timed-out", "the daemon does not answer")),
        },
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn refusal((status, kind, message): Refused) -> Response {
    let mut response = (status, Json(Problem { kind: kind.into(), message: message.into() })).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    // What may still come of a body is not read.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_no_name_server_decides_are_loopback() {
        for host in
            ["localhost", "localhost:80", "LocalHost:8080", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:9"]
        {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "10.0.0.1:80",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "evil@localhost",
            "localhost:80:80",
            "[::2]",
            "::1",
            "0.0.0.0:80",
            "localhost:x",
            "localhost.",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
