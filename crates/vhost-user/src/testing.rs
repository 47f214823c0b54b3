//! The base of unit tests: an environment of one thread, a disk in memory, and a guest made by hand.

use crate::dirty::DirtyLog;
use crate::inflight::Tracker;
use crate::memory::{Mapper, Memory, Region, RegionAddress};
use crate::queue::{Parts, Queue};
use crate::request::Rules;
use crate::ring::{Ring, RingAddress};
use futures_executor::{LocalPool, LocalSpawner};
use futures_util::task::LocalSpawnExt;
use lamina_block::{
    Address, Budget, Buf, Conn, Durability, Env, Error, Geometry, Io, Layer, Listener, Manage, Node, Op,
    OpenDisk, Passthrough, Pending, Pool, Result, Signal, Step, Time,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

thread_local! {
    static STORED: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Called after every write to memory that outlives the process.
pub(crate) fn stored() {
    STORED.with(|hook| {
        let taken = hook.borrow_mut().take();
        if let Some(mut f) = taken {
            f();
            hook.borrow_mut().get_or_insert(f);
        }
    });
}

/// Calls `f` after every write to memory that outlives the process, until `None` is set.
pub(crate) fn on_store(f: Option<Box<dyn FnMut()>>) {
    STORED.with(|hook| *hook.borrow_mut() = f);
}

/// Anonymous shared memory.
pub(crate) fn memfd(len: u64) -> File {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd.into()
}

/// An environment without disks, connections or time.
pub(crate) struct TestEnv {
    spawner: LocalSpawner,
    pool: Pool,
}

impl Env for TestEnv {
    fn now(&self) -> Time {
        Time(0)
    }
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(std::future::pending())
    }
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()>>>) {
        self.spawner.spawn_local(task).unwrap();
    }
    fn random(&self) -> u64 {
        4
    }
    fn pool(&self) -> &Pool {
        &self.pool
    }
    fn open_disk(&self, _: OpenDisk) -> Pending<Rc<dyn Layer>> {
        Box::pin(async { Err(Error::unsupported("no disks here")) })
    }
    fn connect(&self, _: Address) -> Pending<Rc<dyn Conn>> {
        Box::pin(async { Err(Error::unsupported("no connections here")) })
    }
    fn listen(&self, _: Address) -> Result<Rc<dyn Listener>> {
        Err(Error::unsupported("no connections here"))
    }
}

/// A disk in memory. Asleep, it keeps requests until it is woken.
pub(crate) struct TestDisk {
    pub bytes: Buf,
    pub asleep: Cell<bool>,
    /// Requests from its sleep fail: the disk is away.
    pub away: Cell<bool>,
    pub awake: Signal,
    pub log: RefCell<Vec<String>>,
    pub geometry: Cell<Geometry>,
}

impl TestDisk {
    pub fn new(len: u64) -> Rc<TestDisk> {
        let geometry = Geometry { discard: true, zero: true, ..Geometry::new(len) };
        Rc::new(TestDisk {
            bytes: Buf::zeroed(len as usize),
            asleep: Cell::new(false),
            away: Cell::new(false),
            awake: Signal::new(),
            log: RefCell::default(),
            geometry: Cell::new(geometry),
        })
    }

    pub fn wake(&self) {
        self.asleep.set(false);
        self.awake.notify();
    }

    fn run(&self, io: &Io) {
        let at = io.at.start as usize..io.at.end as usize;
        self.log.borrow_mut().push(format!("{} {at:?}", io.op.kind().name()));
        match &io.op {
            Op::Read(buf) => buf.copy_from(&self.bytes.slice(at)),
            Op::Write(buf, _) => self.bytes.slice(at).copy_from(buf),
            Op::Zero(_) => self.bytes.slice(at).fill(0),
            Op::Discard | Op::Flush => {}
        }
    }
}

