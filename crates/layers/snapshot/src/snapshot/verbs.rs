//! What people tell the volume: to keep a version, to go back to one, to forget one, to be larger.

use super::core::{Core, Snapshot};
use super::format::{Head, KEPT_LEN, Kept, NAME_MAX, is_name, kept_at, kept_max, map_pages, space_tags};
use super::read::Version;
use lamina_block::{Arg, ArgType, Bytes, Command, Effect, Error, ErrorKind, Io, Result, Verb, Zero};
use lamina_kit::command::{args, unknown};
use lamina_metadata::Change;
use lamina_metadata::extents::{EPOCH_MAX, PLACES_MAX, Pxb};
use serde::Deserialize;
use serde_json::{Value, json};
use std::rc::Rc;

const NAME: &[Arg] = &[Arg::required("name", ArgType::Text, "the snapshot")];
const BACK: &[Arg] = &[
    Arg::required("name", ArgType::Text, "the snapshot"),
    Arg::optional("force", ArgType::Flag, "yes, what the volume is now is lost, if no snapshot has it"),
];

/// The commands.
pub(super) const VERBS: &[Verb] = &[
    Verb::new("snapshot", "keep the volume as it is now, under a name").with(NAME),
    Verb::new("rollback", "make the volume what it was in a snapshot; snapshots stay").with(BACK),
    Verb::new("delete", "forget a snapshot; its space is reclaimed in the background").with(NAME),
    Verb::new("list", "the snapshots, oldest first"),
    Verb::new("resize", "change the size of the volume").with(&[
        Arg::required("size", ArgType::Size, "the size from now on"),
        Arg::optional("force", ArgType::Flag, "also if it is smaller: what lies behind is lost"),
    ]),
    Verb::new("grow", "use what the device below has become larger by"),
    Verb::new("reclaim", "look for space that no version uses, and give it back"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

/// Whether it is carried out without `force` is not decided here: see [`Effect::loses`].
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

/// Whether nothing may be in flight while a command is carried out.
pub(super) fn needs_quiesce(command: &Command) -> bool {
    matches!(command.name.as_str(), "snapshot" | "rollback" | "resize" | "grow")
}

impl Core {
    /// What a command does to those above, and what is lost with it.
    pub fn effect_of(&self, command: &Command) -> Effect {
        match command.name.as_str() {
            "snapshot" => Effect::captures(),
            "rollback" => self.effect_of_rollback(command),
            "resize" => match args::<Resize>(command.clone()) {
                Ok(Resize { size: Bytes(size), .. }) if size < self.head.get().size => {
                    let (before, after) = (Bytes(self.head.get().size), Bytes(size));
                    Effect::replaces(format!("what lies behind {after} of the {before} that it has now"))
                }
                Ok(_) | Err(_) => Effect::default(),
            },
            _ => Effect::default(),
        }
    }

    fn effect_of_rollback(&self, command: &Command) -> Effect {
        let snapshots = self.snapshots.borrow();
        let asked = args::<Back>(command.clone());
        let found = asked.ok().and_then(|back| snapshots.iter().find(|s| s.kept.name == back.name));
        let Some(Snapshot { kept, .. }) = found else { return Effect::default() };
        let now = self.head.get().size;
        let size = match kept.size == now {
            true => String::new(),
            false => format!("; its size becomes {} instead of {}", Bytes(kept.size), Bytes(now)),
        };
        Effect::replaces(format!("the present state of the volume, unless a snapshot has it{size}"))
    }

    pub async fn carry_out_command(self: Rc<Self>, command: Command) -> Result<Value> {
        self.offline()?;
        let known = VERBS.iter().any(|verb| verb.name == command.name);
        if self.is_read_only() && known && command.name != "list" {
            let why = self.sealed.as_deref().unwrap_or("the device below is read-only");
            return Err(Error::new(ErrorKind::ReadOnly, why));
        }
        match command.name.as_str() {
            "snapshot" => self.keep(args::<Named>(command)?.name).await,
            "rollback" => self.roll_back(args::<Back>(command)?.name).await,
            "delete" => self.forget(args::<Named>(command)?.name).await,
            "list" => Ok(self.list()),
            "resize" => {
                let Resize { size, force } = args(command)?;
                self.resize(size.0, force).await
            }
            "grow" => {
                self.grow().await?;
                Ok(json!({ "extents": self.head.get().physical }))
            }
            "reclaim" => {
                self.start_reclaim();
                Ok(json!({}))
            }
            _ => Err(unknown(&command, VERBS)),
        }
    }

    fn no_such(&self, name: &str) -> Error {
        let names: Vec<String> = self.snapshots.borrow().iter().map(|s| s.kept.name.clone()).collect();
        let there = if names.is_empty() {
            "there are none".into()
        } else {
            format!("there are {}", names.join(", "))
        };
        Error::invalid(format!("there is no snapshot {name:?}; {there}"))
    }

    /// A free entry of the table.
    fn free_index(&self) -> Result<usize> {
        let len = self.store.load(self.table_id)?.len();
        let taken = |index: usize| self.snapshots.borrow().iter().any(|snapshot| snapshot.index == index);
        (0..kept_max(len)).find(|index| !taken(*index)).ok_or_else(|| {
            Error::new(
                ErrorKind::NoSpace,
                format!("{} snapshots are the most that fit: delete some", kept_max(len)),
            )
        })
    }

    /// The device is held.
    async fn keep(self: Rc<Self>, name: String) -> Result<Value> {
        if !is_name(&name) {
            let message = format!("a snapshot's name has 1 to {NAME_MAX} bytes, and no slash: {name:?}");
            return Err(Error::invalid(message));
        }
        self.flush().await?;
        let turn = self.turn.lock().await;
        if self.snapshots.borrow().iter().any(|snapshot| snapshot.kept.name == name) {
            return Err(Error::invalid(format!("there is a snapshot {name:?} already")));
        }
        let (head, index) = (self.head.get(), self.free_index()?);
        if head.epoch >= EPOCH_MAX - 1 {
            return Err(Error::new(
                ErrorKind::NoSpace,
                "the volume has had as many snapshots as it can have",
            ));
        }
        let kept = Kept { name, epoch: head.epoch, size: head.size, root: head.root };
        let after = Head { epoch: head.epoch + 1, ..head };
        let change = Change::new().write(self.table_id, kept_at(index), kept.encode());
        self.change(self.with_head(change, after)).await?;
        let answer = json!({ "name": kept.name, "size": kept.size });
        self.snapshots.borrow_mut().push(Snapshot::new(kept, index));
        self.head.set(after);
        self.shared.set(self.shared_by_snapshots());
        self.commit().await?;
        drop(turn);
        Ok(answer)
    }

    /// The device is held.
    async fn roll_back(self: Rc<Self>, name: String) -> Result<Value> {
        self.flush().await?;
        let turn = self.turn.lock().await;
        let kept = self.snapshots.borrow().iter().find(|s| s.kept.name == name).map(|s| s.kept.clone());
        let kept = kept.ok_or_else(|| self.no_such(&name))?;
        self.suits(&name, kept.size)?;
        let after = Head { root: kept.root, size: kept.size, garbage: true, ..self.head.get() };
        self.change(self.with_head(Change::new(), after)).await?;
        self.head.set(after);
        self.commit().await?;
        drop(turn);
        self.start_reclaim();
        Ok(json!({ "name": kept.name, "size": kept.size }))
    }

    async fn forget(self: Rc<Self>, name: String) -> Result<Value> {
        let turn = self.turn.lock().await;
        let index = self.let_leave(&name)?;
        let after = Head { garbage: true, ..self.head.get() };
        let change = Change::new().write(self.table_id, kept_at(index), vec![0; KEPT_LEN]);
        if let Err(e) = self.change(self.with_head(change, after)).await {
            self.snapshots.borrow().iter().for_each(|snapshot| snapshot.leaves.set(false));
            return Err(e);
        }
        self.snapshots.borrow_mut().retain(|snapshot| snapshot.index != index);
        self.head.set(after);
        // What was shared with it is the volume's own from the moment on when this is durable.
        self.commit().await?;
        drop(turn);
        self.start_reclaim();
        Ok(json!({}))
    }

    /// From now on nobody begins to view a snapshot, which nobody does; its place in the table.
    fn let_leave(&self, name: &str) -> Result<usize> {
        let snapshots = self.snapshots.borrow();
        let found = snapshots.iter().find(|snapshot| snapshot.kept.name == name);
        let snapshot = found.ok_or_else(|| self.no_such(name))?;
        if snapshot.is_viewed() {
            let message = format!("a device shows the snapshot {name:?}: take the view away first");
            return Err(Error::invalid(message));
        }
        snapshot.leaves.set(true);
        Ok(snapshot.index)
    }

    pub fn list(&self) -> Value {
        let snapshots = self.snapshots.borrow();
        let show = |s: &Snapshot| {
            let Kept { name, size, epoch, .. } = &s.kept;
            json!({ "name": name, "size": size, "epoch": epoch, "viewed": s.is_viewed() })
        };
        Value::Array(snapshots.iter().map(show).collect())
    }

    /// The device is held, unless this is called while it is opened.
    pub async fn resize(self: &Rc<Self>, size: u64, force: bool) -> Result<Value> {
        let head = self.head.get();
        let block = u64::from(self.child.geometry().block);
        if size == 0 || !size.is_multiple_of(block) || size.div_ceil(head.extent()) > PLACES_MAX {
            let message = format!("size: {} is not possible; it is a multiple of {block} bytes", Bytes(size));
            return Err(Error::invalid(message));
        }
        if size < head.size {
            if !force {
                let message = format!(
                    "the volume has {} and would lose what lies behind {}: say force=true if that is meant",
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
        let turn = self.turn.lock().await;
        let after = Head { size, ..self.head.get() };
        self.change(self.with_head(Change::new(), after)).await?;
        self.head.set(after);
        self.commit().await?;
        drop(turn);
        Ok(json!({ "size": size }))
    }

    /// The last extent of a device that was taken over may be short: it moves to a whole one.
    async fn fill_last(self: &Rc<Self>, head: Head) -> Result<()> {
        let last = head.adopted.saturating_sub(1);
        if head.adopted <= head.physical || head.size.is_multiple_of(head.extent()) {
            return Ok(());
        }
        self.load(last).await?;
        let at_home = |place: super::core::Place| place.at.is_some_and(|spot| spot.extent == last);
        match self.look(last).transpose()?.is_some_and(at_home) {
            true => self.move_away(last).await,
            false => Ok(()),
        }
    }

    /// Takes over what the child has become larger by. Nobody asks for extents meanwhile: the device is held, or being
    /// opened.
    pub async fn grow(self: &Rc<Self>) -> Result<()> {
        self.grace.refresh();
        let head = self.head.get();
        let physical = self.child.geometry().size.saturating_sub(head.data) / head.extent();
        if physical <= head.physical {
            return Ok(());
        }
        let turn = self.turn.lock().await;
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
                self.change_and_commit(Change::new().write(to, at, bytes)).await?;
                at += 4064;
            }
        }
        let new = Rc::new(Pxb::open(&self.store, new.ids(), physical).await?);
        if head.adopted > head.physical {
            // The last extent of the device that was taken over was short, and nobody's.
            let last = head.adopted - 1;
            self.change_and_commit(new.claim(Change::new(), last..last + 1)?).await?;
        }
        self.behind.set(true);
        self.commit().await?;
        let after = Head { physical, space: head.space + 1, ..self.head.get() };
        self.change(self.with_head(Change::new(), after)).await?;
        self.head.set(after);
        *self.space.borrow_mut() = new;
        self.commit().await?;
        self.tidy().await?;
        drop(turn);
        Ok(())
    }

    /// Removes bitmaps that do not count: not any more, or, after a crash, not yet.
    async fn tidy(self: &Rc<Self>) -> Result<()> {
        let current = space_tags(self.head.get().space);
        let is_other = |tag: &u64| *tag >= space_tags(0)[0] && !current.contains(tag);
        for (id, _, tag) in self.store.objects() {
            if is_other(&tag) {
                self.change_and_commit(Change::new().free(id)).await?;
            }
        }
        self.commit().await
    }

    /// A change of objects that nobody refers to yet: it may be committed alone.
    async fn change_and_commit(&self, change: Change) -> Result<()> {
        if self.atomic() {
            self.store.commit().await?;
        }
        self.change(change).await
    }

    /// Whether a snapshot of `size` bytes can be a device over the one below, which may have been exchanged since.
    pub fn suits(&self, name: &str, size: u64) -> Result<()> {
        let block = self.child.geometry().block;
        match size.is_multiple_of(block.into()) {
            true => Ok(()),
            false => {
                Err(Error::invalid(format!("the snapshot {name:?} is of smaller blocks than {block} bytes")))
            }
        }
    }

    /// What a snapshot's view needs to know of it.
    pub fn find(&self, name: &str) -> Result<(Version, u64, Rc<()>)> {
        let snapshots = self.snapshots.borrow();
        let found = snapshots.iter().find(|s| s.kept.name == name && !s.leaves.get());
        let found = found.map(|s| (Version::Kept(s.kept.root), s.kept.size, Rc::clone(&s.viewers)));
        drop(snapshots);
        found.ok_or_else(|| self.no_such(name))
    }
}
