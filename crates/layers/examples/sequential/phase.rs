//! A phase of a load, and what it measured.

use super::drives::BLOCK;
use super::loads;
use super::stack::{Counted, Load, Stack};
use super::trace::Trace;
use lamina_block::{Buf, Bytes, Durability, Env, Io, Result, Signal, Time};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a write of `fill`.
const FILL: u64 = 256 << 10;
/// The time of a request that takes none: otherwise none passes for others either.
const ANSWERED: Duration = Duration::from_micros(1);

/// What is done.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Read,
    Write,
}

/// A phase.
pub struct Phase {
    word: String,
    kind: Kind,
}

enum Kind {
    Fill { within: Option<u64> },
    Uniform { times: f64, within: Option<u64>, act: Act },
    Zipf { times: f64 },
    Trace { file: PathBuf, times: usize, copies: u32 },
    Rate { iops: f64, times: f64 },
    Read { len: u64 },
    Idle { time: Duration },
}

fn number<T: std::str::FromStr>(word: &str, text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|_| format!("{word}: {text:?} is no number"))
}

impl Phase {
    /// What `word` says.
    pub fn parse(word: &str) -> std::result::Result<Phase, String> {
        let parts: Vec<&str> = word.split(':').collect();
        let bytes = |text| number::<Bytes>(word, text).map(|bytes| bytes.0);
        let uniform = |times, within, act| Ok(Kind::Uniform { times: number(word, times)?, within, act });
        let kind = match parts[..] {
            ["fill"] => Ok(Kind::Fill { within: None }),
            ["fill", within] => Ok(Kind::Fill { within: Some(bytes(within)?) }),
            ["write", times] => uniform(times, None, Act::Write),
            ["random", times] => uniform(times, None, Act::Read),
            ["first", times, within] => uniform(times, Some(bytes(within)?), Act::Write),
            ["zipf", times] => Ok(Kind::Zipf { times: number(word, times)? }),
            ["trace", file, times, copies] => Ok(Kind::Trace {
                file: file.into(),
                times: number(word, times)?,
                copies: number(word, copies)?,
            }),
            ["rate", iops, times] => {
                Ok(Kind::Rate { iops: number(word, iops)?, times: number(word, times)? })
            }
            ["read", len] => Ok(Kind::Read { len: bytes(len)? }),
            ["idle", seconds] => Ok(Kind::Idle { time: Duration::from_secs_f64(number(word, seconds)?) }),
            _ => Err(format!("{word}: there is no such phase")),
        }?;
        Ok(Phase { word: word.into(), kind })
    }

    /// Runs it: a line of JSON.
    pub async fn run(self, stack: &Stack, load: Load) -> std::result::Result<Value, String> {
        let (begin, before) = (stack.env.now(), stack.counted());
        let run = Run::new(stack, load);
        let blocks = stack.top.geometry().size / BLOCK;
        let count = |times: f64| (times * blocks as f64) as usize;
        let at = |block: u32| (u64::from(block) * BLOCK, BLOCK);
        let done = match self.kind {
            Kind::Fill { within } => {
                let size = within.unwrap_or(u64::MAX).min(blocks * BLOCK) / BLOCK * BLOCK;
                run.closed(in_order(size, FILL), Act::Write).await
            }
            Kind::Read { len } => run.closed(in_order(blocks * BLOCK, len.max(BLOCK)), Act::Read).await,
            Kind::Uniform { times, within, act } => {
                let within = within.map_or(blocks, |within| (within / BLOCK).clamp(1, blocks));
                let count = (times * within as f64) as usize;
                run.closed(loads::uniform(within as u32).map(at).take(count), act).await
            }
            Kind::Zipf { times } => {
                run.closed(loads::zipf(blocks as u32).map(at).take(count(times)), Act::Write).await
            }
            Kind::Trace { file, times, copies } => {
                let places = replayed(&file, times, copies, blocks)?;
                run.closed(places.map(at), Act::Write).await
            }
            Kind::Rate { iops, times } => {
                let places = loads::uniform(blocks as u32).map(at).take(count(times));
                run.open(places, Duration::from_secs_f64(1.0 / iops)).await
            }
            Kind::Idle { time } => {
                stack.env.sleep(time).await;
                Ok(())
            }
        };
        done.map_err(|e| format!("{}: {e}", self.word))?;
        let seconds = stack.env.now().since(begin).as_secs_f64();
        Ok(report(&self.word, seconds, &mut run.took.borrow_mut(), before, stack))
    }
}

/// Places and lengths of requests that go over `size` bytes once.
fn in_order(size: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..size.div_ceil(len)).map(move |number| (number * len, len.min(size - number * len)))
}

/// The blocks that a trace writes, so many times, by as many clients side by side as there are copies.
fn replayed(
    file: &std::path::Path,
    times: usize,
    copies: u32,
    blocks: u64,
) -> std::result::Result<impl Iterator<Item = u32> + use<>, String> {
    let (used, once) = traced(file)?;
    if u64::from(used) * u64::from(copies) > blocks {
        return Err(format!("{}: {copies} times {used} blocks are more than {blocks}", file.display()));
    }
    let all = (0..times).flat_map(move |_| once.clone());
    Ok(all.flat_map(move |block| (0..copies).map(move |copy| copy * used + block)))
}

