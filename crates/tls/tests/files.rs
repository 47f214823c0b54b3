//! Files that are no certificates, and keys that are none.

mod common;

use common::Authority;
use lamina_tls::{ClientTls, ServerTls};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[test]
fn files_that_are_no_certificates_are_named() {
    let authority = Authority::new();
    authority.write("empty.pem", "");
    let (good, key) = (authority.path("server-cert.pem"), authority.path("server-key.pem"));
    let (empty, missing) = (authority.path("empty.pem"), authority.path("missing.pem"));
    for (certificate, key, ca, named) in [
        (&missing, &key, None, "missing.pem"),
        (&empty, &key, None, "empty.pem"),
        (&good, &empty, None, "empty.pem"),
        (&good, &key, Some(&*missing), "missing.pem"),
        (&good, &authority.path("client-key.pem"), None, "server-cert.pem"),
    ] {
        let Err(e) = ServerTls::load(certificate, key, ca.map(|ca: &Path| ca), true) else {
            panic!("{certificate:?} {key:?} {ca:?}")
        };
        assert!(e.message().contains(named), "{e}");
    }
}

#[test]
fn a_key_that_cannot_be_used_is_named() {
    let authority = Authority::new();
    let (ca, certificate) = (authority.path("ca-cert.pem"), authority.path("client-cert.pem"));
    let key = authority.path("odd-key.pem");
    for (text, said) in [
        ("-----BEGIN PRIVATE KEY-----\nMAMCAQA=\n-----END PRIVATE KEY-----\n", "cannot be used"),
        ("no key", "odd-key.pem: "),
    ] {
        authority.write("odd-key.pem", text);
        let client = ClientTls::load(&ca, Some((&certificate, &key)), "localhost").map(drop);
        let server = ServerTls::load(&certificate, &key, None, true).map(drop);
        for e in [client.expect_err("no key"), server.expect_err("no key")] {
            assert!(e.message().contains("odd-key.pem") && e.message().contains(said), "{e}");
        }
    }
    // A good key of another certificate: both files are named.
    let e = ServerTls::load(&certificate, &authority.path("server-key.pem"), None, true).map(drop);
    let e = e.expect_err("they do not belong together");
    assert!(e.message().contains("client-cert.pem") && e.message().contains("server-key.pem"), "{e}");
}

/// Waits until `is_so`.
fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "it is never so");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn changed_files_are_read_again_and_bad_ones_are_not_used() {
    let authority = Authority::new();
    let (certificate, key) = (authority.path("server-cert.pem"), authority.path("server-key.pem"));
    let tls = ServerTls::load(&certificate, &key, None, true).expect("loads");
    let first = tls.config();
    // Longer than it takes to notice: a certificate is exchanged before its key, which is gone for a while.
    std::fs::copy(authority.path("client-cert.pem"), &certificate).expect("copied");
    std::fs::remove_file(&key).expect("removed");
    std::thread::sleep(Duration::from_secs(3));
    assert!(Arc::ptr_eq(&first, &tls.config()), "they do not belong together");
    std::fs::copy(authority.path("client-key.pem"), &key).expect("copied");
    until(|| !Arc::ptr_eq(&first, &tls.config()));
    let second = tls.config();
    std::thread::sleep(Duration::from_secs(3));
    assert!(Arc::ptr_eq(&second, &tls.clone().config()), "nothing has changed since");
}
