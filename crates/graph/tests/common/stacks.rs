//! Hierarchy files that run the gauntlet: read, checked and built as any file is, over the disks of a rig.
#![allow(dead_code, reason = "each test uses a part of it")]

mod caches;

pub use caches::*;

use lamina_block::{
    Build, Config, Error, Geometry, Io, Kind, Layer, Level, Made, Manage, Node, Passthrough, Pending, Result,
    Step,
};
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::{Rig, Subject};
// The allocator of tests.
use lamina_testing as _;
use serde::Deserialize;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::rc::Rc;

thread_local! {
    /// The rig whose disks the devices of type `disk` are, while a file is built.
    static RIG: RefCell<Option<Rc<Rig>>> = const { RefCell::new(None) };
}

/// A disk of the rig: the gauntlet replaces it, enlarges it and makes it fail as it does with its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    number: usize,
}

struct Disk(Rc<Node>);

impl Config for Keys {
    const KIND: &'static str = "disk";
    const SUMMARY: &'static str = "a disk of the gauntlet's";
    const CHILDREN: RangeInclusive<usize> = 0..=0;

    fn build(self, _: Build) -> Pending<Made> {
        let disk = RIG.with_borrow(|rig| rig.as_ref().map(|rig| rig.disk(self.number)));
        Box::pin(async move {
            let disk = disk.ok_or_else(|| Error::offline("there is no rig"))?;
            Ok(Rc::new(Disk(disk)) as Made)
        })
    }
}

impl Layer for Disk {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.0))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.0)
    }
}

impl Manage for Disk {}

fn kinds() -> Vec<Kind> {
    [&[Kind::of::<Keys>()], &lamina_layers::KINDS[..]].concat()
}

/// The device `top` of the file `text`, which is read once and built very often.
fn stack(name: &str, text: impl Into<String>) -> Subject {
    let (text, plan) = (text.into(), OnceCell::new());
    let parse = move || Plan::parse(&text, "subject", Path::new(""), &kinds());
    Subject::new(name, move |rig| {
        build(rig, plan.get_or_init(|| parse().unwrap_or_else(|report| panic!("{report}"))).clone())
    })
}

async fn build(rig: Rc<Rig>, plan: Plan) -> Result<Rc<Node>> {
    let failed = |report| Error::invalid(format!("{report}"));
    rig.env().put_file("/key", b"a key");
    if plan.devices().iter().any(|device| device.kind.traits.keeps) {
        return build_kept(&rig, &plan).await;
    }
    RIG.set(Some(Rc::clone(&rig)));
    let hierarchy = Hierarchy::build(plan, rig.env()).await;
    RIG.set(None);
    let hierarchy = hierarchy.map_err(failed)?;
    hierarchy.nodes().iter().for_each(|node| rig.adopt(node));
    hierarchy.node("top").ok_or_else(|| Error::invalid("there is no device \"top\""))
}

/// A graph with layers that remember something: the rig gives them what a persistent hierarchy would.
async fn build_kept(rig: &Rc<Rig>, plan: &Plan) -> Result<Rc<Node>> {
    let mut nodes: HashMap<&str, Rc<Node>> = HashMap::new();
    for device in plan.devices() {
        let mut children: Vec<_> = device.over.iter().map(|name| Rc::clone(&nodes[name.as_str()])).collect();
        let metadata = if device.has_metadata { children.pop() } else { None };
        let node = match device.keys["number"].as_u64() {
            Some(number) if device.kind.name == Keys::KIND => rig.disk(number as usize),
            _ => {
                let keys = device.keys.clone();
                rig.build_with(&device.kind, &device.name, keys, children, metadata).await?
            }
        };
        nodes.insert(&device.name, node);
    }
    nodes.remove("top").ok_or_else(|| Error::invalid("there is no device \"top\""))
}

/// Keys of a volume that is made and opened fast.
const CRYPT: &str = "key-file = '/key'\nheader-size = '320KiB'\nsector-size = 512\nkdf-memory = '32KiB'";

