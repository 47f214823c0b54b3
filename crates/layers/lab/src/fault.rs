//! `fault`: makes requests fail, by rules that can be changed while it runs.
//!
//! The first rule that hits decides; a request that no rule hits is handed on and not seen again. A request that
//! fails here has not touched the device below: nothing of it was written.
//!
//! ```text
//!      request ──▶ rule 1? ──▶ rule 2? ──▶ … ──▶ device below
//!                    │ hit        │ hit
//!                    ▼            ▼
//!                  error       waits, then error
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `rules` (none): a list of tables. A rule looks at the requests that fit all of:
//!   * `op` (all): a list of "read", "write", "zero", "discard", "flush";
//!   * `offset` (0), `size` (the rest): the bytes that a request must touch. A flush touches none, so a rule with
//!     either key never hits one.
//!
//! Of these requests the rule hits
//! * all but the first `skip` (0), of which every `every`th (1), each with `probability` (1), in all at most
//!   `count` (no limit).
//!
//! A request that is hit fails
//! * with `error` ("media"): "media", "no-space", "read-only", "fenced", "offline", "timed-out" or
//!   "bad-memory";
//! * after it has waited for `hang` ("0s"). A change of the rules ends the wait early, and the request then
//!   goes on as if it had not been hit.
//!
//! Commands: `set` with `rules` replaces all rules, `clear` removes them, `show` lists them with how many
//! requests each has seen and hit. The layer deliberately corrupts and tears nothing: the simulator does.

use lamina_block::{
    Arg, ArgType, Build, Bytes, Command, Config, Consent, Effect, Env, Error, ErrorKind, Geometry, Interval,
    Io, Layer, Made, Manage, Node, OpKind, Passthrough, Pending, Result, Signal, Step, Traits, Verb, Zones,
};
use lamina_kit::command::{args, unknown};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// The keys, and the arguments of `set`; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    rules: Vec<Rule>,
}

/// Which requests fail, and how; see the module.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Rule {
    op: Vec<OpKind>,
    offset: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<Bytes>,
    skip: u64,
    every: u64,
    probability: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    error: Failure,
    hang: Interval,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            op: OpKind::ALL.to_vec(),
            offset: Bytes(0),
            size: None,
            skip: 0,
            every: 1,
            probability: 1.0,
            count: None,
            error: Failure::Media,
            hang: Interval::default(),
        }
    }
}

/// The failures that can be asked for.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Failure {
    Media,
    NoSpace,
    ReadOnly,
    Fenced,
    Offline,
    TimedOut,
    BadMemory,
}

impl Failure {
    fn error(self, at: Range<u64>) -> Error {
        let kind = match self {
            Failure::Media => ErrorKind::Media,
            Failure::NoSpace => ErrorKind::NoSpace,
            Failure::ReadOnly => ErrorKind::ReadOnly,
            Failure::Fenced => ErrorKind::Fenced,
            Failure::Offline => ErrorKind::Offline,
            Failure::TimedOut => ErrorKind::TimedOut,
            Failure::BadMemory => ErrorKind::BadMemory,
        };
        Error::new(kind, "a fault was injected").at(at)
    }
}

impl Rule {
    fn check(&self, index: usize) -> Result<()> {
        let wrong = |key: &str, what: &str| Err(Error::invalid(format!("rules[{index}].{key}: {what}")));
        if self.every == 0 {
            return wrong("every", "must be 1 or more");
        }
        if !(0.0..=1.0).contains(&self.probability) {
            return wrong("probability", "must be from 0 to 1");
        }
        Ok(())
    }

    /// True if the rule looks at the request.
    fn fits(&self, op: OpKind, at: &Range<u64>) -> bool {
        let end = self.size.map_or(u64::MAX, |size| self.offset.0.saturating_add(size.0));
        let everywhere = self.offset.0 == 0 && self.size.is_none();
        self.op.contains(&op) && (everywhere || (at.start < end && self.offset.0 < at.end))
    }
}

/// A rule and its counts.
#[derive(Debug)]
struct Active {
    rule: Rule,
    seen: u64,
    hits: u64,
}

impl Active {
    /// Counts a request that fits, and decides.
    fn hits(&mut self, random: impl FnOnce() -> u64) -> bool {
        self.seen += 1;
        let rule = &self.rule;
        let due = self.seen > rule.skip && (self.seen - rule.skip).is_multiple_of(rule.every);
        let left = rule.count.is_none_or(|count| self.hits < count);
        let hit = due && left && (rule.probability >= 1.0 || fraction(random()) < rule.probability);
        self.hits += hit as u64;
        hit
    }
}

