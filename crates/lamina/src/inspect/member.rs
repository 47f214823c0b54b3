//! A device as a member of a hierarchy, and the state of its two superblocks.

use lamina_block::Bytes;
use lamina_metadata::member::records::evicted_in;
use lamina_metadata::superblock::{Found, Place};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A member, or the remains of one.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The contents of the valid copy; `None` if no copy can be believed.
    pub superblock: Option<Superblock>,
    /// The state of the first and the second copy, as text.
    copies: [String; 2],
}

/// What the superblock of a member says.
#[derive(Debug, Serialize)]
pub struct Superblock {
    pub hierarchy: String,
    pub hierarchy_uuid: String,
    pub member: String,
    member_uuid: String,
    /// From 0.
    pub index: u32,
    pub members: u32,
    pub generation: u64,
    /// Seconds since 1970.
    created: u64,
    /// Closed in order.
    clean: bool,
    data_start: u64,
    data_length: u64,
    /// The members that the hierarchy goes on without, and the last generation that each was part of.
    evicted: BTreeMap<String, u64>,
    /// The hierarchy file, without the paths of the members.
    description: String,
}

/// The member that was found; `None` if there is no superblock, nor remains of one.
pub fn of(found: &Found) -> Option<Report> {
    if found.is_absent() {
        return None;
    }
    let said = |copy: &Result<lamina_metadata::superblock::Superblock, _>| match copy {
        Ok(good) => format!("is good, generation {}", good.generation),
        Err(damage) => format!("{damage}"),
    };
    let superblock = found.newest().map(|s| Superblock {
        hierarchy: s.hierarchy_name.clone(),
        hierarchy_uuid: s.hierarchy.to_string(),
        member: s.name.clone(),
        member_uuid: s.member.to_string(),
        index: s.index,
        members: s.members,
        generation: s.generation,
        created: s.created,
        clean: s.clean,
        data_start: s.layout.data.start,
        data_length: s.layout.data.end - s.layout.data.start,
        evicted: evicted_in(&s.description),
        description: s.description.clone(),
    });
    Some(Report { superblock, copies: [said(&found.copies[0]), said(&found.copies[1])] })
}

impl Report {
    /// For people. Text from a disk may be hostile: names are visible ASCII, and the description is not printed.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Some(s) = &self.superblock {
            let number = s.index + 1;
            let _ = writeln!(
                out,
                "  member {:?} ({number} of {}) of hierarchy {:?}, generation {}, {}",
                s.member,
                s.members,
                s.hierarchy,
                s.generation,
                if s.clean { "shut down cleanly" } else { "in use, or not shut down cleanly" }
            );
            let _ = writeln!(out, "    hierarchy {}, member {}", s.hierarchy_uuid, s.member_uuid);
            let (length, start) = (Bytes(s.data_length), Bytes(s.data_start));
            let _ = writeln!(out, "    data {length} at {start}");
            for (name, last) in &s.evicted {
                let _ = writeln!(out, "    without {name:?} since generation {last}");
            }
        }
        for (place, said) in Place::ALL.iter().zip(&self.copies) {
            let _ = writeln!(out, "    {place} of the superblock {said}");
        }
        out
    }
}
