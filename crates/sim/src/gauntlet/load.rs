//! Random requests to a subject, recorded in a [`History`] and checked on the way.

use super::history::{Content, End, History, Tick};
use super::subject::{Keeps, Rig, Subject};
use crate::env::SimEnv;
use crate::executor::give_way;
use fastrand::Rng;
use lamina_block::{Buf, Durability, Env, Error, ErrorKind, Extent, ExtentState, Io, Node, Segment, Zero};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// Devices up to this size are covered whole; of larger ones, a few windows.
const WHOLE_MAX: u64 = 1 << 20;
const WINDOW: u64 = 64 << 10;
/// Bytes around a read buffer that must stay as they are.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xA5;

/// When requests may fail.
#[derive(Clone, Copy, Default)]
pub(crate) struct Excuse {
    /// A disk failed one request at this moment: those under way then may fail.
    pub fault: Option<Tick>,
    /// From this moment on any request may fail.
    pub broken: Option<Tick>,
    /// From this moment on requests may fail as closed.
    pub closing: Option<Tick>,
}

/// How a run loads its subject.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub workers: usize,
    /// Requests of each worker.
    pub requests: usize,
    /// The largest request, in granules.
    pub granules_max: u64,
    /// How much of the device is used, in granules; smaller means more overlaps.
    pub spread: u64,
}

impl Style {
    /// A style of about `requests` requests in all.
    pub(crate) fn draw(rng: &mut Rng, requests: usize) -> Style {
        let workers = [1, 2, 4, 8][rng.usize(0..4)];
        Style {
            workers,
            requests: requests.div_ceil(workers),
            granules_max: [1, 8, 32, 128][rng.usize(0..4)],
            spread: [16, 64, u64::MAX][rng.usize(0..3)],
        }
    }
}

/// A subject under load.
pub(crate) struct Load {
    pub env: Rc<SimEnv>,
    pub history: RefCell<History>,
    top: RefCell<Rc<Node>>,
    keeps: Keeps,
    granule: u64,
    arena: Vec<Range<u64>>,
    rng: RefCell<Rng>,
    excuse: Cell<Excuse>,
    problem: RefCell<Option<String>>,
    outstanding: RefCell<BTreeMap<u32, String>>,
}

impl Load {
    /// Takes the present contents of the device for its beginning.
    pub(crate) async fn new(
        subject: &Subject,
        rig: &Rig,
        top: Rc<Node>,
        seed: u64,
    ) -> Result<Rc<Load>, String> {
        let mut rng = Rng::with_seed(seed);
        let geometry = top.geometry();
        let smallest = rig.disk_nodes().iter().map(|n| n.geometry().block).min().unwrap_or(geometry.block);
        let arena = arena(geometry.size, geometry.block.max(geometry.optimal).into(), &mut rng);
        let load = Rc::new(Load {
            env: rig.env(),
            history: RefCell::new(History::new(smallest.min(geometry.block))),
            top: RefCell::new(top),
            keeps: subject.keeps,
            granule: geometry.block.into(),
            arena,
            rng: RefCell::new(rng),
            excuse: Cell::default(),
            problem: RefCell::default(),
            outstanding: RefCell::default(),
        });
        for part in load.arena.clone() {
            let bytes =
                load.fetch(&part).await.map_err(|e| format!("the first read of {part:?} failed: {e}"))?;
            load.history.borrow_mut().begin_with(&part, &bytes);
        }
        Ok(load)
    }

    /// Another life of the same device, in the world `env`: `history` has the earlier lives.
    pub(crate) fn resume(&self, env: Rc<SimEnv>, top: Rc<Node>, history: History, seed: u64) -> Rc<Load> {
        Rc::new(Load {
            env,
            history: RefCell::new(history),
            top: RefCell::new(top),
            keeps: self.keeps,
            granule: self.granule,
            arena: self.arena.clone(),
            rng: RefCell::new(Rng::with_seed(seed)),
            excuse: Cell::default(),
            problem: RefCell::default(),
            outstanding: RefCell::default(),
        })
    }

    pub(crate) fn top(&self) -> Rc<Node> {
        Rc::clone(&self.top.borrow())
    }

    /// Continues with another device over the same disks.
    pub(crate) fn set_top(&self, top: Rc<Node>) {
        *self.top.borrow_mut() = top;
    }

