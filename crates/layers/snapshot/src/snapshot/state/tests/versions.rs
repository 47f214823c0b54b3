//! The changes of a name, row by row; and which epochs count as shared.

use super::*;
use lamina_metadata::extents::Root;

impl Versions {
    /// For a canary: snapshots seem to be so old that nothing of the volume's is theirs.
    pub fn pretend_to_be_old(&mut self) {
        self.snapshots.iter_mut().for_each(|snapshot| snapshot.record.epoch = 0);
        self.shared = self.end_of_snapshots();
    }
}

fn head(epoch: u32) -> Head {
    Head { shift: 12, size: 1 << 20, physical: 256, epoch, ..Head::default() }
}

fn kept(name: &str, epoch: u32) -> SnapshotRecord {
    SnapshotRecord { name: name.into(), epoch, size: 1 << 20, root: Root::default(), taken: 0 }
}

/// Snapshots "a" and "b", and the volume in epoch 9.
fn two() -> Versions {
    Versions::new(head(9), vec![Snapshot::new(kept("b", 5), 0), Snapshot::new(kept("a", 2), 1)])
}

/// The states of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Unknown,
    Kept,
    Viewed(u32),
    Leaving,
}

use Name::{Leaving, Unknown, Viewed};

const NAMES: [Name; 5] = [Unknown, Name::Kept, Viewed(1), Viewed(2), Leaving];

/// Versions in which the name "x" is that, beside "a" and "b".
fn with(name: Name) -> Versions {
    let mut versions = two();
    if name == Unknown {
        return versions;
    }
    let (x, after) = versions.plan_snapshot("x".into(), 0, 3).expect("there is room");
    let index = x.index;
    versions.recorded(x, after);
    match name {
        Unknown | Name::Kept => {}
        Viewed(n) => (0..n).for_each(|_| versions.begin_view(index)),
        Leaving => assert!(versions.begin_delete("x").is_ok()),
    }
    versions
}

/// The state of the name "x".
fn state(versions: &Versions) -> Name {
    match versions.find("x") {
        Err(_) => Unknown,
        Ok(Snapshot { deleting: true, .. }) => Leaving,
        Ok(Snapshot { viewers: 0, .. }) => Name::Kept,
        Ok(Snapshot { viewers, .. }) => Viewed(*viewers),
    }
}

/// Does something to "x" in each state; what it is then, or `None` if that was refused.
fn row(what: &str, expected: [Option<Name>; 5], operation: impl Fn(&mut Versions) -> Result<()>) {
    for (before, expected) in NAMES.into_iter().zip(expected) {
        let mut versions = with(before);
        versions.check().expect("a state that can be reached");
        let after = operation(&mut versions).ok().map(|()| state(&versions));
        assert_eq!(after, expected, "{what}: {before:?}");
        versions.check().unwrap_or_else(|e| panic!("{what}: {before:?}: {e}"));
        if after.is_none() {
            assert_eq!(state(&versions), before, "{what}, refused: {before:?}");
        }
    }
}

#[test]
fn names() {
    let same = [None, Some(Name::Kept), Some(Viewed(1)), Some(Viewed(2)), Some(Leaving)];
    row("snapshot", [Some(Name::Kept), None, None, None, None], |v| {
        v.plan_snapshot("x".into(), 0, 3).map(|(x, after)| v.recorded(x, after))
    });
    row("view", [None, Some(Viewed(1)), Some(Viewed(2)), Some(Viewed(3)), None], |v| {
        let index = v.known("x")?.index;
        v.begin_view(index);
        Ok(())
    });
    row("delete", [None, Some(Unknown), None, None, Some(Unknown)], |v| {
        v.begin_delete("x").map(|(index, after)| v.deleted(index, after))
    });
    row("begin of a delete", [None, Some(Leaving), None, None, Some(Leaving)], |v| {
        v.begin_delete("x").map(drop)
    });
    row("cancelled delete", [None, Some(Name::Kept), None, None, Some(Name::Kept)], |v| {
        v.begin_delete("x").map(|(index, _)| v.cancel_delete(index))
    });
    row("rollback", same, |v| v.plan_rollback("x").map(|after| v.set_head(after)));
    row("commit", [Some(Unknown), same[1], same[2], same[3], same[4]], |v| {
        v.committed();
        Ok(())
    });
}

#[test]
fn a_view_ends() {
    for (before, after) in [(Viewed(2), Viewed(1)), (Viewed(1), Name::Kept)] {
        let mut versions = with(before);
        let index = versions.find("x").expect("there").index;
        versions.end_view(index);
        assert_eq!(state(&versions), after);
    }
}

