//! The power fails before every change of a disk while partitions are made, resized and deleted: what is there
//! afterwards is the old or the new table, new space reads as zeroes, and no other partition has lost a byte.
//!
//! The canaries are wrong in what lies around the layer, so the layer has no switch for them.

use super::*;
use lamina_block::{Error, Geometry, Layer, Made, Manage, Passthrough, Pending, Step};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, SimKeep, Simulation};
use std::cell::Cell;
use std::collections::BTreeMap;

const SIZE: u64 = 8 * MIB;
const OLD: u8 = 0xDD;

/// The contents of each partition: a byte for each of its MiB.
type Model = BTreeMap<String, Vec<u8>>;

/// A moment: what the disks hold, and what may be found there.
struct Moment {
    images: Images,
    loss: Loss,
    models: [Model; 2],
}

/// Errors around the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// Zeroes arrive after the table is kept.
    TableAheadOfZeroes,
    /// Zeroes are not durable when the table is kept.
    NoFlush,
    /// The table is kept in two steps.
    TornTable,
    /// Two partitions get the same space.
    Overlap,
    /// Partitions get each other's space.
    Swapped,
}

/// Lies about zeroing.
struct Below {
    child: Rc<Node>,
    wrong: Wrong,
    env: Rc<dyn Env>,
    /// The last request was one.
    zeroed: Cell<bool>,
}

impl Layer for Below {
    fn geometry(&self) -> Geometry {
        // Those who lie about zeroing are asked to do it.
        let below = self.child.geometry();
        let lies = matches!(self.wrong, Wrong::TableAheadOfZeroes | Wrong::NoFlush);
        Geometry { zero: below.zero || lies, ..below }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let zeroed = self.zeroed.replace(io.op.kind() == OpKind::Zero);
        match (io.op.kind(), self.wrong) {
            (OpKind::Zero, Wrong::TableAheadOfZeroes) => {
                let (io, node, env) = (io.take(), Rc::clone(&self.child), Rc::clone(&self.env));
                self.env.spawn(Box::pin(async move {
                    env.sleep(Duration::from_millis(50)).await;
                    let _ = node.submit(io).await;
                    let _ = node.submit(Io::flush()).await;
                }));
                Step::Done(Ok(()))
            }
            (OpKind::Flush, Wrong::NoFlush) if zeroed => Step::Done(Ok(())),
            _ => Step::Forward(Rc::clone(&self.child)),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }
}

impl Manage for Below {}

/// Lies about the table, and only the next process finds out.
struct Table(Rc<dyn Keep>, Wrong, RefCell<Option<Value>>);

impl Keep for Table {
    fn get(&self) -> Option<Value> {
        self.2.borrow().clone().or_else(|| self.0.get())
    }

    fn set(&self, value: Value) -> Pending {
        self.2.replace(Some(value.clone()));
        let (mut half, mut bad) = (value.clone(), value.clone());
        half["partitions"].as_array_mut().unwrap().pop();
        let segments = |i: usize| value["partitions"][i]["segments"].clone();
        let several = value["partitions"].as_array().unwrap().len() > 1;
        let keep = Rc::clone(&self.0);
        match self.1 {
            Wrong::TornTable => {
                return Box::pin(async move {
                    keep.set(half).await?;
                    keep.set(value).await
                });
            }
            Wrong::Overlap if several => bad["partitions"][1]["segments"] = segments(0),
            Wrong::Swapped if several => {
                bad["partitions"][1]["segments"] = segments(0);
                bad["partitions"][0]["segments"] = segments(1);
            }
            _ => {}
        }
        self.0.set(bad)
    }
}

async fn open(env: &Rc<SimEnv>, wrong: Wrong) -> Result<Rc<Node>> {
    let (keep, is_new) = SimKeep::open(env, "table").await?;
    let keep: Rc<dyn Keep> = Rc::new(Table(keep, wrong, RefCell::default()));
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    let disk: Made = env.disk("disk").expect("it is there");
    let disk = Node::new("disk", "simulated", Rc::clone(&world), disk);
    let below = Rc::new(Below { child: disk, wrong, env: Rc::clone(&world), zeroed: Cell::new(false) });
    let below = Node::new("below", "below", Rc::clone(&world), below);
    let begin = if is_new { Begin::Format } else { Begin::Open };
    build(&world, &below, json!({}), begin, Some(keep)).await
}

/// The run: what happens to partitions, and the moments at which the power may fail.
struct Course {
    env: Rc<SimEnv>,
    table: Rc<Node>,
    model: RefCell<Model>,
    next: Rc<RefCell<Option<[Model; 2]>>>,
    fill: Cell<u8>,
}

impl Course {
    /// Does what `verb` says; while it does, the old or the new may be found.
    async fn tell(&self, verb: &str, args: Value, after: impl FnOnce(&mut Model)) -> Result<()> {
        let before = self.model.borrow().clone();
        let mut model = before.clone();
        after(&mut model);
        self.next.replace(Some([before, model.clone()]));
        let done = self.table.control(to(verb, args)).await;
        // From here on it must be the new.
        self.next.replace(Some([model.clone(), model.clone()]));
        self.model.replace(model);
        done.map(drop)
    }

