//! A hierarchy becomes another one while clients write to it and check their reads.

use lamina_block::{Buf, Command, Durability, Env, Io, Node, Signal};
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::{DiskOptions, Image, SimEnv, Simulation};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

/// The end of every file here.
const EXPORT: &str = "\n[export.vm1]\ndevice = 'vm1'\nnbd = 'unix:vm1.sock'\n";
const DISK: u64 = 1 << 20;
const WRITERS: u64 = 8;

fn plan(devices: &str) -> Plan {
    let text = if devices.contains("[export.") { devices.into() } else { format!("{devices}{EXPORT}") };
    Plan::parse(&text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS).unwrap_or_else(|e| panic!("{e}"))
}

const SAN: &str = "[device.san]\ntype='file'\npath='san.img'\n";

/// `vm1` over `san` by way of `between`, given from the top.
fn stack(between: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let names = between.iter().map(|(name, _)| *name).skip(1).chain(["san"]);
    for ((name, keys), below) in between.iter().zip(names) {
        text += &format!("[device.{name}]\nover='{below}'\n{keys}\n");
    }
    text + SAN
}

/// Writers, each on blocks of its own, that read back their data.
struct Load {
    export_node: Rc<Node>,
    stop: Cell<bool>,
    running: Cell<u64>,
    ended: Signal,
    rounds: Cell<u64>,
    wrong: RefCell<Vec<String>>,
}

impl Load {
    fn start(env: &Rc<SimEnv>, export_node: Rc<Node>) -> Rc<Load> {
        let load = Rc::new(Load {
            export_node,
            stop: Cell::new(false),
            running: Cell::new(WRITERS),
            ended: Signal::new(),
            rounds: Cell::new(0),
            wrong: RefCell::default(),
        });
        for writer in 0..WRITERS {
            let load = Rc::clone(&load);
            env.spawn(Box::pin(async move {
                let mut round = 0u64;
                while !load.stop.get() {
                    round += 1;
                    if let Err(e) = load.round(writer, round).await {
                        load.wrong.borrow_mut().push(format!("writer {writer}, round {round}: {e}"));
                        break;
                    }
                    load.rounds.set(load.rounds.get() + 1);
                }
                load.running.set(load.running.get() - 1);
                load.ended.notify();
            }));
        }
        load
    }

    async fn round(&self, writer: u64, round: u64) -> Result<(), String> {
        let at = (writer * 64 + round % 64) * 512;
        let stamp = (writer << 32 | round).to_le_bytes().repeat(64);
        let failed = |e: lamina_block::Error| e.to_string();
        let write = Io::write(at, Buf::from_vec(stamp.clone()), Durability::Cached);
        self.export_node.submit(write).await.map_err(failed)?;
        if round.is_multiple_of(16) {
            self.export_node.submit(Io::flush()).await.map_err(failed)?;
        }
        let read = Buf::zeroed(512);
        self.export_node.submit(Io::read(at, read.clone())).await.map_err(failed)?;
        if read.to_vec() == stamp { Ok(()) } else { Err("reads something else than was written".into()) }
    }

