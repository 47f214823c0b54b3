//! The guest of a virtio disk: its whole memory, rings and descriptors included, is the input.
//!
//! Nothing may crash, hang or be lost, and no memory but the guest's may change: `lamina_vhost_user::fuzz` checks it.

#![no_main]

use lamina_block::{Build, Env, Kind, Node};
use lamina_layers::sinks::memory;
use lamina_sim::Simulation;
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use std::rc::Rc;

fuzz_target!(|bytes: &[u8]| {
    let simulation = Simulation::new(1);
    let env: Rc<dyn Env> = simulation.env();
    let kind: Kind = Kind::of::<memory::Keys>();
    let keys = kind.parse(&json!({ "size": "256KiB" })).expect("keys");
    let layer =
        simulation.run(keys.build(Build::new("m", &env, Vec::new()))).expect("a layer").expect("a layer");
    let node = Node::new("m", "memory", env.clone(), layer);
    lamina_vhost_user::fuzz::run(env, node, bytes, || simulation.settle());
});
