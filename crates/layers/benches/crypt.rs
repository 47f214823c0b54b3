//! The price of encryption: `crypt` over a device that does nothing, against aws-lc by itself on the same core.
//!
//! `cargo bench -p lamina-layers --bench crypt` prints bytes per second of both and their ratio, which is what has a
//! target: 0.85 for requests of 128 KiB, 0.6 for 4 KiB. Sectors have 4096 bytes. Both work on memory that is in the
//! caches; every figure is the best of several, taken in turn.

use lamina_block::{
    Begin, Buf, Build, Durability, Env, Geometry, Io, Layer, Manage, Node, Op, Passthrough, Step,
};
use lamina_sim::Simulation;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::pin;
use std::ptr::{null, null_mut};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

const HEADER: u64 = 320 << 10;
const SECTOR: usize = 4096;
/// Bytes of one measurement, and how many are made.
const BYTES: usize = 256 << 20;
const TIMES: usize = 7;
/// Requests go round in so many bytes.
const SPAN: u64 = 64 << 20;

/// Keeps a header, and does nothing with anything else.
struct Nothing(Rc<Node>);

impl Layer for Nothing {
    fn geometry(&self) -> Geometry {
        Geometry { fua: true, ..Geometry::new(HEADER + SPAN) }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Flush => Step::Done(Ok(())),
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard if io.at.start < HEADER => {
                Step::Forward(Rc::clone(&self.0))
            }
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard => Step::Done(Ok(())),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Nothing {}

async fn layer(env: &Rc<dyn Env>, kind: &str, keys: Value, over: Vec<Rc<Node>>, begin: Begin) -> Rc<Node> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("the kind is there");
    let keys = kind.parse(&keys).expect("the keys are right");
    let with = Build { begin, ..Build::new(kind.name, env, over) };
    let made = keys.build(with).await.expect("the layer can be built");
    Node::new(kind.name, kind.name, Rc::clone(env), made)
}

async fn vault(env: Rc<dyn Env>) -> Rc<Node> {
    let header = layer(&env, "memory", json!({ "size": HEADER }), vec![], Begin::Open).await;
    let nothing = Node::new("nothing", "nothing", Rc::clone(&env), Rc::new(Nothing(header)));
    let keys =
        json!({ "key-file": "/key", "header-size": HEADER, "kdf-memory": "32KiB", "sector-size": SECTOR });
    layer(&env, "crypt", keys, vec![nothing], Begin::Format).await
}

/// The result of something that does not have to wait.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("what is below completes at once"),
    }
}

/// Bytes per second of `work` on `size` bytes at a place.
fn rate(size: usize, mut work: impl FnMut(u64)) -> f64 {
    let began = Instant::now();
    for number in 0..(BYTES / size) as u64 {
        work(number * size as u64 % SPAN);
    }
    BYTES as f64 / began.elapsed().as_secs_f64()
}

/// The library by itself: sector after sector with its own IV, from one memory to another.
fn bare(size: usize, encrypt: bool) -> impl FnMut() -> f64 {
    let key: Vec<u8> = (0..64).collect();
    let (from, mut to) = (vec![7u8; size], vec![0u8; size]);
    // SAFETY: plain calls of the library with its own table, a context that is never freed, and a key of 64 bytes.
    let context = unsafe {
        let context = aws_lc_sys::EVP_CIPHER_CTX_new();
        let cipher = aws_lc_sys::EVP_aes_256_xts();
        let keyed =
            aws_lc_sys::EVP_CipherInit_ex(context, cipher, null_mut(), key.as_ptr(), null(), encrypt.into());
        assert_eq!(keyed, 1);
        context
    };
    move || {
        rate(size, |at| {
            for sector in (0..size).step_by(SECTOR) {
                let iv = u128::from((at + sector as u64) / 512).to_le_bytes();
                let (from, to) = (&from[sector..sector + SECTOR], &mut to[sector..sector + SECTOR]);
                // SAFETY: both slices have a sector, and the IV 16 bytes.
                let done = unsafe {
                    aws_lc_sys::EVP_CipherInit_ex(context, null(), null_mut(), null(), iv.as_ptr(), -1) == 1
                        && aws_lc_sys::EVP_Cipher(context, to.as_mut_ptr(), from.as_ptr(), SECTOR) == 1
                };
                assert!(done);
            }
        })
    }
}

fn main() {
    let world = Simulation::new(1);
    let env = world.env();
    env.put_file("/key", b"a key");
    let vault = world.run(vault(env)).expect("it can be built");
    println!("request    direction   aws-lc MB/s   crypt MB/s   ratio   target");
    for (size, target) in [(4 << 10, 0.6), (128 << 10, 0.85)] {
        for encrypt in [true, false] {
            let buf = Buf::from_vec(vec![7; size]);
            let request = |at: u64| match encrypt {
                true => Io::write(at, buf.clone(), Durability::Cached),
                false => Io::read(at, buf.clone()),
            };
            let (mut bare, mut best) = (bare(size, encrypt), (0.0f64, 0.0f64));
            for _ in 0..TIMES {
                best.0 = best.0.max(bare());
                best.1 = best.1.max(rate(size, |at| {
                    let mut request = vault.submit(request(at));
                    request.ready().unwrap_or_else(|| at_once(request)).expect("done");
                }));
            }
            let (kib, way, ratio) = (size >> 10, if encrypt { "write" } else { "read" }, best.1 / best.0);
            let (bare, ours) = (best.0 / 1e6, best.1 / 1e6);
            println!("{kib:4} KiB   {way:9} {bare:13.0} {ours:12.0} {ratio:7.2}   {target}");
        }
    }
}
