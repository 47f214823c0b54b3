//! Devices with legs over `integrity`: bytes that change on their own are never given out, and are made right.

use crate::sums::Sums;
use lamina_kit::flaw::FLAW;

use crate::testing::history::{BLOCK, Checked, History, SIZE, told, work};
use crate::testing::*;
use lamina_block::{Begin, Build};
use lamina_sim::{DiskOptions, Image, SimEnv, SimKeep, Simulation};
use std::time::Duration;

/// Bytes of a disk.
const DISK: u64 = 512 << 10;
/// Bytes that are right or wrong together.
const WHOLE: u64 = 4096;

/// A device with legs that know which of their blocks are wrong.
#[derive(Clone, Copy, Debug)]
struct How {
    kind: &'static str,
    legs: usize,
    /// Of so many legs a row may be wrong.
    survives: usize,
}

const MIRROR: How = How { kind: "mirror", legs: 2, survives: 1 };
const THREE: How = How { kind: "mirror", legs: 3, survives: 2 };
const PARITY: How = How { kind: "parity", legs: 3, survives: 1 };
const TWO_PARITIES: How = How { kind: "parity", legs: 5, survives: 2 };
const ALL: [How; 4] = [MIRROR, THREE, PARITY, TWO_PARITIES];

impl How {
    fn keys(self) -> Value {
        match self.kind {
            "mirror" => json!({ "region": "16KiB", "leg-timeout": "1h" }),
            _ => json!({ "region": "16KiB", "unit": "8KiB", "leg-timeout": "1h", "parity": self.survives }),
        }
    }
}

#[derive(Clone)]
struct Stack {
    env: Rc<SimEnv>,
    top: Rc<Node>,
    legs: Vec<Rc<Node>>,
    sums: Vec<Rc<Sums>>,
    disks: Vec<Rc<Node>>,
}

