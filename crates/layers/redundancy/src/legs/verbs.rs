//! The commands of devices with legs, and what they show.

use super::{Legs, Role, enough};
use lamina_block::{
    Arg, ArgType, Bytes, Class, Command, Error, ErrorKind, Figure, Finding, Node, Result, Unit, Verb,
};
use lamina_kit::command::{args, unknown};
use serde::Deserialize;
use serde_json::{Value, json};
use std::rc::Rc;

/// What is shown of devices with legs.
pub const FIGURES: &[Figure] = &[
    Figure::gauge("legs", "/legs_wanted", Unit::Count, "Legs that it has when nothing is missing."),
    Figure::gauge("legs_in_sync", "/legs_in_sync", Unit::Count, "Legs that have every byte."),
    Figure::gauge(
        "out_of_sync_bytes",
        "/out_of_sync_bytes",
        Unit::Bytes,
        "Bytes of legs that are out of sync: the rebuild copies them.",
    ),
    Figure::counter(
        "healed_total",
        "/found/healed",
        Unit::Count,
        "Places that were wrong on a leg, and were written again.",
    ),
    Figure::counter("different_total", "/found/different", Unit::Count, "Places where legs differed."),
    Figure::counter("lost_total", "/found/lost", Unit::Count, "Places that no leg has."),
];

/// The commands.
pub const VERBS: &[Verb] = &[
    Verb::new("fail", "ask nothing of a leg any more, until it rejoins").with(LEG),
    Verb::new("rejoin", "let a leg take part again: the rebuild copies what is out of sync").with(LEG),
    Verb::new("scrub", "compare all that the legs hold, and repair differences").with(&[Arg::optional(
        "trust",
        ArgType::Text,
        "the leg that is right where two differ and nothing else says which is",
    )]),
    Verb::new("grow", "use what the devices below have become larger by"),
];

/// Whether nothing may be in flight while a command is carried out.
pub fn needs_quiesce(command: &Command) -> bool {
    command.name == "grow"
}

