//! `delay`: makes requests take time, as a slower device would.
//!
//! A request waits first and is handed on then, so its time here comes on top of the time below. No request is
//! handed on before its time; requests may overtake each other, as on real devices.
//!
//! ```text
//!      request ──▶ rate: 1/iops after the one before
//!                    ──▶ slot: one of `parallel` that is free
//!                          ──▶ drawn time ──▶ device below
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `read`, `write`, `flush` ("0s"): how long requests take. Zeroing and discards count as writes. Either a time such
//!   as "5ms", or drawn for each request:
//!   `{ uniform = { min = "1ms", max = "3ms" } }`,
//!   `{ normal = { mean = "5ms", deviation = "1ms" } }` (never below zero),
//!   `{ exponential = { mean = "5ms" } }`.
//! * `read-iops`, `write-iops` (no limit): how many requests may begin in a second, evenly spaced.
//! * `parallel` (no limit): how many requests are served at the same time; the others wait for a free slot.
//!
//! Commands: `set` takes the same keys and replaces them all (absent ones are off), for later requests;
//! `show` shows them. The layer deliberately knows nothing about addresses and sizes: device models do.

use lamina_block::{
    Arg, ArgType, Build, Command, Config, Consent, Effect, Env, Geometry, Interval, Io, Layer, Made, Manage,
    Node, Op, Passthrough, Pending, Result, Step, Time, Traits, Verb, Zones,
};
use lamina_kit::command::{args, unknown};
use serde::de::{self, MapAccess, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

/// The keys, and the arguments of `set`; see the module.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Keys {
    read: Wait,
    write: Wait,
    flush: Wait,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_iops: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_iops: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel: Option<NonZeroU32>,
}

