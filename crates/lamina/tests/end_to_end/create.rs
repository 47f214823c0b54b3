//! `lamina create` writes all of a hierarchy or nothing: after an error the next attempt finds the same state as the
//! first one.

use crate::rig::{Place, text};

fn file(device: &str) -> String {
    let member =
        |name: &str| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\nsize = \"16MiB\"\n");
    format!(
        "[hierarchy]\nname = \"vol\"\n{}{}{device}\n[export.vm1]\ndevice = \"vm1\"\nnbd = \"unix:vm1.sock\"\n",
        member("a"),
        member("b")
    )
}

/// `create` refuses, and leaves no file; with one member there before, that one as it was.
#[track_caller]
fn nothing_is_written(device: &str, says: &str) {
    for is_there in [false, true] {
        let place = Place::with(&file(device));
        let image: Vec<u8> = (0..16 << 20).map(|i: u32| (i >> 9) as u8).collect();
        if is_there {
            std::fs::write(place.path("a.img"), &image).expect("an image");
        }
        let made = place.lamina(&["create", "disk.toml"]);
        let said = text(&made.stderr);
        assert_ne!(made.status.code(), Some(0), "{said}");
        assert!(said.contains(says), "{said}");
        let names = place.names();
        assert_eq!(names, if is_there { vec!["a.img", "disk.toml"] } else { vec!["disk.toml"] });
        if is_there {
            assert!(std::fs::read(place.path("a.img")).expect("an image") == image, "a member was written");
        }
        // A correct file is then created, without --force.
        place.write("disk.toml", &file("[device.vm1]\ntype = \"mirror\"\nover = [\"a\", \"b\"]"));
        let made = place.lamina(&["create", "disk.toml"]);
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    }
}

#[test]
fn a_key_file_that_is_missing() {
    let crypt = "[device.x]\ntype = \"crypt\"\nover = \"a\"\nkey-file = \"none.key\"\n[device.vm1]\ntype = \
                 \"mirror\"\nover = [\"x\", \"b\"]";
    nothing_is_written(crypt, "none.key");
}

#[test]
fn a_server_that_does_not_answer() {
    let absent = "[device.far]\ntype = \"nbd\"\naddress = \"unix:none.sock\"\n[device.vm1]\ntype = \
                  \"concat\"\nover = [\"a\", \"b\", \"far\"]";
    nothing_is_written(absent, "far");
}

#[test]
fn a_part_that_does_not_fit() {
    let part = "[device.vm1]\ntype = \"linear\"\nover = \"b\"\noffset = \"1GiB\"";
    nothing_is_written(part, "offset");
}

