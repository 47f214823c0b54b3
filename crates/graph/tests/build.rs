//! A plan built, used, resized and closed in a simulated world.

mod common;

use common::build;
use lamina_block::{
    Buf, Build, Command, Config, Durability, Error, ErrorKind, Geometry, Io, Kind, Layer, Made, Manage,
    Passthrough, Pending, Step,
};
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::{DiskOptions, Image, Simulation};
use serde::Deserialize;
use serde_json::json;
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::Path;
use std::rc::Rc;

thread_local! {
    /// The events that devices of type `witness` have seen.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn seen(what: String) {
    SEEN.with_borrow_mut(|seen| seen.push(what));
}

/// A device that tells when it is opened and closed, and fails when asked to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Keys {
    #[serde(default)]
    fail_open: bool,
    #[serde(default)]
    fail_close: bool,
    block: Option<u32>,
}

struct Witness {
    name: String,
    fail_close: bool,
    geometry: Geometry,
}

impl Config for Keys {
    const KIND: &'static str = "witness";
    const SUMMARY: &'static str = "tells when it is opened and closed";
    const CHILDREN: RangeInclusive<usize> = 0..=9;

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            with.env.sleep(std::time::Duration::from_millis(1)).await;
            if self.fail_open {
                return Err(Error::media("fail-open: as it was told"));
            }
            seen(format!("open {}", with.name));
            let geometry = Geometry { block: self.block.unwrap_or(512), ..Geometry::new(1 << 20) };
            Ok(Rc::new(Witness { name: with.name, fail_close: self.fail_close, geometry }) as Made)
        })
    }
}

impl Layer for Witness {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Done(Ok(()))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn close(self: Rc<Self>) -> Pending {
        seen(format!("close {}", self.name));
        Box::pin(async move { if self.fail_close { Err(Error::media("cannot be closed")) } else { Ok(()) } })
    }
}

impl Manage for Witness {}

static WITNESS: &[Kind] = &[Kind::of::<Keys>()];

fn plan(text: &str, kinds: &[Kind]) -> Plan {
    Plan::parse(text, "f.toml", Path::new("/srv"), kinds).unwrap_or_else(|e| panic!("{e}"))
}

fn witnesses(devices: &[(&str, &[&str], &str)]) -> Plan {
    let table = |(name, over, keys): &(&str, &[&str], &str)| {
        format!("[device.{name}]\ntype = 'witness'\nover = {over:?}\n{keys}\n")
    };
    plan(&devices.iter().map(table).collect::<String>(), WITNESS)
}

#[test]
fn opened_from_the_bottom_and_closed_from_the_top() {
    let built = build(witnesses(&[
        ("top", &["left", "right"], ""),
        ("left", &["disk"], ""),
        ("right", &["disk"], ""),
        ("disk", &[], ""),
    ]));
    assert!(built.is_ok());
    let order = "open disk, open left, open right, open top, close top, close right, close left, close disk";
    assert_eq!(SEEN.take().join(", "), order);
}

#[test]
fn a_failure_is_reported_with_all_others_and_leaves_nothing_open() {
    let report = build(witnesses(&[
        ("top", &["a", "b", "c"], ""),
        ("a", &[], ""),
        ("b", &[], "fail-open = true"),
        ("c", &[], ""),
        ("d", &[], "fail-open = true"),
        ("over-c", &["c"], "block = 5"),
    ]))
    .unwrap_err();
    assert_eq!(
        report.to_string(),
        "f.toml:12: device \"b\": key \"fail-open\": as it was told\n\
         f.toml:20: device \"d\": key \"fail-open\": as it was told\n\
         f.toml:21: device \"over-c\": blocks of 5 bytes: they have 512 to 65536, a power of two\n"
    );
    assert_eq!(SEEN.take().join(", "), "open a, open c, open over-c, close over-c, close c, close a");
}

#[test]
fn what_cannot_be_closed_does_not_keep_the_rest_open() {
    let world = Simulation::new(1);
    let plan = witnesses(&[("top", &["disk"], "fail-close = true"), ("disk", &[], "")]);
    let env = world.env();
    let closed = world.run(async move { Hierarchy::build(plan, env).await.unwrap().close().await }).unwrap();
    assert_eq!(closed.unwrap_err().to_string(), "top: cannot be closed");
    assert_eq!(SEEN.take().join(", "), "open disk, open top, close top, close disk");
}

