//! The exports of one core: NBD listeners and vhost-user sockets in front of its nodes.

use super::groups;
use crate::api;
use lamina_block::{Address, Budget, Env, Error, ErrorKind, Listener, Node, Records, Result};
use lamina_cluster::vault::{FolderVault, StoreRecords};
use lamina_graph::{Export, Hierarchy, Tls};
use lamina_host::{Access, Host};
use lamina_nbd::client::uri;
use lamina_nbd::server as nbd;
use lamina_tls::ServerTls;
use lamina_vhost_user as vhost_user;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long an address may be taken before it is refused.
const PATIENCE: Duration = Duration::from_secs(2);

/// Everything through which clients reach a core's nodes.
pub struct Exports {
    /// One for each address; several exports may share it.
    nbd: Vec<Listening>,
    /// By name of the export.
    vhost_user: HashMap<String, vhost_user::Server>,
    /// By name of the export.
    endpoints: HashMap<String, Vec<api::Endpoint>>,
    /// Memory for the requests to all of them.
    memory: Rc<Budget>,
    /// So many requests of each a second are looked at.
    samples: u32,
}

/// What a core does for the requests of its clients.
#[derive(Clone, Copy)]
pub struct Terms {
    /// Bytes of memory for all of them.
    pub memory: usize,
    /// So many of each export a second are looked at, where their time goes.
    pub samples: u32,
}

/// An NBD server and its address.
struct Listening {
    /// As the file says it.
    address: Address,
    /// The export for which it was made; the others agree with that.
    like: Export,
    server: Rc<nbd::Server>,
    /// The address of the listener; `None` before it listens.
    at: Option<Address>,
}

impl Exports {
    /// No exports yet.
    pub fn none(terms: Terms) -> Exports {
        Exports {
            nbd: Vec::new(),
            vhost_user: HashMap::new(),
            endpoints: HashMap::new(),
            memory: Budget::new(terms.memory),
            samples: terms.samples,
        }
    }