    /// Places that are used.
    pub(crate) fn arena(&self) -> &[Range<u64>] {
        &self.arena
    }

    pub(crate) fn excuse(&self, change: impl FnOnce(&mut Excuse)) {
        let mut excuse = self.excuse.get();
        change(&mut excuse);
        self.excuse.set(excuse);
    }

    /// Notes what is wrong; the first one counts.
    pub(crate) fn complain(&self, what: String) {
        self.problem.borrow_mut().get_or_insert(what);
    }

    /// The first thing that was wrong.
    pub(crate) fn problem(&self) -> Option<String> {
        let finding = self.env.take_finding();
        self.problem.borrow().clone().or(finding)
    }

    /// Requests that have not completed.
    pub(crate) fn outstanding(&self) -> Vec<String> {
        self.outstanding.borrow().values().cloned().collect()
    }

    /// Loads the device until all workers are done.
    pub(crate) async fn run(self: &Rc<Self>, style: Style) {
        let start = |_| {
            let load = Rc::clone(self);
            self.env.start(async move {
                for _ in 0..style.requests {
                    if load.problem.borrow().is_some() {
                        return;
                    }
                    load.pause().await;
                    load.request(style).await;
                }
            })
        };
        let workers: Vec<_> = (0..style.workers).map(start).collect();
        for worker in workers {
            worker.ended().await;
        }
    }

    async fn pause(&self) {
        let draw = self.rng.borrow_mut().u8(..);
        match draw {
            0..160 => {}
            160..230 => give_way().await,
            _ => self.env.sleep(Duration::from_micros(u64::from(draw))).await,
        }
    }

    /// A random request.
    async fn request(&self, style: Style) {
        let (draw, at) = {
            let rng = &mut *self.rng.borrow_mut();
            (rng.u8(0..100), self.draw_range(rng, style))
        };
        match draw {
            0..32 => self.read(at).await,
            32..68 => {
                let fua = self.rng.borrow_mut().u8(0..5) == 0;
                self.write(at, if fua { Durability::Fua } else { Durability::Cached }).await;
            }
            68..78 => {
                let how = {
                    let rng = &mut *self.rng.borrow_mut();
                    let durability = if rng.u8(0..4) == 0 { Durability::Fua } else { Durability::Cached };
                    Zero { unmap: rng.bool(), fast: rng.u8(0..4) == 0, durability }
                };
                self.zero(at, how).await;
            }
            78..84 => self.discard(at).await,
            84..96 => self.flush().await,
            _ => self.extents(at).await,
        }
    }

    fn draw_range(&self, rng: &mut Rng, style: Style) -> Range<u64> {
        let window = &self.arena[rng.usize(0..self.arena.len())];
        let blocks = (window.end - window.start) / self.granule;
        let first = rng.u64(0..blocks.min(style.spread));
        // Small spreads lie at either end of the window.
        let first = if rng.bool() { first } else { blocks - 1 - first };
        let len = rng.u64(1..=style.granules_max.min(blocks - first));
        window.start + first * self.granule..window.start + (first + len) * self.granule
    }

    fn begin(&self, op: &str, at: &Range<u64>) -> (u32, Tick) {
        let id = self.history.borrow_mut().number();
        let now = self.env.tick();
        self.outstanding.borrow_mut().insert(id, format!("{op} #{id} of {at:?}"));
        (id, now)
    }

    /// Ends a request: was it right to fail?
    fn finish(&self, id: u32, submitted: Tick, result: &lamina_block::Result<()>) -> Tick {
        let now = self.env.tick();
        let what = self.outstanding.borrow_mut().remove(&id).unwrap_or_default();
        if let Err(e) = result {
            let excuse = self.excuse.get();
            let fault = excuse.fault.is_some_and(|at| submitted < at && at <= now);
            let broken = excuse.broken.is_some_and(|at| at <= now);
            let closed = e.kind() == ErrorKind::Offline && excuse.closing.is_some_and(|at| at <= now);
            if !(fault || broken || closed) {
                self.complain(format!("{what} failed without a reason: {e}"));
            } else if e.device().is_none() {
                self.complain(format!("{what} failed, and the error names no device: {e}"));
            }
        }
        now
    }

