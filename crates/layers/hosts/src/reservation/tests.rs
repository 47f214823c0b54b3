use crate::testing::*;
use lamina_block::Over;

pub fn subject() -> Subject {
    let keys = json!({ "vault": "/vault", "volume": "vm1", "host": "a" });
    Subject::layer(&Kind::of::<super::Keys>(), keys, 1)
}

/// What a check says of these keys, besides those that each device has.
fn said(more: Value) -> String {
    let mut keys = json!({ "vault": "/vault", "volume": "vm1", "host": "a" });
    keys.as_object_mut().expect("a table").extend(more.as_object().expect("a table").clone());
    let none = Over { kinds: &[], deeper: &[], metadata: false, persistent: true };
    match Kind::of::<super::Keys>().parse(&keys) {
        Err(e) => format!("{}: {}", e.path, e.message),
        Ok(keys) => keys.check(&none).err().map_or(String::new(), |e| e.message().to_owned()),
    }
}

#[test]
fn where_other_machines_connect_is_encrypted_or_somebody_has_said_that_it_is_not() {
    let files = json!({ "ca": "ca.pem", "certificate": "a-cert.pem", "key": "a-key.pem" });
    for local in ["tcp:127.0.0.1:0", "tcp:localhost:7001", "tcp:[::1]:7001", "unix:peers.sock"] {
        assert_eq!(said(json!({ "listen": local })), "", "{local}");
        assert_eq!(said(json!({ "listen": local, "tls": files })), "", "{local}");
    }
    for reached in ["tcp:10.0.0.1:7001", "tcp:0.0.0.0:0", "tcp:[::]:7001", "tcp:127.example:7001"] {
        let refused = said(json!({ "listen": reached }));
        assert!(refused.starts_with(&format!("listen: other machines reach {reached}")), "{refused}");
        for tls in [json!("off"), files.clone()] {
            assert_eq!(said(json!({ "listen": reached, "tls": tls })), "", "{reached}");
        }
    }
}

#[test]
fn files_come_together_and_for_something() {
    let files = json!({ "ca": "ca.pem", "certificate": "a-cert.pem", "key": "a-key.pem" });
    let listen = "tcp:10.0.0.1:7001";
    for (keys, words) in [
        (json!({ "tls": files }), "tls: is for `listen`"),
        (json!({ "tls": "off" }), "tls: is for `listen`"),
        (
            json!({ "listen": listen, "tls": "on" }),
            "expected a table with ca, certificate and key, or \"off\"",
        ),
        (
            json!({ "listen": listen, "tls": true }),
            "expected a table with ca, certificate and key, or \"off\"",
        ),
        (
            json!({ "listen": listen, "tls": { "ca": "ca.pem", "key": "k" } }),
            "tls: missing field `certificate`",
        ),
        (json!({ "listen": listen, "tls": { "client-ca": "ca.pem" } }), "tls.client-ca: unknown field"),
        (
            json!({ "listen": listen, "tls": files, "host": "10.0.0.1" }),
            "host: with `tls`, \"10.0.0.1\" is no host name",
        ),
    ] {
        let said = said(keys.clone());
        assert!(said.contains(words), "{keys}: {said}");
    }
}
