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
use super::state::Snapshot;
use lamina_block::{Error, ErrorKind, Result};
use lamina_metadata::extents::{Entry, FANOUT, Root};
use serde_json::{Value, json};
use std::rc::Rc;
use std::time::Duration;

/// Pages that are read without a pause.
const AT_ONCE: u64 = 8;
/// How often it is tried while versions change.
const TRIES: u32 = 3;

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

impl Spot {
    /// Entries that are the same are one.
    fn add(&mut self, part: Part) {
        let is_same = |with: &Part| match (with.entry, part.entry) {
            (Entry::At { place, .. }, Entry::At { place: other, .. }) => {
                (place, with.below) == (other, part.below)
            }
            (with, entry) => with == entry,
        };
        match self.parts.iter_mut().find(|with| is_same(with)) {
            Some(with) => with.owner = with.owner.and(part.owner),
            None => self.parts.push(part),
        }
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
        for _ in 0..TRIES {
            // What waits in memory is in the maps then.
            self.flush().await?;
            let (sweeps, head, snapshots) = self.versions_now();
            let roots: Vec<Root> = snapshots.iter().map(|snapshot| snapshot.record.root).collect();
            let counted = self.count(head.root, &roots, head.adopted).await;
            let now = self.versions_now();
            if now.0 != sweeps || now.2 != snapshots {
                continue;
            }
            let (count, bytes) = (counted?, |extents: u64| extents * self.extent());
            let show = |(snapshot, alone): (&Snapshot, &u64)| {
                let (name, size) = (&snapshot.record.name, snapshot.record.size);
                json!({ "name": name, "size": size, "exclusive_bytes": bytes(*alone) })
            };
            let each: Vec<Value> = snapshots.iter().zip(&count.alone).map(show).collect();
            return Ok(json!({ "all_snapshots_bytes": bytes(count.all), "snapshots": each }));
        }
        Err(Error::new(ErrorKind::Busy, "snapshots come and go all the time: ask again later"))
    }

    fn versions_now(&self) -> (u64, super::format::Head, Vec<Snapshot>) {
        let state = self.state();
        (state.garbage.sweeps(), *state.versions.head(), state.versions.snapshots().to_vec())
    }

    async fn count(&self, volume: Root, snapshots: &[Root], adopted: u64) -> Result<Count> {
        let mut count = Count { alone: vec![0; snapshots.len()], all: 0 };
        let owners = (0..).map(Owner::Alone).zip(snapshots).chain([(Owner::Volume, &volume)]);
        let below = snapshots.iter().chain([&volume]).map(|root| root.levels).max().unwrap_or(0);
        let mut whole = Spot { parts: Vec::new(), below, first: 0 };
        owners.for_each(|(owner, root)| whole.add(Part { entry: root.page, below: root.levels, owner }));
        let (mut stack, mut read) = (vec![whole], 0);
        while let Some(spot) = stack.pop() {
            let span = FANOUT.saturating_pow(spot.below.into());
            let is_mapped = spot.parts.iter().any(|part| matches!(part.entry, Entry::At { .. }));
            if !is_mapped || spot.below == 0 {
                // Adopted extents without an entry are where they were when the device was adopted.
                let absent = spot.first.saturating_add(span).min(adopted).saturating_sub(spot.first);
                for part in spot.parts {
                    match part.entry {
                        Entry::At { .. } => count.add(part.owner, 1),
                        Entry::Absent => count.add(part.owner, absent),
                        Entry::Hole => {}
                    }
                }
                continue;
            }
            let mut pages = Vec::with_capacity(spot.parts.len());
            for part in &spot.parts {
                pages.push(match part.entry {
                    Entry::At { place, .. } if part.below == spot.below => Some(self.tree.page(place).await?),
                    _ => None,
                });
                read += 1;
                if read % AT_ONCE == 0 {
                    self.env.sleep(Duration::ZERO).await;
                }
            }
            stack.extend(
                below_of(&spot, &pages)
                    .filter(|spot| spot.parts.iter().any(|part| part.owner != Owner::Volume)),
            );
        }
        Ok(count)
    }
}

/// The places below one, of whose parts some are these pages.
fn below_of(spot: &Spot, pages: &[Option<Vec<Entry>>]) -> impl Iterator<Item = Spot> {
    let (below, span) = (spot.below - 1, FANOUT.saturating_pow((spot.below - 1).into()));
    (0..FANOUT).map(move |i| {
        let first = spot.first.saturating_add(span.saturating_mul(i));
        let mut of = Spot { parts: Vec::new(), below, first };
        for (part, page) in spot.parts.iter().zip(pages) {
            of.add(match (part.entry, page) {
                (_, Some(page)) => Part { entry: page[i as usize], below, owner: part.owner },
                // A smaller map has the first extents alone.
                (Entry::At { .. }, None) if i == 0 => *part,
                (Entry::Hole, None) => Part { below, ..*part },
                _ => Part { entry: Entry::Absent, below, owner: part.owner },
            });
        }
        of
    })
}
