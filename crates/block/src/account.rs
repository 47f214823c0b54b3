//! Where the time of requests goes: of some requests, the whole way.
//!
//! ```text
//!      vm1   ├──────────────── write ─────────────────┤     a request, at the device that keeps it
//!              ├ room ┤                                     a wait, with its cause
//!      cache           ├──── write ────┤                    requests below, submitted while that one is polled
//!      san                 ├──────── read ────────┤
//!            ├vm1┤ room ├cache┤──── san ──────────┤vm1┤     the account: each moment once
//! ```
//!
//! At each moment the account goes to what the request waited for, and of several things to the one that ended last:
//! what ended before was not what it waited for. So the parts of a request add up to its time.
//!
//! A request is looked at by a count that is drawn anew each time: bursts are not seen at their beginnings only. So is
//! the one after a slow one: after many quick ones the count may be longer than all that come while things stand still.
//! One that is not looked at costs a few instructions. What a layer does in a task of its own belongs to no request:
//! the requests that wait for it say so ([`wait_on`]).

use crate::{Deferred, Env, Io, Node, OpKind, Result, Time};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Requests that are kept of a device, the last ones.
const KEPT: usize = 512;
/// The slowest ones of [`RECENT`] that are kept besides.
const SLOWEST: usize = 8;
const RECENT: Duration = Duration::from_secs(300);
/// Of so many requests one is looked at, at least.
const FEWEST: f64 = 65536.0;
/// A request that took so long is slow.
pub(crate) const SLOW: Duration = Duration::from_millis(1);
/// Requests and waits below one request, at most: more of them count for the device that has made them.
const SPANS: usize = 256;

/// What a request waits for inside a device, and not below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The layer itself, which says nothing else: computing, or a device that is no node.
    Itself,
    /// Other requests for the same bytes, or copying of them.
    Lock,
    /// Room in a buffer, a log or on a flash.
    Room,
    /// Its turn: the device has as many requests as it is given at a time.
    Queue,
    /// Held back to the speed of what is slower below.
    FlowControl,
    /// Metadata of the layer, which are to be on disk before.
    Metadata,
    /// Other hosts: their answers, or the volume itself.
    Hosts,
    /// A change of the hierarchy.
    Change,
}

impl Cause {
    /// Its name, as in the control API.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Itself => "itself",
            Cause::Lock => "lock",
            Cause::Room => "room",
            Cause::Queue => "queue",
            Cause::FlowControl => "flow-control",
            Cause::Metadata => "metadata",
            Cause::Hosts => "hosts",
            Cause::Change => "change",
        }
    }
}

/// A part of the time of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The name of the device.
    pub device: Rc<str>,
    /// What the request waited for there.
    pub cause: Cause,
    /// How long.
    pub took: Duration,
}

/// Reads that a device has made for a request that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reads {
    /// The name of the device.
    pub device: Rc<str>,
    /// How many.
    pub count: u32,
    /// From the begin of the first until the end of the last.
    pub took: Duration,
}

/// A request that was looked at.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What it was.
    pub op: OpKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it began.
    pub began: Time,
    /// Requests that were under way at the device then, this one included.
    pub depth: u32,
    /// Where its time went, in the order of time: these add up to it.
    pub parts: Vec<Part>,
    /// Reads that were made for it, if it is none itself.
    pub reads: Vec<Reads>,
    /// The work that its core had done when it ended: [`Env::worked`].
    pub worked: Duration,
}

impl Sample {
    /// How long the request took.
    pub fn took(&self) -> Duration {
        self.parts.iter().map(|part| part.took).sum()
    }
}

/// The account of a device: requests that its clients made, and where their time went.
#[derive(Default)]
pub struct Account {
    /// Requests until one is looked at; 0: none is.
    left: Cell<u32>,
    /// How many of them, on average.
    interval: Cell<u32>,
    /// So many a second are to be looked at.
    rate: Cell<u32>,
    /// When the last one was looked at.
    last: Cell<Option<Time>>,
    samples: RefCell<VecDeque<Rc<Sample>>>,
    slowest: RefCell<Vec<Rc<Sample>>>,
}

impl Account {
    /// Looks at so many requests a second from now on, about; at none with 0, which it begins with.
    pub fn set_rate(&self, rate: u32) {
        self.rate.set(rate);
        self.interval.set(1);
        self.left.set(u32::from(rate > 0));
    }

    /// The last requests that were looked at, the oldest first.
    pub fn samples(&self) -> Vec<Rc<Sample>> {
        self.samples.borrow().iter().cloned().collect()
    }

