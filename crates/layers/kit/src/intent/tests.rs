use super::*;
use crate::flaw::FLAW;
use crate::testing::*;
use lamina_block::all;
use lamina_sim::{DiskOptions, Image, Images, SimEnv, Simulation};
use std::cell::Cell;
use std::time::Duration;

const DATA: u64 = 256 << 10;
const REGION: u64 = 8 << 10;
const SHAPE: Shape = Shape { id: 0x0123_4567_89AB_CDEF, size: DATA, region: REGION };
const DISKS: [&str; 2] = ["a", "b"];

/// Counts the pages that are written, and where.
struct Counting(Area, Rc<Cell<usize>>);

impl IntentStore for Counting {
    fn put(&self, at: u64, page: Buf) -> Pending {
        self.1.set(self.1.get() + 1);
        self.0.put(at, page)
    }
}

fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    for (n, name) in DISKS.into_iter().enumerate() {
        let mut options = DiskOptions::new(DATA + (64 << 10));
        options.latency_max = Duration::from_micros(if seed.is_multiple_of(2) { 2000 } else { 100 });
        options.geometry.fua = seed >> 1 & 1 == n as u64;
        options.junk = None;
        world.env().put_disk(name, Image::blank(options));
    }
    world
}

fn disk(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    Node::new(name, "simulated", Rc::clone(env) as _, env.disk(name).expect("it was put there"))
}

/// Two disks that are to hold the same: the simplest owner.
struct Pair {
    disks: [Rc<Node>; 2],
    intent: Intent,
    /// Writes that are under way.
    busy: RefCell<Vec<Range<u64>>>,
}

impl IntentStore for Pair {
    fn put(&self, at: u64, page: Buf) -> Pending {
        let areas = self.disks.clone().map(|node| Area(node, DATA));
        Box::pin(async move {
            let [a, b] = areas.map(|area| area.put(at, page.clone()));
            a.await.and(b.await)
        })
    }
}

impl Pair {
    fn new(env: &Rc<SimEnv>) -> Pair {
        let dyn_env: Rc<dyn Env> = Rc::clone(env) as _;
        let intent = Intent::new(&dyn_env, SHAPE, 512).expect("a shape");
        Pair { disks: DISKS.map(|name| disk(env, name)), intent, busy: RefCell::default() }
    }

    async fn write(&self, at: Range<u64>, value: u8) -> Result<()> {
        self.busy.borrow_mut().push(at.clone());
        self.intent.mark(&at, self).await?;
        let buf = Buf::from_vec(vec![value; (at.end - at.start) as usize]);
        let writes =
            self.disks.iter().map(|d| d.submit(Io::write(at.start, buf.clone(), Durability::Cached)));
        let done = all(writes).await;
        let mut busy = self.busy.borrow_mut();
        let mine = busy.iter().position(|other| *other == at).expect("it is busy");
        busy.swap_remove(mine);
        done
    }

    async fn sweep(&self) -> Result<()> {
        let busy = |at: &Range<u64>| self.busy.borrow().iter().any(|b| b.start < at.end && at.start < b.end);
        let quiet = self.intent.quiet(|region| !busy(region));
        all(self.disks.iter().map(|disk| disk.submit(Io::flush()))).await?;
        self.intent.clear(quiet, self, |region| !busy(region)).await
    }
}

async fn bytes(node: &Rc<Node>, at: Range<u64>) -> Vec<u8> {
    let buf = Buf::zeroed((at.end - at.start) as usize);
    node.submit(Io::read(at.start, buf.clone())).await.expect("read");
    buf.to_vec()
}

/// Where the disks differ they were being written, as far as the intent knows.
async fn verify(env: Rc<SimEnv>) -> std::result::Result<(), String> {
    let pair = Pair::new(&env);
    for node in &pair.disks {
        let sheets = pair.intent.load(&Area(Rc::clone(node), DATA)).await.map_err(|e| e.to_string())?;
        pair.intent.mark_damaged(&sheets);
    }
    let (a, b) = (bytes(&pair.disks[0], 0..DATA).await, bytes(&pair.disks[1], 0..DATA).await);
    for (number, (a, b)) in a.chunks(512).zip(b.chunks(512)).enumerate() {
        let at = number as u64 * 512..(number as u64 + 1) * 512;
        if a != b && !pair.intent.regions().has(&at) {
            return Err(format!("the disks differ at {at:?}, and nothing says that it was being written"));
        }
    }
    Ok(())
}

