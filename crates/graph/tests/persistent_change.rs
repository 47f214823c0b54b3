//! A persistent hierarchy changes while it is served, and the power fails before every change of any disk: afterwards
//! the disks have the hierarchy before or the one after, with every flushed write. The file of before opens it in both
//! cases.

#[path = "common/volume.rs"]
mod volume;

use lamina_block::{Command, Env, Io, Node};
use lamina_graph::{Hierarchy, Plan, members_of, with_paths};
use lamina_metadata::superblock;
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use volume::{SIZE, file, get, go, go_to, plan, put, shape, stamp, vm1, world};

/// One step after the other.
fn files() -> Vec<String> {
    let slow = "[device.slow]\ntype='delay'\nover='b'\nwrite='1ms'\n";
    vec![
        file(&["a", "b"], &vm1("['a','b']")),
        file(&["a", "b"], &(vm1("['a','slow']") + slow)),
        file(&["a", "b", "c"], &(vm1("['a','slow','c']") + slow)),
        file(&["a", "b", "c"], &vm1("['a','b','c']")),
    ]
}

/// Blocks on both members.
const BLOCKS: [u64; 4] = [0, 7, (3 << 20) / 512, (3 << 20) / 512 + 9];

/// The disks after a crash, how far the files had come, and the last round that was flushed.
struct Crash {
    images: Images,
    step: usize,
    round: u64,
}

/// Takes images before every change of a disk from now on.
fn watch(sim: &Rc<SimEnv>, taken: Rc<RefCell<Vec<Crash>>>, step: Rc<Cell<usize>>, round: Rc<Cell<u64>>) {
    let eye = Rc::downgrade(sim);
    sim.observe(Some(Rc::new(move || {
        let Some(env) = eye.upgrade() else { return };
        for (loss, seed) in [(Loss::All, 0), (Loss::ALL[1], env.tick())] {
            let images = env.images(loss, seed);
            taken.borrow_mut().push(Crash { images, step: step.get(), round: round.get() });
        }
    })));
}