    /// The slowest ones of the last minutes, the slowest first.
    pub fn slowest(&self, now: Time) -> Vec<Rc<Sample>> {
        self.slowest.borrow().iter().filter(|sample| now.since(sample.began) < RECENT).cloned().collect()
    }

    /// True if this request is to be looked at.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        let left = self.left.get();
        if left > 1 {
            self.left.set(left - 1);
        }
        left == 1
    }

    /// After how many requests the next one is looked at.
    #[cold]
    fn draw(&self, env: &Rc<dyn Env>) {
        let (now, interval) = (env.now(), self.interval.get());
        let interval = self.last.replace(Some(now)).map_or(1, |last| {
            let wanted = f64::from(interval) / (now.since(last).as_secs_f64() * f64::from(self.rate.get()));
            // One time between two requests says little of the others.
            wanted.clamp(1.0, f64::from(interval) * 2.0 + 1.0).min(FEWEST) as u32
        });
        self.interval.set(interval);
        self.left.set(1 + (env.random() % (2 * u64::from(interval) - 1)) as u32);
    }

    /// A request was slow: the next one is looked at, unless one was lately.
    #[cold]
    pub(crate) fn was_slow(&self, now: Time) {
        let rate = f64::from(self.rate.get());
        let is_late = |last: Time| now.since(last).as_secs_f64() * rate >= 1.0;
        if rate > 0.0 && self.last.get().is_none_or(is_late) {
            self.left.set(1);
        }
    }

    fn add(&self, sample: Sample) {
        let sample = Rc::new(sample);
        let mut samples = self.samples.borrow_mut();
        if samples.len() >= KEPT {
            samples.pop_front();
        }
        samples.push_back(Rc::clone(&sample));
        let mut slowest = self.slowest.borrow_mut();
        slowest.retain(|other| sample.began.since(other.began) < RECENT);
        slowest.push(sample);
        slowest.sort_by_key(|sample| std::cmp::Reverse(sample.took()));
        slowest.truncate(SLOWEST);
    }
}

thread_local! {
    /// The requests that are being polled, or made, if they are looked at: each one below the one before.
    static HERE: RefCell<Vec<Here>> = const { RefCell::new(Vec::new()) };
    /// There is one.
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

fn here() -> Option<Here> {
    HERE.with_borrow(|here| here.last().cloned())
}

/// A request, or a wait, below one that is looked at.
#[derive(Clone)]
pub(crate) struct Here {
    way: Rc<Way>,
    span: usize,
}

/// The way of a request that is looked at.
struct Way {
    root: Rc<Node>,
    bytes: u64,
    depth: u32,
    spans: RefCell<Vec<Span>>,
}

struct Span {
    parent: usize,
    device: Rc<str>,
    op: OpKind,
    cause: Cause,
    began: Time,
    ended: Option<Time>,
}

impl Here {
    /// A request comes to a node: below one that is looked at, or as one whose turn it is.
    pub(crate) fn begin(node: &Rc<Node>, io: &Io) -> Option<Here> {
        if node.account().is_due() {
            node.account().draw(node.env());
        }
        let (device, op) = (node.shared_name(), io.op.kind());
        if let Some(above) = here() {
            return above.span_below(device, Some(op), Cause::Itself);
        }
        let root = Span { parent: 0, device, op, cause: Cause::Itself, began: node.now(), ended: None };
        let (bytes, depth) = (io.len(), node.stats().in_flight() + 1);
        let way = Way { root: Rc::clone(node), bytes, depth, spans: RefCell::new(vec![root]) };
        Some(Here { way: Rc::new(way), span: 0 })
    }

    /// It was forwarded to this node, which has kept it.
    pub(crate) fn is_kept_at(&self, node: Option<&Rc<Node>>) {
        if let (Some(span), Some(node)) = (self.way.spans.borrow_mut().get_mut(self.span), node) {
            span.device = node.shared_name();
        }
    }

    /// It has ended at once.
    pub(crate) fn was_nothing(&self) {
        if self.span > 0 {
            self.end();
        }
    }

    /// `op`: of a request; a wait is of the request that waits.
    fn span_below(&self, device: Rc<str>, op: Option<OpKind>, cause: Cause) -> Option<Here> {
        let mut spans = self.way.spans.borrow_mut();
        let is_over = spans.first().is_none_or(|root| root.ended.is_some());
        if is_over || spans.len() >= SPANS {
            return None;
        }
        let op = op.or_else(|| spans.get(self.span).map(|span| span.op))?;
        let began = self.way.root.now();
        spans.push(Span { parent: self.span, device, op, cause, began, ended: None });
        Some(Here { way: Rc::clone(&self.way), span: spans.len() - 1 })
    }

    /// It is polled, or made, while what this gives lives.
    pub(crate) fn enter(&self) -> Entered {
        IS_HERE.set(true);
        HERE.with_borrow_mut(|here| here.push(self.clone()));
        Entered
    }

    /// It is over. If it is the whole request, that one's account is kept.
    pub(crate) fn end(&self) {
        let now = self.way.root.now();
        let mut spans = self.way.spans.borrow_mut();
        if let Some(span) = spans.get_mut(self.span) {
            span.ended.get_or_insert(now);
        }
        if self.span > 0 || spans.is_empty() {
            return;
        }
        let (op, began) = (spans[0].op, spans[0].began);
        let mut parts = parts(&spans, 0, began, now);
        parts.reverse();
        let reads = reads(&spans, now);
        spans.clear();
        drop(spans);
        let Way { root, bytes, depth, .. } = &*self.way;
        let (bytes, depth, worked) = (*bytes, *depth, root.env().worked());
        root.account().add(Sample { op, bytes, began, depth, parts, reads, worked });
    }
}

/// True while a request that is looked at is polled, or made.
#[inline]
pub(crate) fn is_here() -> bool {
    IS_HERE.get()
}

/// While a request that is looked at is polled, or made.
pub(crate) struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        let is_here = HERE.with_borrow_mut(|here| {
            here.pop();
            !here.is_empty()
        });
        IS_HERE.set(is_here);
    }
}

