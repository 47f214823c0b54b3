//! The versions: the volume as it is, and its snapshots; and the meaning of entries of their maps.
//!
//! A snapshot begins and ends with a change of the table on disk. Each change is planned here (`plan_…`:
//! nothing changes, the answer is what goes to disk) and comes into force here when the store has taken it.
//!
//! | a name is … | `plan_snapshot` | `begin_view` | `end_view` | `begin_delete` | `cancel_delete` | `deleted` |
//! |---|---|---|---|---|---|---|
//! | unknown | planned, then kept | refused | – | refused | – | – |
//! | kept | refused | viewed | – | deleting | kept | – |
//! | viewed | refused | viewed | viewed or kept | refused | viewed | – |
//! | deleting | refused | refused (`known`) | – | deleting | kept | unknown |
//!
//! `plan_rollback` is refused if the name is unknown, and changes none of this.
//!
//! "–" is an assertion: the caller has begun what it ends.
//!
//! An extent, or a page of a map, that was born before [`Versions::shared`] may belong to a snapshot, and is
//! not overwritten in place. The bound rises when a snapshot is kept, and falls only at a commit: until a
//! deletion is durable, the snapshot may come back.
//!
//! Invariants:
//! * A snapshot's epoch is earlier than the volume's, and its end is not after the bound of shared extents.
//! * No two snapshots have one entry of the table.
//! * A snapshot that is being deleted is not viewed.
//! * The head could be written and read again: its numbers have room.

use super::super::format::{Head, SnapshotRecord};
use lamina_block::{Error, ErrorKind, Result};
use lamina_metadata::extents::{EPOCH_MAX, Entry, Root};
use std::collections::BTreeSet;

/// The number of a physical extent, and the epoch in which it was first written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct PhysicalExtent {
    pub number: u64,
    pub born: u32,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Snapshot {
    pub record: SnapshotRecord,
    /// The index of its record in the table.
    pub index: usize,
    /// The number of devices that show it.
    viewers: u32,
    /// The snapshot is being deleted: no view of it begins.
    deleting: bool,
}

impl Snapshot {
    pub fn new(record: SnapshotRecord, index: usize) -> Snapshot {
        Snapshot { record, index, viewers: 0, deleting: false }
    }

    pub fn is_viewed(&self) -> bool {
        self.viewers > 0
    }
}

/// See the module.
pub(in super::super) struct Versions {
    head: Head,
    /// Oldest first.
    snapshots: Vec<Snapshot>,
    shared: u32,
}

impl Versions {
    /// The versions found on disk.
    pub fn new(head: Head, mut snapshots: Vec<Snapshot>) -> Versions {
        snapshots.sort_by_key(|snapshot| snapshot.record.epoch);
        let mut versions = Versions { head, snapshots, shared: 0 };
        versions.shared = versions.end_of_snapshots();
        // At `lazy` the table may be newer than the head.
        versions.head.epoch = head.epoch.max(versions.shared);
        versions
    }

    #[inline]
    pub fn head(&self) -> &Head {
        &self.head
    }

    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Extents born before this epoch may belong to a snapshot.
    #[inline]
    pub fn shared(&self) -> u32 {
        self.shared
    }

    /// True if no snapshot has the extents born in an epoch.
    #[inline]
    pub fn is_own(&self, born: u32) -> bool {
        born >= self.shared
    }

    /// Where on the child a physical extent begins.
    #[inline]
    pub fn address(&self, extent: u64) -> u64 {
        self.head.data + (extent << self.head.shift)
    }

    /// The physical extent of an extent with this entry.
    #[inline]
    pub fn resolve(&self, extent: u64, entry: Entry) -> Option<PhysicalExtent> {
        match entry {
            Entry::At { place, born } => Some(PhysicalExtent { number: place, born }),
            Entry::Hole => None,
            Entry::Absent => {
                (extent < self.head.adopted).then_some(PhysicalExtent { number: extent, born: 0 })
            }
        }
    }

    /// The entry for an extent without a physical extent.
    pub fn nothing(&self, extent: u64) -> Entry {
        if extent < self.head.adopted { Entry::Hole } else { Entry::Absent }
    }

    /// Extents that only replace others: at `atomic` an overwrite takes a new extent, so that a full device
    /// could not be overwritten without them.
    pub fn spare(&self, atomic: bool) -> u64 {
        let physical = self.head.physical;
        if atomic { (physical / 64).max(8).min(physical / 4) } else { 0 }
    }

    /// The epoch before which extents may belong to a snapshot that there is now.
    fn end_of_snapshots(&self) -> u32 {
        self.snapshots.last().map_or(0, |newest| newest.record.epoch + 1)
    }

    /// A head comes into force that the store has.
    pub fn set_head(&mut self, head: Head) {
        assert!(head.epoch >= self.head.epoch, "epochs do not go back: what is shared depends on them");
        assert!(
            (head.shift, head.data, head.adopted) == (self.head.shift, self.head.data, self.head.adopted),
            "where the extents lie does not change"
        );
        self.head = head;
    }

    /// The volume's map has another root.
    pub fn set_root(&mut self, root: Root) {
        self.head.root = root;
    }

    /// There may be garbage from now on; the next head that is written says so.
    pub fn note_garbage(&mut self) {
        self.head.garbage = true;
    }

    /// The staged changes are durable: a deleted snapshot does not come back.
    pub fn committed(&mut self) {
        self.shared = self.end_of_snapshots();
    }

