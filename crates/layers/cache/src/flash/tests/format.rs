//! What version 1 of the format says, byte for byte: `tests/golden/flash-1.txt` is a whole flash, slot by slot, and
//! `flash-1-lost.txt` another one, with blocks that cannot be read. Of version 2: `flash-2.txt`. And what is refused.

use super::super::Cache;
use super::super::format::*;
use super::super::log::How;
use super::super::segments::SMALL;
use super::super::volume::Volume;
use super::latent::get;
use crate::testing::*;
use lamina_block::{Build, Error, Keep, Op, Pending};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const GOLDEN: &str = include_str!("../../../tests/golden/flash-1.txt");
const GOLDEN_PARTS: &str = include_str!("../../../tests/golden/flash-2.txt");
const GOLDEN_LOST: &str = include_str!("../../../tests/golden/flash-1-lost.txt");

const SHAPE: Super = Super {
    version: 1,
    segment_slots: 16,
    segments: 20,
    uuid: 0x0011_2233_4455_6677_8899_AABB_CCDD_EEFF,
    key: 0x0123_4567_89AB_CDEF,
};
const KEY: u64 = SHAPE.key;
const SIZE: u64 = (SEGMENTS_AT as u64 + 20 * 16) * SLOT as u64;
const STORE: u64 = 64 * SLOT as u64;
/// Two volumes.
const ONE: u128 = 0xA1;
const TWO: u128 = 0xB2;

/// Puts the right checksum where it belongs.
fn sealed(mut bytes: Vec<u8>, key: u64) -> Vec<u8> {
    bytes[8..16].fill(0);
    let sum = xxh3_64_with_seed(&bytes, key);
    bytes[8..16].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// `bytes` with `value` at `at`, and the right checksum.
fn with(bytes: &[u8], at: usize, value: &[u8], key: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + value.len()].copy_from_slice(value);
    sealed(bytes, key)
}

/// Every copy of `bytes` in which one bit is another.
fn flipped(bytes: &[u8]) -> impl Iterator<Item = (usize, Vec<u8>)> {
    (0..bytes.len() * 8).map(|bit| {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        (bit, bad)
    })
}

fn state() -> State {
    let volume = |n: u64| VolumeState {
        uuid: u128::from(n) << 100 | 7,
        checkpoint: n + 1,
        serial: n + 2,
        size: n + 3,
        generation: n as u32 + 5,
        valid: n as u32 + 4,
    };
    State {
        sequence: 9,
        tails: [3, 4],
        next_segment: 11,
        volumes: (1..=VOLUMES_MAX as u64).map(volume).collect(),
    }
}

fn entries() -> Vec<Entry> {
    let written = Entry {
        volume: 119,
        what: What::Written,
        generation: 7,
        serial: 1 << 40,
        block: (1 << 40) - 4,
        count: 3,
        slot: 5,
        checksum: 0xFEDC_BA98_7654_3210,
        absent: 0,
    };
    let part = Entry { block: 9, count: 1, slot: 7, absent: 0x7F, ..written };
    let clean = Entry { what: What::Clean, volume: 0, block: 0, count: 1, slot: 8, ..written };
    let dropped = Entry { what: What::Dropped, count: u32::MAX, block: 1, slot: 0, ..written };
    let lost = Entry { what: What::Lost, block: 7, count: 1, slot: 6, ..written };
    vec![written, clean, dropped, lost, part]
}

fn head() -> Head {
    Head { segment: 12, log: 1, at: 4, slots: 5, durable: 3, entries: entries() }
}

fn summary() -> Summary {
    Summary { segment: 12, log: 1, entries: entries() }
}

fn encoded(head: &Head, key: u64) -> Vec<u8> {
    let mut slot = vec![0xff; SLOT];
    head.encode_into(&mut slot, key);
    slot
}

