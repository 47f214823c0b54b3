//! TLS: a connection inside a connection.
//!
//! A [`TlsConn`] is a [`Conn`] whose bytes travel encrypted over another. Everything above it is the same with and
//! without. rustls does the protocol; here its bytes are moved.
//!
//! Invariants: nothing is handed out that was not authenticated; a peer whose certificate is not wanted gets an alert
//! and no byte more; a connection that ends without saying so is an error, never an end.

use lamina_block::{Buf, Conn, Env, Error, ErrorKind, Pending, Result, Signal};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Received at a time, in bytes: several records.
const RECEIVE: usize = 64 << 10;
/// Encrypted at a time, in bytes.
const SEND: usize = 256 << 10;
/// Time that a peer has to take our farewell.
const FAREWELL: Duration = Duration::from_millis(500);

/// A server's certificate, and whom it trusts.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    /// Clients that do not encrypt are told nothing.
    pub required: bool,
}

impl ServerTls {
    /// Reads PEM files: the certificate chain, its private key, and, if clients must show certificates, the
    /// authorities that these must come from.
    pub fn load(
        certificate: &Path,
        key: &Path,
        client_ca: Option<&Path>,
        required: bool,
    ) -> Result<ServerTls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(setup)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(roots(ca)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(setup)?)
            }
        };
        let config = builder
            .with_single_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|e| mismatch(certificate, key, e))?;
        Ok(ServerTls { config: Arc::new(config), required })
    }
}

/// The authorities that a client trusts, and its own certificate.
#[derive(Clone)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl ClientTls {
    /// Reads PEM files: the authorities that the server's certificate must come from and, if the server wants one,
    /// the client's own certificate chain and its private key. `name` is the host that the server's certificate
    /// must be for.
    pub fn load(ca: &Path, own: Option<(&Path, &Path)>, name: &str) -> Result<ClientTls> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(setup)?
            .with_root_certificates(roots(ca)?);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|e| mismatch(certificate, key, e))?,
        };
        let name = ServerName::try_from(name.to_owned())
            .map_err(|e| Error::invalid(format!("{name:?} is no host name for a certificate: {e}")))?;
        Ok(ClientTls { config: Arc::new(config), name })
    }
}

fn setup(e: impl std::fmt::Display) -> Error {
    Error::invalid(format!("TLS: {e}"))
}

fn unreadable(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {e}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let list: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|e| unreadable(path, e))?.collect();
    match list {
        Ok(list) if list.is_empty() => Err(unreadable(path, "there is no certificate in this file")),
        Ok(list) => Ok(list),
        Err(e) => Err(unreadable(path, e)),
    }
}

/// A key of a kind that can be used, whatever certificate it is for.
fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let key = PrivateKeyDer::from_pem_file(path).map_err(|e| unreadable(path, e))?;
    let loaded = rustls::crypto::ring::default_provider().key_provider.load_private_key(key.clone_key());
    loaded.map_err(|e| unreadable(path, format!("the key cannot be used: {e}")))?;
    Ok(key)
}

fn mismatch(certificate: &Path, key: &Path, e: rustls::Error) -> Error {
    Error::invalid(format!("{} with the key {}: {e}", certificate.display(), key.display()))
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| unreadable(path, e))?;
    }
    Ok(roots)
}

/// Encrypts `conn` as its server.
pub async fn accept(env: &Rc<dyn Env>, conn: Rc<dyn Conn>, tls: &ServerTls) -> Result<Rc<dyn Conn>> {
    let session = ServerConnection::new(Arc::clone(&tls.config)).map_err(failed)?;
    TlsConn::establish(env, conn, Connection::Server(session)).await
}

/// Encrypts `conn` as its client.
pub async fn connect(env: &Rc<dyn Env>, conn: Rc<dyn Conn>, tls: &ClientTls) -> Result<Rc<dyn Conn>> {
    let session = ClientConnection::new(Arc::clone(&tls.config), tls.name.clone()).map_err(failed)?;
    TlsConn::establish(env, conn, Connection::Client(session)).await
}

fn failed(e: rustls::Error) -> Error {
    Error::new(ErrorKind::Offline, format!("TLS failed: {e}"))
}

fn broken(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Offline, format!("TLS failed: {e}"))
}

/// An encrypted connection.
struct TlsConn {
    env: Rc<dyn Env>,
    inner: Rc<dyn Conn>,
    state: RefCell<State>,
    sending: Cell<bool>,
    sent: Signal,
    receiving: Cell<bool>,
}

struct State {
    tls: Connection,
    /// Received and not yet given to `tls`, from `raw_at` on.
    raw: Vec<u8>,
    raw_at: usize,
}

impl State {
    /// Moves what has been received through `tls` until `into` is full or more must be received. The number of bytes
    /// in `into`; `None` at the end of the connection.
    fn decrypt(&mut self, into: &Buf) -> Result<Option<usize>> {
        let mut got = 0;
        let mut bytes = vec![0; into.len().min(RECEIVE)];
        loop {
            let space = bytes.len().min(into.len() - got);
            if space == 0 {
                return Ok(Some(got));
            }
            match self.tls.reader().read(&mut bytes[..space]) {
                Ok(0) => return Ok((got > 0).then_some(got)),
                Ok(n) => {
                    into.write(got, &bytes[..n]);
                    got += n;
                }
                Err(e) if e.kind() == IoErrorKind::WouldBlock => {
                    if !self.feed()? {
                        return Ok(Some(got));
                    }
                }
                Err(e) => return Err(broken(e)),
            }
        }
    }

