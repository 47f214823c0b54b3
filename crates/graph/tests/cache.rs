//! A hierarchy goes on without the member that its cache is on, if nothing is lost with it, and says so otherwise.

use lamina_block::{Buf, Command, Durability, Env, Io, Node};
use lamina_graph::{Hierarchy, Plan};
use lamina_sim::{DiskOptions, Image, Presence, SimEnv, Simulation};
use serde_json::{Value, json};
use std::path::Path;
use std::rc::Rc;

/// The member of the cache is `fast`.
fn plan(policy: &str, fast: &str) -> Plan {
    let text = format!(
        "[hierarchy]\nname='vm1'\n\
         [device.slow]\ntype='file'\npath='slow.img'\n[device.fast]\ntype='file'\npath='{fast}.img'\n\
         [device.cache]\ntype='flash'\nover='fast'\n\
         [device.vm1]\ntype='accelerate'\nover=['slow','cache']\npolicy='{policy}'\n\
         [export.vm1]\ndevice='vm1'\nnbd='unix:vm1.sock'\n"
    );
    Plan::parse(&text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS).unwrap_or_else(|e| panic!("{e}"))
}

async fn open(env: &Rc<SimEnv>, policy: &str, fast: &str) -> Hierarchy {
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    Hierarchy::build(plan(policy, fast), world).await.unwrap_or_else(|e| panic!("{e}"))
}

fn set_fast(env: &Rc<SimEnv>, presence: Presence) {
    env.disk("/srv/fast.img").expect("a disk").set_presence(presence);
}

async fn write(node: &Rc<Node>, value: u8) {
    let data = Buf::from_vec(vec![value; 4096]);
    node.submit(Io::write(8192, data, Durability::Cached)).await.unwrap_or_else(|e| panic!("{value}: {e}"));
    node.submit(Io::flush()).await.unwrap_or_else(|e| panic!("{value}: {e}"));
}

async fn read(node: &Rc<Node>) -> Result<u8, String> {
    let buf = Buf::zeroed(4096);
    node.submit(Io::read(8192, buf.clone())).await.map_err(|e| e.to_string())?;
    Ok(buf.to_vec()[0])
}

fn info(h: &Hierarchy, key: &str) -> Value {
    h.node("vm1").expect("a device").info()[key].clone()
}

fn run<F: Future<Output = ()> + 'static>(policy: &'static str, test: impl FnOnce(Rc<SimEnv>) -> F + 'static) {
    let world = Simulation::new(5);
    let env = world.env();
    for name in ["/srv/slow.img", "/srv/fast.img"] {
        env.put_disk(name, Image::blank(DiskOptions::new(4 << 20)));
    }
    let done = world.run(async move {
        plan(policy, "fast").create(Rc::clone(&env) as _, 0).await.unwrap_or_else(|e| panic!("{e}"));
        test(env).await;
    });
    done.unwrap_or_else(|hang| panic!("{hang:?}"));
}

#[test]
fn a_cache_that_dies_under_write_through_is_out() {
    run("write-through", |env| async move {
        let h = open(&env, "write-through", "fast").await;
        let export_node = h.export_node("vm1").expect("an export node");
        write(&export_node, 1).await;
        set_fast(&env, Presence::Failing);
        write(&export_node, 2).await;
        assert_eq!((read(&export_node).await, info(&h, "policy")), (Ok(2), json!("uncached")));
        h.close().await.unwrap_or_else(|e| panic!("{e}"));
        // The member is known to be evicted: no option is needed.
        let h = open(&env, "write-through", "gone").await;
        let export_node = h.export_node("vm1").expect("an export node");
        assert_eq!(read(&export_node).await, Ok(2));
        write(&export_node, 3).await;
        h.close().await.unwrap_or_else(|e| panic!("{e}"));
        // The member is there again, with old data.
        set_fast(&env, Presence::Here);
        let h = open(&env, "write-through", "fast").await;
        let export_node = h.export_node("vm1").expect("an export node");
        assert_eq!((read(&export_node).await, info(&h, "policy")), (Ok(3), json!("write-through")));
        write(&export_node, 4).await;
        assert_eq!(read(&export_node).await, Ok(4));
        h.close().await.unwrap_or_else(|e| panic!("{e}"));
    });
}

