//! A server and clients of it in the simulator.

#![allow(dead_code, unused_imports, reason = "every test binary uses a part of it")]

use futures_util::future::select;
pub use lamina_block::*;
pub use lamina_nbd::client::{Client, Options, Target};
pub use lamina_nbd::server::{ExportInfo, Server, Settings};
pub use lamina_sim::{DiskOptions, Image, Presence, SimDisk, SimEnv, Simulation};
pub use std::rc::Rc;
pub use std::time::Duration;

/// Where the server listens.
pub const PLACE: &str = "unix:/sim/nbd.sock";

/// A server of one simulated disk, `disk`, as the export "disk".
pub struct World {
    pub env: Rc<SimEnv>,
    pub disk: Rc<SimDisk>,
    pub node: Rc<Node>,
    pub server: Rc<Server>,
    pub settings: Settings,
    /// Bytes of memory for connections to its export.
    pub memory: usize,
    /// The records of the hosts that share the export.
    pub records: Option<Rc<dyn Records>>,
    killed: Rc<Signal>,
}

pub fn place() -> Address {
    PLACE.parse().expect("an address")
}

pub fn target(export: &str) -> Target {
    Target { export: Some(export.into()), ..PLACE.parse().expect("a place") }
}

fn export(node: &Rc<Node>, memory: usize, records: Option<Rc<dyn Records>>) -> ExportInfo {
    ExportInfo {
        name: "disk".into(),
        description: "a simulated disk".into(),
        node: Rc::clone(node),
        read_only: false,
        memory: Budget::new(memory),
        records,
    }
}

impl World {
    pub fn new(env: Rc<SimEnv>, disk: DiskOptions, settings: Settings) -> World {
        World::with_memory(env, disk, settings, Budget::EXPORT)
    }

    pub fn with_memory(env: Rc<SimEnv>, disk: DiskOptions, settings: Settings, memory: usize) -> World {
        let disk = env.put_disk("/disk", Image::blank(disk));
        let dyn_env: Rc<dyn Env> = Rc::clone(&env) as _;
        let node = Node::new("disk", "sim", dyn_env, Rc::clone(&disk) as _);
        let killed = Rc::new(Signal::new());
        let server = World::start(&env, &node, &settings, memory, None, &killed);
        World { env, disk, node, server, settings, memory, records: None, killed }
    }

    /// The same world, whose export is one that hosts share.
    pub fn shared(mut self, records: Rc<dyn Records>) -> World {
        self.records = Some(Rc::clone(&records));
        self.server.remove("disk");
        self.server.add(export(&self.node, self.memory, Some(records))).expect("a new name");
        self
    }

    fn start(
        env: &Rc<SimEnv>,
        node: &Rc<Node>,
        settings: &Settings,
        memory: usize,
        records: Option<Rc<dyn Records>>,
        killed: &Rc<Signal>,
    ) -> Rc<Server> {
        let server = Server::new(Rc::clone(env) as _, settings.clone());
        server.add(export(node, memory, records)).expect("a new name");
        let listener = env.listen(place()).expect("nobody else listens");
        let (serving, killed) = (Rc::clone(&server), Rc::clone(killed));
        env.spawn(Box::pin(async move {
            let serving = std::pin::pin!(serving.serve(listener));
            select(serving, std::pin::pin!(killed.wait())).await;
        }));
        server
    }

    pub fn dyn_env(&self) -> Rc<dyn Env> {
        Rc::clone(&self.env) as _
    }

    /// The server process dies, as by `kill -9`: connections break, the address has no listener.
    pub async fn kill(&self) {
        self.killed.notify();
        self.env.sleep(Duration::from_millis(1)).await;
        self.env.net().cut(&place());
    }

    /// A new server over the same disk.
    pub fn restart(&mut self) {
        self.server = World::start(
            &self.env,
            &self.node,
            &self.settings,
            self.memory,
            self.records.clone(),
            &self.killed,
        );
    }

    /// A client of the export, as a node.
    pub async fn client(&self, options: Options) -> Result<(Rc<Client>, Rc<Node>)> {
        let client = Client::connect(&self.dyn_env(), target("disk"), options).await?;
        let node = Node::new("client", "nbd", self.dyn_env(), Rc::clone(&client) as _);
        Ok((client, node))
    }

    /// A bare connection.
    pub async fn connect(&self) -> Rc<dyn Conn> {
        self.env.connect(place()).await.expect("the server listens")
    }
}

/// Runs `test` in a world of its own for each of `seeds`.
pub fn simulate<F: Future<Output = ()> + 'static>(
    seeds: std::ops::Range<u64>,
    settings: Settings,
    test: impl Fn(World) -> F,
) {
    simulate_in(Budget::EXPORT, seeds, settings, test);
}

/// The same, with so much memory for connections.
pub fn simulate_in<F: Future<Output = ()> + 'static>(
    memory: usize,
    seeds: std::ops::Range<u64>,
    settings: Settings,
    test: impl Fn(World) -> F,
) {
    for seed in seeds {
        let simulation = Simulation::new(seed);
        let disk = DiskOptions::new(4 << 20);
        let world = World::with_memory(simulation.env(), disk, settings.clone(), memory);
        let hung = simulation.run(test(world)).err();
        assert!(hung.is_none(), "seed {seed} hangs: {hung:?}");
    }
}

/// `len` bytes that differ from those of other seeds.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(i as u64 * 31) >> 3) as u8).collect()
}

pub async fn write(node: &Rc<Node>, at: u64, data: &[u8]) -> Result<()> {
    node.submit(Io::write(at, Buf::from_vec(data.to_vec()), Durability::Cached)).await
}

pub async fn read(node: &Rc<Node>, at: u64, len: usize) -> Result<Vec<u8>> {
    let buf = Buf::from_vec(vec![0xEE; len]);
    node.submit(Io::read(at, buf.clone())).await.map(|()| buf.to_vec())
}

/// Receives until the connection ends.
pub async fn drain(conn: &Rc<dyn Conn>) -> Vec<u8> {
    let mut all = Vec::new();
    let buf = Buf::zeroed(4096);
    while let Ok(n @ 1..) = conn.recv(buf.clone()).await {
        all.extend(buf.slice(0..n).to_vec());
    }
    all
}
