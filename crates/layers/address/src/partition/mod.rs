//! `partition`: cuts a device into named parts that can be made, resized and deleted while it runs.
//!
//! A partition is a device of its own: a `view` over this one. It lies in one or more pieces of 1 MiB or a
//! multiple, so it can grow whenever there is room anywhere. A byte of a partition never moves. This device
//! itself shows all bytes below, for reading only.
//!
//! ```text
//!      "root"   0 ──── size                     views: devices of type `view`
//!      "data"   0 ──────────── size
//!               │  a  │    │  b  │ c │
//!      0 ───────┴─────┴────┴─────┴───┴── size   below: root = a, data = b and c, the rest is free
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `partitions` (none): the first table, such as `[{ name = "root", size = "10GiB" }]`. The table is made
//!   by `lamina create`, and changed by commands from then on, so this key matters only once.
//!
//! Commands: `create` with `name` and `size`; `resize` with `name` and `size`, and with `force=true` if the
//! partition shrinks and loses the data beyond; `rename` with `name` and `to`; `delete` with `name`; `list`.
//! A partition that is viewed is neither renamed nor deleted, and space that it loses is reused when its
//! views have been closed.
//!
//! The table is kept with the hierarchy, on every member ([format](formats/partition.md)); a crash leaves the
//! old or the new table, at every consistency level. Space that becomes part of a partition reads as zeroes:
//! the space is zeroed, durably, before it belongs to the partition. That is the job `zero`; cancelled,
//! nothing has changed.
//!
//! Without a table of its own, the device has the partitions of the GPT below, if there is one: by their
//! names, or by their numbers where no name is the same. The GPT is never written, so commands that change it
//! are refused. Put over a device in use, `partitions` says where the data already is, from the front: it is
//! not zeroed.
//!
//! The layer deliberately moves nothing: a partition in many pieces stays so.

mod check;
pub mod effect;
pub mod gpt;
mod part;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use gpt::Gpt;
use lamina_block::{
    Arg, ArgType, Begin, Build, Bytes, Command, Config, Consent, Effect, Env, Error, ErrorKind, Finding,
    Geometry, Io, Job, Keep, Layer, Made, Manage, Node, Over, Passthrough, Pending, Result, Signal, Step,
    Traits, Verb, Zero,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use part::{Part, View, ViewsBlocked};
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use table::{Segment, Table, UNIT};

/// The most bytes that one request zeroes.
const ZERO_MAX: u64 = 16 << 20;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    partitions: Option<Vec<New>>,
}

/// A partition to be made, and the arguments of `create`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct New {
    name: String,
    size: Bytes,
}

/// The arguments of `resize`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Resize {
    name: String,
    size: Bytes,
    #[serde(default)]
    force: bool,
}

/// The arguments of `rename`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Rename {
    name: String,
    to: String,
}

/// The arguments of `delete`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Delete {
    name: String,
}

const NAME: Arg = Arg::required("name", ArgType::Text, "the partition");

impl Config for Keys {
    const KIND: &'static str = "partition";
    const SUMMARY: &'static str = "named parts that can be made, resized and deleted";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        views: true,
        elsewhere: &["lvm", "volume-group", "gpt"],
        verbs: &[
            Verb::new("create", "makes a partition that reads as zeroes").with(&[
                Arg::required("name", ArgType::Text, "the name: letters, digits, \"-\", \"_\", \".\""),
                Arg::required("size", ArgType::Size, "the size, rounded up to 1MiB"),
            ]),
            Verb::new("resize", "makes a partition larger; its new bytes read as zeroes").with(&[
                NAME,
                Arg::required("size", ArgType::Size, "the new size, rounded up to 1MiB"),
                Arg::optional("force", ArgType::Flag, "make it smaller, and lose the data beyond"),
            ]),
            Verb::new("rename", "gives a partition that is not viewed another name")
                .with(&[NAME, Arg::required("to", ArgType::Text, "the new name")]),
            Verb::new("delete", "deletes a partition that is not viewed, with its data").with(&[NAME]),
            Verb::asks("list", "the partitions, where they are, and what is free"),
        ],
        ..Traits::NONE
    };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        let listed = self.partitions.as_deref().unwrap_or_default();
        first(listed, |table, name, units| table.create(name, units, ROOM_MAX, &[]).map(drop)).map(drop)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(open(self, with).await? as Made) })
    }
}

