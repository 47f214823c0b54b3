//! The NBD server: any bytes are sent to it by a client, which then leaves.
//!
//! The first byte says where the bytes begin: at the greeting, in transmission (with or without structured replies and
//! block status), or in a question to an export that keeps records of hosts. They arrive in pieces that follow from the
//! second byte. What must hold: no panic, no hang, nothing left in flight; and an honest client that comes afterwards
//! is served, or refused where a host alone writes that has a key.

#![no_main]

use lamina_block::{Address, Buf, Durability, Env, ErrorKind, Io, Node, Records};
use lamina_cluster::vault::{FolderVault, StoreRecords};
use lamina_nbd::client::{Client, Options, Target};
use lamina_nbd::context::pieces;
use lamina_nbd::server::{ExportInfo, Server, Settings};
use lamina_nbd::wire::{Session, opt};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use std::rc::Rc;
use std::time::Duration;

const PLACE: &str = "unix:/nbd.sock";

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &option.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// What the client says before the fuzzer's bytes.
fn prefix(mode: u8) -> Vec<u8> {
    let flags = vec![0, 0, 0, 3];
    let structured = option(opt::STRUCTURED_REPLY, &[]);
    let name = [&4u32.to_be_bytes()[..], b"disk"].concat();
    let session = Session(7).name();
    let names = [&b"base:allocation"[..], session.as_bytes()]
        .map(|name| [&(name.len() as u32).to_be_bytes(), name].concat());
    let query = [&name[..], &2u32.to_be_bytes(), &names.concat()].concat();
    let go = option(opt::GO, &[&name[..], &[0, 0]].concat());
    match mode % 4 {
        0 => Vec::new(),
        1 => [flags, go].concat(),
        2 => [flags, structured].concat(),
        _ => [flags, structured, option(opt::SET_META_CONTEXT, &query), go].concat(),
    }
}

/// A question with these bytes.
fn question(bytes: &[u8]) -> Vec<u8> {
    let pieces = pieces(bytes);
    let mut query = [&4u32.to_be_bytes()[..], b"disk", &(pieces.len() as u32).to_be_bytes()].concat();
    pieces.iter().for_each(|piece| query.extend([&(piece.len() as u32).to_be_bytes(), &piece[..]].concat()));
    [vec![0, 0, 0, 3], option(opt::STRUCTURED_REPLY, &[]), option(opt::LIST_META_CONTEXT, &query)].concat()
}

async fn run(env: Rc<SimEnv>, input: Vec<u8>, is_shared: bool) {
    let dyn_env: Rc<dyn Env> = Rc::clone(&env) as _;
    let disk = env.put_disk("/disk", Image::blank(DiskOptions::new(1 << 20)));
    let node = Node::new("disk", "sim", Rc::clone(&dyn_env), disk as _);
    let server = Server::new(Rc::clone(&dyn_env), Settings::default());
    let vault = || FolderVault::new(Rc::clone(&dyn_env), env.shared_folder("/vault") as _);
    let records = is_shared.then(|| StoreRecords::new(Rc::new(vault())) as Rc<dyn Records>);
    let export = ExportInfo {
        name: "disk".into(),
        description: "d".into(),
        node: Rc::clone(&node),
        read_only: false,
        memory: Rc::default(),
        records,
    };
    server.add(export).expect("a new name");
    let place: Address = PLACE.parse().expect("an address");
    let (listener, serving) = (env.listen(place.clone()).expect("listens"), Rc::clone(&server));
    env.spawn(Box::pin(async move { serving.serve(listener).await.expect("serves") }));

    let conn = env.connect(place).await.expect("the server listens");
    let reading = Rc::clone(&conn);
    let reader = env.start(async move {
        let buf = Buf::zeroed(1 << 16);
        while let Ok(1..) = reading.recv(buf.clone()).await {}
    });
    let _ = conn.send(Buf::from_vec(input)).await;
    env.sleep(Duration::from_millis(20)).await;
    conn.shutdown();
    reader.ended().await;
    // Longer than a negotiation may take.
    env.sleep(Duration::from_secs(20)).await;
    assert_eq!((server.connections(), node.stats().in_flight()), (0, 0));

    let target: Target = PLACE.parse().expect("a place");
    let client = Client::connect(&dyn_env, target, Options::default()).await.expect("an honest client");
    let client = Node::new("client", "nbd", dyn_env, client as _);
    let data = Buf::from_vec(vec![7; 4096]);
    let written = client.submit(Io::write(0, data, Durability::Fua)).await.map_err(|e| e.kind());
    assert_eq!(written, if is_shared { Err(ErrorKind::ReadOnly) } else { Ok(()) });
    server.shutdown().await;
}

fuzz_target!(|bytes: &[u8]| {
    let [mode, seed, rest @ ..] = bytes else { return };
    let (is_shared, asks) = (mode & 4 != 0, mode & 8 != 0);
    let input = if asks { question(rest) } else { [prefix(*mode), rest.to_vec()].concat() };
    let world = Simulation::new(u64::from(*seed));
    world.run(run(world.env(), input, is_shared)).expect("ends");
});
