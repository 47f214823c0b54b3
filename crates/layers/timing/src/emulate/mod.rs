//! `emulate`: a device behaves in time like a drive of which there is a model.
//!
//! The virtual performance throttle of *Predicting Disk Scheduling Performance with Virtual Machines* (section 4): a
//! request goes to the device below at once, and completes when k times the time that the drive takes for it has
//! passed, or when it is done below, whichever is later. Requests in flight share the drive, and stand in its queue:
//! the drive's time runs as real time does, k times as slowly.
//!
//! ```text
//!      request ──┬──▶ device below ───────────▶ returned ──┐
//!                │                                         ├──▶ complete at the later one
//!                └──▶ queue of the model, × k ▶ ended ─────┘
//!                                               = target
//! ```
//!
//! The *lateness* of a request is the time from its target to its completion. If more than one request in a hundred is
//! later than 100 us, the device is no faithful drive: `valid` is false, and a warning is logged. Moments are those of
//! the scheduler's turns, which the host's timers keep to a few microseconds; time in the exports above is not seen.
//!
//! Keys:
//! * `over`: the device below; at most as large as the drive.
//! * `model`: the name of a model that comes with Lamina (`"cheetah-15k4"`), or the path of a model file.
//! * `k` (1): the factor, from 0.001 to 10000 in steps of 0.001.
//! * `adaptive` (absent: k is fixed): `{ min = 1, max = 1000 }`: k begins with `k`, or the bound that is nearer, and
//!   changes between these bounds. It rises when a request is done below only after its target, and falls when
//!   requests are held for long. Each change is logged, and begins the statistics anew, so that lateness is always that
//!   under the present k. Use it to find a k that stays, and fix that k for measurements.
//! * `seed` (0): decides what the model leaves to chance.
//!
//! Commands: `set` takes `k` (which is fixed from then on), `adaptive` and `model` (a drive that is idle and knows
//! nothing); `reset` begins the statistics anew; `show` shows all. The layer deliberately changes neither the order nor
//! the data of requests, and knows nothing of how drives work.

mod adapt;
mod clock;
mod lateness;
mod throttle;

use crate::model;
use adapt::Bounds;
use clock::Scale;
use lamina_block::{
    Arg, ArgType, Build, Bytes, Command, Config, Consent, Effect, Env, Error, Figure, Geometry, Io, Layer,
    Made, Manage, Node, Notice, Passthrough, Pending, Result, Step, Traits, Unit, Verb,
};
use lamina_drive::{Model, Request};
use lamina_kit::alarm::Alarm;
use lamina_kit::command::{args, unknown};
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::Poll;
use throttle::Throttle;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    model: String,
    #[serde(default = "one")]
    k: Scale,
    adaptive: Option<Bounds>,
    #[serde(default)]
    seed: u64,
}

fn one() -> Scale {
    Scale::ONE
}

/// The arguments of `set`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    k: Option<Scale>,
    adaptive: Option<Bounds>,
    model: Option<String>,
}

impl Config for Keys {
    const KIND: &'static str = "emulate";
    const SUMMARY: &'static str = "a device takes the time of a drive";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        outside: model::OUTSIDE,
        figures: &[
            Figure::shown("/model", Unit::Text, "The drive.").column("DRIVE"),
            Figure::gauge("k", "/k", Unit::Count, "Real time for one unit of the model's time.").column("K"),
            Figure::gauge("requests", "/requests", Unit::Count, "Requests since the statistics began.")
                .column("REQUESTS"),
            Figure::gauge("cache_hits", "/hits", Unit::Count, "Reads of these that the drive's cache had.")
                .column("HITS"),
            Figure::gauge("late", "/late", Unit::Count, "Requests of these done below after their targets.")
                .column("LATE"),
            Figure::gauge(
                "lateness_p99_seconds",
                "/lateness/p99",
                Unit::Seconds,
                "99 of 100 requests were complete so much after their targets, or less.",
            )
            .column("LATE P99"),
            Figure::gauge(
                "lateness_max_seconds",
                "/lateness/max",
                Unit::Seconds,
                "The most that a request was complete after its target.",
            )
            .column("LATE MAX"),
        ],
        notices: &[Notice::new(
            "/invalid",
            "{device} is no faithful drive: p99 of the lateness is {/lateness/p99}, and 100 us at most is allowed",
        )],
        verbs: &[
            Verb::new("set", "changes the factor, or the drive").with(&[
                Arg::optional("k", ArgType::Json, "the factor, fixed from now on"),
                Arg::optional(
                    "adaptive",
                    ArgType::Json,
                    "the bounds of the factor: {\"min\": 1, \"max\": 1000}",
                ),
                Arg::optional("model", ArgType::Text, "another drive: the name of a model, or a model file"),
            ]),
            Verb::new("reset", "begins the statistics anew"),
            Verb::asks("show", "the drive, the factor, and the statistics"),
        ],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let model = model::load(&*with.env, &with.base, &self.model).await?;
            let child = with.child();
            fits(&model, &child.geometry())?;
            let throttle = Throttle::new(with.env.now(), model.drive(self.seed), self.k, self.adaptive);
            Ok(Rc::new(Emulate {
                child,
                env: with.env,
                name: with.name,
                base: with.base,
                seed: self.seed,
                model: RefCell::new(model),
                throttle: RefCell::new(throttle),
                alarm: Alarm::default(),
                warned: Cell::new(false),
            }) as Made)
        })
    }
}

