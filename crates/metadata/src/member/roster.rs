//! The superblocks of an open hierarchy, kept in step: its members, its description, and the state records of its
//! devices.
//!
//! ```text
//!   next state ──▶ first copies of all, durable ──▶ it counts ──▶ second copies of all
//! ```
//!
//! Invariant: at every moment there is a state of which all members have a whole copy. So the first copies are not
//! touched while second copies of the state before are missing; those are completed first.
//!
//! A member that cannot be written is left out, if the hierarchy survives that: the next generation says so, and is on
//! the others before anything is called done. A member is taken in again with its first copy written last: its state is
//! never later than that of the others.

use super::found::{Candidate, State};
use super::judge::{Outside, returning};
use super::records::{self, Evicted, Trailer};
use super::{Member, draft::Draft};
use crate::superblock::{COPY_LEN, Layout, Place, Superblock, write};
use lamina_block::{Error, ErrorKind, Keep, Pending, Result, Signal};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Whether a hierarchy has all of its bytes without the members with these names.
pub type Survives = Rc<dyn Fn(&[&str]) -> bool>;

/// The members of an open hierarchy.
pub struct Roster {
    /// The members in use.
    members: RefCell<Vec<Rc<Member>>>,
    /// The description without its trailer, and the trailer.
    file: RefCell<String>,
    trailer: RefCell<Trailer>,
    survives: RefCell<Survives>,
    /// The highest generation that was ever written, perhaps in vain.
    latest: Cell<u64>,
    /// The first copies count, and not all of the second are written.
    stale: Cell<bool>,
    /// A write is under way; one at a time.
    busy: Cell<bool>,
    free: Signal,
}

impl Roster {
    /// The members of a hierarchy, whose superblocks are all whole and of one state. `latest` is the highest generation
    /// that any copy had before.
    ///
    /// Fails with `Corrupt` if the trailer cannot be read.
    pub fn new(members: Vec<Rc<Member>>, latest: u64, survives: Survives) -> Result<Rc<Roster>> {
        let first = members.first().map(|member| member.superblock());
        let description = first.map_or(String::new(), |superblock| superblock.description);
        let (file, trailer) =
            records::split(&description).map_err(|message| Error::new(ErrorKind::Corrupt, message))?;
        let roster = Rc::new(Roster {
            file: RefCell::new(file.to_owned()),
            trailer: RefCell::new(trailer),
            survives: RefCell::new(survives),
            members: RefCell::default(),
            latest: Cell::new(latest),
            stale: Cell::new(false),
            busy: Cell::new(false),
            free: Signal::new(),
        });
        roster.take_in(members);
        Ok(roster)
    }

    fn take_in(self: &Rc<Self>, members: Vec<Rc<Member>>) {
        members.iter().for_each(|member| drop(member.roster.replace(Rc::downgrade(self))));
        self.members.replace(members);
    }

