//! Over a mirror or a parity: what is wrong on a disk is read right, and is right everywhere afterwards.

use super::*;
use crate::sums::Sums;
use crate::sums::scene::Camera;
use lamina_kit::flaw::FLAW;

use crate::testing::history::{BLOCK, History, told, work};
use futures_util::future::join_all;
use lamina_block::{Begin, Build, Error};
use lamina_sim::{DiskOptions, Image, Images, SimEnv, SimKeep, Simulation};
use std::time::Duration;

/// Bytes of a disk.
const DISK: u64 = 512 << 10;
/// Bytes that are written by these tests, from the beginning on.
const USED: u64 = 128 << 10;

/// Blocks of which no two lie in the same row of a parity.
const ROWS: [u64; 6] = [0, 6, 12, 18, 24, 30];

/// Devices over which a checksum is.
#[derive(Clone, Copy, Debug)]
struct Legs {
    kind: &'static str,
    legs: usize,
    /// Of so many legs the same row may be wrong.
    survives: usize,
}

const MIRROR: Legs = Legs { kind: "mirror", legs: 2, survives: 1 };
const THREE: Legs = Legs { kind: "mirror", legs: 3, survives: 2 };
const PARITY: Legs = Legs { kind: "parity", legs: 3, survives: 1 };
const TWO_PARITIES: Legs = Legs { kind: "parity", legs: 5, survives: 2 };
const ALL: [Legs; 4] = [MIRROR, THREE, PARITY, TWO_PARITIES];

impl Legs {
    fn keys(self) -> Value {
        match self.kind {
            "mirror" => json!({ "region": "16KiB", "leg-timeout": "1h" }),
            _ => json!({ "region": "16KiB", "unit": "8KiB", "leg-timeout": "1h", "parity": self.survives }),
        }
    }

    /// Where block `block` of the first data lies: the leg, and the byte there. `start`: where the data begin.
    fn place(self, start: u64, block: u64) -> (usize, u64) {
        let at = start + block * 4096;
        if self.kind == "mirror" {
            return (0, at);
        }
        let layout = lamina_redundancy::parity::layout::Layout {
            unit: 8192,
            columns: self.legs,
            parity: self.survives,
        };
        let piece = layout.pieces(&(at..at + 4096)).next().expect("one");
        let (cell, rows) = layout.cells(&piece.within).next().expect("one");
        (layout.column(piece.stripe, cell), piece.stripe * 8192 + rows.start)
    }
}

#[derive(Clone)]
struct Stack {
    env: Rc<SimEnv>,
    top: Rc<Node>,
    legs: Rc<Node>,
    sums: Rc<Sums>,
    disks: Vec<Rc<Node>>,
    how: Legs,
}

fn world(seed: u64, how: Legs) -> Simulation {
    let world = Simulation::new(seed);
    for n in 0..how.legs {
        let mut options = DiskOptions::new(DISK);
        options.latency_max = Duration::from_micros(100);
        options.geometry.fua = seed.is_multiple_of(2);
        options.geometry.zero = seed.is_multiple_of(3);
        world.env().put_disk(format!("d{n}"), Image::blank(options));
    }
    world
}

async fn open(env: &Rc<SimEnv>, how: Legs, begin: Begin) -> Result<Stack> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let disks: Vec<Rc<Node>> =
        (0..how.legs).map(|n| crate::sums::scene::disk(env, &format!("d{n}"))).collect();
    let (keep, _) = SimKeep::open(env, "legs").await?;
    let with = Build { keep: Some(keep), begin, ..Build::new("legs", &world, disks.clone()) };
    let kind = crate::testing::kind(how.kind);
    let layer = kind.parse(&how.keys()).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
    let legs = Node::new("legs", kind.name, Rc::clone(&world), layer);
    let integrity = super::how(json!({ "region": "16KiB" }));
    let with = Build { begin, ..Build::new("top", &world, vec![Rc::clone(&legs)]) };
    let (sums, layer) = (integrity.make)(integrity.keys, with).await?;
    let top = Node::new("top", "integrity", world, layer);
    Ok(Stack { env: Rc::clone(env), top, legs, sums, disks, how })
}

