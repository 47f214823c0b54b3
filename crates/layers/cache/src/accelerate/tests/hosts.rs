//! Hosts with a flash each, in front of one store: they have the volume one after the other, die with writes that only
//! their flash has, and are taken for dead when they are not.

use super::failures::{disk, layer};
use super::*;
use crate::testing::history::{Checked, History, told};
use futures_util::future::{Either, select};
use lamina_block::{Begin, Over};
use lamina_cluster::amend::declare_dead;
use lamina_cluster::host::Name;
use lamina_cluster::reservation::LAST;
use lamina_cluster::vault::FolderVault;
use lamina_sim::{DiskOptions, Fate, Image, Images, Presence, SimEnv, Simulation};
use std::pin::pin;

const SIZE: u64 = 256 << 10;
const BLOCKS: u64 = SIZE / crate::testing::history::BLOCK;
const VAULT: &str = "/vault";

fn world(seed: u64) -> Simulation {
    let world = Simulation::new(seed);
    for (name, size) in [("store", SIZE), ("flash-a", 2 << 20), ("flash-b", 2 << 20)] {
        let mut options = DiskOptions::new(size);
        options.latency_max = Duration::from_micros(if name == "store" { 2000 } else { 100 });
        world.env().put_disk(name, Image::blank(options));
    }
    world
}

/// A host that serves the volume.
struct Serves {
    vm: Rc<Node>,
    below: [Rc<Node>; 2],
}

impl Serves {
    async fn open(env: &Rc<SimEnv>, host: &str, policy: &str, begin: Begin) -> Result<Serves> {
        Serves::open_over(env, host, policy, begin, true).await
    }

    /// With a reservation below, or right over the store.
    async fn open_over(
        env: &Rc<SimEnv>,
        host: &str,
        policy: &str,
        begin: Begin,
        is_reserved: bool,
    ) -> Result<Serves> {
        let named = |what: &str| format!("{what}-{host}");
        let keys = json!({ "vault": VAULT, "volume": "vm1", "host": host, "lease": "5s" });
        let disk_alone = disk(env, "store");
        let store = vec![Rc::clone(&disk_alone)];
        let kind = Kind::of::<lamina_hosts::reservation::Keys>();
        let store = layer(env, kind, &named("store"), keys, store, begin).await?;
        let flash = vec![disk(env, &named("flash"))];
        let flash =
            layer(env, Kind::of::<crate::flash::Keys>(), &named("cache"), json!({}), flash, begin).await?;
        let over = vec![if is_reserved { Rc::clone(&store) } else { disk_alone }, Rc::clone(&flash)];
        let keys = json!({ "policy": policy, "store-timeout": "1s" });
        let vm = layer(env, Kind::of::<crate::accelerate::Keys>(), &named("vm"), keys, over, begin).await;
        match vm {
            Ok(vm) => Ok(Serves { vm, below: [store, flash] }),
            Err(e) => {
                store.close().await?;
                flash.close().await?;
                Err(e)
            }
        }
    }

    async fn close(&self) -> Result<()> {
        let mut closed = self.vm.close().await;
        for node in &self.below {
            closed = closed.and(node.close().await);
        }
        closed
    }
}

/// Both hosts know the volume, and none has it.
async fn create(env: &Rc<SimEnv>) -> Result<()> {
    for host in ["a", "b"] {
        Serves::open(env, host, "write-back", Begin::Format).await?.close().await?;
    }
    Ok(())
}

/// Some requests.
async fn work(history: &History, env: &Rc<SimEnv>, vm: &Rc<Node>, requests: u64) -> Checked {
    for _ in 0..requests {
        let block = env.random() % BLOCKS;
        let id = history.ids.get() + 1;
        history.ids.set(id);
        match env.random() % 8 {
            0..=4 => {
                let end = BLOCKS.min(block + 1 + env.random() % 16);
                let write = history.write(env, vm, block..end, id, env.random().is_multiple_of(4)).await;
                write.map_err(told("a write"))?;
            }
            5 => history.flush(env, vm).await.map_err(told("a flush"))?,
            _ => history.read(env, vm, block..block + 1, None).await?,
        }
    }
    Ok(())
}

