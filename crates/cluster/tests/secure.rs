//! Hosts with certificates, in the simulator: the one that has the volume is let in, and a wrong certificate, none, and
//! what is not encrypted end their own connection in words that both ends understand.

#[path = "../../tls/tests/common/mod.rs"]
mod authority;

use authority::Authority;
use lamina_block::{Address, Buf, Env, Error, Pending, Result};
use lamina_cluster::Uuid;
use lamina_cluster::conn::{receive, send};
use lamina_cluster::handover::Gives;
use lamina_cluster::host::{Fence, Host, Name};
use lamina_cluster::link::Link;
use lamina_cluster::peer::Peer;
use lamina_cluster::remote::Remains;
use lamina_cluster::reservation::Reservation;
use lamina_cluster::secure::Caller;
use lamina_cluster::serve::{Member, Replica};
use lamina_cluster::vault::{FolderVault, Holder};
use lamina_cluster::wire::{Asking, Batch, Credit, Frame, Hello};
use lamina_sim::{SimEnv, Simulation};
use lamina_tls::{ClientTls, MutualTls};
use std::rc::{Rc, Weak};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(1);
const VERSION: u16 = *lamina_cluster::wire::VERSIONS.end();

fn place() -> Address {
    Address::Tcp("b:7000".into())
}

fn host(env: &Rc<SimEnv>, name: &str, tls: Option<MutualTls>) -> Rc<Host> {
    let vault = Rc::new(FolderVault::new(Rc::clone(env) as _, env.shared_folder("/vault") as _));
    let holder = Holder { host: name.into(), flash: None };
    let host = Host::start(Rc::clone(env) as _, vault, Name::new("vm1"), holder, LEASE, Fence::Quarantine);
    tls.into_iter().for_each(|tls| host.secure(tls));
    host
}

/// What a host of `of` has whose certificate is for `name`; it trusts `ca`.
fn files(of: &Authority, ca: &Authority, name: &str) -> MutualTls {
    of.issue(name, name);
    let (certificate, key) = (of.path(&format!("{name}-cert.pem")), of.path(&format!("{name}-key.pem")));
    MutualTls::load(&ca.path("ca-cert.pem"), &certificate, &key).expect("loads")
}

/// Takes the writes of host "a".
struct Here;

impl Replica for Here {
    fn admit(&self, _hello: Hello, caller: &Caller) -> Pending {
        let may = caller.may_be("a");
        Box::pin(async move { may })
    }

    fn begin(&self, hello: Hello, caller: &Caller) -> Pending {
        self.admit(hello, caller)
    }

    fn put(&self, _batch: Batch, _data: Buf) -> Pending {
        Box::pin(async { Ok(()) })
    }

    fn flush(&self) -> Pending {
        Box::pin(async { Ok(()) })
    }

    fn stored(&self, _upto: u64) {}

    fn space(&self) -> u64 {
        1
    }

    fn reaches_store(&self) -> bool {
        true
    }
}

/// A device that has gone.
struct Nobody;

impl Gives for Nobody {
    fn give(&self, _take: Asking) -> Pending {
        Box::pin(async { Err(Error::offline("nobody")) })
    }

    fn remains(&self, _asking: Asking) -> Pending<Rc<dyn Remains>> {
        Box::pin(async { Err(Error::offline("nobody")) })
    }
}

/// Host "b", and what takes the writes of others there.
async fn listens(env: &Rc<SimEnv>, tls: Option<MutualTls>) -> (Rc<Reservation>, Rc<Member>) {
    let reservation = Reservation::new(host(env, "b", tls), "/vault".into(), Some(place()), None);
    let peer = Peer::new(Uuid::from_u128(2), (0, 0), Credit { bytes: 1 << 20, writes: 64 });
    let member = Member::new(Rc::clone(env) as _, peer, Rc::new(Here));
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let nobody: Weak<dyn Gives> = Weak::<Nobody>::new();
    reservation.serve(&world, &member, nobody).await.expect("it listens");
    (reservation, member)
}

