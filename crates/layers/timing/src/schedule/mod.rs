//! `schedule`: a queue above a drive, in the order of a policy.
//!
//! The drive gets one request at a time, or as many as `depth` says, and the policy chooses which. Reads, writes,
//! zeroing and discards wait in the queue; a flush never does.
//!
//! ```text
//!      request ──▶ queue: sorted by the policy      flush ─┐
//!                    │ one of them, while fewer than       │
//!                    │ `depth` are in the drive            │
//!                    └──────────────▶ device below ◀───────┘
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `policy` (`noop`): the order.
//!   `noop`: as they come. `sstf`: the shortest distance first. `scan`: the elevator, up and down. `cscan`: the
//!   elevator that only goes up. `deadline`: Linux's, sorted batches of reads or writes, with deadlines. `cfq`:
//!   Linux's, slices of time for each client, with anticipation. `cats`: the least total response time of what waits,
//!   hits of the drive's cache first. `satf`: the shortest access time first, by the model of the drive.
//! * `depth` (1): how many requests the device below has at the same time. A drive that gets more than two orders them
//!   by itself, and the policy decides little.
//! * `model` (none): the drive below, for `cats` and `satf`: the name of a model that comes with Lamina, or the path of
//!   a file that `lamina calibrate` wrote.
//! * `age-limit` ("1s"): with `sstf`, `scan`, `cscan` and `cats`, of the requests older than this the oldest is every
//!   eighth to go.
//! * `deadline`, `cfq`, `cats`, `satf`: tables with parameters of these policies, which keep them while another one is
//!   in force.
//!   `deadline = { read-expire = "500ms", write-expire = "5s", fifo-batch = 16, writes-starved = 2 }`,
//!   `cfq = { slice-sync = "100ms", slice-async = "40ms", slice-idle = "8ms", slice-idle-seeky = "2ms", quantum = 4,
//!   fifo-expire-sync = "125ms", fifo-expire-async = "250ms" }`,
//!   `cats = { read-delay = "100ms", busdriver-delay = "7ms", write-delay = "500ms", write-batch = 16, table = 256 }`
//!   (and `cache = { segments = 64, segment-sectors = 221, prefetch-sectors = 64 }` instead of the model's),
//!   `satf = { age-weight = 0.02 }`.
//!
//! Commands: `set` takes the same keys and changes those, also under load: the new policy gets all requests that wait,
//! and nothing is lost or sent twice. Of a table it changes the parameters that are given. `show` shows all keys.
//!
//! Each policy sends every request in the end; its module says after how long at most. `cfq` and `cats` tell clients
//! apart: a guest over vhost-user is one, and each connection over NBD, and what layers above ask by themselves is one
//! together.
//!
//! A flush goes on at once. It covers the writes that completed before it came, and a write that waits here has not
//! completed: nothing in the queue has to go first, and nothing that the flush covers is still here. Forced unit access
//! is the device's below. The layer deliberately merges nothing, and keeps no request back that the policy would send.

mod aged;
pub mod cats;
pub mod cfq;
mod cscan;
pub mod deadline;
mod desk;
mod keys;
mod noop;
pub mod policy;
pub mod satf;
mod scan;
mod sstf;
#[cfg(test)]
mod testing;
mod waiting;

pub use keys::{Keys, Name};

use crate::model;
use desk::{Desk, Next};
use lamina_block::{
    Arg, ArgType, Build, Cause, Command, Config, Consent, Effect, Env, Figure, Geometry, Io, Layer, Made,
    Manage, Node, Op, Over, Passthrough, Pending, Result, Step, Time, Traits, Unit, Verb, wait,
};
use lamina_drive::{Model, Request};
use lamina_kit::alarm::Alarm;
use lamina_kit::command::{args, unknown};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::future::poll_fn;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::Poll;