async fn open(keys: Keys, with: Build) -> Result<Rc<Partition>> {
    let (child, begin) = (with.child(), with.begin);
    let room = child.geometry().size / UNIT;
    let layer = Rc::new(Partition {
        child,
        env: with.env,
        keep: with.keep,
        copy: Cell::new(None),
        parts: RefCell::default(),
        changing: Cell::new(false),
        closed: Cell::new(false),
        job: RefCell::default(),
        moved: Signal::new(),
    });
    let Some(keep) = layer.keep.clone() else {
        if keys.partitions.is_some() {
            return Err(Error::invalid(
                "partitions: a table is kept by a persistent hierarchy only: give the file a [hierarchy] section",
            ));
        }
        layer.take_gpt().await?;
        return Ok(layer);
    };
    match (begin, keys.partitions) {
        (Begin::Open, _) => match keep.get().filter(|record| !record.is_null()) {
            Some(record) => layer.install(&Table::read(&record, room)?),
            None => layer.take_gpt().await?,
        },
        (Begin::Format, None) => match gpt::read(&layer.child).await? {
            Some(gpt) => {
                layer.use_gpt(gpt);
                keep.set(Value::Null).await?;
            }
            None => keep.set(Table::default().record()).await?,
        },
        (Begin::Adopt, None) => {
            layer.take_gpt().await.map_err(|e| match e.kind() {
                ErrorKind::Invalid => Error::invalid(
                    "partitions: is missing: the key names the partitions of the data below, from the \
                     front, such as \
                     [{ name = \"all\", size = \"10GiB\" }]",
                ),
                _ => e,
            })?;
            keep.set(Value::Null).await?;
        }
        (Begin::Format, Some(list)) => {
            let table = first(&list, |table, name, units| table.create(name, units, room, &[]).map(drop))?;
            let all: Vec<Segment> = table.0.iter().flat_map(|entry| entry.segments.clone()).collect();
            layer.zero(&all).await?;
            keep.set(table.record()).await?;
            layer.install(&table);
        }
        (Begin::Adopt, Some(list)) => {
            let table = first(&list, |table, name, units| table.append(name, units, room))?;
            keep.set(table.record()).await?;
            layer.install(&table);
        }
    }
    Ok(layer)
}

/// More units than any device has.
const ROOM_MAX: u64 = u64::MAX / UNIT;

/// The table that the key `partitions` asks for.
fn first(list: &[New], add: impl Fn(&mut Table, &str, u64) -> Result<()>) -> Result<Table> {
    let mut table = Table::default();
    for (i, new) in list.iter().enumerate() {
        let units = table::units(new.size);
        let added = units.and_then(|units| add(&mut table, &new.name, units));
        added.map_err(|e| Error::new(e.kind(), format!("partitions[{i}].{}", e.message())))?;
    }
    Ok(table)
}

struct Partition {
    child: Rc<Node>,
    env: Rc<dyn Env>,
    /// The place of the state record; `None` in a hierarchy that is not persistent.
    keep: Option<Rc<dyn Keep>>,
    /// The copy of the GPT that was read, if the device has the partitions of a GPT.
    copy: Cell<Option<gpt::Copy>>,
    parts: RefCell<Vec<Rc<Part>>>,
    /// True while a command changes the table.
    changing: Cell<bool>,
    closed: Cell<bool>,
    /// The zeroing of that command.
    job: RefCell<Option<Rc<Job>>>,
    /// Notified when one of these changes.
    moved: Signal,
}

/// The right to change the table, for one command at a time; dropped at its end.
struct Changing(Rc<Partition>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.changing.set(false);
        self.0.moved.notify();
    }
}

impl Partition {
    /// Takes the partitions of the GPT below, or fails if there is none.
    async fn take_gpt(&self) -> Result<()> {
        let Some(gpt) = gpt::read(&self.child).await.map_err(|e| e.on(self.child.name()))? else {
            let name = self.child.name();
            return Err(Error::invalid(match self.keep {
                Some(_) => format!("there is no table of its partitions, and no GPT on {name}"),
                None => format!(
                    "there is no GPT on {name}, and a table of its own is kept by a persistent hierarchy only: give \
                     the file a [hierarchy] section"
                ),
            }));
        };
        self.use_gpt(gpt);
        Ok(())
    }

    fn use_gpt(&self, gpt: Gpt) {
        if gpt.copy == gpt::Copy::Backup {
            tracing::warn!(
                device = self.child.name(),
                "the first copy of its GPT is damaged: the second is used"
            );
        }
        self.copy.set(Some(gpt.copy));
        let part = |p: &gpt::GptPartition| Part::new(&p.name, Some(p.number), std::slice::from_ref(&p.at));
        self.parts.replace(gpt.partitions.iter().map(part).collect());
    }

