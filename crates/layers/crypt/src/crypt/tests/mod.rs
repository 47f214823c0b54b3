//! What the gauntlet is given, requests, and what is seen from below. Keyslots, crashes and formats have files of their
//! own.

mod asked;
mod crash;
mod format;
mod keyslots;

use super::Keys;
use super::cipher::{Algorithm, Cipher};
use crate::testing::*;
use lamina_block::{Begin, Build, Error, Geometry, Layer, Manage, Op, Passthrough, Step};
use lamina_kit::flaw::FLAW;
use lamina_sim::{Rig, SimEnv, Simulation, gauntlet};
use std::collections::HashSet;
use std::future::Future;

/// The least that a volume takes, so that tests are fast.
const HEADER: u64 = 320 << 10;

/// Keys of a small volume that opens fast.
fn keys(more: Value) -> Value {
    let mut keys = json!({
        "key-file": "/key", "header-size": HEADER, "kdf-memory": "32KiB", "kdf-memory-max": "64KiB", "sector-size": 512,
    });
    keys.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    keys
}

fn put_keys(env: &SimEnv) {
    env.put_file("/key", b"the key\nand more of it");
    env.put_file("/new", b"a new key");
    env.put_file("/passphrase", b"the key\n");
}

async fn built(rig: &Rig, more: Value, detached: bool) -> Result<Rc<Node>> {
    put_keys(&rig.env());
    // Sectors are never larger than what the disk writes as a whole.
    let mut keys = keys(more);
    keys["sector-size"] = rig.disk(0).geometry().block.into();
    let header = detached.then(|| rig.disk(1));
    rig.build_with(&Kind::of::<Keys>(), "top", keys, rig.disks(1), header).await
}

fn subject_with(name: &str, more: Value, detached: bool) -> Subject {
    Subject::new(name, move |rig| {
        let more = more.clone();
        async move { built(&rig, more, detached).await }
    })
    .disks_of(384 << 10)
}

pub fn subject() -> Subject {
    subject_with("crypt", json!({}), false)
}

gauntlet!(with_discards, subject_with("crypt with discards", json!({ "discard": true }), false));
gauntlet!(with_a_detached_header, subject_with("crypt with a detached header", json!({}), true));
gauntlet!(
    with_blowfish,
    subject_with("crypt with Blowfish", json!({ "cipher": "blowfish", "allow-legacy": true }), false)
);

/// A device of kind `crypt` over `child`.
async fn open(env: &Rc<SimEnv>, child: &Rc<Node>, keys: Value, begin: Begin) -> Result<Rc<Node>> {
    open_with(env, child, None, keys, begin).await
}

async fn open_with(
    env: &Rc<SimEnv>,
    child: &Rc<Node>,
    metadata: Option<Rc<Node>>,
    keys: Value,
    begin: Begin,
) -> Result<Rc<Node>> {
    let env: Rc<dyn Env> = Rc::clone(env) as Rc<dyn Env>;
    let keys =
        Kind::of::<Keys>().parse(&keys).map_err(|e| Error::invalid(format!("{}: {}", e.path, e.message)))?;
    let with = Build { begin, metadata, ..Build::new("vault", &env, vec![Rc::clone(child)]) };
    Ok(Node::new("vault", "crypt", Rc::clone(&env), keys.build(with).await?))
}

/// Runs `test` with a volume over 1 MiB of memory.
fn with_volume<F: Future<Output = ()> + 'static>(
    more: Value,
    test: impl FnOnce(Rc<SimEnv>, Rc<Node>, Rc<Node>) -> F + 'static,
) {
    simulated(move |world| async move {
        put_keys(&world.sim);
        let below = world.memory("1MiB").await;
        let vault = open(&world.sim, &below, keys(more), Begin::Format).await.expect("it is made");
        test(world.sim, below, vault).await;
    });
}