    /// A read buffer of `len` bytes between guards, in one or two segments.
    fn guarded(&self, len: usize) -> (Buf, Buf) {
        let whole = Buf::from_vec(vec![GUARD_BYTE; len + 2 * GUARD]);
        let mut inner = Buf::empty();
        let cut = self.rng.borrow_mut().usize(0..=len);
        match self.rng.borrow_mut().u8(0..3) {
            0 => {
                let second = Buf::from_vec(vec![GUARD_BYTE; len - cut]);
                inner.append(whole.slice(GUARD..GUARD + cut));
                inner.append(second);
            }
            1 => {
                inner = self.env.pool().take(len);
                inner.fill(GUARD_BYTE);
            }
            _ => inner = whole.slice(GUARD..GUARD + len),
        }
        (inner, whole)
    }

    fn check_guards(&self, inner: &Buf, whole: &Buf) -> Result<(), String> {
        let bytes = whole.to_vec();
        let tail = bytes.len() - GUARD;
        let within = GUARD + inner.segments().first().map_or(0, |s| s.len());
        let touched = bytes[..GUARD].iter().chain(&bytes[tail..]).any(|b| *b != GUARD_BYTE);
        let beyond =
            within < tail && inner.segments().len() > 1 && bytes[within..].iter().any(|b| *b != GUARD_BYTE);
        if touched || beyond { Err("memory beside the buffer was written".into()) } else { Ok(()) }
    }

    /// Reads without judging.
    pub(crate) async fn fetch(&self, at: &Range<u64>) -> lamina_block::Result<Vec<u8>> {
        let buf = Buf::zeroed((at.end - at.start) as usize);
        let top = self.top();
        top.submit(Io::read(at.start, buf.clone())).await?;
        Ok(buf.to_vec())
    }

    pub(crate) async fn read(&self, at: Range<u64>) {
        let (buf, whole) = self.guarded((at.end - at.start) as usize);
        let (id, submitted) = self.begin("read", &at);
        let top = self.top();
        let result = top.submit(Io::read(at.start, buf.clone())).await;
        let now = self.finish(id, submitted, &result);
        if result.is_ok() {
            let mut found = self.check_guards(&buf, &whole);
            if found.is_ok() {
                found = self.history.borrow_mut().check_read(&at, &buf.to_vec(), submitted, now);
            }
            if let Err(e) = found {
                self.complain(format!("read #{id} of {at:?}: {e}"));
            }
        }
        self.check_owner(&buf, &whole, "read", id);
    }

    /// A completed request must not keep its memory.
    fn check_owner(&self, buf: &Buf, whole: &Buf, op: &str, id: u32) {
        let ours = || buf.segments().iter().chain(whole.segments());
        let held = |s: &Segment| {
            Rc::strong_count(s.owner()) > ours().filter(|o| Rc::ptr_eq(o.owner(), s.owner())).count()
        };
        if buf.segments().iter().any(held) {
            self.complain(format!("{op} #{id} is complete, but its buffer is still referenced"));
        }
    }

    pub(crate) async fn write(&self, at: Range<u64>, durability: Durability) {
        let (id, submitted) = self.begin("write", &at);
        let bytes = self.history.borrow().bytes(id, &at);
        let (buf, whole) = self.guarded(bytes.len());
        buf.write(0, &bytes);
        self.submit_change(id, &at, Content::Write(id), submitted);
        let top = self.top();
        let result = top.submit(Io::write(at.start, buf.clone(), durability)).await;
        let now = self.finish(id, submitted, &result);
        self.end_change(id, &at, &result, durability, now);
        if buf.to_vec() != bytes {
            self.complain(format!("write #{id} of {at:?}: the layer changed the caller's buffer"));
        }
        self.check_owner(&buf, &whole, "write", id);
    }

    async fn zero(&self, at: Range<u64>, how: Zero) {
        let (id, submitted) = self.begin("zero", &at);
        self.submit_change(id, &at, Content::Zero, submitted);
        let top = self.top();
        let result = top.submit(Io::zero(at.clone(), how)).await;
        let refused = matches!(&result, Err(e) if how.fast && e.kind() == ErrorKind::Unsupported);
        let now = self.finish(id, submitted, if refused { &Ok(()) } else { &result });
        self.end_change(id, &at, &result, how.durability, now);
    }