const FIGURES: &[Figure] = &[
    Figure::shown("/policy", Unit::Text, "The order of requests.").column("POLICY"),
    Figure::gauge("waiting", "/waiting", Unit::Count, "Requests that wait in the queue.").column("WAITING"),
    Figure::gauge("in_drive", "/in-drive", Unit::Count, "Requests that the device below has."),
    Figure::counter("reads_total", "/reads/sent", Unit::Count, "Reads that were sent to the device below.")
        .column("READS"),
    Figure::counter(
        "read_wait_seconds_total",
        "/reads/waited",
        Unit::Seconds,
        "The waits of these, all together.",
    ),
    Figure::shown("/reads/mean", Unit::Seconds, "Their mean wait in the queue.").column("MEAN WAIT"),
    Figure::gauge("read_wait_max_seconds", "/reads/longest", Unit::Seconds, "The longest wait of a read.")
        .column("LONGEST"),
    Figure::counter(
        "writes_total",
        "/writes/sent",
        Unit::Count,
        "Writes, zeroings and discards that were sent.",
    )
    .column("WRITES"),
    Figure::counter(
        "write_wait_seconds_total",
        "/writes/waited",
        Unit::Seconds,
        "The waits of these, all together.",
    ),
    Figure::shown("/writes/mean", Unit::Seconds, "Their mean wait in the queue.").column("MEAN WAIT"),
    Figure::gauge("write_wait_max_seconds", "/writes/longest", Unit::Seconds, "The longest wait of a write.")
        .column("LONGEST"),
    Figure::counter(
        "predicted_hits_total",
        "/hits/predicted",
        Unit::Count,
        "Reads that were predicted to be hits in the drive's cache.",
    )
    .nullable(),
    Figure::counter(
        "right_hits_total",
        "/hits/right",
        Unit::Count,
        "Those of them that took no longer than a hit.",
    )
    .nullable(),
];

const SET: Verb = Verb::new("set", "changes the policy, the depth or parameters; absent ones stay").with(&[
    Arg::optional("policy", ArgType::Text, "noop, sstf, scan, cscan, deadline, cfq, cats or satf"),
    Arg::optional("depth", ArgType::Count, "requests that the device below has at the same time, at least 1"),
    Arg::optional("model", ArgType::Text, "the drive below: the name of a model, or a model file"),
    Arg::optional("age-limit", ArgType::Time, "the age from which requests go out of turn"),
    Arg::optional("deadline", ArgType::Json, "parameters: {\"read-expire\": \"100ms\"}"),
    Arg::optional("cfq", ArgType::Json, "parameters: {\"slice-idle\": \"0s\"}"),
    Arg::optional("cats", ArgType::Json, "parameters: {\"busdriver-delay\": \"3ms\"}"),
    Arg::optional("satf", ArgType::Json, "parameters: {\"age-weight\": 0.05}"),
]);

impl Config for Keys {
    const KIND: &'static str = "schedule";
    const SUMMARY: &'static str = "a queue above a drive, in the order of a policy";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        outside: model::OUTSIDE,
        figures: FIGURES,
        verbs: &[SET, Verb::asks("show", "all keys, with the parameters of all policies")],
        elsewhere: &["elevator", "iosched", "scheduler"],
        ..Traits::NONE
    };

    fn check(&self, _over: &Over<'_>) -> Result<()> {
        self.complete()
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let model = match &self.model {
                Some(name) => Some(model::load(&*with.env, &with.base, name).await?),
                None => None,
            };
            let (child, desk) = (with.child(), RefCell::new(Desk::new(self, model)?));
            Ok(Rc::new(Schedule { child, env: with.env, base: with.base, desk, alarm: Alarm::default() })
                as Made)
        })
    }
}

struct Schedule {
    child: Rc<Node>,
    env: Rc<dyn Env>,
    /// Where relative paths begin.
    base: PathBuf,
    desk: RefCell<Desk>,
    /// When the policy is asked again, if that is arranged.
    alarm: Alarm,
}

/// A request's place in the queue or in the drive, which it leaves also when it is given up.
struct Place {
    layer: Rc<Schedule>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.layer.desk.borrow_mut().leave(self.layer.env.now(), self.id);
        self.layer.fill();
    }
}

