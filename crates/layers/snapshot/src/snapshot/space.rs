//! The space of snapshots: what each of them alone has, and what comes free when all are deleted.
//!
//! The maps of all versions are walked together, from the roots down. At each place an entry that several versions
//! have is one entry; below what the volume has nothing is a snapshot's, so the walk reads no more than the parts of
//! the maps that snapshots do not share with the volume, and what the volume has there instead.
//!
//! ```text
//!   volume   │ p │ q │ r │        q was written after "tuesday": the old q' is of both snapshots,
//!   tuesday  │ p │ q'│ r │        and comes free when both are deleted;
//!   monday   │ p │ q'│ s │        s is of "monday" alone
//! ```

use super::core::Core;
use super::format::Head;
use super::state::Snapshot;
use lamina_block::{Error, ErrorKind, Result};
use lamina_metadata::extents::{Entry, FANOUT};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Entries that are looked at without a pause.
const AT_ONCE: usize = 4096;

/// The versions that have an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// One snapshot.
    Alone(usize),
    /// Several snapshots.
    Snapshots,
    /// The volume, perhaps with snapshots.
    Volume,
}

impl Owner {
    fn and(self, other: Owner) -> Owner {
        match (self, other) {
            (Owner::Volume, _) | (_, Owner::Volume) => Owner::Volume,
            (Owner::Alone(one), Owner::Alone(other)) if one == other => self,
            _ => Owner::Snapshots,
        }
    }
}

/// An entry that versions have at one place of their maps, and the levels below it.
#[derive(Clone, Copy)]
struct Part {
    entry: Entry,
    below: u8,
    owner: Owner,
}

/// One place of all maps: different entries, the levels below, and the first extent.
struct Spot {
    parts: Vec<Part>,
    below: u8,
    first: u64,
}

/// Entries at one place, those that are the same once.
#[derive(Default)]
struct Parts(BTreeMap<(Option<u64>, u8), Part>);

impl Parts {
    fn add(&mut self, part: Part) {
        let key = match part.entry {
            Entry::At { place, .. } => (Some(place), part.below),
            Entry::Absent => (None, 0),
            Entry::Hole => return,
        };
        self.0.entry(key).and_modify(|with| with.owner = with.owner.and(part.owner)).or_insert(part);
    }

    fn spot(self, below: u8, first: u64) -> Spot {
        Spot { parts: self.0.into_values().collect(), below, first }
    }
}

/// Extents that versions have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Count {
    /// By snapshot: those of it alone.
    alone: Vec<u64>,
    /// Those of snapshots that the volume does not have.
    all: u64,
}

impl Count {
    fn add(&mut self, owner: Owner, extents: u64) {
        match owner {
            Owner::Volume => return,
            Owner::Snapshots => {}
            Owner::Alone(snapshot) => self.alone[snapshot] += extents,
        }
        self.all += extents;
    }
}

impl Core {
    /// The command `space`.
    pub async fn space_of_snapshots(self: Rc<Self>) -> Result<Value> {
        if let Some(why) = &self.sealed {
            return Err(Error::new(ErrorKind::Corrupt, why));
        }
        // What waits in memory is in the maps then.
        self.flush().await?;
        let now = self.versions_now();
        let (_, _, snapshots) = &now;
        let counted = self.count(&now).await;
        self.is_still(&now)?;
        let (count, bytes) = (counted?, |extents: u64| extents * self.extent());
        let show = |(snapshot, alone): (&Snapshot, &u64)| {
            let (name, size) = (&snapshot.record.name, snapshot.record.size);
            json!({ "name": name, "size": size, "exclusive_bytes": bytes(*alone) })
        };
        let each: Vec<Value> = snapshots.iter().zip(&count.alone).map(show).collect();
        Ok(json!({ "all_snapshots_bytes": bytes(count.all), "snapshots": each }))
    }

    fn versions_now(&self) -> Now {
        let state = self.state();
        (state.garbage.sweeps(), *state.versions.head(), state.versions.snapshots().to_vec())
    }

