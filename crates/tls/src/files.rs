//! Certificates and keys in PEM files, and what servers and clients know from them.

use crate::reload::Loaded;
use lamina_block::{Error, Result};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;

/// A server's certificate, and whom it trusts.
#[derive(Clone)]
pub struct ServerTls {
    loaded: Loaded<Arc<ServerConfig>>,
    /// Clients that do not encrypt are told nothing.
    pub required: bool,
}

impl ServerTls {
    /// Reads PEM files: the certificate chain, its private key, and, if clients must show certificates, the
    /// authorities that these must come from. When the files have changed, they are read again, within seconds.
    pub fn load(
        certificate: &Path,
        key: &Path,
        client_ca: Option<&Path>,
        required: bool,
    ) -> Result<ServerTls> {
        let [own, own_key] = [certificate, key].map(Path::to_owned);
        let ca = client_ca.map(Path::to_owned);
        let load = move || ServerTls::read(&own, &own_key, ca.as_deref());
        let loaded = Loaded::new([certificate, key].into_iter().chain(client_ca), load)?;
        Ok(ServerTls { loaded, required })
    }

    fn read(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>> {
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
        Ok(Arc::new(config))
    }

    /// For the next connection; also that of a server whose connections are not ours.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.loaded.now()
    }
}

/// The authorities that a client trusts, and its own certificate.
#[derive(Clone)]
pub struct ClientTls {
    loaded: Loaded<Arc<ClientConfig>>,
    pub(crate) name: ServerName<'static>,
}

impl ClientTls {
    /// Reads PEM files: the authorities that the server's certificate must come from and, if the server wants one,
    /// the client's own certificate chain and its private key. `name` is the host that the server's certificate
    /// must be for. When the files have changed, they are read again, within seconds.
    pub fn load(ca: &Path, own: Option<(&Path, &Path)>, name: &str) -> Result<ClientTls> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|e| Error::invalid(format!("{name:?} is no host name for a certificate: {e}")))?;
        let (of, mine) =
            (ca.to_owned(), own.map(|(certificate, key)| [certificate, key].map(Path::to_owned)));
        let load =
            move || ClientTls::read(&of, mine.as_ref().map(|[certificate, key]| (&**certificate, &**key)));
        let paths =
            std::iter::once(ca).chain(own.into_iter().flat_map(|(certificate, key)| [certificate, key]));
        Ok(ClientTls { loaded: Loaded::new(paths, load)?, name })
    }

    fn read(ca: &Path, own: Option<(&Path, &Path)>) -> Result<Arc<ClientConfig>> {
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
        Ok(Arc::new(config))
    }

    /// For the next connection.
    pub(crate) fn config(&self) -> Arc<ClientConfig> {
        self.loaded.now()
    }
}

pub(crate) fn setup(e: impl std::fmt::Display) -> Error {
    Error::invalid(format!("TLS: {e}"))
}

fn unreadable(path: &Path, e: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {e}", path.display()))
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let list: std::result::Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|e| unreadable(path, e))?.collect();
    match list {
        Ok(list) if list.is_empty() => Err(unreadable(path, "there is no certificate in this file")),
        Ok(list) => Ok(list),
        Err(e) => Err(unreadable(path, e)),
    }
}

/// A key of a kind that can be used, whatever certificate it is for.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let key = PrivateKeyDer::from_pem_file(path).map_err(|e| unreadable(path, e))?;
    let loaded = rustls::crypto::ring::default_provider().key_provider.load_private_key(key.clone_key());
    loaded.map_err(|e| unreadable(path, format!("the key cannot be used: {e}")))?;
    Ok(key)
}

pub(crate) fn mismatch(certificate: &Path, key: &Path, e: rustls::Error) -> Error {
    Error::invalid(format!("{} with the key {}: {e}", certificate.display(), key.display()))
}

pub(crate) fn roots(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| unreadable(path, e))?;
    }
    Ok(roots)
}