/// Goes through all files, and takes images before every change of a disk.
fn crashes() -> Vec<Crash> {
    let world = world();
    let (sim, taken) = (world.env(), Rc::new(RefCell::new(Vec::new())));
    let (step, round) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let seen = Rc::clone(&taken);
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        plan(&files()[0]).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let mut h =
            Hierarchy::build(plan(&files()[0]), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        watch(&sim, seen, Rc::clone(&step), Rc::clone(&round));
        for (next, text) in files().iter().enumerate().skip(1) {
            let export_node = h.export_node("vm1").expect("an export node");
            for n in BLOCKS {
                put(&export_node, n, next as u64).await;
            }
            export_node.submit(Io::flush()).await.expect("a flush");
            round.set(next as u64);
            let (changed, wrong) = h.change(plan(text), &env).await.unwrap_or_else(|e| panic!("{e}"));
            assert!(wrong.is_empty(), "{wrong:?}");
            h = changed;
            step.set(next);
        }
        sim.observe(None);
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
    Rc::try_unwrap(taken).ok().expect("nobody looks any more").into_inner()
}

/// Opens what a crash left with one of the files, and closes it well; what it was.
fn opens(images: &Images, text: &str, crash: &Crash) -> Result<Vec<String>, String> {
    let world = Simulation::from_images(3, images);
    let sim: Rc<SimEnv> = world.env();
    let (plan, round) = (plan(text), crash.round);
    let opened = world.run(async move {
        let h = Hierarchy::build(plan, sim).await.map_err(|report| report.to_string())?;
        let export_node = h.export_node("vm1").expect("an export node");
        for n in BLOCKS.into_iter().filter(|_| round > 0) {
            // A later round may be there as well: its writes were under way.
            let bytes = get(&export_node, n).await;
            assert!(
                bytes == stamp(n, round) || bytes == stamp(n, round + 1),
                "block {n} lost what was flushed in round {round}"
            );
        }
        h.close().await.map_err(|e| e.to_string())?;
        Ok(shape(h.plan()))
    });
    opened.expect("it does not hang")
}

#[test]
fn a_crash_leaves_the_hierarchy_before_or_after() {
    let crashes = crashes();
    assert!(crashes.len() > 100, "{} crashes", crashes.len());
    let (mut before, mut after) = (0, 0);
    for (n, crash) in crashes.iter().enumerate() {
        let old = opens(&crash.images, &files()[crash.step], crash);
        let found = old.unwrap_or_else(|e| panic!("crash {n}: the file from before: {e}"));
        let Some(next) = files().get(crash.step + 1).cloned() else {
            assert_eq!(found, shape(&plan(&files()[crash.step])), "crash {n} after the last step");
            continue;
        };
        let new = opens(&crash.images, &next, crash);
        if found == shape(&plan(&next)) {
            after += 1;
            assert_eq!(new.as_ref(), Ok(&found), "crash {n}: the file of after");
        } else {
            before += 1;
            assert_eq!(found, shape(&plan(&files()[crash.step])), "crash {n}");
            match new {
                // The change had begun somewhere.
                Ok(same) => assert_eq!(same, found, "crash {n}: the file of after"),
                Err(e) => assert!(e.contains("differs") || e.contains("superblock"), "crash {n}: {e}"),
            }
        }
    }
    assert!(before > 10 && after > 10, "before {before}, after {after}");
}

#[test]
fn a_member_grows_and_a_crash_leaves_it_small_or_large() {
    let world = world();
    let (sim, taken) = (world.env(), Rc::new(RefCell::new(Vec::new())));
    let seen = Rc::clone(&taken);
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        plan(&files()[0]).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&files()[0]), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let (export_node, b) =
            (h.export_node("vm1").expect("an export node"), h.node("b").expect("a member"));
        for n in BLOCKS {
            put(&export_node, n, 1).await;
        }
        export_node.submit(Io::flush()).await.expect("a flush");
        let before = export_node.geometry().size;
        watch(&sim, seen, Rc::default(), Rc::new(Cell::new(1)));
        for size in [SIZE + (64 << 10), 2 * SIZE] {
            sim.disk("/srv/b.img").expect("a disk").resize(size);
            let resize = Command { name: "resize".into(), args: json!({}) };
            b.control(resize).await.unwrap_or_else(|e| panic!("{e}"));
            h.refresh();
            assert_eq!(export_node.geometry().size, before + size - SIZE);
        }
        sim.observe(None);
        let small = Command { name: "resize".into(), args: json!({ "size": "1MiB", "force": true }) };
        assert!(b.control(small).await.unwrap_err().message().contains("does not shrink"));
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
    let taken = Rc::try_unwrap(taken).ok().expect("nobody looks any more").into_inner();
    assert!(taken.len() > 20, "{} crashes", taken.len());
    for (n, crash) in taken.iter().enumerate() {
        opens(&crash.images, &files()[0], crash).unwrap_or_else(|e| panic!("crash {n}: {e}"));
    }
}

/// The files that the members carry, in whatever copy.
async fn carried(env: &Rc<SimEnv>) -> Vec<String> {
    let mut files = Vec::new();
    for name in ["a", "b", "c"] {
        let disk = env.disk(format!("/srv/{name}.img")).expect("a disk");
        let found = superblock::read(&Node::new(name, "sim", Rc::clone(env) as Rc<dyn Env>, disk)).await;
        for copy in found.whole() {
            let path = |name: &str| (name.to_owned(), format!("{name}.img"));
            let paths =
                members_of(&copy.description, &lamina_layers::KINDS).iter().map(|name| path(name)).collect();
            files.extend(with_paths(&copy.description, &paths));
        }
    }
    files.sort();
    files.dedup();
    files
}

