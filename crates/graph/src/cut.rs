//! Members that were cut short: which of them the others make whole again.
//!
//! Such a member has its size back, perhaps, and zeroes or something else where it was cut. If it is a leg of a device that can
//! do without it, that device takes it for a new one: the words that it keeps forget the leg, in the same change of the
//! superblocks that writes the missing copy. So at no moment anybody takes what it has for what was written.
//!
//! Which legs have everything is what the words say of the state that the hierarchy would be opened in: a change that only
//! some of the members have seen says nothing yet.

use crate::absent;
use crate::device::Device;
use crate::plan::Plan;
use lamina_metadata::member::{Candidate, judge, records};

impl Plan {
    /// Marks those of `candidates` that were cut short and get everything from the others, when a hierarchy called `name` is
    /// opened without those that are `missing`: all of them, or none.
    pub fn mark_cut(&self, name: &str, candidates: &mut Vec<Candidate>, missing: &[&str], degraded: bool) {
        if !candidates.iter().any(Candidate::is_cut) {
            return;
        }
        let mark = |c: &Candidate| Candidate { anew: c.is_cut(), ..c.clone() };
        let marked: Vec<Candidate> = candidates.iter().map(mark).collect();
        let Ok(assembly) = judge(name, &marked, missing, degraded) else { return };
        let Some(first) = assembly.members.first() else { return };
        let kept = records::split(&first.description).map(|(_, kept)| kept).unwrap_or_default();
        let is_cut = |name: &str| marked.iter().any(|c| c.device == name && c.is_cut());
        let is_whole = |name: &str| assembly.members.iter().any(|m| m.name == name) && !is_cut(name);
        let members = self.members();
        let gone: Vec<&str> = members.iter().map(|m| &m.device[..]).filter(|name| !is_whole(name)).collect();
        let cut: Vec<&str> = gone.iter().copied().filter(|name| is_cut(name)).collect();
        let has_others = |name: &&str| self.has_others(name, &cut, &kept.records);
        if absent::survives(self)(&gone) && cut.iter().all(has_others) {
            *candidates = marked;
        }
    }

    /// The device that can do without the member called `name`, and its child that is nothing without it.
    pub(crate) fn leg_of(&self, name: &str) -> Option<(&Device, &str)> {
        let children = |device: &'_ Device| device.over.iter().position(|over| over == name);
        let mut above = self.devices.iter().filter_map(|device| Some((device, children(device)?)));
        let (Some((device, child)), None) = (above.next(), above.next()) else { return None };
        let is_exported = self.exports.iter().any(|export| export.device == name);
        match device {
            _ if is_exported => None,
            device if device.survives > 0 => Some((device, &device.over[child])),
            device if device.over.len() == 1 && !device.kind.traits.keeps => self.leg_of(&device.name),
            _ => None,
        }
    }

    /// True if something that stands on the device called `name` keeps copies, or parity: bytes that are lost there are not
    /// lost, or are believed by nobody else.
    pub fn is_below_copies(&self, name: &str) -> bool {
        let stands = |device: &&Device| device.over.iter().any(|over| over == name);
        let mut above = self.devices.iter().filter(stands);
        above.any(|device| device.survives > 0 || self.is_below_copies(&device.name))
    }

    /// True if the device above the member called `name` has enough legs that have everything, apart from those over `cut`.
    fn has_others(&self, name: &str, cut: &[&str], kept: &records::Records) -> bool {
        let Some((device, _)) = self.leg_of(name) else { return false };
        let cut: Vec<&str> = cut.iter().filter_map(|name| Some(self.leg_of(name)?.1)).collect();
        // docs/formats/kept.md
        let Some(legs) = kept.get(&device.name).and_then(|words| words["legs"].as_array()) else {
            return true;
        };
        let counts = |leg: &&serde_json::Value| {
            leg["is"] == "sync" && leg["device"].as_str().is_some_and(|name| !cut.contains(&name))
        };
        let spares = device.keys["spares"].as_u64().unwrap_or(0) as usize;
        legs.iter().filter(counts).count() >= device.over.len().saturating_sub(device.survives + spares)
    }
}