impl Layer for TestDisk {
    fn geometry(&self) -> Geometry {
        self.geometry.get()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if !self.asleep.get() {
            self.run(io);
            return Step::Done(Ok(()));
        }
        let io = io.take();
        Step::control(async move {
            self.awake.until(|| !self.asleep.get()).await;
            if self.away.get() {
                return Err(Error::offline("the disk of the test is away"));
            }
            self.run(&io);
            Ok(())
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }
}

impl Manage for TestDisk {}

/// Guest address of the first byte of memory.
pub(crate) const BASE: u64 = 0x10_0000;
/// Bytes of each of the two regions, which follow each other in the guest's addresses.
pub(crate) const REGION: u64 = 0x4_0000;
const DESCRIPTORS: u64 = BASE;
const AVAILABLE: u64 = BASE + 0x2000;
const USED: u64 = BASE + 0x3000;
/// Where a test's own data may begin.
pub(crate) const HEAP: u64 = BASE + 0x8000;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A guest that writes its rings by hand.
pub(crate) struct Guest {
    files: [File; 2],
    pub memory: Rc<Memory>,
    pub size: u16,
    pub available: Cell<u16>,
    pub seen: Cell<u16>,
}

impl Guest {
    pub fn new(size: u16) -> Guest {
        let files = [memfd(REGION), memfd(REGION)];
        let region =
            |n: u64| RegionAddress { guest: BASE + n * REGION, user: BASE + n * REGION, len: REGION };
        let piece = |n: usize| Mapper::default().map(&files[n], 0, REGION).unwrap();
        let map = |n: usize| Region::new(region(n as u64), piece(n)).unwrap();
        let memory = Rc::new(Memory::new(vec![map(0), map(1)]).unwrap());
        Guest { files, memory, size, available: Cell::new(0), seen: Cell::new(0) }
    }

    /// Shrinks the file behind the second region to nothing.
    pub fn take_away(&self) {
        self.files[1].set_len(0).unwrap();
    }

    pub fn address(&self) -> RingAddress {
        RingAddress { descriptors: DESCRIPTORS, available: AVAILABLE, used: USED, log: None }
    }

    pub fn ring(&self) -> Ring {
        Ring::map(self.size, &self.address(), &self.memory).unwrap()
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        for (i, byte) in bytes.iter().enumerate() {
            let at = at + i as u64 - BASE;
            self.files[(at / REGION) as usize].write_all_at(&[*byte], at % REGION).unwrap();
        }
    }

    pub fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let at = at + i as u64 - BASE;
            let mut one = [0];
            self.files[(at / REGION) as usize].read_exact_at(&mut one, at % REGION).unwrap();
            *byte = one[0];
        }
        bytes
    }

    pub fn descriptor_at(&self, at: u64, address: u64, len: u32, flags: u16, next: u16) {
        self.write(at, &address.to_le_bytes());
        self.write(at + 8, &len.to_le_bytes());
        self.write(at + 12, &flags.to_le_bytes());
        self.write(at + 14, &next.to_le_bytes());
    }

    pub fn descriptor(&self, index: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_at(DESCRIPTORS + index as u64 * 16, address, len, flags, next);
    }

    pub fn header(&self, at: u64, kind: u32, sector: u64) {
        self.write(at, &kind.to_le_bytes());
        self.write(at + 4, &[0; 4]);
        self.write(at + 8, &sector.to_le_bytes());
    }

    /// Makes the chain at `head` available.
    pub fn offer(&self, head: u16) {
        let at = self.available.get();
        self.write(AVAILABLE + 4 + (at % self.size) as u64 * 2, &head.to_le_bytes());
        self.set_available(at.wrapping_add(1));
    }

    pub fn set_available(&self, index: u16) {
        self.available.set(index);
        self.write(AVAILABLE + 2, &index.to_le_bytes());
    }

    pub fn used_index(&self) -> u16 {
        u16::from_le_bytes(self.read(USED + 2))
    }

    pub fn kick_wanted_at(&self) -> u16 {
        u16::from_le_bytes(self.read(USED + 4 + self.size as u64 * 8))
    }