/// The duration of a request: the same for all, or drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Wait {
    Constant(Interval),
    Drawn(Distribution),
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Distribution {
    #[serde(deserialize_with = "Uniform::ordered")]
    Uniform(Uniform),
    Normal(Normal),
    Exponential(Exponential),
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Uniform {
    min: Interval,
    max: Interval,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Normal {
    mean: Interval,
    deviation: Interval,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Exponential {
    mean: Interval,
}

impl Uniform {
    fn ordered<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Uniform, D::Error> {
        let drawn = Uniform::deserialize(d)?;
        if drawn.min > drawn.max {
            return Err(de::Error::custom(format!("min {} is more than max {}", drawn.min, drawn.max)));
        }
        Ok(drawn)
    }
}

impl Default for Wait {
    fn default() -> Wait {
        Wait::Constant(Interval::default())
    }
}

impl<'de> Deserialize<'de> for Wait {
    /// By hand, so that messages name the fault inside, rather than that nothing fits.
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Wait, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Wait;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"5ms\", or a table with uniform, normal or exponential")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> std::result::Result<Wait, E> {
                s.parse().map(Wait::Constant).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> std::result::Result<Wait, A::Error> {
                Distribution::deserialize(MapAccessDeserializer::new(map)).map(Wait::Drawn)
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// A random number made a fraction in 0..1.
fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

impl Wait {
    fn draw(self, mut random: impl FnMut() -> u64) -> Duration {
        let ns = |span: Interval| span.0.as_nanos() as f64;
        let drawn = match self {
            Wait::Constant(span) => return span.0,
            Wait::Drawn(Distribution::Uniform(Uniform { min, max })) => {
                ns(min) + fraction(random()) * (ns(max) - ns(min))
            }
            // Box and Muller, A Note on the Generation of Random Normal Deviates, 1958.
            Wait::Drawn(Distribution::Normal(Normal { mean, deviation })) => {
                let radius = (-2.0 * (1.0 - fraction(random())).ln()).sqrt();
                ns(mean) + ns(deviation) * radius * (std::f64::consts::TAU * fraction(random())).cos()
            }
            Wait::Drawn(Distribution::Exponential(Exponential { mean })) => {
                -ns(mean) * (1.0 - fraction(random())).ln()
            }
        };
        // The cast makes negative values zero.
        Duration::from_nanos(drawn as u64)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Read,
    Write,
    Flush,
}

impl Class {
    fn of(op: &Op) -> Class {
        match op {
            Op::Read(_) => Class::Read,
            Op::Write(..) | Op::Zero(_) | Op::Discard => Class::Write,
            Op::Flush => Class::Flush,
        }
    }
}

/// The start times of requests: computed on arrival, so that nothing has to be woken.
#[derive(Default)]
struct Schedule {
    keys: Keys,
    /// When the next read and the next write may begin.
    next: [Time; 2],
    /// When each slot becomes free; no more than `parallel`.
    slots: BinaryHeap<Reverse<Time>>,
}

impl Schedule {
    fn new(keys: Keys) -> Schedule {
        Schedule { keys, ..Schedule::default() }
    }

    /// The time when a request that comes `now` may go on.
    fn admit(&mut self, now: Time, class: Class, random: impl FnMut() -> u64) -> Time {
        let (wait, iops) = match class {
            Class::Read => (self.keys.read, self.keys.read_iops),
            Class::Write => (self.keys.write, self.keys.write_iops),
            Class::Flush => (self.keys.flush, None),
        };
        let mut begin = now;
        if let Some(iops) = iops {
            let next = &mut self.next[class as usize];
            begin = begin.max(*next);
            *next = begin.after(Duration::from_secs(1) / iops.get());
        }
        let Some(parallel) = self.keys.parallel else { return begin.after(wait.draw(random)) };
        if self.slots.len() as u64 >= parallel.get() as u64 {
            begin = self.slots.pop().map_or(begin, |Reverse(free)| begin.max(free));
        }
        let end = begin.after(wait.draw(random));
        self.slots.push(Reverse(end));
        end
    }
}

impl Config for Keys {
    const KIND: &'static str = "delay";
    const SUMMARY: &'static str = "makes requests take time";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        verbs: &[
            Verb::new("set", "replaces all delays and limits; absent ones are off").with(&[
                Arg::optional("read", ArgType::Json, "how long reads take: a time, or how it is drawn"),
                Arg::optional("write", ArgType::Json, "the same for writes, zeroing and discards"),
                Arg::optional("flush", ArgType::Json, "the same for flushes"),
                Arg::optional("read-iops", ArgType::Count, "reads that begin in a second, at most"),
                Arg::optional("write-iops", ArgType::Count, "writes that begin in a second, at most"),
                Arg::optional(
                    "parallel",
                    ArgType::Count,
                    "requests that are served at the same time, at most",
                ),
            ]),
            Verb::asks("show", "the delays and limits"),
        ],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let (child, env) = (with.child(), with.env);
            Ok(Rc::new(Delay { child, env, schedule: RefCell::new(Schedule::new(self)) }) as Made)
        })
    }
}

struct Delay {
    child: Rc<Node>,
    env: Rc<dyn Env>,
    schedule: RefCell<Schedule>,
}

impl Delay {
    fn shown(&self) -> Value {
        json!(self.schedule.borrow().keys)
    }

    fn carry_out(&self, command: Command) -> Result<Value> {
        match command.name.as_str() {
            "set" => {
                let keys = args::<Keys>(command)?;
                *self.schedule.borrow_mut() = Schedule::new(keys);
                Ok(self.shown())
            }
            "show" => Ok(self.shown()),
            _ => Err(unknown(&command, Keys::TRAITS.verbs)),
        }
    }
}

impl Layer for Delay {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn zones(&self) -> Option<Zones> {
        self.child.zones()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let now = self.env.now();
        let class = Class::of(&io.op);
        let due = self.schedule.borrow_mut().admit(now, class, || self.env.random());
        if due <= now {
            return Step::Forward(Rc::clone(&self.child));
        }
        let io = io.take();
        Step::control(async move {
            self.env.sleep(due.since(now)).await;
            self.child.submit(io).await
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Delay {
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move { self.carry_out(command) })
    }

    fn info(&self) -> Value {
        self.shown()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::*;
    use std::cell::Cell;

    pub fn subject() -> Subject {
        let write = json!({ "exponential": { "mean": "1ms" } });
        Subject::layer(
            &Kind::of::<super::Keys>(),
            json!({ "read": "50us", "write": write, "write-iops": 9000, "parallel": 4 }),
            1,
        )
    }

    fn keys(keys: Value) -> Keys {
        serde_json::from_value(keys).unwrap()
    }

    const MS: u64 = 1_000_000;

    /// When requests that all come at 10 ms may go on, in ms after that.
    fn due<const N: usize>(config: Value, classes: [Class; N]) -> [u64; N] {
        let mut schedule = Schedule::new(keys(config));
        classes.map(|class| (schedule.admit(Time(10 * MS), class, || 0).0 - 10 * MS) / MS)
    }

    #[test]
    fn constant_times_by_class() {
        use Class::*;
        let times = json!({"read": "1ms", "write": "5ms", "flush": "20ms"});
        assert_eq!(due(times, [Read, Write, Flush, Write]), [1, 5, 20, 5]);
        assert_eq!(due(json!({}), [Read, Write, Flush]), [0, 0, 0]);
    }

    #[test]
    fn rates_space_requests_evenly_and_apart_for_reads_and_writes() {
        use Class::*;
        let rates = json!({"read": "1ms", "read-iops": 100, "write-iops": 1000});
        assert_eq!(due(rates, [Read, Read, Write, Read, Write, Flush]), [1, 11, 0, 21, 1, 0]);
    }

    #[test]
    fn a_rate_saves_nothing_up() {
        let mut schedule = Schedule::new(keys(json!({"write-iops": 10})));
        for (now, due) in [(0, 0), (1000, 1000), (1000, 1100), (1050, 1200)] {
            assert_eq!(schedule.admit(Time(now * MS), Class::Write, || 0), Time(due * MS));
        }
    }

    #[test]
    fn slots_are_taken_as_they_become_free() {
        let mut schedule = Schedule::new(keys(json!({"read": "4ms", "write": "10ms", "parallel": 2})));
        for (now, class, due) in [
            (0, Class::Read, 4),
            (0, Class::Write, 10),
            (0, Class::Read, 8),
            (1, Class::Read, 12),
            (2, Class::Read, 14),
            (50, Class::Read, 54),
        ] {
            assert_eq!(schedule.admit(Time(now * MS), class, || 0), Time(due * MS), "at {now}");
        }
    }

    #[test]
    fn distributions_have_their_mean() {
        for (wait, mean, min, max) in [
            (json!({"uniform": {"min": "1ms", "max": "3ms"}}), 2.0, 1.0, 3.0),
            (json!({"normal": {"mean": "5ms", "deviation": "1ms"}}), 5.0, 0.0, 12.0),
            (json!({"exponential": {"mean": "5ms"}}), 5.0, 0.0, 100.0),
            (json!("7ms"), 7.0, 7.0, 7.0),
        ] {
            let wait: Wait = serde_json::from_value(wait).unwrap();
            let mut random = xorshift(3);
            let draws: Vec<f64> = (0..20_000).map(|_| wait.draw(&mut random).as_secs_f64() * 1e3).collect();
            let average = draws.iter().sum::<f64>() / draws.len() as f64;
            assert!((average - mean).abs() < 0.05 * mean, "{wait:?}: {average}");
            assert!(draws.iter().all(|d| (min..=max).contains(d)), "{wait:?}");
        }
    }

    #[test]
    fn wrong_keys_say_what_is_wrong() {
        let below = memory("1MiB");
        for (keys, says) in [
            (json!({"read": 5}), "a time such as"),
            (json!({"read": "5 parsecs"}), "5 parsecs"),
            (json!({"write": {"uniform": {"min": "3ms", "max": "1ms"}}}), "min 3ms is more than max 1ms"),
            (json!({"write": {"normal": {"mean": "3ms"}}}), "deviation"),
            (json!({"flush": {"gamma": {}}}), "gamma"),
            (json!({"parallel": 0}), "parallel"),
        ] {
            let message = refused("delay", keys, &[&below]);
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn requests_wait_in_virtual_time_and_commands_change_it() {
        simulated(|world| async move {
            let below = world.memory("1MiB").await;
            let slow = world.over("delay", json!({"read": "5ms"}), &[&below]).await;
            let start = world.env.now();
            let read = || slow.submit(Io::read(0, Buf::zeroed(512)));
            all([read(), read()]).await.unwrap();
            assert_eq!(world.env.now().since(start), Duration::from_millis(5));
            slow.submit(Io::write(0, Buf::zeroed(512), Durability::Cached)).await.unwrap();
            assert_eq!(world.env.now().since(start), Duration::from_millis(5));
            let asked = json!({"read": {"uniform": {"min": "1s", "max": "2s"}}, "parallel": 1});
            let set = Command { name: "set".into(), args: asked };
            let shown = slow.control(set).await.unwrap();
            assert_eq!((&shown["read"]["uniform"]["max"], &shown["write"]), (&json!("2s"), &json!("0ns")));
            let again: Keys = serde_json::from_value(shown).unwrap();
            assert_eq!(again.parallel.map(NonZeroU32::get), Some(1));
            let ended = Cell::new(world.env.now());
            read().await.unwrap();
            assert!(world.env.now().since(ended.get()) >= Duration::from_secs(1));
        });
    }
}
