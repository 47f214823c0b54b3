//! The keys of `schedule`, and the policies that they name.

use super::aged::Aged;
use super::policy::Policy;
use super::{cats, cfq, cscan::Cscan, deadline, noop::Noop, satf, scan::Scan, sstf::Sstf};
use lamina_block::{Error, Interval, Result};
use lamina_drive::Model;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::time::Duration;

/// The keys, and the arguments of `set`; see the module.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Keys {
    /// Which policy orders the requests.
    pub policy: Name,
    /// How many requests the device below has at the same time.
    pub depth: NonZeroU32,
    /// The drive below: the name of a model that comes with Lamina, or the path of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The age from which requests may go out of turn; of `sstf`, `scan`, `cscan` and `cats`.
    pub age_limit: Interval,
    /// Parameters of `deadline`.
    pub deadline: deadline::Parameters,
    /// Parameters of `cfq`.
    pub cfq: cfq::Parameters,
    /// Parameters of `cats`.
    pub cats: cats::Parameters,
    /// Parameters of `satf`.
    pub satf: satf::Parameters,
}

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// In the order of arrival.
    #[default]
    Noop,
    /// The shortest distance first.
    Sstf,
    /// The elevator: up and down.
    Scan,
    /// The elevator that goes up only.
    Cscan,
    /// Linux's deadline scheduler.
    Deadline,
    /// Linux's completely fair queueing.
    Cfq,
    /// Cache-aware table scheduling.
    Cats,
    /// The shortest access time first.
    Satf,
}

impl Name {
    /// All policies.
    pub const ALL: [Name; 8] =
        [Name::Noop, Name::Sstf, Name::Scan, Name::Cscan, Name::Deadline, Name::Cfq, Name::Cats, Name::Satf];

    /// True for the policy that sends in the order of arrival, and knows nothing of the drive.
    pub const fn is_plain(self) -> bool {
        matches!(self, Name::Noop)
    }

    /// Its name in files and commands.
    pub const fn text(self) -> &'static str {
        match self {
            Name::Noop => "noop",
            Name::Sstf => "sstf",
            Name::Scan => "scan",
            Name::Cscan => "cscan",
            Name::Deadline => "deadline",
            Name::Cfq => "cfq",
            Name::Cats => "cats",
            Name::Satf => "satf",
        }
    }
}

impl Default for Keys {
    fn default() -> Keys {
        Keys {
            policy: Name::default(),
            depth: NonZeroU32::MIN,
            model: None,
            age_limit: Interval(Duration::from_secs(1)),
            deadline: deadline::Parameters::default(),
            cfq: cfq::Parameters::default(),
            cats: cats::Parameters::default(),
            satf: satf::Parameters::default(),
        }
    }
}

impl Keys {
    /// An error, which names the key, if they lack what their policy needs.
    pub(super) fn complete(&self) -> Result<()> {
        let lacks_model = self.policy == Name::Satf && self.model.is_none();
        if lacks_model { Err(model_missing()) } else { Ok(()) }
    }

    /// The policy that they name, with nothing waiting. `model` is the drive below, if it is known. An error names the
    /// key that is missing.
    pub fn policy(&self, model: Option<&Model>) -> Result<Box<dyn Policy>> {
        Ok(match self.policy {
            Name::Noop => Box::new(Noop::default()),
            Name::Sstf => Box::new(Aged::new(Sstf, self)),
            Name::Scan => Box::new(Aged::new(Scan::default(), self)),
            Name::Cscan => Box::new(Aged::new(Cscan, self)),
            Name::Deadline => Box::new(deadline::Deadline::new(self)),
            Name::Cfq => Box::new(cfq::Cfq::new(self)),
            Name::Cats => Box::new(cats::Cats::new(self, model)),
            Name::Satf => match model {
                Some(model) => Box::new(satf::Satf::new(self, model)),
                None => return Err(model_missing()),
            },
        })
    }
}

fn model_missing() -> Error {
    Error::invalid("model: policy satf needs the drive's model: give a name or a file")
}
