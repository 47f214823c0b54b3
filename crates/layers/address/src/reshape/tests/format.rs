//! The record, and refused ones; and the order in which a layout is walked.

use super::*;
use crate::reshape::kept;
use crate::reshape::layout::Span;
use lamina_sim::Simulation;

fn band(len: u64, unit: u64, on: &[(usize, u64)]) -> Band {
    Band {
        len,
        unit,
        on: on.iter().map(|(child, there)| Location { child: *child, there: *there }).collect(),
    }
}

fn layout(bands: &[Band]) -> Layout {
    let mut layout = Layout::default();
    bands.iter().for_each(|band| layout.push(band.clone()).expect("it fits"));
    layout
}

/// Devices a, b and c of 1 MiB.
fn children(env: &Rc<SimEnv>) -> Children {
    for name in ["a", "b", "c"] {
        env.put_disk(name, Image::blank(DiskOptions::new(1 << 20)));
    }
    ["a", "b", "c"].map(|name| child(env, name)).to_vec()
}

const GOLDEN: &str = include_str!("../../../tests/golden/kept-layout-1.json");

#[test]
fn the_format_is_what_it_was() {
    let world = Simulation::new(1);
    let children = children(&world.env());
    let state = State {
        layout: layout(&[band(131072, 32768, &[(0, 0), (1, 0)])]),
        open: true,
        known: vec![0, 1, 2],
        target: Some(Target {
            to: layout(&[band(131072, 32768, &[(0, 0), (1, 0), (2, 0)])]),
            up: true,
            position: 98304,
        }),
    };
    let golden: Value = serde_json::from_str(GOLDEN).expect("it is JSON");
    assert_eq!(kept::write("stripe", &state, &children), golden);
    assert_eq!(kept::read("stripe", &golden, &children).expect("it is read"), state);
}

/// Changes one thing in the golden file, and gives what opening says then.
fn spoiled(spoil: impl FnOnce(&mut Value)) -> String {
    let world = Simulation::new(1);
    let env = world.env();
    let mut kept: Value = serde_json::from_str(GOLDEN).expect("it is JSON");
    spoil(&mut kept);
    world
        .run(async move {
            children(&env);
            DiskKeep::open(&env).await.expect("there is a place").set(kept).await.expect("it is kept");
            let volume = Volume { kind: "stripe", keys: json!({}) };
            match volume.open(&env, &["a", "b", "c"], &[], Begin::Open).await {
                Ok(_) => "it is opened".into(),
                Err(e) => e.to_string(),
            }
        })
        .expect("it ends")
}

#[test]
fn what_is_wrong_is_refused() {
    assert_eq!(spoiled(|_| {}), "it is opened");
    type Spoil = fn(&mut Value);
    let wrong: &[(Spoil, &str)] = &[
        (|k| k["version"] = json!(2), "a later version"),
        (|k| k["version"] = json!("1"), "no version"),
        (|k| *k = json!([1, 2]), "no version"),
        (|k| k["extra"] = json!(1), "unknown field"),
        (|k| k["kind"] = json!("concat"), "was made as"),
        (|k| k["open"] = json!(7), "invalid type"),
        (|k| k["layout"] = json!([]), "another size"),
        (|k| k["layout"][0]["on"][1]["device"] = json!("z"), "z is missing"),
        (|k| k["layout"][0]["on"][1]["device"] = json!("a"), "takes two turns"),
        (|k| k["layout"][0]["on"] = json!([]), "empty"),
        (|k| k["layout"][0]["unit"] = json!(0), "unit"),
        (|k| k["layout"][0]["unit"] = json!(3000), "unit"),
        (|k| k["layout"][0]["unit"] = json!(1u64 << 63), "unit"),
        (|k| k["move"]["to"][0]["unit"] = json!(65536), "unit"),
        (|k| k["layout"][0]["on"][0]["start"] = json!(4096), "not that of a stripe"),
        (|k| k["layout"][0]["on"][0]["start"] = json!(u64::MAX), "beyond 2^64"),
        (|k| k["layout"][0]["len"] = json!(-1), "invalid value"),
        (|k| k["layout"][0]["len"] = json!(0), "another size"),
        (|k| k["move"]["position"] = json!(131073), "beyond the end"),
        (|k| k["move"]["position"] = json!(100), "inside a block"),
        (|k| k["move"]["to"][0]["len"] = json!(65536), "another size"),
        (|k| k["move"]["up"] = json!(false), "lie on others"),
        (
            |k| {
                for at in ["layout", "to"] {
                    let bands = if at == "to" { &mut k["move"]["to"] } else { &mut k["layout"] };
                    bands[0]["len"] = json!(1u64 << 40);
                }
            },
            "of it are in use",
        ),
    ];
    for (number, (spoil, says)) in wrong.iter().enumerate() {
        let said = spoiled(spoil);
        assert!(said.contains(says), "{number}: {said}, and not {says}");
    }
    let huge = spoiled(|k| {
        let band = json!({ "len": u64::MAX, "on": [{ "device": "a", "start": 0 }] });
        k["layout"] = json!([band, band]);
    });
    assert!(huge.contains("2^64"), "{huge}");
    let far = spoiled(|k| k["layout"][0]["len"] = json!(u64::MAX));
    assert!(far.contains("another size"), "{far}");
}

