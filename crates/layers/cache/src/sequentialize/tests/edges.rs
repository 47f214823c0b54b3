//! Sizes, parts of blocks, space, and what is refused.

use crate::testing::*;

pub(super) async fn made(
    world: &World,
    disk: &Rc<Node>,
    keys: Value,
) -> std::result::Result<Rc<Node>, String> {
    let keys = Kind::of::<super::super::Keys>().parse(&keys).map_err(|e| e.message)?;
    let mut with = lamina_block::Build::new("log", &world.env, vec![Rc::clone(disk)]);
    with.begin = lamina_block::Begin::Format;
    let layer = keys.build(with).await.map_err(|e| e.message().to_owned())?;
    Ok(Node::new("log", "sequentialize", Rc::clone(&world.env), layer))
}

async fn put(node: &Rc<Node>, at: u64, bytes: &[u8]) {
    node.submit(Io::write(at, Buf::from_vec(bytes.to_vec()), Durability::Cached)).await.expect("written");
}

async fn get(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let into = Buf::from_vec(vec![0xEE; len]);
    node.submit(Io::read(at, into.clone())).await.expect("read");
    into.to_vec()
}

#[test]
fn sectors_are_exact() {
    simulated(|world| async move {
        let log = made(&world, &world.memory("1MiB").await, json!({})).await.expect("made");
        put(&log, 0, &[1; 3 * 4096]).await;
        put(&log, 512, &[2; 512]).await;
        put(&log, 4096 - 512, &[3; 1024]).await;
        log.submit(Io::zero(2 * 4096 - 512..3 * 4096 - 512, Zero::default())).await.expect("zeroed");
        let mut wanted = vec![1; 3 * 4096];
        wanted[512..1024].fill(2);
        wanted[4096 - 512..4096 + 512].fill(3);
        wanted[2 * 4096 - 512..3 * 4096 - 512].fill(0);
        assert_eq!(get(&log, 0, 3 * 4096).await, wanted);
        assert_eq!(get(&log, 512, 1024).await, wanted[512..1536]);
        log.submit(Io::discard(512..2 * 4096)).await.expect("discarded");
        wanted[4096..2 * 4096].fill(0);
        assert_eq!(get(&log, 0, 3 * 4096).await, wanted, "whole blocks alone");
        let extents = log.extents(0..5 * 4096).await.expect("extents");
        assert_eq!(extents, [data(4096), hole(4096), data(4096), hole(2 * 4096)]);
    });
}

#[test]
fn the_size_is_what_was_asked_for() {
    simulated(|world| async move {
        let disk = world.memory("64MiB").await;
        for (keys, blocks) in
            [(json!({}), 13484), (json!({ "spare": 50 }), 8160), (json!({ "size": "1MiB" }), 256)]
        {
            let log = made(&world, &disk, keys.clone()).await.expect("made");
            let shown = log.geometry().size;
            assert!(shown.abs_diff(blocks * 4096) <= shown / 50, "{keys}: {}", shown / 4096);
        }
        for (keys, says) in [
            (json!({ "size": "64MiB" }), "size: "),
            (json!({ "size": 5000 }), "size: "),
            (json!({ "sizes": 1 }), "unknown field"),
        ] {
            let refused = made(&world, &disk, keys).await.err().expect("refused");
            assert!(refused.contains(says), "{refused}");
        }
        let small = world.memory("64KiB").await;
        assert!(made(&world, &small, json!({})).await.err().expect("refused").contains("too few"));
    });
}

/// Every block is written, and then written over at random: no write fails for lack of space.
#[test]
fn it_never_fills() {
    for (size, spare) in [("640KiB", 1), ("4MiB", 1), ("48MiB", 10)] {
        simulated(move |world| async move {
            let disk = world.memory(size).await;
            let log = made(&world, &disk, json!({ "spare": spare })).await.expect("made");
            let (blocks, mut random) = (log.geometry().size / 4096, xorshift(7));
            let mut values = vec![0; blocks as usize];
            for turn in 0..6 * blocks {
                let block = if turn < blocks { turn } else { random() % blocks };
                values[block as usize] = random() as u8;
                put(&log, block * 4096, &[values[block as usize]; 4096]).await;
            }
            for (block, value) in (0..).zip(values) {
                assert_eq!(get(&log, block * 4096, 4096).await, [value; 4096], "block {block}");
            }
            let info = log.info();
            assert!(info["collected_segments"].as_u64().is_some_and(|collected| collected > 10), "{info:#}");
            log.submit(Io::flush()).await.expect("flushed");
        });
    }
}

/// A log on another stripe than a power of two has its segments at multiples of the stripe.
#[test]
fn segments_fit_the_stripe() {
    let shape = super::super::format::Super::new(1 << 30, 48, 1, 2).expect("a log");
    assert!(shape.segment_slots.is_multiple_of(48) && shape.segments_at.is_multiple_of(48), "{shape:?}");
    assert!(u64::from(shape.slots().end) * 4096 <= 1 << 30);
}
