//! What devices keep with their hierarchy: any words are the table of a `partition`, or the layout of a `concat` or a
//! `stripe`.
//!
//! The first byte says which, and whether the rest is their text, or small numbers of which right words are
//! made, most of which say something impossible. What must hold: no panic, no hang; an error, or a device of
//! which every byte is its own: what is written everywhere is read back, while data moves, afterwards, and
//! when it has been opened again.

#![no_main]

use lamina_block::{Buf, Build, Command, Durability, Env, Io, Keep, Node, Pending, Result};
use lamina_sim::Simulation;
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const UNIT: u64 = 1 << 20;
/// The longest run that is written at once, and how often it is looked whether data still moves.
const RUN: u64 = 1 << 20;
const GLANCES: usize = 100;

/// Words in memory.
struct Words(RefCell<Option<Value>>);

impl Keep for Words {
    fn get(&self) -> Option<Value> {
        self.0.borrow().clone()
    }

    fn set(&self, value: Value) -> Pending {
        *self.0.borrow_mut() = Some(value);
        Box::pin(async { Ok(()) })
    }
}

async fn layer(env: &Rc<dyn Env>, name: &str, kind: &str, keys: Value, with: Build) -> Result<Rc<Node>> {
    let kind = lamina_layers::KINDS.iter().find(|known| known.name == kind).expect("there is such a layer");
    let made = kind.parse(&keys).expect("good keys").build(with).await?;
    Ok(Node::new(name, kind.name, Rc::clone(env), made))
}

/// Small numbers, one a byte.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let [first, rest @ ..] = self.0 else { return 0 };
        self.0 = rest;
        u64::from(*first)
    }

    fn layout(&mut self, kind: &str) -> Value {
        let bands = self.next() % 4 + 1;
        let band = |numbers: &mut Self| {
            let legs = if kind == "concat" { 1 } else { numbers.next() % 3 + 1 };
            let leg = |numbers: &mut Self| {
                let device = ["a", "b", "c"][numbers.next() as usize % 3];
                json!({ "device": device, "start": numbers.next() * 512 })
            };
            let (len, unit) = (numbers.next() * 512, 512 << (numbers.next() % 8));
            let on: Vec<Value> = (0..legs).map(|_| leg(numbers)).collect();
            if kind == "concat" {
                json!({ "len": len, "on": on })
            } else {
                json!({ "len": len, "unit": unit, "on": on })
            }
        };
        Value::Array((0..bands).map(|_| band(self)).collect())
    }

    fn words(&mut self, kind: &str) -> Value {
        if kind == "partition" {
            let parts = self.next() % 4;
            let part = |i: u64, numbers: &mut Self| {
                let segments =
                    (0..numbers.next() % 3 + 1).map(|_| json!([numbers.next() % 10, numbers.next() % 4]));
                json!({ "name": format!("p{i}"), "segments": segments.collect::<Vec<_>>() })
            };
            let all: Vec<Value> = (0..parts).map(|i| part(i, self)).collect();
            return json!({ "version": 1, "partitions": all });
        }
        let flags = self.next();
        let mut words = json!({
            "version": 1, "kind": kind, "devices": ["a", "b", "c"], "open": flags & 1 == 1, "layout": self.layout(kind),
        });
        if flags & 2 == 2 {
            let position = self.next() * 512;
            words["move"] = json!({ "to": self.layout(kind), "up": flags & 4 == 4, "position": position });
        }
        words
    }
}

fn pattern(seed: u64, len: u64) -> Vec<u8> {
    (0..len / 8).flat_map(|i| (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (i + 1)).to_le_bytes()).collect()
}

/// Writes something to every byte of a device; nothing that it says is another's.
async fn fill(node: &Rc<Node>, seed: u64) {
    for at in (0..node.geometry().size).step_by(RUN as usize) {
        let len = RUN.min(node.geometry().size - at);
        let write = Io::write(at, Buf::from_vec(pattern(seed ^ at, len)), Durability::Cached);
        node.submit(write).await.expect("every byte can be written");
    }
}

