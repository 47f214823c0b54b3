//! A log beside homes: the gauntlet, alone and while blocks go home all the time; the exact order of reads and writes;
//! what is kept on disk.

use super::super::Keys;
use super::super::format::*;
use crate::testing::*;
use lamina_block::{Begin, Build, Over};
use lamina_sim::{Check, SimEnv, SimKeep};

const GOLDEN: &str = include_str!("../../../tests/golden/sequentialize-2.txt");
/// Bytes of a disk: half of it are some fourteen segments of eight slots.
const DISK: u64 = 960 << 10;

pub fn subject() -> Subject {
    let keys = json!({ "mode": "home", "reserve": 50 });
    Subject::layer(&Kind::of::<Keys>(), keys, 1).disks_of(DISK).seeds(10)
}

/// As the other one, and blocks go home all the time: more are written than there is space in the region.
pub fn crowded() -> Subject {
    super::crowded_with("crowded", json!({ "mode": "home", "reserve": 50, "small": "8KiB" })).disks_of(DISK)
}

lamina_sim::gauntlet!(alone, subject());

/// A checkpoint was half written when the power failed, and the next one, which is the same but for its first sector,
/// as well: the second half of that one made the first one whole, and the page that it names had been written over.
#[test]
fn a_torn_checkpoint_does_not_come_back() {
    lamina_sim::run(&subject(), Check::Faults, 0x47, lamina_sim::Run::Full).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn a_region_that_goes_round() {
    for check in [Check::Model, Check::Crash] {
        lamina_sim::test(&crowded(), check, &lamina_sim::replay!());
    }
}

#[test]
fn a_region_that_goes_round_over_several_deaths() {
    lamina_sim::test(&crowded(), Check::Deaths, &lamina_sim::replay!());
}

pub async fn build(world: &World, disk: &Rc<Node>, begin: Begin) -> Build {
    build_on(&world.sim, disk, begin).await
}

pub async fn build_on(env: &Rc<SimEnv>, disk: &Rc<Node>, begin: Begin) -> Build {
    let (keep, _) = SimKeep::open(env, "log").await.expect("a record");
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    Build { keep: Some(keep), begin, ..Build::new("log", &world, vec![Rc::clone(disk)]) }
}

pub async fn made(
    world: &World,
    disk: &Rc<Node>,
    keys: Value,
    begin: Begin,
) -> std::result::Result<Rc<Node>, String> {
    let keys = Kind::of::<Keys>().parse(&keys).map_err(|e| e.message)?;
    let over = Over { kinds: &[], deeper: &[], metadata: false, persistent: true };
    keys.check(&over).map_err(|e| e.message().to_owned())?;
    let layer = keys.build(build(world, disk, begin).await).await.map_err(|e| e.message().to_owned())?;
    Ok(Node::new("log", "sequentialize", Rc::clone(&world.env), layer))
}

pub async fn put(node: &Rc<Node>, at: u64, bytes: &[u8]) {
    node.submit(Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached)).await.expect("written");
}

pub async fn get(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let into = Buf::from_vec(vec![0xEE; len]);
    node.submit(Io::read(at, into.clone())).await.expect("read");
    into.to_vec()
}

fn figure(node: &Rc<Node>, name: &str) -> u64 {
    node.info()[name].as_u64().expect("a number")
}

