//! The table of partitions: its rules, the changes by commands, and free space. The table decides, and does
//! no I/O.
//!
//! Everything counts in units of 1 MiB. Invariant: no two segments share a unit, names are good and unlike, and a
//! partition has at least one unit.

use lamina_block::{Bytes, Error, ErrorKind, Result};
use lamina_kit::state_record;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of a unit: space is allocated in units, so that every partition begins at a multiple of any block.
pub const UNIT: u64 = 1 << 20;
/// The version of the record.
const VERSION: u64 = 1;
/// The most bytes of a name.
const NAME_MAX: usize = 64;

/// A run of units: where it begins, and how many it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Segment(pub u64, pub u64);

impl Segment {
    /// Where it ends; `None` beyond 2^64 bytes.
    fn end(self) -> Option<u64> {
        self.0.checked_add(self.1).filter(|end| *end <= u64::MAX / UNIT)
    }
}

/// A partition: its bytes are those of its segments, in order.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    pub name: String,
    pub segments: Vec<Segment>,
}

impl Entry {
    /// Its length in units.
    pub fn units(&self) -> u64 {
        self.segments.iter().map(|segment| segment.1).sum()
    }
}

/// All partitions, in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table(pub Vec<Entry>);

/// The state record of the table.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TableRecord {
    version: u64,
    partitions: Vec<Entry>,
}

/// Units that hold `bytes`.
pub fn units(bytes: Bytes) -> Result<u64> {
    match bytes.0.div_ceil(UNIT) {
        0 => Err(Error::invalid("size: a partition has at least 1MiB")),
        units => Ok(units),
    }
}

/// The rules for names: they stand in hierarchy files and commands.
fn check_name(name: &str) -> Result<()> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if !first || name.len() > NAME_MAX || !name.chars().all(good) {
        return Err(Error::invalid(format!(
            "name: {name:?} is none: it has 1 to {NAME_MAX} letters, digits, \"-\", \"_\" and \".\", and begins \
             with a letter or a digit"
        )));
    }
    Ok(())
}

impl Table {
    /// Reads the record, for a device with room for `room` units. Everything is checked: records come from
    /// disks.
    pub fn read(record: &Value, room: u64) -> Result<Table> {
        let TableRecord { partitions, .. } = state_record::read(record, VERSION, "table")?;
        let table = Table(partitions);
        table.check(room).map_err(|e| state_record::corrupt("table", e.message()))?;
        Ok(table)
    }

    /// The record to keep.
    pub fn record(&self) -> Value {
        state_record::write(&TableRecord { version: VERSION, partitions: self.0.clone() })
    }

