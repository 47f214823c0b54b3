//! The commands that need no daemon.

use crate::rig::{Place, text};
use crate::serving::DISK;
use serde_json::Value;

#[test]
fn check_draws_the_tree_or_says_all_that_is_wrong() {
    let place = Place::with(DISK);
    let good = place.lamina(&["check", "disk.toml"]);
    assert_eq!(good.status.code(), Some(0));
    assert!(
        text(&good.stdout).contains("vm1") && text(&good.stdout).contains("└─ san"),
        "{}",
        text(&good.stdout)
    );
    assert_eq!(place.names(), ["disk.toml"]);
    place.write("bad.toml", &DISK.replace("over = \"san\"", "over = \"sam\"").replace("size =", "sise ="));
    for command in ["check", "serve"] {
        let bad = place.lamina(&[command, "bad.toml"]);
        assert_eq!(bad.status.code(), Some(2));
        let said = text(&bad.stderr);
        assert!(said.contains("bad.toml:5: device \"san\": key \"sise\""), "{said}");
        assert!(
            said.contains("bad.toml:9: device \"vm1\": key \"over\": there is no device \"sam\""),
            "{said}"
        );
        assert_eq!(place.names(), ["bad.toml", "disk.toml"]);
    }
    let missing = place.lamina(&["check", "none.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).starts_with("none.toml: cannot be read"), "{}", text(&missing.stderr));
    place.write("same.toml", DISK);
    let twice = place.lamina(&["check", "disk.toml", "same.toml"]);
    assert_eq!(twice.status.code(), Some(2));
    assert!(text(&twice.stderr).contains("names are unique in a daemon"), "{}", text(&twice.stderr));
}

#[test]
fn a_wrong_command_line_is_exit_code_2() {
    let place = Place::new();
    for words in
        [&["serve"][..], &["nope"], &["bench", "x.toml", "--depth", "0"], &["show", "--interval", "0s"]]
    {
        let wrong = place.lamina(words);
        assert_eq!(wrong.status.code(), Some(2), "{words:?}");
        assert!(!wrong.stderr.is_empty());
    }
}

#[test]
fn kinds_are_listed() {
    let place = Place::new();
    let list = place.lamina(&["kinds", "--json"]);
    let kinds: Value = serde_json::from_slice(&list.stdout).expect("JSON");
    let names: Vec<&str> =
        kinds.as_array().expect("a list").iter().map(|k| k["name"].as_str().expect("a name")).collect();
    for name in ["concat", "delay", "fault", "file", "linear", "memory", "nbd", "null", "record", "stripe"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert!(names.is_sorted());
    let table = place.lamina(&["kinds"]);
    assert_eq!(text(&table.stdout).lines().count(), names.len());
}

#[test]
fn completions_and_manual_pages_are_generated() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.lamina(&["completions", shell]);
        assert!(text(&script.stdout).contains("LAMINA_COMPLETE"), "{shell}");
    }
    assert_eq!(place.lamina(&["man", "pages/man1"]).status.code(), Some(0));
    let page = std::fs::read_to_string(place.path("pages/man1/lamina-serve.1")).expect("a page");
    assert!(page.contains("\\-\\-control"), "{page}");
    assert!(place.path("pages/man1/lamina.1").exists());
}

/// What bash offers at TAB behind a line.
fn offered(place: &Place, line: &str) -> Vec<String> {
    let script = text(&place.lamina(&["completions", "bash"]).stdout).replace("\"lamina\"", "\"$LAMINA\"");
    let ask = format!("COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_TYPE=9; {ASK}");
    let done = std::process::Command::new("bash")
        .args(["-c", &format!("{script}\n{ask}")])
        .env("LAMINA", env!("CARGO_BIN_EXE_lamina"))
        .current_dir(place.path(""))
        .output()
        .expect("it runs");
    text(&done.stdout).split_whitespace().map(str::to_owned).collect()
}

/// Runs the function of the script, and prints what it has found.
const ASK: &str =
    "_clap_complete_lamina lamina \"${COMP_WORDS[COMP_CWORD]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";

#[test]
fn a_shell_completes_what_the_daemon_knows() {
    let place = Place::with(DISK);
    let before = offered(&place, "lamina ctl ''");
    assert!(!before.contains(&"san".into()), "nobody serves: {before:?}");
    let daemon = place.serve();
    assert_eq!(offered(&place, "lamina stat"), ["status"]);
    assert!(offered(&place, "lamina ctl ''").contains(&"san".into()));
    assert_eq!(offered(&place, "lamina why v"), ["vm1"]);
    assert_eq!(offered(&place, "lamina ctl san inf"), ["info"]);
    daemon.terminate();
}

#[test]
fn inspect_names_what_is_on_a_disk_and_who_holds_it() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let held = place.lamina(&["inspect", "san.img", "--json"]);
    let report: Value = serde_json::from_slice(&held.stdout).expect("JSON");
    assert_eq!((&report["kind"], &report["size"]), (&"file".into(), &(8 << 20).into()));
    assert_eq!(report["holders"].as_array().expect("a list").len(), 1, "{report}");
    daemon.terminate();
    let free = place.lamina(&["inspect", "san.img"]);
    assert!(text(&free.stdout).ends_with("no known signature\n  not in use\n"), "{}", text(&free.stdout));
    assert_eq!(place.lamina(&["inspect", "nowhere"]).status.code(), Some(1));
}