/// A request that is looked at.
pub(crate) struct LookedAt {
    here: Here,
    request: Deferred,
}

impl LookedAt {
    pub(crate) fn new(here: Here, request: Deferred) -> LookedAt {
        LookedAt { here, request }
    }
}

impl Future for LookedAt {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let entered = self.here.enter();
        let result = Pin::new(&mut self.request).poll(cx);
        drop(entered);
        if result.is_ready() {
            self.here.end();
        }
        result
    }
}

impl Drop for LookedAt {
    /// If it is given up before its end, it is over.
    fn drop(&mut self) {
        self.here.end();
    }
}

/// The request that is being polled waits for this as long as what this gives lives.
#[inline]
pub fn wait(cause: Cause) -> Waits {
    Waits(if IS_HERE.get() { waiting(cause, None) } else { None })
}

/// The same, for a request of a device below that another task has made or makes.
#[inline]
pub fn wait_on(device: &Node) -> Waits {
    Waits(if IS_HERE.get() { waiting(Cause::Itself, Some(device)) } else { None })
}

#[cold]
fn waiting(cause: Cause, on: Option<&Node>) -> Option<Here> {
    let here = self::here()?;
    let own = || here.way.spans.borrow().get(here.span).map(|span| Rc::clone(&span.device));
    here.span_below(on.map(Node::shared_name).or_else(own)?, None, cause)
}

/// While a request waits.
#[must_use = "it does not wait any more when this is dropped"]
pub struct Waits(Option<Here>);

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(here) = &self.0 {
            here.end();
        }
    }
}

/// The parts of a span between two moments, the last first.
fn parts(spans: &[Span], of: usize, from: Time, until: Time) -> Vec<Part> {
    let (mut parts, mut until) = (Vec::new(), until);
    let own = |from: Time, until: Time, parts: &mut Vec<Part>| {
        let (device, cause) = (&spans[of].device, spans[of].cause);
        push(parts, Part { device: Rc::clone(device), cause, took: until.since(from) });
    };
    loop {
        // Of what went on before, what ended last.
        let end = |span: &Span| span.ended.unwrap_or(until).min(until);
        let below = spans.iter().enumerate().skip(of + 1);
        let last = below
            .filter(|(_, span)| span.parent == of && span.began < until && end(span) > from)
            .max_by_key(|(_, span)| (end(span), span.began));
        let Some((number, span)) = last else { break };
        let (began, ended) = (span.began.max(from), end(span));
        own(ended, until, &mut parts);
        for part in self::parts(spans, number, began, ended) {
            push(&mut parts, part);
        }
        until = began;
    }
    own(from, until, &mut parts);
    parts
}

