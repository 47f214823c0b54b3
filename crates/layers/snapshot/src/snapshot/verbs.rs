//! The commands of the volume: take a snapshot, roll back to one, delete one, resize.

use super::core::Core;
use super::format::{
    Head, NAME_MAX, RECORD_LEN, SnapshotRecord, is_name, map_pages, record_at, records_max, space_tags,
};
use super::state::Snapshot;
use lamina_block::{Arg, ArgType, Bytes, Command, Effect, Error, ErrorKind, Io, Result, Verb, Zero};
use lamina_kit::command::{args, unknown};
use lamina_metadata::Change;
use lamina_metadata::extents::{PLACES_MAX, Pxb};
use serde::Deserialize;
use serde_json::{Value, json};
use std::rc::Rc;

const NAME: &[Arg] = &[Arg::required("name", ArgType::Text, "the snapshot")];
const BACK: &[Arg] = &[
    Arg::required("name", ArgType::Text, "the snapshot"),
    Arg::optional(
        "force",
        ArgType::Flag,
        "yes, the present state of the volume is lost, if no snapshot has it",
    ),
];

const TAKE: &[Arg] = &[
    Arg::optional(
        "name",
        ArgType::Text,
        "the snapshot; one is made of the number of the snapshot if it has none",
    ),
    Arg::optional("keep", ArgType::Count, "of those with such a name so many stay: the oldest are deleted"),
];