    /// Fails if pages of maps may have been used for something else since, or if the device is closed.
    fn is_still(&self, then: &Now) -> Result<()> {
        self.offline()?;
        let state = self.state();
        if state.closed {
            return Err(Error::offline("the volume is closed"));
        }
        if state.garbage.sweeps() != then.0 {
            return Err(Error::busy("space is being reclaimed: ask again when the job `reclaim` has ended"));
        }
        match state.versions.snapshots() == then.2 {
            true => Ok(()),
            false => Err(Error::busy("a snapshot was taken or deleted meanwhile: ask again")),
        }
    }

    /// Counts the extents of the versions of a moment.
    async fn count(&self, then: &Now) -> Result<Count> {
        let (_, head, snapshots) = then;
        let mut count = Count { alone: vec![0; snapshots.len()], all: 0 };
        let roots = snapshots.iter().map(|snapshot| snapshot.record.root);
        let owners = (0..).map(Owner::Alone).zip(roots).chain([(Owner::Volume, head.root)]);
        let (mut whole, mut below) = (Parts::default(), 0);
        owners.for_each(|(owner, root)| {
            below = below.max(root.levels);
            whole.add(Part { entry: root.page, below: root.levels, owner });
        });
        let (mut stack, mut looked, mut read) = (vec![whole.spot(below, 0)], 0, 0);
        while let Some(spot) = stack.pop() {
            let is_mapped = spot.parts.iter().any(|part| matches!(part.entry, Entry::At { .. }));
            if !is_mapped || spot.below == 0 {
                count.take(&spot, head.adopted);
                continue;
            }
            let mut pages = Vec::with_capacity(spot.parts.len());
            for part in &spot.parts {
                pages.push(match part.entry {
                    Entry::At { place, .. } if part.below == spot.below => Some(self.tree.page(place).await?),
                    _ => None,
                });
                read += 1;
            }
            // Each page has one place in a version.
            if read > (snapshots.len() as u64 + 1) * (self.tree.count() + 1) {
                return Err(Error::new(ErrorKind::Corrupt, "a map of a version goes round in circles"));
            }
            for slot in 0..FANOUT {
                let below = below_of(&spot, &pages, slot);
                stack.extend(
                    Some(below).filter(|spot| spot.parts.iter().any(|part| part.owner != Owner::Volume)),
                );
                looked += spot.parts.len();
                if looked > AT_ONCE {
                    looked = 0;
                    self.env.sleep(Duration::ZERO).await;
                    self.is_still(then)?;
                }
            }
        }
        Ok(count)
    }
}

/// The versions at a moment, and how often pages were freed until then.
type Now = (u64, Head, Vec<Snapshot>);

impl Count {
    /// The extents of a place of which nothing is to be read.
    fn take(&mut self, spot: &Spot, adopted: u64) {
        // Adopted extents without an entry are where they were when the device was adopted.
        let span = FANOUT.saturating_pow(spot.below.into());
        let absent = spot.first.saturating_add(span).min(adopted).saturating_sub(spot.first);
        for part in &spot.parts {
            match part.entry {
                Entry::At { .. } => self.add(part.owner, 1),
                Entry::Absent => self.add(part.owner, absent),
                Entry::Hole => {}
            }
        }
    }
}

/// A place below another one, of whose parts some are these pages.
fn below_of(spot: &Spot, pages: &[Option<Vec<Entry>>], slot: u64) -> Spot {
    let (below, mut parts) = (spot.below - 1, Parts::default());
    let span = FANOUT.saturating_pow(below.into());
    for (part, page) in spot.parts.iter().zip(pages) {
        parts.add(match (part.entry, page) {
            (_, Some(page)) => Part { entry: page[slot as usize], below, owner: part.owner },
            // A smaller map has the first extents alone.
            (Entry::At { .. }, None) if slot == 0 => *part,
            _ => Part { entry: Entry::Absent, below, owner: part.owner },
        });
    }
    parts.spot(below, spot.first.saturating_add(span.saturating_mul(slot)))
}
