//! A change moves the data of a persistent hierarchy to other members, and ends before every change of any
//! disk: the process dies, or the power fails. The file that the daemon was started with opens the disks that
//! are left, whichever end of the change it describes, as the newest hierarchy that is whole; also if the
//! power fails while they are opened.
//!
//! Members that were let go keep the description from before: only the others know the one that counts.

#[path = "common/volume.rs"]
mod volume;

use lamina_block::{Env, Io, Node};
use lamina_graph::{Hierarchy, members_of, with_paths};
use lamina_layers::KINDS;
use lamina_metadata::member::records;
use lamina_metadata::superblock::{self, Place, Superblock, Uuid};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use volume::{SIZE, file, get, go, go_to, plan, put, shape, stamp, world};

/// Blocks at the beginning and near the end of the volume.
const BLOCKS: [u64; 4] = [0, 7, (5 << 19) / 512, (5 << 19) / 512 + 9];

/// The volume on a device that moves its data to another one when its file names that.
fn on(member: &str) -> String {
    let moves = format!("[device.moves]\ntype='migrate'\nover='{member}'\n");
    file(&[member], &(moves + "[device.vm1]\ntype='linear'\nover='moves'\n"))
}

/// The volume on a device alone.
fn alone(member: &str) -> String {
    file(&[member], &format!("[device.vm1]\ntype='linear'\nover='{member}'\n"))
}

/// The volume over members that share it, or have it several times.
fn over(kind: &str, members: &[&str]) -> String {
    file(members, &format!("[device.vm1]\ntype='{kind}'\nover={members:?}\n"))
}

/// The disks after a death, and the reports of the process until then.
struct Crash {
    images: Images,
    now: Now,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Now {
    /// How many changes were done.
    step: usize,
    /// The last round of writes that was flushed.
    round: u64,
    /// The last generation that was served.
    served: u64,
}

type Crashes = Rc<RefCell<Vec<Crash>>>;

/// Takes what is left by every kind of death before every change of a disk from now on.
fn watch(sim: &Rc<SimEnv>, now: &Rc<Cell<Now>>) -> Crashes {
    let (eye, now, crashes) = (Rc::downgrade(sim), Rc::clone(now), Crashes::default());
    let into = Rc::clone(&crashes);
    sim.observe(Some(Rc::new(move || {
        let Some(env) = eye.upgrade() else { return };
        let seed = env.tick();
        let left = [env.orphans(), env.images(Loss::All, 0), env.images(Loss::Torn, seed)];
        into.borrow_mut().extend(left.into_iter().map(|images| Crash { images, now: now.get() }));
    })));
    crashes
}

async fn put_all(h: &Hierarchy, round: u64) {
    let export_node = h.export_node("vm1").expect("an export node");
    for n in BLOCKS {
        put(&export_node, n, round).await;
    }
    export_node.submit(Io::flush()).await.expect("a flush");
}

/// The generation that the members carry.
fn generation(h: &Hierarchy) -> u64 {
    let of = |node: &Rc<Node>| node.info()["member"]["generation"].as_u64();
    h.nodes().iter().filter_map(of).max().expect("a member")
}

/// Changes the hierarchy from each file to the next, and takes what is left at every moment. After each
/// change the file that the daemon is started with is replaced, if it is `written`.
fn crashes(files: &[String], written: bool) -> Vec<Crash> {
    let world = world();
    world.env().put_disk("/srv/d.img", Image::blank(DiskOptions::new(SIZE)));
    let (sim, files) = (world.env(), files.to_vec());
    let done = world.run(async move {
        let env: Rc<dyn Env> = sim.clone();
        plan(&files[0]).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&files[0]), Rc::clone(&env)).await;
        let mut h = h.unwrap_or_else(|e| panic!("{e}"));
        put_all(&h, 1).await;
        let now = Rc::new(Cell::new(Now { step: 0, round: 1, served: generation(&h) }));
        let crashes = watch(&sim, &now);
        for (step, text) in files.iter().enumerate().skip(1) {
            h = go(h, text, &env).await.unwrap_or_else(|e| panic!("{e}"));
            now.set(Now { step, served: generation(&h), ..now.get() });
            if written {
                assert!(h.confirm(&plan(text)).await.expect("the members can be written"));
            }
            // Writes that are acknowledged now are only on the new members.
            put_all(&h, step as u64 + 1).await;
            now.set(Now { round: step as u64 + 1, served: generation(&h), ..now.get() });
        }
        h.close().await.expect("closes");
        sim.observe(None);
        crashes.take()
    });
    done.expect("it does not hang")
}