    pub fn interrupt_at(&self, index: u16) {
        self.write(AVAILABLE + 4 + self.size as u64 * 2, &index.to_le_bytes());
    }

    /// The chains returned since the last time: heads and lengths.
    pub fn used(&self) -> Vec<(u32, u32)> {
        let mut entries = Vec::new();
        while self.seen.get() != self.used_index() {
            let at = USED + 4 + (self.seen.get() % self.size) as u64 * 8;
            entries.push((u32::from_le_bytes(self.read(at)), u32::from_le_bytes(self.read(at + 4))));
            self.seen.set(self.seen.get().wrapping_add(1));
        }
        entries
    }

    /// An ordinary request in three descriptors from `head` on; its data is at [`Guest::data`], then its status.
    pub fn request(&self, head: u16, kind: u32, sector: u64, len: u32) {
        let at = self.data(head);
        self.header(at - 16, kind, sector);
        let direction = if kind == 0 || kind == 8 { WRITE } else { 0 };
        self.descriptor(head, at - 16, 16, NEXT, head + 1);
        self.descriptor(head + 1, at, len, NEXT | direction, head + 2);
        self.descriptor(head + 2, self.status_at(head), 1, WRITE, 0);
        self.write(self.status_at(head), &[0xee]);
    }

    /// Where [`Guest::request`] puts data: space for 4 KiB.
    pub fn data(&self, head: u16) -> u64 {
        HEAP + head as u64 * 0x1100 + 16
    }

    pub fn status_at(&self, head: u16) -> u64 {
        self.data(head) + 0x1000
    }

    pub fn status(&self, head: u16) -> u8 {
        self.read::<1>(self.status_at(head))[0]
    }

    /// The bytes of everything that outlives the device's process.
    pub fn snapshot(&self) -> [Vec<u8>; 2] {
        self.files.each_ref().map(|file| {
            let mut bytes = vec![0; REGION as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        })
    }

    pub fn restore(&self, snapshot: &[Vec<u8>; 2]) {
        for (file, bytes) in self.files.iter().zip(snapshot) {
            file.write_all_at(bytes, 0).unwrap();
        }
    }
}

/// A device with one queue.
pub(crate) struct Device {
    pub pool: LocalPool,
    pub disk: Rc<TestDisk>,
    pub queue: Rc<Queue>,
}

/// The options of a test's device, besides its guest.
#[derive(Default)]
pub(crate) struct With {
    pub tracker: Option<Tracker>,
    pub log: Option<Rc<DirtyLog>>,
    pub ring_log: Option<u64>,
    pub base: u16,
    pub read_only: bool,
    pub disk: Option<Rc<TestDisk>>,
    pub memory: Rc<Budget>,
}

/// Bytes of a test's disk.
pub(crate) const DISK: u64 = 1 << 20;

pub(crate) fn device(guest: &Guest, with: With) -> Device {
    let pool = LocalPool::new();
    let env = Rc::new(TestEnv { spawner: pool.spawner(), pool: Pool::new(0) });
    let disk = with.disk.unwrap_or_else(|| TestDisk::new(DISK));
    let node = Node::new("disk", "test", env.clone(), disk.clone());
    let mut ring = guest.ring();
    ring.log = with.ring_log;
    let parts = Parts {
        name: "test".into(),
        env,
        node,
        ring,
        memory: Rc::clone(&guest.memory),
        tracker: with.tracker,
        base: with.base,
        event_index: true,
        rules: Rules { read_only: with.read_only, durability: Durability::Cached },
        serial: *b"serial\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        log: with.log,
        space: with.memory.taker(),
    };
    Device { pool, disk, queue: Queue::new(parts).unwrap() }
}

impl Device {
    /// Runs everything that can run, as the tasks of a served queue would.
    pub fn run(&mut self) -> crate::queue::Turn {
        let mut turn = self.queue.turn();
        for _ in 0..100 {
            self.pool.run_until_stalled();
            self.queue.publish();
            if turn != crate::queue::Turn::More {
                break;
            }
            turn = self.queue.turn();
        }
        turn
    }
}
