//! The sink over our own server over a simulated disk, through the gauntlet.

use lamina_block::{
    Build, Env, Error, Extent, Geometry, Io, Layer, Manage, Node, Passthrough, Pending, Result, Step,
};
use lamina_nbd::client;
use lamina_nbd::server::{ExportInfo, Server, Settings};
use lamina_sim::{Rig, Subject, gauntlet};
use serde_json::json;
use std::ops::Range;
use std::rc::Rc;

/// Serves the first disk at a place of its own and connects to it.
async fn served(rig: Rc<Rig>, connections: u32) -> Result<Rc<Node>> {
    let env: Rc<dyn Env> = rig.env();
    let server = Server::new(Rc::clone(&env), Settings::default());
    let (name, node) = ("disk".to_owned(), rig.disk(0));
    server.add(ExportInfo {
        name,
        description: String::new(),
        node,
        read_only: false,
        memory: Rc::default(),
        records: None,
    })?;
    let listener = env.listen("tcp:server:0".parse()?)?;
    let address = listener.address().to_string();
    let serving = Rc::clone(&server);
    env.spawn(Box::pin(async move { serving.serve(listener).await.expect("serves") }));
    let keys = json!({ "address": address, "export": "disk", "connections": connections });
    let keys = client::KIND.parse(&keys).map_err(|e| Error::invalid(e.message))?;
    let client = keys.build(Build::new("top", &env, Vec::new())).await?;
    Ok(rig.node("top", "nbd", Rc::new(Served { client, server })))
}

/// A client that takes its server with it when it is closed.
struct Served {
    client: Rc<dyn Layer>,
    server: Rc<Server>,
}

impl Layer for Served {
    fn geometry(&self) -> Geometry {
        self.client.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        Rc::clone(&self.client).submit(io)
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Rc::clone(&self.client).extents(at)
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            Rc::clone(&self.client).close().await?;
            self.server.shutdown().await;
            self.server.remove("disk");
            Ok(())
        })
    }
}

impl Manage for Served {}

gauntlet!(one_connection, over("nbd", 1));
gauntlet!(several_connections, over("nbd over three", 3));

fn over(name: &str, connections: u32) -> Subject {
    Subject::new(name, move |rig| served(rig, connections)).heals_nothing("NBD cannot ask for another copy")
}
