//! Commands that change data below other devices: no device above goes on with stale state.

use lamina_block::{Buf, Command, Durability, Env, Io, Node, Result};
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::{DiskOptions, Image, Loss, SimEnv, Simulation};
use serde_json::{Value, json};
use std::path::Path;
use std::rc::Rc;

const DISKS: [&str; 4] = ["a", "b", "c", "fast"];

/// A volume with snapshots, `snap`, on `a`.
const SNAP: &str = "[device.snap]\ntype='snapshot'\nover='a'\nextent='4KiB'\nsize='2MiB'\n";

fn disks() -> String {
    DISKS.iter().map(|name| format!("[device.{name}]\ntype='file'\npath='{name}.img'\n")).collect()
}

/// A file with the devices `above` over the disks, the last of them being `top`.
fn plan(above: &str) -> Plan {
    let text = format!(
        "[hierarchy]\nname='vm1'\n{}{above}[export.top]\ndevice='top'\nnbd='unix:top.sock'\n",
        disks()
    );
    Plan::parse(&text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS).unwrap_or_else(|e| panic!("{e}"))
}

/// A cache with this policy over `store`.
fn cached(store: &str, policy: &str) -> String {
    format!(
        "[device.cache]\ntype='flash'\nover='fast'\n\
         [device.top]\ntype='accelerate'\nover=['{store}','cache']\npolicy='{policy}'\n"
    )
}

async fn open(env: &Rc<SimEnv>, above: &str) -> Hierarchy {
    Hierarchy::build(plan(above), Rc::clone(env) as _).await.unwrap_or_else(|e| panic!("{e}"))
}

struct Open {
    hierarchy: Hierarchy,
    export_node: Rc<Node>,
}

impl Open {
    async fn of(env: &Rc<SimEnv>, above: &str) -> Open {
        let hierarchy = open(env, above).await;
        let export_node = hierarchy.export_node("top").expect("an export node");
        Open { hierarchy, export_node }
    }

    async fn write(&self, block: u64, value: u8) {
        let data = Buf::from_vec(vec![value; 4096]);
        let write = Io::write(block * 4096, data, Durability::Cached);
        self.export_node.submit(write).await.unwrap_or_else(|e| panic!("{value} at {block}: {e}"));
    }

    async fn read(&self, block: u64) -> u8 {
        let buf = Buf::zeroed(4096);
        let read = Io::read(block * 4096, buf.clone());
        self.export_node.submit(read).await.unwrap_or_else(|e| panic!("block {block}: {e}"));
        buf.to_vec()[0]
    }

    async fn ctl(&self, device: &str, name: &str, args: Value) -> Result<Value> {
        let command = Command { name: name.into(), args };
        self.hierarchy.control(device, command).await.expect("there is such a device")
    }

    async fn close(self) {
        self.hierarchy.close().await.unwrap_or_else(|e| panic!("{e}"));
    }
}

fn monday() -> Value {
    json!({ "name": "monday" })
}

