//! `lamina create` writes all of a hierarchy or nothing: after an error the next attempt finds what the first one found.

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
        // What is right is made then, without being forced.
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