    fn find(&self, name: &str) -> Result<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.record.name == name).ok_or_else(|| self.no_such(name))
    }

    fn at(&mut self, index: usize) -> &mut Snapshot {
        let found = self.snapshots.iter_mut().find(|snapshot| snapshot.index == index);
        found.expect("a snapshot stays while it is viewed, or being deleted")
    }

    fn no_such(&self, name: &str) -> Error {
        let names: Vec<&str> = self.snapshots.iter().map(|snapshot| snapshot.record.name.as_str()).collect();
        let there = if names.is_empty() {
            "there are none".into()
        } else {
            format!("there are {}", names.join(", "))
        };
        Error::invalid(format!("there is no snapshot {name:?}; {there}"))
    }

    /// A snapshot of the volume as the map has it, in a table of so many entries; and the head after it.
    pub fn plan_snapshot(&self, name: String, taken: u64, entries: usize) -> Result<(Snapshot, Head)> {
        if self.find(&name).is_ok() {
            return Err(Error::invalid(format!("there is a snapshot {name:?} already")));
        }
        let is_used = |index: usize| self.snapshots.iter().any(|snapshot| snapshot.index == index);
        let index = (0..entries).find(|index| !is_used(*index)).ok_or_else(|| {
            let message = format!("{entries} snapshots are the most that fit: delete some");
            Error::new(ErrorKind::NoSpace, message)
        })?;
        let head = self.head;
        if head.epoch >= EPOCH_MAX - 1 {
            let message = "the volume has had as many snapshots as it can have";
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        let record = SnapshotRecord { name, epoch: head.epoch, size: head.size, root: head.root, taken };
        Ok((Snapshot::new(record, index), Head { epoch: head.epoch + 1, ..head }))
    }

    /// The planned snapshot is in the store.
    pub fn recorded(&mut self, snapshot: Snapshot, head: Head) {
        self.snapshots.push(snapshot);
        self.set_head(head);
        self.shared = self.end_of_snapshots();
    }

    /// The head that makes the volume as it was in a snapshot.
    pub fn plan_rollback(&self, name: &str) -> Result<Head> {
        let SnapshotRecord { root, size, .. } = self.find(name)?.record;
        Ok(Head { root, size, garbage: true, ..self.head })
    }

    /// No view of a snapshot begins from now on, and there is none. Returns its index in the table, and the
    /// head after the deletion.
    pub fn begin_delete(&mut self, name: &str) -> Result<(usize, Head)> {
        let snapshot = self.find(name)?;
        if snapshot.is_viewed() {
            let message = format!("a device shows the snapshot {name:?}: take the view away first");
            return Err(Error::invalid(message));
        }
        let index = snapshot.index;
        self.at(index).deleting = true;
        Ok((index, Head { garbage: true, ..self.head }))
    }

    /// The store did not take the deletion: the snapshot stays.
    pub fn cancel_delete(&mut self, index: usize) {
        self.at(index).deleting = false;
    }

    /// A snapshot is gone from the table.
    pub fn deleted(&mut self, index: usize, head: Head) {
        assert!(self.at(index).deleting, "a view could have begun while the snapshot was deleted");
        self.snapshots.retain(|snapshot| snapshot.index != index);
        self.set_head(head);
    }

    /// The snapshot for a view of it.
    pub fn known(&self, name: &str) -> Result<&Snapshot> {
        self.find(name).and_then(|snapshot| match snapshot.deleting {
            true => Err(self.no_such(name)),
            false => Ok(snapshot),
        })
    }

    /// A view of a snapshot begins, which is not deleted before [`Versions::end_view`].
    pub fn begin_view(&mut self, index: usize) {
        let snapshot = self.at(index);
        assert!(!snapshot.deleting, "a snapshot that is being deleted is not viewed");
        snapshot.viewers += 1;
    }

    pub fn end_view(&mut self, index: usize) {
        let snapshot = self.at(index);
        assert!(snapshot.viewers > 0, "a view that ends has begun");
        snapshot.viewers -= 1;
    }

    /// The root of a version has another entry (a repair); none: the volume's.
    pub fn correct_root(&mut self, snapshot: Option<usize>, page: Entry) {
        match snapshot {
            Some(at) => self.snapshots[at].record.root.page = page,
            None => self.head.root.page = page,
        }
    }

    /// The invariants; see the module.
    pub fn check(&self) -> std::result::Result<(), String> {
        if !self.head.has_room() {
            return Err(format!("the head could not be read again: {:?}", self.head));
        }
        let mut indexes = BTreeSet::new();
        for snapshot in &self.snapshots {
            let SnapshotRecord { name, epoch, .. } = &snapshot.record;
            if *epoch >= self.head.epoch || *epoch >= self.shared {
                let (now, shared) = (self.head.epoch, self.shared);
                return Err(format!("snapshot {name:?} is of epoch {epoch}, now is {now}, shared {shared}"));
            }
            if !indexes.insert(snapshot.index) {
                return Err(format!("entry {} of the table is that of two snapshots", snapshot.index));
            }
            if snapshot.deleting && snapshot.is_viewed() {
                return Err(format!("snapshot {name:?} is viewed, and being deleted"));
            }
        }
        match self.snapshots.is_sorted_by_key(|snapshot| snapshot.record.epoch)
            && self.shared <= self.head.epoch
        {
            true => Ok(()),
            false => Err(format!("epochs are out of order: shared {}, now {}", self.shared, self.head.epoch)),
        }
    }
}

#[cfg(test)]
#[path = "tests/versions.rs"]
pub(in super::super) mod tests;
