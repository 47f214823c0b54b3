//! Hosts with certificates of one authority, in the simulator: what they say arrives, and nobody else is heard.

mod common;

use common::Authority;
use lamina_block::{Address, Buf, Conn, Env, Error, Result};
use lamina_sim::{SimEnv, Simulation};
use lamina_tls::{ClientTls, MutualTls, Shown};
use std::rc::Rc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

fn place() -> Address {
    Address::Tcp("b:7000".into())
}

/// A host of `of` that trusts `ca`.
fn host(of: &Authority, ca: &Authority, name: &str) -> MutualTls {
    let (certificate, key) = (of.path(&format!("{name}-cert.pem")), of.path(&format!("{name}-key.pem")));
    MutualTls::load(&ca.path("ca-cert.pem"), &certificate, &key).expect("loads")
}

fn authority() -> Authority {
    let authority = Authority::new();
    ["a", "b"].iter().for_each(|name| authority.issue(name, name));
    authority
}

/// Receives until the connection ends, or there are `len` bytes.
async fn all(conn: &dyn Conn, len: usize) -> Result<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < len {
        let buf = Buf::zeroed(len - found.len());
        match conn.recv(buf.clone()).await? {
            0 => break,
            n => found.extend(buf.slice(0..n).to_vec()),
        }
    }
    Ok(found)
}

/// Both ends of a connection, each as `begins` makes of it what it gets.
async fn both<A, B>(
    env: &Rc<SimEnv>,
    connects: impl AsyncFnOnce(Rc<dyn Conn>) -> Result<A>,
    accepts: impl AsyncFnOnce(Rc<dyn Conn>) -> Result<B>,
) -> (Result<A>, Result<B>) {
    let listener = env.listen(place()).expect("nobody else listens");
    let accepts = async { accepts(listener.accept().await.expect("somebody connects")).await };
    let connects = async { connects(env.connect(place()).await.expect("it listens")).await };
    futures_util::future::join(connects, accepts).await
}

/// A host that connects, says something and hears the answer.
async fn speaks(env: &Rc<SimEnv>, tls: &MutualTls, conn: Rc<dyn Conn>, to: &str) -> Result<Vec<u8>> {
    let env: Rc<dyn Env> = Rc::clone(env) as _;
    let conn = tls.connect(&env, conn, to).await?;
    conn.send(Buf::from_vec(b"ping".to_vec())).await?;
    let answer = all(&*conn, 4).await;
    conn.shutdown();
    answer
}

/// A host that is connected to, and answers.
async fn answers(env: &Rc<SimEnv>, tls: &MutualTls, conn: Rc<dyn Conn>) -> Result<Shown> {
    let env: Rc<dyn Env> = Rc::clone(env) as _;
    let (conn, shown) = tls.accept(&env, conn).await?;
    assert_eq!(all(&*conn, 4).await?, b"ping");
    conn.send(Buf::from_vec(b"pong".to_vec())).await?;
    Ok(shown)
}

fn simulate(test: impl AsyncFn(Rc<SimEnv>) + 'static) {
    let test = Rc::new(test);
    for seed in 0..6 {
        let world = Simulation::new(seed);
        let (test, env) = (Rc::clone(&test), world.env());
        world.run(async move { test(env).await }).expect("it ends");
    }
}

fn told<T>(result: Result<T>) -> Error {
    match result {
        Ok(_) => panic!("it was let in"),
        Err(e) => e,
    }
}

#[test]
fn hosts_of_one_authority_hear_each_other_and_know_who_it_is() {
    let ours = authority();
    simulate(async move |env| {
        let [a, b] = ["a", "b"].map(|name| host(&ours, &ours, name));
        let (heard, shown) = both(
            &env,
            async |conn| speaks(&env, &a, conn, "b").await,
            async |conn| answers(&env, &b, conn).await,
        )
        .await;
        assert_eq!(heard.expect("an answer"), b"pong");
        let shown = shown.expect("a certificate");
        shown.is_for("a").expect("its name");
        for other in ["b", "aa", "a.b", ""] {
            assert!(shown.is_for(other).is_err(), "{other}");
        }
        let said = shown.is_for("b").expect_err("another name");
        assert!(said.message().contains("only valid for") && said.message().contains("\"a\""), "{said}");
    });
}