/// All whole copies of superblocks.
fn copies(images: &Images) -> Vec<Superblock> {
    let world = Simulation::from_images(5, images);
    let sim = world.env();
    let found = world.run(async move {
        let mut copies = Vec::new();
        for disk in sim.disks() {
            let node = Node::new(disk.name(), "sim", Rc::clone(&sim) as Rc<dyn Env>, Rc::clone(&disk) as _);
            copies.extend(superblock::read(&node).await.whole().cloned());
        }
        copies
    });
    found.expect("it does not hang")
}

/// The newest description that all of its members carry.
fn newest(copies: &[Superblock]) -> &Superblock {
    let has = |copy: &Superblock, name: &String| {
        let same = |other: &&Superblock| {
            (other.generation, &other.description) == (copy.generation, &copy.description)
        };
        copies.iter().filter(same).any(|other| other.name == *name)
    };
    let is_whole =
        |copy: &&Superblock| members_of(&copy.description, &KINDS).iter().all(|name| has(copy, name));
    copies.iter().filter(is_whole).max_by_key(|copy| copy.generation).expect("one is whole at every moment")
}

/// The children of devices of a description.
fn shape_of(description: &str) -> Vec<String> {
    let path = |name: String| (name.clone(), format!("{name}.img"));
    let paths: BTreeMap<_, _> = members_of(description, &KINDS).into_iter().map(path).collect();
    shape(&plan(&with_paths(description, &paths).expect("a description")))
}

/// A description without its trailer.
fn file_of(description: &str) -> &str {
    records::split(description).expect("words").0
}

fn description(text: &str) -> String {
    plan(text).persistent().expect("it is persistent").description.clone()
}

/// A file, and how its members describe it.
struct File<'a> {
    text: &'a str,
    description: String,
    members: Vec<String>,
}

impl File<'_> {
    fn new(text: &str) -> File<'_> {
        let description = description(text);
        let members = members_of(&description, &KINDS);
        File { text, description, members }
    }
}

/// The files with which the daemon may be started, by their text: each has to open what is left.
fn usable<'a>(
    files: &'a [File<'_>],
    written: bool,
    now: Now,
    copies: &[Superblock],
) -> BTreeMap<&'a str, &'a File<'a>> {
    let own = &files[now.step];
    let mut usable = vec![own];
    if !written {
        usable.push(&files[0]);
    }
    if let Some(next) = files.get(now.step + 1) {
        // The file leads there from the moment when one of its members says so.
        let says_so = |copy: &Superblock| {
            let is_next = copy.generation > now.served && file_of(&copy.description) != own.description;
            is_next && next.members.contains(&copy.name)
        };
        if copies.iter().any(says_so) {
            usable.push(next);
        }
    }
    usable.into_iter().map(|file| (file.text, file)).collect()
}

/// Opens what a crash left with a file, as the newest hierarchy that is whole. If it is to be served then,
/// what further crashes meanwhile leave comes back.
fn opens(crash: &Crash, text: &str, whole: &Superblock, serve: bool) -> Result<Vec<Crash>, String> {
    let world = Simulation::from_images(3, &crash.images);
    let (sim, before, file, expected) = (world.env(), crash.now, plan(text), shape_of(&whole.description));
    let opened = world.run(async move {
        let env: Rc<dyn Env> = sim.clone();
        let now = Rc::new(Cell::new(before));
        let crashes = if serve { watch(&sim, &now) } else { Crashes::default() };
        let h = Hierarchy::build(file.clone(), Rc::clone(&env)).await.map_err(|report| report.to_string())?;
        if shape(h.plan()) != expected {
            return Err(format!("it is {:?}, and should be {expected:?}", shape(h.plan())));
        }
        if generation(&h) < before.served {
            return Err(format!("generation {} was served, and {} is now", before.served, generation(&h)));
        }
        now.set(Now { served: generation(&h), ..before });
        let export_node = h.export_node("vm1").expect("an export node");
        for n in BLOCKS {
            // A later round may be there as well: its writes were under way.
            let bytes = get(&export_node, n).await;
            if bytes != stamp(n, before.round) && bytes != stamp(n, before.round + 1) {
                return Err(format!("block {n} lost what was flushed in round {}", before.round));
            }
        }
        if !serve {
            h.close().await.map_err(|e| e.to_string())?;
            return Ok(Vec::new());
        }
        put_all(&h, before.round + 1).await;
        now.set(Now { round: before.round + 1, ..now.get() });
        h.close().await.map_err(|e| e.to_string())?;
        sim.observe(None);
        let again =
            Hierarchy::build(file, Rc::clone(&env)).await.map_err(|report| format!("again: {report}"))?;
        assert_eq!(shape(again.plan()), expected, "again");
        let to = again.destination();
        let done = match &to {
            Some(to) => go_to(again, to, &env).await?,
            None => again,
        };
        let export_node = done.export_node("vm1").expect("an export node");
        for n in BLOCKS {
            assert_eq!(get(&export_node, n).await, stamp(n, before.round + 1), "block {n}");
        }
        done.close().await.map_err(|e| e.to_string())?;
        Ok(crashes.take())
    });
    opened.expect("it does not hang")
}

