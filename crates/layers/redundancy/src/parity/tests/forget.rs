//! Bytes that cannot be known after a crash and a loss, until a user lets them be forgotten.

use super::*;

/// A parity that was written everywhere when the power failed, and b is gone.
fn lost() -> (Simulation, Vec<u8>) {
    let world = world(3);
    let env = world.env();
    let (images, bytes) = world
        .run(async move {
            let (_, bytes) = filled(&env).await;
            (env.images(Loss::All, 1), bytes)
        })
        .expect("it ends");
    (Simulation::from_images(5, &images), bytes)
}

async fn without_b(env: &Rc<SimEnv>) -> Open {
    let legs = vec![child(env, "a"), absent(env, "b"), child(env, "c")];
    open_with(env, legs, keys(), Begin::Open, &[]).await.expect("opened")
}

async fn ranges(open: &Open) -> Vec<Range<u64>> {
    let list = open.command("forget", json!({})).await.expect("a list");
    let number = |value: &Value| value.as_u64().expect("a number");
    let ranges: Vec<Range<u64>> =
        list["ranges"].as_array().expect("ranges").iter().map(|at| number(&at[0])..number(&at[1])).collect();
    assert_eq!(number(&list["unknown"]), ranges.iter().map(|at| at.end - at.start).sum::<u64>());
    ranges
}

/// Every unit: those that are unknown fail and say so, the others are `right`.
async fn looked(open: &Open, right: &[u8], unknown: &[Range<u64>]) {
    for at in (0..right.len() as u64).step_by(UNIT as usize) {
        let buf = Buf::zeroed(UNIT as usize);
        match open.node.submit(Io::read(at, buf.clone())).await {
            Ok(()) => assert!(buf.to_vec() == right[at as usize..][..UNIT as usize], "unit at {at}"),
            Err(e) => {
                assert!(e.message().contains("cannot be known"), "{e}");
                assert!(unknown.iter().any(|range| range.contains(&at)), "{at} is not listed");
            }
        }
    }
}

#[test]
fn what_is_unknown_is_listed_and_can_be_written_anew_or_forgotten() {
    let (world, mut bytes) = lost();
    let env = world.env();
    let images = world
        .run(async move {
            let open = without_b(&env).await;
            let unknown = ranges(&open).await;
            // One unit of each stripe in which b does not have the parity.
            let stripes = bytes.len() / UNIT as usize / 2;
            assert_eq!(unknown.len(), (0..stripes).filter(|stripe| stripe % 3 != 1).count());
            looked(&open, &bytes, &unknown).await;
            let first = unknown[0].start / (2 * UNIT) * (2 * UNIT);
            bytes[first as usize..][..2 * UNIT as usize].fill(7);
            put(&open, first, &[7; 2 * UNIT as usize]).await;
            open.node.submit(Io::flush()).await.expect("flushed");
            let left = ranges(&open).await;
            assert_eq!(left, unknown[1..]);
            looked(&open, &bytes, &left).await;
            (env.images(Loss::All, 1), bytes, left)
        })
        .expect("it ends");
    // Bytes written again stay known.
    let (images, mut bytes, left) = images;
    let world = Simulation::from_images(6, &images);
    let env = world.env();
    let (images, bytes) = world
        .run(async move {
            let open = without_b(&env).await;
            assert_eq!(ranges(&open).await, left);
            looked(&open, &bytes, &left).await;
            open.command("forget", json!({ "force": true })).await.expect("forgotten");
            left.iter().for_each(|at| bytes[at.start as usize..at.end as usize].fill(0));
            assert_eq!(ranges(&open).await, []);
            assert!(all_of(&open).await == bytes);
            (env.images(Loss::All, 1), bytes)
        })
        .expect("it ends");
    // And so does what is forgotten, also when b is back.
    let world = Simulation::from_images(7, &images);
    let env = world.env();
    world
        .run(async move {
            let open = without_b(&env).await;
            assert!(all_of(&open).await == bytes);
            open.node.close().await.expect("closed");
            let open = super::open(&env, &["a", "b", "c"], keys(), Begin::Open).await.expect("opened");
            assert!(all_of(&open).await == bytes);
            env.sleep(Duration::from_secs(2)).await;
            open.whole().await;
            assert_eq!(open.roles(), ["in sync"; 3]);
            scrubbed(&open).await;
            assert_eq!(open.found("different"), 0);
            open.command("fail", json!({ "leg": "a" })).await.expect("failed");
            assert!(all_of(&open).await == bytes);
            assert_eq!(ranges(&open).await, []);
            open.node.close().await.expect("closed");
        })
        .expect("it ends");
}