    /// Puts a table into force. Views stay with their partitions.
    fn install(&self, table: &Table) {
        let mut parts = self.parts.borrow_mut();
        let before = std::mem::take(&mut *parts);
        for entry in &table.0 {
            let ranges: Vec<Range<u64>> = entry.segments.iter().map(|s| bytes(*s)).collect();
            match before.iter().find(|part| part.name() == entry.name) {
                Some(part) => {
                    part.set_ranges(&ranges);
                    parts.push(Rc::clone(part));
                }
                None => parts.push(Part::new(&entry.name, None, &ranges)),
            }
        }
    }

    /// The table in force.
    fn table(&self) -> Table {
        let segment = |at: Range<u64>| Segment(at.start / UNIT, (at.end - at.start) / UNIT);
        let entry = |part: &Rc<Part>| table::Entry {
            name: part.name(),
            segments: part.ranges().into_iter().map(segment).collect(),
        };
        Table(self.parts.borrow().iter().map(entry).collect())
    }

    /// Space that open views may still write to, though it is not theirs any more.
    fn reserved(&self) -> Vec<Segment> {
        let lost = self.parts.borrow().iter().flat_map(|part| part.lost()).collect::<Vec<_>>();
        lost.into_iter().map(|at| Segment(at.start / UNIT, (at.end - at.start) / UNIT)).collect()
    }

    fn room(&self) -> u64 {
        self.child.geometry().size / UNIT
    }

    /// Waits until no other command changes the table.
    async fn begin(self: &Rc<Self>) -> Result<Changing> {
        if let (Some(_), name) = (self.copy.get(), self.child.name()) {
            return Err(Error::unsupported(format!(
                "its partitions are those of the GPT on {name}, which is never changed: use a tool for GPTs while \
                 nothing is open"
            )));
        }
        self.moved.until(|| !self.changing.get() || self.closed.get()).await;
        if self.closed.get() {
            return Err(Error::offline("the device is closed"));
        }
        self.changing.set(true);
        let changing = Changing(Rc::clone(self));
        // A change that failed may have been recorded all the same.
        let kept = self.keep.as_ref().and_then(|keep| keep.get());
        if let Some(record) = kept.filter(|record| *record != self.table().record()) {
            let table = Table::read(&record, self.room())?;
            let is_gone = |part: &&Rc<Part>| part.is_viewed() && table.find(&part.name()).is_err();
            if let Some(part) = self.parts.borrow().iter().find(is_gone) {
                let message =
                    format!("{:?} was deleted or renamed, though that failed: close its views", part.name());
                return Err(Error::invalid(message));
            }
            self.install(&table);
        }
        Ok(changing)
    }

    /// Records `table`, and puts it into force.
    async fn keep(&self, table: Table) -> Result<()> {
        if let Some(keep) = &self.keep {
            keep.set(table.record()).await?;
        }
        self.install(&table);
        Ok(())
    }

    /// Makes unused space read as zeroes, durably.
    async fn zero(&self, space: &[Segment]) -> Result<()> {
        let total: u64 = space.iter().map(|segment| segment.1 * UNIT).sum();
        let job = Job::new(&self.env, "zero", total, None);
        self.job.replace(Some(Rc::clone(&job)));
        let zeroed = self.zero_all(space, &job).await;
        self.job.take();
        zeroed
    }

    async fn zero_all(&self, space: &[Segment], job: &Job) -> Result<()> {
        for at in space.iter().map(|segment| bytes(*segment)) {
            for start in at.clone().step_by(ZERO_MAX as usize) {
                let end = at.end.min(start + ZERO_MAX);
                job.step(end - start).await?;
                let how = Zero { unmap: true, ..Zero::default() };
                self.child.submit(Io::zero(start..end, how)).await?;
            }
        }
        self.child.submit(Io::flush()).await
    }

    async fn create(self: Rc<Self>, New { name, size }: New) -> Result<Value> {
        let _changing = self.begin().await?;
        let mut table = self.table();
        let fresh = table.create(&name, table::units(size)?, self.room(), &self.reserved())?;
        self.zero(&fresh).await?;
        self.keep(table).await?;
        self.show(&name)
    }

    async fn resize(self: Rc<Self>, Resize { name, size, force }: Resize) -> Result<Value> {
        let _changing = self.begin().await?;
        let (mut table, units) = (self.table(), table::units(size)?);
        let now = table.0[table.find(&name)?].units();
        if units < now && !force {
            return Err(Error::invalid(format!(
                "size: {name:?} has {}, and the data beyond {} would be lost: say force=true if that is meant",
                Bytes(now * UNIT),
                Bytes(units * UNIT)
            )));
        }
        if units > now {
            let fresh = table.grow(&name, units - now, self.room(), &self.reserved())?;
            self.zero(&fresh).await?;
        }
        let lost = table.cut(&name, units)?;
        self.keep(table).await?;
        self.part(&name)?.lose(lost.into_iter().map(bytes));
        self.show(&name)
    }