const STACK: &str = "
[device.vm1]
type = 'linear'
over = 'pair'
offset = '64KiB'

[device.pair]
type = 'stripe'
over = ['a', 'b']

[device.a]
type = 'file'
path = 'a.img'

[device.b]
type = 'file'
path = '/dev/b'

[export.vm1]
device = 'vm1'
nbd = 'unix:vm1.sock'
";

/// A world with the two disks of [`STACK`].
fn world() -> Simulation {
    let world = Simulation::new(7);
    for path in ["/srv/a.img", "/dev/b"] {
        world.env().put_disk(path, Image::blank(DiskOptions::new(1 << 20)));
    }
    world
}

#[test]
fn requests_reach_the_disks_of_the_file() {
    let world = world();
    let env = world.env();
    let done = world.run(async move {
        let h = Hierarchy::build(plan(STACK, &lamina_layers::KINDS), env.clone()).await.unwrap();
        assert_eq!(h.node("vm1").unwrap().geometry().size, (2 << 20) - (64 << 10));
        assert_eq!(h.children("vm1"), ["pair"]);
        assert_eq!(h.children("a").len() + h.children("no such device").len(), 0);
        assert!(h.node("no such device").is_none());
        assert_eq!(h.exports()[0].device, "vm1");
        assert_eq!(
            h.tree(),
            "vm1      linear  1984KiB  ⇒ \"vm1\" nbd unix:/srv/vm1.sock\n\
             └─ pair  stripe  2MiB\n   ├─ a  file    1MiB\n   └─ b  file    1MiB\n"
        );
        let vm1 = h.node("vm1").unwrap();
        let bytes: Vec<u8> = (0..64 << 10).map(|i| (i >> 9) as u8).collect();
        vm1.submit(Io::write(0, Buf::from_vec(bytes.clone()), Durability::Fua)).await.unwrap();
        for (disk, half) in [("a", 0), ("b", 32 << 10)] {
            let read = Buf::zeroed(32 << 10);
            h.node(disk).unwrap().submit(Io::read(32 << 10, read.clone())).await.unwrap();
            assert!(read.to_vec() == bytes[half..half + (32 << 10)], "{disk}");
        }
        h.close().await.unwrap();
        let refused = vm1.submit(Io::read(0, Buf::zeroed(512))).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Offline);
    });
    assert!(done.is_ok());
}

#[test]
fn a_device_that_grows_makes_all_above_it_grow() {
    let world = world();
    let env = world.env();
    let done = world.run(async move {
        let h = Hierarchy::build(plan(STACK, &lamina_layers::KINDS), env.clone()).await.unwrap();
        let vm1 = h.node("vm1").unwrap();
        let resized = vm1.resized();
        for path in ["/srv/a.img", "/dev/b"] {
            env.disk(path).unwrap().resize(2 << 20);
        }
        assert_eq!(vm1.geometry().size, (2 << 20) - (64 << 10), "not before it is told");
        h.refresh();
        resized.await;
        assert_eq!(vm1.geometry().size, (4 << 20) - (64 << 10));
        h.close().await.unwrap();
    });
    assert!(done.is_ok());
}

#[test]
fn commands_reach_the_layer() {
    let text = "[device.lab]\ntype='fault'\nover='m'\n[device.m]\ntype='memory'\nsize='1MiB'\n";
    let world = Simulation::new(3);
    let env = world.env();
    let done = world.run(async move {
        let h = Hierarchy::build(plan(text, &lamina_layers::KINDS), env).await.unwrap();
        let lab = h.node("lab").unwrap();
        lab.submit(Io::flush()).await.unwrap();
        let set = Command { name: "set".into(), args: json!({"rules": [{"op": ["flush"]}]}) };
        lab.control(set).await.unwrap();
        assert_eq!(lab.submit(Io::flush()).await.unwrap_err().kind(), ErrorKind::Media);
    });
    assert!(done.is_ok());
}