    async fn discard(&self, at: Range<u64>) {
        let (id, submitted) = self.begin("discard", &at);
        self.submit_change(id, &at, Content::Zero, submitted);
        let top = self.top();
        let result = top.submit(Io::discard(at.clone())).await;
        let now = self.finish(id, submitted, &result);
        if self.keeps != Keeps::Nothing {
            self.history.borrow_mut().end(id, &at, End::Unsure, now);
        }
    }

    fn submit_change(&self, id: u32, at: &Range<u64>, content: Content, now: Tick) {
        if self.keeps != Keeps::Nothing {
            self.history.borrow_mut().submit(id, at, content, now);
        }
    }

    fn end_change(
        &self,
        id: u32,
        at: &Range<u64>,
        result: &lamina_block::Result<()>,
        durability: Durability,
        now: Tick,
    ) {
        let end = match (result, durability) {
            (Ok(()), Durability::Fua) => End::Durable,
            (Ok(()), Durability::Cached) => End::Done,
            (Err(_), _) => End::Unsure,
        };
        if self.keeps != Keeps::Nothing {
            self.history.borrow_mut().end(id, at, end, now);
        }
    }

    pub(crate) async fn flush(&self) {
        let (id, submitted) = self.begin("flush", &(0..0));
        let top = self.top();
        let result = top.submit(Io::flush()).await;
        let now = self.finish(id, submitted, &result);
        if result.is_ok() {
            self.history.borrow_mut().flushed(submitted, now);
        }
    }

    async fn extents(&self, at: Range<u64>) {
        let (id, submitted) = self.begin("extents", &at);
        let top = self.top();
        let result = top.extents(at.clone()).await;
        let now = self.finish(id, submitted, &result.as_ref().map(drop).map_err(Error::clone));
        let Ok(extents) = result else { return };
        if let Err(e) = self.check_extents(&at, &extents, submitted, now) {
            self.complain(format!("extents #{id} of {at:?}: {e}"));
        }
    }

    fn check_extents(
        &self,
        at: &Range<u64>,
        extents: &[Extent],
        submitted: Tick,
        now: Tick,
    ) -> Result<(), String> {
        let mut from = at.start;
        for extent in extents {
            let Some(to) = from.checked_add(extent.len).filter(|to| extent.len > 0 && *to <= at.end) else {
                return Err(format!("a run of {} bytes at {from}", extent.len));
            };
            match extent.state {
                ExtentState::Zero | ExtentState::Hole => {
                    self.history.borrow().check_zero(&(from..to), submitted, now)?;
                }
                ExtentState::Data => {}
            }
            from = to;
        }
        if from == at.end { Ok(()) } else { Err(format!("the runs end at {from}")) }
    }

    /// Reads everything that is used at the beginning of a life; `is_durable` after a power loss.
    pub(crate) async fn find(&self, is_durable: bool) {
        self.read_all().await;
        for part in self.arena.iter().filter(|_| is_durable) {
            let found = match self.fetch(part).await {
                Ok(bytes) => self.history.borrow_mut().find(part, &bytes, self.env.tick()),
                Err(e) => Err(format!("the device cannot be read: {e}")),
            };
            if let Err(e) = found {
                self.complain(format!("{part:?}: {e}"));
            }
        }
    }

    /// Reads everything that is used.
    pub(crate) async fn read_all(&self) {
        for part in self.arena.clone() {
            self.read(part).await;
        }
    }
}

/// The places of a device that are used: all of it, or windows at both ends and around drawn boundaries.
fn arena(size: u64, boundary: u64, rng: &mut Rng) -> Vec<Range<u64>> {
    if size <= WHOLE_MAX {
        return std::iter::once(0..size).collect();
    }
    let mut starts = vec![0, size / boundary * boundary - WINDOW.max(boundary)];
    starts.extend((0..2).map(|_| rng.u64(0..(size - 2 * WINDOW) / boundary) * boundary));
    starts.sort_unstable();
    let mut windows: Vec<Range<u64>> = Vec::new();
    for start in starts {
        let from = windows.last().map_or(start, |last| start.max(last.end));
        let end = if start + 2 * WINDOW >= size { size } else { start + WINDOW };
        if from < end {
            windows.push(from..end);
        }
    }
    windows
}
