//! A persistent hierarchy that changes, with the file of each step, and blocks of its volume that say when
//! they were written.
#![allow(dead_code, reason = "each test uses a part of it")]

use lamina_block::{Buf, Durability, Env, Io, Node};
use lamina_graph::{Hierarchy, Plan, Stage};
use lamina_sim::{DiskOptions, Image, Simulation};
use std::path::Path;
use std::rc::Rc;

pub const SIZE: u64 = 4 << 20;

pub fn plan(text: &str) -> Plan {
    Plan::parse(text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS).unwrap_or_else(|e| panic!("{e}"))
}

/// A hierarchy of `members`, and other devices; `vm1` is exported.
pub fn file(members: &[&str], devices: &str) -> String {
    let member = |name: &&str| format!("[device.{name}]\ntype='file'\npath='{name}.img'\n");
    let members: String = members.iter().map(member).collect();
    format!("[hierarchy]\nname='vm1'\n{members}{devices}[export.vm1]\ndevice='vm1'\nnbd='unix:vm1.sock'\n")
}

pub fn vm1(over: &str) -> String {
    format!("[device.vm1]\ntype='concat'\nover={over}\n")
}

/// The bytes of block `n`, as written in `round`.
pub fn stamp(n: u64, round: u64) -> Vec<u8> {
    (n << 32 | round).to_le_bytes().repeat(64)
}

pub async fn put(node: &Rc<Node>, n: u64, round: u64) {
    let write = Io::write(n * 512, Buf::from_vec(stamp(n, round)), Durability::Cached);
    node.submit(write).await.expect("a write");
}

pub async fn get(node: &Rc<Node>, n: u64) -> Vec<u8> {
    let buf = Buf::zeroed(512);
    node.submit(Io::read(n * 512, buf.clone())).await.expect("a read");
    buf.to_vec()
}

pub fn world() -> Simulation {
    let world = Simulation::new(11);
    for name in ["a", "b", "c"] {
        world.env().put_disk(format!("/srv/{name}.img"), Image::blank(DiskOptions::new(SIZE)));
    }
    world
}

/// The children of devices of a plan.
pub fn shape(plan: &Plan) -> Vec<String> {
    plan.devices().iter().map(|device| format!("{} over {:?}", device.name, device.over)).collect()
}

/// Everything that `text` needs, stage by stage.
pub async fn go(h: Hierarchy, text: &str, env: &Rc<dyn Env>) -> Result<Hierarchy, String> {
    go_to(h, &plan(text), env).await
}

pub async fn go_to(mut h: Hierarchy, plan: &Plan, env: &Rc<dyn Env>) -> Result<Hierarchy, String> {
    let stages = h.stages(plan, &lamina_layers::KINDS).map_err(|report| report.to_string())?;
    for (stage, _) in stages {
        match stage {
            Stage::Change(plan) => {
                let (changed, wrong) = h.change(plan, env).await.map_err(|report| report.to_string())?;
                assert!(wrong.is_empty(), "{wrong:?}");
                h = changed;
            }
            Stage::Move { device, from } => {
                let node = h.node(&device).expect("a device");
                node.evacuate(from).await.map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(h)
}