#[test]
fn colours_are_for_terminals() {
    let place = Place::with(DISK);
    let daemon = place.serve();
    let says = |variable: &str, words: &[&str]| {
        let done = place.command(words).env(variable, "1").output().expect("it runs");
        text(&done.stdout).to_owned() + text(&done.stderr)
    };
    assert_eq!(says("NO_COLOR", &["status"]), "disk.toml: ok\n");
    assert_eq!(says("CLICOLOR_FORCE", &["status"]), "disk.toml: \u{1b}[32mok\u{1b}[0m\n");
    let failed = says("CLICOLOR_FORCE", &["ctl", "vm2", "info"]);
    assert!(failed.starts_with("\u{1b}[1m\u{1b}[31mlamina\u{1b}[0m: "), "{failed:?}");
    daemon.terminate();
}

/// Two members of a hierarchy.
const PAIR: &str = r#"
[hierarchy]
name = "pair"

[device.a]
type = "file"
path = "disks/a.img"
size = "8MiB"

[device.b]
type = "file"
path = "disks/b.img"
size = "8MiB"

[device.vm1]
type = "concat"
over = ["a", "b"]
"#;

#[test]
fn scan_lists_disks_and_the_hierarchies_on_them() {
    let place = Place::new();
    place.write("pair.toml", PAIR);
    std::fs::create_dir(place.path("disks")).expect("a folder");
    assert_eq!(place.lamina(&["create", "pair.toml"]).status.code(), Some(0));
    place.write("disks/blank\u{1b}.img", &"\0".repeat(4096));
    let all = text(&place.lamina(&["scan", "disks"]).stdout).to_owned();
    let lines: Vec<Vec<&str>> = all.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["DEVICE", "SIZE", "CONTENTS", "USED", "BY"], "{all}");
    assert_eq!(lines[1].join(" "), "disks/a.img 8MiB member \"a\" (1 of 2) of \"pair\" -", "{all}");
    assert_eq!(lines[3].join(" "), "disks/blank\\u{1b}.img 4KiB no known signature -", "{all}");
    let told = all.lines().last().expect("a line");
    assert!(told.starts_with("pair (") && told.contains("): all 2 members are here; "), "{all}");
    // What it advises.
    let advice = told.split('`').nth(1).expect("a command").strip_prefix("lamina ").expect("ours");
    let printed = place.lamina(&advice.split(' ').collect::<Vec<_>>());
    assert!(text(&printed.stdout).contains("name = \"pair\""), "{}", text(&printed.stderr));
    let one = text(&place.lamina(&["scan", "disks/a.img"]).stdout).to_owned();
    assert!(one.ends_with("): 1 of 2 members are here\n"), "{one}");
    let json = place.lamina(&["scan", "disks", "--json"]);
    let report: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(report[1]["member"]["superblock"]["member"], "b");
    // Those of this machine, whatever they are.
    let here = place.lamina(&["scan"]);
    assert!(here.status.success() && text(&here.stdout).starts_with("DEVICE"), "{}", text(&here.stderr));
}

