//! docs/members.md is true: every set of members on that page is made, and opened, and the report is printed there.

mod common;
#[path = "common/legs.rs"]
mod legs;

use common::{kinds, rewriting, root};
use lamina_block::{Buf, Durability, Env, Error, Io, Node, OpKind};
use lamina_graph::{Hierarchy, Plan};
use lamina_metadata::superblock::{self, COPY_LEN, Found, Place, Superblock, encode};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use std::fmt::Write;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

const SIZE: u64 = 4 << 20;
const LAST: u64 = SIZE - COPY_LEN;

/// A hierarchy of three members.
fn file(name: &str) -> String {
    let member = |n: &str| format!("[device.{n}]\ntype = \"file\"\npath = \"{n}.img\"\n\n");
    let members = ["a", "b", "c"].map(member).concat();
    format!(
        "[hierarchy]\nname = \"{name}\"\n\n{members}[device.disk]\ntype = \"stripe\"\nover = [\"a\", \"b\", \"c\"]\n\
         unit = \"64KiB\"\n\n[export.disk]\ndevice = \"disk\"\nnbd = \"unix:disk.sock\"\n"
    )
}

/// The same with the same bytes on every member.
fn legs_file(name: &str) -> String {
    file(name).replace("type = \"stripe\"", "type = \"legs\"").replace("unit = \"64KiB\"\n", "")
}

fn plan(text: &str) -> Plan {
    let mut kinds = kinds();
    kinds.push(legs::KIND);
    Plan::parse(text, "vm1.toml", Path::new("/srv"), &kinds).unwrap_or_else(|report| panic!("{report}"))
}

/// The disks of a case, and the file with which they are opened.
struct Lab {
    env: Rc<SimEnv>,
    make: fn(&str) -> String,
    file: String,
    degraded: bool,
}

fn path(name: &str) -> String {
    format!("/srv/{name}.img")
}

impl Lab {
    fn blank(&self, name: &str) {
        self.env.put_disk(path(name), Image::blank(DiskOptions::new(SIZE)));
    }

    /// A hierarchy called `name` on new disks.
    async fn create(&self, name: &str) {
        ["a", "b", "c"].iter().for_each(|disk| self.blank(disk));
        self.create_over(name).await;
    }

    async fn create_over(&self, name: &str) {
        let made = plan(&(self.make)(name)).create(Rc::clone(&self.env) as _, 1_700_000_000).await;
        made.unwrap_or_else(|report| panic!("{report}"));
    }

    fn node(&self, name: &str) -> Rc<Node> {
        let disk = self.env.disk(path(name)).expect("a disk");
        Node::new(name, "sim", Rc::clone(&self.env) as Rc<dyn Env>, disk)
    }

    async fn found(&self, name: &str) -> Found {
        superblock::read(&self.node(name)).await
    }

    async fn bytes(&self, name: &str, at: u64, len: usize) -> Vec<u8> {
        let buf = Buf::zeroed(len);
        self.node(name).submit(Io::read(at, buf.clone())).await.expect("a read");
        buf.to_vec()
    }

    async fn put(&self, name: &str, at: u64, bytes: Vec<u8>) {
        self.node(name).submit(Io::write(at, Buf::from_vec(bytes), Durability::Fua)).await.expect("a write");
    }

    /// One bit turns.
    async fn flip(&self, name: &str, at: u64) {
        let block = at - at % 512;
        let mut bytes = self.bytes(name, block, 512).await;
        bytes[(at - block) as usize] ^= 0x10;
        self.put(name, block, bytes).await;
    }

    async fn wipe(&self, name: &str, at: u64) {
        self.put(name, at, vec![0; COPY_LEN as usize]).await;
    }

    /// Writes superblocks that were changed, with good checksums.
    async fn change(&self, name: &str, places: &[Place], change: impl Fn(&mut Superblock)) {
        let mut superblock = self.found(name).await.newest().expect("a member").clone();
        change(&mut superblock);
        for place in places {
            superblock::write(&self.node(name), &superblock, *place).await.expect("a write");
        }
    }

