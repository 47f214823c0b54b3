//! The commands of devices with legs, and their info.

use super::roles::Rejoined;
use super::state::State;
use super::{LegState, Legs, Role, enough};
use lamina_block::{
    Arg, ArgType, Bytes, Class, Command, Error, ErrorKind, Figure, Finding, Node, Result, Unit, Verb,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::intent::Bits;
use serde::Deserialize;
use serde_json::{Value, json};
use std::rc::Rc;

/// The figures of devices with legs.
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
    Verb::new("grow", "use the space by which the devices below have grown"),
];

/// True if nothing may be in flight while the command runs.
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

/// Why a change of the bytes of one leg, `child`, is refused.
pub fn refusal(child: &Node) -> String {
    format!(
        "{} is one of its devices, and would differ from the others: take it out first (`lamina apply` with a \
         file without it), or put the layer that changes it above",
        child.name()
    )
}

impl Legs {
    /// Refuses devices that cannot be legs: see [`lamina_block::Manage::can_evacuate`].
    pub fn can_evacuate(&self, joining: &[Rc<Node>]) -> Result<()> {
        let size = self.size();
        // Of an absent device the geometry is not known.
        let known = joining.iter().filter(|child| child.geometry().size > 0);
        known.into_iter().try_for_each(|child| enough(child, size))
    }

    fn find(&self, name: &str) -> Result<usize> {
        let names: Vec<&str> = self.nodes.iter().map(|node| node.name()).collect();
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
                if trust.is_some_and(|leg| self.role(leg) != Role::Sync) {
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
        if self.is_last(leg) {
            return Err(Error::invalid("no other leg is up to date: without this one data would be lost"));
        }
        let now = self.env.now();
        if self.change(|state| state.fail(leg, now)) {
            self.changed();
        }
        self.take_spares();
        self.record().await?;
        Ok(self.info())
    }

    async fn rejoin(self: &Rc<Self>, leg: usize) -> Result<Value> {
        self.change(|state| state.rebuild.allow());
        let now = self.env.now();
        match self.change(|state| state.of_roles(|roles| roles.rejoin(leg, now))) {
            Rejoined::Already => {}
            Rejoined::Spare => self.changed(),
            Rejoined::Stale => {
                self.changed();
                self.bring_back(leg).await?;
            }
        }
        self.record().await?;
        self.rebuild();
        Ok(self.info())
    }

    /// Findings about the state of the legs.
    pub fn check(&self) -> Vec<Finding> {
        self.ask(|state| self.check_of(state))
    }

    fn check_of(&self, state: &State) -> Vec<Finding> {
        let legs = state.roles().legs().iter().zip(&self.nodes);
        let out_of_sync = legs.filter(|(leg, _)| matches!(leg.role, Role::Stale | Role::Failed));
        let say = |(leg, node): (&LegState, &Rc<Node>)| {
            Finding::new(
                Class::Repairable,
                format!("{} has {} out of sync", node.name(), Bytes(leg.stale_bytes())),
            )
        };
        let mut found: Vec<Finding> = out_of_sync.map(say).collect();
        if found.is_empty() {
            found.push(Finding::new(
                Class::Good,
                format!("{} legs have every byte", state.roles().in_sync().count()),
            ));
        }
        found
    }

    /// The info of the device.
    pub fn info(&self) -> Value {
        self.ask(|state| self.info_of(state))
    }

    fn info_of(&self, state: &State) -> Value {
        let (roles, wanted) = (state.roles(), state.roles().wanted);
        let leg = |(leg, node): (&LegState, &Rc<Node>)| {
            json!({
                "device": node.name(),
                "is": match leg.role {
                    Role::Sync => "in sync",
                    Role::Stale if leg.here => "rebuilding",
                    Role::Stale => "away",
                    Role::Failed => "failed",
                    Role::Spare => "spare",
                },
                "out_of_sync_bytes": leg.stale.as_ref().map(Bits::bytes),
                "why": leg.why.as_ref().map(|e| e.to_string()),
            })
        };
        let stale = roles.legs().iter().filter(|leg| leg.role == Role::Stale);
        let out_of_sync: u64 = stale.map(LegState::stale_bytes).sum();
        let covered = roles.covered(None);
        json!({
            "size": roles.size(),
            "legs": roles.legs().iter().zip(&self.nodes).map(leg).collect::<Vec<_>>(),
            "needs_resync_bytes": state.regions().needs_resync().bytes(),
            "region": self.intent.shape().region,
            "written_recently": self.intent.regions().bytes(),
            "copied": state.rebuild.copied(),
            "found": state.findings.info(),
            "legs_wanted": wanted.legs,
            "legs_in_sync": covered,
            "out_of_sync_bytes": out_of_sync,
            "alerts": {
                "degraded": !roles.are_whole() || covered < wanted.legs,
                "stopped": covered < wanted.needs,
                "lost": state.findings.has_lost(),
            },
        })
    }
}