/// Reads that devices have made for requests which are none, until `now`.
fn reads(spans: &[Span], now: Time) -> Vec<Reads> {
    let mut found: Vec<(Reads, Time)> = Vec::new();
    for span in spans.iter().skip(1).filter(|span| span.op == OpKind::Read) {
        let by = &spans[span.parent];
        if by.op == OpKind::Read {
            continue;
        }
        let ended = span.ended.unwrap_or(now).min(now);
        match found.iter_mut().find(|(reads, _)| reads.device == by.device) {
            Some((reads, began)) => {
                reads.count += 1;
                reads.took = reads.took.max(ended.since(*began));
            }
            None => {
                let took = ended.since(span.began);
                found.push((Reads { device: Rc::clone(&by.device), count: 1, took }, span.began));
            }
        }
    }
    found.into_iter().map(|(reads, _)| reads).collect()
}

/// Adds a part to those after it.
fn push(parts: &mut Vec<Part>, part: Part) {
    match parts.last_mut() {
        _ if part.took.is_zero() => {}
        Some(next) if next.device == part.device && next.cause == part.cause => next.took += part.took,
        _ => parts.push(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(parent: usize, device: &str, cause: Cause, at: std::ops::Range<u64>) -> Span {
        let (began, ended) = (Time(at.start), Some(Time(at.end)));
        Span { parent, device: device.into(), op: OpKind::Write, cause, began, ended }
    }

    /// The account of spans, of which the first one is the request.
    fn account(spans: &[Span]) -> Vec<String> {
        let (from, until) = (spans[0].began, spans[0].ended.expect("it is over"));
        let mut parts = parts(spans, 0, from, until);
        parts.reverse();
        let took: u64 = parts.iter().map(|part| part.took.as_nanos() as u64).sum();
        assert_eq!(took, until.0 - from.0, "the parts add up");
        parts
            .iter()
            .map(|part| format!("{} {} {}", part.device, part.cause.name(), part.took.as_nanos()))
            .collect()
    }

    #[test]
    fn each_moment_counts_once() {
        let spans = [
            span(0, "vm1", Cause::Itself, 0..100),
            span(0, "vm1", Cause::Room, 10..30),
            span(0, "cache", Cause::Itself, 30..60),
            span(0, "san", Cause::Itself, 40..90),
        ];
        let expected = ["vm1 itself 10", "vm1 room 20", "cache itself 10", "san itself 50", "vm1 itself 10"];
        assert_eq!(account(&spans), expected);
    }

    #[test]
    fn what_ended_before_was_not_waited_for() {
        let legs = [
            span(0, "raid", Cause::Itself, 0..50),
            span(0, "a", Cause::Itself, 0..10),
            span(0, "b", Cause::Itself, 0..50),
        ];
        assert_eq!(account(&legs), ["b itself 50"]);
    }

    #[test]
    fn what_is_below_counts_there() {
        let spans = [
            span(0, "vm1", Cause::Itself, 0..100),
            span(0, "raid", Cause::Itself, 20..80),
            span(1, "raid", Cause::Lock, 20..50),
            span(1, "disk", Cause::Itself, 50..80),
        ];
        assert_eq!(account(&spans), ["vm1 itself 20", "raid lock 30", "disk itself 30", "vm1 itself 20"]);
    }

    #[test]
    fn reads_for_a_write_are_told_of_the_device_that_made_them() {
        let read = |parent, device, at| Span { op: OpKind::Read, ..span(parent, device, Cause::Itself, at) };
        let spans = [
            span(0, "vm1", Cause::Itself, 0..100),
            span(0, "raid", Cause::Itself, 10..90),
            read(1, "a", 20..40),
            // What is read to answer a read is that one's.
            read(2, "cell", 22..39),
            read(1, "b", 15..30),
            read(0, "index", 5..7),
            read(1, "c", 30..120),
        ];
        let told: Vec<_> = reads(&spans, Time(100))
            .into_iter()
            .map(|reads| format!("{} {} {}", reads.device, reads.count, reads.took.as_nanos()))
            .collect();
        assert_eq!(told, ["raid 3 80", "vm1 1 2"]);
    }

    #[test]
    fn what_goes_on_afterwards_ends_with_the_request() {
        let mut spans = [span(0, "vm1", Cause::Itself, 10..20), span(0, "disk", Cause::Itself, 5..99)];
        spans[1].ended = None;
        assert_eq!(account(&spans), ["disk itself 10"]);
        spans[1].ended = Some(Time(99));
        assert_eq!(account(&spans), ["disk itself 10"]);
    }
}