    /// The invariant, and that all segments are within `room` units.
    fn check(&self, room: u64) -> Result<()> {
        for (i, entry) in self.0.iter().enumerate() {
            check_name(&entry.name)?;
            let name = &entry.name;
            if self.0[..i].iter().any(|other| other.name == *name) {
                return Err(Error::invalid(format!("there are two partitions {name:?}")));
            }
            if entry.segments.is_empty() || entry.segments.iter().any(|s| s.1 == 0 || s.end().is_none()) {
                return Err(Error::invalid(format!(
                    "partition {name:?} has a segment of no length, or none"
                )));
            }
            if let Some(end) = entry.segments.iter().filter_map(|s| s.end()).find(|end| *end > room) {
                let (end, room) = (Bytes(end * UNIT), Bytes(room * UNIT));
                return Err(Error::invalid(format!("partition {name:?} reaches to {end}, beyond {room}")));
            }
        }
        let used = self.used(&[]);
        match used.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            Some(pair) => {
                Err(Error::invalid(format!("{} belongs to two partitions", Bytes(pair[1].0 * UNIT))))
            }
            None => Ok(()),
        }
    }

    /// The index of `name` in the list.
    pub fn find(&self, name: &str) -> Result<usize> {
        self.0.iter().position(|entry| entry.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.0.iter().map(|entry| entry.name.as_str()).collect();
            let known = if names.is_empty() { "none".into() } else { names.join(", ") };
            Error::invalid(format!("name: there is no partition {name:?}; there is {known}"))
        })
    }

    /// Segments of all partitions and `besides`, in the order of their places.
    fn used(&self, besides: &[Segment]) -> Vec<Segment> {
        let all = self.0.iter().flat_map(|entry| &entry.segments).chain(besides);
        let mut used: Vec<Segment> = all.copied().collect();
        used.sort_unstable();
        used
    }

    /// Space that belongs to no partition and is not in `besides`, in the order of its places.
    pub fn free(&self, room: u64, besides: &[Segment]) -> Vec<Segment> {
        let (mut free, mut at) = (Vec::new(), 0);
        for Segment(start, len) in self.used(besides).into_iter().chain([Segment(room, 0)]) {
            if start > at {
                free.push(Segment(at, start.min(room).saturating_sub(at)));
            }
            at = at.max(start + len);
        }
        free.retain(|segment| segment.1 > 0);
        free
    }

    /// Takes `units` out of `free`: the smallest piece that has them all, or else the largest ones.
    fn take(mut free: Vec<Segment>, mut units: u64) -> Result<Vec<Segment>> {
        let whole: u64 = free.iter().map(|segment| segment.1).sum();
        if whole < units {
            let (free, wanted) = (Bytes(whole * UNIT), Bytes(units.saturating_mul(UNIT)));
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("size: {wanted} more, and only {free} is free"),
            ));
        }
        if let Some(fitting) = free.iter().filter(|s| s.1 >= units).min_by_key(|s| (s.1, s.0)) {
            return Ok(vec![Segment(fitting.0, units)]);
        }
        free.sort_unstable_by_key(|segment| (std::cmp::Reverse(segment.1), segment.0));
        let mut taken = Vec::new();
        for Segment(start, len) in free {
            let len = len.min(units);
            if len > 0 {
                taken.push(Segment(start, len));
            }
            units -= len;
        }
        Ok(taken)
    }

    /// Adds a partition, and returns its space: neither used nor in `besides`.
    pub fn create(&mut self, name: &str, units: u64, room: u64, besides: &[Segment]) -> Result<Vec<Segment>> {
        check_name(name)?;
        if self.0.iter().any(|entry| entry.name == name) {
            return Err(Error::invalid(format!("name: there is a partition {name:?}")));
        }
        let segments = Table::take(self.free(room, besides), units)?;
        self.0.push(Entry { name: name.into(), segments: segments.clone() });
        Ok(segments)
    }

    /// Adds a partition after the last one, for data that is there.
    pub fn append(&mut self, name: &str, units: u64, room: u64) -> Result<()> {
        let start = self.used(&[]).last().map_or(0, |last| last.0 + last.1);
        self.0.push(Entry { name: name.into(), segments: vec![Segment(start, units)] });
        self.check(room)
    }

    /// Gives a partition `units` more, after its end where that is free, and returns them.
    pub fn grow(
        &mut self,
        name: &str,
        mut units: u64,
        room: u64,
        besides: &[Segment],
    ) -> Result<Vec<Segment>> {
        let (at, mut free) = (self.find(name)?, self.free(room, besides));
        let last = self.0[at].segments[self.0[at].segments.len() - 1];
        let mut fresh = Vec::new();
        if let Some(after) = free.iter_mut().find(|segment| segment.0 == last.0 + last.1) {
            let len = after.1.min(units);
            fresh.push(Segment(after.0, len));
            *after = Segment(after.0 + len, after.1 - len);
            units -= len;
        }
        if units > 0 {
            fresh.extend(Table::take(free, units)?);
        }
        for segment in &fresh {
            push(&mut self.0[at].segments, *segment);
        }
        Ok(fresh)
    }

    /// Cuts a partition to `units`, and returns the segments that it lost.
    pub fn cut(&mut self, name: &str, units: u64) -> Result<Vec<Segment>> {
        let at = self.find(name)?;
        let (mut kept, mut lost, mut left) = (Vec::new(), Vec::new(), units);
        for Segment(start, len) in self.0[at].segments.drain(..) {
            let keep = len.min(left);
            left -= keep;
            if keep > 0 {
                kept.push(Segment(start, keep));
            }
            if keep < len {
                lost.push(Segment(start + keep, len - keep));
            }
        }
        self.0[at].segments = kept;
        Ok(lost)
    }

    /// Renames a partition.
    pub fn rename(&mut self, name: &str, to: &str) -> Result<()> {
        check_name(to)?;
        let at = self.find(name)?;
        if name != to && self.0.iter().any(|entry| entry.name == to) {
            return Err(Error::invalid(format!("to: there is a partition {to:?}")));
        }
        self.0[at].name = to.into();
        Ok(())
    }

    /// Deletes a partition.
    pub fn delete(&mut self, name: &str) -> Result<()> {
        let at = self.find(name)?;
        self.0.remove(at);
        Ok(())
    }
}