    async fn pass(&self, env: &SimEnv) {
        let goal = self.rounds.get() + 50;
        while self.rounds.get() < goal && self.wrong.borrow().is_empty() {
            env.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn end(&self) {
        self.stop.set(true);
        self.ended.until(|| self.running.get() == 0).await;
        assert_eq!(*self.wrong.borrow(), [] as [String; 0]);
    }
}

/// A world with disks, a hierarchy of the first of `files` under load, changed to each of the others in turn.
fn through(seed: u64, files: &[String]) {
    let world = Simulation::new(seed);
    for name in ["san", "other"] {
        world.env().put_disk(format!("/srv/{name}.img"), Image::blank(DiskOptions::new(DISK)));
    }
    let (sim, files) = (world.env(), files.to_vec());
    let env: Rc<dyn Env> = sim.clone();
    let done = world.run(async move {
        let mut h = Hierarchy::build(plan(&files[0]), Rc::clone(&env)).await.unwrap();
        let load = Load::start(&sim, h.export_node("vm1").unwrap());
        for file in &files[1..] {
            load.pass(&sim).await;
            let (changed, wrong) = h.change(plan(file), &env).await.unwrap_or_else(|e| panic!("{e}"));
            assert!(wrong.is_empty(), "{wrong:?}");
            h = changed;
            let names: Vec<_> = plan(file).devices().iter().map(|d| (d.name.clone(), d.kind.name)).collect();
            let nodes: Vec<_> = h.nodes().iter().map(|n| (n.name().to_owned(), n.kind())).collect();
            assert_eq!(nodes, names);
            load.pass(&sim).await;
        }
        load.end().await;
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}

const LINEAR: &str = "type='linear'";
const DELAY: &str = "type='delay'\nwrite='2ms'\nread={uniform={min='0s',max='3ms'}}";

#[test]
fn layers_come_and_go_under_load() {
    for seed in 0..20 {
        let plain = stack(&[("vm1", LINEAR)]);
        let slow = stack(&[("vm1", LINEAR), ("slow", DELAY)]);
        let slower = stack(&[("vm1", LINEAR), ("slow", "type='delay'\nwrite='5ms'")]);
        let two = stack(&[("vm1", LINEAR), ("slow", DELAY), ("lab", "type='fault'")]);
        let swapped = stack(&[("vm1", LINEAR), ("lab", "type='fault'"), ("slow", DELAY)]);
        let other_kind = stack(&[("vm1", "type='fault'"), ("slow", LINEAR)]);
        through(seed, &[plain.clone(), slow, slower, two, swapped, other_kind, plain]);
    }
}

#[test]
fn an_export_is_pointed_to_another_device_and_back() {
    let export = |device: &str| format!("\n[export.vm1]\ndevice='{device}'\nnbd='unix:vm1.sock'\n");
    let plain = stack(&[("vm1", LINEAR)]);
    let over = format!("[device.top]\nover='vm1'\n{DELAY}\n{plain}");
    let below = format!("{SAN}{}", export("san"));
    through(1, &[plain.clone() + &export("vm1"), over + &export("top"), plain + &export("vm1"), below]);
}

/// The report when `first` is asked to become `second`; the hierarchy must still work as before.
fn refused(first: &str, second: &str) -> String {
    let world = Simulation::new(5);
    for (name, size) in [("san", DISK), ("other", DISK), ("small", DISK / 2)] {
        world.env().put_disk(format!("/srv/{name}.img"), Image::blank(DiskOptions::new(size)));
    }
    let (sim, first, second) = (world.env(), plan(first), plan(second));
    let env: Rc<dyn Env> = sim.clone();
    world
        .run(async move {
            let h = Hierarchy::build(first, Rc::clone(&env)).await.unwrap();
            let before = h.tree();
            if let Some(lab) = h.node("lab") {
                let args = json!({"rules": [{"op": ["flush"], "count": 1}]});
                lab.control(Command { name: "set".into(), args }).await.unwrap();
            }
            let load = Load::start(&sim, h.export_node("vm1").unwrap());
            let report = h.change(second, &env).await.expect_err("it is refused");
            assert_eq!(h.tree(), before);
            if h.node("lab").is_none() {
                load.pass(&sim).await;
                load.end().await;
            }
            load.stop.set(true);
            // No device of the second file is open: another hierarchy may use it.
            for path in ["/srv/other.img", "/srv/small.img"] {
                let text =
                    format!("[device.x]\ntype='file'\npath='{path}'\n[export.x]\ndevice='x'\nnbd='unix:x'\n");
                let free = Hierarchy::build(plan(&text), Rc::clone(&env)).await.unwrap();
                free.close().await.unwrap();
            }
            report.to_string()
        })
        .unwrap()
}

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    let plain = stack(&[("vm1", LINEAR)]);
    let says = |second: &str, words: &str| {
        let said = refused(&plain, second);
        assert!(said.contains(words), "{said}\n(expected: {words})");
    };
    says(
        &plain.replace("san.img", "other.img"),
        "device \"san\": is at work with other keys, and a sink keeps its own",
    );
    says(
        &stack(&[("vm1", "type='linear'\nsize='64KiB'")]),
        "device \"vm1\": the device would shrink from 1MiB to 64KiB",
    );
    let other = "[device.vm1]\ntype='linear'\nover='gone'\n[device.gone]\ntype='file'\npath='gone.img'\n\
                 [device.other]\ntype='file'\npath='other.img'\n";
    says(other, "device \"gone\": ");
    let small = "[device.vm1]\ntype='linear'\nover='small'\n[device.small]\ntype='file'\npath='small.img'\n";
    says(small, "the device would shrink from 1MiB to 512KiB under its users");

    let moved = format!("{plain}\n[export.vm1]\ndevice='vm1'\nnbd='unix:other.sock'\n");
    says(&moved, "export \"vm1\": is served with other keys");
}

#[test]
fn a_path_means_where_it_leads() {
    let plain = stack(&[("vm1", LINEAR)]);
    let world = Simulation::new(1);
    world.env().put_disk("/srv/san.img", Image::blank(DiskOptions::new(DISK)));
    let env: Rc<dyn Env> = world.env();
    let done = world.run(async move {
        let h = Hierarchy::build(plan(&plain), env).await.unwrap();
        let same = h.steps(&plan(&plain.replace("'san.img'", "'/srv/./san.img'"))).unwrap();
        assert!(same.is_empty(), "{same:?}");
        let text = format!("{plain}{EXPORT}");
        let elsewhere = Plan::parse(&text, "f.toml", Path::new("/tmp"), &lamina_layers::KINDS).unwrap();
        let said = h.steps(&elsewhere).unwrap_err().to_string();
        assert!(said.contains("a sink keeps its own"), "{said}");
        h.close().await.unwrap();
    });
    assert!(done.is_ok(), "{done:?}");
}

#[test]
fn a_device_that_cannot_be_flushed_is_left_as_it_is() {
    let before = stack(&[("vm1", LINEAR), ("lab", "type='fault'")]);
    let said = refused(&before, &stack(&[("vm1", DELAY), ("lab", "type='fault'")]));
    assert!(said.contains("cannot be flushed, so nothing was changed"), "{said}");
}

#[test]
fn exports_come_and_go() {
    let plain = stack(&[("vm1", LINEAR)]);
    let two = format!("{plain}{EXPORT}[export.more]\ndevice='san'\nnbd='unix:vm1.sock'\n");
    through(2, &[plain.clone(), two, plain]);
}

#[test]
fn what_remembers_where_data_is_is_not_rearranged() {
    let two = |over: &str, more: &str| {
        let sink = |name: &str| format!("[device.{name}]\ntype='file'\npath='{name}.img'\n");
        format!("[device.vm1]\ntype='stripe'\nover={over}\n{more}\n{}{}", sink("san"), sink("other"))
    };
    let refuse = |second: &str, words: &str| {
        let said = refused(&two("['san','other']", ""), second);
        assert!(said.contains(words), "{said}\n(expected: {words})");
    };
    refuse(&two("['other','san']", ""), "the same devices below in another order");
    refuse(
        &two("['san','other']", "unit='4KiB'"),
        "has other keys, which a device that remembers something takes over",
    );
    refuse(&two("['san']", ""), "would have to move data");
    refuse(&two("['san','other']", "").replace("stripe", "concat"), "would get another type");
}

#[test]
fn the_steps_are_told_before_they_are_taken() {
    let world = Simulation::new(1);
    world.env().put_disk("/srv/san.img", Image::blank(DiskOptions::new(DISK)));
    let env: Rc<dyn Env> = world.env();
    let told = world.run(async move {
        let before = stack(&[("vm1", LINEAR), ("lab", "type='fault'")]);
        let h = Hierarchy::build(plan(&before), env).await.unwrap();
        let after = stack(&[("top", LINEAR), ("vm1", LINEAR), ("slow", DELAY)]);
        let after = format!("{after}\n[export.vm1]\ndevice='top'\nnbd='unix:vm1.sock'\n");
        let steps = h.steps(&plan(&after)).unwrap();
        h.close().await.unwrap();
        steps.iter().map(|step| format!("{step}\n")).collect::<String>()
    });
    assert_eq!(
        told.unwrap(),
        "create    slow: delay over san\n\
         exchange  vm1: over slow, before over lab\n\
         create    top: linear over vm1\n\
         point     export vm1: to top, before vm1\n\
         delete    lab\n"
    );
}