    /// The members in use.
    pub fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().clone()
    }

    /// The members that are evicted, and the last generation that each was part of.
    pub fn evicted(&self) -> Evicted {
        self.trailer.borrow().evicted.clone()
    }

    /// The record of the graph.
    pub fn way(&self) -> Option<Value> {
        self.trailer.borrow().way.clone()
    }

    /// Keeps something else for the graph.
    pub async fn set_way(self: &Rc<Self>, way: Option<Value>) -> Result<()> {
        let _turn = self.turn().await;
        let mut draft = self.draft();
        draft.trailer.way = way;
        draft.check_space()?;
        self.write(draft).await
    }

    /// The member called `name`, unless it is evicted.
    pub fn member(&self, name: &str) -> Option<Rc<Member>> {
        self.members.borrow().iter().find(|member| member.name() == name).cloned()
    }

    /// The state record of `device`, which the device can change.
    pub fn keep(self: &Rc<Self>, device: &str) -> Rc<dyn Keep> {
        Rc::new(DeviceRecord { roster: Rc::clone(self), device: device.into() })
    }

    /// Makes the hierarchy consist of `members`, described by `file`, in which only devices that are `known` keep their
    /// state records, and evicted members stay so. `now` gives the new name of a child (second) of a device (first), if
    /// it is renamed; `way` is the record of the graph. New members get their superblocks; members that are left out
    /// keep theirs, which are stale from now on.
    ///
    /// After an error the hierarchy is what it was before.
    pub async fn become_of(
        self: &Rc<Self>,
        members: Vec<Rc<Member>>,
        file: &str,
        way: Option<Value>,
        known: &dyn Fn(&str) -> bool,
        now: &dyn Fn(&str, &str) -> Option<String>,
        survives: Survives,
    ) -> Result<()> {
        let _turn = self.turn().await;
        let mut draft = Draft { members, file: file.to_owned(), survives, ..self.draft() };
        draft.trailer.way = way;
        draft.trailer.records.retain(|device, _| known(device));
        draft.trailer.evicted.retain(|device, _| known(device));
        for (device, value) in &mut draft.trailer.records {
            records::rename(value, &|child| now(device, child));
        }
        draft.check_survival()?;
        draft.check_space()?;
        self.write(draft).await
    }

    /// The superblock of a device with the name of an evicted member, if that can be taken in again; else the reason
    /// against it, as text that follows the name.
    pub fn recognise(&self, candidate: &Candidate) -> std::result::Result<Superblock, String> {
        let members = self.members();
        let names: Vec<String> = members.iter().map(|member| member.name()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let last = self.trailer.borrow().evicted.get(&candidate.device).copied();
        let (Some(first), Some(last)) = (members.first(), last) else {
            return Err("is not out".into());
        };
        let own = returning(candidate, &State::of(&first.superblock()), last, &names);
        own.cloned().map_err(|outside| match outside {
            Outside::Apart(why) | Outside::PassedOver(why) => why,
        })
    }

    /// Takes a member in again that is evicted and was [recognised](Roster::recognise). A member that cannot be written
    /// stays evicted.
    ///
    /// With `anew`, a device and its child, that device does not know the child from then on: the child's data is
    /// worthless.
    pub async fn rejoin(self: &Rc<Self>, member: Rc<Member>, anew: Option<(&str, &str)>) -> Result<()> {
        let _turn = self.turn().await;
        let mut draft = self.draft();
        draft.trailer.evicted.remove(&member.name());
        if let Some((device, child)) = anew {
            records::forget(&mut draft.trailer.records, device, child);
        }
        draft.members.push(member);
        self.write(draft).await
    }

    /// Completes what could not be written before.
    pub async fn complete_writes(self: &Rc<Self>) -> Result<()> {
        let _turn = self.turn().await;
        let failed = self.catch_up(&Evicted::new()).await;
        if failed.is_empty() {
            return Ok(());
        }
        let draft = self.draft().without(failed, self)?;
        self.write(draft).await
    }

    /// Lets a member use the present size of its device. The second copy goes to the new end.
    ///
    /// The second copy is written first: without the first copy it is not found. That first copy is written after those
    /// of all other members, because it overwrites the old state, whose second copy is not found then.
    pub(super) async fn grow(self: &Rc<Self>, grown: &Rc<Member>) -> Result<()> {
        let _turn = self.turn().await;
        self.all_caught_up().await?;
        let before = grown.superblock();
        let layout = Layout::of_size(grown.below().geometry().size).map_err(Error::invalid)?;
        if layout.data.end < before.layout.data.end + COPY_LEN {
            return Ok(());
        }
        let members = self.members();
        let generation = self.latest.get() + 1;
        self.latest.set(generation);
        let mut next = Draft { members: members.clone(), ..self.draft() }.superblocks(generation);
        let Some(at) = members.iter().position(|member| Rc::ptr_eq(member, grown)) else { return Ok(()) };
        next[at].layout.data.end = layout.data.end;
        write(grown.below(), &next[at], Place::Second).await?;
        let others = (0..members.len()).filter(|other| *other != at);
        for n in others.chain([at]) {
            write(members[n].below(), &next[n], Place::First).await.map_err(|e| e.on(&next[n].name))?;
        }
        members.iter().zip(next).for_each(|(member, superblock)| member.set_superblock(superblock));
        self.stale.set(true);
        self.all_caught_up().await
    }

    async fn set_record(self: &Rc<Self>, device: &str, value: Value) -> Result<()> {
        let _turn = self.turn().await;
        let mut draft = self.draft();
        draft.trailer.records.insert(device.into(), value);
        draft.check_space()?;
        self.write(draft).await
    }

    /// The hierarchy as it is.
    fn draft(&self) -> Draft {
        Draft {
            members: self.members(),
            file: self.file.borrow().clone(),
            trailer: self.trailer.borrow().clone(),
            survives: self.survives.borrow().clone(),
        }
    }

    /// The generation that all members have.
    pub(super) fn generation(&self) -> u64 {
        self.members.borrow().first().map_or(0, |member| member.superblock().generation)
    }

    /// Makes the hierarchy what `draft` says, without those members that cannot be written. They are left out before
    /// anything is called done.
    async fn write(self: &Rc<Self>, mut draft: Draft) -> Result<()> {
        let mut counts = false;
        loop {
            let failed = match self.first_copies(&draft).await {
                Ok(superblocks) => {
                    self.accept(&draft, superblocks);
                    counts = true;
                    self.catch_up(&Evicted::new()).await
                }
                Err(failed) => failed,
            };
            if failed.is_empty() {
                return Ok(());
            }
            match draft.without(failed, self) {
                Ok(next) => draft = next,
                Err(e) if counts => {
                    tracing::warn!(error = %e, "second copies of the superblocks are not written yet");
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes what a draft says in the first copies; the superblocks, or the members that could not be written.
    async fn first_copies(&self, draft: &Draft) -> std::result::Result<Vec<Superblock>, Vec<Failed>> {
        let failed = self.catch_up(&draft.trailer.evicted).await;
        if !failed.is_empty() {
            return Err(failed);
        }
        let generation = self.latest.get() + 1;
        self.latest.set(generation);
        let superblocks = draft.superblocks(generation);
        // New members first: when all of the others have the new state, all have it. A member that was evicted comes
        // last.
        let place = |member: &Rc<Member>| {
            let name = member.name();
            let was_evicted = self.trailer.borrow().evicted.contains_key(&name);
            if was_evicted { 2 } else { usize::from(self.member(&name).is_some()) }
        };
        let mut order: Vec<_> = draft.members.iter().zip(&superblocks).collect();
        order.sort_by_key(|(member, _)| place(member));
        for (member, superblock) in order {
            // The second copy of a new member is not found before its first copy names its place; from then on it is
            // there.
            let known = self.member(&member.name());
            let is_new = place(member) < 2 && known.is_none_or(|known| !Rc::ptr_eq(&known, member));
            if is_new && let Err(e) = write(member.below(), superblock, Place::Second).await {
                return Err(vec![(Rc::clone(member), e)]);
            }
            if let Err(e) = write(member.below(), superblock, Place::First).await {
                return Err(vec![(Rc::clone(member), e)]);
            }
        }
        Ok(superblocks)
    }

    /// All first copies are durable: from here on this is the hierarchy, whatever happens.
    fn accept(self: &Rc<Self>, draft: &Draft, superblocks: Vec<Superblock>) {
        for member in self.members() {
            member.evicted.set(draft.trailer.evicted.get(&member.name()).copied());
        }
        for (member, superblock) in draft.members.iter().zip(superblocks) {
            member.evicted.set(None);
            member.set_superblock(superblock);
        }
        self.take_in(draft.members.clone());
        self.file.replace(draft.file.clone());
        self.trailer.replace(draft.trailer.clone());
        self.survives.replace(Rc::clone(&draft.survives));
        self.stale.set(true);
    }

    /// Writes the second copies, if they are not what the first are, apart from those of members that are about to be
    /// left out. The members that could not be written come back.
    async fn catch_up(&self, except: &Evicted) -> Vec<Failed> {
        let mut failed = Vec::new();
        if !self.stale.get() {
            return failed;
        }
        let mut all = true;
        for member in self.members() {
            let superblock = member.superblock();
            if except.contains_key(&superblock.name) {
                all = false;
            } else if let Err(e) = write(member.below(), &superblock, Place::Second).await {
                failed.push((member, e));
            }
        }
        self.stale.set(!all || !failed.is_empty());
        failed
    }

    async fn all_caught_up(&self) -> Result<()> {
        match self.catch_up(&Evicted::new()).await.into_iter().next() {
            Some((member, e)) => Err(e.on(&member.name())),
            None => Ok(()),
        }
    }

    async fn turn(&self) -> Turn<'_> {
        self.free.until(|| !self.busy.get()).await;
        self.busy.set(true);
        Turn(self)
    }
}

/// A member that could not be written, and why.
pub(super) type Failed = (Rc<Member>, Error);

/// Only one writes while this lives.
struct Turn<'a>(&'a Roster);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.free.notify();
    }
}

struct DeviceRecord {
    roster: Rc<Roster>,
    device: String,
}

impl Keep for DeviceRecord {
    fn get(&self) -> Option<Value> {
        self.roster.trailer.borrow().records.get(&self.device).cloned()
    }

    fn set(&self, value: Value) -> Pending {
        let (roster, device) = (Rc::clone(&self.roster), self.device.clone());
        Box::pin(async move { roster.set_record(&device, value).await })
    }
}