#[test]
fn sectors_are_exact_whatever_is_where() {
    simulated(|world| async move {
        let disk = world.memory("4MiB").await;
        let mut wanted = pattern(1 << 20);
        put(&disk, 0, &wanted).await;
        let log =
            made(&world, &disk, json!({ "mode": "home", "reserve": 20 }), Begin::Adopt).await.expect("made");
        let mut random = xorshift(5);
        for turn in 0..400 {
            let (at, len) = (random() % 600 * 512, (1 + random() % 64) * 512);
            let part = at as usize..(at + len) as usize;
            match random() % 8 {
                0 => {
                    log.submit(Io::zero(at..at + len, Zero::default())).await.expect("zeroed");
                    wanted[part].fill(0);
                }
                1..4 => {
                    let small = part.start..part.start + len.min(4096) as usize;
                    wanted[small.clone()].fill(turn as u8);
                    put(&log, at, &wanted[small]).await;
                }
                4 => {
                    wanted[part.clone()].fill(turn as u8);
                    put(&log, at, &wanted[part]).await;
                }
                _ => assert_eq!(get(&log, at, len as usize).await, wanted[part], "turn {turn}"),
            }
        }
        assert_eq!(get(&log, 0, wanted.len()).await, wanted);
        log.close().await.expect("closed");
        let log =
            made(&world, &disk, json!({ "mode": "home", "reserve": 20 }), Begin::Open).await.expect("opened");
        assert_eq!(get(&log, 0, wanted.len()).await, wanted, "opened again");
    });
}

#[test]
fn large_writes_and_streams_go_home() {
    simulated(|world| async move {
        let disk = world.memory("16MiB").await;
        let log = made(&world, &disk, json!({ "mode": "home" }), Begin::Format).await.expect("made");
        put(&log, 40 << 10, &[1; 4096]).await;
        assert_eq!(get(&disk, 40 << 10, 4096).await, [0; 4096], "it is small");
        put(&log, 44 << 10, &[2; 4096]).await;
        assert_eq!(get(&disk, 44 << 10, 4096).await, [2; 4096], "it goes on with another one");
        put(&log, 32 << 10, &[3; 16 << 10]).await;
        let wanted = [[3; 8 << 10].as_slice(), &[0; 4 << 10], &[3; 4 << 10]].concat();
        assert_eq!(get(&disk, 32 << 10, 16 << 10).await, wanted, "all but what is mapped");
        assert_eq!(get(&log, 32 << 10, 16 << 10).await, [3; 16 << 10]);
        assert_eq!(figure(&log, "direct_bytes"), 4096 + (12 << 10));
    });
}

/// Far more blocks are written than there is space in the region, and no write fails.
#[test]
fn it_never_fills() {
    for (size, reserve) in [("960KiB", 50), ("32MiB", 5)] {
        simulated(move |world| async move {
            let disk = world.memory(size).await;
            let keys = json!({ "mode": "home", "reserve": reserve });
            let log = made(&world, &disk, keys, Begin::Format).await.expect("made");
            let (blocks, mut random) = (log.geometry().size / 4096, xorshift(7));
            let mut values = vec![0; blocks as usize];
            for _ in 0..3 * blocks {
                let block = random() % blocks;
                values[block as usize] = random() as u8;
                put(&log, block * 4096, &[values[block as usize]; 4096]).await;
            }
            for (block, value) in (0..).zip(values) {
                assert_eq!(get(&log, block * 4096, 4096).await, [value; 4096], "block {block}");
            }
            assert!(figure(&log, "homed_bytes") > 0, "{:#}", log.info());
            log.submit(Io::flush()).await.expect("flushed");
        });
    }
}

#[test]
fn what_is_discarded_or_zeroed_does_not_come_back() {
    simulated(|world| async move {
        let disk = world.memory("4MiB").await;
        put(&disk, 0, &[7; 64 << 10]).await;
        let log =
            made(&world, &disk, json!({ "mode": "home", "reserve": 20 }), Begin::Adopt).await.expect("made");
        for block in [2, 5, 9] {
            put(&log, block * 4096, &[8; 4096]).await;
        }
        log.submit(Io::zero(4096..6 * 4096 + 512, Zero::default())).await.expect("zeroed");
        log.submit(Io::discard(8 * 4096..10 * 4096)).await.expect("discarded");
        assert_eq!(figure(&log, "live_bytes"), 0);
        let wanted = [[7; 4096].as_slice(), &[0; 5 * 4096 + 512], &[7; 4096 + 3584]].concat();
        assert_eq!(get(&log, 0, 8 * 4096).await, wanted);
        assert_eq!(get(&log, 9 * 4096, 4096).await, [0; 4096], "not what was there before");
        let extents = log.extents(0..16 * 4096).await.expect("extents");
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 16 * 4096);
    });
}