/// The place in the drive of a request that did not wait.
struct Passed(Rc<Schedule>);

impl Drop for Passed {
    fn drop(&mut self) {
        let waits = self.0.desk.borrow_mut().passed();
        if waits {
            self.0.fill();
        }
    }
}

impl Schedule {
    /// Sends requests while the drive has room and the policy wants to.
    fn fill(self: &Rc<Self>) {
        loop {
            let next = self.desk.borrow_mut().next(self.env.now());
            match next {
                Next::Sent(None) => {}
                Next::Sent(Some(task)) => task.wake(),
                Next::Nothing(None) => return,
                Next::Nothing(Some(until)) => return self.arm(until),
            }
        }
    }

    /// Asks the policy again at `until`, or at an earlier time for which that is arranged already. A policy's delay is
    /// milliseconds: it is not worth a core that stays awake for its exact end.
    fn arm(self: &Rc<Self>, until: Time) {
        let sleep = || self.env.sleep(until.since(self.env.now()));
        self.alarm.set(&*self.env, until, sleep, self, |layer| layer.fill());
    }

    /// Lets a request through that does not have to wait.
    fn pass(self: Rc<Self>, io: Io) -> Step {
        self.desk.borrow_mut().pass(Request::from(&io).op);
        let mut below = self.child.submit(io);
        let place = Passed(self);
        match below.ready() {
            Some(result) => Step::Done(result),
            None => Step::control(end(below, place)),
        }
    }

    /// Waits until the policy has sent the request, and does it.
    async fn wait(self: Rc<Self>, io: Io) -> Result<()> {
        let id = self.desk.borrow_mut().arrive(self.env.now(), io.client, Request::from(&io));
        let place = Place { layer: Rc::clone(&self), id };
        self.fill();
        let waits = wait(Cause::Queue);
        poll_fn(|cx| match self.desk.borrow_mut().is_sent(id, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        drop(waits);
        end(self.child.submit(io), place).await
    }

    async fn set(self: Rc<Self>, changes: Value) -> Result<Value> {
        let model = match changes.get("model") {
            Some(Value::String(name)) => Some(model::load(&*self.env, &self.base, name).await?),
            Some(_) => None,
            None => self.desk.borrow().model.clone(),
        };
        self.take_over(changes, model)?;
        self.fill();
        Ok(self.keys())
    }

    fn take_over(&self, changes: Value, model: Option<Model>) -> Result<()> {
        let mut keys = self.keys();
        merge(&mut keys, changes);
        let keys = args(Command { name: "set".into(), args: keys })?;
        self.desk.borrow_mut().set(keys, model)
    }

    fn keys(&self) -> Value {
        json!(self.desk.borrow().keys)
    }
}

/// The end of a request, and of its place in the drive.
async fn end<P>(below: lamina_block::Request, place: P) -> Result<()> {
    let result = below.await;
    drop(place);
    result
}

/// Puts `changes` into `keys`, in tables key by key.
fn merge(keys: &mut Value, changes: Value) {
    match (keys, changes) {
        (Value::Object(keys), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(keys.entry(key).or_insert(Value::Null), change);
            }
        }
        (keys, changes) => *keys = changes,
    }
}

impl Layer for Schedule {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match io.op {
            Op::Flush => Step::Forward(Rc::clone(&self.child)),
            Op::Read(_) | Op::Write(..) | Op::Zero(_) | Op::Discard => {
                let (is_open, io) = (self.desk.borrow().is_open(), io.take());
                if is_open { self.pass(io) } else { Step::control(self.wait(io)) }
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Schedule {
    /// The queue knows addresses only.
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "set" => {
                    let changes = args(command)?;
                    self.set(changes).await
                }
                "show" => Ok(self.keys()),
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn info(&self) -> Value {
        self.desk.borrow().shown()
    }
}

#[cfg(test)]
pub(crate) mod tests;