/// Refuses a drive that is smaller than the device below.
fn fits(model: &Model, geometry: &Geometry) -> Result<()> {
    if geometry.size <= model.size.0 {
        return Ok(());
    }
    let (name, size, below) = (&model.name, model.size, Bytes(geometry.size));
    Err(Error::invalid(format!(
        "model: {name} has {size}, and the device below has {below}: show a part of that with `linear`"
    )))
}

struct Emulate {
    name: String,
    env: Rc<dyn Env>,
    child: Rc<Node>,
    /// Where relative paths begin.
    base: PathBuf,
    seed: u64,
    model: RefCell<Model>,
    throttle: RefCell<Throttle>,
    /// When the model is looked at next.
    alarm: Alarm,
    /// It was said that the lateness is too large.
    warned: Cell<bool>,
}

/// A request's place in the model, which it leaves also when it is given up.
struct Place {
    layer: Rc<Emulate>,
    id: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.layer.throttle.borrow_mut().forget(self.id);
    }
}

impl Emulate {
    /// Looks at the model when a request ends there, unless that is arranged already.
    fn arm(self: &Rc<Self>) {
        let Some(next) = self.throttle.borrow().next() else { return };
        let ring = |me: Rc<Emulate>| {
            me.throttle.borrow_mut().harvest(me.env.now());
            me.arm();
        };
        self.alarm.set(&*self.env, next, || self.env.sleep_until(next), self, ring);
    }

    /// Waits until a request has ended in the model, and completes it.
    async fn hold(self: &Rc<Self>, place: &Place) {
        let returned = self.env.now();
        poll_fn(|cx| match self.throttle.borrow_mut().has_ended(place.id, cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        let changed = self.throttle.borrow_mut().complete(self.env.now(), place.id, returned);
        if let Some(k) = changed {
            tracing::info!(device = %self.name, "k is {k} now");
            // The lateness under another k is worth another word.
            self.warned.set(false);
            self.arm();
        }
        self.judge();
    }

    /// Says once that the lateness is too large.
    fn judge(&self) {
        const EVERY: u64 = 64;
        let throttle = self.throttle.borrow();
        let lateness = &throttle.counts().lateness;
        if self.warned.get() || !lateness.requests().is_multiple_of(EVERY) {
            return;
        }
        if lateness.is_valid() == Some(false) {
            self.warned.set(true);
            let p99 = lateness.shown()["p99"].as_f64().unwrap_or_default() * 1e6;
            tracing::warn!(
                device = %self.name,
                "no faithful drive: 1 in 100 requests is complete more than {p99:.0} us after its target; \
                 a larger k, or a faster device below, may help"
            );
        }
    }

    fn shown(&self) -> Value {
        let throttle = self.throttle.borrow();
        let counts = throttle.counts();
        let valid = counts.lateness.is_valid();
        json!({
            "model": self.model.borrow().name,
            "k": throttle.k(),
            "adaptive": throttle.bounds(),
            "requests": counts.lateness.requests(),
            "hits": counts.hits,
            "late": counts.late,
            "lateness": counts.lateness.shown(),
            "valid": valid,
            "invalid": valid == Some(false),
        })
    }

    async fn set(self: Rc<Self>, set: Set) -> Result<Value> {
        let model = match &set.model {
            None => None,
            Some(name) => {
                let model = model::load(&*self.env, &self.base, name).await?;
                fits(&model, &self.child.geometry())?;
                Some(model)
            }
        };
        let (now, mut throttle) = (self.env.now(), self.throttle.borrow_mut());
        let adaptive = if set.k.is_some() { set.adaptive } else { set.adaptive.or(throttle.bounds()) };
        let k = set.k.unwrap_or(throttle.k());
        match model {
            // Quiesced: no request is in flight.
            Some(model) => {
                *throttle = Throttle::new(now, model.drive(self.seed), k, adaptive);
                *self.model.borrow_mut() = model;
            }
            None => throttle.set_k(now, k, adaptive),
        }
        drop(throttle);
        self.warned.set(false);
        self.arm();
        Ok(self.shown())
    }
}

impl Layer for Emulate {
    fn geometry(&self) -> Geometry {
        self.child.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let id = self.throttle.borrow_mut().send(self.env.now(), Request::from(&*io));
        self.arm();
        let place = Place { layer: Rc::clone(&self), id };
        let below = self.child.submit(io.take());
        Step::control(async move {
            let result = below.await;
            self.hold(&place).await;
            result
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Emulate {
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    /// Another drive has no requests of the one before.
    fn needs_quiesce(&self, command: &Command) -> bool {
        command.name == "set" && command.args.get("model").is_some()
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "set" => {
                    let set = args(command)?;
                    self.set(set).await
                }
                "reset" => {
                    self.throttle.borrow_mut().reset();
                    self.warned.set(false);
                    Ok(self.shown())
                }
                "show" => Ok(self.shown()),
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn info(&self) -> Value {
        self.shown()
    }
}

#[cfg(test)]
pub(crate) mod tests;