    /// Changes bytes of a copy, and makes its checksum good.
    async fn forge(&self, name: &str, place: Place, change: impl Fn(&mut [u8])) {
        let superblock = self.found(name).await.newest().expect("a member").clone();
        let mut bytes = encode(&superblock, place);
        change(&mut bytes);
        bytes[16..20].fill(0);
        let checksum = crc32c::crc32c(&bytes[..4096]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        self.put(name, place.offset(&superblock.layout), bytes).await;
    }

    fn copy(&self, from: &str, to: &str) {
        let twin = self.env.disk(path(from)).expect("a disk").twin();
        self.env.put_disk(path(to), twin);
    }

    fn swap(&self, one: &str, other: &str) {
        self.copy(one, "tmp");
        self.copy(other, one);
        self.copy("tmp", other);
    }

    fn resize(&self, name: &str, size: u64) {
        self.env.disk(path(name)).expect("a disk").resize(size);
    }

    /// Reads of these places of `c` fail.
    fn unreadable(&self, places: &'static [u64]) {
        let fault = move |_, disk: &str, io: &Io| {
            let hit =
                disk.ends_with("c.img") && io.op.kind() == OpKind::Read && places.contains(&io.at.start);
            hit.then(|| Error::media("unreadable sector"))
        };
        self.env.set_fault(Some(Box::new(fault)));
    }

    /// The hierarchy is served without members, which are missing, and its exports change so many times.
    async fn serve_without(&self, names: &[&str], changes: usize) {
        for change in (0..=changes).rev() {
            let mut text = self.missing(names);
            if change > 0 {
                text = text.replace("disk.sock", &format!("disk{change}.sock"));
            }
            let served = Hierarchy::build_degraded(plan(&text), Rc::clone(&self.env) as _).await;
            served.unwrap_or_else(|report| panic!("{report}")).close().await.expect("closes");
        }
    }

    /// The file with paths for these members where there is nothing.
    fn missing(&self, names: &[&str]) -> String {
        let gone =
            |text: String, name: &&str| text.replace(&format!("{name}.img"), &format!("gone-{name}.img"));
        names.iter().fold(self.file.clone(), gone)
    }

    fn hide(&mut self, names: &[&str]) {
        self.file = self.missing(names);
    }

    fn edit(&mut self, from: &str, to: &str) {
        assert!(self.file.contains(from));
        self.file = self.file.replace(from, to);
    }
}

type Work<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
type Case = (&'static str, for<'a> fn(&'a mut Lab) -> Work<'a>);

macro_rules! cases {
    ($($title:literal: |$lab:ident| $work:block)*) => {
        &[$(($title, |$lab| Box::pin(async move { $work }))),*]
    };
}

const BOTH: &[Place] = &Place::ALL;
const FIRST: &[Place] = &[Place::First];

const CASES: &[Case] = cases! {
    "As it was created": |_lab| {}
    "The daemon was killed": |lab| { lab.change("a", BOTH, |s| s.clean = false).await; }
    "The header of the first copy is damaged": |lab| { lab.flip("c", 300).await; }
    "The description of the first copy is damaged": |lab| { lab.flip("c", 4100).await; }
    "The header of the second copy is damaged": |lab| { lab.flip("c", LAST + 300).await; }
    "The description of the second copy is damaged": |lab| { lab.flip("c", LAST + 4100).await; }
    "The first copy is zeroed": |lab| { lab.wipe("c", 0).await; }
    "The second copy is zeroed": |lab| { lab.wipe("c", LAST).await; }
    "A partition table lies over the first copy": |lab| { lab.put("c", 0, vec![0xee; 4096]).await; }
    "The first copy cannot be read": |lab| { lab.unreadable(&[0]); }
    "Neither copy can be read": |lab| { lab.unreadable(&[0, LAST]); }
    "Both copies are damaged, in different places": |lab| {
        lab.flip("c", 300).await;
        lab.flip("c", LAST + 4100).await;
    }
    "Both copies are zeroed": |lab| {
        lab.wipe("c", 0).await;
        lab.wipe("c", LAST).await;
    }
    "The first copy of every member is damaged": |lab| {
        for name in ["a", "b", "c"] {
            lab.flip(name, 300).await;
        }
    }
    "A bit of the version number has turned": |lab| { lab.flip("c", 8).await; }
    "Written by a later Lamina": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[8] = 2).await;
        }
    }
    "The second copy alone is of a later Lamina": |lab| {
        lab.forge("c", Place::Second, |bytes| bytes[8] = 2).await;
    }
    "A flag that this version does not have": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[23] = 0x80).await;
        }
    }
    "Number 7 of 3 members": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[72] = 7).await;
        }
    }
    "Data that begin in the superblock": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[80..88].fill(0)).await;
        }
    }
    "Data that end behind the end of the world": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[90..96].fill(0xff)).await;
        }
    }
    "A name with an escape sequence": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[128] = 0x1b).await;
        }
    }
    "The second copy was copied over the first": |lab| {
        let second = lab.bytes("c", LAST, COPY_LEN as usize).await;
        lab.put("c", 0, second).await;
    }
    "A device that is smaller than it was": |lab| { lab.resize("c", 3 << 20); }
    "A device of nothing": |lab| { lab.resize("c", 0); }
    "A device that has grown": |lab| { lab.resize("c", 6 << 20); }
    "A device that has grown, and its first copy is zeroed": |lab| {
        lab.wipe("c", 0).await;
        lab.resize("c", 6 << 20);
    }
    "A blank device in the place of a member": |lab| { lab.blank("c"); }
    "Blank devices, before create": |lab| { ["a", "b", "c"].iter().for_each(|disk| lab.blank(disk)); }
    "A device that is not there": |lab| { lab.edit("c.img", "gone.img"); }
    "Two paths are exchanged": |lab| { lab.swap("a", "c"); }
    "Three paths are shuffled": |lab| {
        lab.swap("a", "c");
        lab.swap("a", "b");
    }
    "A copy of one member in the place of another": |lab| { lab.copy("a", "c"); }
    "A member of another hierarchy": |lab| {
        lab.copy("a", "kept-a");
        lab.copy("b", "kept-b");
        lab.create("vm2").await;
        lab.copy("kept-a", "a");
        lab.copy("kept-b", "b");
    }
    "A member of another hierarchy of the same name": |lab| {
        lab.copy("a", "kept-a");
        lab.copy("b", "kept-b");
        lab.create("vm1").await;
        lab.copy("kept-a", "a");
        lab.copy("kept-b", "b");
    }
    "All are members of another hierarchy": |lab| { lab.create("vm2").await; }
    "One member missed a change": |lab| {
        lab.change("a", BOTH, |s| s.generation += 1).await;
        lab.change("b", BOTH, |s| s.generation += 1).await;
    }
    "Only one member has the last change": |lab| { lab.change("a", BOTH, |s| s.generation += 1).await; }
    "Every member has another generation": |lab| {
        lab.change("a", BOTH, |s| s.generation += 3).await;
        lab.change("b", BOTH, |s| s.generation += 2).await;
    }
    "A change was interrupted before all members had it": |lab| {
        lab.change("a", FIRST, |s| s.generation += 1).await;
    }
    "A change was interrupted when all members had it once": |lab| {
        for name in ["a", "b", "c"] {
            lab.change(name, FIRST, |s| s.generation += 1).await;
        }
    }
    "A change was interrupted, and tore the first copy of a member": |lab| {
        lab.change("a", FIRST, |s| s.generation += 1).await;
        lab.change("b", FIRST, |s| s.generation += 1).await;
        lab.flip("b", 300).await;
    }
    "Changed twice, apart from each other": |lab| {
        lab.change("a", BOTH, |s| s.generation += 1).await;
        lab.change("b", BOTH, |s| s.generation += 1).await;
        lab.change("c", BOTH, |s| {
            s.generation += 1;
            s.description = s.description.replace("disk.sock", "other.sock");
        }).await;
    }
    "Two devices have the same number": |lab| { lab.change("c", BOTH, |s| s.index = 0).await; }
    "create --force was interrupted before all members were new": |lab| {
        let old = lab.found("c").await.newest().expect("a member").clone();
        let second = lab.found("a").await.newest().expect("a member").clone();
        lab.create_over("vm1").await;
        superblock::write(&lab.node("c"), &old, Place::First).await.expect("a write");
        superblock::write(&lab.node("c"), &old, Place::Second).await.expect("a write");
        superblock::write(&lab.node("a"), &second, Place::Second).await.expect("a write");
        let mut other = second;
        other.name = "b".into();
        other.index = 1;
        superblock::write(&lab.node("b"), &other, Place::Second).await.expect("a write");
    }
    "create was interrupted on new devices": |lab| {
        for name in ["a", "b", "c"] {
            lab.wipe(name, LAST).await;
        }
        lab.wipe("c", 0).await;
    }
    "The file has other exports": |lab| { lab.edit("disk.sock", "other.sock"); }
    "The file has another stripe unit": |lab| { lab.edit("64KiB", "128KiB"); }
    "The file has one device more": |lab| {
        lab.file.push_str("\n[device.part]\ntype = \"linear\"\nover = \"disk\"\n");
    }
    "The file leaves a member out": |lab| {
        lab.edit("[device.c]\ntype = \"file\"\npath = \"c.img\"\n\n", "");
        lab.edit(", \"c\"]", "]");
    }
    "The file has another name for the hierarchy": |lab| { lab.edit("name = \"vm1\"", "name = \"vm9\""); }
    "A blank device, and the paths of the others are exchanged": |lab| {
        lab.swap("a", "b");
        lab.blank("c");
    }
};