/// A random number made a fraction in 0..1.
fn fraction(random: u64) -> f64 {
    (random >> 11) as f64 / (1u64 << 53) as f64
}

/// All rules, in order.
#[derive(Debug, Default)]
struct Rules(Vec<Active>);

impl Rules {
    fn new(rules: Vec<Rule>) -> Result<Rules> {
        rules.iter().enumerate().try_for_each(|(index, rule)| rule.check(index))?;
        Ok(Rules(rules.into_iter().map(|rule| Active { rule, seen: 0, hits: 0 }).collect()))
    }

    /// The failure of a request, if a rule hits it.
    fn decide(
        &mut self,
        op: OpKind,
        at: &Range<u64>,
        random: impl Fn() -> u64,
    ) -> Option<(Failure, Duration)> {
        let mut looking = self.0.iter_mut().filter(|active| active.rule.fits(op, at));
        looking.find_map(|active| active.hits(&random).then_some((active.rule.error, active.rule.hang.0)))
    }

    fn show(&self) -> Value {
        let one = |a: &Active| json!({ "rule": a.rule, "seen": a.seen, "hits": a.hits });
        json!({ "rules": self.0.iter().map(one).collect::<Vec<_>>() })
    }
}

impl Config for Keys {
    const KIND: &'static str = "fault";
    const SUMMARY: &'static str = "makes requests fail";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        verbs: &[
            Verb::new("set", "replaces all rules").with(&[Arg::required(
                "rules",
                ArgType::Json,
                "a list of rules",
            )]),
            Verb::new("clear", "removes all rules"),
            Verb::asks("show", "the rules, and how many requests each has seen and hit"),
        ],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let rules = RefCell::new(Rules::new(self.rules)?);
            let (child, env) = (with.child(), with.env);
            Ok(Rc::new(Fault { child, env, rules, changed: Signal::new(), version: Cell::new(0) }) as Made)
        })
    }
}

struct Fault {
    child: Rc<Node>,
    env: Rc<dyn Env>,
    rules: RefCell<Rules>,
    /// Notified when the rules are replaced.
    changed: Signal,
    /// The number of replacements.
    version: Cell<u64>,
}

impl Fault {
    fn replace(&self, rules: Rules) -> Value {
        *self.rules.borrow_mut() = rules;
        self.version.set(self.version.get() + 1);
        self.changed.notify();
        self.rules.borrow().show()
    }

    fn carry_out(&self, command: Command) -> Result<Value> {
        match command.name.as_str() {
            "set" => Ok(self.replace(Rules::new(args::<Keys>(command)?.rules)?)),
            "clear" => Ok(self.replace(Rules::default())),
            "show" => Ok(self.rules.borrow().show()),
            _ => Err(unknown(&command, Keys::TRAITS.verbs)),
        }
    }

    /// Waits for `time` or until the rules are replaced; true if they were.
    async fn released(&self, time: Duration) -> bool {
        let version = self.version.get();
        let mut elapsed = self.env.sleep(time);
        let mut changed = pin!(self.changed.until(|| self.version.get() != version));
        std::future::poll_fn(|cx| match changed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => elapsed.as_mut().poll(cx).map(|()| false),
        })
        .await
    }
}

impl Layer for Fault {
    fn geometry(&self) -> Geometry {
        // Requests arrive here as they are below, natively: rules see the user's requests.
        self.child.geometry()
    }