    async fn rename(self: Rc<Self>, Rename { name, to }: Rename) -> Result<Value> {
        let _changing = self.begin().await?;
        let mut table = self.table();
        table.rename(&name, &to)?;
        let _leaving = self.unviewed(&name, "renamed")?;
        self.keep(table).await?;
        self.show(&to)
    }

    async fn delete(self: Rc<Self>, Delete { name }: Delete) -> Result<Value> {
        let _changing = self.begin().await?;
        let mut table = self.table();
        table.delete(&name)?;
        let _leaving = self.unviewed(&name, "deleted")?;
        self.keep(table).await?;
        Ok(self.list())
    }

    /// Fails for a partition in use; otherwise no view of it can be opened until the result is dropped.
    fn unviewed(&self, name: &str, done: &str) -> Result<ViewsBlocked> {
        let part = self.part(name)?;
        if part.is_viewed() {
            return Err(Error::busy(format!(
                "name: {name:?} is in use, and cannot be {done}: take away the device of type \"view\" that shows it \
                 first"
            )));
        }
        Ok(part.block_views())
    }

    /// The partition called `name`; of a GPT also by its number.
    fn part(&self, name: &str) -> Result<Rc<Part>> {
        let parts = self.parts.borrow();
        let mut named = parts.iter().filter(|part| part.name() == name);
        let numbered = || parts.iter().find(|part| part.number().is_some_and(|n| n.to_string() == name));
        match (named.next(), named.next()) {
            (Some(_), Some(_)) => {
                Err(Error::invalid(format!("name: several partitions are called {name:?}: use a number")))
            }
            (Some(part), None) => Ok(Rc::clone(part)),
            (None, _) => numbered().cloned().ok_or_else(|| {
                let known: Vec<String> = parts.iter().map(|part| part.called()).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Error::invalid(format!("name: there is no partition {name:?}; there is {known}"))
            }),
        }
    }

    fn show(&self, name: &str) -> Result<Value> {
        Ok(self.part(name)?.show())
    }

    fn list(&self) -> Value {
        let parts: Vec<Value> = self.parts.borrow().iter().map(|part| part.show()).collect();
        match self.copy.get() {
            Some(copy) => json!({ "partitions": parts, "table": copy.name() }),
            None => {
                let free = self.table().free(self.room(), &self.reserved());
                let free: u64 = free.iter().map(|segment| segment.1 * UNIT).sum();
                json!({ "partitions": parts, "table": "own", "free": free })
            }
        }
    }
}

/// The bytes of a segment.
fn bytes(segment: Segment) -> Range<u64> {
    segment.0 * UNIT..(segment.0 + segment.1) * UNIT
}

impl Layer for Partition {
    /// All bytes below, for reading: writes go through views.
    fn geometry(&self) -> Geometry {
        Geometry { read_only: true, ..self.child.geometry() }
    }

    fn submit(self: Rc<Self>, _: &mut Io) -> Step {
        Step::Forward(Rc::clone(&self.child))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::to(&self.child)
    }

    /// A command that is zeroing space ends without a change.
    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.closed.set(true);
            self.moved.notify();
            if let Some(job) = self.job.borrow().as_ref() {
                job.cancel();
            }
            self.moved.until(|| !self.changing.get()).await;
            Ok(())
        })
    }
}

impl Manage for Partition {
    fn effect(&self, command: &Command) -> Effect {
        self.effect_of(command)
    }

    /// The layer's own table is kept elsewhere.
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        match self.copy.get() {
            Some(_) => {
                unless_replaced(effect, || format!("its partitions are those of the GPT on {}", child.name()))
            }
            None => Consent::Agrees,
        }
    }

    fn view(self: Rc<Self>, name: String) -> Pending<Made> {
        Box::pin(async move {
            let part = self.part(&name)?;
            Ok(Rc::new(View::new(part, Rc::clone(&self.child))?) as Made)
        })
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "create" => self.create(args(command)?).await,
                "resize" => self.resize(args(command)?).await,
                "rename" => self.rename(args(command)?).await,
                "delete" => self.delete(args(command)?).await,
                "list" => Ok(self.list()),
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move { Ok(self.look()) })
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.job.borrow().iter().cloned().collect()
    }

    fn info(&self) -> Value {
        self.list()
    }
}
