//! The way of a request down through the nodes, and its completion in all of them.
//!
//! A request *walks* down through layers that only forward it, to the layer that keeps or completes it. A walk that
//! ends at once lives on the stack of [`Node::submit`]. For a request that a layer keeps, the walk moves into the
//! allocation of the layer's future ([`Deferred`]), so that neither forwarding nor counting needs one.

use crate::account::{Here, LookedAt, SLOW};
use crate::stats::Outcome;
use crate::{Io, Node, OpKind, Result, Time, probe};
use arrayvec::ArrayVec;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// The most nodes of one walk. Beyond the last of them the request becomes a new one.
const NODES: usize = 12;

/// The nodes that a request has passed since it was submitted, from above.
pub(crate) struct Walk {
    nodes: ArrayVec<Rc<Node>, NODES>,
    op: OpKind,
    bytes: u64,
}

impl Walk {
    #[inline]
    pub(crate) fn new(io: &Io) -> Walk {
        Walk { nodes: ArrayVec::new_const(), op: io.op.kind(), bytes: io.len() }
    }

    /// True if there is space for one more node only, which must be the last.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.nodes.len() >= NODES - 1
    }

    #[inline]
    pub(crate) fn pass(&mut self, node: Rc<Node>) {
        self.nodes.push(node);
    }

    /// Ends a request that was never in flight. Time stands still within a turn, so the request took none.
    #[inline]
    pub(crate) fn end(&mut self, result: Result<()>) -> Request {
        Request(State::Ready(self.count(result, 0, |_| {})))
    }

    /// The request is in flight from now on, in every node it passed.
    pub(crate) fn begin(&mut self, mut kept: Deferred) -> Request {
        if let Some(first) = self.nodes.first() {
            let flight = kept.0.as_mut().flight();
            flight.started = first.now();
            (flight.walk.op, flight.walk.bytes) = (self.op, self.bytes);
            for node in self.nodes.drain(..) {
                node.stats().begin();
                flight.walk.nodes.push(node);
            }
        }
        Request(State::Deferred(kept))
    }

    /// Counts the request in every node it passed, and forgets them; calls `and` for each.
    #[inline]
    fn count(&mut self, mut result: Result<()>, latency_ns: u64, and: impl Fn(&Node)) -> Result<()> {
        let outcome = Outcome::new(self.op, self.bytes, latency_ns, result.is_err());
        if result.is_err() || tracing::enabled!(tracing::Level::TRACE) || probe::is_traced() {
            result = self.tell(result, latency_ns);
        }
        for node in self.nodes.drain(..) {
            node.stats().count(&outcome);
            if let Err(e) = &result {
                node.stats().failed(e.kind(), node.now());
            }
            and(&node);
        }
        result
    }

    /// Says how a request ended. The last node is where an error was first seen.
    #[cold]
    fn tell(&self, result: Result<()>, latency_ns: u64) -> Result<()> {
        let (Some(first), Some(last)) = (self.nodes.first(), self.nodes.last()) else { return result };
        let (op, bytes, ok) = (self.op.name(), self.bytes, result.is_ok());
        tracing::trace!(device = %first.name(), op, bytes, latency_ns, ok);
        self.nodes.iter().for_each(|node| probe::request(node, self.op, bytes, latency_ns, !ok));
        result.map_err(|e| e.on(last.name()))
    }
}

/// The walk of a request in flight, and the time of its start. Without nodes while none has seen the request, and after
/// it.
struct Flight {
    walk: Walk,
    started: Time,
}

impl Flight {
    const NONE: Flight =
        Flight { walk: Walk { nodes: ArrayVec::new_const(), op: OpKind::Flush, bytes: 0 }, started: Time(0) };

    fn end(&mut self, result: Result<()>) -> Result<()> {
        let Some(first) = self.walk.nodes.first() else { return result };
        let now = first.now();
        let latency_ns = now.0.saturating_sub(self.started.0);
        if latency_ns >= SLOW.as_nanos() as u64 {
            first.account().was_slow(now);
        }
        self.walk.count(result, latency_ns, Node::left)
    }
}

impl Drop for Flight {
    /// A request given up before its end is in flight no more; it is not counted as completed.
    fn drop(&mut self) {
        self.walk.nodes.iter().for_each(|node| node.left());
    }
}

pin_project! {
    /// A layer's future, and the flight that ends with it.
    struct Work<F> {
        flight: Flight,
        #[pin]
        future: F,
    }
}

trait Watched: Future<Output = Result<()>> {
    fn flight(self: Pin<&mut Self>) -> &mut Flight;
}

impl<F: Future<Output = Result<()>>> Watched for Work<F> {
    fn flight(self: Pin<&mut Self>) -> &mut Flight {
        self.project().flight
    }
}

impl<F: Future<Output = Result<()>>> Future for Work<F> {
    type Output = Result<()>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.project();
        let result = ready!(this.future.poll(cx));
        Poll::Ready(this.flight.end(result))
    }
}

/// The work of a layer for a request that it keeps: the request completes when this does. Lazy, like every future.
pub struct Deferred(Pin<Box<dyn Watched>>);

impl Deferred {
    /// Keeps a request until `work` is done.
    pub fn new(work: impl Future<Output = Result<()>> + 'static) -> Deferred {
        // Written in its place: a future can be large, and `Box::new` would make it on the stack first.
        let kept = Box::write(Box::new_uninit(), Work { flight: Flight::NONE, future: work });
        Deferred(Box::into_pin(kept))
    }
}

impl Future for Deferred {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.as_mut().poll(cx)
    }
}

/// A request under way. The work makes progress while it is polled.
#[must_use = "a request does nothing until it is polled"]
pub struct Request(State);

enum State {
    Ready(Result<()>),
    Deferred(Deferred),
    /// The result has been handed out.
    Ended,
}

impl Request {
    /// The result, if the request completed at once. Saves a task for requests that memory and caches answer.
    #[inline]
    pub fn ready(&mut self) -> Option<Result<()>> {
        match std::mem::replace(&mut self.0, State::Ended) {
            State::Ready(result) => Some(result),
            kept @ State::Deferred(_) => {
                self.0 = kept;
                None
            }
            State::Ended => None,
        }
    }
}

impl Request {
    /// What was made while `here` was entered.
    pub(crate) fn looked_at(self, here: Here) -> Request {
        match self.0 {
            State::Deferred(mut kept) => {
                here.is_kept_at(kept.0.as_mut().flight().walk.nodes.last());
                Request(State::Deferred(Deferred::new(LookedAt::new(here, kept))))
            }
            ended @ (State::Ready(_) | State::Ended) => {
                here.was_nothing();
                Request(ended)
            }
        }
    }
}

impl Future for Request {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let State::Deferred(kept) = &mut self.0 {
            let result = ready!(Pin::new(kept).poll(cx));
            self.0 = State::Ended;
            return Poll::Ready(result);
        }
        Poll::Ready(self.ready().expect("polled after completion"))
    }
}
