//! Copies that are silently wrong, or cannot be read.

use super::*;
use lamina_block::Error;

/// Writes everywhere, and closes nothing.
async fn filled(env: &Rc<SimEnv>, over: &[&str]) -> Open {
    let open = open(env, over, keys(), Begin::Format).await.expect("made");
    let bytes = Buf::from_vec(pattern(SIZE as usize));
    open.node.submit(Io::write(0, bytes, Durability::Fua)).await.expect("written");
    open
}

/// Flips bytes of a leg behind the mirror's back.
async fn damage(open: &Open, leg: usize, at: u64) {
    let bytes = Buf::from_vec(vec![0xDB; 512]);
    open.legs[leg].submit(Io::write(at, bytes, Durability::Fua)).await.expect("written");
}

async fn scrubbed(open: &Open, args: Value) {
    open.command("scrub", args).await.expect("it begins");
    open.until("the end of the scrub", |open| open.node.jobs().is_empty()).await;
}

#[test]
pub fn of_three_the_majority_is_right() {
    let world = world(3);
    let env = world.env();
    world
        .run(async move {
            let open = filled(&env, &["a", "b", "c"]).await;
            for (leg, at) in [(0, 0), (1, 8192), (2, SIZE - 512), (1, 40960)] {
                damage(&open, leg, at).await;
            }
            scrubbed(&open, json!({})).await;
            assert_eq!((open.found("healed"), open.found("different")), (4, 0));
            open.same().await.expect("the same");
            assert_eq!(bytes_of(&open.node, 0..SIZE).await, pattern(SIZE as usize));
            let info = open.node.info();
            let places = info["found"]["places"].as_array().expect("a list");
            assert_eq!((&places[1]["leg"], &places[1]["start"]), (&json!("b"), &json!(8192)));
            open.node.close().await.expect("closed");
        })
        .expect("it ends");
}

#[test]
fn of_two_neither_is_right_until_somebody_says_so() {
    let world = world(3);
    let env = world.env();
    world
        .run(async move {
            let open = filled(&env, &["a", "b"]).await;
            damage(&open, 0, 4096).await;
            scrubbed(&open, json!({})).await;
            assert_eq!((open.found("healed"), open.found("different")), (0, 1));
            assert_eq!(bytes_of(&open.legs[0], 4096..4608).await, [0xDB; 512]);
            scrubbed(&open, json!({"trust": "b"})).await;
            assert_eq!((open.found("healed"), open.found("different")), (1, 1));
            assert_eq!(bytes_of(&open.node, 0..SIZE).await, pattern(SIZE as usize));
            open.same().await.expect("the same");
            let e = open.command("scrub", json!({"trust": "x"})).await.unwrap_err();
            assert!(e.message().contains("a, b"), "{e}");
        })
        .expect("it ends");
}

/// A block that a leg says is corrupt is copied from the other one, and is healed: when it is read, and by
/// scrub.
#[test]
fn what_cannot_be_read_is_healed() {
    let world = world(3);
    let env = world.env();
    world
        .run(async move {
            let open = filled(&env, &["a", "b"]).await;
            // Reads of one place of each leg fail until it is written.
            let bad: Rc<std::cell::RefCell<Vec<(&str, u64)>>> =
                Rc::new(std::cell::RefCell::new(vec![("a", 8192), ("b", 16384), ("a", 65536)]));
            let left = Rc::clone(&bad);
            env.set_fault(Some(Box::new(move |_, disk, io| {
                let hit = |(leg, at): &(&str, u64)| disk == *leg && io.at.start <= *at && *at < io.at.end;
                match io.op.kind() {
                    OpKind::Read => {
                        let hit = bad.borrow().iter().any(hit);
                        hit.then(|| Error::new(ErrorKind::Corrupt, "a simulated checksum"))
                    }
                    OpKind::Write => {
                        bad.borrow_mut().retain(|place| !hit(place));
                        None
                    }
                    OpKind::Zero | OpKind::Discard | OpKind::Flush => None,
                }
            })));
            // Neither leg can read all of this.
            assert_eq!(bytes_of(&open.node, 4096..32768).await, pattern(32768)[4096..]);
            // The second place was read from the other leg.
            assert_eq!(*left.borrow(), [("b", 16384), ("a", 65536)]);
            scrubbed(&open, json!({})).await;
            assert!(left.borrow().is_empty());
            assert_eq!((open.found("healed"), open.found("different")), (3, 0));
            open.same().await.expect("the same");
            assert_eq!(open.roles(), ["in sync", "in sync"]);
            env.set_fault(None);
        })
        .expect("it ends");
}

#[test]
fn a_scrub_goes_on_after_a_restart() {
    let world = world(3);
    let env = world.env();
    world
        .run(async move {
            let open = filled(&env, &["a", "b"]).await;
            open.command("scrub", json!({})).await.expect("it begins");
            let job = open.node.jobs().pop().expect("a job");
            job.set_limit(Some(16 << 10));
            env.sleep(Duration::from_secs(25)).await;
            open.node.close().await.expect("closed");
            damage(&open, 0, 0).await;
            damage(&open, 0, SIZE - 512).await;
            let again = super::open(&env, &["a", "b"], keys(), Begin::Open).await.expect("opened");
            again.until("its end", |open| open.node.jobs().is_empty()).await;
            // Chunks that were compared before are not compared again.
            assert!(again.found("different") <= 1, "{:#}", again.node.info());
        })
        .expect("it ends");
}
