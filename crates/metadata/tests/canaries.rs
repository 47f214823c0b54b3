//! Stores that are deliberately wrong: the crash test finds each of them. The flaw lies in a layer between the store
//! and its disk, so the store itself has no switch for it.

mod common;

use common::{REGION, Under, crash_run};
use lamina_block::{Buf, Geometry, Io, Layer, Manage, Node, Op, Passthrough, Result, Step};
use lamina_metadata::Level;
use std::cell::Cell;
use std::rc::Rc;

const BLOCK: u64 = 4096;
/// Blocks of the region: roots, log, slots of pages.
const LOG: std::ops::Range<u64> = 2..18;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Nothing: the layer itself does no harm.
    Nothing,
    /// Records are taken for whole without looking at their checksum.
    NoChecksum,
    /// The log's tail moves before pages are durable.
    TailEarly,
    /// Pages are written over their newest copy.
    InPlace,
    /// Commits do not flush.
    NoFlush,
}

/// The last write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    Root,
    Log,
    Pages,
}

struct Below {
    child: Rc<Node>,
    wrong: Wrong,
    last: Cell<Area>,
}

impl Below {
    /// The block of the region where a request begins.
    fn block(io: &Io) -> u64 {
        (io.at.start - REGION.start) / BLOCK
    }

    fn write(&self, io: &mut Io) {
        let block = Below::block(io);
        self.last.set(match block {
            0..2 => Area::Root,
            b if LOG.contains(&b) => Area::Log,
            _ => Area::Pages,
        });
        let second = self.last.get() == Area::Pages && (block - LOG.end) % 2 == 1;
        // Formatting zeroes more than a page at once.
        if self.wrong == Wrong::InPlace && second && io.len() == BLOCK {
            io.move_to(io.at.start - BLOCK);
        }
    }

    /// Gives the record at `io` the checksum that its bytes have.
    async fn repair(child: Rc<Node>, io: Io) -> Result<()> {
        let (Op::Read(into), block) = (&io.op, Below::block(&io)) else { return Ok(()) };
        let (into, mut bytes) = (into.clone(), Vec::new());
        child.submit(io.clone()).await?;
        if into.slice(0..8).to_vec() != *b"LAMINALG" {
            return Ok(());
        }
        let head = into.to_vec();
        let len = u32::from_le_bytes([head[32], head[33], head[34], head[35]]) as usize;
        if len > LOG.count() * BLOCK as usize {
            return Ok(());
        }
        for i in 0..len.div_ceil(BLOCK as usize) as u64 {
            let at = LOG.start + (block - LOG.start + i) % LOG.count() as u64;
            let part = Buf::zeroed(BLOCK as usize);
            child.submit(Io::read(REGION.start + at * BLOCK, part.clone())).await?;
            bytes.extend(part.to_vec());
        }
        bytes[36..40].fill(0);
        into.write(36, &crc32c::crc32c(&bytes[..len]).to_le_bytes());
        Ok(())
    }
}

impl Layer for Below {
    fn geometry(&self) -> Geometry {
        Geometry { fua: false, zero: false, ..self.child.geometry() }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Write(..) => self.write(io),
            Op::Flush => {
                let skip = match self.wrong {
                    Wrong::NoFlush => self.last.get() == Area::Log,
                    Wrong::TailEarly => self.last.get() == Area::Pages,
                    Wrong::Nothing | Wrong::NoChecksum | Wrong::InPlace => false,
                };
                if skip {
                    return Step::Done(Ok(()));
                }
            }
            Op::Read(into) if self.wrong == Wrong::InPlace && io.len() == 2 * BLOCK => {
                let (child, first) = (Rc::clone(&self.child), into.slice(0..BLOCK as usize));
                into.slice(BLOCK as usize..2 * BLOCK as usize).fill(0);
                let at = io.at.start;
                return Step::control(async move { child.submit(Io::read(at, first)).await });
            }
            Op::Read(_) if self.wrong == Wrong::NoChecksum && LOG.contains(&Below::block(io)) => {
                return Step::control(Below::repair(Rc::clone(&self.child), io.take()));
            }
            Op::Read(_) | Op::Zero(_) | Op::Discard => {}
        }
        Step::Forward(Rc::clone(&self.child))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Below {}

fn with(wrong: Wrong) -> Under {
    Rc::new(move |env, child| {
        let below = Below { child, wrong, last: Cell::new(Area::Root) };
        Node::new("wrong", "wrong", Rc::clone(env) as _, Rc::new(below))
    })
}

/// Whether one of 40 runs finds the flaw. Torn records are rare: for them, every write counts.
fn found_out(wrong: Wrong, level: Level) -> bool {
    let one_in = if wrong == Wrong::NoChecksum { 1 } else { 6 };
    (0..40).any(|seed| {
        let result = crash_run(level, seed, 120, one_in, &with(wrong));
        if let Err(e) = &result {
            println!("{wrong:?}, {level:?}: {e}");
        }
        result.is_err()
    })
}

#[test]
fn the_layer_itself_does_no_harm() {
    for seed in 0..3 {
        assert_eq!(crash_run(Level::Shadow, seed, 120, 12, &with(Wrong::Nothing)), Ok(()));
    }
}

#[test]
fn a_record_without_checksum_is_found_out() {
    assert!(found_out(Wrong::NoChecksum, Level::Shadow));
    assert!(found_out(Wrong::NoChecksum, Level::Atomic));
}

#[test]
fn a_tail_that_moves_early_is_found_out() {
    assert!(found_out(Wrong::TailEarly, Level::Shadow));
    assert!(found_out(Wrong::TailEarly, Level::Atomic));
}

#[test]
fn a_page_written_in_place_is_found_out() {
    assert!(found_out(Wrong::InPlace, Level::Lazy));
    assert!(found_out(Wrong::InPlace, Level::Shadow));
    assert!(found_out(Wrong::InPlace, Level::Atomic));
}

#[test]
fn a_commit_that_does_not_flush_is_found_out() {
    assert!(found_out(Wrong::NoFlush, Level::Shadow));
    assert!(found_out(Wrong::NoFlush, Level::Atomic));
}
