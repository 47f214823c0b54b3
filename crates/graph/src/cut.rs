//! Truncated members: which of them the others repair.
//!
//! Such a member may have its size back, with zeroes or other bytes in place of the lost data. A device that has the
//! member as a leg and survives its loss takes the leg for a new one: the device's state record forgets the leg, in the
//! same change of the superblocks that writes the missing copy. So the bytes of a truncated leg are never taken for
//! written data.
//!
//! The state record tells which legs are in sync, in the state in which the hierarchy would be opened: a change that
//! reached only some of the members does not count yet.

use crate::absent;
use crate::device::Device;
use crate::plan::Plan;
use lamina_metadata::member::{Candidate, judge, records};

impl Plan {
    /// Marks those of `candidates` that were cut short and get everything from the others, when a hierarchy called
    /// `name` is opened without those that are `missing`: all of them, or none.
    pub fn mark_cut(&self, name: &str, candidates: &mut Vec<Candidate>, missing: &[&str], degraded: bool) {
        if !candidates.iter().any(Candidate::is_cut) {
            return;
        }
        let mark = |c: &Candidate| Candidate { anew: c.is_cut(), ..c.clone() };
        let marked: Vec<Candidate> = candidates.iter().map(mark).collect();
        let Ok(assembly) = judge(name, &marked, missing, degraded) else { return };
        let Some(first) = assembly.members.first() else { return };
        let trailer = records::split(&first.description).map(|(_, trailer)| trailer).unwrap_or_default();
        let is_cut = |name: &str| marked.iter().any(|c| c.device == name && c.is_cut());
        let is_whole = |name: &str| assembly.members.iter().any(|m| m.name == name) && !is_cut(name);
        let members = self.members();
        let gone: Vec<&str> = members.iter().map(|m| &m.device[..]).filter(|name| !is_whole(name)).collect();
        let cut: Vec<&str> = gone.iter().copied().filter(|name| is_cut(name)).collect();
        let has_others = |name: &&str| self.has_others(name, &cut, &trailer.records);
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

    /// True if a device over the device called `name` keeps copies or parity: other legs have the bytes that are lost
    /// there, or no other leg relies on them.
    pub fn is_below_copies(&self, name: &str) -> bool {
        let stands = |device: &&Device| device.over.iter().any(|over| over == name);
        let mut above = self.devices.iter().filter(stands);
        above.any(|device| device.survives > 0 || self.is_below_copies(&device.name))
    }

    /// True if the device above the member called `name` has enough legs that have everything, apart from those over
    /// `cut`.
    fn has_others(&self, name: &str, cut: &[&str], stored: &records::Records) -> bool {
        let Some((device, _)) = self.leg_of(name) else { return false };
        let cut: Vec<&str> = cut.iter().filter_map(|name| Some(self.leg_of(name)?.1)).collect();
        // docs/formats/kept.md
        let Some(legs) = stored.get(&device.name).and_then(|record| record["legs"].as_array()) else {
            return true;
        };
        let counts = |leg: &&serde_json::Value| {
            leg["is"] == "sync" && leg["device"].as_str().is_some_and(|name| !cut.contains(&name))
        };
        let spares = device.keys["spares"].as_u64().unwrap_or(0) as usize;
        legs.iter().filter(counts).count() >= device.over.len().saturating_sub(device.survives + spares)
    }
}