/// Members of a hierarchy that does without some of them.
const LEGS: &[Case] = cases! {
    "A member is missing": |lab| { lab.hide(&["c"]); }
    "A member is missing, and it is served with --degraded": |lab| {
        lab.hide(&["c"]);
        lab.degraded = true;
    }
    "Two of three are missing, and it is served with --degraded": |lab| {
        lab.hide(&["a", "c"]);
        lab.degraded = true;
    }
    "All are missing, and it is served with --degraded": |lab| {
        lab.hide(&["a", "b", "c"]);
        lab.degraded = true;
    }
    "A member has lost both superblocks": |lab| {
        lab.wipe("c", 0).await;
        lab.flip("c", LAST + 300).await;
    }
    "A member has lost both superblocks, and it is served with --degraded": |lab| {
        lab.wipe("c", 0).await;
        lab.flip("c", LAST + 300).await;
        lab.degraded = true;
    }
    "A blank device in the place of a member": |lab| { lab.blank("c"); }
    "A member was written by a later Lamina, and it is served with --degraded": |lab| {
        for place in Place::ALL {
            lab.forge("c", place, |bytes| bytes[8] = 2).await;
        }
        lab.degraded = true;
    }
    "A member missed a change without being evicted, and it is served with --degraded": |lab| {
        lab.change("a", BOTH, |s| s.generation += 1).await;
        lab.change("b", BOTH, |s| s.generation += 1).await;
        lab.degraded = true;
    }
    "A member that is evicted is missing": |lab| {
        lab.serve_without(&["c"], 0).await;
        lab.hide(&["c"]);
    }
    "A member that is evicted is there again": |lab| { lab.serve_without(&["c"], 2).await; }
    "Two members that are evicted are there again": |lab| { lab.serve_without(&["a", "c"], 1).await; }
    "A member is evicted, and another one is missing": |lab| {
        lab.serve_without(&["c"], 0).await;
        lab.hide(&["b"]);
    }
    "The only member that is not out is missing": |lab| {
        lab.serve_without(&["b", "c"], 1).await;
        lab.hide(&["a"]);
    }
    "A blank device in the place of a member that is evicted": |lab| {
        lab.serve_without(&["c"], 0).await;
        lab.blank("c");
    }
    "An older copy of a member that is evicted": |lab| {
        lab.copy("c", "old");
        lab.edit("disk.sock", "other.sock");
        lab.serve_without(&[], 0).await;
        lab.serve_without(&["c"], 0).await;
        lab.copy("old", "c");
    }
    "A copy of another member in the place of one that is evicted": |lab| {
        lab.serve_without(&["c"], 0).await;
        lab.copy("a", "c");
    }
    "A member of another hierarchy in the place of one that is evicted": |lab| {
        lab.serve_without(&["c"], 0).await;
        lab.copy("a", "kept-a");
        lab.copy("b", "kept-b");
        lab.create("vm2").await;
        lab.copy("kept-a", "a");
        lab.copy("kept-b", "b");
    }
    "Two halves went on apart, as often": |lab| {
        lab.serve_without(&["c"], 1).await;
        lab.serve_without(&["a", "b"], 1).await;
    }
    "Two halves went on apart, one of them for longer": |lab| {
        lab.serve_without(&["a", "b"], 3).await;
        lab.serve_without(&["c"], 0).await;
    }
    "Two halves went on apart, and one was taken away": |lab| {
        lab.serve_without(&["a", "b"], 3).await;
        lab.serve_without(&["c"], 0).await;
        lab.hide(&["c"]);
    }
    "Taking a member in again was interrupted": |lab| {
        lab.serve_without(&["c"], 0).await;
        for name in ["a", "b"] {
            lab.change(name, FIRST, |s| {
                s.generation += 1;
                let inside = s.description.split("# out").next().expect("a part").to_owned();
                s.description = inside;
            }).await;
        }
    }
    "A member has shrunk": |lab| { lab.resize("c", 3 << 20); }
    "A member has shrunk, and it is served with --degraded": |lab| {
        lab.resize("c", 3 << 20);
        lab.degraded = true;
    }
    "A member was cut short, and has its size back": |lab| { lab.wipe("c", LAST).await; }
    "Two of three were cut short, and have their sizes back": |lab| {
        lab.wipe("a", LAST).await;
        lab.wipe("c", LAST).await;
    }
    "All were cut short, and have their sizes back": |lab| {
        for name in ["a", "b", "c"] {
            lab.wipe(name, LAST).await;
        }
    }
    "A member was cut short, and the others are evicted": |lab| {
        lab.serve_without(&["a", "b"], 1).await;
        lab.wipe("c", LAST).await;
    }
    "A member that is evicted was cut short, and has its size back": |lab| {
        lab.serve_without(&["c"], 1).await;
        lab.wipe("c", LAST).await;
    }
    "An older copy of a member, cut short, and it is served with --degraded": |lab| {
        lab.copy("c", "old");
        lab.edit("disk.sock", "other.sock");
        lab.serve_without(&[], 0).await;
        lab.copy("old", "c");
        lab.wipe("c", LAST).await;
        lab.degraded = true;
    }
    "A change was interrupted, and a member was cut short": |lab| {
        for name in ["a", "b", "c"] {
            lab.change(name, FIRST, |s| s.generation += 1).await;
        }
        lab.wipe("c", LAST).await;
    }
};

