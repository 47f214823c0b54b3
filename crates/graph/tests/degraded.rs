//! A hierarchy goes on without members, and they come back: every flushed write is there, whatever fails and whichever
//! members are missing afterwards, and no older data is ever served in its place.

#[path = "common/legs.rs"]
mod legs;

use lamina_block::{Buf, Build, Command, Config, Durability, Env, Error, Io, Made, Node, OpenDisk, Pending};
use lamina_graph::{Hierarchy, Plan, Stage};
use lamina_sim::{DiskOptions, Image, Images, Loss, Presence, SimEnv, Simulation};
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

const SIZE: u64 = 2 << 20;

/// A sink that is no member, as one behind a network is; it does not answer if its disk fails.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Far {
    path: PathBuf,
}

impl Config for Far {
    const KIND: &'static str = "far";
    const SUMMARY: &'static str = "a disk elsewhere";
    const CHILDREN: std::ops::RangeInclusive<usize> = 0..=0;

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let open =
                OpenDisk { path: self.path, read_only: false, direct: false, create: None, block: None };
            let disk = with.env.open_disk(open).await?;
            let node = Node::new("disk", "disk", with.env, Rc::clone(&disk));
            let asked = node.submit(Io::read(0, Buf::zeroed(512))).await;
            asked.map(|()| disk).map_err(|e| Error::offline(e.message().to_owned()))
        })
    }
}

fn kinds() -> Vec<lamina_block::Kind> {
    let mut kinds = lamina_layers::KINDS.to_vec();
    kinds.extend([legs::KIND, lamina_block::Kind::of::<Far>()]);
    kinds
}

fn plan(text: &str) -> Plan {
    Plan::parse(text, "f.toml", Path::new("/srv"), &kinds()).unwrap_or_else(|e| panic!("{e}"))
}

/// `vm1` over `devices`, which are over the members `a` and `b`.
fn file(devices: &str) -> String {
    let member = |name: &str| format!("[device.{name}]\ntype='file'\npath='{name}.img'\n");
    let members = member("a") + &member("b");
    format!("[hierarchy]\nname='vm1'\n{members}{devices}[export.vm1]\ndevice='vm1'\nnbd='unix:vm1.sock'\n")
}

/// `b` comes first: it is read if nothing says that it missed something.
const LEGS: &str = "[device.vm1]\ntype='legs'\nover=['b','a']\n";
/// Absent devices between the members and the one that survives.
const TOWER: &str = "[device.pa]\ntype='linear'\nover='a'\noffset='64KiB'\n[device.pb]\ntype='linear'\nover='b'\n\
                     offset='64KiB'\n[device.qb]\ntype='linear'\nover='pb'\n[device.m]\ntype='legs'\nover=['qb','pa']\n\
                     [device.vm1]\ntype='linear'\nover='m'\n";

fn world() -> Simulation {
    let world = Simulation::new(11);
    for name in ["a", "b"] {
        world.env().put_disk(path(name), Image::blank(DiskOptions::new(SIZE)));
    }
    world
}

fn path(name: &str) -> PathBuf {
    format!("/srv/{name}.img").into()
}

fn stamp(n: u64, round: u64) -> Vec<u8> {
    (n << 32 | round).to_le_bytes().repeat(64)
}

const BLOCKS: [u64; 3] = [0, 7, 1000];

async fn put(node: &Rc<Node>, round: u64) {
    for n in BLOCKS {
        let write = Io::write(n * 512, Buf::from_vec(stamp(n, round)), Durability::Cached);
        node.submit(write).await.unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    node.submit(Io::flush()).await.unwrap_or_else(|e| panic!("round {round}: {e}"));
}

/// The round of every block.
async fn rounds(node: &Rc<Node>) -> Result<Vec<u64>, String> {
    let mut rounds = Vec::new();
    for n in BLOCKS {
        let buf = Buf::zeroed(512);
        node.submit(Io::read(n * 512, buf.clone())).await.map_err(|e| e.to_string())?;
        let bytes = buf.to_vec();
        let round = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) & 0xffff_ffff;
        assert!(round == 0 || bytes == stamp(n, round), "block {n} holds a mixture");
        rounds.push(round);
    }
    Ok(rounds)
}