fn world(seed: u64, how: How) -> Simulation {
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

async fn open(env: &Rc<SimEnv>, how: How, begin: Begin) -> Result<Stack> {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let (mut legs, mut sums, mut disks) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..how.legs {
        let name = format!("d{n}");
        let disk = env.disk(&name).expect("it was put there");
        let disk = Node::new(&name, "simulated", Rc::clone(&world), disk);
        let name = format!("leg{n}");
        let with = Build { begin, ..Build::new(&name, &world, vec![Rc::clone(&disk)]) };
        let integrity = crate::integrity::tests::how(json!({ "region": "16KiB" }));
        let (of, layer) = (integrity.make)(integrity.keys, with).await?;
        legs.push(Node::new(&name, "integrity", Rc::clone(&world), layer));
        sums.push(of);
        disks.push(disk);
    }
    let (keep, _) = SimKeep::open(env, "top").await?;
    let with = Build { keep: Some(keep), begin, ..Build::new("top", &world, legs.clone()) };
    let kind = crate::testing::kind(how.kind);
    let layer = kind.parse(&how.keys()).unwrap_or_else(|e| panic!("{}", e.message)).build(with).await?;
    let top = Node::new("top", kind.name, world, layer);
    Ok(Stack { env: Rc::clone(env), top, legs, sums, disks })
}

impl Stack {
    async fn close(&self) -> Result<()> {
        self.top.close().await?;
        for leg in &self.legs {
            leg.close().await?;
        }
        Ok(())
    }

    /// Flips a bit of leg `leg` on its disk.
    async fn flip(&self, leg: usize, at: u64) {
        let (start, buf) = (self.sums[leg].below(at) / 512 * 512, Buf::zeroed(512));
        self.disks[leg].submit(Io::read(start, buf.clone())).await.expect("read");
        let mut byte = [0];
        buf.read((at % 512) as usize, &mut byte);
        buf.write((at % 512) as usize, &[byte[0] ^ 0x10]);
        self.disks[leg].submit(Io::write(start, buf, Durability::Fua)).await.expect("written");
    }

    async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.top.submit(Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached)).await
    }

    async fn read(&self, at: Range<u64>) -> Result<Vec<u8>> {
        let buf = Buf::from_vec(vec![0xEE; (at.end - at.start) as usize]);
        self.top.submit(Io::read(at.start, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    /// All of it, written.
    async fn fill(&self) -> Vec<u8> {
        let bytes = pattern(self.top.geometry().size as usize);
        self.write(0, &bytes).await.expect("written");
        bytes
    }

    async fn command(&self, name: &str, args: Value) {
        self.top.control(Command { name: name.into(), args }).await.expect("done");
    }

    async fn rested(&self) {
        for _ in 0..6000 {
            if self.top.jobs().is_empty() {
                return;
            }
            self.env.sleep(Duration::from_millis(100)).await;
        }
        panic!("a job does not end: {:#}", self.top.info());
    }

    async fn scrub(&self) {
        self.command("scrub", json!({})).await;
        self.rested().await;
    }

    fn found(&self, what: &str) -> u64 {
        self.top.info()["found"][what].as_u64().expect("a number")
    }

    /// All legs are in sync, no block of them is wrong, and nothing was lost or guessed.
    async fn sound(&self) -> Checked {
        for leg in self.top.info()["legs"].as_array().expect("legs") {
            if leg["is"] != "in sync" {
                return Err(format!("a leg is out: {leg}"));
            }
        }
        if (self.found("lost"), self.found("different")) != (0, 0) {
            return Err(format!("{:#}", self.top.info()));
        }
        for leg in &self.legs {
            let used = self.top.info()["size"].as_u64().expect("a number");
            let buf = Buf::zeroed(used as usize);
            leg.submit(Io::read(0, buf)).await.map_err(told("a leg is still wrong"))?;
        }
        Ok(())
    }
}

/// Runs `test` over each kind of legs.
fn each<F: Future<Output = ()> + 'static>(of: &[How], test: impl Fn(Stack, How) -> F + Copy + 'static) {
    for how in of.iter().copied() {
        let world = world(3, how);
        let env = world.env();
        let run = async move { test(open(&env, how, Begin::Format).await.expect("made"), how).await };
        world.run(run).unwrap_or_else(|hang| panic!("{how:?}: {hang}"));
    }
}

#[test]
fn a_read_of_a_part_heals_the_whole_block() {
    each(&ALL, |stack, how| async move {
        let bytes = stack.fill().await;
        for leg in 0..how.legs {
            stack.flip(leg, 16384 + 700).await;
            for at in (0..stack.top.geometry().size).step_by(512) {
                let right = &bytes[at as usize..at as usize + 512];
                assert!(stack.read(at..at + 512).await.expect("read") == right, "{how:?} at {at}");
            }
            // A parity is not read.
            stack.scrub().await;
            assert_eq!(stack.found("healed"), leg as u64 + 1, "{how:?}");
        }
        let places = stack.top.info()["found"]["places"].clone();
        assert_eq!((&places[0]["leg"], &places[0]["start"]), (&json!("leg0"), &json!(16384)));
        stack.sound().await.expect("sound");
        stack.close().await.expect("closed");
    });
}

#[test]
fn a_write_of_a_part_heals_the_whole_block() {
    each(&ALL, |stack, how| async move {
        let mut bytes = stack.fill().await;
        for leg in 0..how.legs {
            stack.flip(leg, 16384 + 700).await;
            for at in (0..stack.top.geometry().size as usize).step_by(8192) {
                let (at, new) = (at + 1024, vec![leg as u8 + 100; 1536]);
                stack.write(at as u64, &new).await.unwrap_or_else(|e| panic!("{how:?} at {at}: {e}"));
                bytes[at..at + 1536].copy_from_slice(&new);
            }
            stack.scrub().await;
            assert_eq!(stack.found("healed"), leg as u64 + 1, "{how:?}");
            stack.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        }
        assert!(stack.read(0..bytes.len() as u64).await.expect("read") == bytes);
        stack.close().await.expect("closed");
    });
}

/// The findings of a scrub are told apart from earlier ones.
#[test]
fn each_scrub_tells_what_it_found() {
    each(&ALL, |stack, how| async move {
        stack.fill().await;
        assert_eq!(stack.top.info()["found"]["last_scrub"], json!(null));
        for (total, leg) in (1..).zip(0..how.legs) {
            stack.flip(leg, 16384 + 700).await;
            stack.scrub().await;
            let found = stack.top.info()["found"].clone();
            assert_eq!(found["last_scrub"], json!({ "healed": 1, "different": 0, "lost": 0 }), "{how:?}");
            assert_eq!(found["healed"], json!(total), "{how:?}");
        }
        stack.scrub().await;
        let found = stack.top.info()["found"].clone();
        assert_eq!(found["last_scrub"]["healed"], json!(0), "{how:?}");
        assert_eq!(found["healed"], json!(how.legs), "{how:?}");
        stack.close().await.expect("closed");
    });
}

/// A zeroing that begins and ends within blocks that are wrong: what lies between them is zeroed as well.
#[test]
fn a_zeroing_with_wrong_ends_is_done() {
    each(&ALL, |stack, how| async move {
        let mut bytes = stack.fill().await;
        for leg in 0..how.legs {
            for at in
                (0..65536).step_by(WHOLE as usize).filter(|at| at / 4096 % how.legs as u64 == leg as u64)
            {
                stack.flip(leg, at + 9).await;
            }
        }
        stack.top.submit(Io::zero(1024..70_144, Zero::default())).await.expect("zeroed");
        bytes[1024..70_144].fill(0);
        assert!(stack.read(0..bytes.len() as u64).await.expect("read") == bytes, "{how:?}");
        stack.scrub().await;
        stack.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        stack.close().await.expect("closed");
    });
}

/// Different legs are wrong in different blocks, so that no range of any length can be had from any of them.
#[test]
fn every_leg_is_wrong_somewhere_and_scrub_heals_all() {
    each(&ALL, |stack, how| async move {
        let bytes = stack.fill().await;
        let used = stack.top.info()["size"].as_u64().expect("a number");
        for row in 0..used / WHOLE {
            stack.flip((row % how.legs as u64) as usize, row * WHOLE + 77).await;
        }
        assert!(stack.read(0..bytes.len() as u64).await.expect("read") == bytes, "{how:?}");
        stack.scrub().await;
        stack.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        assert_eq!(stack.found("healed"), used / WHOLE, "{how:?}");
        stack.close().await.expect("closed");
    });
}

/// A block that is wrong on all legs cannot be completed, and no leg is put out for that.
#[test]
fn what_nobody_has_is_an_error_there_and_nowhere_else() {
    each(&[MIRROR, THREE, PARITY], |stack, how| async move {
        let bytes = stack.fill().await;
        for leg in 0..how.legs {
            stack.flip(leg, 100).await;
        }
        assert_eq!(stack.read(0..512).await.expect_err("wrong").kind(), ErrorKind::Corrupt);
        assert_eq!(
            stack.write(1024, &[1; 512]).await.expect_err("nobody has the rest").kind(),
            ErrorKind::Corrupt
        );
        let legs = stack.top.info()["legs"].clone();
        assert!(legs.as_array().expect("legs").iter().all(|leg| leg["is"] == "in sync"), "{how:?}: {legs}");
        assert!(stack.read(65536..81920).await.expect("read") == bytes[65536..81920], "{how:?}");
        // Written as a whole it is right again: in a mirror all copies, in a parity a whole stripe.
        stack.write(0, &bytes[..16384]).await.expect("written");
        assert!(stack.read(0..16384).await.expect("read") == bytes[..16384], "{how:?}");
        stack.env.sleep(Duration::from_secs(5)).await;
        stack.rested().await;
        stack.scrub().await;
        stack.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        stack.close().await.expect("closed");
    });
}

/// A leg that has to get everything gets it though the others are wrong, each somewhere else.
#[test]
fn a_rebuild_gets_each_block_from_who_has_it() {
    each(&[THREE, TWO_PARITIES], |stack, how| async move {
        let bytes = stack.fill().await;
        stack.command("fail", json!({ "leg": "leg0" })).await;
        stack.write(0, &bytes).await.expect("written");
        let used = stack.top.info()["size"].as_u64().expect("a number");
        for row in 0..used / WHOLE {
            stack.flip(1 + (row % (how.legs as u64 - 1)) as usize, row * WHOLE + 77).await;
        }
        stack.command("rejoin", json!({ "leg": "leg0" })).await;
        stack.rested().await;
        stack.scrub().await;
        stack.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        assert!(stack.read(0..bytes.len() as u64).await.expect("read") == bytes, "{how:?}");
        stack.close().await.expect("closed");
    });
}

/// The bytes after those of the device, the intent and the journal, may be wrong too.
#[test]
fn it_opens_though_what_it_keeps_on_a_leg_is_wrong() {
    each(&ALL, |stack, how| async move {
        let bytes = stack.fill().await;
        stack.top.close().await.expect("closed");
        let size = stack.legs[0].geometry().size;
        let used = stack.top.info()["size"].as_u64().expect("a number");
        for at in (used..size - 512).step_by(WHOLE as usize) {
            stack.flip(0, at + 5).await;
        }
        for leg in &stack.legs {
            leg.close().await.expect("closed");
        }
        let again = open(&stack.env, how, Begin::Open).await.expect("opened");
        assert!(again.read(0..bytes.len() as u64).await.expect("read") == bytes, "{how:?}");
        again.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
        again.close().await.expect("closed");
        // Now without another leg.
        if how.survives == 1 {
            let again = open(&stack.env, how, Begin::Open).await.expect("opened");
            again.command("fail", json!({ "leg": "leg1" })).await;
            again.write(512, &bytes[512..4096]).await.expect("written");
            again.top.close().await.expect("closed");
            for at in (used..size - 512).step_by(WHOLE as usize) {
                again.flip(0, at + 5).await;
            }
            for leg in &again.legs {
                leg.close().await.expect("closed");
            }
            let again = open(&stack.env, how, Begin::Open).await.expect("opened");
            again.command("rejoin", json!({ "leg": "leg1" })).await;
            again.rested().await;
            assert!(again.read(0..bytes.len() as u64).await.expect("read") == bytes, "{how:?}");
            again.scrub().await;
            again.sound().await.unwrap_or_else(|e| panic!("{how:?}: {e}"));
            again.close().await.expect("closed");
        }
    });
}

/// Bits flip on the disks while it is worked on, at most as many legs of a row as it survives; how often
/// something was healed while it was worked on.
fn rots(how: How, seed: u64) -> std::result::Result<u64, String> {
    let world = world(seed, how);
    let env = world.env();
    let ended = world.run(async move {
        let stack = open(&env, how, Begin::Format).await.map_err(told("made"))?;
        let history = Rc::new(History::default());
        for block in (0..SIZE / BLOCK).step_by(8) {
            history.write(&env, &stack.top, block..block + 8, 1, false).await.map_err(told("filled"))?;
        }
        let start = |n: u64| {
            env.start(work(Rc::clone(&history), Rc::clone(&env), Rc::clone(&stack.top), n, 60, false))
        };
        let workers: Vec<_> = (0..3).map(start).collect();
        let (rotting, size) = (stack.clone(), stack.legs[0].geometry().size);
        let rot = env.start(async move {
            for _ in 0..60 {
                rotting.env.sleep(Duration::from_micros(rotting.env.random() % 4000)).await;
                // Most of them where it is worked on.
                let draw = rotting.env.random();
                let at = (draw >> 8) % if draw.is_multiple_of(4) { size } else { 64 << 10 };
                // Which legs of a row may be wrong.
                let which = rotting.env.random() % how.survives as u64;
                rotting.flip(((at / WHOLE + which) % how.legs as u64) as usize, at).await;
            }
        });
        for worker in workers {
            worker.ended().await?;
        }
        rot.ended().await;
        let healed = stack.found("healed");
        history.read(&env, &stack.top, 0..SIZE / BLOCK, None).await?;
        stack.scrub().await;
        stack.sound().await?;
        history.read(&env, &stack.top, 0..SIZE / BLOCK, None).await?;
        stack.close().await.map_err(told("close"))?;
        Ok(healed)
    });
    if let Some(finding) = world.env().take_finding() {
        return Err(finding);
    }
    ended.map_err(|hang| hang.to_string())?
}

#[test]
fn bits_that_flip_are_healed_and_never_read() {
    for how in ALL {
        let healed = |seed| rots(how, seed).unwrap_or_else(|e| panic!("{how:?}, seed {seed}: {e}"));
        let healed: u64 = (0..12).map(healed).sum();
        assert!(healed > 50, "only {healed} times something was healed in {how:?}");
    }
}

/// The canaries of that: a layer below that believes what it reads, and bytes that go to another leg.
#[test]
fn canaries() {
    for (how, flaw) in ALL
        .into_iter()
        .flat_map(|how| ["what differs is believed", "wrong leg healed"].map(|flaw| (how, flaw)))
    {
        FLAW.set(Some(flaw));
        let noticed =
            (0..4).any(|seed| std::panic::catch_unwind(|| rots(how, seed)).map_or(true, |ran| ran.is_err()));
        FLAW.set(None);
        assert!(noticed, "{flaw} of {how:?} is not noticed");
    }
}
