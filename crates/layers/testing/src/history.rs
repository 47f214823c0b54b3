//! What was written to a device whose workers write blocks of their own, one write of each at a time, and what they may
//! hold now or after a power loss.

use lamina_block::{Buf, Durability, Env, Error, Io, Node, Result, Zero};
use lamina_sim::SimEnv;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Nothing, or what is wrong.
pub type Checked = std::result::Result<(), String>;

/// Bytes of a block.
pub const BLOCK: u64 = 512;

/// Bytes of a device that [`work`] writes to.
pub const SIZE: u64 = 160 << 10;

/// What went wrong with `what`.
pub fn told(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {e}")
}

/// A write of a block.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// 0: zeroes.
    id: u64,
    submitted: u64,
    /// When it ended well, and when it was durable by itself.
    ended: Option<u64>,
    durable: Option<u64>,
}

/// What was done to a volume.
#[derive(Default)]
pub struct History {
    /// The writes of each block, in the order in which they were submitted.
    pub blocks: RefCell<BTreeMap<u64, Vec<Written>>>,
    /// When each flush was submitted, and when that ended well.
    pub flushes: RefCell<Vec<(u64, u64)>>,
    /// The last write that has a number.
    pub ids: Cell<u64>,
}

/// What write `id` puts into a block.
pub fn bytes(id: u64, block: u64) -> Vec<u8> {
    let words = if id == 0 { [0, 0] } else { [id, block] };
    words.map(u64::to_le_bytes).as_flattened().repeat(BLOCK as usize / 16)
}

/// The write that has put these bytes into a block, if one write has.
fn id_of(found: &[u8], block: u64) -> Option<u64> {
    let id = u64::from_le_bytes(*found.first_chunk()?);
    (bytes(id, block) == found).then_some(id)
}

impl History {
    /// From when on a write is durable.
    fn durable(&self, write: &Written) -> Option<u64> {
        let ended = write.ended?;
        let flushes = self.flushes.borrow();
        // They are in the order in which they ended.
        let later = flushes.partition_point(|(_, flushed)| *flushed < ended);
        let covers = flushes[later..].iter().find(|(submitted, _)| *submitted >= ended);
        covers.map(|(_, flushed)| *flushed).into_iter().chain(write.durable).min()
    }

    /// The power failed at `at`: what was not durable then is not certain any more.
    pub fn lost_power(&self, at: u64) {
        for writes in self.blocks.borrow_mut().values_mut() {
            for write in writes.iter_mut().rev() {
                match self.durable(write) {
                    Some(durable) if durable <= at => break,
                    Some(_) | None if write.ended.is_some_and(|ended| ended <= at) => write.ended = None,
                    Some(_) | None => {}
                }
            }
        }
    }

    /// Which write of a block `found` is, of those that there were, in their order; `None` if there is no such.
    pub fn place(&self, block: u64, found: &[u8]) -> Option<usize> {
        let id = id_of(found, block)?;
        self.blocks.borrow().get(&block)?.iter().rposition(|write| write.id == id)
    }

    /// Checks a block. What `certain` says is certain rules out what was written before it; what was submitted after
    /// `end` never was.
    fn check(&self, block: u64, found: &[u8], end: u64, certain: impl Fn(&Written) -> bool) -> Checked {
        let blocks = self.blocks.borrow();
        let writes = blocks.get(&block).map_or(&[][..], Vec::as_slice);
        let newest = writes.iter().rposition(certain).unwrap_or(0);
        let may = || writes[newest..].iter().filter(|w| w.submitted < end).map(|w| w.id);
        let id = id_of(found, block);
        match may().any(|may| Some(may) == id) {
            true => Ok(()),
            false => {
                let may: Vec<u64> = may().collect();
                let word = |i: usize| u64::from_le_bytes(found[i..i + 8].try_into().expect("eight bytes"));
                let certain = writes.get(newest).map(|write| (write, self.durable(write)));
                let (id, of) = (word(0), word(8));
                Err(format!(
                    "block {block} holds {id}/{of}, and may hold one of {may:?} (certain: {certain:?})"
                ))
            }
        }
    }

