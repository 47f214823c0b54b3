//! What `schedule` decides: who waits, who is in the drive, and what the policy is asked and told.

use super::keys::Keys;
use super::policy::{Choice, NEVER, Policy, Queued};
use lamina_block::{Result, Time};
use lamina_drive::{Model, Op, Request};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::task::Waker;
use std::time::Duration;

/// A policy that waits is asked again no sooner than this: a wrong one must not keep the core busy.
const SHORTEST_WAIT: Duration = Duration::from_micros(1);

/// Requests of a class, reads or writes.
#[derive(Default)]
struct Class {
    waiting: u64,
    sent: u64,
    waited: Duration,
    longest: Duration,
}

impl Class {
    fn shown(&self) -> Value {
        let mean = self.waited.as_secs_f64() / self.sent.max(1) as f64;
        json!({
            "waiting": self.waiting,
            "sent": self.sent,
            "waited": self.waited.as_secs_f64(),
            "mean": mean,
            "longest": self.longest.as_secs_f64(),
        })
    }
}

/// A request that waits or is in the drive.
struct Ticket {
    queued: Queued,
    state: State,
}

enum State {
    /// In the policy's queue; the task to wake, if it has asked.
    Waits(Option<Waker>),
    /// In the drive since then, chosen by the policy of that number.
    Sent(Time, u64),
}

/// What the policy says to the next free place in the drive.
pub(super) enum Next {
    /// A request goes: the task that has it, if that waits.
    Sent(Option<Waker>),
    /// Nothing goes before that time, if one is given.
    Nothing(Option<Time>),
}

/// The queue and its policy.
pub(super) struct Desk {
    pub keys: Keys,
    pub model: Option<Model>,
    policy: Box<dyn Policy>,
    /// How many policies there have been: a policy is told only of the ends of requests that it chose.
    policies: u64,
    tickets: HashMap<u64, Ticket>,
    /// Requests that the policy still has although their callers have gone.
    given_up: HashMap<u64, Queued>,
    last: u64,
    /// Requests that wait, and that are in the drive.
    waiting: u32,
    in_drive: u32,
    reads: Class,
    writes: Class,
}

impl Desk {
    pub fn new(keys: Keys, model: Option<Model>) -> Result<Desk> {
        Ok(Desk {
            policy: keys.policy(model.as_ref())?,
            keys,
            model,
            policies: 0,
            tickets: HashMap::new(),
            given_up: HashMap::new(),
            last: 0,
            waiting: 0,
            in_drive: 0,
            reads: Class::default(),
            writes: Class::default(),
        })
    }

    fn class(&mut self, op: Op) -> &mut Class {
        match op {
            Op::Read => &mut self.reads,
            Op::Write | Op::Flush | Op::Discard => &mut self.writes,
        }
    }

    fn has_room(&self) -> bool {
        self.in_drive < self.keys.depth.get()
    }

    /// True if a request would be sent at once, whatever it is, and the policy does not care.
    pub fn is_open(&self) -> bool {
        self.keys.policy.is_plain() && self.waiting == 0 && self.has_room()
    }

    /// A request goes to the drive without a wait.
    pub fn pass(&mut self, op: Op) {
        self.in_drive += 1;
        self.class(op).sent += 1;
    }

    /// A request that [passed](Desk::pass) has ended: true if another one waits for its place.
    pub fn passed(&mut self) -> bool {
        self.in_drive -= 1;
        self.waiting > 0
    }

    /// A request comes; its number.
    pub fn arrive(&mut self, now: Time, client: u32, request: Request) -> u64 {
        self.last += 1;
        let queued = Queued { id: self.last, client, arrived: now, request };
        self.tickets.insert(queued.id, Ticket { queued, state: State::Waits(None) });
        self.waiting += 1;
        self.class(request.op).waiting += 1;
        self.policy.arrived(queued);
        queued.id
    }

    /// True if a request has been sent. Otherwise `waker` is woken when it is.
    pub fn is_sent(&mut self, id: u64, waker: &Waker) -> bool {
        match self.tickets.get_mut(&id).map(|ticket| &mut ticket.state) {
            Some(State::Waits(waiting)) => {
                *waiting = Some(waker.clone());
                false
            }
            Some(State::Sent(..)) | None => true,
        }
    }

    /// Fills the next free place in the drive.
    pub fn next(&mut self, now: Time) -> Next {
        while self.waiting > 0 && self.has_room() {
            match self.policy.choose(now) {
                Choice::Send(id) => {
                    if let Some(queued) = self.given_up.remove(&id) {
                        self.policy.completed(now, now, &queued);
                    } else {
                        return Next::Sent(self.send(now, id));
                    }
                }
                Choice::Wait(NEVER) | Choice::Idle => return Next::Nothing(None),
                Choice::Wait(until) => return Next::Nothing(Some(until.max(now.after(SHORTEST_WAIT)))),
            }
        }
        Next::Nothing(None)
    }

    /// A request that waits goes to the drive; the task that has it, if that has asked.
    fn send(&mut self, now: Time, id: u64) -> Option<Waker> {
        let ticket = self.tickets.get_mut(&id)?;
        let (queued, sent) = (ticket.queued, State::Sent(now, self.policies));
        let State::Waits(waker) = std::mem::replace(&mut ticket.state, sent) else { return None };
        self.waiting -= 1;
        self.in_drive += 1;
        let waited = now.since(queued.arrived);
        let class = self.class(queued.request.op);
        class.waiting -= 1;
        class.sent += 1;
        class.waited += waited;
        class.longest = class.longest.max(waited);
        waker
    }

    /// A request has ended, or its caller has gone.
    pub fn leave(&mut self, now: Time, id: u64) {
        let Some(Ticket { queued, state }) = self.tickets.remove(&id) else { return };
        match state {
            State::Waits(_) => {
                self.waiting -= 1;
                self.class(queued.request.op).waiting -= 1;
                self.given_up.insert(id, queued);
            }
            State::Sent(at, policy) => {
                self.in_drive -= 1;
                if policy == self.policies {
                    self.policy.completed(now, at, &queued);
                }
            }
        }
    }

    /// Takes over other keys. A policy that stays keeps what it knows; another one takes what waits.
    pub fn set(&mut self, keys: Keys, model: Option<Model>) -> Result<()> {
        if keys.policy == self.keys.policy && model == self.model {
            self.policy.tune(&keys);
        } else {
            let mut policy = keys.policy(model.as_ref())?;
            let live = self.policy.drain().into_iter().filter(|queued| self.tickets.contains_key(&queued.id));
            live.for_each(|queued| policy.arrived(queued));
            self.given_up.clear();
            self.policy = policy;
            self.policies += 1;
        }
        (self.keys, self.model) = (keys, model);
        Ok(())
    }

    /// The figures.
    pub fn shown(&self) -> Value {
        let hits = self.policy.hits().map(|hits| json!({ "predicted": hits.predicted, "right": hits.right }));
        json!({
            "policy": self.keys.policy.text(),
            "waiting": self.waiting,
            "in-drive": self.in_drive,
            "reads": self.reads.shown(),
            "writes": self.writes.shown(),
            "hits": hits,
            "own": self.policy.info(),
        })
    }
}
