//! `memory`: a device in memory, which allocates chunks as they are written. A sink.
//!
//! Chunks that were never written, or were zeroed or discarded, take no memory and read as zeroes. Everything
//! is as durable as the process: gone with it.
//!
//! ```text
//!      regions:  256 MiB each, in a tree         (any size costs nothing until it is written)
//!                   │
//!      chunks:   4096 chunks of 64 KiB           (allocated by the first write, freed by zeroing)
//! ```
//!
//! Keys:
//! * `size`: size of the device, such as "1GiB".
//! * `block` (512): the logical block in bytes, a power of two from 512 to 64KiB.
//!
//! Every request completes at once. When the machine has no memory for a chunk, the write fails with "no
//! space". The sink deliberately has no limit below its size.

use lamina_block::{
    Buf, Build, Bytes, Config, Error, ErrorKind, Extent, ExtentState, Geometry, Io, Layer, Made, Manage, Op,
    Over, Passthrough, Pending, Result, Step, Traits,
};
use lamina_kit::size;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    size: Bytes,
    block: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "memory";
    const SUMMARY: &'static str = "a sparse device in memory";
    const CHILDREN: std::ops::RangeInclusive<usize> = 0..=0;
    const TRAITS: Traits = Traits { elsewhere: &["ram", "ramdisk", "tmpfs", "brd"], ..Traits::NONE };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        size::all_native(self.size, self.block).map(drop)
    }

    fn build(self, _with: Build) -> Pending<Made> {
        Box::pin(async move {
            let geometry = size::all_native(self.size, self.block)?;
            Ok(Rc::new(Memory { geometry, pages: RefCell::default() }) as Made)
        })
    }
}

/// The unit of allocation in bytes, a power of two.
const CHUNK: u64 = 64 << 10;
/// Chunks of a region, a power of two.
const CHUNKS: u64 = 4096;

type Chunk = Box<[u8]>;

/// Up to [`CHUNKS`] chunks, and their number.
struct Region {
    chunks: Box<[Option<Chunk>]>,
    used: usize,
}

/// All chunks.
#[derive(Default)]
struct Pages {
    regions: BTreeMap<u64, Region>,
    chunks: u64,
}

/// A piece of a range that lies in one chunk.
struct Piece {
    region: u64,
    index: usize,
    within: Range<usize>,
    /// The beginning of the piece in the whole range.
    from: usize,
}

fn pieces(at: Range<u64>) -> impl Iterator<Item = Piece> {
    let mut next = at.start;
    std::iter::from_fn(move || {
        let start = next;
        next = at.end.min((start | (CHUNK - 1)) + 1);
        (start < at.end).then(|| {
            let within = (start % CHUNK) as usize;
            Piece {
                region: start / CHUNK / CHUNKS,
                index: (start / CHUNK % CHUNKS) as usize,
                within: within..within + (next - start) as usize,
                from: (start - at.start) as usize,
            }
        })
    })
}

fn no_memory() -> Error {
    Error::new(ErrorKind::NoSpace, "there is no memory for more data")
}

/// Zeroed memory, or an error rather than the end of the process.
fn zeroed(len: usize) -> Result<Chunk> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| no_memory())?;
    bytes.resize(len, 0);
    Ok(bytes.into_boxed_slice())
}

impl Region {
    fn new() -> Result<Region> {
        let mut chunks = Vec::new();
        chunks.try_reserve_exact(CHUNKS as usize).map_err(|_| no_memory())?;
        chunks.resize_with(CHUNKS as usize, || None);
        Ok(Region { chunks: chunks.into_boxed_slice(), used: 0 })
    }
}

impl Pages {
    fn read(&self, at: Range<u64>, into: &Buf) {
        for piece in pieces(at) {
            let chunk = self.regions.get(&piece.region).and_then(|r| r.chunks[piece.index].as_ref());
            match chunk {
                Some(chunk) => into.write(piece.from, &chunk[piece.within]),
                None => into.slice(piece.from..piece.from + piece.within.len()).fill(0),
            }
        }
    }

    fn write(&mut self, at: Range<u64>, bytes: &Buf) -> Result<()> {
        for piece in pieces(at) {
            let chunk = self.chunk(&piece)?;
            bytes.read(piece.from, &mut chunk[piece.within]);
        }
        Ok(())
    }