/// Makes the hierarchy, and runs `test` on it.
fn run<F: Future<Output = ()> + 'static>(above: &str, test: impl FnOnce(Rc<SimEnv>, String) -> F + 'static) {
    let world = Simulation::new(3);
    let env = world.env();
    for name in DISKS {
        env.put_disk(format!("/srv/{name}.img"), Image::blank(DiskOptions::new(4 << 20)));
    }
    let above = above.to_owned();
    let done = world.run(async move {
        plan(&above).create(Rc::clone(&env) as _, 0).await.unwrap_or_else(|e| panic!("{e}"));
        test(env, above).await;
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"));
}

/// A snapshot has all writes from above, dirty or not; after a rollback reads from above get its data, at once and
/// later.
async fn goes_back(env: Rc<SimEnv>, above: String) {
    let open = Open::of(&env, &above).await;
    open.write(1, 1).await;
    open.write(3, 5).await;
    open.ctl("snap", "snapshot", monday()).await.unwrap_or_else(|e| panic!("{e}"));
    open.write(1, 2).await;
    assert_eq!((open.read(1).await, open.read(3).await), (2, 5));
    open.ctl("snap", "rollback", monday()).await.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((open.read(1).await, open.read(3).await), (1, 5));
    open.write(2, 7).await;
    open.close().await;
    let open = Open::of(&env, &above).await;
    assert_eq!((open.read(1).await, open.read(2).await, open.read(3).await), (1, 7, 5));
    open.close().await;
}

#[test]
fn a_rollback_under_a_write_back_cache_is_what_is_read() {
    run(&format!("{SNAP}{}", cached("snap", "write-back")), goes_back);
}

#[test]
fn a_rollback_under_a_write_through_cache_is_what_is_read() {
    run(&format!("{SNAP}{}", cached("snap", "write-through")), goes_back);
}

#[test]
fn a_rollback_under_layers_that_remember_nothing_is_what_is_read() {
    let part = "[device.part]\ntype='linear'\nover='snap'\nsize='256KiB'\n";
    run(&format!("{SNAP}{part}{}", cached("part", "write-back")), goes_back);
}

#[test]
fn a_rollback_under_a_log_of_epochs_is_what_is_read() {
    let redo =
        "[device.log]\ntype='linear'\nover='b'\n[device.redo]\ntype='redo'\nover='snap'\nmetadata='log'\n";
    run(&format!("{SNAP}{redo}{}", cached("redo", "write-back")), goes_back);
}

/// The power fails at some moment of a rollback under a cache: reads get the old data or the new.
#[test]
fn a_power_loss_during_a_rollback_leaves_no_old_block_over_a_new_one() {
    let above = format!("{SNAP}{}", cached("snap", "write-back"));
    let mut found = [false; 2];
    for moment in (0..60).map(|n| n * 150) {
        let world = Simulation::new(moment);
        let env = world.env();
        for name in DISKS {
            env.put_disk(format!("/srv/{name}.img"), Image::blank(DiskOptions::new(4 << 20)));
        }
        let file = above.clone();
        let images = world.run(async move {
            plan(&file).create(Rc::clone(&env) as _, 0).await.unwrap_or_else(|e| panic!("{e}"));
            let open = Rc::new(Open::of(&env, &file).await);
            for block in 0..16 {
                open.write(block, 1).await;
            }
            open.ctl("snap", "snapshot", monday()).await.unwrap_or_else(|e| panic!("{e}"));
            for block in 0..16 {
                open.write(block, 2).await;
                open.read(block).await;
            }
            open.export_node.submit(Io::flush()).await.unwrap_or_else(|e| panic!("{e}"));
            let goes = Rc::clone(&open);
            let _going = env.start(async move { goes.ctl("snap", "rollback", monday()).await });
            env.sleep(std::time::Duration::from_micros(moment)).await;
            env.images(Loss::ALL[moment as usize % 4], moment)
        });
        let images = images.unwrap_or_else(|hang| panic!("{hang:?}"));
        let world = Simulation::from_images(moment, &images);
        let (env, file) = (world.env(), above.clone());
        let read = world.run(async move {
            let open = Open::of(&env, &file).await;
            let mut read = Vec::new();
            for block in 0..16 {
                read.push(open.read(block).await);
            }
            open.close().await;
            read
        });
        let read = read.unwrap_or_else(|hang| panic!("{hang:?}"));
        assert!(read == [1; 16] || read == [2; 16], "after {moment} us: {read:?}");
        found[usize::from(read[0] - 1)] = true;
    }
    assert_eq!(found, [true; 2], "the moments are before and after the change");
}

/// Lost data does not come back from the flash when the volume grows again.
#[test]
fn what_was_cut_off_under_a_cache_is_gone() {
    run(&format!("{SNAP}{}", cached("snap", "write-back")), |env, above| async move {
        let open = Open::of(&env, &above).await;
        open.write(100, 7).await;
        open.write(4, 4).await;
        let resize = |size: &str| json!({ "size": size, "force": true });
        open.ctl("snap", "resize", resize("256KiB")).await.unwrap_or_else(|e| panic!("{e}"));
        open.hierarchy.refresh();
        assert_eq!(open.export_node.geometry().size, 256 << 10);
        open.write(5, 5).await;
        open.ctl("snap", "resize", resize("512KiB")).await.unwrap_or_else(|e| panic!("{e}"));
        open.hierarchy.refresh();
        assert_eq!((open.read(100).await, open.read(4).await, open.read(5).await), (0, 4, 5));
        open.close().await;
    });
}

/// Layers that remember data below, or which devices have the same data, refuse, and nothing has happened.
#[test]
fn who_remembers_what_is_below_refuses() {
    let two = "[device.other]\ntype='snapshot'\nover='b'\nextent='4KiB'\nsize='2MiB'\n";
    let third = "[device.third]\ntype='linear'\nover='c'\nsize='2MiB'\n";
    let stacks = [
        (format!("{SNAP}{two}[device.top]\ntype='mirror'\nover=['snap','other']\n"), "is one of its devices"),
        (
            format!(
                "{SNAP}{two}{third}[device.top]\ntype='parity'\nover=['snap','other','third']\nunit='4KiB'\n"
            ),
            "is one of its devices",
        ),
        (format!("{SNAP}[device.top]\ntype='integrity'\nover='snap'\n"), "a digest of every block"),
        (format!("{SNAP}[device.top]\ntype='fingerprint'\nover='snap'\n"), "a digest of every block"),
        (format!("{SNAP}[device.top]\ntype='snapshot'\nover='snap'\nextent='4KiB'\n"), "knows where"),
        (
            format!(
                "{SNAP}[device.cache]\ntype='flash'\nover='snap'\n[device.top]\ntype='accelerate'\nover=['b','cache']\n"
            ),
            "finds its blocks on cache",
        ),
    ];
    for (above, says) in stacks {
        run(&above, move |env, above| async move {
            let open = Open::of(&env, &above).await;
            open.write(1, 1).await;
            open.ctl("snap", "snapshot", monday()).await.unwrap_or_else(|e| panic!("{above}: {e}"));
            open.write(1, 2).await;
            for (name, args) in
                [("rollback", monday()), ("resize", json!({ "size": "64KiB", "force": true }))]
            {
                let e = open.ctl("snap", name, args).await.expect_err("it is refused").to_string();
                assert!(
                    e.starts_with(&format!("snap: {name}: not under ")) && e.contains(says),
                    "{above}: {e}"
                );
            }
            assert_eq!(open.read(1).await, 2, "{above}");
            open.write(2, 3).await;
            open.close().await;
        });
    }
}

/// A device is asked only about devices below it.
#[test]
fn a_partition_is_cut_off_beside_one_with_a_cache() {
    let above = format!(
        "[device.parts]\ntype='partition'\nover='a'\n{}[device.left]\ntype='linear'\nover='b'\n",
        cached("left", "write-back")
    );
    run(&above, |env, above| async move {
        let open = Open::of(&env, &above).await;
        let args = json!({ "name": "root", "size": "2MiB" });
        open.ctl("parts", "create", args).await.unwrap_or_else(|e| panic!("{e}"));
        let args = json!({ "name": "root", "size": "1MiB", "force": true });
        open.ctl("parts", "resize", args).await.unwrap_or_else(|e| panic!("{e}"));
        open.close().await;
    });
}

/// A store that takes no writes is not rolled back under dirty data of the cache.
#[test]
fn a_rollback_waits_for_the_cache_and_fails_with_it() {
    run(&format!("{SNAP}{}", cached("snap", "write-back")), |env, above| async move {
        let open = Open::of(&env, &above).await;
        open.ctl("snap", "snapshot", monday()).await.unwrap_or_else(|e| panic!("{e}"));
        open.write(1, 2).await;
        env.disk("/srv/a.img").expect("a disk").set_presence(lamina_sim::Presence::Failing);
        let e = open.ctl("snap", "rollback", monday()).await.expect_err("it is refused").to_string();
        assert!(e.contains("top"), "{e}");
        assert_eq!(open.read(1).await, 2);
        env.disk("/srv/a.img").expect("a disk").set_presence(lamina_sim::Presence::Here);
        assert_eq!(open.read(1).await, 2);
        open.close().await;
    });
}
