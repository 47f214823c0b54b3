//! The NBD client: any bytes are what a server says, to every connection that the client makes.
//!
//! The first byte says where the bytes begin: at the greeting, or after an honest negotiation (with or without
//! structured replies). They arrive in pieces that follow from the second byte. What must hold: no panic, no hang,
//! every request answered within the time allowed.

#![no_main]

use lamina_block::{Buf, Durability, Env, Io, Node, Result, Zero};
use lamina_nbd::client::{Client, Options};
use lamina_nbd::wire::{self, flag, opt, rep};
use lamina_sim::{SimEnv, Simulation};
use libfuzzer_sys::fuzz_target;
use std::rc::Rc;
use std::time::Duration;

const PLACE: &str = "unix:/nbd.sock";

fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let magic = wire::OPTION_REPLY_MAGIC.to_be_bytes();
    let len = (data.len() as u32).to_be_bytes();
    [&magic[..], &option.to_be_bytes(), &kind.to_be_bytes(), &len, data].concat()
}

/// What the server says before the fuzzer's bytes.
fn prefix(mode: u8) -> Vec<u8> {
    let greeting = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    let flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::SEND_FAST_ZERO;
    let export = [&[0, 0][..], &(1u64 << 20).to_be_bytes(), &flags.to_be_bytes()].concat();
    let go = [reply(opt::GO, rep::INFO, &export), reply(opt::GO, rep::ACK, &[])].concat();
    match mode % 4 {
        0 => Vec::new(),
        1 => greeting,
        2 => [greeting, reply(opt::STRUCTURED_REPLY, rep::ERR_UNSUP, &[]), go].concat(),
        _ => {
            let context = [&1u32.to_be_bytes()[..], b"base:allocation"].concat();
            [
                greeting,
                reply(opt::STRUCTURED_REPLY, rep::ACK, &[]),
                reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &context),
                reply(opt::SET_META_CONTEXT, rep::ACK, &[]),
                go,
            ]
            .concat()
        }
    }
}

/// A server that says `words` to everybody.
fn serve(env: &Rc<SimEnv>, words: Vec<u8>) {
    let listener = env.listen(PLACE.parse().expect("an address")).expect("listens");
    let world = Rc::clone(env);
    env.spawn(Box::pin(async move {
        while let Ok(conn) = listener.accept().await {
            let words = words.clone();
            world.spawn(Box::pin(async move {
                let _ = conn.send(Buf::from_vec(words)).await;
                let buf = Buf::zeroed(1 << 16);
                while let Ok(1..) = conn.recv(buf.clone()).await {}
            }));
        }
    }));
}

async fn run(env: Rc<SimEnv>) -> Result<()> {
    let dyn_env: Rc<dyn Env> = Rc::clone(&env) as _;
    let (reconnect, timeout) = (Duration::from_millis(500), Duration::from_millis(400));
    let options = Options { reconnect, timeout, ..Options::default() };
    let client = Client::connect(&dyn_env, PLACE.parse()?, options).await?;
    let node = Node::new("client", "nbd", Rc::clone(&dyn_env), client as _);
    let size = node.geometry().size.min(1 << 20);
    let block = u64::from(node.geometry().block);
    if size < 2 * block {
        return node.close().await;
    }
    let begin = env.now();
    let zero = Zero { unmap: true, fast: true, durability: Durability::Fua };
    let requests = lamina_block::all([
        node.submit(Io::read(block, Buf::zeroed(block as usize))),
        node.submit(Io::write(0, Buf::zeroed(block as usize), Durability::Fua)),
        node.submit(Io::read(0, Buf::zeroed(size as usize))),
        node.submit(Io::zero(0..block, zero)),
        node.submit(Io::discard(0..block)),
        node.submit(Io::flush()),
    ]);
    let _ = futures_util::future::join(requests, node.extents(0..size)).await;
    // A block status of short runs takes many questions, each of which has its time.
    assert!(env.now().since(begin) < Duration::from_secs(600));
    node.close().await
}

fuzz_target!(|bytes: &[u8]| {
    let [mode, seed, rest @ ..] = bytes else { return };
    let world = Simulation::new(u64::from(*seed));
    serve(&world.env(), [prefix(*mode), rest.to_vec()].concat());
    // How the negotiation ends is the server's to decide; that it ends is ours.
    let _ = world.run(run(world.env())).expect("ends");
});
