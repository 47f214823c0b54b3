//! Commands, views, and what the gauntlet is given. The GPT and crashes have files of their own.

mod crash;
mod gpt;

use super::Keys;
use crate::testing::*;
use crate::view;
use lamina_block::{Begin, Build, JobState, Keep, Pending};
use lamina_sim::Rig;
use std::cell::RefCell;
use std::time::Duration;

const MIB: u64 = 1 << 20;

async fn view_of(rig: &Rig, name: &str, table: &Rc<Node>) -> Result<Rc<Node>> {
    rig.build(&Kind::of::<view::Keys>(), name, json!({ "name": name }), vec![Rc::clone(table)]).await
}

/// Around the border between the two pieces of a partition. The consistency level changes nothing: the table is kept
/// with the hierarchy at all three, and data is never moved.
pub fn subject() -> Subject {
    Subject::new("partition", |rig| async move {
        let first = |name| json!({ "name": name, "size": "1MiB" });
        let keys = json!({ "partitions": [first("a"), first("b")] });
        let table = rig.build(&Kind::of::<Keys>(), "table", keys, rig.disks(1)).await?;
        if table.info()["partitions"][0]["size"] == MIB {
            table.control(resize("a", 2)).await?;
        }
        let a = view_of(&rig, "a", &table).await?;
        let border = json!({ "offset": "960KiB", "size": "192KiB" });
        rig.build(&Kind::of::<crate::linear::Keys>(), "top", border, vec![a]).await
    })
    .disks_of(4 << 20)
}

fn resize(name: &str, mib: u64) -> Command {
    to("resize", json!({ "name": name, "size": mib * MIB, "force": true }))
}

fn to(verb: &str, args: Value) -> Command {
    Command { name: verb.into(), args }
}

/// Builds the device as the graph does.
async fn build(
    env: &Rc<dyn Env>,
    child: &Rc<Node>,
    keys: Value,
    begin: Begin,
    keep: Option<Rc<dyn Keep>>,
) -> Result<Rc<Node>> {
    let keys = Kind::of::<Keys>().parse(&keys).expect("good keys");
    let with = Build { begin, keep, ..Build::new("table", env, vec![Rc::clone(child)]) };
    Ok(Node::new("table", "partition", Rc::clone(env), keys.build(with).await?))
}

/// A view of a partition.
async fn view(env: &Rc<dyn Env>, table: &Rc<Node>, name: &str) -> Result<Rc<Node>> {
    Ok(Node::new(name, "view", Rc::clone(env), table.view(name).await?))
}

/// A state record that stays in memory.
#[derive(Default)]
struct MemoryKeep(RefCell<Option<Value>>);

impl Keep for MemoryKeep {
    fn get(&self) -> Option<Value> {
        self.0.borrow().clone()
    }
    fn set(&self, value: Value) -> Pending {
        *self.0.borrow_mut() = Some(value);
        Box::pin(async { Ok(()) })
    }
}

/// A device of 16 MiB full of old bytes, with a table made by `keys`.
struct Stand {
    env: Rc<dyn Env>,
    below: Rc<Node>,
    kept: Rc<MemoryKeep>,
    table: Rc<Node>,
}

impl Stand {
    async fn new(world: &World, keys: Value) -> Stand {
        let below = world.memory("16MiB").await;
        put(&below, 0, 0xDD, 16 * MIB).await;
        let (env, kept) = (Rc::clone(&world.env), Rc::new(MemoryKeep::default()));
        let keep = Rc::clone(&kept) as Rc<dyn Keep>;
        let table = build(&env, &below, keys, Begin::Format, Some(keep)).await.expect("it can be made");
        Stand { env, below, kept, table }
    }

    async fn view(&self, name: &str) -> Rc<Node> {
        view(&self.env, &self.table, name).await.expect("it can be viewed")
    }

    async fn tell(&self, verb: &str, args: Value) -> std::result::Result<Value, String> {
        self.table.control(to(verb, args)).await.map_err(|e| e.message().to_owned())
    }

