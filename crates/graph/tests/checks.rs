//! Mistakes that a file alone shows are reported before any device is opened, with the place of the key.

use lamina_block::Kind;
use lamina_graph::{Plan, Report};
use std::path::Path;

fn parse(text: &str) -> Result<Plan, Report> {
    let kinds: Vec<Kind> = lamina_layers::KINDS.to_vec();
    Plan::parse(text, "disk.toml", Path::new("/srv"), &kinds)
}

/// Three members, a few other devices, and the device `vm1`, exported.
fn file(vm1: &str) -> String {
    let members =
        ["a", "b", "c"].map(|name| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n"));
    format!(
        "[hierarchy]\nname = \"vol\"\n{}[device.cache]\ntype = \"flash\"\nover = \"c\"\n[device.scratch]\ntype = \
         \"memory\"\nsize = \"1MiB\"\n{vm1}\n[export.vm1]\ndevice = \"vm1\"\nnbd = \"unix:vm1.sock\"\n",
        members.concat()
    )
}

#[track_caller]
fn refused(vm1: &str, says: &str) {
    let text = file(vm1);
    let Err(report) = parse(&text) else { panic!("accepted:\n{text}") };
    let said = report.to_string();
    assert!(said.contains(says), "{said}");
}

#[test]
fn what_create_would_refuse_is_refused_by_a_check() {
    for (vm1, says) in [
        (
            "type = \"stripe\"\nover = [\"a\", \"b\"]\nunit = \"48KiB\"",
            "key \"unit\": 48KiB is not a power of two",
        ),
        (
            "type = \"parity\"\nover = [\"a\", \"b\", \"c\"]\nunit = \"3KiB\"",
            "key \"unit\": 3KiB is not a power of two",
        ),
        (
            "type = \"parity\"\nover = [\"a\", \"b\", \"c\"]\nparity = 3",
            "key \"parity\": 3 is neither 1 nor 2",
        ),
        ("type = \"mirror\"\nover = [\"a\", \"b\"]\nspares = 2", "key \"spares\": all of its devices"),
        ("type = \"parity\"\nover = [\"a\", \"b\", \"c\"]\nspares = 3", "key \"spares\": all of its devices"),
        (
            "type = \"accelerate\"\nover = [\"a\", \"b\"]",
            "key \"over\": the second device is to be one of kind \"flash\"",
        ),
        ("type = \"accelerate\"\nover = [\"cache\", \"a\"]", "key \"over\": the store comes first"),
        (
            "type = \"accelerate\"\nover = [\"a\", \"cache\"]\npeers = 1",
            "key \"peers\": the first device of `over` has to be one of kind \"reservation\"",
        ),
        ("type = \"accelerate\"\nover = [\"a\", \"cache\"]\npeers = 4", "key \"peers\": is from 0 to 3"),
        (
            "type = \"accelerate\"\nover = [\"a\", \"cache\"]\npeer-timeout = \"5ms\"",
            "key \"peer-timeout\": is from 100ms to 1min",
        ),
        (
            "type = \"reservation\"\nover = \"a\"\nvault = \"v\"\nvolume = \"vm1\"\nhost = \"h\"\n\
             listen = \"tcp:10.0.0.1:7001\"",
            "key \"listen\": other machines reach tcp:10.0.0.1:7001, where nothing would be encrypted and everybody \
             believed: name the files of this host with tls = { ca = \"...\", certificate = \"...\", key = \
             \"...\" }, or, on a network of these hosts alone, say tls = \"off\"",
        ),
        ("type = \"redo\"\nover = \"a\"", "name it with metadata = \"NAME\""),
        ("type = \"crypt\"\nover = \"a\"", "key \"key-file\": is missing"),
        (
            "type = \"crypt\"\nover = \"a\"\nkey-file = \"k\"\npassphrase-file = \"p\"",
            "key \"passphrase-file\": there is a key-file already",
        ),
        (
            "type = \"view\"\nover = \"scratch\"\nname = \"x\"",
            "key \"over\": a device of kind \"memory\" has no views",
        ),
    ] {
        refused(&format!("[device.vm1]\n{vm1}"), says);
    }
}

#[test]
fn parts_that_overlap_are_warned_of() {
    let part = |name: &str, keys: &str| format!("[device.{name}]\ntype = \"linear\"\nover = \"a\"\n{keys}\n");
    let warnings = |parts: &[(&str, &str)]| {
        let mut text: String = parts.iter().map(|(name, keys)| part(name, keys)).collect();
        let names: Vec<String> = parts.iter().map(|(name, _)| format!("{name:?}")).collect();
        text.push_str(&format!(
            "[device.vm1]\ntype = \"concat\"\nover = [{}, \"b\", \"cache\", \"scratch\"]",
            names.join(", ")
        ));
        parse(&file(&text)).unwrap_or_else(|report| panic!("{report}")).warnings().to_string()
    };
    let apart = [("x", "size = \"1MiB\""), ("y", "offset = \"1MiB\"")];
    assert_eq!(warnings(&apart), "");
    let nested = [("x", ""), ("y", "offset = \"1MiB\"\nsize = \"1MiB\""), ("z", "offset = \"4MiB\"")];
    let said = warnings(&nested);
    assert!(said.contains("device \"y\": has bytes of \"a\" in common with device \"x\""), "{said}");
    assert!(said.contains("device \"z\": has bytes of \"a\" in common with device \"x\""), "{said}");
}