#[test]
fn all_layers_that_keep_something_are_made_after_they_were_tried() {
    let place = Place::with(&file(
        "[device.sums]\ntype = \"integrity\"\nover = \"a\"\n[device.cache]\ntype = \"flash\"\nover = \
         \"b\"\n[device.fast]\ntype = \"accelerate\"\nover = [\"sums\", \"cache\"]\n[device.vm1]\ntype = \
         \"snapshot\"\nover = \"fast\"\nsize = \"1GiB\"",
    ));
    let made = place.lamina(&["create", "disk.toml"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    place.serve().terminate();
    let good = place.lamina(&["check", "--metadata", "disk.toml"]);
    assert_eq!(good.status.code(), Some(0), "{}{}", text(&good.stdout), text(&good.stderr));
}

#[test]
fn a_check_misses_the_files_of_a_listener() {
    let tls = "tls = { certificate = \"c.pem\", key = \"k.pem\" }";
    let place =
        Place::with(&format!("{}{tls}\n", file("[device.vm1]\ntype = \"mirror\"\nover = [\"a\", \"b\"]")));
    place.write("c.pem", "");
    let checked = place.lamina(&["check", "disk.toml"]);
    assert_eq!(checked.status.code(), Some(2));
    let said = text(&checked.stderr);
    assert!(
        said.contains("export \"vm1\": key \"tls.key\": ") && said.contains("k.pem: No such file"),
        "{said}"
    );
}

#[test]
fn what_was_written_is_taken_back_when_writing_fails() {
    let place = Place::with(&file("[device.vm1]\ntype = \"mirror\"\nover = [\"a\", \"b\"]"));
    let image: Vec<u8> = (0..64 << 20).map(|i: u32| (i >> 9) as u8).collect();
    std::fs::write(place.path("b.img"), &image).expect("an image");
    // Its second superblock lies beyond the limit of a file's size, 24 or 48 MiB (`ulimit` counts 512 or 1024 bytes as
    // one).
    let script = "trap '' XFSZ; ulimit -f 49152; exec \"$0\" create disk.toml";
    let made = place.through(&["sh", "-c", script, env!("CARGO_BIN_EXE_lamina")]);
    assert_ne!(made.status.code(), Some(0), "{}", text(&made.stdout));
    assert_eq!(place.names(), ["b.img", "disk.toml"]);
    assert!(std::fs::read(place.path("b.img")).expect("an image") == image, "a member was left written");
    let made = place.lamina(&["create", "disk.toml"]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
}

/// `check` and `create` agree on the problems, and nothing is written.
#[track_caller]
fn refused_by_both(device: &str, says: &str) {
    let place = Place::with(&file(device));
    for command in ["check", "create"] {
        let done = place.lamina(&[command, "disk.toml"]);
        let said = text(&done.stderr);
        assert!(done.status.code() == Some(2) && said.contains(says), "{command}: {said}");
    }
    assert_eq!(place.names(), ["disk.toml"]);
}

#[test]
fn what_a_file_alone_shows_is_refused_by_check_as_well() {
    for (device, says) in [
        ("type = \"stripe\"\nover = [\"a\", \"b\"]\nunit = \"48KiB\"", "key \"unit\""),
        ("type = \"mirror\"\nover = [\"a\", \"b\"]\nspares = 2", "key \"spares\""),
        ("type = \"accelerate\"\nover = [\"a\", \"b\"]", "kind \"flash\""),
        ("type = \"redo\"\nover = \"a\"", "the log needs a device"),
        ("type = \"crypt\"\nover = \"a\"", "key \"key-file\""),
        ("type = \"crypt\"\nover = \"a\"\nkey-file = \"k\"\npassphrase-file = \"p\"", "there is a key-file"),
        ("type = \"view\"\nover = \"a\"\nname = \"x\"", "has no views"),
        ("type = \"snapshot\"\nover = \"a\"\nextent = \"48KiB\"", "key \"extent\""),
        ("type = \"fingerprint\"\nover = \"a\"\nblock = \"48KiB\"", "key \"block\""),
        ("type = \"linear\"\nover = \"a\"\noffset = 100", "key \"offset\""),
        ("type = \"file\"\npath = \"vm1.img\"\nsize = 100000", "key \"size\""),
        (
            "type = \"partition\"\nover = \"a\"\npartitions = [{ name = \"x\", size = \"1MiB\" }, { name = \"x\", size \
             = \"1MiB\" }]",
            "key \"partitions[1].name\"",
        ),
    ] {
        refused_by_both(&format!("[device.vm1]\n{device}"), says);
    }
    let third = "[device.c]\ntype = \"file\"\npath = \"c.img\"\nsize = \"16MiB\"\n[device.vm1]\ntype = \
                 \"parity\"\nover = [\"a\", \"b\", \"c\"]\n";
    for keys in ["spares = 1", "spares = 3", "parity = 2", "unit = \"48KiB\""] {
        refused_by_both(&format!("{third}{keys}"), "device \"vm1\": key ");
    }
}

#[test]
fn what_several_write_to_is_warned_of() {
    let warns = |device: &str| {
        let place = Place::with(&file(device));
        let done = place.lamina(&["check", "disk.toml"]);
        assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
        text(&done.stderr).contains("data is lost")
    };
    let volume =
        |name: &str, over: &str| format!("[device.{name}]\ntype = \"snapshot\"\nover = \"{over}\"\n");
    let both = |x: &str, y: &str| format!("[device.vm1]\ntype = \"concat\"\nover = [\"{x}\", \"{y}\"]\n");
    assert!(warns(&(volume("x", "a") + &volume("y", "a") + &both("x", "y"))));
    assert!(warns(&(volume("x", "a") + &both("x", "a"))));
    assert!(!warns(&(volume("x", "a") + &volume("y", "b") + &both("x", "y"))));
    let exported = "[export.leg]\ndevice = \"a\"\nnbd = \"unix:vm1.sock\"\n";
    assert!(warns(&(both("a", "b") + exported)));
    assert!(!warns(&(both("a", "b") + exported + "read-only = true\n")));
}