/// A run under load, with a power loss before one in `one_in` changes of a disk.
fn run(seed: u64, one_in: u64) -> std::result::Result<(), String> {
    let world = world(seed);
    let env = world.env();
    let images: Rc<RefCell<Vec<Images>>> = Rc::default();
    let main_env = Rc::clone(&env);
    let into = Rc::clone(&images);
    world
        .run(async move {
            let pair = Rc::new(Pair::new(&main_env));
            pair.intent.write_all(&*pair).await.expect("formatted");
            let (weak, random) = (Rc::downgrade(&main_env), RefCell::new(xorshift(seed * 2 + 1)));
            main_env.observe(Some(Rc::new(move || {
                let draw = || (random.borrow_mut())();
                let Some(env) = weak.upgrade().filter(|_| draw() % one_in == 0) else { return };
                into.borrow_mut().push(env.after_death(draw() >> 8, draw()));
            })));
            let stop = Rc::new(Cell::new(false));
            let (sweeping, stopped, env) = (Rc::clone(&pair), Rc::clone(&stop), Rc::clone(&main_env));
            let sweeper = main_env.start(async move {
                while !stopped.get() {
                    env.sleep(Duration::from_micros(300)).await;
                    sweeping.sweep().await.expect("swept");
                }
            });
            let worker = |n: u64| {
                let (pair, env) = (Rc::clone(&pair), Rc::clone(&main_env));
                async move {
                    for round in 0..20u64 {
                        let start = (env.random() % (DATA / 4096 / 3) * 3 + n) * 4096;
                        let at = start..(start + 4096).min(DATA);
                        pair.write(at, (round * 3 + n + 1) as u8).await.expect("written");
                        env.sleep(Duration::from_micros(env.random() % 1500)).await;
                    }
                }
            };
            let workers: Vec<_> = (0..3).map(|n| main_env.start(worker(n))).collect();
            for worker in workers {
                worker.ended().await;
            }
            stop.set(true);
            sweeper.ended().await;
            // Asked twice, so that everything was quiet in between.
            pair.sweep().await.expect("swept");
            pair.sweep().await.expect("swept");
            assert!(pair.intent.is_empty() || FLAW.get().is_some(), "something is left");
        })
        .map_err(|hang| hang.to_string())?;
    env.observe(None);
    for crash in images.take() {
        let world = Simulation::from_images(seed, &crash);
        world.run(verify(world.env())).map_err(|hang| hang.to_string())??;
    }
    Ok(())
}