fn hello() -> Hello {
    Hello {
        versions: (VERSION, VERSION),
        volume: Name::new("vm1").uuid,
        size: 1 << 20,
        generation: 1,
        flash: Uuid::from_u128(1),
        is_anew: true,
    }
}

/// A host begins to send its writes to the host that it takes for `to`.
async fn begins(env: &Rc<SimEnv>, from: &Rc<Host>, to: &str) -> Result<Rc<Link>> {
    let conn = from.connect(to, place(), TIMEOUT).await?;
    Link::begin(Rc::clone(env) as _, conn, to.into(), hello(), TIMEOUT).await
}

fn simulate<F: Future<Output = ()> + 'static>(test: impl Fn(Rc<SimEnv>) -> F) {
    for seed in 0..6 {
        let world = Simulation::new(seed);
        world.run(test(world.env())).expect("it ends");
    }
}

#[test]
fn the_host_that_has_the_volume_is_let_in_and_no_other() {
    let (ours, others) = (Rc::new(Authority::new()), Rc::new(Authority::new()));
    simulate(move |env| {
        let (ours, others) = (Rc::clone(&ours), Rc::clone(&others));
        async move {
            let (b, _member) = listens(&env, Some(files(&ours, &ours, "b"))).await;
            for (what, from, to, says) in [
                ("another authority", Some(files(&others, &ours, "a")), "b", "does not take the certificate"),
                ("an authority that it does not know", Some(files(&ours, &others, "a")), "b", "invalid peer"),
                (
                    "another host",
                    Some(files(&ours, &ours, "c")),
                    "b",
                    "host a has the volume, and this is another",
                ),
                ("not whom it wants", Some(files(&ours, &ours, "a")), "c", "not valid for name \"c\""),
                // What the other end says last is lost in this network.
                ("not encrypted", None, "b", ""),
            ] {
                let e = begins(&env, &host(&env, "a", from), to).await.err().expect(what);
                assert!(
                    e.message().contains(says) && e.message().contains(&format!("host {to}: ")),
                    "{what}: {e}"
                );
                // Nobody else is disturbed.
                let a = host(&env, "a", Some(files(&ours, &ours, "a")));
                begins(&env, &a, "b").await.unwrap_or_else(|e| panic!("after {what}: {e}"));
                a.stop();
            }
            // No certificate at all.
            let bare = ClientTls::load(&ours.path("ca-cert.pem"), None, "b").expect("loads");
            let world: Rc<dyn Env> = Rc::clone(&env) as _;
            let conn = env.connect(place()).await.expect("it listens");
            let conn = lamina_tls::connect(&world, conn, &bare).await.expect("it is told later");
            let sent = send(&*conn, &Frame::Hello(hello()), Buf::empty()).await;
            let heard = async { receive(&*conn, &*env).await.map(drop) };
            let e = match sent {
                Ok(()) => heard.await.expect_err("no certificate"),
                Err(e) => e,
            };
            assert!(e.message().contains("CertificateRequired"), "{e}");
            b.end().await;
        }
    });
}

#[test]
fn a_host_without_certificates_understands_that_the_other_one_encrypts() {
    let ours = Rc::new(Authority::new());
    simulate(move |env| {
        let ours = Rc::clone(&ours);
        async move {
            let (b, _member) = listens(&env, None).await;
            let a = host(&env, "a", Some(files(&ours, &ours, "a")));
            let e = begins(&env, &a, "b").await.err().expect("it does not encrypt");
            assert!(e.message().contains("host b: the connection ended during the TLS handshake"), "{e}");
            begins(&env, &host(&env, "a", None), "b").await.expect("as it is");
            b.end().await;
            // What TLS says to a host that does not encrypt: an alert, and no more.
            let listener = env.listen(Address::Tcp("tls:7000".into())).expect("nobody else listens");
            let conn = env.connect(listener.address()).await.expect("it listens");
            let other = listener.accept().await.expect("a connection");
            other.send(Buf::from_vec(b"\x15\x03\x03\0\x02\x02\x0A".to_vec())).await.expect("it is sent");
            let heard = std::pin::pin!(receive(&*conn, &*env));
            let ended = async {
                env.sleep(Duration::from_millis(100)).await;
                other.shutdown();
            };
            let e = futures_util::future::join(heard, ended).await.0.expect_err("no frame");
            assert!(e.message().contains("the other host encrypts what it says"), "{e}");
        }
    });
}