#[test]
fn bench_loads_files_and_servers() {
    let place = Place::with(DISK);
    let args = ["--ramp", "5ms", "--rw", "mixed", "--json", "--block-size", "512"];
    let own = place.lamina(&[&["bench", "disk.toml", "--time", "50ms"], &args[..]].concat());
    let report: Value = serde_json::from_slice(&own.stdout).expect("JSON");
    assert!(report["requests"].as_u64().is_some_and(|n| n > 0), "{report}");
    assert!(report["read"]["p99.9_ns"].as_u64() >= report["read"]["p50_ns"].as_u64());
    let daemon = place.serve();
    let (uri, pid) = (daemon.uri("vm1"), daemon.pid().to_string());
    // On a busy disk a write may take longer than a short run.
    let mut longer = ["50ms", "500ms", "5s", "50s"].into_iter().map(|time| {
        let load = ["bench", &uri, "--force", "--server-pid", &pid, "--sequential"];
        let server = place.lamina(&[&load[..], &args[..], &["--time", time]].concat());
        serde_json::from_slice::<Value>(&server.stdout).expect("JSON")
    });
    let report = longer.find(|report| report["write"]["requests"].as_u64().is_some_and(|n| n > 0));
    let report = report.expect("there are writes");
    assert!(report["server_cpu_us_per_request"].as_f64().is_some_and(|us| us > 0.0), "{report}");
    let often = ["--rw", "write", "--flush-every", "4", "--depth", "1", "--time", "50ms", "--ramp", "0s"];
    let count = |what: &str| {
        daemon.get("/v1/devices/san")["operations"][what]["completed"].as_u64().expect("a number")
    };
    let before = (count("write"), count("flush"));
    // There is data by now.
    let asked = place.lamina(&[&["bench", &uri], &often[..]].concat());
    assert_eq!(asked.status.code(), Some(1), "{}", text(&asked.stdout));
    assert!(text(&asked.stderr).contains("overwrites the first"), "{}", text(&asked.stderr));
    assert!(text(&asked.stderr).contains("nothing was done: say --force"), "{}", text(&asked.stderr));
    assert_eq!(count("write"), before.0, "a load that was refused has written");
    let before = (count("write"), count("flush"));
    assert!(place.lamina(&[&["bench", &uri, "--force"], &often[..]].concat()).status.success());
    let (writes, flushes) = (count("write") - before.0, count("flush") - before.1);
    // One more flush when the client leaves.
    assert!(writes / 4 <= flushes && flushes <= writes / 4 + 1, "{flushes} flushes after {writes} writes");
    let refused = place.lamina(&["bench", "disk.toml", "--time", "50ms"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stdout));
}

#[test]
fn images_of_other_programs_are_told_from_disks() {
    // The daemon has no place for its socket, and so ends by itself.
    let place = Place::with(
        "[device.a]\ntype = \"file\"\npath = \"a.img\"\n[export.a]\ndevice = \"a\"\nnbd = \"unix:disk.toml\"\n",
    );
    for (magic, at, name) in [
        (&b"QFI\xfb\0\0\0\x03"[..], 0, "qcow2"),
        (b"KDMV", 0, "VMDK"),
        (b"vhdxfile", 0, "VHDX"),
        (b"conectix", 0, "VHD"),
        (b"\x7f\x10\xda\xbe", 64, "VDI"),
        (b"QED\0", 0, "QED"),
    ] {
        for size in [65536, 65536 + 8] {
            let mut image = vec![0; size];
            image[at..at + magic.len()].copy_from_slice(magic);
            std::fs::write(place.path("a.img"), image).expect("an image");
            let said = place.lamina(&["serve", "disk.toml"]);
            let said = text(&said.stderr);
            assert!(said.contains(&format!("a.img is a {name} image")), "{size}: {said}");
            assert!(said.contains("qemu-img convert -O raw"), "{said}");
            assert!(!said.contains("truncate"), "{size}: {said}");
        }
    }
}