#[test]
fn all_fields_are_kept() {
    assert_eq!(Super::decode(&SHAPE.encode(), SIZE).expect("a superblock"), SHAPE);
    assert_eq!(State::decode(&state().encode(KEY), KEY), Some(state()));
    assert_eq!(State::decode(&State::default().encode(KEY), KEY), Some(State::default()));
    assert_eq!(Head::decode(&encoded(&head(), KEY), &SHAPE), Some(head()));
    let full = Head { entries: vec![entries()[0]; ENTRIES_MAX], ..head() };
    assert_eq!(Head::decode(&encoded(&full, KEY), &SHAPE), Some(full));
    assert_eq!(Summary::decode(&summary().encode(KEY), &SHAPE), Some(summary()));
    assert_eq!(Summary::peek(&summary().encode(KEY), &SHAPE), Some((12, 1)));
    let large = Super { segment_slots: 2048, ..SHAPE };
    let full = Summary { entries: vec![entries()[0]; large.summary_entries()], ..summary() };
    let bytes = full.encode(KEY);
    assert_eq!(Summary::peek(&bytes[..SLOT], &large), Some((12, large.summary_slots())));
    assert_eq!(Summary::decode(&bytes, &large), Some(full));
}

#[test]
fn every_flipped_bit_is_noticed() {
    for (bit, bad) in flipped(&SHAPE.encode()) {
        assert!(Super::decode(&bad, SIZE).is_err(), "bit {bit} of the superblock");
    }
    for (bit, bad) in flipped(&state().encode(KEY)) {
        assert_eq!(State::decode(&bad, KEY), None, "bit {bit} of the state");
    }
    for (bit, bad) in flipped(&encoded(&head(), KEY)) {
        assert_eq!(Head::decode(&bad, &SHAPE), None, "bit {bit} of a head");
    }
    for (bit, bad) in flipped(&summary().encode(KEY)) {
        assert_eq!(Summary::decode(&bad, &SHAPE), None, "bit {bit} of a summary");
    }
}

#[test]
fn what_is_cut_off_or_of_another_flash_is_refused() {
    for len in [0, 7, 55, 63, 100] {
        assert!(Super::decode(&SHAPE.encode()[..len], SIZE).is_err());
        assert_eq!(State::decode(&state().encode(KEY)[..len], KEY), None);
        assert_eq!(Head::decode(&encoded(&head(), KEY)[..len], &SHAPE), None);
        assert_eq!(Summary::decode(&summary().encode(KEY)[..len], &SHAPE), None);
    }
    assert_eq!(State::decode(&state().encode(KEY ^ 1), KEY), None);
    assert_eq!(Head::decode(&encoded(&head(), KEY ^ 1), &SHAPE), None);
    assert_eq!(Summary::decode(&summary().encode(KEY ^ 1), &SHAPE), None);
}

#[test]
fn superblocks_that_cannot_be_used_are_refused_in_words() {
    let good = SHAPE.encode();
    let said = |bytes: &[u8], size: u64| {
        let e = Super::decode(bytes, size).expect_err("refused");
        (e.kind(), e.message().to_owned())
    };
    let (kind, message) = said(&with(&good, 16, &3u32.to_le_bytes(), 0), SIZE);
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(message.contains("format 3; this program knows 1 to 2"), "{message}");
    let (kind, message) = said(&good, SIZE - 1);
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(message.contains("has become smaller"), "{message}");
    assert!(said(&[0; SLOT], SIZE).1.contains("there is no cache on it"));
    for shape in [
        Super { segment_slots: 0, ..SHAPE },
        Super { segment_slots: 8, ..SHAPE },
        Super { segment_slots: 24, ..SHAPE },
        Super { segment_slots: 4096, ..SHAPE },
        Super { segment_slots: 1 << 31, ..SHAPE },
        Super { segments: 0, ..SHAPE },
        Super { segments: SEGMENTS_MIN - 1, ..SHAPE },
        Super { segments: u32::MAX, ..SHAPE },
        Super { segments: u32::MAX / 16 + 1, ..SHAPE },
    ] {
        assert!(said(&shape.encode(), u64::MAX).1.contains("impossible"), "{shape:?}");
    }
}

#[test]
fn states_that_cannot_be_are_refused() {
    let good = state().encode(KEY);
    let refused =
        |at: usize, value: &[u8]| assert_eq!(State::decode(&with(&good, at, value, KEY), KEY), None);
    refused(56, &(VOLUMES_MAX as u32 + 1).to_le_bytes());
    refused(56, &u32::MAX.to_le_bytes());
    // Numbers that could not be counted on from.
    for at in [24, 32, 40, 48, 64 + 16, 64 + 24] {
        refused(at, &u64::MAX.to_le_bytes());
    }
    for at in [64 + 40, 64 + 44] {
        refused(at, &u32::MAX.to_le_bytes());
    }
    // A tail behind which there is nothing.
    refused(32, &12u64.to_le_bytes());
}

