use super::*;
use crate::testing::{lines, parse, slices, wrong};
use crate::{PROBLEMS_MAX, Severity};

const GOOD: &str = r#"
[device.vm1]
type = "slice"
over = "san"
offset = "1MiB"

[device.san]
type = "store"
path = "san.img"

[export.vm1]
device = "vm1"
vhost-user = "vm1.sock"
nbd = "unix:run/vm1.sock"
"#;

#[test]
fn a_good_file() {
    let plan = parse(GOOD).unwrap();
    let names: Vec<&str> = plan.devices().iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["san", "vm1"], "bottom-up");
    let export = &plan.exports()[0];
    assert_eq!((export.name.as_str(), export.device.as_str()), ("vm1", "vm1"));
    assert_eq!(export.vhost_user.as_deref(), Some(Path::new("/base/vm1.sock")));
    assert_eq!(export.nbd.as_ref().unwrap().to_string(), "unix:/base/run/vm1.sock");
    assert_eq!((export.queues, export.read_only, export.serial.as_deref()), (1, false, None));
    assert!(plan.warnings().is_empty());
}

#[test]
fn everything_wrong_is_said_at_once_in_the_order_of_the_file() {
    let text = r#"
[device.vm1]
type = "slice"
ofset = "1MiB"
over = "sam"

[device.san]
type = "stroe"

[device.b]
type = "store"
path = 5
size = "much"

[export.vm1]
device = "vm"
"#;
    assert_eq!(
        wrong(text),
        [
            "4: device \"vm1\": key \"ofset\": unknown key (did you mean \"offset\"?)",
            "5: device \"vm1\": key \"over\": there is no device \"sam\" (did you mean \"san\"?)",
            "8: device \"san\": key \"type\": there is no type \"stroe\" (did you mean \"store\"?)",
            "12: device \"b\": key \"path\": expected a path, found the number 5",
            "13: device \"b\": key \"size\": \"much\" is no size: write a number of bytes or, for example, \"64MiB\", \
             \"1.5GiB\", \"10GB\"",
            "15: export \"vm1\": has no address: add \"nbd\" (\"unix:PATH\" or \"tcp:HOST:PORT\") or \"vhost-user\" \
             (PATH)",
            "16: export \"vm1\": key \"device\": there is no device \"vm\" (did you mean \"vm1\"?)",
        ]
    );
}

#[test]
fn a_device_for_metadata_that_is_no_name_is_said_and_no_more() {
    let kinds = &lamina_layers::KINDS[..];
    for over in ["", "over = []\n", "over = 'a'\n", "over = 7\n"] {
        let text = format!(
            "[device.a]\ntype = 'memory'\nsize = '1MiB'\n[device.v]\ntype = 'snapshot'\n{over}metadata = 7\n"
        );
        let report = Plan::parse(&text, "f.toml", Path::new("/base"), kinds).err().expect("7 is no name");
        let said = report.to_string();
        assert!(said.contains("key \"metadata\": expected a device's name"), "{over}{said}");
    }
}

#[test]
fn a_mistake_deep_in_a_device_has_its_own_line() {
    let text = "[device.a]\ntype='store'\npath='a'\n[device.b]\ntype='store'\npath='b'\n\
        [device.p]\ntype='pair'\nover=['a','b']\n\
        rules=[\n  { count = 1 },\n  { count = 1, range = [ 0,\n   'x' ] },\n]\n";
    assert_eq!(wrong(text).len(), 1);
    let line = &wrong(text)[0];
    assert!(line.starts_with("13: device \"p\": key \"rules[1].range[1]\": \"x\" is no size"), "{line}");
    let text = text.replace("range", "rage").replace("{ count = 1 }", "{}");
    assert_eq!(wrong(&text), ["11: device \"p\": key \"rules[0].count\": is missing"], "one mistake a key");
}

#[test]
fn a_picture_marks_what_is_meant() {
    let text = "[device.a]\ntype = 'store'\npath = 'a'\n\tsise = 3\n";
    let report = parse(text).err().unwrap();
    assert_eq!(report.place(&report.problems()[0]), Some((4, 2)));
    assert_eq!(
        report.pictures(),
        "f.toml:4: device \"a\": key \"sise\": unknown key (did you mean \"size\"?)\n    4 |  sise = 3\n      |  ^^^^\n"
    );
}

#[test]
fn cycles_are_named_along_the_circle() {
    let text = slices(&[("top", &["a"]), ("a", &["b", "s"]), ("b", &["c"]), ("c", &["a"]), ("s", &[])]);
    assert_eq!(
        wrong(&text),
        [
            "6: device \"a\": key \"over\": the devices stand on each other in a circle: \"a\" on \"b\" on \"c\" on \
             \"a\""
        ]
    );
    let two = slices(&[("a", &["a"]), ("b", &["c"]), ("c", &["b"]), ("d", &["a", "c"])]);
    let lines = wrong(&two);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].ends_with("a device cannot stand on itself"), "{lines:?}");
    assert!(lines[1].ends_with("in a circle: \"b\" on \"c\" on \"b\""), "{lines:?}");
}

/// A tower of `n` devices.
fn tower(n: usize) -> String {
    let mut text = "[device.d0]\ntype='store'\npath='x'\n".to_owned();
    (1..n).for_each(|i| text += &format!("[device.d{i}]\ntype='join'\nover='d{}'\n", i - 1));
    text
}

#[test]
fn depth_and_number_of_devices_are_bounded() {
    assert!(parse(&tower(DEPTH_MAX)).is_ok());
    let lines = wrong(&tower(TABLES_MAX));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("device \"d64\": stands on more than 63 devices"), "{lines:?}");
    assert!(wrong(&tower(TABLES_MAX + 1))[0].ends_with("has more than 4096 tables"));
}

