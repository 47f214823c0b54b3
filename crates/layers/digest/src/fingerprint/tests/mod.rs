//! The layer in a simulated world: through the gauntlet, and what only it does.

use super::Keys;
use crate::sums::scene::{Camera, How, Open, disk, open, run, world};
use crate::testing::*;
use lamina_block::{Begin, Layer};
use lamina_sim::{Check, Run, Simulation};

fn kind() -> Kind {
    Kind::of::<Keys>()
}

pub fn subject() -> Subject {
    Subject::layer(&kind(), soon(json!({ "region": "16KiB", "hash": "md5" })), 1).disks_of(384 << 10)
}

/// These keys, and intents that are cleared soon: the time of a simulation is short.
fn soon(mut keys: Value) -> Value {
    keys["idle"] = json!("300us");
    keys
}

/// A layer with these keys.
pub fn how(keys: Value) -> How {
    How {
        make: |keys, with| {
            Box::pin(async move {
                let keys: Keys = serde_json::from_value(keys).expect("the keys are right");
                let made = keys.made(with).await?;
                Ok((Rc::clone(&made.sums), Rc::new(made) as Rc<dyn Layer>))
            })
        },
        keys: soon(keys),
        meta: false,
    }
}

#[test]
fn larger_blocks_and_other_digests_pass_the_gauntlet() {
    for keys in
        [json!({ "block": "16KiB", "region": "32KiB" }), json!({ "hash": "sha256", "region": "16KiB" })]
    {
        let subject = Subject::layer(&kind(), soon(keys), 1).disks_of(384 << 10);
        for (check, seed) in Check::ALL.into_iter().flat_map(|check| (0..4).map(move |seed| (check, seed))) {
            if let Err(failure) = lamina_sim::run(&subject, check, seed, Run::Sample) {
                panic!("{failure}");
            }
        }
    }
}

fn digest(hash: &str, bytes: &[u8]) -> String {
    let digest = crate::sums::digest::Digest::ALL.into_iter().find(|digest| digest.name() == hash);
    let mut out = Vec::new();
    digest.expect("it is known").add(bytes, &mut out);
    super::queries::hex(&out)
}

async fn made(env: &Rc<lamina_sim::SimEnv>, hash: &str) -> Open {
    open(env, &how(json!({ "hash": hash, "region": "16KiB" })), Begin::Format).await.expect("made")
}

#[test]
fn it_tells_what_is_where() {
    for hash in ["md5", "sha256", "blake3"] {
        run(move |env| async move {
            let top = made(&env, hash).await;
            top.write(4096, &[1; 4096]).await.expect("written");
            top.write(20480, &[1; 8192]).await.expect("written");
            top.write(40960 + 512, &[2; 512]).await.expect("written");
            let at = top.command("at", json!({ "offset": 5000 })).await.expect("an answer");
            assert_eq!(at, json!({ "offset": 4096, "hash": digest(hash, &[1; 4096]) }));
            let mut part = vec![0; 4096];
            part[512..1024].fill(2);
            let at = top.command("at", json!({ "offset": "40KiB" })).await.expect("an answer");
            assert_eq!(at["hash"], json!(digest(hash, &part)));
            let wanted = digest(hash, &[1; 4096]).to_uppercase();
            let found = top.command("where", json!({ "hash": wanted, "limit": 2 })).await.expect("an answer");
            assert_eq!(found, json!({ "blocks": 3, "offsets": [4096, 20480], "pending_bytes": 0 }));
            let zeroes = top.command("where", json!({ "hash": digest(hash, &[0; 4096]) })).await;
            assert_eq!(zeroes.expect("an answer")["blocks"], json!(top.sums.blocks() - 4));
            for wrong in ["", "12", "zz"] {
                assert!(top.command("where", json!({ "hash": wrong })).await.is_err());
            }
            assert!(top.command("at", json!({ "offset": "1GiB" })).await.is_err());
        });
    }
}

#[test]
fn it_counts_what_is_there_several_times() {
    run(|env| async move {
        let top = made(&env, "blake3").await;
        for (at, value) in [(0, 1), (1, 2), (5, 1), (6, 3), (7, 1), (8, 2)] {
            top.write(at * 4096, &[value; 4096]).await.expect("written");
        }
        let found = top.command("duplicates", json!({ "top": 1 })).await.expect("an answer");
        assert_eq!(
            found,
            json!({
                "blocks": 6, "zero_blocks": top.sums.blocks() - 6, "duplicates": 3, "bytes_saved": 3 * 4096,
                "one_in": 1,
                "pending_bytes": 0, "top": [{ "hash": digest("blake3", &[1; 4096]), "blocks": 3, "offset": 0 }],
            })
        );
    });
}

async fn changed(top: &Open, name: &str) -> Value {
    top.command("changed", json!({ "name": name })).await.expect("an answer")["ranges"].clone()
}