#[test]
fn hosts_without_a_right_certificate_are_not_heard() {
    let (ours, others) = (authority(), authority());
    let (right, wrong) = (host(&ours, &ours, "a"), host(&ours, &ours, "b"));
    simulate(async move |env| {
        let theirs = |name: &str| host(&others, &ours, name);
        for (what, a, b, to, a_hears, b_hears) in [
            (
                "a server of others",
                &right,
                &theirs("b"),
                "b",
                "invalid peer certificate",
                "does not take the certificate",
            ),
            (
                "a client of others",
                &theirs("a"),
                &wrong,
                "b",
                "does not take the certificate",
                "invalid peer certificate",
            ),
            (
                "another host",
                &right,
                &wrong,
                "c",
                "not valid for name \"c\"",
                "does not take the certificate",
            ),
        ] {
            let (heard, shown) = both(
                &env,
                async |conn| speaks(&env, a, conn, to).await,
                async |conn| answers(&env, b, conn).await,
            )
            .await;
            let (heard, shown) = (told(heard), told(shown));
            assert!(heard.message().contains(a_hears), "{what}: {heard}");
            assert!(shown.message().contains(b_hears), "{what}: {shown}");
        }
        // No certificate at all.
        let bare = ClientTls::load(&ours.path("ca-cert.pem"), None, "b").expect("loads");
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        let bare = async |conn| {
            let conn = lamina_tls::connect(&world, conn, &bare).await?;
            all(&*conn, 1).await
        };
        let (heard, shown) = both(&env, bare, async |conn| answers(&env, &wrong, conn).await).await;
        let (heard, shown) = (told(heard), told(shown));
        assert!(heard.message().contains("CertificateRequired"), "{heard}");
        assert!(shown.message().contains("no certificates"), "{shown}");
    });
}

#[test]
fn what_is_not_encrypted_ends_the_handshake() {
    let ours = authority();
    simulate(async move |env| {
        let [a, b] = ["a", "b"].map(|name| host(&ours, &ours, name));
        let plain = async |conn: Rc<dyn Conn>| {
            conn.send(Buf::from_vec(b"LMRP and more of a frame".repeat(4))).await?;
            all(&*conn, 1).await
        };
        let (_, shown) = both(&env, plain, async |conn| answers(&env, &b, conn).await).await;
        assert!(told(shown).message().contains("sends no TLS"));
        let plain = async |conn: Rc<dyn Conn>| all(&*conn, 1).await;
        let (heard, first) = both(&env, async |conn| speaks(&env, &a, conn, "b").await, plain).await;
        let heard = told(heard);
        assert!(heard.message().contains("ended during the TLS handshake"), "{heard}");
        assert_eq!(first.expect("bytes"), [0x16], "a handshake");
    });
}

#[test]
fn silence_ends_when_whoever_waits_gives_up() {
    let ours = authority();
    simulate(async move |env| {
        let b = host(&ours, &ours, "b");
        let began = env.now();
        let silent = async |conn: Rc<dyn Conn>| all(&*conn, 1).await;
        let patient = async |conn: Rc<dyn Conn>| {
            let world: Rc<dyn Env> = Rc::clone(&env) as _;
            let shaken = std::pin::pin!(b.accept(&world, Rc::clone(&conn)));
            match futures_util::future::select(shaken, env.sleep(LIMIT)).await {
                futures_util::future::Either::Left(_) => panic!("nobody has said anything"),
                futures_util::future::Either::Right(_) => conn.abort(),
            }
            Ok(())
        };
        let (heard, _) = both(&env, silent, patient).await;
        assert!(heard.is_err() || heard.is_ok_and(|heard| heard.is_empty()));
        assert!(env.now().since(began) < 2 * LIMIT);
    });
}

#[test]
fn names_that_no_certificate_has_are_refused() {
    for name in ["10.0.0.1", "1", "::1", "", "a.", ".a", "a b", &"x".repeat(64)] {
        assert!(MutualTls::check_name(name).is_err(), "{name}");
    }
    for name in ["a", "host-1", "host_1", "h1.example", "A"] {
        MutualTls::check_name(name).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