#[test]
fn a_file_full_of_mistakes_is_answered_in_bounds() {
    let mut text = "[device.s]\ntype='store'\npath='s'\n".to_owned();
    (0..TABLES_MAX).for_each(|i| text += &format!("[export.e{i:059}]\ndevice='e{i:059}'\nnbd='unix:x'\n"));
    let report = parse(&text).err().unwrap();
    assert_eq!(report.problems().len(), PROBLEMS_MAX);
    assert!(report.to_string().ends_with("f.toml: and at least 3996 more\n"));
}

#[test]
fn what_the_file_says_cannot_command_a_terminal() {
    let report = parse("[device.\"a\\u001B[2J\"]\ntype = \"\\u202Exyz\\u0007\"\n# \u{1b}[31m").err().unwrap();
    let text = report.pictures();
    assert!(text.chars().all(|c| c == '\n' || !(c.is_control() || c == '\u{202e}')), "{text:?}");
}

#[test]
fn warnings_do_not_keep_a_file_from_being_used() {
    let plan = parse(&format!("{GOOD}\n[device.idle]\ntype='store'\npath='idle.img'\n")).unwrap();
    let [warning] = plan.warnings().problems() else { panic!("{}", plan.warnings()) };
    assert_eq!(warning.severity, Severity::Warning);
    assert_eq!(
        lines(plan.warnings()),
        ["16: warning: device \"idle\": is not used: no device stands on it, and it is not exported"]
    );
}

#[test]
fn components_are_whole_hierarchies() {
    let text = slices(&[("a", &["s"]), ("b", &["s"]), ("s", &[]), ("c", &["t"]), ("t", &[])])
        + "[export.c]\ndevice='c'\nnbd='unix:c'\n[export.b]\ndevice='b'\nnbd='unix:c'\n";
    let parts = parse(&text).unwrap().components();
    let names = |p: &Plan| p.devices().iter().map(|d| d.name.clone()).collect::<Vec<_>>();
    assert_eq!(parts.iter().map(names).collect::<Vec<_>>(), [vec!["s", "a", "b"], vec!["t", "c"]]);
    let exports = |p: &Plan| p.exports().iter().map(|e| e.name.clone()).collect::<Vec<_>>();
    assert_eq!(parts.iter().map(exports).collect::<Vec<_>>(), [["b"], ["c"]]);
    let around = |device: &str, other: &str| {
        let plan = parse(&text).unwrap().around(&[device.to_owned(), other.to_owned()]);
        (names(&plan).join(" "), exports(&plan).join(" "))
    };
    for (device, other, found) in
        [("a", "s", ("s a b", "b")), ("t", "a", ("s a b t c", "b c")), ("x", "y", ("", ""))]
    {
        assert_eq!(around(device, other), (found.0.to_owned(), found.1.to_owned()), "{device}, {other}");
    }
}

#[test]
fn a_plan_can_be_handed_to_another_thread() {
    fn sendable<T: Send + Clone + 'static>(_: &T) {}
    sendable(&parse(GOOD).unwrap());
}

#[test]
fn the_tree_shows_a_shared_device_once() {
    let text =
        slices(&[("vm2", &["both"]), ("vm1", &["both", "x"]), ("both", &["x", "y"]), ("x", &[]), ("y", &[])])
            + "[export.vm1]\ndevice='vm1'\nnbd='unix:c'\nread-only=true\n";
    assert_eq!(
        parse(&text).unwrap().tree(),
        "\
vm2      join
└─ both  join
   ├─ x  store
   └─ y  store
vm1      join       ⇒ \"vm1\" nbd unix:/base/c, read-only
├─ both  see above
└─ x     store
"
    );
}

#[test]
fn files_that_are_no_text_or_too_large() {
    let dir = std::env::temp_dir().join(format!("lamina-graph-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let load = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        let result = Plan::load(&path, crate::testing::KINDS);
        result.map_err(|e| e.to_string().replace(&format!("{}/", dir.display()), ""))
    };
    let missing = Plan::load(&dir.join("missing.toml"), crate::testing::KINDS).err().unwrap().to_string();
    let binary = load("b.toml", b"a = 1\n\xff\xfe").err().unwrap();
    let large = load("l.toml", &vec![b'#'; FILE_MAX + 1]).err().unwrap();
    let largest = load("m.toml", &vec![b'#'; FILE_MAX]).err().unwrap();
    let good = load("g.toml", GOOD.as_bytes()).map(|plan| plan.exports()[0].vhost_user.clone());
    std::fs::remove_dir_all(&dir).unwrap();
    assert!(missing.contains("missing.toml: cannot be read: No such file"), "{missing}");
    assert_eq!(binary, "b.toml: is not a text file: line 2 is not UTF-8\n");
    assert_eq!(large, "l.toml: is larger than 1024 KiB, and no hierarchy is\n");
    assert_eq!(largest, "m.toml: there is no device: write [device.NAME]\n");
    assert_eq!(good.unwrap(), Some(dir.join("vm1.sock")));
}

#[test]
fn a_file_in_another_language_is_told_so_once() {
    for (text, is) in
        [("device:\n  a:\n    type: file\n", "YAML"), ("{ \"device\": { \"a\": {} } }\n", "JSON")]
    {
        let said = wrong(text);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(&format!("looks like {is}, and a hierarchy file is TOML")), "{said:?}");
    }
}

#[test]
fn a_type_that_another_system_calls_otherwise_is_explained() {
    let said = wrong("[device.a]\ntype = \"qcow2\"\npath = \"a\"\n");
    assert!(said[0].contains("there is no type \"qcow2\" (images of qcow2 are not read: "), "{said:?}");
}