/// How many blocks a trace writes at all, and those that it writes, in their order.
pub fn traced(file: &std::path::Path) -> std::result::Result<(u32, Vec<u32>), String> {
    let trace = Trace::read(file).map_err(|e| e.to_string())?;
    let trace = trace.ok_or_else(|| format!("{}: by its name it is no trace", file.display()))?;
    Ok(loads::writes(&trace))
}

/// Requests under way, and how long others took.
struct Run {
    stack: Rc<Parts>,
    depth: u32,
    took: Rc<RefCell<Vec<u64>>>,
}

/// What workers share.
struct Parts {
    env: Rc<lamina_sim::SimEnv>,
    top: Rc<lamina_block::Node>,
    flush: Option<u64>,
    written: Cell<u64>,
    data: Buf,
    working: Cell<u32>,
    moved: Signal,
    failed: RefCell<Option<lamina_block::Error>>,
}

impl Parts {
    async fn ask(&self, (at, len): (u64, u64), act: Act) -> Result<()> {
        let data = self.data.slice(0..len as usize);
        match act {
            Act::Read => return self.top.submit(Io::read(at, data)).await,
            Act::Write => self.top.submit(Io::write(at, data, Durability::Cached)).await?,
        }
        self.written.set(self.written.get() + 1);
        match self.flush {
            Some(every) if self.written.get().is_multiple_of(every) => self.top.submit(Io::flush()).await,
            Some(_) | None => Ok(()),
        }
    }

    async fn timed(&self, place: (u64, u64), act: Act) -> Option<u64> {
        let begin: Time = self.env.now();
        if let Err(e) = self.ask(place, act).await {
            self.failed.borrow_mut().get_or_insert(e);
            return None;
        }
        if self.env.now() == begin {
            self.env.sleep(ANSWERED).await;
        }
        Some(self.env.now().since(begin).as_nanos() as u64)
    }

    fn ended(&self) {
        self.working.set(self.working.get() - 1);
        self.moved.notify();
    }
}

impl Run {
    fn new(stack: &Stack, load: Load) -> Run {
        let longest = (1 << 20).max(FILL as usize);
        let data = Buf::from_vec((0..longest).map(|at| (at / 512) as u8).collect());
        let parts = Parts {
            env: Rc::clone(&stack.env),
            top: Rc::clone(&stack.top),
            flush: load.flush,
            written: Cell::new(0),
            data,
            working: Cell::new(0),
            moved: Signal::new(),
            failed: RefCell::default(),
        };
        Run { stack: Rc::new(parts), depth: load.depth, took: Rc::default() }
    }

    /// So many requests at a time, one after the other.
    async fn closed(&self, places: impl Iterator<Item = (u64, u64)> + 'static, act: Act) -> Result<()> {
        let places = Rc::new(RefCell::new(places));
        for _ in 0..self.depth {
            let (parts, places, took) = (Rc::clone(&self.stack), Rc::clone(&places), Rc::clone(&self.took));
            parts.working.set(parts.working.get() + 1);
            self.stack.env.spawn(Box::pin(async move {
                loop {
                    let Some(place) = places.borrow_mut().next() else { break };
                    let Some(ns) = parts.timed(place, act).await else { break };
                    took.borrow_mut().push(ns);
                }
                parts.ended();
            }));
        }
        self.end().await
    }

    /// A write begins whenever so much time has passed.
    async fn open(&self, places: impl Iterator<Item = (u64, u64)>, every: Duration) -> Result<()> {
        let mut next = self.stack.env.now();
        for place in places {
            let now = self.stack.env.now();
            next = next.after(every);
            if next > now {
                self.stack.env.sleep(next.since(now)).await;
            }
            let (parts, took) = (Rc::clone(&self.stack), Rc::clone(&self.took));
            parts.working.set(parts.working.get() + 1);
            self.stack.env.spawn(Box::pin(async move {
                let ns = parts.timed(place, Act::Write).await;
                took.borrow_mut().extend(ns);
                parts.ended();
            }));
        }
        self.end().await
    }

    async fn end(&self) -> Result<()> {
        self.stack.moved.until(|| self.stack.working.get() == 0).await;
        self.stack.failed.take().map_or(Ok(()), Err)
    }
}

/// What a phase did.
fn report(word: &str, seconds: f64, took: &mut [u64], before: Counted, stack: &Stack) -> Value {
    took.sort_unstable();
    let at = |share: f64| {
        took.get((took.len() as f64 * share) as usize).or(took.last()).map(|ns| *ns as f64 / 1e6)
    };
    let after = stack.counted();
    let user = (after.user - before.user) as f64;
    let per_user = |bytes: u64| (user > 0.0).then(|| bytes as f64 / user);
    let info = stack.info();
    json!({
        "phase": word,
        "seconds": seconds,
        "requests": took.len(),
        "iops": took.len() as f64 / seconds.max(1e-9),
        "mean_ms": took.iter().sum::<u64>() as f64 / 1e6 / took.len().max(1) as f64,
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "p999_ms": at(0.999),
        "max_ms": took.last().map(|ns| *ns as f64 / 1e6),
        "user_bytes": user,
        "amplification": per_user(after.log - before.log),
        "copied_per_user": per_user(after.copied - before.copied),
        "metadata_per_user": per_user(after.metadata - before.metadata),
        "written_per_user": per_user(after.written - before.written),
        "read_per_user": per_user(after.read - before.read),
        "volume_bytes": stack.top.geometry().size,
        "info": info,
    })
}
