//! Who is at the other end of a connection between hosts.
//!
//! ```text
//!      primary "a" ── is the certificate for "b", whom the vault has at that address? ──▶ peer "b"
//!                  ◀── is it for "a", which has the volume, as the vault says? ──
//! ```
//!
//! A host with certificates encrypts what it says to others, and hears none that shows no certificate of its
//! authority. Certificates are for the names that hosts have in the vault; addresses change. The vault alone decides
//! which host may send its writes, so the name of a host that has connected is compared where the record is read
//! ([`crate::serve::Replica::admit`]). A host without certificates believes the vault, and whoever connects.

use crate::host::Host;
use crate::link::in_time;
use crate::read_ahead::ReadAhead;
use lamina_block::{Address, Conn, Error, ErrorKind, Result};
use lamina_tls::{MutualTls, Shown};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// A host that has connected.
#[derive(Clone, Default)]
pub struct Caller(Option<Shown>);

impl Caller {
    /// Fails if it has shown a certificate, which is not for the name that it has said.
    pub fn calls_itself(&self, host: &str) -> Result<()> {
        let Some(shown) = &self.0 else { return Ok(()) };
        shown.is_for(host).map_err(|e| {
            Error::new(ErrorKind::Fenced, format!("it says that it is host {host}: {}", e.message()))
        })
    }

    /// Fails if it has shown a certificate, which is not for the host of this name.
    pub fn may_be(&self, host: &str) -> Result<()> {
        let Some(shown) = &self.0 else { return Ok(()) };
        shown.is_for(host).map_err(|e| {
            let message = format!("host {host} has the volume, and this is another one: {}", e.message());
            Error::new(ErrorKind::Fenced, message)
        })
    }
}

impl Host {
    /// From now on it says nothing that is not encrypted, and knows other hosts by their certificates.
    pub fn secure(&self, tls: MutualTls) {
        self.tls.replace(Some(tls));
    }

    /// A connection to another host, within a time: of that host, if this one has certificates. Fails with the name of
    /// the host.
    pub async fn connect(&self, host: &str, address: Address, time: Duration) -> Result<Rc<dyn Conn>> {
        let (tls, inner) = (self.tls.borrow().clone(), RefCell::new(None));
        let begun = in_time(&*self.env, time, async {
            let conn = self.env.connect(address).await?;
            let Some(tls) = tls else { return Ok(Rc::new(ReadAhead::new(conn)) as _) };
            inner.replace(Some(Rc::clone(&conn)));
            tls.connect(&self.env, conn, host).await
        });
        let begun = begun.await;
        self.reached(host, begun.as_ref().err());
        begun.map_err(|e| {
            let silent = inner.take().filter(|_| e.kind() == ErrorKind::TimedOut);
            // An error of TLS is still being said to the other end.
            silent.into_iter().for_each(|conn: Rc<dyn Conn>| conn.abort());
            Error::new(e.kind(), format!("host {host}: {}", e.message()))
        })
    }

    /// What is said to a host that has connected, and who that is.
    pub(crate) async fn meet(&self, conn: &Rc<dyn Conn>) -> Result<(Rc<dyn Conn>, Caller)> {
        let (tls, conn) = (self.tls.borrow().clone(), Rc::clone(conn));
        let Some(tls) = tls else { return Ok((Rc::new(ReadAhead::new(conn)), Caller::default())) };
        let (conn, shown) = tls.accept(&self.env, conn).await?;
        Ok((conn, Caller(Some(shown))))
    }
}