/// Everything fails on the disk of a member from now on.
fn break_disk(env: &Rc<SimEnv>, name: &'static str) {
    let broken = path(name);
    let fault = move |_, disk: &str, _: &Io| (Path::new(disk) == broken).then(|| Error::media("broken"));
    env.set_fault(Some(Box::new(fault)));
}

/// `lamina apply` with the same file.
async fn apply(h: Hierarchy, text: &str, env: &Rc<dyn Env>) -> (Hierarchy, String) {
    let (mut h, mut said) = (h, String::new());
    for (stage, steps) in h.stages(&plan(text), &kinds()).unwrap_or_else(|e| panic!("{e}")) {
        let Stage::Change(plan) = stage else { panic!("nothing is moved") };
        steps.iter().for_each(|step| said += &format!("{step}\n"));
        let (changed, wrong) = h.change(plan, env).await.unwrap_or_else(|e| panic!("{e}"));
        wrong.iter().for_each(|e| said += &format!("{e}\n"));
        h = changed;
    }
    (h, said)
}

/// Waits until the layer called `name` has brought all children up to date.
async fn up_to_date(h: &Hierarchy, name: &str, env: &Rc<dyn Env>) {
    let node = h.node(name).expect("a device");
    while node.info()["stale"] != serde_json::json!([]) {
        env.sleep(Duration::from_millis(1)).await;
    }
}

struct Crash {
    images: Images,
    /// The last round that was flushed, and the one that may be under way.
    done: u64,
    next: u64,
    /// The members that are broken, and known to be.
    out: Option<&'static str>,
}

/// Members fail and come back one after the other; the images that a power loss before every change leaves.
fn crashes(text: &str, top: &'static str, loss: Loss) -> Vec<Crash> {
    let world = world();
    let (sim, taken) = (world.env(), Rc::new(RefCell::new(Vec::new())));
    let (env, into, text): (Rc<dyn Env>, _, _) = (sim.clone(), Rc::clone(&taken), text.to_owned());
    let done = world.run(async move {
        plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let mut h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let now: Rc<Cell<(u64, u64, Option<&'static str>)>> = Rc::new(Cell::new((0, 0, None)));
        let (eye, state) = (Rc::downgrade(&sim), Rc::clone(&now));
        sim.observe(Some(Rc::new(move || {
            let Some(env) = eye.upgrade() else { return };
            let (done, next, out) = state.get();
            let images = env.images(loss, env.tick());
            into.borrow_mut().push(Crash { images, done, next, out });
        })));
        let export_node = h.export_node("vm1").expect("an export node");
        let write = async |round: u64, broken: Option<&'static str>| {
            now.set((now.get().0, round, None));
            put(&export_node, round).await;
            now.set((round, round, broken));
        };
        write(1, None).await;
        let mut round = 1;
        for name in ["b", "a", "b"] {
            break_disk(&sim, name);
            for _ in 0..2 {
                round += 1;
                write(round, Some(name)).await;
            }
            if text.contains("forgetful") {
                break;
            }
            // The member is needed as soon as it is taken in.
            now.set((round, round, None));
            sim.set_fault(None);
            let (changed, said) = apply(h, &text, &env).await;
            assert_eq!(said, format!("return    {name}: taken in again, if it is there\n"));
            h = changed;
            up_to_date(&h, top, &env).await;
            round += 1;
            write(round, None).await;
        }
        sim.observe(None);
        let closed = h.close().await;
        assert!(closed.is_ok() || text.contains("forgetful"), "{closed:?}");
    });
    assert!(done.is_ok(), "{done:?}");
    Rc::try_unwrap(taken).ok().expect("nobody looks any more").into_inner()
}

/// Opens what was left, without the disk of `gone`: the rounds of the blocks, before and after a close.
fn opened(images: &Images, text: &str, gone: Option<&str>) -> Result<Vec<u64>, String> {
    let there = |(at, _): &(&PathBuf, &Image)| gone.is_none_or(|name| **at != path(name));
    let images = images.iter().filter(there).map(|(at, image)| (at.clone(), image.clone())).collect();
    let world = Simulation::from_images(3, &images);
    let (env, text): (Rc<dyn Env>, _) = (world.env(), text.to_owned());
    let opened = world.run(async move {
        let mut found = Vec::new();
        for _ in 0..2 {
            let h =
                Hierarchy::build(plan(&text), Rc::clone(&env)).await.map_err(|report| report.to_string())?;
            found.extend(rounds(&h.export_node("vm1").expect("an export node")).await?);
            h.close().await.map_err(|e| e.to_string())?;
        }
        Ok(found)
    });
    opened.expect("it does not hang")
}

