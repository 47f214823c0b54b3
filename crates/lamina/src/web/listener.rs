//! The socket of the page, and limits against clients that want too much: of connections, of bytes, of time.

use crate::exit::Failure;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use lamina_tls::ServerTls;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Connections at a time; a further one waits until another ends. A browser has six.
const CONNECTIONS_MAX: usize = 64;
/// The longest head of a request, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// Time for a TLS handshake, for the head of a request, and for the next request of a connection.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// The life of a connection: what reads its answers too slowly, or not at all, ends then. A browser connects again.
const LIFE: Duration = Duration::from_secs(120);
/// Time for the last answer of a connection.
const LAST_TIME: Duration = Duration::from_secs(5);

/// A bound socket, not yet of a runtime.
pub struct Listener {
    listener: std::net::TcpListener,
    address: SocketAddr,
    tls: Option<ServerTls>,
}

impl Listener {
    /// Listens at `HOST:PORT`.
    pub fn bind(to: &str, tls: Option<ServerTls>) -> Result<Listener, Failure> {
        let wrong = |e: io::Error| Failure::failed(format!("--web tcp:{to}: {e}"));
        let listener = std::net::TcpListener::bind(to).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        Ok(Listener { listener, address, tls })
    }

    /// The address for a browser, with the port that the system chose for 0.
    pub fn url(&self) -> String {
        format!("http{}://{}/", if self.tls.is_some() { "s" } else { "" }, self.address)
    }

    /// The listener of one runtime. To be called inside of it.
    pub fn start(self) -> io::Result<Started> {
        let listener = TcpListener::from_std(self.listener)?;
        Ok(Started { listener, tls: self.tls })
    }
}

/// A listener at work.
pub struct Started {
    listener: TcpListener,
    tls: Option<ServerTls>,
}

impl Started {
    /// Answers each connection with `router`.
    pub async fn answer(self, router: Router) -> Infallible {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(e) => {
                    // No more descriptors, for example: others may end.
                    tracing::debug!(error = %e, "a connection to the web page was not taken");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let tls = self.tls.as_ref().map(|tls| TlsAcceptor::from(tls.config()));
            let router = router.clone();
            tokio::spawn(async move {
                let _place = place;
                connection(stream, tls, router).await;
            });
        }
    }
}

/// A connection, from its first byte to its last. Its errors are its client's.
async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, router: Router) {
    let _ = stream.set_nodelay(true);
    match tls {
        None => requests(stream, router).await,
        Some(tls) => {
            if let Ok(Ok(stream)) = timeout(HEAD_TIME, tls.accept(stream)).await {
                requests(stream, router).await;
            }
        }
    }
}

async fn requests(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX);
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = std::pin::pin!(served);
    if timeout(LIFE, served.as_mut()).await.is_err() {
        served.as_mut().graceful_shutdown();
        let _ = timeout(LAST_TIME, served).await;
    }
}