#[test]
fn entries_that_cannot_be_are_refused() {
    let good = entries()[0];
    let dropped = entries()[2];
    let wrong = [
        Entry { count: 0, ..good },
        Entry { count: u32::MAX, ..good },
        Entry { slot: 0, ..good },
        Entry { slot: 7, ..good },
        Entry { slot: u32::MAX, ..good },
        Entry { block: (1 << 40) - 3, ..good },
        Entry { block: u64::MAX, ..good },
        Entry { serial: u64::MAX, ..good },
        Entry { generation: u32::MAX, ..good },
        Entry { slot: 5, ..dropped },
        Entry { count: 0, ..dropped },
        Entry { absent: 1, ..good },
        Entry { absent: 0xFF, count: 1, ..good },
        Entry { absent: 1, count: 1, ..dropped },
        Entry { absent: 1, ..entries()[3] },
    ];
    for entry in wrong {
        let bytes = encoded(&Head { entries: vec![entry], ..head() }, KEY);
        assert_eq!(Head::decode(&bytes, &SHAPE), None, "{entry:?}");
    }
    for entry in wrong.into_iter().filter(|entry| entry.slot != 7) {
        let bytes = Summary { entries: vec![entry], ..summary() }.encode(KEY);
        assert_eq!(Summary::decode(&bytes, &SHAPE), None, "{entry:?}");
    }
    assert_eq!(Head::decode(&with(&encoded(&head(), KEY), 64 + 2, &[4], KEY), &SHAPE), None, "what");
}

#[test]
fn heads_and_summaries_that_cannot_be_are_refused() {
    for wrong in [
        Head { log: 2, ..head() },
        Head { slots: 0, ..head() },
        Head { slots: 12, ..head() },
        Head { slots: u32::MAX, ..head() },
        Head { at: u32::MAX, ..head() },
        Head { segment: u64::MAX, ..head() },
    ] {
        assert_eq!(Head::decode(&encoded(&wrong, KEY), &SHAPE), None, "{wrong:?}");
    }
    let bytes = with(&encoded(&head(), KEY), 44, &(ENTRIES_MAX as u16 + 1).to_le_bytes(), KEY);
    assert_eq!(Head::decode(&bytes, &SHAPE), None);
    for wrong in [Summary { log: 2, ..summary() }, Summary { segment: u64::MAX, ..summary() }] {
        assert_eq!(Summary::decode(&wrong.encode(KEY), &SHAPE), None, "{wrong:?}");
    }
    for entries in [SHAPE.summary_entries() as u32 + 1, u32::MAX] {
        let bytes = with(&summary().encode(KEY), 32, &entries.to_le_bytes(), KEY);
        assert_eq!(Summary::peek(&bytes, &SHAPE), None);
        assert_eq!(Summary::decode(&bytes, &SHAPE), None);
    }
}

#[test]
fn every_size_has_a_shape_that_can_be_read_again() {
    assert_eq!(Super::new(0, 1, 1), None);
    let smallest = u64::from(SEGMENTS_AT + SEGMENTS_MIN * 16) * SLOT as u64;
    assert_eq!(Super::new(smallest - 1, 1, 1), None);
    for size in [smallest, smallest + 1, 1 << 24, 1 << 30, 1 << 37, 1 << 44, u64::MAX] {
        let shape = Super::new(size, 1, 1).expect("it is large enough");
        assert_eq!(Super::decode(&shape.encode(), size).expect("read again"), shape);
        assert!(shape.batch_slots() >= 15 && shape.summary_entries() >= shape.batch_slots() as usize);
    }
}

struct Words(Value);

impl Keep for Words {
    fn get(&self) -> Option<Value> {
        Some(self.0.clone())
    }
    fn set(&self, _: Value) -> Pending {
        Box::pin(async { Ok(()) })
    }
}

fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as _, env.disk(name).expect("it was put there"))
}

async fn put_slot(disk: &Rc<Node>, slot: u32, bytes: &[u8]) {
    let write = Io::write(u64::from(slot) * SLOT as u64, Buf::from_vec(bytes.to_vec()), Durability::Fua);
    disk.submit(write).await.expect("written");
}

