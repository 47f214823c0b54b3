//! The changes that led to a hierarchy, and the change under way: a line that its members carry after its description.
//!
//! ```text
//!   A ──▶ A with B, while data is moved ──▶ B
//!         files: A                          files: A
//!         over, gone: the rest of the way to B
//! ```
//!
//! A daemon that is killed during a change, or started again after one, has a file that describes the beginning or the
//! end. That is enough: the members say what the hierarchy is, and the file gives the paths and addresses of this host
//! ([`crate::local`]). So they remember which files lead here, until the one with which the daemon is started describes
//! what they carry. Any other file is refused.

use crate::change;
use crate::description::written;
use crate::hierarchy::Hierarchy;
use crate::local;
use crate::persistent::Persistent;
use crate::plan::Plan;
use lamina_block::{Kind, Result};
use lamina_metadata::member::records;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The most files that are remembered: the first, with which the daemon was started, and the latest.
const FILES_MAX: usize = 8;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Way {
    /// The folder where relative paths of the description begin: that of its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The fingerprints of files that described the hierarchy before, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The paths of members when the change was made. They are only a hint: a device found there must be a member.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub paths: BTreeMap<String, String>,
    /// While data is moved: the children of devices after the move.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub over: BTreeMap<String, Value>,
    /// While data is moved: the devices that are gone after the move.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<String>,
}

impl Way {
    /// The way of a hierarchy whose file is in `base`.
    pub fn from(base: &Path) -> Way {
        Way { base: base.to_str().map(str::to_owned), ..Way::default() }
    }

    /// What members carry. A line that this Lamina does not understand counts as none.
    pub fn read(carried: Option<Value>) -> Way {
        carried.and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
    }

    /// What members are to carry.
    pub fn to_record(&self) -> Option<Value> {
        serde_json::to_value(self).ok().filter(|_| *self != Way::default())
    }

    /// True while data is moved.
    pub fn is_under_way(&self) -> bool {
        !self.over.is_empty()
    }

    /// The description after the move of data; `description` itself if none is under way.
    pub fn destination<'a>(&self, description: &'a str) -> Cow<'a, str> {
        if !self.is_under_way() {
            return Cow::Borrowed(description);
        }
        let Ok(document) = DeTable::parse(description) else { return Cow::Borrowed(description) };
        let mut root = document.into_inner();
        for (name, device) in local::tables(&mut root, "device") {
            if let Some(over) = self.over.get(&name) {
                local::set(device, "over", names(over));
                local::remove(device, "leaving");
            }
        }
        if let Some(DeValue::Table(devices)) = root.get_mut("device").map(|devices| devices.get_mut()) {
            self.gone.iter().for_each(|name| drop(devices.remove(name.as_str())));
        }
        Cow::Owned(written(&root))
    }

    /// True if a file with this fingerprint leads to `description`, which is carried with this way, or is its end.
    pub fn knows(&self, file: &str, description: &str, kinds: &[Kind]) -> bool {
        let end = || self.is_under_way().then(|| local::fingerprint(&self.destination(description), kinds));
        self.files.iter().any(|known| known == file) || end().is_some_and(|end| end == file)
    }

    /// The way from a hierarchy, which has this one, to `next`, whose own says what is moved.
    pub fn on(&self, before: &Plan, next: &Plan) -> Way {
        let (Some(was), Some(is)) = (&before.persistent, &next.persistent) else { return Way::default() };
        let print = |way: &Way, text: &str| local::fingerprint(&way.destination(text), &next.kinds);
        let (from, to) = (print(self, &was.description), print(&is.way, &is.description));
        let mut files = self.files.clone();
        files.push(from);
        files.retain(|file| *file != to);
        let mut once: Vec<String> = Vec::new();
        files.into_iter().for_each(|file| {
            if !once.contains(&file) {
                once.push(file)
            }
        });
        while once.len() > FILES_MAX {
            once.remove(1);
        }
        let paths = before.members().into_iter().chain(next.members());
        let paths = paths.filter_map(|member| Some((member.device, member.path.to_str()?.to_owned())));
        Way { files: once, paths: paths.collect(), ..is.way.clone() }
    }
}

/// Names of devices, as `over` has them.
fn names<'a>(value: &Value) -> DeValue<'a> {
    let name = |value: &Value| DeValue::String(Cow::Owned(value.as_str().unwrap_or_default().to_owned()));
    match value {
        Value::Array(list) => {
            let mut out = DeArray::new();
            list.iter().for_each(|value| out.push(Spanned::new(0..0, name(value))));
            DeValue::Array(out)
        }
        one => name(one),
    }
}

impl Hierarchy {
    /// The end of the change, if the hierarchy was opened while data is moved; the way itself has all that is needed
    /// for it.
    pub fn destination(&self) -> Option<Plan> {
        let way = self.way();
        let plan = &self.plan;
        let text = way.is_under_way().then(|| way.destination(&plan.source.text))?;
        let elsewhere = plan.devices.iter().filter(|device| device.base != plan.base);
        let elsewhere = elsewhere.map(|device| (device.name.clone(), device.base.clone())).collect();
        Plan::parse_joined(&text, plan.file(), &plan.base, &elsewhere, &plan.kinds).ok()
    }

    /// Records the file of the next open; true if that file describes the present hierarchy. Then files that described
    /// it before are not accepted any more.
    pub async fn confirm(&self, file: &Plan) -> Result<bool> {
        let same = change::between(&self.plan, file).is_ok_and(|steps| steps.is_empty());
        let (Some(roster), Some(own), Some(other)) = (&self.roster, &self.plan.persistent, &file.persistent)
        else {
            return Ok(same);
        };
        let agreed = |persistent: &Persistent| local::agreed(&persistent.description, &file.kinds);
        let way = self.way();
        if !same || way.is_under_way() || agreed(own) != agreed(other) {
            return Ok(false);
        }
        if !way.files.is_empty() {
            roster.set_way(Way::from(&file.base).to_record()).await?;
        }
        Ok(true)
    }
}

impl Plan {
    /// The same, read from `description`, which its members carry: they go on remembering what led there.
    pub fn from_members(mut self, description: &str) -> Plan {
        let way = records::split(description).map_or(Way::default(), |(_, trailer)| Way::read(trailer.way));
        self.persistent.iter_mut().for_each(|persistent| persistent.way = way.clone());
        self
    }
}

/// Where things were when a description was written. The text is not to be trusted.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Where relative paths in it begin.
    pub base: Option<PathBuf>,
    /// The paths of members, by name.
    pub paths: BTreeMap<String, PathBuf>,
}

/// Reads the hints of a description that a member carries.
pub fn hints(description: &str) -> Hints {
    let way = records::split(description).map_or(Way::default(), |(_, trailer)| Way::read(trailer.way));
    let paths = way.paths.into_iter().map(|(name, path)| (name, path.into())).collect();
    Hints { base: way.base.map(PathBuf::from), paths }
}