const LEG: &[Arg] = &[Arg::required("leg", ArgType::Text, "the device")];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfLeg {
    leg: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scrub {
    trust: Option<String>,
}

/// Why others cannot change what is on one leg, `child`.
pub fn refusal(child: &Node) -> String {
    format!(
        "{} is one of its devices, and would have something else than the others: take it out first (`lamina apply` with a \
         file without it), or have what changes it above",
        child.name()
    )
}

impl Legs {
    /// Refuses devices that cannot be legs: see [`lamina_block::Manage::can_evacuate`].
    pub fn can_evacuate(&self, joining: &[Rc<Node>]) -> Result<()> {
        let size = self.size.get();
        // Of one that is not there nothing is known.
        let known = joining.iter().filter(|child| child.geometry().size > 0);
        known.into_iter().try_for_each(|child| enough(child, size))
    }

    fn find(&self, name: &str) -> Result<usize> {
        let names: Vec<&str> = self.legs.iter().map(|leg| leg.node.name()).collect();
        let none = || Error::invalid(format!("there is no leg {name:?}; there are {}", names.join(", ")));
        names.iter().position(|other| *other == name).ok_or_else(none)
    }

    /// Carries out a command.
    pub async fn control(self: &Rc<Self>, command: Command) -> Result<Value> {
        if self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "a device below is read-only"));
        }
        match command.name.as_str() {
            "fail" => self.fail(self.find(&args::<OfLeg>(command)?.leg)?).await,
            "rejoin" => self.rejoin(self.find(&args::<OfLeg>(command)?.leg)?).await,
            "scrub" => {
                let trust = args::<Scrub>(command)?.trust.map(|leg| self.find(&leg)).transpose()?;
                if trust.is_some_and(|leg| self.legs[leg].role.get() != Role::Sync) {
                    return Err(Error::invalid("trust: that leg does not have every byte"));
                }
                self.start_scrub(trust);
                self.changed();
                self.record().await?;
                Ok(json!({}))
            }
            "grow" => self.grow().await,
            _ => Err(unknown(&command, VERBS)),
        }
    }

    async fn fail(&self, leg: usize) -> Result<Value> {
        let it = &self.legs[leg];
        if self.is_last(leg) {
            return Err(Error::invalid("no other leg has every byte: it cannot be done without"));
        }
        if it.role.get() != Role::Failed {
            if it.role.get() == Role::Spare {
                self.lacks_all(leg);
            }
            self.lose(leg, Role::Failed, None);
        }
        self.take_spares();
        self.record().await?;
        Ok(self.info())
    }

    async fn rejoin(self: &Rc<Self>, leg: usize) -> Result<Value> {
        let it = &self.legs[leg];
        self.halted.set(false);
        match it.role.get() {
            Role::Sync | Role::Spare => {}
            Role::Failed if self.active() >= self.want => {
                it.missing.replace(None);
                it.copied.set(None);
                it.place.set(None);
                it.role.set(Role::Spare);
                self.changed();
            }
            Role::Failed | Role::Behind => {
                if it.role.get() == Role::Failed {
                    self.seat(leg);
                }
                it.role.set(Role::Behind);
                it.since.set(self.env.now());
                self.changed();
                self.bring_back(leg).await?;
            }
        }
        self.record().await?;
        self.rebuild();
        Ok(self.info())
    }

    /// What is worth saying about what is kept.
    pub fn check(&self) -> Vec<Finding> {
        let lacks = |leg: &&super::Leg| matches!(leg.role.get(), Role::Behind | Role::Failed);
        let say = |leg: &super::Leg| {
            let bytes = leg.missing.borrow().as_ref().map_or(0, |missing| missing.bytes());
            Finding::new(Class::Repairable, format!("{} has {} out of sync", leg.node.name(), Bytes(bytes)))
        };
        let mut found: Vec<Finding> = self.legs.iter().filter(lacks).map(say).collect();
        if found.is_empty() {
            found.push(Finding::new(Class::Good, format!("{} legs have every byte", self.in_sync().count())));
        }
        found
    }

    /// What there is to show.
    pub fn info(&self) -> Value {
        let leg = |leg: &super::Leg| {
            let missing = leg.missing.borrow().as_ref().map(|missing| missing.bytes());
            json!({
                "device": leg.node.name(),
                "is": match leg.role.get() {
                    Role::Sync => "in sync",
                    Role::Behind if leg.here.get() => "rebuilding",
                    Role::Behind => "away",
                    Role::Failed => "failed",
                    Role::Spare => "spare",
                },
                "out_of_sync_bytes": missing,
                "why": leg.why.borrow().as_ref().map(|e| e.to_string()),
            })
        };
        let lacks = |leg: &super::Leg| leg.missing.borrow().as_ref().map_or(0, |missing| missing.bytes());
        let lacking = self.legs.iter().filter(|leg| leg.role.get() == Role::Behind).map(lacks).sum::<u64>();
        let is_missed = |leg: &super::Leg| !matches!(leg.role.get(), Role::Sync | Role::Spare);
        json!({
            "size": self.size.get(),
            "legs": self.legs.iter().map(leg).collect::<Vec<_>>(),
            "needs_resync_bytes": self.unsure.borrow().bytes(),
            "region": self.intent.shape().region,
            "written_recently": self.intent.regions().bytes(),
            "copied": self.copied_bytes.get(),
            "found": self.findings.info(),
            "legs_wanted": self.want,
            "legs_in_sync": self.covered(None),
            "out_of_sync_bytes": lacking,
            "alerts": {
                "degraded": self.legs.iter().any(is_missed) || self.covered(None) < self.want,
                "stopped": self.covered(None) < self.needs,
                "lost": self.findings.lost.get() > 0,
            },
        })
    }
}