/// The report of the open, and whether an accepted hierarchy is in order afterwards.
fn said(case: &Case, make: fn(&str) -> String) -> String {
    let world = Simulation::new(7);
    let (env, work) = (world.env(), case.1);
    let done = world.run(async move {
        let mut lab = Lab { env: Rc::clone(&env), make, file: make("vm1"), degraded: false };
        lab.create("vm1").await;
        work(&mut lab).await;
        let before = contents(&env).await;
        let opened = match lab.degraded {
            true => Hierarchy::build_degraded(plan(&lab.file), Rc::clone(&env) as _).await,
            false => Hierarchy::build(plan(&lab.file), Rc::clone(&env) as _).await,
        };
        match opened {
            Err(report) => {
                assert!(report.has_errors());
                assert!(contents(&env).await == before, "a refusal changed something");
                format!("refused\n{report}")
            }
            Ok(hierarchy) => {
                let said = hierarchy.warnings().to_string();
                hierarchy.close().await.expect("closes");
                env.set_fault(None);
                let again = Hierarchy::build(plan(&lab.file), Rc::clone(&env) as _).await;
                let again =
                    again.unwrap_or_else(|report| panic!("what was accepted is accepted again: {report}"));
                let left = again.warnings().to_string();
                let lasts = ["has grown by", "goes on without it", "is not taken in again"];
                let lasting = |line: &str| lasts.iter().any(|words| line.contains(words));
                assert!(left.lines().all(lasting), "{left}");
                again.close().await.expect("closes");
                format!("accepted\n{said}")
            }
        }
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"))
}

/// The superblock areas of all disks, as far as they can be read.
async fn contents(env: &Rc<SimEnv>) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    for disk in env.disks() {
        let node = Node::new("disk", "sim", Rc::clone(env) as Rc<dyn Env>, disk);
        for at in [0, LAST] {
            let buf = Buf::zeroed(COPY_LEN as usize);
            let read = node.submit(Io::read(at, buf.clone())).await;
            all.push(read.is_ok().then(|| buf.to_vec()));
        }
    }
    all
}

fn page() -> String {
    let mut out = String::from(
        "# Messages about members\n\nEvery set of members on this page is made by a test, opened as `lamina serve` \
         does, and its report is compared with the one printed here (`LAMINA_REWRITE=1 cargo test -p lamina-graph \
         --test members` writes the page anew). A hierarchy `vm1` has three members, `a`, `b` and `c`, and a stripe \
         over them. An accepted set is repaired while it is opened, and causes no message the next time. A refusal \
         changes nothing on any device.\n\n[formats/superblock.md](formats/superblock.md) describes the contents of a \
         member.\n\n| what happened | message |\n|---|---|\n",
    );
    table(&mut out, CASES, file);
    out += "\n## Redundant members\n\nThe same with a device `disk` that has the same bytes on \
            every member, and all of them as long as one is there. A member is *evicted* if the others say that the \
            hierarchy went on without it; a member that is only missing might have the last writes.\n\n\
            | what happened | message |\n|---|---|\n";
    table(&mut out, LEGS, legs_file);
    out
}

fn table(out: &mut String, cases: &[Case], make: fn(&str) -> String) {
    for (n, case) in cases.iter().enumerate() {
        let said = said(case, make);
        let (verdict, words) = said.split_once('\n').expect("a verdict");
        let words = words.trim_end().replace('|', "\\|").replace('\n', "<br>");
        let words = if words.is_empty() { String::new() } else { format!("<br>{words}") };
        writeln!(out, "| {}. {} | *{verdict}*{words} |", n + 1, case.0).unwrap();
    }
}

#[test]
fn every_set_of_members_gets_the_words_on_the_page() {
    assert!(CASES.len() >= 30);
    let now = page();
    let path = root().join("docs/members.md");
    if rewriting() {
        return std::fs::write(path, now).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    for (said, printed) in now.lines().zip(page.lines()) {
        assert_eq!(said, printed, "LAMINA_REWRITE=1 writes the page anew");
    }
    assert_eq!(now.len(), page.len());
}
