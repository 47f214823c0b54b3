//! Hosts that connect to each other, and show certificates of one authority.
//!
//! A host has one certificate for both directions. Whoever connects knows whom it wants, and nothing is said to a host
//! with a certificate for another name. Whoever is connected to learns the name from what is said later, and compares
//! then ([`Shown::is_for`]).
//!
//! All hosts are Lamina: they speak TLS 1.3 alone. Each connection is authenticated by itself, and no earlier one is
//! resumed, so that a certificate that has expired, or another authority, counts with the next connection.

use crate::conn::{TlsConn, failed};
use crate::files::{certificates, mismatch, private_key, roots, setup};
use crate::reload::Loaded;
use lamina_block::{Conn, Env, Error, Result};
use rustls::client::{Resumption, verify_server_name};
use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

/// What a host shows to others, and whom it believes.
#[derive(Clone)]
pub struct MutualTls(Loaded<Both>);

/// What a host knows in both directions, and its certificate.
#[derive(Clone)]
struct Both {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    own: Shown,
}

/// A certificate that a host has shown.
#[derive(Clone)]
pub struct Shown(CertificateDer<'static>);

/// A host name as certificates have it: letters, digits, `-` and `_`, with points between; no address.
fn named(name: &str) -> Result<ServerName<'static>> {
    let named = DnsName::try_from(name.to_owned()).ok().filter(|_| !name.ends_with('.'));
    named.map(ServerName::DnsName).ok_or_else(|| {
        Error::invalid(format!("{name:?} is no host name for a certificate: an address is none, for example"))
    })
}

impl MutualTls {
    /// Reads PEM files: the authorities that certificates of other hosts must come from, and the certificate chain of
    /// this host with its private key. When the files have changed, they are read again, within seconds.
    pub fn load(ca: &Path, certificate: &Path, key: &Path) -> Result<MutualTls> {
        let paths = [ca, certificate, key];
        let owned = paths.map(Path::to_owned);
        let load = move || {
            let [ca, certificate, key] = &owned;
            MutualTls::read(ca, certificate, key)
        };
        Ok(MutualTls(Loaded::new(paths, load)?))
    }

    fn read(ca: &Path, certificate: &Path, key: &Path) -> Result<Both> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let (roots, chain) = (Arc::new(roots(ca)?), certificates(certificate)?);
        let own = Shown(chain.first().expect("a file without a certificate is refused").clone());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(setup)?
            .with_client_cert_verifier(verifier.map_err(setup)?)
            .with_single_cert(chain.clone(), private_key(key)?)
            .map_err(|e| mismatch(certificate, key, e))?;
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(setup)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, private_key(key)?)
            .map_err(|e| mismatch(certificate, key, e))?;
        client.resumption = Resumption::disabled();
        Ok(Both { server: Arc::new(server), client: Arc::new(client), own })
    }

    /// Fails if no certificate can be for a host of this name.
    pub fn check_name(name: &str) -> Result<()> {
        named(name).map(drop)
    }

    /// The certificate of this host.
    pub fn own(&self) -> Shown {
        self.0.now().own
    }

    /// Encrypts `conn` to a host whose certificate is for `name`.
    pub async fn connect(&self, env: &Rc<dyn Env>, conn: Rc<dyn Conn>, name: &str) -> Result<Rc<dyn Conn>> {
        let session = ClientConnection::new(self.0.now().client, named(name)?).map_err(failed)?;
        Ok(TlsConn::establish(env, conn, session.into()).await?.handle())
    }

    /// Encrypts `conn` with a host that has connected, and has shown a certificate.
    pub async fn accept(&self, env: &Rc<dyn Env>, conn: Rc<dyn Conn>) -> Result<(Rc<dyn Conn>, Shown)> {
        let session = ServerConnection::new(self.0.now().server).map_err(failed)?;
        let conn = TlsConn::establish(env, conn, session.into()).await?;
        let shown = conn.shown().ok_or_else(|| Error::offline("TLS failed: no certificate was shown"))?;
        Ok((conn.handle(), Shown(shown)))
    }
}

impl Shown {
    /// Fails unless it is for a host of this name.
    pub fn is_for(&self, name: &str) -> Result<()> {
        let wrong = |e: rustls::Error| Error::invalid(e.to_string());
        let certificate = ParsedCertificate::try_from(&self.0).map_err(wrong)?;
        verify_server_name(&certificate, &named(name)?).map_err(wrong)
    }
}