    /// Gives received bytes to `tls`; false if there are none.
    fn feed(&mut self) -> Result<bool> {
        let mut rest = &self.raw[self.raw_at..];
        if rest.is_empty() {
            return Ok(false);
        }
        let before = rest.len();
        self.tls.read_tls(&mut rest).map_err(broken)?;
        self.raw_at += before - rest.len();
        self.tls.process_new_packets().map_err(failed)?;
        Ok(true)
    }

    /// The bytes that `tls` has to send.
    fn outgoing(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut out).map_err(broken)?;
        }
        Ok(out)
    }
}

impl TlsConn {
    async fn establish(env: &Rc<dyn Env>, inner: Rc<dyn Conn>, mut tls: Connection) -> Result<Rc<dyn Conn>> {
        tls.set_buffer_limit(Some(2 * SEND));
        let conn = Rc::new(TlsConn {
            env: Rc::clone(env),
            inner,
            state: RefCell::new(State { tls, raw: Vec::new(), raw_at: 0 }),
            sending: Cell::new(false),
            sent: Signal::new(),
            receiving: Cell::new(false),
        });
        let shaken = conn.handshake().await;
        // Also after a failure: the peer is told why.
        let flushed = conn.flush().await;
        if shaken.is_err() {
            conn.inner.shutdown();
        }
        shaken.and(flushed).map(|()| Rc::new(TlsConnHandle(conn)) as Rc<dyn Conn>)
    }

    async fn handshake(&self) -> Result<()> {
        loop {
            self.flush().await?;
            if !self.state.borrow().tls.is_handshaking() {
                return Ok(());
            }
            let fed = self.state.borrow_mut().feed()?;
            if !fed && !self.receive().await? {
                return Err(Error::offline("the connection ended during the TLS handshake"));
            }
        }
    }

    /// Receives; false if the peer has closed.
    async fn receive(&self) -> Result<bool> {
        let buf = self.env.pool().take(RECEIVE);
        self.receiving.set(true);
        let received = self.inner.recv(buf.clone()).await;
        self.receiving.set(false);
        let n = received?;
        let mut state = self.state.borrow_mut();
        state.raw = buf.slice(0..n).to_vec();
        state.raw_at = 0;
        if n == 0 {
            // Passes the end to rustls, which then knows whether the peer has said goodbye.
            state.tls.read_tls(&mut std::io::empty()).map_err(broken)?;
        }
        Ok(n > 0)
    }

    /// Waits until no other task sends; then none may until the guard is dropped.
    async fn lock(&self) -> impl Drop + use<'_> {
        struct Unlock<'a>(&'a TlsConn);
        impl Drop for Unlock<'_> {
            fn drop(&mut self) {
                self.0.sending.set(false);
                self.0.sent.notify();
            }
        }
        self.sent.until(|| !self.sending.get()).await;
        self.sending.set(true);
        Unlock(self)
    }

    /// Sends what TLS itself has to say.
    async fn flush(&self) -> Result<()> {
        if !self.state.borrow().tls.wants_write() {
            return Ok(());
        }
        let _lock = self.lock().await;
        let out = self.state.borrow_mut().outgoing()?;
        if out.is_empty() { Ok(()) } else { self.inner.send(Buf::from_vec(out)).await }
    }

    async fn recv_decrypted(&self, into: Buf) -> Result<usize> {
        loop {
            let decrypted = self.state.borrow_mut().decrypt(&into);
            if !self.sending.get() {
                self.flush().await?;
            }
            match decrypted? {
                None => return Ok(0),
                Some(0) => {}
                Some(n) => return Ok(n),
            }
            self.receive().await?;
        }
    }

    async fn send_encrypted(&self, from: Buf) -> Result<()> {
        let _lock = self.lock().await;
        let mut at = 0;
        while at < from.len() {
            let plain = from.slice(at..from.len().min(at + SEND)).to_vec();
            let out = {
                let mut state = self.state.borrow_mut();
                at += state.tls.writer().write(&plain).map_err(broken)?;
                state.outgoing()?
            };
            if let Err(e) = self.inner.send(Buf::from_vec(out)).await {
                return Err(self.farewell().await.unwrap_or(e));
            }
        }
        Ok(())
    }

    /// The peer's last message before it hung up: with TLS 1.3 a client hears only now that its certificate is not
    /// wanted.
    async fn farewell(&self) -> Option<Error> {
        while !self.receiving.get() && matches!(self.receive().await, Ok(true)) {
            loop {
                let fed = self.state.borrow_mut().feed();
                match fed {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(e) => return Some(e),
                }
            }
        }
        None
    }
}

/// The shared connection, which futures keep alive.
impl Conn for TlsConnHandle {
    fn recv(&self, into: Buf) -> Pending<usize> {
        let conn = Rc::clone(&self.0);
        Box::pin(async move { conn.recv_decrypted(into).await })
    }

    fn send(&self, from: Buf) -> Pending {
        let conn = Rc::clone(&self.0);
        Box::pin(async move { conn.send_encrypted(from).await })
    }

    fn shutdown(&self) {
        let conn = Rc::clone(&self.0);
        conn.state.borrow_mut().tls.send_close_notify();
        if conn.sending.get() {
            return conn.inner.shutdown();
        }
        let env = Rc::clone(&conn.env);
        env.spawn(Box::pin(async move {
            let farewell = std::pin::pin!(conn.flush());
            futures_util::future::select(farewell, conn.env.sleep(FAREWELL)).await;
            conn.inner.shutdown();
        }));
    }

    fn abort(&self) {
        self.0.inner.abort();
    }

    fn peer(&self) -> String {
        format!("{} (TLS)", self.0.inner.peer())
    }
}

struct TlsConnHandle(Rc<TlsConn>);