async fn put(node: &Rc<Node>, at: u64, bytes: &[u8]) {
    node.submit(Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached)).await.expect("written");
}

async fn get(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let buf = Buf::from_vec(vec![0xEE; len]);
    node.submit(Io::read(at, buf.clone())).await.expect("read");
    buf.to_vec()
}

async fn tell(node: &Rc<Node>, verb: &str, args: Value) -> Result<Value> {
    node.control(Command { name: verb.into(), args }).await
}

#[test]
fn what_is_written_is_read_and_below_is_noise() {
    with_volume(json!({}), |sim, below, vault| async move {
        let bytes = pattern(96 << 10);
        put(&vault, 4096, &bytes).await;
        assert_eq!(get(&vault, 4096, bytes.len()).await, bytes);
        assert_eq!(get(&vault, 512 * 20, 512).await, bytes[6144..6656]);
        let stored = get(&below, HEADER + 4096, bytes.len()).await;
        assert!(stored.chunks(16).zip(bytes.chunks(16)).all(|(a, b)| a != b));
        vault.close().await.unwrap();
        let again = open(&sim, &below, keys(json!({})), Begin::Open).await.unwrap();
        assert_eq!(get(&again, 4096, bytes.len()).await, bytes);
    });
}

#[test]
fn long_requests_go_in_rounds() {
    simulated(|world| async move {
        put_keys(&world.sim);
        let below = world.memory("8MiB").await;
        let vault = open(&world.sim, &below, keys(json!({})), Begin::Format).await.unwrap();
        let bytes = pattern((3 << 20) + 512);
        put(&vault, 512, &bytes).await;
        assert_eq!(get(&vault, 512, bytes.len()).await, bytes);
        assert_eq!(get(&vault, 512 + (1 << 20), 4096).await, bytes[1 << 20..(1 << 20) + 4096]);
        let writes = below.stats().of(OpKind::Write).completed.get();
        put(&vault, 512, &bytes).await;
        assert_eq!(below.stats().of(OpKind::Write).completed.get() - writes, 4);
    });
}

#[test]
fn memory_that_changes_after_it_was_handed_over_changes_nothing_else() {
    with_volume(json!({}), |_, below, vault| async move {
        let guest = Buf::from_vec(pattern(8192));
        put(&vault, 8192, &[7; 512]).await;
        let request = vault.submit(Io::write(0, guest.clone(), Durability::Cached));
        guest.fill(0xFF);
        request.await.unwrap();
        assert_eq!(get(&vault, 0, 8192).await, pattern(8192));
        assert_eq!(get(&vault, 8192, 512).await, [7; 512]);
        // Never in the guest's own pages.
        assert_eq!(guest.to_vec(), [0xFF; 8192]);
        assert_ne!(get(&below, HEADER, 512).await, [0xFF; 512]);
    });
}

#[test]
fn zeroes_are_encrypted_and_discards_are_kept_back() {
    with_volume(json!({}), |_, below, vault| async move {
        put(&vault, 0, &pattern(4096)).await;
        vault.submit(Io::zero(0..2048, Zero { unmap: true, ..Zero::default() })).await.unwrap();
        vault.submit(Io::discard(2048..4096)).await.unwrap();
        assert_eq!(get(&vault, 0, 4096).await, [vec![0; 2048], pattern(4096)[2048..].to_vec()].concat());
        assert!(
            get(&below, HEADER, 4096).await.chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0))
        );
        assert_eq!(vault.extents(0..4096).await.unwrap(), [data(4096)]);
    });
}

#[test]
fn with_discards_zeroes_are_zeroes_below() {
    with_volume(json!({ "discard": true, "sector-size": 4096 }), |_, below, vault| async move {
        put(&vault, 0, &[1; 12288]).await;
        vault.submit(Io::zero(4096..8192, Zero { fast: true, ..Zero::default() })).await.unwrap();
        assert_eq!(get(&vault, 0, 12288).await, [[1; 4096], [0; 4096], [1; 4096]].concat());
        assert_eq!(get(&below, HEADER + 4096, 4096).await, [0; 4096]);
    });
}

