//! An authority, and certificates that it gives.

#![allow(dead_code, reason = "every test binary uses a part of it")]

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::PathBuf;
use tempfile::TempDir;

/// A folder of certificates.
pub struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signs");
        let authority = Authority { folder: TempDir::new().expect("a folder"), issuer };
        authority.write("ca-cert.pem", &authority.issuer.pem());
        authority.issue("server", "localhost");
        authority.issue("client", "client");
        authority
    }

    pub fn issue(&self, who: &str, name: &str) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new([name.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs");
        self.write(&format!("{who}-cert.pem"), &certificate.pem());
        self.write(&format!("{who}-key.pem"), &key.serialize_pem());
    }

    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).expect("writes");
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }
}