/// A layer by itself, over as many disks as its kind asks for at least unless this page knows better.
fn single(kind: &Kind) -> Subject {
    let (disks, keys) = match kind.name {
        "concat" => (3, ""),
        "crypt" => (1, CRYPT),
        "delay" => (1, "write = '300us'\nparallel = 3"),
        "emulate" => (1, "model = 'cheetah-15k4'\nk = 0.2"),
        "fingerprint" => (1, "region = '16KiB'\nhash = 'md5'"),
        "integrity" => (1, "region = '16KiB'"),
        "linear" => (1, "offset = '16KiB'\nsize = '64KiB'"),
        "memory" | "null" => (0, "size = '256KiB'"),
        "mirror" => (2, "region = '16KiB'"),
        "parity" => (3, "region = '16KiB'\nunit = '4KiB'"),
        "record" => (1, "log = 'log'\nlog-size = '64MiB'\nbuffer = '64KiB'"),
        "redo" => (1, "metadata = 'log'\n[device.log]\ntype = 'disk'\nnumber = 1"),
        "reservation" => (1, "vault = '/vault'\nvolume = 'vm1'\nhost = 'a'"),
        "schedule" => (1, "policy = 'deadline'\ndepth = 2"),
        "snapshot" => (1, "extent = '4KiB'\nsize = '512KiB'"),
        "stripe" => (3, "unit = '4KiB'"),
        _ => (*kind.children.start(), ""),
    };
    let over: Vec<String> = (0..disks).map(|i| format!("d{i}")).collect();
    let over = if disks > 0 { format!("over = {over:?}") } else { String::new() };
    let mut text = format!("[device.top]\ntype = '{}'\n{over}\n{keys}\n", kind.name);
    (0..disks).for_each(|i| text += &format!("[device.d{i}]\ntype = 'disk'\nnumber = {i}\n"));
    let subject = stack(kind.name, text);
    match kind.name {
        "redo" => subject.disks_of(320 << 10),
        "sequentialize" => subject.disks_of(640 << 10),
        "file" | "rbd" => {
            let key = if kind.name == "file" { "path = 'disk0'" } else { "image = 'vms/disk0'" };
            let text = format!("[device.top]\ntype = '{}'\n{key}", kind.name);
            let plan = Plan::parse(&text, "f", Path::new(""), &kinds());
            let plan = plan.unwrap_or_else(|report| panic!("{report}"));
            Subject::new(kind.name, move |rig| {
                rig.sim_disk(0);
                build(rig, plan.clone())
            })
        }
        "memory" => subject.volatile(),
        "null" => subject.forgetful(),
        "snapshot" => subject.disks_of(2 << 20),
        "crypt" => subject.disks_of(448 << 10),
        "fingerprint" | "integrity" => subject.disks_of(384 << 10),
        "mirror" | "parity" => subject.disks_of(256 << 10),
        _ => subject,
    }
}

/// Two parts of a disk that overlap: a write to one changes the other. The gauntlet must say so.
pub fn overlapping_parts() -> Subject {
    stack("overlapping parts", STRIPE_OVER_SHARED_PARTS.replace("offset = \"32KiB\"", "offset = \"28KiB\""))
}

/// A part of a stripe over three disks.
pub fn linear_over_stripe() -> Subject {
    stack("linear over stripe", LINEAR_OVER_STRIPE)
}

const LINEAR_OVER_STRIPE: &str = r#"
[device.top]
type = "linear"
over = "striped"
offset = "12KiB"

[device.striped]
type = "stripe"
over = ["a", "b", "c"]
unit = "8KiB"

[device]
a = { type = "disk", number = 0 }
b = { type = "disk", number = 1 }
c = { type = "disk", number = 2 }
"#;

/// A partition that lies on two disks.
pub fn partition_over_concat() -> Subject {
    stack("partition over concat", PARTITION_OVER_CONCAT).disks_of(2 << 20)
}

const PARTITION_OVER_CONCAT: &str = r#"
[device]
top = { type = "linear", over = "part", offset = "1920KiB", size = "256KiB" }
part = { type = "view", over = "table", name = "b" }
table = { type = "partition", over = "joined", partitions = [
    { name = "a", size = "1MiB" },
    { name = "b", size = "3MiB" },
] }
joined = { type = "concat", over = ["d0", "d1"] }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// Stripes of different widths and units end to end, with a short piece between them.
pub fn concat_over_stripes() -> Subject {
    stack("concat over stripes", CONCAT_OVER_STRIPES)
}