    /// Writes blocks, as write `id` (0: zeroes).
    pub async fn write(
        &self,
        env: &SimEnv,
        node: &Rc<Node>,
        at: Range<u64>,
        id: u64,
        fua: bool,
    ) -> Result<()> {
        let submitted = env.tick();
        for block in at.clone() {
            let write = Written { id, submitted, ended: None, durable: None };
            self.blocks.borrow_mut().entry(block).or_default().push(write);
        }
        let range = at.start * BLOCK..at.end * BLOCK;
        let durability = if fua { Durability::Fua } else { Durability::Cached };
        let io = match id {
            0 => Io::zero(range, Zero { durability, ..Zero::default() }),
            _ => {
                let blocks: Vec<Vec<u8>> = at.clone().map(|block| bytes(id, block)).collect();
                let data = blocks.concat();
                Io::write(range.start, Buf::from_vec(data), durability)
            }
        };
        node.submit(io).await?;
        let now = env.tick();
        for block in at {
            let mut blocks = self.blocks.borrow_mut();
            let list = blocks.get_mut(&block).into_iter().flatten();
            // Another one may have begun, if this one was held up.
            if let Some(write) = list.rev().find(|write| write.id == id && write.ended.is_none()) {
                (write.ended, write.durable) = (Some(now), fua.then_some(now));
            }
        }
        Ok(())
    }

    /// Flushes the device.
    pub async fn flush(&self, env: &SimEnv, node: &Rc<Node>) -> Result<()> {
        let submitted = env.tick();
        node.submit(Io::flush()).await?;
        self.flushes.borrow_mut().push((submitted, env.tick()));
        Ok(())
    }

    /// Reads and checks after the death of all processes at `death`, in a world that began then: all that was
    /// acknowledged is certain.
    pub async fn read_after_death(&self, node: &Rc<Node>, at: Range<u64>, death: u64) -> Checked {
        self.read_until(node, at, death, death).await
    }

    /// Reads and checks where somebody has stood still since a moment, while others wrote: nothing is older than what
    /// was acknowledged then.
    pub async fn read_since(&self, node: &Rc<Node>, at: Range<u64>, since: u64) -> Checked {
        self.read_until(node, at, since, u64::MAX).await
    }

    /// Reads and checks: what was acknowledged at `since` is certain, and nothing was submitted after `end`.
    async fn read_until(&self, node: &Rc<Node>, at: Range<u64>, since: u64, end: u64) -> Checked {
        let buf = Buf::zeroed(((at.end - at.start) * BLOCK) as usize);
        node.submit(Io::read(at.start * BLOCK, buf.clone())).await.map_err(told("a read"))?;
        for (block, found) in at.zip(buf.to_vec().chunks_exact(BLOCK as usize)) {
            self.check(block, found, end, |w| w.ended.is_some_and(|ended| ended <= since))?;
        }
        Ok(())
    }

    /// Reads and checks; after a power loss, of which the moment is given, only what was durable then is certain.
    pub async fn read(&self, env: &SimEnv, node: &Rc<Node>, at: Range<u64>, crash: Option<u64>) -> Checked {
        let submitted = env.tick();
        let buf = Buf::zeroed(((at.end - at.start) * BLOCK) as usize);
        node.submit(Io::read(at.start * BLOCK, buf.clone())).await.map_err(told("a read"))?;
        for (block, found) in at.zip(buf.to_vec().chunks_exact(BLOCK as usize)) {
            match crash {
                None => {
                    self.check(block, found, u64::MAX, |w| w.ended.is_some_and(|ended| ended < submitted))?
                }
                Some(crash) => {
                    self.check(block, found, crash, |w| self.durable(w).is_some_and(|at| at <= crash))?
                }
            }
        }
        Ok(())
    }
}

/// One of three workers' requests, to blocks of its own.
pub async fn work(
    history: Rc<History>,
    env: Rc<SimEnv>,
    node: Rc<Node>,
    worker: u64,
    requests: u64,
    faulty: bool,
) -> std::result::Result<(), String> {
    let blocks = SIZE / BLOCK / 24;
    for _ in 0..requests {
        let draw = env.random();
        let start = ((draw >> 8) % blocks * 3 + worker) * 8;
        let from = (draw >> 40) % 8;
        let at = start + from..start + from + 1 + (draw >> 48) % (8 - from);
        let done = match draw % 16 {
            0..8 => {
                let id = history.ids.replace(history.ids.get() + 1) + 2;
                history.write(&env, &node, at, id, draw.is_multiple_of(5)).await
            }
            8 => history.write(&env, &node, at, 0, false).await,
            9..11 => history.flush(&env, &node).await,
            _ => {
                let read = history.read(&env, &node, at, None).await;
                if !faulty {
                    read?
                }
                Ok(())
            }
        };
        match done {
            Err(e) if !faulty => return Err(format!("a request failed: {e}")),
            Err(_) | Ok(()) => {}
        }
        env.sleep(Duration::from_micros(draw >> 16 & 0xFFF)).await;
    }
    Ok(())
}