/// Adds a segment, as part of the last one if it begins where that ends.
fn push(segments: &mut Vec<Segment>, more: Segment) {
    match segments.last_mut() {
        Some(last) if last.0 + last.1 == more.0 => last.1 += more.1,
        _ => segments.push(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ROOM: u64 = 100;

    fn table(entries: &[(&str, &[(u64, u64)])]) -> Table {
        let segments = |list: &[(u64, u64)]| list.iter().map(|(start, len)| Segment(*start, *len)).collect();
        Table(entries.iter().map(|(n, s)| Entry { name: (*n).into(), segments: segments(s) }).collect())
    }

    #[test]
    fn words_are_read_as_they_were_written() {
        let one = table(&[("root", &[(0, 10240), (20480, 5120)]), ("data.2", &[(10240, 10240)])]);
        let golden = include_str!("../../tests/golden/partition-1.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        assert_eq!(one.record(), golden);
        assert_eq!(Table::read(&golden, 25600).unwrap(), one);
        assert_eq!(Table::read(&Table::default().record(), 0).unwrap(), Table::default());
    }

    #[test]
    fn damaged_words_are_refused() {
        let one = |entry: Value| json!({ "version": 1, "partitions": [entry] });
        let a = |segments: Value| one(json!({ "name": "a", "segments": segments }));
        for (record, says) in [
            (json!(null), "record of its table"),
            (json!([]), "record of its table"),
            (json!({}), "version"),
            (json!({"version": 2, "partitions": []}), "format 2"),
            (json!({"version": "1", "partitions": []}), "version"),
            (json!({"version": 1, "partitions": [], "more": 1}), "more"),
            (json!({"version": 1}), "partitions"),
            (one(json!({"name": "a"})), "segments"),
            (one(json!({"name": "", "segments": [[0, 1]]})), "name"),
            (one(json!({"name": "-a", "segments": [[0, 1]]})), "name"),
            (one(json!({"name": "a b", "segments": [[0, 1]]})), "name"),
            (one(json!({"name": "a".repeat(65), "segments": [[0, 1]]})), "name"),
            (a(json!([])), "no length"),
            (a(json!([[0, 0]])), "no length"),
            (a(json!([[0]])), "record of its table"),
            (a(json!([[0, 1, 2]])), "record of its table"),
            (a(json!([[-1, 1]])), "record of its table"),
            (a(json!([[0, 101]])), "beyond 100MiB"),
            (a(json!([[u64::MAX, 2]])), "no length"),
            (a(json!([[1, u64::MAX >> 20]])), "no length"),
            (a(json!([[0, 2], [1, 1]])), "two partitions"),
            (
                json!({"version": 1, "partitions": [
                    {"name": "a", "segments": [[0, 2]]}, {"name": "a", "segments": [[2, 2]]},
                ]}),
                "two partitions \"a\"",
            ),
            (
                json!({"version": 1, "partitions": [
                    {"name": "a", "segments": [[3, 2]]}, {"name": "b", "segments": [[0, 4]]},
                ]}),
                "3MiB belongs to two",
            ),
        ] {
            let e = Table::read(&record, ROOM).unwrap_err();
            assert!(e.message().contains(says), "{record}: {e}");
        }
    }

    #[test]
    fn space_is_found_where_it_fits_best() {
        let mut one = table(&[("a", &[(0, 10)]), ("b", &[(20, 10)]), ("c", &[(35, 5)])]);
        assert_eq!(one.free(ROOM, &[]), [Segment(10, 10), Segment(30, 5), Segment(40, 60)]);
        assert_eq!(one.free(ROOM, &[Segment(40, 55)]), [Segment(10, 10), Segment(30, 5), Segment(95, 5)]);
        assert_eq!(one.free(32, &[]), [Segment(10, 10), Segment(30, 2)]);
        assert_eq!(one.create("d", 5, ROOM, &[]).unwrap(), [Segment(30, 5)]);
        assert_eq!(one.create("e", 11, ROOM, &[]).unwrap(), [Segment(40, 11)]);
        assert_eq!(one.create("f", 55, ROOM, &[]).unwrap(), [Segment(51, 49), Segment(10, 6)]);
        let e = one.create("g", 5, ROOM, &[]).unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::NoSpace, "size: 5MiB more, and only 4MiB is free"));
        assert!(one.create("a", 1, ROOM, &[]).is_err());
        assert!(one.create("h", 1, ROOM, &[Segment(16, 4)]).is_err(), "the rest is kept from it");
        assert!(one.create("h", u64::MAX, ROOM, &[]).is_err());
        one.check(ROOM).unwrap();
    }

    #[test]
    fn a_partition_grows_after_its_end_first_and_shrinks_from_there() {
        let mut one = table(&[("a", &[(0, 10)]), ("b", &[(12, 10)])]);
        assert_eq!(one.grow("a", 1, ROOM, &[]).unwrap(), [Segment(10, 1)]);
        assert_eq!(one.0[0].segments, [Segment(0, 11)]);
        assert_eq!(one.grow("a", 5, ROOM, &[]).unwrap(), [Segment(11, 1), Segment(22, 4)]);
        assert_eq!(one.0[0].segments, [Segment(0, 12), Segment(22, 4)]);
        assert!(one.clone().grow("b", 75, ROOM, &[]).is_err());
        assert_eq!(one.cut("a", 3).unwrap(), [Segment(3, 9), Segment(22, 4)]);
        assert_eq!(one.0[0].segments, [Segment(0, 3)]);
        assert_eq!(one.cut("b", 10).unwrap(), []);
        one.rename("a", "c").unwrap();
        assert!(
            one.rename("a", "d").is_err() && one.rename("c", "b").is_err() && one.rename("c", "?").is_err()
        );
        one.delete("c").unwrap();
        assert_eq!(one, table(&[("b", &[(12, 10)])]));
        assert!(one.delete("c").unwrap_err().message().contains("there is b"));
        one.check(ROOM).unwrap();
    }
}