async fn read(node: &Rc<Node>, slot: u64) -> Vec<u8> {
    let buf = Buf::zeroed(SLOT);
    node.submit(Io::read(slot * SLOT as u64, buf.clone())).await.expect("read");
    buf.to_vec()
}

/// Runs `test` over a blank flash and a blank store.
fn run<T: 'static, F: Future<Output = T> + 'static>(test: impl FnOnce(Rc<SimEnv>) -> F) -> T {
    let world = Simulation::new(1);
    world.env().put_disk("flash", Image::blank(DiskOptions::new(SIZE)));
    world.env().put_disk("store", Image::blank(DiskOptions::new(STORE)));
    world.run(test(world.env())).expect("it ends")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every slot that has something: what it has but for zeroes at its end, or the byte that it is full of.
async fn dump(flash: &Rc<Node>) -> String {
    let mut lines = Vec::new();
    for slot in 0..SIZE / SLOT as u64 {
        let bytes = read(flash, slot).await;
        let Some(last) = bytes.iter().rposition(|byte| *byte != 0) else { continue };
        match bytes.iter().all(|byte| *byte == bytes[0]) {
            true => lines.push(format!("slot {slot} full of {:02x}", bytes[0])),
            false => lines.push(format!("slot {slot} {}", hex(&bytes[..=last]))),
        }
    }
    lines.join("\n") + "\n"
}

/// The slots that a golden file has.
fn golden(text: &str) -> Vec<(u32, Vec<u8>)> {
    let byte = |hex: &str| u8::from_str_radix(hex, 16).expect("two digits");
    let slot = |line: &str| {
        let (number, what) = line.strip_prefix("slot ")?.split_once(' ')?;
        let bytes = match what.strip_prefix("full of ") {
            Some(full) => vec![byte(full); SLOT],
            None => {
                let mut bytes: Vec<u8> = (0..what.len() / 2).map(|i| byte(&what[2 * i..2 * i + 2])).collect();
                bytes.resize(SLOT, 0);
                bytes
            }
        };
        Some((number.parse().expect("a number"), bytes))
    };
    text.lines().map(|line| slot(line).expect("a slot")).collect()
}

/// A new flash of version 1, as it was written for the first time.
async fn made(env: &Rc<SimEnv>) -> Rc<Cache> {
    made_as(env, SHAPE).await
}

async fn made_as(env: &Rc<SimEnv>, shape: Super) -> Rc<Cache> {
    let flash = disk(env, "flash");
    let first = State { sequence: 1, tails: [1, 1], next_segment: 1, volumes: Vec::new() };
    put_slot(&flash, STATES[0], &State::default().encode(KEY)).await;
    put_slot(&flash, STATES[1], &first.encode(KEY)).await;
    put_slot(&flash, 0, &shape.encode()).await;
    let cache = Cache::open("flash", &(Rc::clone(env) as _), flash).await.expect("opened");
    // When it was written for the first time the numbers went on where they were.
    cache.segments.borrow_mut().next = first.next_segment;
    cache.saving.sequence.set(first.sequence);
    cache
}

/// Puts blocks, each full of a byte.
async fn put(
    env: &Rc<SimEnv>,
    cache: &Rc<Cache>,
    volume: &Rc<Volume>,
    block: u64,
    blocks: &[u8],
    dirty: bool,
) {
    let bytes = blocks.iter().flat_map(|byte| vec![*byte; SLOT]).collect();
    let how = How { dirty, durability: Durability::Fua, absent: 0, serial: None };
    let space = cache.reserve(blocks.len() as u64).await.expect("space");
    cache.put(space, volume, block, &Buf::from_vec(bytes), how).await.expect("put");
    // All that goes on in the background has ended: what is written does not depend on how long it takes.
    env.sleep(Duration::from_secs(5)).await;
}

/// Two volumes; a segment with its summary, and one that was being written when the power failed.
async fn written(env: Rc<SimEnv>) -> String {
    let cache = made(&env).await;
    let one = cache.volume(ONE, 64).await.expect("a volume");
    let two = cache.volume(TWO, 16).await.expect("a volume");
    let put =
        async |volume, block, blocks: &[u8], dirty| put(&env, &cache, volume, block, blocks, dirty).await;
    put(&one, 0, &[1, 2, 3], true).await;
    let (dirty, upto) = cache.batch(&one, 9).expect("a batch");
    cache.checkpoint(&one, upto, &dirty).await.expect("durable");
    put(&one, 8, &[4], false).await;
    put(&one, 1, &[5], true).await;
    let space = cache.reserve(4).await.expect("space");
    cache.drop_blocks(space, &one, 8..9).await.expect("dropped");
    put(&two, 3, &[6], true).await;
    for block in 16..21 {
        put(&one, block, &[block as u8], true).await;
    }
    dump(&disk(&env, "flash")).await
}

/// Three blocks one of which cannot be read when the flash is opened again, and one that can; both entries
/// are then copied to the end of the log, as their volume is not open.
async fn with_lost_blocks(env: Rc<SimEnv>) -> String {
    let cache = made(&env).await;
    let one = cache.volume(ONE, 64).await.expect("a volume");
    put(&env, &cache, &one, 0, &[1, 2, 3], true).await;
    put(&env, &cache, &one, 8, &[4], true).await;
    let bad = u64::from(SEGMENTS_AT + 2) * SLOT as u64;
    env.set_fault(Some(Box::new(move |_, _, io| {
        (matches!(io.op, Op::Read(_)) && io.at.contains(&bad)).then(|| Error::media("latent"))
    })));
    let flash = disk(&env, "flash");
    let cache = Cache::open("flash", &(Rc::clone(&env) as _), Rc::clone(&flash)).await.expect("opened");
    cache.rotate((SMALL, 0)).await;
    env.sleep(Duration::from_secs(5)).await;
    env.set_fault(None);
    dump(&flash).await
}

/// Blocks of which sectors are absent: one that is dirty, and a clean one that is copied.
async fn with_parts(env: Rc<SimEnv>) -> String {
    let cache = made_as(&env, Super { version: 2, ..SHAPE }).await;
    let one = cache.volume(ONE, 64).await.expect("a volume");
    for (block, absent) in [(0, 0xF0), (8, 0x7E)] {
        let how = How { dirty: true, durability: Durability::Fua, absent, serial: None };
        let space = cache.reserve(1).await.expect("space");
        let data = Buf::from_vec(vec![block as u8 + 1; SLOT]);
        cache.put(space, &one, block, &data, how).await.expect("put");
        env.sleep(Duration::from_secs(5)).await;
    }
    let (dirty, upto) = cache.batch(&one, 1).expect("a batch");
    cache.checkpoint(&one, upto, &dirty).await.expect("durable");
    let flash = disk(&env, "flash");
    let cache = Cache::open("flash", &(Rc::clone(&env) as _), Rc::clone(&flash)).await.expect("opened");
    cache.rotate((SMALL, 0)).await;
    env.sleep(Duration::from_secs(5)).await;
    dump(&flash).await
}

fn is_as_it_was(text: &str, golden: &str, name: &str) {
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, text).expect("it can be written");
    }
    assert_eq!(text, golden, "the format has changed: see docs/formats/flash.md");
}