const CONCAT_OVER_STRIPES: &str = r#"
[device.top]
type = "concat"
over = ["narrow", "piece", "wide"]

[device.narrow]
type = "stripe"
over = ["a", "b"]
unit = "4KiB"

[device.piece]
type = "linear"
over = "c"
offset = "4KiB"
size = "20KiB"

[device.wide]
type = "stripe"
over = ["d", "e", "f"]
unit = "16KiB"

[device]
a = { type = "disk", number = 0 }
b = { type = "disk", number = 1 }
c = { type = "disk", number = 2 }
d = { type = "disk", number = 3 }
e = { type = "disk", number = 4 }
f = { type = "disk", number = 5 }
"#;

/// A stripe over two devices, each of parts of the same two disks: everything is shared.
pub fn stripe_over_shared_parts() -> Subject {
    stack("stripe over shared parts", STRIPE_OVER_SHARED_PARTS)
}

const STRIPE_OVER_SHARED_PARTS: &str = r#"
[device.top]
type = "stripe"
over = ["left", "right"]
unit = "8KiB"

[device]
left = { type = "concat", over = ["a-front", "b-back"] }
right = { type = "concat", over = ["b-front", "a-back"] }
a-front = { type = "linear", over = "a", size = "32KiB" }
a-back = { type = "linear", over = "a", offset = "32KiB" }
b-front = { type = "linear", over = "b", size = "28KiB" }
b-back = { type = "linear", over = "b", offset = "28KiB" }
a = { type = "disk", number = 0 }
b = { type = "disk", number = 1 }
"#;

/// Eight layers one over the other, those that keep requests among those that hand them on.
pub fn tower() -> Subject {
    stack("tower", TOWER)
}

const TOWER: &str = r#"
[device]
top = { type = "linear", over = "seven", offset = "8KiB" }
seven = { type = "template", over = "six" }
six = { type = "concat", over = ["five", "beside"] }
five = { type = "delay", over = "four", write = "300us", parallel = 3 }
four = { type = "stripe", over = ["three", "three-too"], unit = "4KiB" }
three = { type = "fault", over = "two" }
three-too = { type = "linear", over = "d1", offset = "4KiB" }
two = { type = "record", over = "one", log = "log", log-size = "64MiB", buffer = "64KiB" }
one = { type = "linear", over = "d0", offset = "4KiB" }
beside = { type = "disk", number = 2 }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// A thin volume over a stripe.
pub fn snapshot_over_stripe() -> Subject {
    stack("snapshot over stripe", SNAPSHOT_OVER_STRIPE).disks_of(1 << 20)
}