#[test]
fn strangers_hold_nothing_for_longer_than_they_may() {
    let ours = Rc::new(Authority::new());
    simulate(move |env| {
        let ours = Rc::clone(&ours);
        async move {
            let (b, _member) = listens(&env, Some(files(&ours, &ours, "b"))).await;
            let mut silent = Vec::new();
            for n in 0..40 {
                // Nothing, the begin of a handshake, and one that promises more than it says.
                let begin = [&b""[..], &b"\x16\x03\x01\x02\x00\x01"[..], &b"\x16\x03\x01\x40\x00"[..]][n % 3];
                let conn = env.connect(place()).await.expect("it listens");
                let _ = conn.send(Buf::from_vec(begin.to_vec())).await;
                silent.push(conn);
            }
            env.sleep(Duration::from_secs(6)).await;
            for conn in &silent {
                let heard = std::pin::pin!(conn.recv(Buf::zeroed(1 << 10)));
                let ended = futures_util::future::select(heard, env.sleep(Duration::from_secs(1))).await;
                assert!(matches!(ended, futures_util::future::Either::Left(_)), "a stranger is still there");
            }
            let a = host(&env, "a", Some(files(&ours, &ours, "a")));
            begins(&env, &a, "b").await.expect("it is let in");
            // And a host that does not answer is given up.
            let listener = env.listen(Address::Tcp("mute:7000".into())).expect("nobody else listens");
            let began = env.now();
            let e = a.connect("mute", listener.address(), TIMEOUT).await.err().expect("it says nothing");
            assert!(e.message().contains("host mute: it does not answer"), "{e}");
            assert!(env.now().since(began) < TIMEOUT * 2);
            b.end().await;
        }
    });
}

/// A host that asks for the volume, or for what is left of it, shows the certificate of the name that it says.
#[test]
fn a_host_that_asks_is_the_one_that_it_says() {
    let ours = Rc::new(Authority::new());
    simulate(move |env| {
        let ours = Rc::clone(&ours);
        async move {
            let (b, _member) = listens(&env, Some(files(&ours, &ours, "b"))).await;
            let a = host(&env, "a", Some(files(&ours, &ours, "a")));
            let asks = |host: &str| Asking {
                versions: (VERSION, VERSION),
                volume: Name::new("vm1").uuid,
                generation: 1,
                flash: Uuid::from_u128(1),
                host: host.into(),
            };
            let cases = [
                (Frame::Take(asks("c")), "it says that it is host c"),
                (Frame::ReadFrom(asks("c")), "it says that it is host c"),
                (Frame::Take(asks("a")), "its device is closed"),
                (Frame::ReadFrom(asks("a")), "its device is closed"),
                (Frame::Take(Asking { versions: (8, 9), ..asks("a") }), "upgrade the older"),
            ];
            for (frame, words) in cases {
                let conn = a.connect("b", place(), TIMEOUT).await.expect("it is b");
                send(&*conn, &frame, Buf::empty()).await.expect("it is sent");
                match receive(&*conn, &*env).await.expect("an answer") {
                    Some((Frame::Refuse(refuse), _)) if refuse.why.contains(words) => {}
                    other => panic!("{words}: {other:?}"),
                }
            }
            b.end().await;
        }
    });
}