#[test]
fn with_discards_what_is_not_there_reads_as_zeroes() {
    with_volume(json!({ "discard": true, "sector-size": 4096 }), |_, _, vault| async move {
        const CHUNK: u64 = 64 << 10;
        assert_eq!(get(&vault, 0, 16384).await, [0; 16384]);
        put(&vault, CHUNK, &[1; 8192]).await;
        vault.submit(Io::discard(CHUNK..CHUNK + 4096)).await.unwrap();
        assert_eq!(get(&vault, CHUNK, 12288).await, [vec![0; 4096], vec![1; 4096], vec![0; 4096]].concat());
        let runs = vault.extents(0..3 * CHUNK).await.unwrap();
        assert_eq!(runs, [hole(CHUNK), data(CHUNK), hole(CHUNK)]);
    });
}

/// Below, a hole begins and ends in the middle of sectors.
#[test]
fn a_sector_that_is_a_hole_in_part_is_data() {
    simulated(|world| async move {
        put_keys(&world.sim);
        let keys = keys(json!({ "discard": true, "sector-size": 4096 }));
        let below = world.memory("1MiB").await;
        open(&world.sim, &below, keys.clone(), Begin::Format).await.unwrap();
        let uneven: Rc<dyn Layer> = Rc::new(Uneven(below));
        let below = Node::new("uneven", "uneven", Rc::clone(&world.env), uneven);
        let vault = open(&world.sim, &below, keys, Begin::Open).await.unwrap();
        let runs = vault.extents(0..16384).await.unwrap();
        assert_eq!(runs, [data(4096), hole(8192), data(4096)]);
        assert_eq!(vault.extents(0..4096).await.unwrap(), [data(4096)]);
    });
}

/// Says that there is a hole from 512 bytes behind to 512 bytes before what is asked about.
struct Uneven(Rc<Node>);

impl Layer for Uneven {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> lamina_block::Pending<Vec<Extent>> {
        Box::pin(async move { Ok(vec![data(512), hole(at.end - at.start - 1024), data(512)]) })
    }
}

impl Manage for Uneven {}

/// Writes the same to every sector, and says whether any two blocks of the cipher are the same below: then an IV was
/// used twice, and whoever reads the disk sees where things are equal.
async fn equal_below(vault: &Rc<Node>, below: &Rc<Node>, offset: u64) -> bool {
    let (size, mut seen) = (vault.geometry().size.min(256 << 10), HashSet::new());
    put(vault, 0, &vec![0x5A; size as usize]).await;
    let stored = get(below, offset, size as usize).await;
    !stored.chunks(16).all(|block| seen.insert(block.to_vec()))
}

#[test]
fn no_two_sectors_have_the_same_tweak() {
    for sector in [512, 4096] {
        with_volume(json!({ "sector-size": sector }), |_, below, vault| async move {
            assert!(!equal_below(&vault, &below, HEADER).await);
        });
    }
}

#[test]
fn a_read_that_fails_leaves_nothing_of_what_is_below() {
    simulated(|world| async move {
        put_keys(&world.sim);
        let below = world.memory("2MiB").await;
        let faulty = world.over("fault", json!({}), &[&below]).await;
        let vault = open(&world.sim, &faulty, keys(json!({})), Begin::Format).await.expect("it is made");
        // In one go, and in pieces.
        for len in [4096, 512 << 10] {
            put(&vault, 0, &pattern(len)).await;
            tell(&faulty, "set", json!({ "rules": [{ "op": ["read"] }] })).await.expect("it is told");
            let buf = Buf::from_vec(pattern(len));
            assert!(vault.submit(Io::read(0, buf.clone())).await.is_err());
            assert_eq!(buf.to_vec(), vec![0; len]);
            tell(&faulty, "clear", json!({})).await.expect("it is told");
        }
    });
}