const SNAPSHOT_OVER_STRIPE: &str = r#"
[device]
top = { type = "snapshot", over = "striped", extent = "8KiB", size = "1MiB" }
striped = { type = "stripe", over = ["d0", "d1"], unit = "4KiB" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// A partition of a thin volume over two disks end to end.
pub fn partition_over_snapshot_over_concat() -> Subject {
    stack("partition over snapshot over concat", PARTITION_OVER_SNAPSHOT_OVER_CONCAT).disks_of(2 << 20)
}

const PARTITION_OVER_SNAPSHOT_OVER_CONCAT: &str = r#"
[device]
top = { type = "linear", over = "part", offset = "960KiB", size = "256KiB" }
part = { type = "view", over = "table", name = "b" }
table = { type = "partition", over = "thin", partitions = [
    { name = "a", size = "1MiB" },
    { name = "b", size = "2MiB" },
] }
thin = { type = "snapshot", over = "joined", extent = "4KiB", size = "8MiB" }
joined = { type = "concat", over = ["d0", "d1"] }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// A thin volume over a thin volume, the upper one's map on a device of its own.
pub fn snapshot_over_snapshot() -> Subject {
    stack("snapshot over snapshot", SNAPSHOT_OVER_SNAPSHOT).disks_of(2 << 20)
}

const SNAPSHOT_OVER_SNAPSHOT: &str = r#"
[device]
top = { type = "snapshot", over = "below", metadata = "maps", extent = "4KiB", size = "512KiB" }
below = { type = "snapshot", over = "d0", extent = "8KiB", size = "1MiB" }
maps = { type = "linear", over = "d1" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// Eight layers one over the other, of those that move blocks and those that do not.
pub fn tower_of_maps() -> Subject {
    stack("tower of maps", TOWER_OF_MAPS).disks_of(2 << 20)
}

const TOWER_OF_MAPS: &str = r#"
[device]
top = { type = "linear", over = "seven", offset = "8KiB", size = "256KiB" }
seven = { type = "snapshot", over = "six", extent = "4KiB", size = "512KiB" }
six = { type = "template", over = "five" }
five = { type = "view", over = "four", name = "a" }
four = { type = "partition", over = "three", partitions = [{ name = "a", size = "2MiB" }] }
three = { type = "concat", over = ["two", "d2"] }
two = { type = "stripe", over = ["one", "d1"], unit = "16KiB" }
one = { type = "fault", over = "d0" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
"#;

/// RAID 1+0: a stripe over mirrors.
pub fn stripe_over_mirrors() -> Subject {
    stack("stripe over mirrors", STRIPE_OVER_MIRRORS).disks_of(192 << 10)
}

const STRIPE_OVER_MIRRORS: &str = r#"
[device]
top = { type = "stripe", over = ["left", "right"], unit = "8KiB" }
left = { type = "mirror", over = ["d0", "d1"], region = "16KiB" }
right = { type = "mirror", over = ["d2", "d3"], region = "16KiB" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
d3 = { type = "disk", number = 3 }
"#;

/// A thin volume over a parity over encrypted disks.
pub fn snapshot_over_parity_over_crypt() -> Subject {
    let secret = |n: u8| {
        format!(
            "[device.s{n}]\ntype = 'crypt'\nover = 'd{n}'\n{CRYPT}\n[device.d{n}]\ntype = 'disk'\nnumber = {n}\n"
        )
    };
    let text = SNAPSHOT_OVER_PARITY.to_owned() + &(0..3).map(secret).collect::<String>();
    stack("snapshot over parity over crypt", text).disks_of(1280 << 10)
}

const SNAPSHOT_OVER_PARITY: &str = r#"
[device.top]
type = "snapshot"
over = "array"
extent = "8KiB"
size = "512KiB"

[device.array]
type = "parity"
over = ["s0", "s1", "s2"]
unit = "4KiB"
region = "16KiB"
"#;

/// A mirror whose legs know which of their blocks are wrong.
pub fn mirror_over_integrity() -> Subject {
    stack("mirror over integrity", MIRROR_OVER_INTEGRITY).disks_of(448 << 10)
}

const MIRROR_OVER_INTEGRITY: &str = r#"
[device]
top = { type = "mirror", over = ["a", "b"], region = "16KiB" }
a = { type = "integrity", over = "d0", region = "16KiB" }
b = { type = "integrity", over = "d1", region = "16KiB" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// A parity whose devices know which of their blocks are wrong.
pub fn parity_over_integrity() -> Subject {
    stack("parity over integrity", PARITY_OVER_INTEGRITY).disks_of(448 << 10)
}

const PARITY_OVER_INTEGRITY: &str = r#"
[device]
top = { type = "parity", over = ["a", "b", "c"], unit = "8KiB", region = "16KiB" }
a = { type = "integrity", over = "d0", region = "16KiB" }
b = { type = "integrity", over = "d1", region = "16KiB" }
c = { type = "integrity", over = "d2", region = "16KiB" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
"#;

/// Checksums of what a mirror gives, which asks it for its other copy.
pub fn integrity_over_mirror() -> Subject {
    stack("integrity over mirror", INTEGRITY_OVER_MIRROR).disks_of(512 << 10)
}

const INTEGRITY_OVER_MIRROR: &str = r#"
[device]
top = { type = "integrity", over = "m", region = "16KiB" }
m = { type = "mirror", over = ["d0", "d1"], region = "16KiB" }
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
"#;

/// Checksums of what a parity gives, through a cipher.
pub fn integrity_over_crypt_over_parity() -> Subject {
    let text = INTEGRITY_OVER_PARITY.replace("CRYPT", CRYPT);
    stack("integrity over crypt over parity", text).disks_of(512 << 10)
}

const INTEGRITY_OVER_PARITY: &str = r#"
[device.top]
type = "integrity"
over = "c"
region = "16KiB"
[device.c]
type = "crypt"
over = "p"
CRYPT
[device.p]
type = "parity"
over = ["d0", "d1", "d2"]
unit = "8KiB"
region = "16KiB"
[device]
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
"#;

/// A log of full stripes, encrypted, with snapshots.
pub fn snapshot_over_crypt_over_sequentialize() -> Subject {
    let text = SNAPSHOT_OVER_LOG.replace("CRYPT", CRYPT).replace("MODE", "mode = 'log'");
    stack("snapshot over crypt over sequentialize", text).disks_of(3 << 20)
}

/// The same with homes beside the log, which is small enough for blocks to go home.
pub fn snapshot_over_crypt_over_homes() -> Subject {
    let mode = "mode = 'home'\nreserve = 20\nsmall = '16KiB'";
    let text = SNAPSHOT_OVER_LOG.replace("CRYPT", CRYPT).replace("MODE", mode);
    stack("snapshot over crypt over homes", text).disks_of(3 << 20)
}

const SNAPSHOT_OVER_LOG: &str = r#"
[device.top]
type = "snapshot"
over = "c"
extent = "8KiB"
size = "512KiB"
[device.c]
type = "crypt"
over = "l"
CRYPT
[device.l]
type = "sequentialize"
over = "p"
MODE
[device.p]
type = "parity"
over = ["d0", "d1", "d2"]
unit = "8KiB"
region = "16KiB"
[device]
d0 = { type = "disk", number = 0 }
d1 = { type = "disk", number = 1 }
d2 = { type = "disk", number = 2 }
"#;

/// The hierarchy of the paper (its Figure 11): `examples/figure11.toml`, smaller.
pub fn figure_11() -> Subject {
    let disk = |n: u8| {
        format!(
            "[device.d{n}]\ntype = 'disk'\nnumber = {n}\n[device.s{n}]\ntype = 'crypt'\nover = 'd{n}'\n{CRYPT}\n\
             [device.t{n}]\ntype = 'partition'\nover = 's{n}'\npartitions = [{{ name = 'data', size = '1MiB' }}]\n\
             [device.p{n}]\ntype = 'view'\nover = 't{n}'\nname = 'data'\n"
        )
    };
    let text = SNAPSHOT_OVER_PARTS.to_owned() + &(0..2).map(disk).collect::<String>();
    stack("figure 11", text).disks_of(2560 << 10)
}

const SNAPSHOT_OVER_PARTS: &str = r#"
[device.top]
type = "snapshot"
over = "striped"
extent = "8KiB"
size = "512KiB"

[device.striped]
type = "stripe"
over = ["p0", "p1"]
unit = "4KiB"
"#;

/// The stacks whose metadata a crash may leave in different states, by level.
pub fn of_maps() -> [Subject; 6] {
    [
        snapshot_over_stripe(),
        partition_over_snapshot_over_concat(),
        snapshot_over_snapshot(),
        tower_of_maps(),
        snapshot_over_parity_over_crypt(),
        figure_11(),
    ]
}

/// Every kind of layer by itself, and the stacks.
pub fn all() -> Vec<Subject> {
    let stacks = [
        partition_over_concat(),
        linear_over_stripe(),
        concat_over_stripes(),
        stripe_over_shared_parts(),
        tower(),
        stripe_over_mirrors(),
        mirror_over_integrity(),
        parity_over_integrity(),
        integrity_over_mirror(),
        integrity_over_crypt_over_parity(),
        accelerated("write-back"),
        accelerated("write-through"),
        two_on_one_flash(),
        one_store_away(),
        epochs(),
        crypt_over_tier_over_parity(),
        snapshot_over_tier_over_sequentialize(),
        snapshot_over_crypt_over_sequentialize(),
        snapshot_over_crypt_over_homes(),
    ];
    // A layer that shares another's state is nothing by itself, a table of partitions or a flash cannot be written, and
    // a zoned device is simulated where its user is tested.
    let alone = |kind: &&Kind| !kind.traits.shares && !["partition", "flash", "zoned"].contains(&kind.name);
    let maps = of_maps().into_iter().enumerate().map(|(n, stack)| stack.level(Level::ALL[n % 3]));
    lamina_layers::KINDS.iter().filter(alone).map(single).chain(stacks).chain(maps).collect()
}
