//! `lamina check --metadata` and `lamina repair`: damage is found, what is there twice is mended, nothing else changes.

use crate::rig::{Place, client, flush, pattern, text, write};
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
    assert_eq!(busy.status.code(), Some(1), "{}", text(&busy.stdout));
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
    let mended = place.lamina(&["repair", "disk.toml"]);
    assert_eq!(mended.status.code(), Some(0), "{}{}", text(&mended.stdout), text(&mended.stderr));
    assert!(
        text(&mended.stdout).contains("MENDED   member \"a\": the first copy"),
        "{}",
        text(&mended.stdout)
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