impl Stack {
    async fn close(&self) {
        self.top.close().await.expect("closed");
        self.legs.close().await.expect("closed");
    }

    async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.top.submit(Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached)).await
    }

    async fn read(&self, at: Range<u64>) -> Result<Vec<u8>> {
        let buf = Buf::from_vec(vec![0xEE; (at.end - at.start) as usize]);
        self.top.submit(Io::read(at.start, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    async fn raw(&self, leg: usize, at: Range<u64>) -> Vec<u8> {
        let buf = Buf::zeroed((at.end - at.start) as usize);
        self.disks[leg].submit(Io::read(at.start, buf.clone())).await.expect("read");
        buf.to_vec()
    }

    /// All that the legs hold.
    async fn raw_all(&self) -> Vec<Vec<u8>> {
        let size = self.legs.info()["size"].as_u64().expect("a number");
        let mut all = Vec::new();
        for leg in 0..self.disks.len() {
            all.push(self.raw(leg, 0..size).await);
        }
        all
    }

    /// Flips a bit of a leg on its disk.
    async fn flip(&self, leg: usize, at: u64) {
        let start = at / 512 * 512;
        let mut bytes = self.raw(leg, start..start + 512).await;
        bytes[(at % 512) as usize] ^= 0x10;
        let write = Io::write(start, Buf::from_vec(bytes), Durability::Fua);
        self.disks[leg].submit(write).await.expect("written");
    }

    /// Flips a bit of block `block`: in its own leg, and in as many that follow as it takes to be `wrong`.
    async fn spoil(&self, block: u64, first: usize, wrong: usize) {
        let (leg, at) = self.how.place(self.sums.below(0), block);
        for more in 0..wrong {
            self.flip((leg + first + more) % self.how.legs, at + 700 + 1000 * more as u64).await;
        }
    }

    async fn command(&self, node: &Rc<Node>, name: &str, args: Value) {
        node.control(Command { name: name.into(), args }).await.expect("done");
    }

    async fn rested(&self) {
        for _ in 0..6000 {
            if self.top.jobs().is_empty() && self.legs.jobs().is_empty() {
                return;
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        panic!("a job does not end: {:#}", self.legs.info());
    }

    fn count(&self, what: &str) -> u64 {
        self.top.info()[what].as_u64().expect("a number")
    }
}

/// Runs `test` over each kind of legs, filled, with nothing in doubt.
fn each<F: Future<Output = ()> + 'static>(of: &[Legs], test: impl Fn(Stack, Vec<u8>) -> F + Copy + 'static) {
    for how in of.iter().copied() {
        let world = world(3, how);
        let env = world.env();
        let run = async move {
            let (stack, bytes) = filled(&env, how).await;
            test(stack, bytes).await
        };
        world.run(run).unwrap_or_else(|hang| panic!("{how:?}: {hang}"));
    }
}

async fn filled(env: &Rc<SimEnv>, how: Legs) -> (Stack, Vec<u8>) {
    let stack = open(env, how, Begin::Format).await.expect("made");
    let bytes = pattern(USED as usize);
    stack.write(0, &bytes).await.expect("written");
    stack.close().await;
    // All is settled then.
    (open(env, how, Begin::Open).await.expect("opened"), bytes)
}

fn is_corrupt(error: &Error, at: Range<u64>) {
    assert_eq!((error.kind(), error.device(), error.range()), (ErrorKind::Corrupt, Some("top"), Some(&at)));
}

#[test]
pub fn a_read_heals_what_is_wrong_on_any_leg() {
    each(&ALL, |stack, bytes| async move {
        let (before, how) = (stack.raw_all().await, stack.how);
        for wrong in 1..=how.survives {
            // The block itself is wrong, and others of its row.
            stack.spoil(3, 0, wrong).await;
            stack.spoil(15, 0, wrong).await;
            // A mirror asks the leg that has least to do: all of them, if many read at once.
            for at in [12_800, 61_952] {
                for read in join_all((0..8 * how.legs).map(|_| stack.read(at..at + 512))).await {
                    assert!(read.expect("read") == bytes[at as usize..][..512]);
                }
            }
            assert!(stack.read(0..USED).await.expect("read") == bytes, "{how:?}, {wrong} wrong");
            assert!(stack.raw_all().await == before, "{how:?}, {wrong} wrong");
            assert_eq!(stack.count("corrupt"), 2 * wrong as u64, "{how:?}");
            assert_eq!(stack.count("healed"), 2 * wrong as u64, "{how:?}");
            assert_eq!(stack.top.info()["healed_at"], json!([12_288, 61_440]));
        }
        let found = stack.legs.info()["found"].clone();
        let all: u64 = (1..=how.survives as u64).map(|wrong| 2 * wrong).sum();
        assert_eq!((&found["healed"], &found["different"]), (&json!(all), &json!(0)), "{how:?}: {found:#}");
        stack.close().await;
    });
}

#[test]
fn a_write_of_a_part_heals_the_rest() {
    each(&ALL, |stack, mut bytes| async move {
        for block in 0..8 {
            stack.spoil(block, 0, stack.how.survives).await;
            let at = block as usize * 4096 + 1024;
            stack.write(at as u64, &[7; 1536]).await.unwrap_or_else(|e| panic!("{:?}: {e}", stack.how));
            bytes[at..at + 1536].fill(7);
        }
        for _ in 0..stack.how.legs {
            assert!(stack.read(0..USED).await.expect("read") == bytes, "{:?}", stack.how);
        }
        stack.close().await;
    });
}

#[test]
fn scrub_looks_at_all_copies() {
    each(&ALL, |stack, bytes| async move {
        let (before, how) = (stack.raw_all().await, stack.how);
        // A parity does not say of itself that it is wrong: the block itself is.
        let legs = if how.kind == "mirror" { how.legs } else { 1 };
        for first in 0..legs {
            stack.spoil(1 + 4 * first as u64, first, how.survives).await;
        }
        stack.command(&stack.top, "scrub", json!({})).await;
        stack.rested().await;
        assert!(stack.raw_all().await == before, "{how:?}");
        assert_eq!(stack.count("corrupt"), legs as u64, "{how:?}");
        assert_eq!(stack.count("healed"), legs as u64, "{how:?}");
        let places: Vec<u64> = (0..legs as u64).map(|first| (1 + 4 * first) * 4096).collect();
        let mut healed: Vec<u64> =
            serde_json::from_value(stack.top.info()["healed_at"].clone()).expect("places");
        healed.sort_unstable();
        assert_eq!(healed, places);
        stack.command(&stack.top, "scrub", json!({})).await;
        stack.command(&stack.legs, "scrub", json!({})).await;
        stack.rested().await;
        assert_eq!((stack.count("healed"), stack.count("passes")), (legs as u64, 2));
        assert_eq!(stack.legs.info()["found"]["different"], json!(0), "{how:?}");
        assert!(stack.read(0..USED).await.expect("read") == bytes);
        stack.close().await;
    });
}

#[test]
fn what_nobody_has_is_an_error_and_nothing_is_written_over() {
    each(&ALL, |stack, bytes| async move {
        let how = stack.how;
        stack.spoil(3, 0, how.survives + 1).await;
        let before = stack.raw_all().await;
        is_corrupt(&stack.read(12_288..16_384).await.expect_err("nobody has it"), 12_288..16_384);
        is_corrupt(&stack.write(12_800, &[1; 512]).await.expect_err("nobody has it"), 12_288..16_384);
        stack.command(&stack.top, "scrub", json!({})).await;
        stack.rested().await;
        assert!(stack.raw_all().await == before, "{how:?}");
        assert_eq!(stack.count("healed"), 0);
        assert!(stack.read(0..8192).await.expect("read") == bytes[..8192]);
        assert!(stack.read(65_536..USED).await.expect("read") == bytes[65_536..]);
        let legs = stack.legs.info()["legs"].clone();
        assert!(legs.as_array().expect("legs").iter().all(|leg| leg["is"] == "in sync"), "{how:?}: {legs}");
        stack.close().await;
    });
}

/// With a leg less: as long as there is one more copy, or one more parity, than that takes.
#[test]
fn with_a_leg_less_what_is_left_heals() {
    each(&ALL, |stack, bytes| async move {
        let how = stack.how;
        for gone in 0..how.legs {
            stack.command(&stack.legs, "fail", json!({ "leg": format!("d{gone}") })).await;
            let before = stack.raw_all().await;
            for block in ROWS {
                let (leg, at) = how.place(stack.sums.below(0), block);
                let leg = if leg == gone { (leg + 1) % how.legs } else { leg };
                stack.flip(leg, at + 5).await;
            }
            let spoilt = stack.raw_all().await;
            let read = stack.read(0..USED).await;
            match how.survives {
                // The flipped byte may have been the parity.
                1 => {
                    assert_eq!(read.expect_err("there was one copy").kind(), ErrorKind::Corrupt, "{how:?}");
                    assert!(stack.raw_all().await == spoilt, "{how:?}");
                    for (leg, bytes) in before.iter().enumerate() {
                        let write = Io::write(0, Buf::from_vec(bytes.clone()), Durability::Fua);
                        stack.disks[leg].submit(write).await.expect("written");
                    }
                }
                _ => {
                    assert!(read.expect("read") == bytes, "{how:?} without {gone}");
                    stack.command(&stack.top, "scrub", json!({})).await;
                    stack.rested().await;
                    assert!(stack.raw_all().await == before, "{how:?} without {gone}");
                }
            }
            stack.command(&stack.legs, "rejoin", json!({ "leg": format!("d{gone}") })).await;
            stack.rested().await;
        }
        assert!(stack.read(0..USED).await.expect("read") == bytes);
        stack.close().await;
    });
}

/// The power fails while something is healed: it can be healed afterwards.
#[test]
fn a_crash_while_it_heals_makes_nothing_worse() {
    for how in ALL {
        let world = world(5, how);
        let env = world.env();
        let made = world.run(async move {
            let (stack, bytes) = filled(&env, how).await;
            for block in ROWS {
                stack.spoil(block, 0, how.survives).await;
            }
            let camera = Camera::start(&env, 5, 1);
            stack.command(&stack.top, "scrub", json!({})).await;
            stack.rested().await;
            stack.close().await;
            (camera.end(&env), bytes)
        });
        let (images, bytes): (Vec<Images>, Vec<u8>) = made.expect("it ends");
        assert!(images.len() >= ROWS.len(), "{how:?}: only {} writes", images.len());
        for images in images {
            let (world, bytes) = (Simulation::from_images(5, &images), bytes.clone());
            let env = world.env();
            let again = async move {
                let stack = open(&env, how, Begin::Open).await.expect("it opens after a crash");
                assert_eq!(stack.sums.needs_resync_bytes(), 0, "nothing was being written");
                for _ in 0..how.legs {
                    assert!(stack.read(0..USED).await.expect("healed") == bytes, "{how:?}");
                }
                stack.close().await;
            };
            world.run(again).expect("it ends");
        }
    }
}

/// A block is healed while it is written: what is newer stays.
#[test]
fn a_write_that_meets_a_heal_is_not_lost() {
    for (how, seed) in ALL.into_iter().flat_map(|how| (0..8).map(move |seed| (how, seed))) {
        let world = world(seed, how);
        let env = world.env();
        let run = async move {
            let (stack, mut bytes) = filled(&env, how).await;
            for round in 0..6u8 {
                let block = u64::from(round) * 5;
                // Another cell of a parity's row that is wrong, and not found, would count when the parity is computed.
                stack.spoil(block, 0, if how.kind == "parity" { 1 } else { how.survives }).await;
                let at = block * 4096;
                let (reader, writer) = (stack.clone(), stack.clone());
                let read = env.start(async move {
                    reader.env.sleep(Duration::from_micros(reader.env.random() % 300)).await;
                    reader.read(at..at + 4096).await
                });
                let write = env.start(async move {
                    writer.env.sleep(Duration::from_micros(writer.env.random() % 300)).await;
                    writer.write(at, &[round + 1; 4096]).await
                });
                let found = read.ended().await.expect("healed");
                write.ended().await.expect("written");
                let old = &bytes[at as usize..at as usize + 4096];
                assert!(found == old || found == [round + 1; 4096], "{how:?}, seed {seed}: a mixture");
                bytes[at as usize..at as usize + 4096].fill(round + 1);
                for _ in 0..how.legs {
                    assert!(stack.read(0..USED).await.expect("read") == bytes, "{how:?}, seed {seed}");
                }
            }
            stack.command(&stack.legs, "scrub", json!({})).await;
            stack.rested().await;
            assert_eq!(stack.legs.info()["found"]["different"], json!(0), "{how:?}, seed {seed}");
            stack.close().await;
        };
        world.run(run).unwrap_or_else(|hang| panic!("{how:?}, seed {seed}: {hang}"));
    }
}

/// Bits flip on the disks of a mirror while it is worked on; how often something was healed.
fn rots(how: Legs, seed: u64) -> std::result::Result<u64, String> {
    let world = world(seed, how);
    let env = world.env();
    let ended = world.run(async move {
        let stack = open(&env, how, Begin::Format).await.map_err(told("made"))?;
        let history = Rc::new(History::default());
        let size = crate::testing::history::SIZE;
        for block in (0..size / BLOCK).step_by(8) {
            history.write(&env, &stack.top, block..block + 8, 1, false).await.map_err(told("filled"))?;
        }
        let start = |n: u64| {
            env.start(work(Rc::clone(&history), Rc::clone(&env), Rc::clone(&stack.top), n, 60, false))
        };
        let workers: Vec<_> = (0..3).map(start).collect();
        let rotting = stack.clone();
        let rot = env.start(async move {
            for _ in 0..60 {
                rotting.env.sleep(Duration::from_micros(rotting.env.random() % 4000)).await;
                let at = rotting.sums.below(rotting.env.random() % (64 << 10));
                let which = rotting.env.random() % how.survives as u64;
                rotting.flip(((at / 4096 + which) % how.legs as u64) as usize, at).await;
            }
        });
        for worker in workers {
            worker.ended().await?;
        }
        rot.ended().await;
        history.read(&env, &stack.top, 0..size / BLOCK, None).await?;
        stack.command(&stack.top, "scrub", json!({})).await;
        stack.rested().await;
        let all = stack.raw_all().await;
        let data = stack.sums.below(0) as usize..stack.sums.below(size) as usize;
        if all.windows(2).any(|pair| pair[0][data.clone()] != pair[1][data.clone()]) {
            return Err("legs differ".into());
        }
        history.read(&env, &stack.top, 0..size / BLOCK, None).await?;
        stack.close().await;
        Ok(stack.count("healed"))
    });
    if let Some(finding) = world.env().take_finding() {
        return Err(finding);
    }
    ended.map_err(|hang| hang.to_string())?
}

#[test]
fn bits_that_flip_under_load_are_healed_and_never_read() {
    for how in [MIRROR, THREE] {
        let healed = |seed| rots(how, seed).unwrap_or_else(|e| panic!("{how:?}, seed {seed}: {e}"));
        let healed: u64 = (0..8).map(healed).sum();
        assert!(healed > 40, "only {healed} times something was healed in {how:?}");
    }
}

/// The question gets through what lies between, and a cipher, and what is healed is what was encrypted.
#[test]
fn it_is_asked_through_what_lies_between() {
    let world = Simulation::new(7);
    for name in ["d0", "d1"] {
        world.env().put_disk(name, Image::blank(DiskOptions::new(6 << 20)));
    }
    world.env().put_file("/key", b"the key");
    let env = world.env();
    let run = async move {
        let outer: Rc<dyn Env> = Rc::clone(&env) as _;
        let disks: Vec<Rc<Node>> = ["d0", "d1"].map(|name| crate::sums::scene::disk(&env, name)).into();
        let mut below = disks.clone();
        let (keep, _) = SimKeep::open(&env, "legs").await.expect("kept");
        let secret =
            json!({ "key-file": "/key", "header-size": "320KiB", "kdf-memory": "32KiB", "sector-size": 512 });
        for (kind, keys) in [
            ("mirror", json!({ "region": "16KiB" })),
            ("crypt", secret),
            ("linear", json!({ "offset": "8KiB" })),
            ("concat", json!({})),
            ("stripe", json!({ "unit": "64KiB" })),
            ("partition", json!({ "partitions": [{ "name": "part", "size": "2MiB" }] })),
            ("view", json!({ "name": "part" })),
            ("fault", json!({})),
            ("delay", json!({})),
        ] {
            let known = crate::testing::kind(kind);
            let with = Build {
                keep: known.traits.keeps.then(|| Rc::clone(&keep) as _),
                begin: Begin::Format,
                ..Build::new(kind, &outer, below)
            };
            let layer =
                known.parse(&keys).unwrap_or_else(|e| panic!("{kind}: {}", e.message)).build(with).await;
            below = vec![Node::new(kind, known.name, Rc::clone(&outer), layer.expect("made"))];
        }
        let prints = crate::fingerprint::tests::how(json!({ "hash": "md5", "region": "16KiB" }));
        let with = Build { begin: Begin::Format, ..Build::new("prints", &outer, below) };
        let (prints, layer) = (prints.make)(prints.keys, with).await.expect("made");
        let below = Node::new("prints", "fingerprint", Rc::clone(&outer), layer);
        let integrity = super::how(json!({ "region": "16KiB" }));
        let with = Build { begin: Begin::Format, ..Build::new("top", &outer, vec![below]) };
        let (sums, layer) = (integrity.make)(integrity.keys, with).await.expect("made");
        let top = Node::new("top", "integrity", outer, layer);
        let bytes = pattern(64 << 10);
        top.submit(Io::write(0, Buf::from_vec(bytes.clone()), Durability::Fua)).await.expect("written");
        // A partition begins after a MiB, and a cipher after its header.
        let start = prints.below(sums.below(0)) + (1 << 20) + (8 << 10) + (320 << 10);
        let raw = async |leg: usize| {
            let buf = Buf::zeroed(64 << 10);
            disks[leg].submit(Io::read(start, buf.clone())).await.expect("read");
            buf.to_vec()
        };
        let right = raw(0).await;
        assert!(right == raw(1).await && right != bytes);
        let wrong = Buf::from_vec(right.iter().map(|byte| byte ^ 0x40).collect());
        disks[1].submit(Io::write(start, wrong, Durability::Fua)).await.expect("written");
        top.control(Command { name: "scrub".into(), args: json!({}) }).await.expect("begun");
        while !top.jobs().is_empty() {
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(top.info()["healed"], json!(16));
        assert!(raw(1).await == right);
        let buf = Buf::zeroed(64 << 10);
        top.submit(Io::read(0, buf.clone())).await.expect("read");
        assert!(buf.to_vec() == bytes);
    };
    world.run(run).expect("it ends");
}

/// The canary: legs that do not ask what is right.
#[test]
fn a_wrong_copy_that_heals_is_found_out() {
    FLAW.set(Some("a wrong copy heals"));
    let found = std::panic::catch_unwind(a_read_heals_what_is_wrong_on_any_leg);
    FLAW.set(None);
    assert!(found.is_err());
}