    /// Opens the exports of `hierarchies`. If one cannot be opened, those opened before are closed, and their sockets
    /// are gone; the message names the export.
    pub async fn open<'a>(
        host: &Rc<Host>,
        hierarchies: impl Iterator<Item = &'a Hierarchy>,
        terms: Terms,
    ) -> Result<Exports> {
        let mut all = Exports::none(terms);
        match all.open_all(host, hierarchies).await {
            Ok(()) => Ok(all),
            Err(e) => {
                all.close().await;
                Err(e)
            }
        }
    }

    async fn open_all<'a>(
        &mut self,
        host: &Rc<Host>,
        hierarchies: impl Iterator<Item = &'a Hierarchy>,
    ) -> Result<()> {
        let exports: Vec<_> = hierarchies.flat_map(|h| h.exports().iter().map(move |e| (h, e))).collect();
        for (hierarchy, export) in &exports {
            self.add(host, hierarchy, export)?;
        }
        for (_, export) in &exports {
            let listener = match self.to_listen(export) {
                Some(address) => Some(listen(host, export, address).await?),
                None => None,
            };
            self.listening(host, export, listener);
        }
        Ok(())
    }

    /// The address at which nobody listens yet for clients of `export`.
    pub fn to_listen(&self, export: &Export) -> Option<Address> {
        let its = self.nbd.iter().find(|listening| Some(&listening.address) == export.nbd.as_ref());
        its.filter(|listening| listening.at.is_none()).map(|listening| listening.address.clone())
    }

    /// Admits NBD clients of an export, through `listener` if its address had no listener before.
    pub fn listening(&mut self, host: &Rc<Host>, export: &Export, listener: Option<Rc<dyn Listener>>) {
        let same = |listening: &&mut Listening| Some(&listening.address) == export.nbd.as_ref();
        let Some(listening) = self.nbd.iter_mut().find(same) else { return };
        if let Some(listener) = listener {
            listening.at = Some(listener.address());
            let server = Rc::clone(&listening.server);
            host.spawn(Box::pin(async move {
                let at = listener.address();
                if let Err(e) = server.serve(listener).await {
                    tracing::error!(listener = %at, error = %e, "no longer listening");
                }
            }));
        }
        if let Some(at) = listening.at.clone() {
            self.reached(export, "nbd", uri(&at, &export.name, export.tls.is_some()));
        }
    }

    /// Takes an export out. No new client finds it.
    pub fn remove(&mut self, name: &str) -> Removed {
        self.endpoints.remove(name);
        self.nbd.iter().for_each(|listening| listening.server.remove(name));
        let empty = self.nbd.extract_if(.., |listening| listening.server.is_empty());
        Removed {
            nbd: empty.map(|listening| listening.server).collect(),
            vhost_user: self.vhost_user.remove(name),
        }
    }

    /// True if clients can reach an export.
    pub fn is_open(&self, name: &str) -> bool {
        self.endpoints.contains_key(name)
    }

    /// The users of an export, as text.
    pub fn clients_of(&self, name: &str) -> Vec<String> {
        let mut clients: Vec<String> =
            self.nbd.iter().flat_map(|listening| listening.server.clients_of(name)).collect();
        let hypervisor = self.vhost_user.get(name).and_then(vhost_user::Server::front_end);
        clients.extend(hypervisor.map(|process| format!("a hypervisor over vhost-user{process}")));
        clients
    }

    /// Makes an export known to its servers. Over vhost-user it is open then; NBD clients are let in later.
    pub fn add(&mut self, host: &Rc<Host>, hierarchy: &Hierarchy, export: &Export) -> Result<()> {
        let failed = |e| of_export(export, &e);
        let node = hierarchy
            .export_node(&export.name)
            .ok_or_else(|| failed(Error::offline("the export has no node")))?;
        node.account().set_rate(self.samples);
        // Enough for a guest and a client, independent of others.
        let memory = self.memory.child(2 * Budget::RESERVE, export.memory);
        if let Some(path) = &export.vhost_user {
            self.add_vhost_user(host, Rc::clone(&node), export, path, &memory).map_err(failed)?;
        }
        if let Some(address) = &export.nbd {
            self.add_nbd(host, node, export, address, memory).map_err(failed)?;
        }
        Ok(())
    }

    fn add_vhost_user(
        &mut self,
        host: &Rc<Host>,
        node: Rc<Node>,
        export: &Export,
        path: &Path,
        memory: &Rc<Budget>,
    ) -> Result<()> {
        let settings = vhost_user::Settings {
            name: export.name.clone(),
            queues: export.queues,
            serial: export.serial.clone().unwrap_or_else(|| export.name.clone()),
            read_only: export.read_only,
            any_memory: export.any_memory,
            access: groups::access(export).map_err(Error::invalid)?,
        };
        let server = vhost_user::Server::start(
            host,
            path,
            node,
            settings,
            memory.child(Budget::RESERVE, export.memory),
        )
        .map_err(|e| {
            let message = format!("{}: {e}", path.display());
            Error::new(Error::from(e).kind(), message)
        })?;
        self.vhost_user.insert(export.name.clone(), server);
        self.reached(export, "vhost-user", path.display().to_string());
        Ok(())
    }

    /// Adds an export to the server of its address, which is made if it is the first there.
    fn add_nbd(
        &mut self,
        host: &Rc<Host>,
        node: Rc<Node>,
        export: &Export,
        address: &Address,
        memory: Rc<Budget>,
    ) -> Result<()> {
        let found = self.nbd.iter().position(|listening| listening.address == *address);
        let at = match found {
            Some(at) => match export.differs_as_listener(&self.nbd[at].like) {
                Some(key) => {
                    return Err(Error::invalid(format!("{address} is served with another {key:?} already")));
                }
                None => at,
            },
            None => {
                let tls = export.tls.as_ref().map(|tls| load_tls(host, tls)).transpose()?;
                let env = Rc::clone(host) as Rc<dyn Env>;
                let server = nbd::Server::new(env, nbd::Settings { tls, ..Default::default() });
                let (address, like) = (address.clone(), export.clone());
                self.nbd.push(Listening { address, like, server, at: None });
                self.nbd.len() - 1
            }
        };
        let info = nbd::ExportInfo {
            name: export.name.clone(),
            description: export.description.clone(),
            node,
            read_only: export.read_only,
            memory,
            records: export.vault.as_deref().map(|vault| records(host, vault)).transpose()?,
        };
        self.nbd[at].server.add(info)
    }

    fn reached(&mut self, export: &Export, protocol: &str, address: String) {
        let endpoint = api::Endpoint { protocol: protocol.into(), address };
        self.endpoints.entry(export.name.clone()).or_default().push(endpoint);
    }

    /// The exports of one hierarchy, as the API shows them.
    pub fn of(&self, hierarchy: &Hierarchy) -> Vec<api::Export> {
        let copy = |export: &Export| {
            let geometry = hierarchy.export_node(&export.name).map(|node| node.geometry());
            api::Export {
                name: export.name.clone(),
                device: export.device.clone(),
                description: export.description.clone(),
                read_only: export.read_only || geometry.is_some_and(|g| g.read_only),
                size: geometry.map_or(0, |g| g.size),
                endpoints: self.endpoints.get(&export.name).cloned().unwrap_or_default(),
                clients: self.counted(&export.name),
            }
        };
        hierarchy.exports().iter().map(copy).collect()
    }

    /// The users of an export: those with several connections once.
    fn counted(&self, name: &str) -> Vec<api::Client> {
        let mut counts = BTreeMap::new();
        self.clients_of(name).into_iter().for_each(|client| *counts.entry(client).or_default() += 1);
        counts.into_iter().map(|(name, connections)| api::Client { name, connections }).collect()
    }

    /// Takes the exports of a hierarchy out; close what it returns.
    pub fn take(&mut self, hierarchy: &Hierarchy) -> Vec<Leaving> {
        let leaving = |export: &Export| Leaving {
            nbd: self
                .nbd
                .iter()
                .map(|listening| (Rc::clone(&listening.server), export.name.clone()))
                .collect(),
            vhost_user: self.vhost_user.remove(&export.name),
        };
        hierarchy.exports().iter().map(leaving).collect()
    }

    /// Lets nobody in any more, answers the requests under way, and sends all clients away.
    pub async fn close(self) {
        let nbd =
            futures_util::future::join_all(self.nbd.iter().map(|listening| listening.server.shutdown()));
        let vhost_user =
            futures_util::future::join_all(self.vhost_user.into_values().map(vhost_user::Server::stop));
        futures_util::future::join(nbd, vhost_user).await;
    }
}

