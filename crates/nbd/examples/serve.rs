//! Serves devices over NBD: the smallest program around the server, for tests against other people's clients.
//!
//! ```text
//! serve unix:PATH|tcp:HOST:PORT [--tls CERTIFICATE KEY [CLIENT_CA]] [--spin MICROSECONDS] NAME[:ro] KIND KEYS ...
//! ```
//! where KEYS is a JSON object, as in `serve unix:/tmp/s disk memory '{"size":"1GiB"}'`. Says "ready" when it
//! listens, and ends when its standard input does.

use lamina_block::{Address, Build, Env, Node};
use lamina_host::{Options, Reactor};
use lamina_nbd::server::{ExportInfo, Server, Settings};
use lamina_nbd::tls::ServerTls;
use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let mut next = move |what: &str| args.next().ok_or(format!("{what} is missing"));
    let address: Address = next("the address")?.parse()?;
    let (mut settings, mut spin, mut exports) = (Settings::default(), Duration::ZERO, Vec::new());
    while let Ok(arg) = next("") {
        match arg.as_str() {
            "--tls" => {
                let (certificate, key, ca) = (next("certificate")?, next("key")?, next("client CA")?);
                let ca = (ca != "-").then_some(ca);
                let ca = ca.as_deref().map(Path::new);
                settings.tls = Some(ServerTls::load(Path::new(&certificate), Path::new(&key), ca, true)?);
            }
            "--spin" => spin = Duration::from_micros(next("microseconds")?.parse()?),
            name => exports.push((name.to_owned(), next("kind")?, next("keys")?)),
        }
    }
    let reactor = Reactor::new(Options { spin, ..Options::default() })?;
    let env: Rc<dyn Env> = reactor.env();
    let server = Server::new(Rc::clone(&env), settings);
    let stopping = Rc::new(lamina_block::Signal::new());
    let remote = reactor.remote();
    let signal = {
        let server = Rc::clone(&server);
        let stopping = Rc::clone(&stopping);
        reactor.run(async move {
            for (name, kind, keys) in exports {
                let (name, read_only) = name.strip_suffix(":ro").map_or((&*name, false), |name| (name, true));
                let node = device(&env, name, &kind, &keys).await?;
                let description = format!("the {kind} device {name}");
                server.add(ExportInfo {
                    name: name.into(),
                    description,
                    node,
                    read_only,
                    memory: Rc::default(),
                })?;
            }
            let listener = env.listen(address)?;
            let serving = Rc::clone(&server);
            env.spawn(Box::pin(async move {
                if let Err(e) = serving.serve(listener).await {
                    eprintln!("{e}");
                }
            }));
            Ok::<_, Box<dyn Error>>(stopping)
        })?
    };
    println!("ready");
    thread_local!(static STOP: std::cell::OnceCell<Rc<lamina_block::Signal>> = const { std::cell::OnceCell::new() });
    STOP.with(|stop| stop.set(signal).ok());
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        remote.send(|_| STOP.with(|stop| stop.get().into_iter().for_each(|stop| stop.notify()))).ok();
    });
    reactor.run(async {
        stopping.wait().await;
        server.shutdown().await;
    });
    Ok(())
}

async fn device(env: &Rc<dyn Env>, name: &str, kind: &str, keys: &str) -> Result<Rc<Node>, Box<dyn Error>> {
    let known =
        lamina_layers::KINDS.iter().chain([&lamina_nbd::client::KIND]).find(|known| known.name == kind);
    let known = known.ok_or(format!("there is no kind {kind}"))?;
    let keys = known.parse(&serde_json::from_str(keys)?).map_err(|e| format!("{}: {}", e.path, e.message))?;
    let with = Build { base: std::env::current_dir()?, ..Build::new(name, env, Vec::new()) };
    let layer = keys.build(with).await?;
    Ok(Node::new(name, known.name, Rc::clone(env), layer))
}