#[test]
fn version_1_is_as_it_was() {
    is_as_it_was(&run(written), GOLDEN, "flash-1.txt");
    is_as_it_was(&run(with_lost_blocks), GOLDEN_LOST, "flash-1-lost.txt");
}

#[test]
fn version_2_is_as_it_was() {
    is_as_it_was(&run(with_parts), GOLDEN_PARTS, "flash-2.txt");
    run(|env: Rc<SimEnv>| async move {
        let flash = disk(&env, "flash");
        for (slot, bytes) in golden(GOLDEN_PARTS) {
            put_slot(&flash, slot, &bytes).await;
        }
        let cache = Cache::open("flash", &(Rc::clone(&env) as _), flash).await.expect("opened");
        let one = cache.volume(ONE, 64).await.expect("a volume");
        let runs = cache.runs(&one, 0..9);
        let absent: Vec<_> =
            runs.iter().map(|run| (run.blocks.start, run.slot.is_some(), run.absent)).collect();
        assert_eq!(absent, [(0, false, 0), (8, true, 0x7E)], "the clean one went with its tail");
        assert!(cache.takes_parts() && cache.is_dirty_at(&one, 8..9));
    });
}

#[test]
fn lost_blocks_of_version_1_are_read() {
    run(|env: Rc<SimEnv>| async move {
        let flash = disk(&env, "flash");
        for (slot, bytes) in golden(GOLDEN_LOST) {
            put_slot(&flash, slot, &bytes).await;
        }
        let cache = Cache::open("flash", &(Rc::clone(&env) as _), flash).await.expect("opened");
        let one = cache.volume(ONE, 64).await.expect("a volume");
        assert_eq!((one.blocks.get(), one.dirty.get(), one.queue.borrow().len()), (4, 4, 2));
        for block in 0..3 {
            assert_eq!(
                get(&cache, &one, block).await.expect("it is there").map_err(|e| e.kind()),
                Err(ErrorKind::Media)
            );
        }
        assert_eq!(get(&cache, &one, 8).await, Some(Ok(4)));
    });
}

