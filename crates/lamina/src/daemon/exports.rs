//! The exports of one core: NBD listeners and vhost-user sockets in front of its nodes.

use crate::api;
use lamina_block::{Address, Env, Listener};
use lamina_graph::{Export, Hierarchy, Tls};
use lamina_host::Host;
use lamina_nbd::server as nbd;
use lamina_nbd::tls::ServerTls;
use lamina_vhost_user as vhost_user;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long an address may be taken before it is refused.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everything through which clients reach a core's nodes.
#[derive(Default)]
pub struct Exports {
    /// One for each address; several exports may share it.
    nbd: Vec<Rc<nbd::Server>>,
    vhost_user: Vec<vhost_user::Server>,
    /// By name of the export.
    endpoints: HashMap<String, Vec<api::Endpoint>>,
}

/// An NBD server before it listens.
struct Listening<'a> {
    address: &'a Address,
    server: Rc<nbd::Server>,
    exports: Vec<&'a Export>,
}

impl Exports {
    /// Opens the exports of `hierarchies`. If one cannot be opened, those opened before are dropped, and with them
    /// their sockets; the message names the export.
    pub async fn open<'a>(
        host: &Rc<Host>,
        hierarchies: impl Iterator<Item = &'a Hierarchy>,
    ) -> Result<Exports, String> {
        let mut all = Exports::default();
        let mut listening: Vec<Listening> = Vec::new();
        for hierarchy in hierarchies {
            for export in hierarchy.exports() {
                let failed = |e: String| format!("export {:?}: {e}", export.name);
                if let Some(path) = &export.vhost_user {
                    all.open_vhost_user(host, hierarchy, export, path).map_err(failed)?;
                }
                if let Some(address) = &export.nbd {
                    add(host, &mut listening, address, hierarchy, export).map_err(failed)?;
                }
            }
        }
        for listening in listening {
            all.listen(host, listening).await?;
        }
        Ok(all)
    }

    fn open_vhost_user(
        &mut self,
        host: &Rc<Host>,
        hierarchy: &Hierarchy,
        export: &Export,
        path: &Path,
    ) -> Result<(), String> {
        let node = hierarchy.door(&export.name).ok_or("it has no door")?;
        let settings = vhost_user::Settings {
            name: export.name.clone(),
            queues: export.queues,
            serial: export.serial.clone().unwrap_or_else(|| export.name.clone()),
            read_only: export.read_only,
        };
        let server = vhost_user::Server::start(host, path, node, settings)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        self.vhost_user.push(server);
        self.reached(export, "vhost-user", path.display().to_string());
        Ok(())
    }

    /// Lets clients of one address in.
    async fn listen(&mut self, host: &Rc<Host>, listening: Listening<'_>) -> Result<(), String> {
        let Listening { address, server, exports } = listening;
        let listener = patiently(host, address).await.map_err(|e| {
            let names: Vec<String> = exports.iter().map(|e| format!("{:?}", e.name)).collect();
            format!("export {}: {address}: {e}", names.join(", "))
        })?;
        for export in exports {
            self.reached(export, "nbd", uri(&listener.address(), &export.name, export.tls.is_some()));
        }
        self.nbd.push(Rc::clone(&server));
        host.spawn(Box::pin(async move {
            let at = listener.address();
            if let Err(e) = server.serve(listener).await {
                tracing::error!(listener = %at, error = %e, "no longer listening");
            }
        }));
        Ok(())
    }

    fn reached(&mut self, export: &Export, protocol: &str, address: String) {
        let endpoint = api::Endpoint { protocol: protocol.into(), address };
        self.endpoints.entry(export.name.clone()).or_default().push(endpoint);
    }

    /// The exports of one hierarchy, as the API shows them.
    pub fn of(&self, hierarchy: &Hierarchy) -> Vec<api::Export> {
        let copy = |export: &Export| {
            let geometry = hierarchy.door(&export.name).map(|node| node.geometry());
            api::Export {
                name: export.name.clone(),
                device: export.device.clone(),
                description: export.description.clone(),
                read_only: export.read_only || geometry.is_some_and(|g| g.read_only),
                size: geometry.map_or(0, |g| g.size),
                endpoints: self.endpoints.get(&export.name).cloned().unwrap_or_default(),
            }
        };
        hierarchy.exports().iter().map(copy).collect()
    }

    /// Lets nobody in any more, answers the requests under way, and sends all clients away.
    pub async fn close(self) {
        let nbd = futures_util::future::join_all(self.nbd.iter().map(|server| server.shutdown()));
        let vhost_user =
            futures_util::future::join_all(self.vhost_user.into_iter().map(vhost_user::Server::stop));
        futures_util::future::join(nbd, vhost_user).await;
    }
}

/// Listens at `address`. A process that was just killed may seem to listen still, because the kernel takes its ring
/// apart in the background: an address that is taken is tried again for a while.
async fn patiently(host: &Rc<Host>, address: &Address) -> lamina_block::Result<Rc<dyn Listener>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match host.listen(address.clone()) {
            Err(_) if Instant::now() < end => host.sleep(PATIENCE / 50).await,
            done => return done,
        }
    }
}

/// Adds an export to the server of its address, which is made if it is the first there.
fn add<'a>(
    host: &Rc<Host>,
    listening: &mut Vec<Listening<'a>>,
    address: &'a Address,
    hierarchy: &Hierarchy,
    export: &'a Export,
) -> Result<(), String> {
    let found = listening.iter().position(|l| l.address == address);
    let at = match found {
        Some(at) => at,
        None => {
            let tls = export.tls.as_ref().map(load_tls).transpose()?;
            let env = Rc::clone(host) as Rc<dyn Env>;
            let server = nbd::Server::new(env, nbd::Settings { tls, ..Default::default() });
            listening.push(Listening { address, server, exports: Vec::new() });
            listening.len() - 1
        }
    };
    let node = hierarchy.door(&export.name).ok_or("it has no door")?;
    let info = nbd::ExportInfo {
        name: export.name.clone(),
        description: export.description.clone(),
        node,
        read_only: export.read_only,
    };
    listening[at].server.add(info).map_err(|e| e.to_string())?;
    listening[at].exports.push(export);
    Ok(())
}

fn load_tls(tls: &Tls) -> Result<ServerTls, String> {
    let loaded = ServerTls::load(&tls.certificate, &tls.key, tls.client_ca.as_deref(), true);
    loaded.map_err(|e| format!("key \"tls\": {e}"))
}

/// How NBD tools write the place of an export (the NBD URI specification).
fn uri(address: &Address, name: &str, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    match address {
        Address::Unix(path) => {
            format!(
                "{scheme}+unix:///{name}?socket={}",
                crate::uri::encoded(&path.display().to_string(), "/")
            )
        }
        Address::Tcp(host) => format!("{scheme}://{host}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_as_nbd_tools_read_them() {
        let unix = Address::Unix("/run/a b&c.sock".into());
        assert_eq!(uri(&unix, "vm1", false), "nbd+unix:///vm1?socket=/run/a%20b%26c.sock");
        assert_eq!(uri(&Address::Tcp("[::1]:10809".into()), "vm1", true), "nbds://[::1]:10809/vm1");
    }
}