/// The commands.
pub(super) const VERBS: &[Verb] = &[
    Verb::new("snapshot", "keep the volume as it is now, under a name").with(TAKE),
    Verb::new("rollback", "make the volume what it was in a snapshot; snapshots stay").with(BACK),
    Verb::new("delete", "forget a snapshot; its space is reclaimed in the background").with(NAME),
    Verb::asks("list", "the snapshots, oldest first"),
    Verb::asks("space", "the space that each snapshot alone takes, and all together"),
    Verb::new("resize", "change the size of the volume").with(&[
        Arg::required("size", ArgType::Size, "the size from now on"),
        Arg::optional("force", ArgType::Flag, "also if it is smaller: the data beyond is lost"),
    ]),
    Verb::new("grow", "use the space by which the device below has grown"),
    Verb::new("reclaim", "look for space that no version uses, and give it back"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Take {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    keep: Option<usize>,
}

/// Commands without `force` are refused elsewhere: see [`Effect::loses`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Back {
    name: String,
    #[serde(default, rename = "force")]
    _force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    size: Bytes,
    #[serde(default)]
    force: bool,
}

/// The name of a snapshot that ends an epoch, and was given none: there is never another one of that epoch.
fn made(epoch: u32) -> String {
    format!("auto-{epoch}")
}

/// True if nothing may be in flight while the command runs.
pub(super) fn needs_quiesce(command: &Command) -> bool {
    matches!(command.name.as_str(), "snapshot" | "rollback" | "resize" | "grow")
}

impl Core {
    /// The effect of a command on those above, and the data lost with it.
    pub fn effect_of(&self, command: &Command) -> Effect {
        match command.name.as_str() {
            "snapshot" => Effect::captures(),
            "rollback" => self.effect_of_rollback(command),
            "resize" => match args::<Resize>(command.clone()) {
                Ok(Resize { size: Bytes(size), .. }) if size < self.head().size => {
                    let (before, after) = (Bytes(self.head().size), Bytes(size));
                    Effect::replaces(format!("the data beyond {after}, of the {before} that it has now"))
                }
                Ok(_) | Err(_) => Effect::default(),
            },
            _ => Effect::default(),
        }
    }

    fn effect_of_rollback(&self, command: &Command) -> Effect {
        let Ok(back) = args::<Back>(command.clone()) else { return Effect::default() };
        let state = self.state();
        let found = state.versions.snapshots().iter().find(|s| s.record.name == back.name);
        let Some(Snapshot { record, .. }) = found else { return Effect::default() };
        let now = state.versions.head().size;
        let size = match record.size == now {
            true => String::new(),
            false => format!("; its size becomes {} instead of {}", Bytes(record.size), Bytes(now)),
        };
        Effect::replaces(format!("the present state of the volume, unless a snapshot has it{size}"))
    }

    pub async fn carry_out_command(self: Rc<Self>, command: Command) -> Result<Value> {
        self.offline()?;
        let changes = VERBS.iter().any(|verb| verb.name == command.name && !verb.asks);
        if self.is_read_only() && changes {
            let why = self.sealed.as_deref().unwrap_or("the device below is read-only");
            return Err(Error::new(ErrorKind::ReadOnly, why));
        }
        match command.name.as_str() {
            "snapshot" => self.take(args(command)?).await,
            "rollback" => self.roll_back(args::<Back>(command)?.name).await,
            "delete" => self.forget(args::<Named>(command)?.name).await,
            "list" => Ok(self.list()),
            "space" => self.space_of_snapshots().await,
            "resize" => {
                let Resize { size, force } = args(command)?;
                self.resize(size.0, force).await
            }
            "grow" => {
                self.grow().await?;
                Ok(json!({ "extents": self.head().physical }))
            }
            "reclaim" => {
                self.start_reclaim();
                Ok(json!({}))
            }
            _ => Err(unknown(&command, VERBS)),
        }
    }

    /// The device is quiesced.
    async fn take(self: Rc<Self>, Take { name, keep }: Take) -> Result<Value> {
        if keep == Some(0) {
            return Err(Error::invalid("keep: at least one snapshot stays, the one that is taken"));
        }
        let name = name.unwrap_or_else(|| made(self.head().epoch));
        let mut answer = Rc::clone(&self).keep(name).await?;
        if let Some(keep) = keep {
            answer["deleted"] = self.forget_all_but(keep).await?.into();
        }
        Ok(answer)
    }

    /// Deletes the oldest snapshots whose names were made, so that `keep` of these stay; a snapshot that a device shows
    /// counts, and stays in any case. Gives their names.
    async fn forget_all_but(self: Rc<Self>, keep: usize) -> Result<Vec<String>> {
        let old: Vec<String> = {
            let state = self.state();
            let snapshots = state.versions.snapshots().iter();
            let made: Vec<&Snapshot> = snapshots.filter(|s| s.record.name == made(s.record.epoch)).collect();
            let old = &made[..made.len().saturating_sub(keep)];
            old.iter().filter(|s| !s.is_viewed()).map(|s| s.record.name.clone()).collect()
        };
        for name in &old {
            Rc::clone(&self).forget(name.clone()).await?;
        }
        Ok(old)
    }

    async fn keep(self: Rc<Self>, name: String) -> Result<Value> {
        if !is_name(&name) {
            let message = format!("a snapshot's name has 1 to {NAME_MAX} bytes, and no slash: {name:?}");
            return Err(Error::invalid(message));
        }
        self.flush().await?;
        let guard = self.map_lock.lock().await;
        let entries = records_max(self.store.load(self.table_id)?.len());
        let (snapshot, head) = self.state().versions.plan_snapshot(name, self.env.unix_time(), entries)?;
        let change = Change::new().write(self.table_id, record_at(snapshot.index), snapshot.record.encode());
        let answer = json!({ "name": snapshot.record.name, "size": snapshot.record.size });
        self.stage(self.with_head(change, head)).await?;
        self.change(|state| state.versions.recorded(snapshot, head));
        self.commit().await?;
        drop(guard);
        Ok(answer)
    }

    /// The device is quiesced.
    async fn roll_back(self: Rc<Self>, name: String) -> Result<Value> {
        self.flush().await?;
        let guard = self.map_lock.lock().await;
        let head = self.state().versions.plan_rollback(&name)?;
        self.suits(&name, head.size)?;
        self.stage_head(Change::new(), head).await?;
        self.commit().await?;
        drop(guard);
        self.start_reclaim();
        Ok(json!({ "name": name, "size": head.size }))
    }

    async fn forget(self: Rc<Self>, name: String) -> Result<Value> {
        let guard = self.map_lock.lock().await;
        let (index, head) = self.change(|state| state.versions.begin_delete(&name))?;
        let change = Change::new().write(self.table_id, record_at(index), vec![0; RECORD_LEN]);
        if let Err(e) = self.stage(self.with_head(change, head)).await {
            self.change(|state| state.versions.cancel_delete(index));
            return Err(e);
        }
        self.change(|state| state.versions.deleted(index, head));
        // Extents shared with the deleted snapshot belong to the volume alone when this is durable.
        self.commit().await?;
        drop(guard);
        self.start_reclaim();
        Ok(json!({}))
    }

    pub fn list(&self) -> Value {
        let state = self.state();
        let show = |s: &Snapshot| {
            let SnapshotRecord { name, size, epoch, taken, .. } = &s.record;
            let taken = Some(taken).filter(|taken| **taken > 0);
            json!({ "name": name, "taken_unix": taken, "size": size, "epoch": epoch, "viewed": s.is_viewed() })
        };
        Value::Array(state.versions.snapshots().iter().map(show).collect())
    }

    /// The device is quiesced, unless this is called while it is opened.
    pub async fn resize(self: &Rc<Self>, size: u64, force: bool) -> Result<Value> {
        let head = self.head();
        let block = u64::from(self.child.geometry().block);
        if size == 0 || !size.is_multiple_of(block) || size.div_ceil(head.extent()) > PLACES_MAX {
            let message = format!("size: {} is not possible; it is a multiple of {block} bytes", Bytes(size));
            return Err(Error::invalid(message));
        }
        if size < head.size {
            if !force {
                let message = format!(
                    "the volume has {} and would lose the bytes after {}: say force=true if that is meant",
                    Bytes(head.size),
                    Bytes(size)
                );
                return Err(Error::invalid(message));
            }
            Rc::clone(self).alter(Io::zero(size..head.size, Zero::default())).await?;
        } else if size > head.size {
            self.fill_last(head).await?;
        }
        self.flush().await?;
        let guard = self.map_lock.lock().await;
        self.stage_head(Change::new(), Head { size, ..self.head() }).await?;
        self.commit().await?;
        drop(guard);
        Ok(json!({ "size": size }))
    }

    /// The last extent of an adopted device may be short: it moves to a whole one.
    async fn fill_last(self: &Rc<Self>, head: Head) -> Result<()> {
        let last = head.adopted.saturating_sub(1);
        if head.adopted <= head.physical || head.size.is_multiple_of(head.extent()) {
            return Ok(());
        }
        self.load(last).await?;
        let location = self.look(&self.state(), last).transpose()?;
        match location.and_then(|location| location.at).is_some_and(|physical| physical.number == last) {
            true => self.move_away(last).await,
            false => Ok(()),
        }
    }

    /// Uses the space by which the child has grown. No extents are allocated meanwhile: the device is
    /// quiesced, or being opened.
    pub async fn grow(self: &Rc<Self>) -> Result<()> {
        self.grace.refresh();
        let head = self.head();
        let physical = self.child.geometry().size.saturating_sub(head.data) / head.extent();
        if physical <= head.physical {
            return Ok(());
        }
        let guard = self.map_lock.lock().await;
        self.tidy().await?;
        let old = Rc::clone(&self.space.borrow());
        if map_pages(self.store.free_pages(), 0) < super::format::space_pages(physical) {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "there is no room for the bitmap of {physical} extents in the metadata of the volume"
                ),
            ));
        }
        let new = Pxb::create(&self.store, physical, space_tags(head.space + 1)).await?;
        for (from, to) in old.ids().into_iter().zip(new.ids()) {
            let (from, to) = (self.store.load(from)?, to);
            let mut at = 0;
            while at < from.len() {
                let mut bytes = vec![0; 4064.min((from.len() - at) as usize)];
                from.read(at, &mut bytes).await?;
                self.stage_alone(Change::new().write(to, at, bytes)).await?;
                at += 4064;
            }
        }
        let new = Rc::new(Pxb::open(&self.store, new.ids(), physical).await?);
        if head.adopted > head.physical {
            // The last extent of the adopted device was short, and had no owner.
            let last = head.adopted - 1;
            self.stage_alone(new.claim(Change::new(), last..last + 1)?).await?;
        }
        self.change(|state| state.rounds.stage());
        self.commit().await?;
        let after = Head { physical, space: head.space + 1, ..self.head() };
        self.stage_head(Change::new(), after).await?;
        *self.space.borrow_mut() = new;
        self.commit().await?;
        self.tidy().await?;
        drop(guard);
        Ok(())
    }

    /// Removes bitmaps that do not count any more, or, after a crash, not yet.
    async fn tidy(self: &Rc<Self>) -> Result<()> {
        let current = space_tags(self.head().space);
        let is_other = |tag: &u64| *tag >= space_tags(0)[0] && !current.contains(tag);
        for (id, _, tag) in self.store.objects() {
            if is_other(&tag) {
                self.stage_alone(Change::new().free(id)).await?;
            }
        }
        self.commit().await
    }

    /// A change of objects that are not referred to yet: it may be committed alone.
    async fn stage_alone(&self, change: Change) -> Result<()> {
        if self.atomic() {
            self.store.commit().await?;
        }
        self.stage(change).await
    }

    /// Fails unless a snapshot of `size` bytes can be a device over the one below, which may have been
    /// exchanged since.
    pub fn suits(&self, name: &str, size: u64) -> Result<()> {
        let block = self.child.geometry().block;
        match size.is_multiple_of(block.into()) {
            true => Ok(()),
            false => {
                Err(Error::invalid(format!("the snapshot {name:?} is of smaller blocks than {block} bytes")))
            }
        }
    }
}