#[test]
fn it_remembers_what_changed_since_a_mark() {
    run(|env| async move {
        let top = made(&env, "blake3").await;
        top.write(0, &[1; 4096]).await.expect("written");
        top.command("mark", json!({ "name": "one" })).await.expect("marked");
        top.write(4096, &[2; 8192]).await.expect("written");
        // It stays what it was.
        top.write(0, &[1; 4096]).await.expect("written");
        top.command("mark", json!({ "name": "two" })).await.expect("marked");
        assert!(top.command("mark", json!({ "name": "two" })).await.is_err(), "there is one");
        top.node.submit(Io::zero(8192..16384, Zero::default())).await.expect("zeroed");
        top.write(100 << 10, &[3; 512]).await.expect("written");
        assert_eq!(changed(&top, "one").await, json!([[4096, 8192], [100 << 10, 4096]]));
        assert_eq!(changed(&top, "two").await, json!([[8192, 4096], [100 << 10, 4096]]));
        let few = top.command("changed", json!({ "name": "one", "limit": 1 })).await.expect("an answer");
        assert_eq!(
            (&few["ranges"], &few["blocks"], &few["more"]),
            (&json!([[4096, 8192]]), &json!(3), &json!(true))
        );
        top.command("unmark", json!({ "name": "one" })).await.expect("forgotten");
        assert!(top.command("changed", json!({ "name": "one" })).await.is_err());
        top.write(0, &[9; 512]).await.expect("written");
        top.node.close().await.expect("closed");
        let top = open(&env, &how(json!({})), Begin::Open).await.expect("opened");
        assert_eq!(top.node.info()["marks"], json!(["two"]));
        assert_eq!(changed(&top, "two").await, json!([[0, 4096], [8192, 4096], [100 << 10, 4096]]));
        for name in 0..7 {
            top.command("mark", json!({ "name": name.to_string() })).await.expect("there is room");
        }
        let full = top.command("mark", json!({ "name": "more" })).await.expect_err("there is none");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
    });
}

#[test]
fn verify_finds_what_changed_on_its_own() {
    run(|env| async move {
        let top = made(&env, "sha256").await;
        top.write(0, &pattern(32 << 10)).await.expect("written");
        top.flip(9000).await;
        assert!(top.read(8192..12288).await.is_ok(), "nothing is refused");
        top.command("verify", json!({})).await.expect("begun");
        top.rested().await;
        let info = top.node.info();
        assert_eq!(
            (&info["corrupt"], &info["corrupt_at"], &info["passes"]),
            (&json!(1), &json!([8192]), &json!(1))
        );
    });
}

/// After a crash, what the table says is what is there, and no change since the mark is forgotten.
#[test]
fn a_crash_leaves_no_wrong_digest_and_forgets_no_change() {
    for seed in 0..3 {
        let world = world(seed);
        let env = world.env();
        let images = world.run(async move {
            let top = made(&env, "md5").await;
            let mut draw = xorshift(seed * 2 + 5);
            top.write(0, &pattern(64 << 10)).await.expect("written");
            top.node.submit(Io::flush()).await.expect("flushed");
            top.command("mark", json!({ "name": "m" })).await.expect("marked");
            let camera = Camera::start(&env, seed, 3);
            for step in 0..30u8 {
                let at = draw() % 96 * 512;
                top.write(at, &vec![step; (draw() % 12 + 1) as usize * 512]).await.expect("written");
                if draw().is_multiple_of(8) {
                    env.sleep(std::time::Duration::from_millis(1)).await;
                }
            }
            camera.end(&env)
        });
        for images in images.expect("it ends") {
            let world = Simulation::from_images(seed, &images);
            let env = world.env();
            let test = async move {
                let top = open(&env, &how(json!({})), Begin::Open).await.expect("opened");
                let first =
                    top.command("at", json!({ "offset": 0 })).await.expect("an answer")["hash"].clone();
                assert_eq!(first, json!(digest("md5", &top.read(0..4096).await.expect("read"))));
                top.resynced().await;
                let answer = top.command("changed", json!({ "name": "m" })).await.expect("an answer");
                let ranges: Vec<(u64, u64)> =
                    serde_json::from_value(answer["ranges"].clone()).expect("ranges");
                let all = top.read(0..top.node.geometry().size).await.expect("read");
                let before = [pattern(64 << 10), vec![0; all.len() - (64 << 10)]].concat();
                for (at, (now, then)) in (0..).step_by(4096).zip(all.chunks(4096).zip(before.chunks(4096))) {
                    let said = top.command("at", json!({ "offset": at })).await.expect("an answer");
                    assert_eq!(said["hash"], json!(digest("md5", now)), "offset {at}");
                    let marked = ranges.iter().any(|(from, len)| (*from..from + len).contains(&at));
                    assert!(marked || now == then, "a change at {at} is forgotten");
                }
            };
            world.run(test).expect("it ends");
        }
    }
}

#[test]
fn a_device_in_use_is_taken_over() {
    run(|env| async move {
        let below = disk(&env, "disk");
        below.submit(Io::write(8192, Buf::from_vec(vec![5; 4096]), Durability::Fua)).await.expect("written");
        let how = How { meta: true, ..how(json!({})) };
        let top = open(&env, &how, Begin::Adopt).await.expect("taken over");
        let wanted = json!({ "hash": digest("blake3", &[5; 4096]) });
        let early = top.command("where", wanted.clone()).await.expect("an answer");
        assert_eq!(early["pending_bytes"], json!(512 << 10));
        top.resynced().await;
        let found = top.command("where", wanted).await.expect("an answer");
        assert_eq!(found, json!({ "blocks": 1, "offsets": [8192], "pending_bytes": 0 }));
    });
}