/// Walks through a move without devices: every window must leave alone what has not been moved, and the last ends where
/// all is moved. Tells how many windows there were.
pub(crate) fn walk(children: &Children, from: &Layout, plan: Plan) -> usize {
    let unit = 512;
    let world = Simulation::new(1);
    let env: Rc<dyn Env> = world.env() as _;
    let start = if plan.up { 0 } else { from.size() };
    let moving = Move::new(&env, children, (from.clone(), plan.to.clone()), plan.up, start);
    let location = |span: Span, at: u64| {
        let location = span.location(at);
        (location.child, location.there)
    };
    let blocks = || (0..from.size()).step_by(unit);
    let mut here: std::collections::HashMap<(usize, u64), u64> =
        blocks().map(|at| (location(from.span(at), at), at)).collect();
    let mut windows = 0;
    while let Some((at, pieces)) = moving.next_pieces().expect("it can be moved") {
        windows += 1;
        let old = here.clone();
        for block in pieces.iter().flat_map(|piece| piece.clone().step_by(unit)) {
            let to = location(plan.to.span(block), block);
            let lost = old.get(&to).filter(|byte| {
                let moved = if plan.up { **byte < at.start } else { **byte >= at.end };
                !moved
            });
            assert_eq!(lost, None, "{block} would be written over a byte that has not been moved");
            here.insert(to, block);
        }
        moving.skip_to(if plan.up { at.end } else { at.start });
    }
    for at in blocks() {
        assert_eq!(here.get(&location(plan.to.span(at), at)), Some(&at));
    }
    windows
}

#[test]
fn places_and_bytes_are_each_others_inverse() {
    let mixed = layout(&[
        band(8192, 0, &[(2, 4096)]),
        band(7 * 4096 + 512, 4096, &[(0, 0), (1, 8192), (2, 65536)]),
        band(512, 0, &[(0, 1 << 19)]),
    ]);
    for at in (0..mixed.size()).step_by(512) {
        let span = mixed.span(at);
        assert!(span.at.contains(&at));
        let (run, byte) = mixed.holds(span.location(at));
        assert_eq!((byte, run >= 512), (Some(at), true));
        assert_eq!(run, span.at.end - at);
    }
    assert_eq!(mixed.holds(Location { child: 2, there: 0 }), (4096, None));
    assert_eq!(mixed.holds(Location { child: 2, there: 12288 }), (65536 - 12288, None));
    assert_eq!(mixed.free(2, 1 << 20)[..2], [0..4096, 12288..65536]);
    assert_eq!(mixed.cut(8192 + 512).bands().len(), 2);
    assert_eq!(mixed.differs(&mixed.clone(), 0..mixed.size()), 0);
}