    async fn create(&self, name: &str, mib: u64) -> Result<()> {
        let args = json!({ "name": name, "size": mib * MIB });
        self.tell("create", args, |m| drop(m.insert(name.into(), vec![0; mib as usize]))).await
    }

    async fn resize(&self, name: &str, mib: u64) -> Result<()> {
        let args = json!({ "name": name, "size": mib * MIB, "force": true });
        self.tell("resize", args, |m| m.get_mut(name).unwrap().resize(mib as usize, 0)).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.tell("delete", json!({ "name": name }), |m| drop(m.remove(name))).await
    }

    /// Fills a partition with bytes of its own, durably.
    async fn fill(&self, name: &str) -> Result<()> {
        self.next.replace(None);
        let world: Rc<dyn Env> = Rc::clone(&self.env) as _;
        let view = super::view(&world, &self.table, name).await?;
        let units = self.model.borrow()[name].len();
        for unit in 0..units {
            self.fill.set(self.fill.get() % 200 + 1);
            let bytes = Buf::from_vec(vec![self.fill.get(); MIB as usize]);
            view.submit(Io::write(unit as u64 * MIB, bytes, Durability::Cached)).await?;
            self.model.borrow_mut().get_mut(name).unwrap()[unit] = self.fill.get();
        }
        view.submit(Io::flush()).await?;
        view.close().await
    }
}

async fn course(course: &Course) -> Result<()> {
    course.create("a", 2).await?;
    course.fill("a").await?;
    course.create("b", 1).await?;
    course.fill("b").await?;
    course.resize("a", 3).await?;
    course.fill("a").await?;
    course.create("c", 2).await?;
    course.fill("c").await?;
    course.resize("a", 1).await?;
    course.resize("b", 4).await?;
    course.delete("c").await?;
    course
        .tell("rename", json!({ "name": "a", "to": "d" }), |m| {
            let held = m.remove("a").unwrap();
            m.insert("d".into(), held);
        })
        .await?;
    course.fill("b").await?;
    course.create("e", 3).await
}

/// A disk full of old bytes; one in two zeroes natively.
fn images(world: &Simulation, seed: u64) -> Images {
    let geometry = Geometry { zero: seed.is_multiple_of(2), ..Geometry::new(SIZE) };
    let options = DiskOptions { geometry, instant: 64, ..DiskOptions::new(geometry.size) };
    let env = world.env();
    let disk = env.put_disk("disk", Image::blank(options));
    world
        .run(async move {
            let node = Node::new("disk", "simulated", env as _, disk);
            put(&node, 0, OLD, SIZE).await;
            node.submit(Io::flush()).await.expect("flushed");
        })
        .expect("it ends");
    world.env().twins()
}

/// Runs the course, and the power fails before each change. Returns the error, if there is one.
fn run(seed: u64, wrong: Wrong) -> std::result::Result<(), String> {
    let world = Simulation::from_images(seed, &images(&Simulation::new(seed), seed));
    let moments: Rc<RefCell<Vec<Moment>>> = Rc::default();
    let (env, into) = (world.env(), Rc::clone(&moments));
    let done = world.run(async move {
        let table = open(&env, wrong).await?;
        let next: Rc<RefCell<Option<[Model; 2]>>> = Rc::default();
        let (weak, expected, count) = (Rc::downgrade(&env), Rc::clone(&next), Cell::new(seed as usize));
        env.observe(Some(Rc::new(move || {
            let (Some(env), Some(models)) = (weak.upgrade(), expected.borrow().clone()) else { return };
            count.set(count.get() + 1);
            let loss = Loss::ALL[count.get() % Loss::ALL.len()];
            let images = env.images(loss, seed ^ count.get() as u64);
            into.borrow_mut().push(Moment { images, loss, models });
        })));
        let (model, fill) = (RefCell::default(), Cell::new(0));
        let done = Course { env: Rc::clone(&env), table, model, next, fill };
        let result = course(&done).await;
        env.observe(None);
        result
    });
    done.expect("it ends").map_err(|e: Error| format!("the course failed: {e}"))?;
    drop(world);
    let moments = moments.take();
    assert!(wrong != Wrong::Nothing || moments.len() > 40, "only {} moments", moments.len());
    for (number, moment) in moments.iter().enumerate() {
        let tell = |e| format!("seed {seed}, moment {number}, lost {:?}: {e}", moment.loss);
        let world = Simulation::from_images(seed, &moment.images);
        let (env, models) = (world.env(), moment.models.clone());
        world.run(async move { check(&env, wrong, &models).await }).expect("it ends").map_err(tell)?;
    }
    Ok(())
}

/// The state is one of `models`.
async fn check(env: &Rc<SimEnv>, wrong: Wrong, models: &[Model; 2]) -> std::result::Result<(), String> {
    let table = open(env, wrong).await.map_err(|e| format!("it cannot be opened: {e}"))?;
    let shown = table.info();
    let named =
        |p: &Value| (p["name"].as_str().unwrap().to_owned(), (p["size"].as_u64().unwrap() / MIB) as usize);
    let found: BTreeMap<String, usize> = shown["partitions"].as_array().unwrap().iter().map(named).collect();
    let sizes = |m: &Model| m.iter().map(|(name, units)| (name.clone(), units.len())).collect();
    let Some(model) = models.iter().find(|model| found == sizes(model)) else {
        return Err(format!("the table has {found:?}"));
    };
    let world: Rc<dyn Env> = Rc::clone(env) as _;
    for (name, units) in model {
        let view = super::view(&world, &table, name).await.map_err(|e| e.to_string())?;
        for (unit, value) in units.iter().enumerate() {
            let bytes = get(&view, unit as u64 * MIB, MIB).await;
            if let Some(at) = bytes.iter().position(|byte| byte != value) {
                return Err(format!("{name}: byte {at} of MiB {unit} is {:#x}, not {value:#x}", bytes[at]));
            }
        }
    }
    Ok(())
}

#[test]
fn the_power_fails_at_every_change() {
    for seed in 0..4 {
        run(seed, Wrong::Nothing).unwrap();
    }
}

#[test]
fn canaries_are_noticed() {
    for (wrong, says) in [
        (Wrong::TableAheadOfZeroes, "is 0xdd, not 0x0"),
        (Wrong::NoFlush, "is 0xdd, not 0x0"),
        (Wrong::TornTable, "the table has"),
        (Wrong::Overlap, "belongs to two partitions"),
        (Wrong::Swapped, "the table has"),
    ] {
        let seen = (0..4).find_map(|seed| run(seed, wrong).err());
        let seen = seen.unwrap_or_else(|| panic!("{wrong:?} passed"));
        assert!(seen.contains(says), "{wrong:?}: {seen}");
    }
}