#[test]
fn a_member_is_replaced_and_a_crash_at_any_moment_can_be_gone_on_from() {
    let slow = "[device.slow]\ntype='delay'\nover='b'\nwrite='10us'\n";
    let steps = [
        file(&["a", "b"], &vm1("['a','b']")),
        // The concat has to know its child by another name from here on.
        file(&["a", "b"], &(vm1("['a','slow']") + slow)),
        file(&["a", "c"], &vm1("['a','c']")),
    ];
    let world = world();
    let (sim, taken) = (world.env(), Rc::new(RefCell::new(Vec::new())));
    let (seen, last, before) = (Rc::clone(&taken), steps[2].clone(), steps[..2].to_vec());
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        plan(&steps[0]).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let mut h =
            Hierarchy::build(plan(&steps[0]), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let export_node = h.export_node("vm1").expect("an export node");
        for n in BLOCKS {
            put(&export_node, n, 1).await;
        }
        export_node.submit(Io::flush()).await.expect("a flush");
        watch(&sim, seen, Rc::default(), Rc::new(Cell::new(1)));
        for text in &steps[1..] {
            h = go(h, text, &env).await.unwrap_or_else(|e| panic!("{e}"));
        }
        sim.observe(None);
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
    let taken = Rc::try_unwrap(taken).ok().expect("nobody looks any more").into_inner();
    assert!(taken.len() > 100, "{} crashes", taken.len());
    let mut gone_on = 0;
    for (n, crash) in taken.iter().enumerate() {
        gone_on += usize::from(goes_on(crash, &before, &last, n));
        let world = Simulation::from_images(7, &crash.images);
        let (sim, last) = (world.env(), last.clone());
        let env: Rc<dyn Env> = sim.clone();
        let opened = world.run(async move {
            let mut refused = String::new();
            for text in carried(&sim).await {
                match Hierarchy::build(plan(&text), Rc::clone(&env)).await {
                    Err(report) => refused += &report.to_string(),
                    Ok(h) => {
                        let h = go(h, &last, &env).await?;
                        let export_node = h.export_node("vm1").expect("an export node");
                        for n in BLOCKS {
                            assert_eq!(get(&export_node, n).await, stamp(n, 1), "block {n}");
                        }
                        return h.close().await.map_err(|e| e.to_string());
                    }
                }
            }
            Err(refused)
        });
        opened.expect("it does not hang").unwrap_or_else(|e| panic!("crash {n}: {e}"));
    }
    assert!(gone_on > 50, "{gone_on} went on");
}

/// Opens what a crash left with the file of before and with that of after, and goes on by itself as far as it is under
/// way; whether it was.
fn goes_on(crash: &Crash, before: &[String], last: &str, n: usize) -> bool {
    let mut ends = Vec::new();
    // A daemon is started with the same file again and again, until the change is done: with the one of before always.
    for (text, always) in [(before[0].as_str(), true), (before[1].as_str(), false), (last, false)] {
        let world = Simulation::from_images(7, &crash.images);
        let (env, file): (Rc<dyn Env>, _) = (world.env(), plan(text));
        let opened = world.run(async move {
            let h = match Hierarchy::build(file.clone(), Rc::clone(&env)).await {
                Err(report) => return Err(report.to_string()),
                Ok(h) => h,
            };
            let to = h.destination();
            let h = match &to {
                Some(to) => go_to(h, to, &env).await?,
                None => h,
            };
            h.close().await.map_err(|e| e.to_string())?;
            let found = shape(h.plan());
            // The same file finds the present state again.
            let h = Hierarchy::build(file, env).await.map_err(|report| format!("again: {report}"))?;
            assert_eq!(shape(h.plan()), found);
            let export_node = h.export_node("vm1").expect("an export node");
            for n in BLOCKS {
                assert_eq!(get(&export_node, n).await, stamp(n, 1), "block {n}");
            }
            h.close().await.map_err(|e| e.to_string())?;
            Ok((found, to.is_some()))
        });
        match opened.expect("it does not hang") {
            Ok(found) => ends.push(found),
            Err(e) if always || e.starts_with("again") => panic!("crash {n}: {e}"),
            Err(_) => {}
        }
    }
    assert!(ends.windows(2).all(|two| two[0] == two[1]), "crash {n}: {ends:?}");
    if let Some((found, true)) = ends.first() {
        assert_eq!(*found, shape(&plan(last)), "crash {n}");
        assert_eq!(ends.len(), 3, "crash {n}: every file leads there");
    }
    ends.first().is_some_and(|(_, moved)| *moved)
}

/// While data is moved, the hierarchy has devices of both files, each with what is relative to its own folder.
#[test]
fn a_member_is_replaced_by_a_file_that_lies_elsewhere() {
    let world = world();
    world.env().put_disk("/new/b.img", Image::blank(DiskOptions::new(SIZE)));
    let env: Rc<dyn Env> = world.env();
    let done = world.run(async move {
        let first = plan(&file(&["a", "b"], &vm1("['a','b']")));
        first.create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(first, Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let export_node = h.export_node("vm1").expect("an export node");
        for n in BLOCKS {
            put(&export_node, n, 1).await;
        }
        let text = file(&["a", "c"], &vm1("['a','c']")).replace("c.img", "b.img");
        let text = text.replace("'a.img'", "'/srv/a.img'").replace("unix:", "unix:/srv/");
        let next = Plan::parse(&text, "g.toml", Path::new("/new"), &lamina_layers::KINDS);
        let next = next.unwrap_or_else(|e| panic!("{e}"));
        let h = go_to(h, &next, &env).await.unwrap_or_else(|e| panic!("{e}"));
        h.close().await.unwrap();
        let h = Hierarchy::build(next, env).await.unwrap_or_else(|e| panic!("{e}"));
        let export_node = h.export_node("vm1").expect("an export node");
        for n in BLOCKS {
            assert_eq!(get(&export_node, n).await, stamp(n, 1), "block {n}");
        }
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}

/// A concat remembers a new member only a second later. The next change may come before that.
#[test]
fn members_that_join_one_right_after_the_other_keep_their_places() {
    let world = world();
    let env: Rc<dyn Env> = world.env();
    let done = world.run(async move {
        let first = file(&["a"], &vm1("['a']"));
        plan(&first).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let mut h = Hierarchy::build(plan(&first), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        h = go(h, &file(&["a", "c"], &vm1("['a','c']")), &env).await.unwrap_or_else(|e| panic!("{e}"));
        let export_node = h.export_node("vm1").expect("an export node");
        for n in BLOCKS {
            put(&export_node, n, 1).await;
        }
        let size = export_node.geometry().size;
        // Another order of the names means nothing: the data of `c` stays at its addresses.
        h = go(h, &file(&["a", "b", "c"], &vm1("['a','b','c']")), &env)
            .await
            .unwrap_or_else(|e| panic!("{e}"));
        assert!(export_node.geometry().size > size);
        for n in BLOCKS {
            assert_eq!(get(&export_node, n).await, stamp(n, 1), "block {n}");
        }
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}

#[test]
fn a_view_that_nobody_uses_goes_and_one_in_use_is_not_taken_from_under_its_export() {
    let world = world();
    let env: Rc<dyn Env> = world.env();
    let done = world.run(async move {
        let parts = "[device.parts]\ntype='partition'\nover='a'\n\
                     partitions=[{name='root',size='1MiB'},{name='home',size='1MiB'}]\n";
        let view = |device: &str, name: &str| {
            format!("[device.{device}]\ntype='view'\nover='parts'\nname='{name}'\n")
        };
        let one = file(&["a"], &(parts.to_owned() + &view("vm1", "root")));
        let two = file(&["a"], &(parts.to_owned() + &view("vm1", "root") + &view("other", "home")));
        plan(&one).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let mut h = Hierarchy::build(plan(&one), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        for text in [&two, &one] {
            h = go(h, text, &env).await.unwrap_or_else(|e| panic!("{e}"));
        }
        let bare = file(&["a"], "").replace("device='vm1'", "device='a'");
        let refused = h.change(plan(&bare), &env).await.map(drop).expect_err("vm1 is in use").to_string();
        assert!(refused.contains("cannot be taken away from under those who use it"), "{refused}");
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}

#[test]
fn a_member_that_was_taken_out_is_stale() {
    let world = world();
    let sim = world.env();
    let env: Rc<dyn Env> = sim.clone();
    let said = world.run(async move {
        let linear = |over: &str| format!("[device.vm1]\ntype='linear'\nover='{over}'\nsize='1MiB'\n");
        let both = file(&["a", "b"], &(linear("a") + "[device.spare]\ntype='linear'\nover='b'\n"));
        let one = file(&["a"], &linear("a"));
        plan(&both).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&both), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let (h, wrong) = h.change(plan(&one), &env).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(wrong.is_empty(), "{wrong:?}");
        h.close().await.unwrap();
        let h = Hierarchy::build(plan(&one), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(h.warnings().is_empty(), "{}", h.warnings());
        h.close().await.unwrap();
        Hierarchy::build(plan(&both), Rc::clone(&env)).await.expect_err("b has left").to_string()
    });
    let said = said.unwrap();
    assert!(said.contains("device \"b\"") && said.contains("stale"), "{said}");
}

/// A device over one that grows may need its new size in the same change.
#[test]
fn a_device_grows_and_what_stands_on_it_takes_the_new_size() {
    let joined = |over: &str| format!("[device.disk]\ntype='concat'\nover={over}\n");
    let part = |name: &str, over: &str, offset: u64, size: u64| {
        format!("[device.{name}]\ntype='linear'\nover='{over}'\noffset='{offset}MiB'\nsize='{size}MiB'\n")
    };
    let first = file(&["a"], &(joined("['a']") + &part("vm1", "disk", 0, 2)));
    for above in [
        part("vm1", "disk", 0, 5),
        part("vm1", "wide", 0, 4) + &part("wide", "disk", 0, 5),
        part("vm1", "disk", 0, 2) + &part("more", "disk", 3, 2),
    ] {
        let world = world();
        let env: Rc<dyn Env> = world.env();
        let first = plan(&first);
        let done = world.run(async move {
            first.create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
            let h = Hierarchy::build(first, Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
            let export_node = h.export_node("vm1").expect("an export node");
            put(&export_node, 7, 1).await;
            let next = file(&["a", "c"], &(joined("['a','c']") + &above));
            let h = go(h, &next, &env).await.unwrap_or_else(|e| panic!("{above}: {e}"));
            assert_eq!(get(&export_node, 7).await, stamp(7, 1));
            h.close().await.unwrap();
        });
        assert!(done.is_ok(), "{done:?}");
    }
}

#[test]
fn what_finds_no_room_on_a_device_that_grows_leaves_everything_as_it_was() {
    let world = world();
    let env: Rc<dyn Env> = world.env();
    let disk = |over: &str| format!("[device.disk]\ntype='concat'\nover={over}\n");
    let vm1 = "[device.vm1]\ntype='linear'\nover='disk'\nsize='2MiB'\n";
    let more = "[device.more]\ntype='linear'\nover='disk'\nsize='9MiB'\n";
    let first = file(&["a"], &(disk("['a']") + vm1));
    let next = file(&["a", "c"], &(disk("['a','c']") + vm1 + more));
    let done = world.run(async move {
        plan(&first).create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(plan(&first), Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        put(&h.export_node("vm1").expect("an export node"), 7, 1).await;
        let refused = h.change(plan(&next), &env).await.expect_err("there is no room").to_string();
        assert!(refused.contains("device \"more\": key \"size\": disk has only"), "{refused}");
        assert_eq!(get(&h.export_node("vm1").expect("an export node"), 7).await, stamp(7, 1));
        h.close().await.unwrap();
        let h = Hierarchy::build(plan(&first), env).await.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(get(&h.export_node("vm1").expect("an export node"), 7).await, stamp(7, 1));
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}

/// A view shares the state of the device below: not with the layer that is there before the change.
#[test]
fn a_view_of_a_table_that_is_exchanged_in_the_same_change_shares_the_new_one() {
    let world = Simulation::new(11);
    world.env().put_disk("/srv/a.img", Image::blank(DiskOptions::new(2 * SIZE)));
    let env: Rc<dyn Env> = world.env();
    let parts = |over: &str| {
        format!(
            "[device.parts]\ntype='partition'\nover='{over}'\n\
             partitions=[{{name='root',size='1MiB'}},{{name='home',size='1MiB'}}]\n"
        )
    };
    let root = "[device.vm1]\ntype='view'\nover='parts'\nname='root'\n";
    let home = "[device.home]\ntype='view'\nover='parts'\nname='home'\n";
    let slow = "[device.slow]\ntype='delay'\nover='a'\nwrite='1ms'\n";
    let first = plan(&file(&["a"], &(parts("a") + root)));
    let next = file(&["a"], &(parts("slow") + root + home + slow));
    let done = world.run(async move {
        first.create(Rc::clone(&env), 0).await.unwrap_or_else(|e| panic!("{e}"));
        let h = Hierarchy::build(first, Rc::clone(&env)).await.unwrap_or_else(|e| panic!("{e}"));
        let h = go(h, &next, &env).await.unwrap_or_else(|e| panic!("{e}"));
        let home = h.node("home").expect("a view");
        put(&home, 7, 1).await;
        let args = json!({ "name": "home", "size": "2MiB" });
        let parts = h.node("parts").expect("a table");
        parts.control(Command { name: "resize".into(), args }).await.unwrap_or_else(|e| panic!("{e}"));
        h.refresh();
        assert_eq!(home.geometry().size, 2 << 20);
        assert_eq!(get(&home, 7).await, stamp(7, 1));
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}