    fn zones(&self) -> Option<Zones> {
        self.child.zones()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let hit = self.rules.borrow_mut().decide(io.op.kind(), &io.at, || self.env.random());
        match hit {
            None => Step::Forward(Rc::clone(&self.child)),
            Some((failure, Duration::ZERO)) => failure.error(io.at.clone()).into(),
            Some((failure, hang)) => {
                let io = io.take();
                Step::control(async move {
                    match self.released(hang).await {
                        true => self.child.submit(io).await,
                        false => Err(failure.error(io.at)),
                    }
                })
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Fault {
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move { self.carry_out(command) })
    }

    fn info(&self) -> Value {
        self.rules.borrow().show()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(
            &Kind::of::<super::Keys>(),
            json!({ "rules": [{ "count": 0 }, { "op": ["read"], "probability": 0.0 }] }),
            1,
        )
    }

    /// Which of the first twelve of these requests a rule hits.
    fn pattern_of(rule: Value) -> String {
        let mut rules = Rules::new(vec![serde_json::from_value(rule).unwrap()]).unwrap();
        let mut one = || rules.decide(OpKind::Write, &(4096..8192), || 1 << 63).is_some();
        (0..12).map(|_| if one() { 'x' } else { '.' }).collect()
    }

    #[test]
    fn rules_hit_what_they_say() {
        for (rule, expected) in [
            (json!({}), "xxxxxxxxxxxx"),
            (json!({"op": ["write", "zero"]}), "xxxxxxxxxxxx"),
            (json!({"op": ["read"]}), "............"),
            (json!({"op": []}), "............"),
            (json!({"count": 3}), "xxx........."),
            (json!({"skip": 2, "count": 1}), "..x........."),
            (json!({"every": 4}), "...x...x...x"),
            (json!({"skip": 1, "every": 3, "count": 2}), "...x..x....."),
            (json!({"probability": 0.6}), "xxxxxxxxxxxx"),
            (json!({"probability": 0.4}), "............"),
            (json!({"offset": 8192}), "............"),
            (json!({"offset": 8191}), "xxxxxxxxxxxx"),
            (json!({"size": 4096}), "............"),
            (json!({"size": 4097}), "xxxxxxxxxxxx"),
            (json!({"offset": "6KiB", "size": u64::MAX}), "xxxxxxxxxxxx"),
        ] {
            assert_eq!(pattern_of(rule.clone()), expected, "{rule}");
        }
    }

    #[test]
    fn a_rule_with_a_range_never_hits_a_flush() {
        let mut rules = Rules::new(vec![Rule { size: Some(Bytes(512)), ..Rule::default() }]).unwrap();
        assert!(rules.decide(OpKind::Flush, &(0..0), || 0).is_none());
        let mut rules = Rules::new(vec![Rule::default()]).unwrap();
        assert!(rules.decide(OpKind::Flush, &(0..0), || 0).is_some());
    }

    #[test]
    fn commands_change_the_rules_of_a_running_device() {
        let node = over("fault", json!({}), &[&memory("1MiB")]);
        write(&node, 0, 1, 512);
        let rules = json!({"rules": [{"op": ["write"], "error": "no-space", "count": 1}]});
        command(&node, "set", rules).unwrap();
        let e = submit(&node, Io::write(0, Buf::zeroed(512), Durability::Cached)).unwrap_err();
        assert_eq!((e.kind(), e.device(), e.range()), (ErrorKind::NoSpace, Some("fault"), Some(&(0..512))));
        assert_eq!(read(&node, 0, 512), [1; 512], "nothing was written");
        write(&node, 0, 2, 512);
        let shown = command(&node, "show", Value::Null).unwrap();
        assert_eq!((&shown["rules"][0]["seen"], &shown["rules"][0]["hits"]), (&json!(2), &json!(1)));
        assert_eq!(shown, node.info());
        command(&node, "set", json!({"rules": [{}]})).unwrap();
        assert!(submit(&node, Io::flush()).is_err());
        command(&node, "clear", json!({})).unwrap();
        submit(&node, Io::flush()).unwrap();
    }

    #[test]
    fn wrong_rules_are_refused_and_change_nothing() {
        let node = over("fault", json!({"rules": [{"op": ["read"]}]}), &[&memory("1MiB")]);
        for (rules, says) in [
            (json!({"rules": [{}, {"every": 0}]}), "rules[1].every"),
            (json!({"rules": [{"probability": 1.5}]}), "rules[0].probability"),
            (json!({"rules": [{"error": "meteor"}]}), "meteor"),
            (json!({"rule": []}), "rule"),
        ] {
            let message = command(&node, "set", rules).unwrap_err().message().to_owned();
            assert!(message.contains(says), "{message}");
        }
        assert!(command(&node, "explode", json!({})).unwrap_err().message().contains("set, clear, show"));
        assert!(submit(&node, Io::read(0, Buf::zeroed(512))).is_err());
    }

    #[test]
    fn a_hanging_request_fails_in_the_end_or_goes_on_when_the_rules_change() {
        simulated(|world| async move {
            let below = world.memory("1MiB").await;
            let rules = json!({"rules": [{"op": ["write"], "hang": "30s", "error": "timed-out"}]});
            let node = world.over("fault", rules, &[&below]).await;
            let write = || node.submit(Io::write(0, Buf::from_vec(vec![1; 512]), Durability::Cached));
            assert_eq!(write().await.unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(world.env.now(), Time(30_000_000_000));
            assert_eq!(below.stats().of(OpKind::Write).completed.get(), 0);
            let hanging = world.sim.start(write());
            world.env.sleep(Duration::from_secs(1)).await;
            node.control(Command { name: "clear".into(), args: Value::Null }).await.unwrap();
            hanging.ended().await.unwrap();
            assert_eq!(world.env.now(), Time(31_000_000_000));
            assert_eq!(below.stats().of(OpKind::Write).completed.get(), 1);
        });
    }
}