    async fn again(&self, begin: Begin, keys: Value) -> Result<Rc<Node>> {
        build(&self.env, &self.below, keys, begin, Some(Rc::clone(&self.kept) as Rc<dyn Keep>)).await
    }
}

async fn put(node: &Rc<Node>, at: u64, value: u8, len: u64) {
    let bytes = Buf::from_vec(vec![value; len as usize]);
    node.submit(Io::write(at, bytes, Durability::Cached)).await.expect("written");
}

async fn get(node: &Rc<Node>, at: u64, len: u64) -> Vec<u8> {
    let into = Buf::zeroed(len as usize);
    node.submit(Io::read(at, into.clone())).await.expect("read");
    into.to_vec()
}

async fn is_all(node: &Rc<Node>, at: Range<u64>, value: u8) -> bool {
    get(node, at.start, at.end - at.start).await.iter().all(|byte| *byte == value)
}

fn two() -> Value {
    json!({ "partitions": [{ "name": "a", "size": "2MiB" }, { "name": "b", "size": "1MiB" }] })
}

/// A state record that is kept a second later.
struct Slow(Rc<dyn Env>, MemoryKeep);

impl Keep for Slow {
    fn get(&self) -> Option<Value> {
        self.1.get()
    }
    fn set(&self, value: Value) -> Pending {
        let (kept, sleep) = (self.1.set(value), self.0.sleep(Duration::from_secs(1)));
        Box::pin(async move {
            sleep.await;
            kept.await
        })
    }
}

/// Its space is about to be somebody else's.
#[test]
fn what_is_being_deleted_cannot_be_viewed() {
    simulated(|world| async move {
        let (env, below) = (Rc::clone(&world.env), world.memory("16MiB").await);
        let keep = Rc::new(Slow(Rc::clone(&env), MemoryKeep::default()));
        let table = build(&env, &below, two(), Begin::Format, Some(keep)).await.expect("it can be made");
        let (sim, at_work) = (Rc::clone(&world.sim), Rc::clone(&table));
        let deleting = sim.start(async move { at_work.control(to("delete", json!({ "name": "a" }))).await });
        env.sleep(Duration::from_millis(500)).await;
        let refused = view(&env, &table, "a").await.err().expect("it goes");
        assert!(refused.message().contains("is being renamed or deleted"), "{refused}");
        view(&env, &table, "b").await.expect("it stays");
        deleting.ended().await.expect("deleted");
        assert!(view(&env, &table, "a").await.is_err());
    });
}