/// What the members say of the hierarchy, and what was said: crashes that have this in common differ in other
/// bytes, such as how far a move is, of which the device that moves has tests of its own. Of generations only
/// their order counts.
fn mark(now: Now, copies: &[Superblock]) -> (Now, String) {
    let generations: BTreeSet<u64> = copies.iter().map(|copy| copy.generation).chain([now.served]).collect();
    let rank = |generation: u64| generations.range(..generation).count() as u64;
    let mark = |copy: &Superblock| {
        format!("{} {} {} {}\n", copy.name, rank(copy.generation), copy.clean, file_of(&copy.description))
    };
    (Now { served: rank(now.served), ..now }, copies.iter().map(mark).collect())
}

/// Starts the daemon with every file after every crash, and once more after every crash meanwhile.
fn check(files: &[String], written: bool) {
    let crashes = crashes(files, written);
    assert!(crashes.len() > 300, "{} crashes", crashes.len());
    let files: Vec<_> = files.iter().map(|text| File::new(text)).collect();
    let (mut seen, mut followed) = (BTreeSet::new(), 0);
    for (n, crash) in crashes.iter().enumerate() {
        let copies = copies(&crash.images);
        let whole = newest(&copies);
        for (text, file) in usable(&files, written, crash.now, &copies) {
            let at = format!(
                "crash {n} in step {}, at generation {}, with {text}",
                crash.now.step, whole.generation
            );
            followed += usize::from(file_of(&whole.description) != file.description);
            let is_new = seen.insert((text, mark(crash.now, &copies)));
            let inner = opens(crash, text, whole, is_new).unwrap_or_else(|e| panic!("{at}{e}"));
            let (mut seen, mut last, before) = (BTreeSet::new(), None, crash.now.served);
            for (m, crash) in inner.iter().enumerate() {
                let said = (crash.now, self::copies(&crash.images));
                // Most changes of a disk are of what the members do not speak of.
                if last.as_ref() == Some(&said) {
                    continue;
                }
                let (_, copies) = last.insert(said);
                // The files that led there may be lost with the power, until the change acted on them.
                let leads = crash.now.served > before
                    || usable(&files, written, crash.now, copies).contains_key(text);
                if leads && seen.insert(mark(crash.now, copies)) {
                    let opened = opens(crash, text, newest(copies), false);
                    opened.unwrap_or_else(|e| panic!("{at}crash {m} while it is opened: {e}"));
                }
            }
        }
    }
    assert!(followed > 100, "{followed} times it was what another file describes");
}

#[test]
fn a_disk_migrates_and_comes_back() {
    check(&[on("a"), on("b"), on("a")], true);
}

#[test]
fn a_disk_migrates_twice_and_the_file_stays() {
    check(&[on("a"), on("b"), on("c")], false);
}

#[test]
fn a_layer_comes_to_move_a_disk_and_goes() {
    for written in [true, false] {
        check(&[alone("a"), on("a"), on("b"), alone("b")], written);
    }
}

#[test]
fn both_legs_are_exchanged() {
    check(&[over("mirror", &["a", "b"]), over("mirror", &["c", "d"])], true);
}

#[test]
fn all_members_of_a_concat_are_exchanged() {
    check(&[over("concat", &["a", "b"]), over("concat", &["c", "d"]), over("concat", &["a", "c"])], false);
}

/// The disks after the hierarchy of the first file has become that of the last, and was closed.
fn changed(files: &[String], confirmed: bool) -> Simulation {
    let world = world();
    world.env().put_disk("/srv/d.img", Image::blank(DiskOptions::new(SIZE)));
    let (env, files): (Rc<dyn Env>, _) = (world.env(), files.to_vec());
    let done = world.run(async move {
        plan(&files[0]).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&files[0]), Rc::clone(&env)).await;
        let mut h = h.unwrap_or_else(|e| panic!("{e}"));
        for text in &files[1..] {
            h = go(h, text, &env).await.unwrap_or_else(|e| panic!("{e}"));
            assert!(!confirmed || h.confirm(&plan(text)).await.expect("the members can be written"));
        }
        put_all(&h, 1).await;
        h.close().await.expect("closes");
    });
    done.expect("it does not hang");
    world
}