#[test]
fn what_design_writes_is_a_good_file_whatever_the_name() {
    let place = Place::new();
    for name in ["vm1", "a.b", "A-b_c.d", "0"] {
        let words = ["design", "--devices", "a.img,b.img", "--survive", "1", "--size", "2MiB", "--encrypt"];
        let file = place.lamina(&[&words[..], &["--snapshots", "--name", name]].concat());
        assert_eq!(file.status.code(), Some(0), "{name}: {}", text(&file.stderr));
        place.write("disk.toml", text(&file.stdout));
        let checked = place.lamina(&["check", "disk.toml"]);
        assert_eq!(checked.status.code(), Some(0), "{name}: {}", text(&checked.stderr));
    }
    for name in ["a b", "a'b", "a\"b", "\u{e4}", "a/b", "", "..", "a\nb"] {
        let words = ["design", "--devices", "a.img,b.img", "--size", "2MiB", "--name", name];
        let refused = place.lamina(&words);
        assert_eq!(refused.status.code(), Some(2), "{name}");
        assert!(text(&refused.stderr).contains("--name: a name "), "{name}: {}", text(&refused.stderr));
        assert!(refused.stdout.is_empty());
    }
}

#[test]
fn other_languages_and_other_systems_names_are_known() {
    let place = Place::new();
    let said = |file: &str| {
        place.write("disk.toml", file);
        let checked = place.lamina(&["check", "disk.toml"]);
        assert_eq!(checked.status.code(), Some(2), "{file}");
        text(&checked.stderr).to_owned()
    };
    for file in ["device:\n  a:\n    type: file\n", "---\n- device: a\n"] {
        assert!(said(file).contains("looks like YAML, and a hierarchy file is TOML"), "{}", said(file));
    }
    assert!(said("{\"device\": {}}").contains("looks like JSON"));
    for (word, meant) in [
        ("raid1", "mirror"),
        ("RAID5", "parity"),
        ("luks", "crypt"),
        ("encryption", "crypt"),
        ("raid0", "stripe"),
        ("cache", "accelerate"),
        ("thin", "snapshot"),
        ("checksum", "integrity"),
    ] {
        let said = said(&format!("[device.x]\ntype = \"{word}\"\n"));
        assert!(said.contains(&format!("(did you mean \"{meant}\"?)")), "{word}: {said}");
    }
}

#[test]
fn a_control_socket_that_a_killed_daemon_left_hides_no_other() {
    let place = Place::new();
    for name in ["dead", "alive"] {
        place.write(
            &format!("{name}.toml"),
            &DISK.replace("vm1.", &format!("{name}.")).replace("san.img", name),
        );
    }
    place.serve_with(&["dead.toml"], |_| {}).kill();
    assert!(place.path("dead.toml.ctl.sock").exists());
    let gone = place.lamina(&["ctl", "vm1", "info"]);
    assert_eq!(gone.status.code(), Some(1));
    let said = text(&gone.stderr);
    assert!(said.contains("dead.toml.ctl.sock") && said.contains("is `lamina serve` running"), "{said}");
    let daemon = place.serve_with(&["alive.toml"], |_| {});
    for words in [&["ctl", "vm1", "info"][..], &["show", "--interval", "10ms"], &["jobs"], &["status"]] {
        let done = place.lamina(words);
        assert_eq!(done.status.code(), Some(0), "{words:?}: {}", text(&done.stderr));
    }
    daemon.terminate();
}
