//! `lamina check --metadata` and `lamina repair`: damage is found, a damaged copy is repaired from the other one,
//! nothing else changes.

use crate::rig::{Place, client, flush, pattern, read, text, write};
use std::os::unix::fs::FileExt;

const VOLUME: &str = r#"
[hierarchy]
name = "vol"

[device.a]
type = "file"
path = "a.img"
size = "16MiB"

[device.b]
type = "file"
path = "b.img"
size = "16MiB"

[device.map]
type = "file"
path = "map.img"
size = "8MiB"

[device.both]
type = "stripe"
over = ["a", "b"]

[device.volume]
type = "snapshot"
over = "both"
metadata = "map"
size = "16MiB"

[export.volume]
device = "volume"
nbd = "unix:volume.nbd"
"#;

/// The hierarchy, written to and closed.
fn used() -> Place {
    let place = Place::with(VOLUME);
    let made = place.lamina(&["create", "disk.toml"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let daemon = place.serve();
    client(&daemon.uri("volume"), async |node| {
        for at in 0..32 {
            write(&node, at << 18, pattern(4096, at as u8)).await.expect("a write");
        }
        flush(&node).await.expect("a flush");
    });
    let busy = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(busy.status.code(), Some(2), "as `serve`: {}", text(&busy.stdout));
    let served = place.lamina(&["check", "--metadata", "disk.toml"]);
    let said = text(&served.stderr);
    assert_eq!(served.status.code(), Some(2), "{said}");
    assert!(
        said.contains("is in use: locked (exclusive, flock) by process ") && !said.contains("repair"),
        "{said}"
    );
    assert!(!text(&served.stdout).contains("DAMAGED"), "{}", text(&served.stdout));
    daemon.terminate();
    place
}

fn images(place: &Place) -> Vec<Vec<u8>> {
    ["a.img", "b.img", "map.img"].map(|name| std::fs::read(place.path(name)).expect("an image")).into()
}

fn spoil(place: &Place, image: &str, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(place.path(image)).expect("an image");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], at).expect("a byte");
}

#[test]
fn a_whole_hierarchy_is_good_and_stays_as_it_is() {
    let place = used();
    let before = images(&place);
    let good = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(good.status.code(), Some(0), "{}{}", text(&good.stdout), text(&good.stderr));
    let said = text(&good.stdout);
    assert!(said.contains("member \"a\" (") && said.contains("superblocks good"), "{said}");
    assert!(said.contains("metadata of \"volume\" on \"map\": good, "), "{said}");
    assert_eq!(images(&place), before, "a check has written");
    let nothing = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(nothing.status.code(), Some(0), "{}", text(&nothing.stderr));
    assert_eq!(images(&place), before, "a repair has written, and nothing was damaged");
}

#[test]
fn a_superblock_is_mended_from_the_other_one() {
    let place = used();
    let before = images(&place);
    spoil(&place, "a.img", 40);
    spoil(&place, "b.img", (16 << 20) - (64 << 10) + 40);
    let bad = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(bad.status.code(), Some(1));
    let said = text(&bad.stdout);
    assert!(
        said.contains("DAMAGED  member \"a\" (") && said.contains("the first copy of its superblock"),
        "{said}"
    );
    assert!(said.contains("the second copy of its superblock is damaged"), "{said}");
    assert!(text(&bad.stderr).contains("2 damages"), "{}", text(&bad.stderr));
    let repaired = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(repaired.status.code(), Some(0), "{}{}", text(&repaired.stdout), text(&repaired.stderr));
    assert!(
        text(&repaired.stdout).contains("REPAIRED member \"a\": the first copy"),
        "{}",
        text(&repaired.stdout)
    );
    assert_eq!(images(&place), before);
}

#[test]
fn damaged_metadata_is_told_with_its_place() {
    let place = used();
    // Pages are used from the front: spoil the first copies of some, wherever they are written.
    let map = std::fs::read(place.path("map.img")).expect("an image");
    let written = |at: usize| map[at..at + 4096].iter().any(|byte| *byte != 0);
    // The root says how long the log is: the pages begin behind it.
    let log = u32::from_le_bytes(map[(1 << 20) + 56..][..4].try_into().expect("four bytes"));
    let pages = (1 << 20) + (2 + log as usize) * 4096;
    let spoilt: Vec<usize> = (0..16).map(|i| pages + i * 4096).filter(|at| written(*at)).take(3).collect();
    assert!(!spoilt.is_empty());
    for at in &spoilt {
        spoil(&place, "map.img", *at as u64 + 100);
    }
    let before = images(&place);
    let bad = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(bad.status.code(), Some(1), "{}", text(&bad.stdout));
    let said = text(&bad.stdout);
    assert!(said.contains("page ") && said.contains("DAMAGED"), "{said}");
    let tried = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(tried.status.code(), Some(1), "{}", text(&tried.stdout));
    assert!(text(&tried.stderr).contains("backup"), "{}", text(&tried.stderr));
    assert_eq!(images(&place), before, "nothing was guessed");
}