/// Both copies of a member, as `change` makes them from the disk `from`.
async fn forge(sim: &Rc<SimEnv>, from: &str, to: &str, change: impl Fn(&mut Superblock)) {
    let node = |name: &str| {
        let disk = sim.disk(format!("/srv/{name}.img")).expect("a disk");
        Node::new(name, "sim", Rc::clone(sim) as Rc<dyn Env>, disk)
    };
    let mut superblock = superblock::read(&node(from)).await.newest().expect("a member").clone();
    change(&mut superblock);
    for place in Place::ALL {
        superblock::write(&node(to), &superblock, place).await.expect("a write");
    }
}

/// Opens a hierarchy, which is refused, and leaves every byte of the superblocks as it was.
fn refused(world: &Simulation, text: &str, degraded: bool) -> String {
    let before = copies(&world.env().twins());
    let (env, file): (Rc<dyn Env>, _) = (world.env(), plan(text));
    let built = world.run(async move {
        let built = match degraded {
            true => Hierarchy::build_degraded(file, env).await,
            false => Hierarchy::build(file, env).await,
        };
        built.map(|h| format!("{h:?}")).map_err(|report| report.to_string())
    });
    let said = built.expect("it does not hang").expect_err("refused");
    assert_eq!(copies(&world.env().twins()), before, "{said}");
    said
}

/// A file that is known to be old, because the daemon was started with the file of the end, leads nowhere.
#[test]
fn a_file_that_the_members_do_not_remember_is_refused() {
    let said = refused(&changed(&[on("a"), on("b")], true), &on("a"), false);
    assert!(said.contains("differs from the file on the members"), "{said}");
    assert!(said.contains("`lamina assemble` prints that file"), "{said}");
}

/// Paths are only hints: a device found there may be of another hierarchy, of the same name.
#[test]
fn a_member_of_another_hierarchy_is_not_followed() {
    let world = changed(&[on("a"), on("b")], false);
    let sim = world.env();
    let done = world.run(async move { forge(&sim, "b", "b", |s| s.hierarchy = Uuid::from_u128(7)).await });
    done.expect("it does not hang");
    let said = refused(&world, &on("a"), false);
    assert!(said.contains("device \"b\": key \"path\": is foreign"), "{said}");
}

#[test]
fn of_two_that_are_whole_and_were_changed_apart_neither_is_followed() {
    let world = changed(&[on("a"), on("b")], false);
    let (sim, to_c) = (world.env(), |s: &mut Superblock| {
        s.name = s.name.replace('b', "c");
        s.member = Uuid::from_u128(7);
        s.description = s.description.replace("device.b]", "device.c]").replace("\"b\"", "\"c\"");
        s.description = s.description.replace("/b.img", "/c.img");
    });
    let done = world.run(async move {
        forge(&sim, "b", "c", to_c).await;
        // `a` was on its way to both.
        let a = sim.disk("/srv/a.img").expect("a disk");
        let a = Node::new("a", "sim", Rc::clone(&sim) as Rc<dyn Env>, a);
        let mut second = superblock::read(&a).await.newest().expect("a member").clone();
        to_c(&mut second);
        second.name = "a".into();
        superblock::write(&a, &second, Place::Second).await.expect("a write");
    });
    done.expect("it does not hang");
    let said = refused(&world, &on("a"), false);
    assert!(said.contains("differs from the file on the members"), "{said}");
}

/// Writes that were answered are only on members that cannot be opened now: an old file does not give them
/// up.
#[test]
fn nothing_older_than_what_is_whole_is_opened_when_that_cannot_be() {
    let files = [over("mirror", &["a", "b"]), over("mirror", &["c", "d"])];
    for confirmed in [false, true] {
        let world = changed(&files, confirmed);
        for name in ["c", "d"] {
            world.env().disk(format!("/srv/{name}.img")).expect("a disk").resize(SIZE - (64 << 10));
        }
        let said = refused(&world, &files[0], true);
        match confirmed {
            false => assert!(said.contains("device \"c\": key \"path\": has shrunk"), "{said}"),
            true => assert!(said.contains("differs from the file on the members"), "{said}"),
        }
    }
}