/// The volume changes hands in order, again and again.
fn hand_over(seed: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let told_last = world.run(async move {
        create(&env).await.map_err(told("created"))?;
        let history = History::default();
        history.ids.set(1);
        for round in 0..12 {
            let host = if env.random().is_multiple_of(2) { "a" } else { "b" };
            let policy = ["write-back", "write-through"][env.random() as usize % 2];
            let serves = Serves::open(&env, host, policy, Begin::Open).await.map_err(told("opened"))?;
            if round == 0 {
                history.write(&env, &serves.vm, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
            }
            history.read(&env, &serves.vm, 0..BLOCKS, None).await?;
            work(&history, &env, &serves.vm, 40).await?;
            serves.close().await.map_err(told("closed"))?;
        }
        Ok(())
    });
    told_last.map_err(|hang| hang.to_string())?
}

#[test]
fn a_volume_changes_hands_and_no_host_reads_what_its_flash_had_before() {
    for seed in 0..20 {
        hand_over(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    FLAW.set(Some("what a flash had before another host counts"));
    let caught = (0..20).any(|seed| hand_over(seed).is_err());
    FLAW.set(None);
    assert!(caught, "nobody noticed old blocks");
}

/// Names and contents.
type Files = Vec<(String, Vec<u8>)>;

/// What the vault has.
fn vault(env: &Rc<SimEnv>) -> Files {
    let folder = env.shared_folder(VAULT);
    let file = |name: String| folder.get(&name).map(|bytes| (name, bytes));
    folder.names().into_iter().filter_map(file).collect()
}

/// Host a dies, alone or with the power of all disks; then b asks for the volume, and then a again.
fn death(seed: u64) -> Checked {
    let world = world(seed);
    let env = world.env();
    let history = Rc::new(History::default());
    let here = Rc::clone(&history);
    let ended = world.run(async move {
        create(&env).await.map_err(told("created"))?;
        let serves = Serves::open(&env, "a", "write-back", Begin::Open).await.map_err(told("opened"))?;
        here.ids.set(1);
        here.write(&env, &serves.vm, 0..BLOCKS, 1, true).await.map_err(told("filled"))?;
        work(&here, &env, &serves.vm, 5 + env.random() % 40).await?;
        let images = env.after_death(seed, env.random());
        Ok::<(u64, Images, Files), String>((env.tick(), images, vault(&env)))
    });
    let (crash, images, files) = ended.map_err(|hang| hang.to_string())??;
    let world = Simulation::from_images(crash, &images);
    let env = world.env();
    let after = world.run(async move {
        files.iter().for_each(|(name, bytes)| env.shared_folder(VAULT).put(name, bytes));
        let open = async |host| Serves::open(&env, host, "write-back", Begin::Open).await;
        match open("b").await {
            Ok(serves) => {
                // Only if the store has everything.
                history.read(&env, &serves.vm, 0..BLOCKS, Some(crash)).await?;
                serves.close().await.map_err(told("closed"))?;
            }
            Err(e) if e.kind() == ErrorKind::Offline && e.message().contains("only flash") => {}
            Err(e) => return Err(format!("b: {e}")),
        }
        let serves = open("a").await.map_err(told("a again"))?;
        history.read(&env, &serves.vm, 0..BLOCKS, Some(crash)).await?;
        serves.close().await.map_err(told("closed"))?;
        // The store has everything now.
        let serves = open("b").await.map_err(told("b at last"))?;
        history.read(&env, &serves.vm, 0..BLOCKS, Some(crash)).await?;
        serves.close().await.map_err(told("closed"))
    });
    after.map_err(|hang| hang.to_string())?
}

#[test]
fn writes_that_only_a_flash_has_wait_for_it() {
    for seed in 0..60 {
        death(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    FLAW.set(Some("the vault is not told of writes that the store lacks"));
    let caught = (0..60).any(|seed| death(seed).is_err());
    FLAW.set(None);
    assert!(caught, "nobody noticed a store that was behind");
}

/// A device that was just made is used at once: without its flash, of which the vault would not know.
#[test]
fn a_device_that_was_made_apart_from_the_vault_goes_past_its_flash() {
    let world = world(11);
    let env = world.env();
    let ended = world.run(async move {
        let a = Serves::open(&env, "a", "write-back", Begin::Format).await.map_err(told("made"))?;
        put(&a.vm, 1).await;
        let set = Command { name: "set-policy".into(), args: json!({ "policy": "write-back" }) };
        let e = a.vm.control(set).await.expect_err("the vault was not asked");
        assert!(e.kind() == ErrorKind::Unsupported && e.message().contains("opened again"), "{e}");
        assert_eq!((get(&a.vm).await, a.vm.info()["dirty_bytes"].clone()), (1, json!(0)));
        a.close().await.map_err(told("closed"))?;
        let b = Serves::open(&env, "b", "write-back", Begin::Format).await.map_err(told("made"))?;
        b.close().await.map_err(told("closed"))?;
        let b = Serves::open(&env, "b", "write-back", Begin::Open).await.map_err(told("opened"))?;
        assert_eq!(get(&b.vm).await, 1, "the store has it");
        b.close().await.map_err(told("closed"))
    });
    ended.expect("it ends").unwrap_or_else(|e: String| panic!("{e}"));
}

/// A reservation comes below a volume that has served alone, and whose flash has writes that the store lacks.
#[test]
fn a_flash_from_before_the_reservation_keeps_what_it_has() {
    for others_first in [false, true] {
        let world = world(9);
        let env = world.env();
        let ended = world.run(async move {
            for host in ["a", "b"] {
                let made = Serves::open_over(&env, host, "write-back", Begin::Format, false).await;
                made.map_err(told("created"))?.close().await.map_err(told("closed"))?;
            }
            let open = async |host, is_reserved| {
                Serves::open_over(&env, host, "write-back", Begin::Open, is_reserved).await
            };
            let a = open("a", false).await.map_err(told("alone"))?;
            put(&a.vm, 1).await;
            a.vm.control(Command { name: "drain".into(), args: json!({}) }).await.map_err(told("drained"))?;
            env.disk("store").expect("a disk").set_presence(Presence::Failing);
            put(&a.vm, 2).await;
            // It cannot bring everything to the store.
            let _ = a.close().await;
            env.disk("store").expect("a disk").set_presence(Presence::Here);
            if others_first {
                let b = open("b", true).await.map_err(told("b"))?;
                put(&b.vm, 3).await;
                b.close().await.map_err(told("b closed"))?;
            }
            let a = open("a", true).await.map_err(told("reserved"))?;
            if others_first {
                let e = a.vm.submit(Io::read(0, Buf::zeroed(4096))).await.expect_err("it would be older");
                assert!(e.message().contains("other hosts have had the volume"), "{e}");
                let accept = Command { name: "accept-loss".into(), args: json!({}) };
                a.vm.control(accept).await.map_err(told("accepted"))?;
            }
            assert_eq!(get(&a.vm).await, if others_first { 3 } else { 2 });
            a.close().await.map_err(told("closed"))
        });
        ended.expect("it ends").unwrap_or_else(|e: String| panic!("others first: {others_first}: {e}"));
    }
}

/// The device of the flash fails, and cannot keep that. It works again, and the device above is opened again in the
/// same process, which goes on to have the volume; then all of it dies.
#[test]
fn a_flash_whose_record_is_older_than_the_store_is_forgotten() {
    let world = world(13);
    let env = world.env();
    let left = world.run(async move {
        create(&env).await.expect("created");
        let a = Serves::open(&env, "a", "write-back", Begin::Open).await.expect("opened");
        put(&a.vm, 1).await;
        a.vm.control(Command { name: "drain".into(), args: json!({}) }).await.expect("drained");
        super::cluster::set_device(&env, "a", Presence::Failing);
        put(&a.vm, 2).await;
        assert_eq!(a.vm.info()["policy"], json!("uncached"));
        super::cluster::set_device(&env, "a", Presence::Here);
        a.vm.close().await.expect("closed");
        env.sleep(Duration::from_secs(10)).await;
        let over = a.below.to_vec();
        let (kind, keys) = (Kind::of::<crate::accelerate::Keys>(), json!({ "policy": "write-back" }));
        let again = layer(&env, kind, "vm-a", keys, over, Begin::Open).await.expect("opened again");
        assert_eq!((get(&again).await, again.info()["policy"].clone()), (2, json!("write-back")));
        (env.orphans(), vault(&env))
    });
    let (images, files) = left.expect("it ends");
    let world = Simulation::from_images(1, &images);
    let env = world.env();
    let read = world.run(async move {
        files.iter().for_each(|(name, bytes)| env.shared_folder(VAULT).put(name, bytes));
        let a = Serves::open(&env, "a", "write-back", Begin::Open).await.expect("opened");
        get(&a.vm).await
    });
    assert_eq!(read.expect("it ends"), 2);
}

/// The vault is to be told that the store has everything by now, and does not answer.
#[test]
fn a_device_is_closed_without_an_answer_of_the_vault() {
    let world = world(9);
    let env = world.env();
    let ended = world.run(async move {
        create(&env).await.map_err(told("created"))?;
        let store = env.disk("store").expect("a disk");
        let a = Serves::open(&env, "a", "write-back", Begin::Open).await.map_err(told("opened"))?;
        put(&a.vm, 1).await;
        store.set_presence(Presence::Failing);
        // It cannot bring everything to the store.
        let _ = a.close().await;
        let a = Serves::open(&env, "a", "write-through", Begin::Open).await.map_err(told("again"))?;
        env.shared_folder(VAULT).set_fate(Fate::Lost);
        store.set_presence(Presence::Here);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(a.vm.info()["dirty_bytes"], json!(0));
        match select(pin!(a.vm.close()), env.sleep(LAST * 3)).await {
            Either::Left((closed, _)) => closed.map_err(told("closed")),
            Either::Right(_) => Err("it waits for the vault".to_owned()),
        }
    });
    ended.expect("it ends").unwrap_or_else(|e: String| panic!("{e}"));
}

async fn put(vm: &Rc<Node>, value: u8) {
    vm.submit(Io::write(0, Buf::from_vec(vec![value; 4096]), Durability::Cached)).await.expect("written");
}

async fn get(vm: &Rc<Node>) -> u8 {
    let buf = Buf::zeroed(4096);
    vm.submit(Io::read(0, buf.clone())).await.expect("read");
    buf.to_vec()[0]
}

pub async fn is_dead(env: &Rc<SimEnv>, host: &str) {
    let vault = FolderVault::new(Rc::clone(env) as _, env.shared_folder(VAULT));
    declare_dead(&vault, &**env, Name::new("vm1").uuid, host).await.expect("it has the volume");
}

/// What a device shows whose volume another host has.
pub fn fenced() -> Value {
    let world = world(8);
    let env = world.env();
    let shown = world.run(async move {
        create(&env).await?;
        let a = Serves::open(&env, "a", "write-back", Begin::Open).await?;
        a.vm.control(Command { name: "drain".into(), args: json!({}) }).await?;
        a.vm.control(Command { name: "set-policy".into(), args: json!({ "policy": "write-through" }) })
            .await?;
        is_dead(&env, "a").await;
        let b = Serves::open(&env, "b", "write-back", Begin::Open).await?;
        env.sleep(Duration::from_secs(3)).await;
        let info = a.vm.info();
        // It cannot flush any more.
        let _ = a.close().await;
        b.close().await?;
        Ok::<Value, lamina_block::Error>(info)
    });
    shown.expect("it ends").expect("another host has it")
}

#[test]
fn a_host_that_was_taken_for_dead_is_fenced() {
    let world = world(7);
    let env = world.env();
    let ended = world.run(async move {
        create(&env).await.map_err(told("created"))?;
        let a = Serves::open(&env, "a", "write-through", Begin::Open).await.map_err(told("opened"))?;
        put(&a.vm, 1).await;
        let busy = Serves::open(&env, "b", "write-through", Begin::Open).await.err().expect("a is alive");
        assert!(busy.kind() == ErrorKind::Busy && busy.message().contains("is alive"), "{busy}");
        is_dead(&env, "a").await;
        let b = Serves::open(&env, "b", "write-through", Begin::Open).await.map_err(told("opened"))?;
        assert_eq!(get(&b.vm).await, 1);
        put(&b.vm, 2).await;
        env.sleep(Duration::from_secs(3)).await;
        for io in
            [Io::read(0, Buf::zeroed(4096)), Io::write(0, Buf::zeroed(4096), Durability::Cached), Io::flush()]
        {
            let e = a.vm.submit(io).await.expect_err("it is fenced");
            // It may have looked between the end of its time and the change of hands.
            let says_whose =
                ["b (flash", "nobody has it now"].iter().any(|words| e.message().contains(words));
            assert!(e.kind() == ErrorKind::Fenced && says_whose, "{e}");
        }
        // It cannot flush any more.
        assert_eq!(a.close().await.map_err(|e| e.kind()), Err(ErrorKind::Fenced));
        assert_eq!(get(&b.vm).await, 2);
        b.close().await.map_err(told("closed"))?;
        let a = Serves::open(&env, "a", "write-back", Begin::Open).await.map_err(told("opened"))?;
        assert_eq!(get(&a.vm).await, 2, "its flash has an older one");
        a.close().await.map_err(told("closed"))
    });
    ended.expect("it ends").unwrap_or_else(|e: String| panic!("{e}"));
}

#[test]
fn a_reservation_is_the_store_itself() {
    let keys = kind("accelerate").parse(&json!({})).unwrap_or_else(|e| panic!("{}", e.message));
    let check = |kinds: &[&Kind], deeper: &[&Kind]| {
        keys.check(&Over { kinds, deeper, metadata: false, persistent: true })
    };
    let [linear, flash, reservation, memory] = ["linear", "flash", "reservation", "memory"].map(kind);
    assert_eq!(check(&[reservation, flash], &[memory, memory]), Ok(()));
    let wrong = check(&[linear, flash], &[memory, reservation]).expect_err("the vault would not know");
    assert!(wrong.message().contains("\"reservation\" further down has to be the store itself"), "{wrong}");
}