/// An export that is closed beside others.
pub struct Leaving {
    nbd: Vec<(Rc<nbd::Server>, String)>,
    vhost_user: Option<vhost_user::Server>,
}

impl Leaving {
    /// Sends its clients away when their requests are answered.
    pub async fn close(self) {
        let nbd = self.nbd.iter().map(|(server, name)| server.close_export(name));
        let vhost_user = async {
            if let Some(server) = self.vhost_user {
                server.stop().await;
            }
        };
        futures_util::future::join(futures_util::future::join_all(nbd), vhost_user).await;
    }
}

/// The servers of an export that was removed.
pub struct Removed {
    nbd: Vec<Rc<nbd::Server>>,
    vhost_user: Option<vhost_user::Server>,
}

impl Removed {
    /// Sends its clients away when their requests are answered.
    pub async fn close(self) {
        for server in self.nbd {
            server.shutdown().await;
        }
        if let Some(server) = self.vhost_user {
            server.stop().await;
        }
    }
}

/// Listens for the clients of an export.
pub async fn listen(host: &Rc<Host>, export: &Export, address: Address) -> Result<Rc<dyn Listener>> {
    let access = groups::access(export).map_err(|e| of_export(export, &Error::invalid(e)))?;
    let listening = patiently(host, &address, &access).await;
    listening.map_err(|e| of_export(export, &Error::new(e.kind(), format!("{address}: {e}"))))
}

/// The error of an export, which the message names.
fn of_export(export: &Export, e: &Error) -> Error {
    Error::new(e.kind(), format!("export {:?}: {e}", export.name))
}

/// True if an address may be free soon: another process has it, or is giving it up.
fn is_brief(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Busy | ErrorKind::Offline)
}

/// Listens at `address`. A process that was just killed may seem to listen still, because the kernel takes its ring
/// apart in the background: an address that is taken is tried again for a while.
async fn patiently(host: &Rc<Host>, address: &Address, access: &Access) -> Result<Rc<dyn Listener>> {
    let end = Instant::now() + PATIENCE;
    loop {
        match host.listen_for(address.clone(), access).await {
            Err(e) if is_brief(&e) && Instant::now() < end => host.sleep(PATIENCE / 50).await,
            done => return done,
        }
    }
}

fn load_tls(host: &Host, tls: &Tls) -> Result<ServerTls> {
    host.guard_key(&tls.key);
    let loaded = ServerTls::load(&tls.certificate, &tls.key, tls.client_ca.as_deref(), true);
    loaded.map_err(|e| Error::new(e.kind(), format!("key \"tls\": {e}")))
}

/// What keeps the records of an export that hosts share.
fn records(host: &Rc<Host>, folder: &Path) -> Result<Rc<dyn Records>> {
    let told = |e: Error| Error::new(e.kind(), format!("key \"vault\": {}: {e}", folder.display()));
    if !folder.is_dir() {
        let message = "there is no such folder: make it, unless it is on a file system that is not mounted; an empty \
                       one says that no host has ever had the volume";
        return Err(told(Error::offline(message)));
    }
    let env = Rc::clone(host) as Rc<dyn Env>;
    let vault = FolderVault::new(Rc::clone(&env), env.folder(folder.into()).map_err(told)?);
    Ok(StoreRecords::new(Rc::new(vault)))
}