#[test]
fn keys_of_the_other_mode_are_refused() {
    simulated(|world| async move {
        let disk = world.memory("16MiB").await;
        for (keys, says) in [
            (json!({ "mode": "home", "spare": 5 }), "spare: "),
            (json!({ "reserve": 5 }), "reserve: "),
            (json!({ "small": "8KiB" }), "small: "),
            (json!({ "mode": "home", "reserve": 91 }), "reserve: "),
            (json!({ "mode": "home", "reserve": 5, "size": "8MiB" }), "reserve: "),
            (json!({ "mode": "home", "size": "16MiB" }), "reserve"),
            (json!({ "mode": "home", "size": 5000 }), "size: "),
            (json!({ "mode": "tier" }), "unknown variant"),
        ] {
            let refused = made(&world, &disk, keys, Begin::Format).await.err().expect("refused");
            assert!(refused.contains(says), "{refused}");
        }
        made(&world, &disk, json!({}), Begin::Format).await.expect("a log");
        let refused =
            made(&world, &disk, json!({ "mode": "home" }), Begin::Open).await.err().expect("refused");
        assert!(refused.contains("no record of a region"), "{refused}");
        made(&world, &disk, json!({ "mode": "home" }), Begin::Format).await.expect("homes");
        made(&world, &disk, json!({ "mode": "home", "reserve": 50 }), Begin::Open)
            .await
            .expect("it stays where it is");
        let refused = made(&world, &disk, json!({}), Begin::Open).await.err().expect("refused");
        assert!(refused.contains("made with homes"), "{refused}");
        made(&world, &disk, json!({}), Begin::Format).await.expect("a log again");
        made(&world, &disk, json!({}), Begin::Open).await.expect("it is one");
    });
}

const OF: Super = Super {
    segment_slots: 16,
    segments: 20,
    segments_at: 3,
    blocks: 100,
    checkpoint_slots: 1,
    uuid: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF,
    key: 0x0123_4567_89AB_CDEF,
    is_home: true,
    stride: 16,
    class_limit: 0,
};
const SIZE: u64 = (100 + 3 + 20 * 16) * SLOT as u64;

fn head(what: What, from: u32) -> Head {
    let entry = Entry { what, block: 97, count: 3, slot: 0, from, checksum: 0xAAAA };
    let entries = vec![entry];
    Head { segment: 12, serial: 1 << 41, checkpoint: 9, class: 1, at: 4, slots: 1, durable: 3, entries }
}

fn encoded(head: &Head) -> Vec<u8> {
    let mut slot = vec![0xFF; SLOT];
    head.encode_into(&mut slot, OF.key);
    slot
}

#[test]
fn the_format_of_version_2_is_as_it_was() {
    let line = |name: &str, bytes: &[u8]| {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let hex: String = bytes[..end].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{name} {hex}\n")
    };
    let head = head(What::Homed, 40);
    let text = line("super", &OF.encode()) + &line("head", &encoded(&head));
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sequentialize-2.txt");
        std::fs::write(path, &text).expect("written");
    }
    assert_eq!(text, GOLDEN, "the format has changed: see docs/formats/sequentialize.md");
    assert_eq!(Super::decode(&OF.encode(), SIZE), Ok(OF));
    assert_eq!(Super::decode(&OF.encode(), SIZE - 1).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(Head::decode(&encoded(&head), &OF), Some(head));
}

/// With right checksums, and nowhere on the device, or in a log without homes.
#[test]
fn homes_that_cannot_be_are_refused() {
    let log = Super { is_home: false, ..OF };
    assert_eq!(Head::decode(&encoded(&head(What::Homed, 40)), &log), None);
    for from in [0, 2, OF.slots().end - 2] {
        assert_eq!(Head::decode(&encoded(&head(What::Homed, from)), &OF), None, "{from}");
    }
    let mut beyond = head(What::Homed, 40);
    beyond.entries[0].count = 4;
    assert_eq!(Head::decode(&encoded(&beyond), &OF), None, "a page has no home");
}
