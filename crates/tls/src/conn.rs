//! A connection inside a connection.

use crate::{ClientTls, ServerTls};
use lamina_block::{Buf, Conn, Env, Error, ErrorKind, Pending, Result, Signal};
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, ClientConnection, Connection, ServerConnection};
use std::cell::{Cell, RefCell};
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::rc::Rc;
use std::time::Duration;

/// Received at a time, in bytes: several records.
const RECEIVE: usize = 64 << 10;
/// Encrypted at a time, in bytes.
const SEND: usize = 256 << 10;
/// Time that a peer has to take our farewell.
const FAREWELL: Duration = Duration::from_millis(500);

/// Encrypts `conn` as its server.
pub async fn accept(env: &Rc<dyn Env>, conn: Rc<dyn Conn>, tls: &ServerTls) -> Result<Rc<dyn Conn>> {
    let session = ServerConnection::new(tls.config()).map_err(failed)?;
    Ok(TlsConn::establish(env, conn, session.into()).await?.handle())
}

/// Encrypts `conn` as its client.
pub async fn connect(env: &Rc<dyn Env>, conn: Rc<dyn Conn>, tls: &ClientTls) -> Result<Rc<dyn Conn>> {
    let session = ClientConnection::new(tls.config(), tls.name.clone()).map_err(failed)?;
    Ok(TlsConn::establish(env, conn, session.into()).await?.handle())
}

/// Words for people, who know of certificates and not of alerts.
pub(crate) fn failed(e: rustls::Error) -> Error {
    use AlertDescription::*;
    let message = match e {
        rustls::Error::AlertReceived(
            alert @ (BadCertificate
            | UnsupportedCertificate
            | CertificateRevoked
            | CertificateExpired
            | CertificateUnknown
            | CertificateRequired
            | UnknownCA
            | AccessDenied
            | DecryptError),
        ) => format!("TLS failed: the other side does not take the certificate of this one ({alert:?})"),
        rustls::Error::InvalidMessage(e) => {
            format!("TLS failed: the other side sends no TLS, or damaged data ({e:?})")
        }
        e => format!("TLS failed: {e}"),
    };
    Error::new(ErrorKind::Offline, message)
}

fn broken(e: std::io::Error) -> Error {
    let message = match e.kind() {
        IoErrorKind::UnexpectedEof => {
            "TLS failed: the connection ended, and the other side has not said so".into()
        }
        _ => format!("TLS failed: {e}"),
    };
    Error::new(ErrorKind::Offline, message)
}

/// An encrypted connection.
pub(crate) struct TlsConn {
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
    /// Begins a connection over `inner`: nothing was said over it yet.
    pub(crate) async fn establish(
        env: &Rc<dyn Env>,
        inner: Rc<dyn Conn>,
        mut tls: Connection,
    ) -> Result<Rc<TlsConn>> {
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
        shaken.and(flushed).map(|()| conn)
    }

    pub(crate) fn handle(self: Rc<TlsConn>) -> Rc<dyn Conn> {
        Rc::new(TlsConnHandle(self))
    }

    /// The certificate that the peer has shown, if it has.
    pub(crate) fn shown(&self) -> Option<CertificateDer<'static>> {
        let state = self.state.borrow();
        state.tls.peer_certificates()?.first().map(|certificate| certificate.clone().into_owned())
    }

    async fn handshake(&self) -> Result<()> {
        let ended = "the connection ended during the TLS handshake";
        let broken = |e: Error| Error::new(e.kind(), format!("{ended}: {}", e.message()));
        loop {
            self.flush().await.map_err(broken)?;
            if !self.state.borrow().tls.is_handshaking() {
                return Ok(());
            }
            let fed = self.state.borrow_mut().feed()?;
            if !fed && !self.receive().await.map_err(broken)? {
                return Err(Error::offline(ended));
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
