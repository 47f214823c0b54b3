//! Dirty bitmaps: contexts of block status with the changes since a snapshot, for incremental backups.
//!
//! ```text
//! client  LIST_META_CONTEXT "vm1"  qemu:
//! server  META_CONTEXT 0 qemu:dirty-bitmap:monday, META_CONTEXT 0 qemu:dirty-bitmap:tuesday, ACK
//! client  SET_META_CONTEXT "vm1"   qemu:dirty-bitmap:monday
//! server  META_CONTEXT 4 qemu:dirty-bitmap:monday, ACK
//! ```
//!
//! Source of the names and the states: `docs/interop/nbd.txt` of QEMU. A connection has one such context.

/// How the names of these contexts begin; the name of the snapshot follows.
pub const PREFIX: &str = "qemu:dirty-bitmap:";
/// The state of a run that has changed; that of another one is 0.
pub const DIRTY: u32 = 1;

/// The name of the context of a snapshot.
pub fn name(snapshot: &str) -> String {
    format!("{PREFIX}{snapshot}")
}

/// The first of a client's names that is that of one of `snapshots`; the others are not agreed on.
pub fn chosen<'a>(queries: &[&[u8]], snapshots: &'a [String]) -> Option<&'a String> {
    let asked = queries.iter().filter_map(|query| query.strip_prefix(PREFIX.as_bytes()));
    asked.flat_map(|name| snapshots.iter().find(|known| known.as_bytes() == name)).next()
}

/// Those of `snapshots` that a list names: all, if it has no queries or how such a name begins.
pub fn listed<'a>(queries: &[&[u8]], snapshots: &'a [String]) -> Vec<&'a String> {
    let all = queries.is_empty() || queries.iter().any(|q| *q == b"qemu:" || *q == PREFIX.as_bytes());
    snapshots.iter().filter(|snapshot| all || queries.contains(&name(snapshot).as_bytes())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_snapshots() {
        let snapshots = ["monday".to_owned(), "d\u{e9}j\u{e0} vu".into(), "a:b".into()];
        for (query, known) in [
            ("qemu:dirty-bitmap:monday", Some(0)),
            ("qemu:dirty-bitmap:d\u{e9}j\u{e0} vu", Some(1)),
            ("qemu:dirty-bitmap:a:b", Some(2)),
            ("qemu:dirty-bitmap:a", None),
            ("qemu:dirty-bitmap:", None),
            ("qemu:dirty-bitmap:monday\0", None),
            ("qemu:dirty-bitmap:Monday", None),
            ("qemu:", None),
            ("monday", None),
            ("", None),
        ] {
            let found = chosen(&[&b"x:y"[..], query.as_bytes()], &snapshots);
            assert_eq!(found, known.map(|at: usize| &snapshots[at]), "{query}");
            let all = matches!(query, "qemu:" | "qemu:dirty-bitmap:");
            let len = if all { 3 } else { usize::from(known.is_some()) };
            assert_eq!(listed(&[query.as_bytes()], &snapshots).len(), len, "{query}");
        }
        assert_eq!(chosen(&[b"qemu:dirty-bitmap:\xff\xfe"], &snapshots), None);
        assert_eq!(listed(&[], &snapshots).len(), 3);
        let two = [&b"qemu:dirty-bitmap:a:b"[..], b"qemu:dirty-bitmap:monday"];
        assert_eq!(chosen(&two, &snapshots), Some(&snapshots[2]));
    }
}