#[test]
fn version_1_is_read() {
    run(|env: Rc<SimEnv>| async move {
        let flash = disk(&env, "flash");
        for (slot, bytes) in golden(GOLDEN) {
            put_slot(&flash, slot, &bytes).await;
        }
        let cache = Cache::open("flash", &(Rc::clone(&env) as _), Rc::clone(&flash)).await.expect("opened");
        assert_eq!(cache.shape, SHAPE);
        let one = cache.volume(ONE, 64).await.expect("a volume");
        let two = cache.volume(TWO, 16).await.expect("a volume");
        assert_eq!((one.number, one.checkpoint.get(), one.serial.get(), one.generation.get()), (0, 1, 9, 1));
        assert_eq!((two.number, two.checkpoint.get(), two.serial.get(), two.generation.get()), (1, 0, 1, 2));
        assert_eq!((one.blocks.get(), one.dirty.get(), two.blocks.get(), two.dirty.get()), (8, 6, 1, 1));
        let queue: Vec<_> = one.queue.borrow().iter().map(|record| (record.serial, record.block)).collect();
        assert_eq!(queue, [(3, 1), (5, 16), (6, 17), (7, 18), (8, 19), (9, 20)]);
        let segments = cache.segments.borrow();
        // No number that it may have had is given again.
        assert_eq!((segments.next, segments.free.len(), segments.logs[0].len()), (3 + 20, 18, 2));
    });
}

/// As a volume of kind `accelerate`, whose words are the other half of what is on disk.
#[test]
fn version_1_is_read_by_a_volume() {
    run(|env: Rc<SimEnv>| async move {
        let flash = disk(&env, "flash");
        for (slot, bytes) in golden(GOLDEN) {
            put_slot(&flash, slot, &bytes).await;
        }
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        let build = async |name: &str, kind: Kind, over: Vec<Rc<Node>>| {
            let words = json!({ "version": 1, "uuid": format!("{ONE:032x}") });
            let keep: Option<Rc<dyn Keep>> = Some(Rc::new(Words(words)));
            let with = Build { keep, ..Build::new(name, &world, over) };
            let made = kind.parse(&json!({})).expect("keys").build(with).await.expect("opened");
            Node::new(name, kind.name, Rc::clone(&world), made)
        };
        let cache = build("cache", Kind::of::<crate::flash::Keys>(), vec![flash]).await;
        let store = disk(&env, "store");
        let over = vec![Rc::clone(&store), Rc::clone(&cache)];
        let volume = build("volume", Kind::of::<crate::accelerate::Keys>(), over).await;
        let cached = [(0, 1), (1, 5), (2, 3), (16, 16), (17, 17), (18, 18), (19, 19), (20, 20)];
        let of = |block: u64| cached.iter().find(|(at, _)| *at == block).map_or(0, |(_, byte)| *byte);
        for block in 0..64 {
            assert_eq!(read(&volume, block).await, [of(block); SLOT], "block {block}");
        }
        volume.control(Command { name: "drain".into(), args: json!({}) }).await.expect("drained");
        for block in 0..64 {
            // What was on the store before its checkpoint is not written again.
            let byte = if block == 0 || block == 2 { 0 } else { of(block) };
            assert_eq!(read(&store, block).await, [byte; SLOT], "block {block} of the store");
        }
        volume.close().await.expect("closed");
        cache.close().await.expect("closed");
    });
}