/// It is there.
async fn compare(node: &Rc<Node>, seed: u64, size: u64) {
    assert!(node.geometry().size >= size, "it has become smaller");
    for at in (0..size).step_by(RUN as usize) {
        let len = RUN.min(size - at);
        let buf = Buf::zeroed(len as usize);
        node.submit(Io::read(at, buf.clone())).await.expect("every byte can be read");
        assert!(buf.to_vec() == pattern(seed ^ at, len), "somewhere from {at} on are another's bytes");
    }
}

async fn command(node: &Rc<Node>, name: &str, args: Value) -> Result<Value> {
    node.control(Command { name: name.into(), args }).await
}

async fn run(env: Rc<dyn Env>, kind: &'static str, words: Value) {
    let sizes = if kind == "partition" { &["8MiB"][..] } else { &["64KiB", "48KiB", "96KiB"] };
    let mut children = Vec::new();
    for (name, size) in ["a", "b", "c"].into_iter().zip(sizes) {
        let with = Build::new(name, &env, vec![]);
        children
            .push(layer(&env, name, "memory", json!({ "size": size }), with).await.expect("it can be built"));
    }
    let keep = Rc::new(Words(RefCell::new(Some(words))));
    let open = || {
        let keep: Option<Rc<dyn Keep>> = Some(Rc::clone(&keep) as _);
        let with = Build { keep, ..Build::new(kind, &env, children.clone()) };
        layer(&env, kind, kind, json!({}), with)
    };
    let Ok(node) = open().await else { return };
    let geometry = node.geometry();
    assert!(geometry.size > 0 && geometry.size.is_multiple_of(geometry.block.into()), "{geometry:?}");
    if kind == "partition" {
        return partitions(&env, &node, open().await).await;
    }
    let size = geometry.size;
    fill(&node, 1).await;
    compare(&node, 1, size).await;
    let _ = command(&node, "move", json!({})).await;
    for _ in 0..GLANCES {
        if node.jobs().is_empty() {
            break;
        }
        env.sleep(Duration::from_millis(50)).await;
    }
    compare(&node, 1, size).await;
    let _ = command(&node, "resize", json!({})).await;
    compare(&node, 1, size).await;
    let _ = node.check(true).await;
    node.close().await.expect("it closes");
    let again = open().await.expect("what was open is opened");
    compare(&again, 1, size).await;
    again.close().await.expect("it closes");
}

/// Every partition has bytes of its own, whatever is done to others.
async fn partitions(env: &Rc<dyn Env>, node: &Rc<Node>, again: Result<Rc<Node>>) {
    let list = command(node, "list", json!({})).await.expect("a list");
    let names: Vec<String> = list["partitions"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|p| p["name"].as_str().expect("a name").into())
        .collect();
    let mut views = Vec::new();
    for (seed, name) in (0u64..).zip(&names) {
        let made = node.view(name).await.expect("it is in the list");
        let view = Node::new(name, "view", Rc::clone(env), made);
        assert!(view.geometry().size >= UNIT && view.geometry().size.is_multiple_of(UNIT));
        fill(&view, seed).await;
        views.push((seed, view.geometry().size, view));
    }
    let _ = command(node, "create", json!({ "name": "new", "size": "1MiB" })).await;
    if let Some(first) = names.first() {
        let _ = command(node, "resize", json!({ "name": first, "size": views[0].1 + 2 * UNIT })).await;
    }
    if let Ok(made) = node.view("new").await {
        fill(&Node::new("new", "view", Rc::clone(env), made), 99).await;
    }
    for (seed, size, view) in &views {
        compare(view, *seed, *size).await;
    }
    for finding in node.check(true).await.expect("it can be looked at") {
        assert!(!finding.is_damage(), "{finding}");
    }
    let again = again.expect("it was opened before");
    again.close().await.expect("it closes");
    node.close().await.expect("it closes");
}

fuzz_target!(|input: &[u8]| {
    let [mode, rest @ ..] = input else { return };
    let kind = ["partition", "concat", "stripe"][usize::from(mode / 2) % 3];
    let words = match mode % 2 {
        0 => Numbers(rest).words(kind),
        _ => {
            let Ok(words) = serde_json::from_slice(rest) else { return };
            words
        }
    };
    let world = Simulation::new(1);
    let env: Rc<dyn Env> = world.env();
    world.run(run(env, kind, words)).expect("ends");
});
