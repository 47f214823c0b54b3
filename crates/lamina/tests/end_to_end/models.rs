//! Model files of layers: named from the folder of the hierarchy file, wherever a command begins.

use crate::rig::{Place, text};
use lamina_drive::Model;
use serde_json::Value;
use std::path::Path;

/// A hierarchy in the folder `vm`, with a model file beside it.
const DISK: &str = r#"
[hierarchy]
name = "vol"

[device.a]
type = "file"
path = "a.img"
size = "16MiB"

[device.drive]
type = "emulate"
over = "a"
model = "models/slow.toml"

[device.queue]
type = "schedule"
over = "drive"
policy = "satf"
model = "cheetah-15k4"

[export.vm1]
device = "queue"
nbd = "unix:vm1.sock"
"#;

/// A model file whose model is called `name`.
fn write_model(place: &Place, path: &str, name: &str) {
    let model = Model { name: name.into(), ..Model::named("cheetah-15k4").expect("a model") };
    place.write(path, &model.to_toml());
}

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir_all(place.path("vm/models")).expect("folders");
    write_model(&place, "vm/models/slow.toml", "slow");
    place.write("vm/disk.toml", DISK);
    place
}

fn done(place: &Place, args: &[&str]) -> String {
    let output = place.lamina(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// The model that the emulated drive has.
fn model(drive: &Value) -> &str {
    drive["info"]["model"].as_str().unwrap_or_else(|| panic!("{drive:#}"))
}

#[test]
fn a_model_file_is_where_the_hierarchy_file_says() {
    let place = place();
    done(&place, &["check", "vm/disk.toml"]);
    done(&place, &["create", "vm/disk.toml"]);
    let served = |args: &[&str]| {
        let daemon = place.serve_with(args, |_| {});
        let drive = daemon.get("/v1/devices/drive");
        assert_eq!(daemon.terminate(), Some(0));
        model(&drive).to_owned()
    };
    assert_eq!(served(&["vm/disk.toml", "--control", "c.sock"]), "slow");
    // The members know the folder.
    assert_eq!(served(&["--from-members", "vm/a.img", "--trust", "--control", "c.sock"]), "slow");
    // Members need not agree with a file on the models of drives.
    write_model(&place, "vm/other.toml", "other");
    place.write("vm/disk.toml", &DISK.replace("models/slow.toml", "other.toml"));
    assert_eq!(served(&["vm/disk.toml", "--control", "c.sock"]), "other");
    assert_eq!(served(&["--from-members", "vm/a.img", "--trust", "--control", "c.sock"]), "other");
}

#[test]
fn an_assembled_file_has_the_whole_path_of_a_model_file_and_the_name_of_a_model() {
    let place = place();
    done(&place, &["create", "vm/disk.toml"]);
    let file = done(&place, &["assemble", "vm/a.img"]);
    let absolute = place.path("vm/models/slow.toml");
    assert!(file.contains(&format!("model = \"{}\"", absolute.display())), "{file}");
    assert!(file.contains("model = \"cheetah-15k4\""), "{file}");
    // What a disk says of files is believed only if somebody says so; a name is no file.
    let refused = place.lamina(&["serve", "--from-members", "vm/a.img"]);
    let said = text(&refused.stderr);
    assert!(
        said.contains("device \"drive\": key \"model\": ") && !said.contains("device \"queue\""),
        "{said}"
    );
}

#[test]
fn a_change_from_another_folder_finds_model_files_from_there() {
    let place = place();
    done(&place, &["create", "vm/disk.toml"]);
    let daemon = place.serve_with(&["vm/disk.toml", "--control", "c.sock"], |_| {});
    let apply = |text: &str| {
        place.write("moved.toml", text);
        done(&place, &["apply", "--control", "c.sock", "moved.toml"])
    };
    let moved = DISK.replace("a.img", "vm/a.img").replace("vm1.sock", "vm/vm1.sock");
    // The same file, seen from elsewhere: nothing is exchanged, and the counters go on.
    apply(&moved.replace("models/slow.toml", "vm/models/slow.toml"));
    assert_eq!(model(&daemon.get("/v1/devices/drive")), "slow");
    write_model(&place, "fast.toml", "fast");
    apply(&moved.replace("models/slow.toml", "fast.toml"));
    assert_eq!(model(&daemon.get("/v1/devices/drive")), "fast");
    place.write("moved.toml", &moved.replace("models/slow.toml", "none.toml"));
    let refused = place.lamina(&["apply", "--control", "c.sock", "moved.toml"]);
    let path = Path::new(&place.path("none.toml")).display().to_string();
    assert!(text(&refused.stderr).contains(&path), "{}", text(&refused.stderr));
    assert_eq!(model(&daemon.get("/v1/devices/drive")), "fast");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn satf_without_a_model_is_refused_before_anything_is_opened() {
    let place = place();
    place.write("vm/disk.toml", &DISK.replace("model = \"cheetah-15k4\"\n", ""));
    let refused = place.lamina(&["check", "vm/disk.toml"]);
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2), "{said}");
    assert!(said.contains("device \"queue\": key \"model\": ") && said.contains("satf"), "{said}");
}