#[test]
fn a_cache_that_is_missing_and_owes_something_stops_its_volume() {
    run("write-back", |env| async move {
        let h = open(&env, "write-back", "fast").await;
        let export_node = h.export_node("vm1").expect("an export node");
        env.disk("/srv/slow.img").expect("a disk").set_presence(Presence::Failing);
        write(&export_node, 1).await;
        env.disk("/srv/slow.img").expect("a disk").set_presence(Presence::Here);
        drop((h, export_node));
        let without = env.twins();
        let world = Simulation::from_images(5, &without);
        let env = world.env();
        let done = world.run(async move {
            let world: Rc<dyn Env> = Rc::clone(&env) as _;
            let refused = Hierarchy::build(plan("write-back", "gone"), Rc::clone(&world))
                .await
                .unwrap_err()
                .to_string();
            assert!(refused.contains("--degraded"), "{refused}");
            let h = Hierarchy::build_degraded(plan("write-back", "gone"), world)
                .await
                .unwrap_or_else(|e| panic!("{e}"));
            let export_node = h.export_node("vm1").expect("an export node");
            let said = read(&export_node).await.expect_err("stopped");
            assert!(said.contains("lamina ctl vm1 accept-loss"), "{said}");
            let accept = Command { name: "accept-loss".into(), args: json!({}) };
            h.node("vm1").expect("a device").control(accept).await.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(read(&export_node).await, Ok(0));
            write(&export_node, 2).await;
            h.close().await.unwrap_or_else(|e| panic!("{e}"));
            let h = open(&env, "write-back", "fast").await;
            assert_eq!(read(&h.export_node("vm1").expect("an export node")).await, Ok(2));
            h.close().await.unwrap_or_else(|e| panic!("{e}"));
        });
        done.unwrap_or_else(|hang| panic!("{hang:?}"));
    });
}

/// Two parts of a hierarchy that stand on members of their own: the state that one part records while it is closed is
/// on the members of both, and a leg of the other part, which comes later in the file, is not evicted for being closed
/// before.
#[test]
fn nothing_is_evicted_by_being_closed() {
    let text = "[hierarchy]\nname='vm1'\n\
         [device.a]\ntype='file'\npath='a.img'\n\
         [device.slow]\ntype='file'\npath='slow.img'\n[device.fast]\ntype='file'\npath='fast.img'\n\
         [device.cache]\ntype='flash'\nover='fast'\n\
         [device.vm1]\ntype='accelerate'\nover=['slow','cache']\n\
         [device.b]\ntype='file'\npath='b.img'\n[device.vm2]\ntype='mirror'\nover=['a','b']\n\
         [export.vm1]\ndevice='vm1'\nnbd='unix:vm1.sock'\n[export.vm2]\ndevice='vm2'\nnbd='unix:vm2.sock'\n";
    let plan = || Plan::parse(text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS).expect("a plan");
    let world = Simulation::new(1);
    for name in ["slow", "fast", "a", "b"] {
        world.env().put_disk(format!("/srv/{name}.img"), Image::blank(DiskOptions::new(8 << 20)));
    }
    let env = world.env();
    let done = world.run(async move {
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        plan().create(Rc::clone(&world), 0).await.unwrap_or_else(|e| panic!("{e}"));
        for round in 1..4 {
            let h = Hierarchy::build(plan(), Rc::clone(&world)).await.unwrap_or_else(|e| panic!("{e}"));
            assert!(h.warnings().is_empty(), "round {round}: {}", h.warnings());
            for name in ["vm1", "vm2"] {
                write(&h.export_node(name).expect("an export node"), round).await;
            }
            h.close().await.unwrap_or_else(|e| panic!("{e}"));
        }
    });
    done.unwrap_or_else(|e| panic!("{e:?}"));
}

/// The cache writes that the store has everything, while its device is about to go as well.
#[test]
fn a_cache_goes_with_its_device_in_one_change() {
    run("write-back", |env| async move {
        let h = open(&env, "write-back", "fast").await;
        let export_node = h.export_node("vm1").expect("an export node");
        write(&export_node, 7).await;
        let text = "[hierarchy]\nname='vm1'\n[device.slow]\ntype='file'\npath='slow.img'\n\
                    [export.vm1]\ndevice='slow'\nnbd='unix:vm1.sock'\n";
        let alone = Plan::parse(text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS).expect("a plan");
        let world: Rc<dyn Env> = Rc::clone(&env) as _;
        let (h, wrong) = h.change(alone, &world).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!(read(&export_node).await, Ok(7));
        write(&export_node, 8).await;
        // And it comes back, with the device that was a member before.
        let (h, wrong) = h.change(plan("write-back", "fast"), &world).await.unwrap_or_else(|e| panic!("{e}"));
        assert!(wrong.is_empty(), "{wrong:?}");
        assert_eq!((read(&export_node).await, info(&h, "policy")), (Ok(8), json!("write-back")));
        h.close().await.unwrap_or_else(|e| panic!("{e}"));
    });
}