    /// The chunk of a piece; allocated if necessary.
    fn chunk(&mut self, piece: &Piece) -> Result<&mut Chunk> {
        use std::collections::btree_map::Entry;
        let region = match self.regions.entry(piece.region) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(empty) => empty.insert(Region::new()?),
        };
        let slot = &mut region.chunks[piece.index];
        if slot.is_none() {
            *slot = Some(zeroed(CHUNK as usize)?);
            region.used += 1;
            self.chunks += 1;
        }
        Ok(slot.as_mut().expect("filled above"))
    }

    /// Frees whole chunks and zeroes parts of others. The cost grows with the number of chunks, not with the
    /// length of `at`.
    fn zero(&mut self, at: Range<u64>) {
        let span = CHUNK * CHUNKS;
        let touched = at.start / span..at.end.div_ceil(span);
        let mut emptied = false;
        for (number, region) in self.regions.range_mut(touched) {
            let start = number * span;
            let here = at.start.max(start)..at.end.min(start.saturating_add(span));
            for piece in pieces(here) {
                let slot = &mut region.chunks[piece.index];
                match slot {
                    Some(_) if piece.within.len() as u64 == CHUNK => {
                        *slot = None;
                        region.used -= 1;
                        self.chunks -= 1;
                    }
                    Some(chunk) => chunk[piece.within].fill(0),
                    None => {}
                }
            }
            emptied |= region.used == 0;
        }
        if emptied {
            self.regions.retain(|_, region| region.used > 0);
        }
    }

    fn extents(&self, at: Range<u64>) -> Vec<Extent> {
        let span = CHUNK * CHUNKS;
        let mut list = Vec::new();
        let mut next = at.start;
        for (number, region) in self.regions.range(at.start / span..at.end.div_ceil(span)) {
            let start = (number * span).max(next);
            Extent::push(&mut list, start - next, ExtentState::Hole);
            next = at.end.min((number * span).saturating_add(span));
            for piece in pieces(start..next) {
                let there = region.chunks[piece.index].is_some();
                let state = if there { ExtentState::Data } else { ExtentState::Hole };
                Extent::push(&mut list, piece.within.len() as u64, state);
            }
        }
        Extent::push(&mut list, at.end - next, ExtentState::Hole);
        list
    }
}

struct Memory {
    geometry: Geometry,
    pages: RefCell<Pages>,
}

impl Layer for Memory {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let at = io.at.clone();
        Step::Done(match &io.op {
            Op::Read(into) => {
                self.pages.borrow().read(at, into);
                Ok(())
            }
            Op::Write(bytes, _) => self.pages.borrow_mut().write(at, bytes),
            Op::Zero(_) | Op::Discard => {
                self.pages.borrow_mut().zero(at);
                Ok(())
            }
            Op::Flush => Ok(()),
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        let list = self.pages.borrow().extents(at);
        Box::pin(async { Ok(list) })
    }
}

impl Manage for Memory {
    fn info(&self) -> Value {
        json!({ "allocated": self.pages.borrow().chunks * CHUNK })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({ "size": "256KiB" }), 0).volatile()
    }

    #[test]
    fn reads_what_was_written_across_chunks_and_regions() {
        let node = memory("1GiB");
        let span = CHUNK * CHUNKS;
        for start in [0, CHUNK - 512, span - 1024, 3 * span + 512] {
            let bytes = pattern(4096);
            write_bytes(&node, start, &bytes);
            assert_eq!(read(&node, start, 4096), bytes);
            assert_eq!(read(&node, start + 4096, 512), [0; 512]);
        }
    }

    #[test]
    fn a_buffer_of_many_segments_lands_in_order() {
        let node = memory("1MiB");
        let bytes = pattern(3072);
        let mut buf = Buf::empty();
        for part in bytes.chunks(700) {
            buf.append(Buf::from_vec(part.to_vec()));
        }
        submit(&node, Io::write(CHUNK - 1024, buf, Durability::Cached)).unwrap();
        assert_eq!(read(&node, CHUNK - 1024, 3072), bytes);
    }

    #[test]
    fn zeroing_frees_whole_chunks() {
        let node = built("memory", json!({"size": 1u64 << 62}));
        let far = (1 << 62) - 4096;
        write(&node, far, 1, 4096);
        write(&node, 0, 1, 2 * CHUNK as usize);
        assert_eq!(node.info()["allocated"], 3 * CHUNK);
        assert_eq!(extents(&node, 0..1 << 62).len(), 3);
        submit(&node, Io::zero(512..CHUNK + 512, Zero::default())).unwrap();
        assert_eq!(node.info()["allocated"], 3 * CHUNK);
        assert_eq!(read(&node, 0, 1024), [[1; 512], [0; 512]].concat());
        submit(&node, Io::discard(0..1 << 62)).unwrap();
        assert_eq!(node.info()["allocated"], 0);
        assert_eq!(extents(&node, 0..1 << 62), [hole(1 << 62)]);
    }

    #[test]
    fn a_random_walk_agrees_with_a_vector() {
        let size = 3 * CHUNK as usize;
        let (node, mut model) = (built("memory", json!({"size": size})), vec![0u8; size]);
        let mut random = xorshift(7);
        for step in 0..2000u32 {
            let start = (random() as usize % (size / 512)) * 512;
            let len = (1 + random() as usize % 160) * 512;
            let len = len.min(size - start);
            let at = start as u64..(start + len) as u64;
            match random() % 4 {
                0 => {
                    submit(&node, Io::zero(at, Zero::default())).unwrap();
                    model[start..start + len].fill(0);
                }
                1 | 2 => {
                    write(&node, start as u64, step as u8, len);
                    model[start..start + len].fill(step as u8);
                }
                _ => assert_eq!(read(&node, start as u64, len), model[start..start + len]),
            }
        }
        assert_eq!(read(&node, 0, size), model);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for keys in [
            json!({"size": 0}),
            json!({"size": 1000}),
            json!({"size": u64::MAX}),
            json!({"size": 512, "block": 4096}),
        ] {
            assert!(refused("memory", keys, &[]).starts_with("size"));
        }
        for block in [0u64, 256, 1000, 1 << 17, 1 << 40] {
            assert!(refused("memory", json!({"size": "1MiB", "block": block}), &[]).starts_with("block"));
        }
    }
}
