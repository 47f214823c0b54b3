//! A queue over a guest whose memory, rings included, is what a fuzzer wrote. Only with the feature `fuzzing`.

use crate::dirty::DirtyLog;
use crate::inflight::{self, Region as InFlight};
use crate::memory::{Mapper, Memory, Region, RegionAddress};
use crate::queue::{Parts, Queue, Turn};
use crate::request::Rules;
use crate::ring::{Ring, RingAddress};
use lamina_block::{Durability, Env, Node};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

/// Bytes of each of the two regions, which follow each other.
const REGION: u64 = 0x4000;
/// Bytes before each region in its file: mapped, and not the guest's.
const MARGIN: u64 = 4096;
const ENTRIES: u16 = 16;
const RING: RingAddress = RingAddress { descriptors: 0, available: 0x100, used: 0x140, log: Some(0x140) };

fn memfd(len: u64) -> File {
    let fd = memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&fd, len).expect("memory");
    fd.into()
}

/// The guest's memory: `bytes` from address zero on, then zeroes.
fn memory(bytes: &[u8]) -> ([File; 2], Memory) {
    let files = [memfd(MARGIN + REGION), memfd(MARGIN + REGION)];
    for (file, part) in files.iter().zip(bytes.chunks(REGION as usize)) {
        file.write_all_at(part, MARGIN).expect("memory");
    }
    let region = |n: u64| RegionAddress { guest: n * REGION, user: n * REGION, len: REGION };
    let piece = |n: usize| Mapper::default().map(&files[n], MARGIN, REGION).expect("memory");
    let map = |n: usize| Region::new(region(n as u64), piece(n)).expect("a region");
    let memory = Memory::new(vec![map(0), map(1)]).expect("two regions");
    (files, memory)
}

/// Lets a queue over `node` take all that it finds in a guest's memory. The first byte says how the queue is set up,
/// the rest is the memory. `settle` runs the tasks of `env`.
///
/// # Panics
/// If the queue does not come to an end, loses a request, or writes to a forbidden place.
pub fn run(env: Rc<dyn Env>, node: Rc<Node>, bytes: &[u8], mut settle: impl FnMut()) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let (files, memory) = memory(bytes);
    let memory = Rc::new(memory);
    let (tracked, len) = inflight::create(1, ENTRIES).expect("memory");
    let tracker = (how & 1 != 0).then(|| {
        let region = InFlight::new(Mapper::default().map(&tracked, 0, len).expect("memory"), 1, ENTRIES)
            .expect("a region");
        region.tracker(0, ENTRIES).expect("space for a queue")
    });
    let log = (how & 2 != 0)
        .then(|| Rc::new(DirtyLog::new(Mapper::default().map(&memfd(4096), 0, 4096).expect("a log"))));
    let ring = Ring::map(ENTRIES, &RING, &memory).expect("a ring");
    let queue = Queue::new(Parts {
        name: "fuzz".into(),
        env,
        node,
        ring,
        memory: Rc::clone(&memory),
        tracker,
        base: 0,
        event_index: how & 4 != 0,
        rules: Rules { read_only: how & 8 != 0, durability: Durability::Cached },
        serial: *b"fuzzfuzzfuzzfuzzfuzz",
        log,
        space: Rc::<lamina_block::Budget>::default().taker(),
    })
    .expect("a fresh region can be read");
    for _ in 0..4 {
        let turn = queue.turn();
        settle();
        queue.publish();
        assert_eq!(queue.in_flight(), 0, "a request was lost");
        if turn != Turn::More {
            break;
        }
    }
    for file in files {
        let mut margin = [0; MARGIN as usize];
        file.read_exact_at(&mut margin, 0).expect("memory");
        assert!(margin.iter().all(|byte| *byte == 0), "memory outside the guest's was written");
    }
}