fn trial(text: &str, top: &'static str) -> Result<(), String> {
    for loss in [Loss::All, Loss::Torn, Loss::Nothing] {
        let crashes = crashes(text, top, loss);
        assert!(crashes.len() > 20, "{} crashes", crashes.len());
        for (n, Crash { images, done, next, out }) in crashes.iter().enumerate() {
            let good = |rounds: &[u64]| rounds.iter().all(|round| round == done || round == next);
            let all = opened(images, text, None).map_err(|e| format!("crash {n}: {e}"))?;
            if !good(&all) {
                return Err(format!("crash {n}: {all:?} is served, and {done} was flushed"));
            }
            for gone in ["a", "b"] {
                match opened(images, text, Some(gone)) {
                    Ok(rounds) if !good(&rounds) => {
                        return Err(format!(
                            "crash {n}: without {gone:?} {rounds:?} is served, and {done} was flushed"
                        ));
                    }
                    Err(e) if *out == Some(gone) => {
                        return Err(format!("crash {n}: {gone:?} is evicted: {e}"));
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_crash_at_any_moment_loses_nothing_whoever_is_missing() {
    trial(&file(LEGS), "vm1").unwrap();
}

/// Every moment of a leg's return to a mirror, at which the power fails.
fn returns_to_a_mirror(text: &str, loss: Loss) -> Vec<Images> {
    let world = world();
    let (sim, taken) = (world.env(), Rc::new(RefCell::new(Vec::new())));
    let (env, into, text): (Rc<dyn Env>, _, _) = (sim.clone(), Rc::clone(&taken), text.to_owned());
    let done = world.run(async move {
        plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let (export_node, mirror) =
            (h.export_node("vm1").expect("an export node"), h.node("vm1").expect("a device"));
        put(&export_node, 1).await;
        let order = |name: &str| Command { name: name.into(), args: serde_json::json!({ "leg": "b" }) };
        mirror.control(order("fail")).await.unwrap();
        put(&export_node, 2).await;
        let eye = Rc::downgrade(&sim);
        sim.observe(Some(Rc::new(move || {
            let Some(env) = eye.upgrade() else { return };
            into.borrow_mut().push(env.images(loss, env.tick()));
        })));
        mirror.control(order("rejoin")).await.unwrap();
        while mirror.info()["legs_in_sync"] != 2 {
            env.sleep(Duration::from_millis(1)).await;
        }
        sim.observe(None);
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
    Rc::try_unwrap(taken).ok().expect("nobody looks any more").into_inner()
}

/// `images` after `name` was cut in half, and has its size back.
fn cut(images: &Images, name: &str) -> Images {
    let world = Simulation::from_images(5, images);
    let (sim, name) = (world.env(), name.to_owned());
    let (env, at): (Rc<dyn Env>, _) = (sim.clone(), path(&name));
    let done = world.run(async move {
        let node = Node::new("cut", "disk", env, sim.disk(&at).expect("a disk"));
        let zeroes = Buf::zeroed(SIZE as usize / 2);
        node.submit(Io::write(SIZE / 2, zeroes, Durability::Fua)).await.unwrap();
        sim.images(Loss::Nothing, 0)
    });
    done.expect("it does not hang")
}

#[test]
fn a_leg_that_was_cut_is_made_whole_only_by_one_that_has_everything() {
    let text = file("[device.vm1]\ntype='mirror'\nover=['b','a']\n");
    for loss in [Loss::All, Loss::Torn, Loss::Nothing] {
        let crashes = returns_to_a_mirror(&text, loss);
        let (mut made_whole, mut refused) = ([0, 0], [0, 0]);
        for (n, images) in crashes.iter().enumerate() {
            for (which, name) in ["a", "b"].into_iter().enumerate() {
                match opened(&cut(images, name), &text, None) {
                    Ok(rounds) => {
                        assert_eq!(rounds, vec![2; 6], "crash {n}, {loss:?}: {name} was cut");
                        made_whole[which] += 1;
                    }
                    Err(e) => {
                        let is_said = e.contains("its end is gone") || e.contains("superblocks are lost");
                        assert!(is_said, "crash {n}: {e}");
                        refused[which] += 1;
                    }
                }
            }
        }
        // `b` has everything at the end only, `a` always.
        assert!(refused[0] > 0 && made_whole[0] > 0 && made_whole[1] > 0, "{made_whole:?} {refused:?}");
    }
}

#[test]
fn devices_that_are_absent_between_are_made_again() {
    trial(&file(TOWER), "m").unwrap();
}

#[test]
fn a_stale_leg_that_does_not_know_is_caught() {
    let said = trial(&file(&LEGS.replace("'legs'", "'legs'\nforgetful=true")), "vm1").unwrap_err();
    assert!(said.contains("was flushed") || said.contains("is evicted"), "{said}");
}

#[test]
fn who_is_missing_is_left_out_when_asked_for_and_comes_back_while_it_is_served() {
    let world = world();
    let sim = world.env();
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        let text = file(TOWER);
        let gone = text.replace("b.img", "gone.img");
        plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        put(&h.export_node("vm1").expect("an export node"), 1).await;
        h.close().await.unwrap();
        let refused = Hierarchy::build(plan(&gone), Rc::clone(&env)).await.unwrap_err().to_string();
        assert!(refused.contains("`lamina serve --degraded` goes on without \"b\""), "{refused}");
        // The option is needed once. After that the others know.
        let h =
            Hierarchy::build_degraded(plan(&gone), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        h.close().await.unwrap();
        let h = Hierarchy::build(plan(&gone), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let absent: Vec<&str> = h.nodes().iter().filter(|n| n.is_absent()).map(|n| n.name()).collect();
        assert_eq!(absent, ["b", "pb", "qb"]);
        let export_node = h.export_node("vm1").expect("an export node");
        put(&export_node, 2).await;
        // The member is still away.
        let (h, said) = apply(h, &gone, &env).await;
        assert!(said.contains("b: there is no simulated disk /srv/gone.img"), "{said}");
        put(&export_node, 3).await;
        // The member is there, at another path than in the file.
        sim.put_disk("/srv/gone.img", sim.disk("/srv/b.img").expect("a disk").twin());
        let (h, said) = apply(h, &gone, &env).await;
        assert_eq!(said, "return    b: taken in again, if it is there\n");
        assert!(h.nodes().iter().all(|node| !node.is_absent()));
        up_to_date(&h, "m", &env).await;
        assert!(h.stages(&plan(&gone), &kinds()).unwrap()[0].1.is_empty(), "nothing is left to do");
        // Now the returned member alone is enough.
        break_disk(&sim, "a");
        assert_eq!(rounds(&export_node).await, Ok(vec![3; 3]));
        put(&export_node, 4).await;
        h.close().await.unwrap();
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"));
}

#[test]
fn a_sink_that_is_no_member_and_does_not_answer_is_absent_and_comes_back() {
    let world = world();
    let sim = world.env();
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        let far = "[device.far]\ntype='far'\npath='/srv/far.img'\n";
        let over = |kind: &str| format!("[device.vm1]\ntype='{kind}'\nover=['far','a','b']\n");
        let text = file(&format!("{far}{}", over("legs")));
        let disk = sim.put_disk("/srv/far.img", Image::blank(DiskOptions::new(SIZE)));
        plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        put(&h.export_node("vm1").expect("an export node"), 1).await;
        h.close().await.unwrap();
        disk.set_presence(Presence::Failing);
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(h.warnings().to_string().contains("The hierarchy goes on without it"), "{}", h.warnings());
        let export_node = h.export_node("vm1").expect("an export node");
        put(&export_node, 2).await;
        let (h, said) = apply(h, &text, &env).await;
        assert!(said.lines().count() == 2 && said.contains("\nfar: "), "{said}");
        assert!(h.node("far").expect("a device").is_absent());
        disk.set_presence(Presence::Here);
        let (h, said) = apply(h, &text, &env).await;
        assert_eq!(said, "return    far: taken in again, if it is there\n");
        up_to_date(&h, "vm1", &env).await;
        assert!(h.stages(&plan(&text), &kinds()).unwrap()[0].1.is_empty(), "nothing is left to do");
        h.close().await.unwrap();
        // This member has all data, and the others are not asked.
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(rounds(&h.node("far").expect("a device")).await, Ok(vec![2; 3]));
        h.close().await.unwrap();
        // A hierarchy that needs the member is refused.
        let text = text.replace("name='vm1'", "name='vm2'").replace("'legs'", "'concat'");
        let other = text.replace("a.img", "c.img").replace("b.img", "d.img");
        for name in ["c", "d"] {
            sim.put_disk(path(name), Image::blank(DiskOptions::new(SIZE)));
        }
        plan(&other).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        disk.set_presence(Presence::Failing);
        let refused = Hierarchy::build(plan(&other), Rc::clone(&env)).await.unwrap_err().to_string();
        assert!(refused.contains("far") && !refused.contains("goes on without"), "{refused}");
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"));
}

#[test]
fn a_silent_sink_that_is_let_go_is_not_asked_again() {
    let world = world();
    let sim = world.env();
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        let far = "[device.far]\ntype='far'\npath='/srv/far.img'\n";
        let text = file(&format!("{far}[device.vm1]\ntype='mirror'\nover=['far','a','b']\n"));
        let disk = sim.put_disk("/srv/far.img", Image::blank(DiskOptions::new(SIZE)));
        plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        disk.set_presence(Presence::Failing);
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let without = text.replace(far, "").replace("'far',", "");
        let stages = h.stages(&plan(&without), &kinds()).unwrap_or_else(|e| panic!("{e}"));
        let Some((Stage::Change(first), steps)) = stages.into_iter().next() else {
            panic!("it leaves first")
        };
        let said: Vec<String> = steps.iter().map(|step| step.to_string()).collect();
        assert!(!said.iter().any(|step| step.starts_with("return")), "{said:?}");
        let (h, wrong) = h.change(first, &env).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(wrong.is_empty(), "{wrong:?}");
        h.close().await.unwrap();
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"));
}

#[test]
fn what_does_not_survive_is_refused_whatever_is_asked() {
    let world = world();
    let env: Rc<dyn Env> = world.env();
    let done = world.run(async move {
        let text = file("[device.vm1]\ntype='stripe'\nover=['a','b']\n");
        plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let gone = text.replace("b.img", "gone.img");
        let plain = Hierarchy::build(plan(&gone), Rc::clone(&env)).await.unwrap_err().to_string();
        assert!(!plain.contains("--degraded"), "{plain}");
        let refused = Hierarchy::build_degraded(plan(&gone), Rc::clone(&env)).await.unwrap_err().to_string();
        assert!(refused.contains("export \"vm1\"") && refused.contains("absent without \"b\""), "{refused}");
        let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(h.warnings().is_empty(), "{}", h.warnings());
        h.close().await.unwrap();
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"));
}

#[test]
fn an_end_is_orderly_if_what_fails_is_not_needed() {
    let fault = "[device.f]\ntype='fault'\nover='b'\n[device.vm1]\nover=['a','f']\n";
    for (kind, good) in [("mirror", true), ("concat", false)] {
        let world = world();
        let env: Rc<dyn Env> = world.env();
        let done = world.run(async move {
            let text = file(&format!("{fault}type='{kind}'\n"));
            plan(&text).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
            let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
            let args = serde_json::json!({ "rules": [{ "error": "media" }] });
            let set = Command { name: "set".into(), args };
            h.node("f").expect("a device").control(set).await.unwrap_or_else(|e| panic!("{e}"));
            if good {
                put(&h.export_node("vm1").expect("an export node"), 1).await;
            }
            assert_eq!(h.close().await.is_ok(), good, "{kind}");
            let h = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(h.warnings().is_empty(), good, "{kind}: {}", h.warnings());
            h.close().await.unwrap_or_else(|e| panic!("{e}"));
        });
        done.unwrap_or_else(|hang| panic!("{hang:?}"));
    }
}