/// A layer that is wrong: it encrypts, and decrypts what it encrypted, but every sector has the IV of the first.
struct Reused(Rc<Node>, Cipher);

impl Layer for Reused {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if let Op::Write(from, durability) = &io.op {
            let private = Buf::zeroed(from.len());
            for at in (0..from.len()).step_by(512) {
                let to = private.slice(at..at + 512);
                self.1.encrypt(0, &from.slice(at..at + 512), &to).unwrap();
            }
            io.op = Op::Write(private, *durability);
        }
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for Reused {}

/// The layer itself, with the tweak of the first sector of a request for all of it: what it reads is what was written,
/// so that nothing but a look at the disk can tell.
#[test]
fn canary_a_layer_that_reuses_a_tweak_is_caught() {
    FLAW.set(Some("tweak reused"));
    with_volume(json!({ "sector-size": 512 }), |_, below, vault| async move {
        assert!(equal_below(&vault, &below, HEADER).await, "nobody noticed");
    });
    FLAW.set(None);
}

#[test]
fn canary_a_tweak_that_is_reused_is_caught() {
    simulated(|world| async move {
        let below = world.memory("512KiB").await;
        let cipher = Cipher::new(Algorithm::AesXts, &pattern(64), 512, 0).unwrap();
        let layer = Rc::new(Reused(Rc::clone(&below), cipher));
        let wrong = Node::new("wrong", "reused", Rc::clone(&world.env), layer);
        assert!(equal_below(&wrong, &below, 0).await, "nobody noticed");
    });
}

#[test]
fn sizes_follow_the_device_below() {
    simulated(|world| async move {
        put_keys(&world.sim);
        let below = world.memory("1MiB").await;
        let vault =
            open(&world.sim, &below, keys(json!({ "sector-size": 4096 })), Begin::Format).await.unwrap();
        let geometry = vault.geometry();
        assert_eq!((geometry.size, geometry.block), ((1 << 20) - HEADER, 4096));
        assert!(!geometry.discard && !geometry.zero);
        let small = world.memory("256KiB").await;
        let error = open(&world.sim, &small, keys(json!({})), Begin::Format).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    });
}

#[test]
fn it_grows_with_the_device_below() {
    for block in [512, 4096] {
        simulated(|world| async move {
            put_keys(&world.sim);
            let options = lamina_sim::DiskOptions::new(1 << 20);
            let disk = world.sim.put_disk("disk", lamina_sim::Image::blank(options));
            let below = Node::new("disk", "simulated", Rc::clone(&world.env), disk);
            let with = keys(json!({ "sector-size": block }));
            let vault = open(&world.sim, &below, with.clone(), Begin::Format).await.unwrap();
            let before = vault.geometry().size;
            put(&vault, before - 4096, &[7; 4096]).await;
            // A part of a sector is not used.
            for (more, used) in [(1 << 20, 1 << 20), (512, 512 / block as u64 * block as u64)] {
                let was = vault.geometry().size;
                world.sim.disk("disk").unwrap().resize(below.geometry().size + more);
                below.refresh();
                vault.refresh();
                assert_eq!(vault.geometry().size, was + used);
            }
            let end = vault.geometry().size;
            put(&vault, end - 4096, &[8; 4096]).await;
            vault.close().await.unwrap();
            let vault = open(&world.sim, &below, with, Begin::Open).await.unwrap();
            assert_eq!(vault.geometry().size, end);
            assert_eq!(get(&vault, before - 4096, 4096).await, [7; 4096]);
            assert_eq!(get(&vault, end - 4096, 4096).await, [8; 4096]);
        });
    }
}

/// A world whose disks are kept when it ends.
fn scene(seed: u64) -> (Simulation, Rc<SimEnv>) {
    let world = Simulation::new(seed);
    let env = world.env();
    put_keys(&env);
    (world, env)
}