#[test]
fn partitions_are_made_grown_shrunk_renamed_and_deleted() {
    simulated(|world| async move {
        let stand = Stand::new(&world, two()).await;
        let (a, b) = (stand.view("a").await, stand.view("b").await);
        assert!(is_all(&a, 0..2 * MIB, 0).await && is_all(&b, 0..MIB, 0).await, "old bytes");
        put(&a, 0, 0xAA, 2 * MIB).await;
        put(&b, 0, 0xBB, MIB).await;
        assert!(
            is_all(&stand.below, 0..2 * MIB, 0xAA).await
                && is_all(&stand.table, 2 * MIB..3 * MIB, 0xBB).await
        );
        assert!(stand.table.submit(Io::write(0, Buf::zeroed(512), Durability::Cached)).await.is_err());

        let shown = stand.tell("resize", json!({ "name": "a", "size": "3MiB" })).await.unwrap();
        assert_eq!(shown["pieces"], json!([[0, 2 * MIB], [3 * MIB, MIB]]));
        a.refresh();
        assert_eq!(a.geometry().size, 3 * MIB);
        assert!(is_all(&a, 2 * MIB..3 * MIB, 0).await && is_all(&a, 0..2 * MIB, 0xAA).await);
        put(&a, 2 * MIB - 4096, 0xAC, 8192).await;
        assert!(is_all(&stand.below, 2 * MIB - 4096..2 * MIB, 0xAC).await);
        assert!(is_all(&stand.below, 3 * MIB..3 * MIB + 4096, 0xAC).await);
        assert!(is_all(&b, 0..MIB, 0xBB).await);

        stand.tell("create", json!({ "name": "c", "size": MIB - 1 })).await.unwrap();
        stand.tell("rename", json!({ "name": "c", "to": "d" })).await.unwrap();
        let list = stand.tell("list", Value::Null).await.unwrap();
        assert_eq!(list["free"], 11 * MIB);
        assert_eq!(list, stand.table.info());
        let names: Vec<&Value> = list["partitions"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
        assert_eq!(names, ["a", "b", "d"]);

        let e = stand.tell("resize", json!({ "name": "a", "size": "1MiB" })).await.unwrap_err();
        assert!(e.contains("force=true"), "{e}");
        stand.tell("resize", json!({ "name": "a", "size": "1MiB", "force": true })).await.unwrap();
        stand.tell("delete", json!({ "name": "d" })).await.unwrap();

        let again = stand.again(Begin::Open, two()).await.unwrap();
        assert_eq!(again.info()["partitions"].as_array().unwrap().len(), 2);
        let a = view(&stand.env, &again, "a").await.unwrap();
        assert_eq!(a.geometry().size, MIB);
        assert!(is_all(&a, 0..MIB, 0xAA).await);
    });
}

#[test]
fn what_is_viewed_is_neither_deleted_nor_renamed() {
    simulated(|world| async move {
        let stand = Stand::new(&world, two()).await;
        let (first, second) = (stand.view("a").await, stand.view("a").await);
        for (verb, args) in [("delete", json!({"name": "a"})), ("rename", json!({"name": "a", "to": "c"}))] {
            let e = stand.tell(verb, args).await.unwrap_err();
            assert!(e.contains("\"view\""), "{e}");
        }
        first.close().await.unwrap();
        assert!(stand.tell("delete", json!({ "name": "a" })).await.is_err());
        drop(second);
        stand.tell("delete", json!({ "name": "a" })).await.unwrap();
        assert!(stand.table.view("a").await.err().unwrap().message().contains("there is b"));
    });
}

#[test]
fn space_that_a_viewed_partition_loses_waits_for_its_views() {
    simulated(|world| async move {
        let stand = Stand::new(&world, two()).await;
        let a = stand.view("a").await;
        stand.tell("resize", json!({ "name": "a", "size": "1MiB", "force": true })).await.unwrap();
        // Its node has not heard of it: the request passes there.
        let e = a.submit(Io::read(MIB, Buf::zeroed(512))).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(a.submit(Io::read(MIB - 512, Buf::zeroed(1024))).await.is_err());
        assert!(a.extents(MIB - 512..MIB + 512).await.is_err());
        assert_eq!(stand.table.info()["free"], 13 * MIB);
        let places = stand.tell("create", json!({ "name": "c", "size": "1MiB" })).await.unwrap();
        assert_ne!(places["pieces"][0][0], MIB);
        a.close().await.unwrap();
        assert_eq!(stand.table.info()["free"], 13 * MIB);
        let places = stand.tell("create", json!({ "name": "d", "size": "1MiB" })).await.unwrap();
        assert_eq!(places["pieces"], json!([[MIB, MIB]]));
    });
}

#[test]
fn wrong_commands_and_keys_say_what_is_wrong() {
    simulated(|world| async move {
        let stand = Stand::new(&world, two()).await;
        for (verb, args, says) in [
            ("create", json!({"name": "a", "size": "1MiB"}), "there is a partition \"a\""),
            ("create", json!({"name": "../a", "size": "1MiB"}), "letters"),
            ("create", json!({"name": "c", "size": 0}), "at least 1MiB"),
            ("create", json!({"name": "c", "size": "14MiB"}), "only 13MiB is free"),
            ("create", json!({"name": "c"}), "size"),
            ("create", json!({"name": "c", "size": "1MiB", "colour": 1}), "colour"),
            ("resize", json!({"name": "c", "size": "1MiB"}), "there is a, b"),
            ("resize", json!({"name": "a", "size": u64::MAX}), "only 13MiB is free"),
            ("rename", json!({"name": "a", "to": "b"}), "there is a partition \"b\""),
            ("delete", json!({"name": "c"}), "there is a, b"),
            ("format", json!({}), "create, resize, rename, delete, list"),
        ] {
            let e = stand.tell(verb, args).await.unwrap_err();
            assert!(e.contains(says), "{verb}: {e}");
        }
        assert_eq!(stand.table.info()["free"], 13 * MIB);
        for (keys, says) in [
            (json!({"partitions": [{"name": "a", "size": "17MiB"}]}), "partitions[0].size: 17MiB more"),
            (
                json!({"partitions": [{"name": "a", "size": "1MiB"}, {"name": "a", "size": "1MiB"}]}),
                "partitions[1].name",
            ),
            (json!({"partitions": [{"name": "a", "size": 0}]}), "partitions[0].size"),
        ] {
            let e = stand.again(Begin::Format, keys).await.err().unwrap();
            assert!(e.message().starts_with(says), "{e}");
        }
    });
}

#[test]
fn data_that_is_there_is_adopted_where_it_is() {
    simulated(|world| async move {
        let stand = Stand::new(&world, two()).await;
        let e = stand.again(Begin::Adopt, json!({})).await.err().unwrap();
        assert!(e.message().starts_with("partitions: is missing"), "{e}");
        let keys =
            json!({ "partitions": [{ "name": "x", "size": "4MiB" }, { "name": "y", "size": "12MiB" }] });
        put(&stand.below, 0, 1, 4 * MIB).await;
        put(&stand.below, 4 * MIB, 2, 12 * MIB).await;
        let table = stand.again(Begin::Adopt, keys).await.unwrap();
        let y = view(&stand.env, &table, "y").await.unwrap();
        assert!(is_all(&y, 0..12 * MIB, 2).await);
        let more =
            json!({ "partitions": [{ "name": "x", "size": "4MiB" }, { "name": "y", "size": "12289KiB" }] });
        let e = stand.again(Begin::Adopt, more).await.err().unwrap();
        assert!(e.message().starts_with("partitions[1]."), "{e}");
    });
}

#[test]
fn zeroing_is_a_job_that_can_be_cancelled_and_ends_with_the_device() {
    simulated(|world| async move {
        let below = world.memory("64MiB").await;
        let slow = world.over("delay", json!({ "write": "1s" }), &[&below]).await;
        let kept = Rc::new(MemoryKeep::default());
        let keep = Rc::clone(&kept) as Rc<dyn Keep>;
        let table = build(&world.env, &slow, json!({}), Begin::Format, Some(keep)).await.unwrap();
        let before = kept.get();
        // Three pieces, of a second each.
        let create = |name: &str| {
            let (table, args) = (Rc::clone(&table), json!({ "name": name, "size": "40MiB" }));
            world.sim.start(async move { table.control(to("create", args)).await })
        };
        let half_a_second = || world.env.sleep(Duration::from_millis(500));
        let first = create("a");
        half_a_second().await;
        let second = create("b");
        half_a_second().await;
        let jobs = table.jobs();
        assert_eq!((jobs.len(), jobs[0].name(), jobs[0].state()), (1, "zero", JobState::Running));
        assert_eq!(jobs[0].info()["total"], 40 * MIB);
        jobs[0].cancel();
        assert_eq!(first.ended().await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(kept.get(), before, "it did not take place");
        // The second one has waited, and ends with the device; a third has no chance.
        half_a_second().await;
        assert_eq!(table.jobs().len(), 1);
        let third = create("c");
        half_a_second().await;
        table.close().await.unwrap();
        assert_eq!(second.ended().await.unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(third.ended().await.unwrap_err().kind(), ErrorKind::Offline);
        assert!(table.jobs().is_empty());
        assert_eq!(kept.get(), before);
    });
}