#[test]
fn what_a_snapshot_is_given() {
    let versions = with(Name::Kept);
    let x = versions.find("x").expect("there");
    // The lowest free entry of the table, and the epoch that it ends.
    assert_eq!((x.index, x.record.epoch, versions.head().epoch), (2, 9, 10));
    let names: Vec<&str> = versions.snapshots().iter().map(|s| s.record.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "x"], "oldest first");
    let full = versions.plan_snapshot("y".into(), 0, 3).expect_err("the table is full");
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    let late = Versions::new(head(EPOCH_MAX - 1), Vec::new());
    assert!(late.plan_snapshot("y".into(), 0, 3).is_err(), "there is no epoch after it");
}

#[test]
fn a_rollback_brings_back_size_and_root() {
    let mut versions = two();
    let root = Root { levels: 1, page: Entry::At { place: 7, born: 2 } };
    versions.snapshots[0].record = SnapshotRecord { size: 4096, root, ..kept("a", 2) };
    let after = versions.plan_rollback("a").expect("there");
    assert_eq!((after.size, after.root, after.epoch, after.garbage), (4096, root, 9, true));
}

/// The bound of what is shared, after each step.
#[test]
fn what_is_shared() {
    let mut versions = two();
    let mut bound = |expected: u32, step: &dyn Fn(&mut Versions)| {
        step(&mut versions);
        assert_eq!(versions.shared(), expected);
        assert!(!versions.is_own(expected.wrapping_sub(1)) || expected == 0);
        assert!(versions.is_own(expected));
        versions.check().expect("whole");
    };
    let delete = |name: &'static str| {
        move |v: &mut Versions| {
            let (index, after) = v.begin_delete(name).expect("there");
            v.deleted(index, after);
        }
    };
    bound(6, &|_| ());
    // A deletion that is not durable may be undone by a crash.
    bound(6, &delete("b"));
    bound(3, &Versions::committed);
    bound(10, &|v| {
        let (x, after) = v.plan_snapshot("x".into(), 0, 3).expect("there is room");
        v.recorded(x, after);
    });
    bound(10, &delete("x"));
    bound(10, &delete("a"));
    bound(0, &Versions::committed);
}

#[test]
fn what_an_entry_means() {
    let versions = Versions::new(Head { adopted: 4, ..head(1) }, Vec::new());
    let at = |extent, born| Some(PhysicalExtent { number: extent, born });
    let rows = [
        (3, Entry::Absent, at(3, 0)),
        (4, Entry::Absent, None),
        (3, Entry::Hole, None),
        (4, Entry::Hole, None),
        (3, Entry::At { place: 9, born: 1 }, at(9, 1)),
        (4, Entry::At { place: 9, born: 1 }, at(9, 1)),
    ];
    for (extent, entry, expected) in rows {
        assert_eq!(versions.resolve(extent, entry), expected, "{extent} {entry:?}");
    }
    for extent in [3, 4] {
        assert_eq!(versions.resolve(extent, versions.nothing(extent)), None);
    }
}

#[test]
fn extents_kept_for_overwrites() {
    for (physical, expected) in [(0, 0), (4, 1), (31, 7), (32, 8), (512, 8), (6400, 100)] {
        let versions = Versions::new(Head { physical, ..head(1) }, Vec::new());
        assert_eq!(versions.spare(true), expected, "{physical}");
        assert_eq!(versions.spare(false), 0);
    }
}

#[test]
fn a_table_newer_than_the_head() {
    let versions = Versions::new(head(2), vec![Snapshot::new(kept("a", 5), 0)]);
    assert_eq!((versions.head().epoch, versions.shared()), (6, 6));
    versions.check().expect("whole");
}

#[test]
fn what_is_broken_is_noticed() {
    type Break = fn(&mut Versions);
    let breaks: [(&str, Break); 7] = [
        ("shared", |v| v.shared = 5),
        ("shared", |v| v.shared = 10),
        ("epoch", |v| v.head.epoch = 5),
        ("two snapshots", |v| v.snapshots[1].index = 1),
        ("being deleted", |v| (v.snapshots[0].viewers, v.snapshots[0].deleting) = (1, true)),
        ("out of order", |v| v.snapshots.swap(0, 1)),
        ("read again", |v| v.head.physical = u64::MAX),
    ];
    for (words, break_it) in breaks {
        let mut versions = two();
        versions.check().expect("whole");
        break_it(&mut versions);
        let noticed = versions.check().expect_err(words);
        assert!(noticed.contains(words), "{noticed}: {words}");
    }
}
