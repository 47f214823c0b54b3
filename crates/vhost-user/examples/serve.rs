//! Serves one sink at a vhost-user socket (or several, with commas between), for measurements and for trying a virtual
//! machine:
//!
//! ```text
//! cargo run --release -p lamina-vhost-user --example serve -- SOCKET KIND KEYS [SPIN_US]
//! ... serve -- /tmp/a.sock memory '{"size": "1GiB"}'
//! ... serve -- /tmp/a.sock file '{"path": "/tmp/disk.img", "direct": true}'
//! ```
//!
//! Ends when its standard input does. Set TRACE in the environment to see every message.

use lamina_block::{Build, Env, Node};
use lamina_host::{Options, Reactor};
use lamina_layers::KINDS;
use lamina_vhost_user::{Server, Settings};
use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let level =
        if std::env::var_os("TRACE").is_some() { tracing::Level::TRACE } else { tracing::Level::INFO };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, kind, keys, rest @ ..] = &arguments[..] else {
        return Err("usage: serve SOCKET KIND KEYS [SPIN_US]".into());
    };
    let spin = Duration::from_micros(rest.first().map_or(Ok(0), |us| us.parse())?);
    let reactor = Reactor::new(Options { spin, ..Options::default() })?;
    let host = reactor.env();
    let known = KINDS.iter().find(|k| k.name == kind).ok_or("there is no such kind")?;
    let keys = known.parse(&serde_json::from_str(keys)?).map_err(|e| format!("{}: {}", e.path, e.message))?;
    let (end, ended) = futures_channel::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = end.send(());
    });
    reactor.run(async {
        let env: Rc<dyn Env> = host.clone();
        let with = Build { base: ".".into(), ..Build::new("disk", &env, Vec::new()) };
        let node = Node::new("disk", known.name, env, keys.build(with).await?);
        let start = |path| {
            Server::start(&host, Path::new(path), Rc::clone(&node), Settings::new("disk"), Rc::default())
        };
        let servers = socket.split(',').map(start).collect::<Result<Vec<_>, _>>()?;
        println!("ready");
        let _ = ended.await;
        for server in servers {
            server.stop().await;
        }
        node.close().await?;
        Ok(())
    })
}