/// Spoils every copy of the pages of an object of the metadata on "map", as far as they were written.
fn spoil_object(place: &Place, object: u64) {
    let map = std::fs::read(place.path("map.img")).expect("an image");
    // The member's data begin behind its superblock, and a page ends with its owner, a number, a version, its place.
    let owner = |block: &[u8]| u64::from_le_bytes(block[4064..4072].try_into().expect("eight bytes"));
    let page = |block: &[u8]| u32::from_le_bytes(block[4088..4092].try_into().expect("four bytes"));
    let blocks = map.chunks_exact(4096).enumerate().skip(1 << 8);
    let found: Vec<usize> = blocks
        .filter(|(_, block)| owner(block) == object && (1..4096).contains(&page(block)))
        .map(|(i, _)| i)
        .collect();
    assert!(!found.is_empty(), "object {object} was never written");
    for block in found {
        spoil(place, "map.img", block as u64 * 4096 + 100);
    }
}

/// The data of the volume.
fn holds(place: &Place) {
    let daemon = place.serve();
    client(&daemon.uri("volume"), async |node| {
        for at in 0..32 {
            let bytes = read(&node, at << 18, 4096).await.expect("a read");
            assert_eq!(bytes, pattern(4096, at as u8), "what was written at {at}");
        }
        write(&node, 15 << 20, pattern(4096, 99)).await.expect("there is room");
        flush(&node).await.expect("a flush");
    });
    daemon.terminate();
}

#[test]
fn what_follows_from_the_versions_is_made_again() {
    let place = used();
    // The bitmap of the extents in use, and its counts.
    spoil_object(&place, 3);
    spoil_object(&place, 4);
    let before = images(&place);
    let bad = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(bad.status.code(), Some(1), "{}", text(&bad.stdout));
    let said = text(&bad.stdout);
    assert!(said.contains("DAMAGED  device \"volume\": the bits of extents 0 to"), "{said}");
    assert!(said.contains("DAMAGED  device \"volume\": counts of extents in use are damaged"), "{said}");
    assert_eq!(images(&place), before, "a check has written");
    holds_to_read(&place);
    let repaired = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(repaired.status.code(), Some(0), "{}{}", text(&repaired.stdout), text(&repaired.stderr));
    let said = text(&repaired.stdout);
    assert!(said.contains("REPAIRED device \"volume\": the bits of extents 0 to"), "{said}");
    assert!(said.contains("device \"volume\": the map is good: 0 snapshots"), "{said}");
    let good = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stdout));
    holds(&place);
}

/// A volume whose bitmap is damaged can be read.
fn holds_to_read(place: &Place) {
    let daemon = place.serve();
    client(&daemon.uri("volume"), async |node| {
        assert_eq!(read(&node, 3 << 18, 4096).await.expect("a read"), pattern(4096, 3));
        write(&node, 15 << 20, pattern(4096, 99)).await.expect_err("nothing says which extent is free");
    });
    daemon.terminate();
}

#[test]
fn below_what_cannot_be_opened_is_looked_at() {
    let place = used();
    // The head.
    spoil_object(&place, 1);
    let before = images(&place);
    let bad = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(bad.status.code(), Some(1), "{}", text(&bad.stdout));
    let said = text(&bad.stdout);
    assert!(said.contains("only the devices below are checked: \"volume\""), "{said}");
    assert!(
        said.contains("metadata of \"volume\" on \"map\": page ") && said.contains("of object 1"),
        "{said}"
    );
    let tried = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(tried.status.code(), Some(1), "{}", text(&tried.stdout));
    assert_eq!(images(&place), before, "there was nothing to repair");
}

const SERVED: &str = r#"
[device.store]
type = "file"
path = "store.img"
size = "16MiB"

[export.store]
device = "store"
nbd = "unix:store.nbd"
"#;

/// A volume whose data lie on a remote server, and its map on a member.
const FAR: &str = r#"
[hierarchy]
name = "far"

[device.far]
type = "nbd"
address = "unix:store.nbd"
export = "store"

[device.map]
type = "file"
path = "map.img"
size = "8MiB"

[device.volume]
type = "snapshot"
over = "far"
metadata = "map"
size = "16MiB"

[export.volume]
device = "volume"
nbd = "unix:volume.nbd"
"#;

#[test]
fn what_lies_on_a_server_is_checked_and_nothing_is_sent_there() {
    let place = Place::with(FAR);
    place.write("store.toml", SERVED);
    let server = place.serve_with(&["store.toml"], |_| {});
    let made = place.lamina(&["create", "disk.toml"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let daemon = place.serve();
    client(&daemon.uri("volume"), async |node| {
        for at in 0..32 {
            write(&node, at << 18, pattern(4096, at as u8)).await.expect("a write");
        }
        flush(&node).await.expect("a flush");
    });
    daemon.terminate();
    let images = || ["store.img", "map.img"].map(|name| std::fs::read(place.path(name)).expect("an image"));
    let before = images();
    let good = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(good.status.code(), Some(0), "{}{}", text(&good.stdout), text(&good.stderr));
    assert!(text(&good.stdout).contains("device \"volume\": the map is good"), "{}", text(&good.stdout));
    // Which extents are in use.
    spoil_object(&place, 3);
    let bad = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(bad.status.code(), Some(1), "{}", text(&bad.stdout));
    assert_eq!(images()[0], before[0], "a check has written");
    let repaired = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(repaired.status.code(), Some(0), "{}{}", text(&repaired.stdout), text(&repaired.stderr));
    holds(&place);
    server.terminate();
    let alone = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(alone.status.code(), Some(1), "{}", text(&alone.stdout));
    let said = text(&alone.stdout);
    assert!(said.contains("store.nbd") && said.contains("only the devices below are checked"), "{said}");
}
