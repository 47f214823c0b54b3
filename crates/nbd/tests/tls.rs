//! TLS between our client and our server, in the simulator: accepted clients, and the reasons for the others.

#[path = "../../tls/tests/common/mod.rs"]
mod authority;
mod common;

use authority::Authority;
use common::*;
use lamina_tls::{ClientTls, ServerTls};
use std::path::Path;

/// What the two sides know from the files of an authority.
trait Sides {
    fn server(&self, client_ca: Option<&Path>, required: bool) -> Settings;
    /// A client that trusts `self` and is one of `own`'s.
    fn client(&self, own: Option<&Authority>, name: &str) -> Options;
}

impl Sides for Authority {
    fn server(&self, client_ca: Option<&Path>, required: bool) -> Settings {
        let (certificate, key) = (self.path("server-cert.pem"), self.path("server-key.pem"));
        let tls = ServerTls::load(&certificate, &key, client_ca, required).expect("loads");
        Settings { tls: Some(tls), ..Settings::default() }
    }

    fn client(&self, own: Option<&Authority>, name: &str) -> Options {
        let files = own.map(|own| (own.path("client-cert.pem"), own.path("client-key.pem")));
        let files = files.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        let tls = ClientTls::load(&self.path("ca-cert.pem"), files, name).expect("loads");
        Options { tls: Some(tls), ..Options::default() }
    }
}

#[test]
fn a_client_with_a_certificate_is_served() {
    let authority = Rc::new(Authority::new());
    let settings = authority.server(Some(&authority.path("ca-cert.pem")), true);
    simulate(0..6, settings, move |world| {
        let authority = Rc::clone(&authority);
        async move {
            let options = authority.client(Some(&authority), "localhost");
            let (_, node) = world.client(options).await.expect("connects");
            let data = bytes(5, 1 << 20);
            write(&node, 0, &data).await.expect("writes");
            world.env.net().cut(&place());
            assert_eq!(read(&node, 0, data.len()).await.expect("reads"), data);
            assert_eq!(node.extents(0..4 << 20).await.map(|runs| runs.len() > 1), Ok(true));
            node.close().await.expect("closes");
        }
    });
}

#[test]
fn strangers_are_refused_and_the_server_goes_on() {
    let (ours, other) = (Rc::new(Authority::new()), Rc::new(Authority::new()));
    let settings = ours.server(Some(&ours.path("ca-cert.pem")), true);
    simulate(0..6, settings, move |world| {
        let (ours, other) = (Rc::clone(&ours), Rc::clone(&other));
        async move {
            for (what, options, said) in [
                ("no encryption", Options::default(), "TLS"),
                ("no certificate", ours.client(None, "localhost"), "TLS"),
                ("somebody else's certificate", ours.client(Some(&other), "localhost"), "TLS"),
                (
                    "a server we do not trust",
                    other.client(Some(&ours), "localhost"),
                    "invalid peer certificate",
                ),
                ("another name", ours.client(Some(&ours), "elsewhere"), "not valid for name"),
            ] {
                let Err(e) = world.client(options).await else { panic!("{what} was let in") };
                assert!(e.message().contains(said), "{what}: {e}");
                world.env.sleep(Duration::from_secs(1)).await;
                assert_eq!(world.server.connections(), 0, "{what}");
            }
            let (_, node) = world.client(ours.client(Some(&ours), "localhost")).await.expect("connects");
            read(&node, 0, 512).await.expect("reads");
        }
    });
}

#[test]
fn encryption_that_is_offered_can_be_left() {
    let authority = Rc::new(Authority::new());
    simulate(0..4, authority.server(None, false), move |world| {
        let authority = Rc::clone(&authority);
        async move {
            for options in [Options::default(), authority.client(None, "localhost")] {
                let (_, node) = world.client(options).await.expect("connects");
                read(&node, 0, 512).await.expect("reads");
            }
        }
    });
}

#[test]
fn a_server_without_certificates_cannot_encrypt() {
    let authority = Rc::new(Authority::new());
    simulate(0..2, Settings::default(), move |world| {
        let authority = Rc::clone(&authority);
        async move {
            let Err(e) = world.client(authority.client(None, "localhost")).await else { panic!("encrypted") };
            assert!(e.message().contains("this server has no certificate"), "{e}");
        }
    });
}

#[test]
fn garbage_instead_of_a_handshake_ends_the_connection_only() {
    let authority = Authority::new();
    simulate(0..6, authority.server(None, true), async |world| {
        let start_tls = [&b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0"[..]].concat();
        for garbage in [vec![0; 1000], vec![0x16; 1000], b"\x16\x03\x01\x40\x00".to_vec()] {
            let conn = world.connect().await;
            conn.send(Buf::from_vec(start_tls.clone())).await.expect("sends");
            world.env.sleep(Duration::from_millis(1)).await;
            let _ = conn.send(Buf::from_vec(garbage)).await;
            world.env.sleep(Duration::from_secs(11)).await;
            assert_eq!(world.server.connections(), 0);
        }
    });
}