#[test]
fn the_power_fails_at_every_write() {
    for seed in 0..6 {
        run(seed, if seed < 2 { 1 } else { 8 }).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// Intents that are wrong in one way each.
#[test]
fn canaries() {
    let first = || (0..12).find_map(|seed| run(seed, 2).err());
    assert_eq!(first(), None);
    for flaw in ["data before intent", "a busy region is cleared"] {
        FLAW.set(Some(flaw));
        let caught = first();
        FLAW.set(None);
        assert!(caught.is_some(), "{flaw} is not caught");
    }
}

/// A page that was under way when a bit of it was taken out does not make the bit durable.
#[test]
fn a_bit_that_was_taken_out_is_not_durable() {
    for flaw in [None, Some("an old page is trusted")] {
        let world = world(0);
        let covered = world.run({
            let env = world.env();
            async move {
                let pair = Rc::new(Pair::new(&env));
                pair.intent.mark(&(0..512), &*pair).await.expect("marked");
                pair.intent.quiet(|_| true);
                let quiet = pair.intent.quiet(|_| true);
                FLAW.set(flaw);
                let other = Rc::clone(&pair);
                let marking =
                    env.start(async move { other.intent.mark(&(REGION..REGION + 1), &*other).await });
                env.sleep(Duration::from_nanos(1)).await;
                let clearing = pair.intent.clear(quiet, &*pair, |_| true);
                let watching = async {
                    marking.ended().await.expect("marked");
                    pair.intent.covers(&(0..1))
                };
                let (covered, cleared) = futures_util::future::join(watching, clearing).await;
                cleared.expect("cleared");
                covered
            }
        });
        FLAW.set(None);
        assert_eq!(covered.expect("it ends"), flaw.is_some());
    }
}

#[test]
fn who_waits_together_shares_a_page() {
    let world = world(1);
    let env = world.env();
    let pages = world.run(async move {
        let dyn_env: Rc<dyn Env> = Rc::clone(&env) as _;
        let intent = Rc::new(Intent::new(&dyn_env, SHAPE, 512).expect("a shape"));
        let pages = Rc::new(Cell::new(0));
        let mark = |n: u64| {
            let place = Counting(Area(disk(&env, "a"), DATA), Rc::clone(&pages));
            let intent = Rc::clone(&intent);
            env.start(async move { intent.mark(&(n * REGION..n * REGION + 512), &place).await })
        };
        let marks: Vec<_> = (0..16).map(mark).collect();
        for mark in marks {
            mark.ended().await.expect("marked");
        }
        assert!((0..16).all(|n| intent.covers(&(n * REGION..(n + 1) * REGION))));
        pages.get()
    });
    assert_eq!(pages.expect("it ends"), 2);
}

/// A stream waits at its first regions only, and no more is marked before it than behind it.
#[test]
fn a_stream_finds_marked_what_it_comes_to() {
    let world = world(1);
    let env = world.env();
    let waited = world.run(async move {
        let pair = Pair::new(&env);
        let mut waited = Vec::new();
        for n in 0..DATA / REGION {
            // In the middle of a region nothing is foreseen.
            assert_eq!(pair.intent.ahead(&(n * REGION + 512..n * REGION + 1024)), None);
            let at = n * REGION..n * REGION + 512;
            let next = pair.intent.ahead(&at);
            if !pair.intent.covers(&at) {
                waited.push(n);
                pair.intent.mark(&at, &pair).await.expect("marked");
            } else if let Some(next) = next {
                pair.intent.mark(&next, &pair).await.expect("marked");
            }
            assert!(pair.intent.regions().bytes() <= (2 * n).max(1) * REGION, "region {n}");
        }
        waited
    });
    assert_eq!(waited.expect("it ends"), [0, 1, 2]);
}

const GOLDEN: &[u8] = include_bytes!("../../tests/golden/intent-1.bin");

fn golden() -> (Shape, Bits) {
    // Three sheets, the last of them short.
    let shape = Shape { id: 0x1122_3344_5566_7788, size: 8000 * 4096 + 512, region: 4096 };
    let mut bits = Bits::none(shape.size, shape.region);
    for at in [0..1, 4096 * 3775..4096 * 3777, 4096 * 7000..4096 * 7100, 8000 * 4096..8000 * 4096 + 512] {
        bits.add(&at);
    }
    (shape, bits)
}

#[test]
fn version_1_is_as_it_was() {
    let (shape, bits) = golden();
    let page = shape.encode(0, 4096, &bits);
    if std::env::var_os("LAMINA_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/intent-1.bin");
        std::fs::write(path, &page).expect("it can be written");
    }
    assert!(page == GOLDEN, "the format has changed: see docs/formats/intent.md");
    assert_eq!((shape.sheets(), shape.area(4096)), (3, 4096));
    let mut read = Bits::none(shape.size, shape.region);
    assert_eq!(shape.decode(GOLDEN, &mut read).expect("read"), 0);
    assert_eq!(read, bits);
}

#[test]
fn what_is_damaged_counts_as_written() {
    let (shape, bits) = golden();
    for at in (0..SHEET * 3).step_by(5) {
        let mut bad = GOLDEN.to_vec();
        bad[at] ^= 0x10;
        let mut read = Bits::none(shape.size, shape.region);
        assert_eq!(shape.decode(&bad, &mut read).expect("read"), 1, "byte {at}");
        let part = shape.page_part(0, SHEET);
        let damaged = (at / SHEET) as u64;
        let of_sheet = damaged * part.end..((damaged + 1) * part.end).min(shape.size);
        assert!(read.has(&of_sheet) && bits.runs().all(|run| read.has(&run)), "byte {at}");
    }
    let mut read = Bits::none(shape.size, shape.region);
    assert_eq!(shape.decode(&[], &mut read).expect("read"), 3);
    assert_eq!(read.bytes(), shape.size);
    let mut later = GOLDEN.to_vec();
    later[8] = 2;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&later[..12]), &[0; 4]);
    let crc = crc32c::crc32c_append(crc, &later[16..SHEET]);
    later[12..16].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(shape.decode(&later, &mut read).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn regions_are_few_enough() {
    for size in [512, 1 << 20, 20 << 30, 1 << 40, 1 << 44, 1 << 50] {
        let shape = Shape { id: 1, size, region: Shape::region_for(size) };
        shape.check().unwrap_or_else(|e| panic!("{size}: {e}"));
        assert!(shape.area(4096) <= 12 << 10, "{size}");
    }
    for region in [0, 512, 5000, 1 << 41] {
        assert!(Shape { id: 1, size: 1 << 30, region }.check().is_err(), "{region}");
    }
    assert!(Shape { id: 1, size: 1 << 40, region: 4096 }.check().is_err());
    assert!(Shape { id: 1, size: 0, region: 4096 }.check().is_err());
}
