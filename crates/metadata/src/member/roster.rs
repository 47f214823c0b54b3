//! The superblocks of an open hierarchy, kept in step: what it is, and what its devices keep with it.
//!
//! ```text
//!   next state ──▶ first copies of all, durable ──▶ it counts ──▶ second copies of all
//! ```
//!
//! Invariant: at every moment there is a state of which all members have a whole copy. So the first copies are not
//! touched while second copies of the state before are missing; those are completed first.

use super::Member;
use super::words::{self, Words};
use crate::superblock::{COPY_LEN, DESCRIPTION_MAX, Layout, Place, Superblock, write};
use lamina_block::{Error, ErrorKind, Keep, Pending, Result, Signal};
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The members of an open hierarchy.
pub struct Roster {
    members: RefCell<Vec<Rc<Member>>>,
    /// The description without the words, and the words.
    file: RefCell<String>,
    words: RefCell<Words>,
    /// The highest generation that was ever written, perhaps in vain.
    latest: Cell<u64>,
    /// The first copies count, and not all of the second are written.
    behind: Cell<bool>,
    /// Somebody writes; one at a time.
    busy: Cell<bool>,
    free: Signal,
}

impl Roster {
    /// The members of a hierarchy, whose superblocks are all whole and of one state. `latest` is the highest generation
    /// that any copy had before.
    ///
    /// Fails with `Corrupt` if what the devices keep cannot be read.
    pub fn new(members: Vec<Rc<Member>>, latest: u64) -> Result<Rc<Roster>> {
        let first = members.first().map(|member| member.superblock());
        let description = first.map_or(String::new(), |superblock| superblock.description);
        let (file, words) =
            words::split(&description).map_err(|message| Error::new(ErrorKind::Corrupt, message))?;
        let roster = Rc::new(Roster {
            file: RefCell::new(file.to_owned()),
            words: RefCell::new(words),
            members: RefCell::default(),
            latest: Cell::new(latest),
            behind: Cell::new(false),
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

    /// Its members.
    pub fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().clone()
    }

    /// The member called `name`.
    pub fn member(&self, name: &str) -> Option<Rc<Member>> {
        self.members.borrow().iter().find(|member| member.name() == name).cloned()
    }

    /// The words of `device`, which it can change.
    pub fn keep(self: &Rc<Self>, device: &str) -> Rc<dyn Keep> {
        Rc::new(KeptHere { roster: Rc::clone(self), device: device.into() })
    }

    /// Makes the hierarchy consist of `members`, described by `file`, in which only devices that are `known` keep their
    /// words. `now` says what a child (second) of a device (first) is called from now on, if it is renamed. Members that
    /// are new get their superblocks; those that are left out keep theirs, which are stale from now on.
    ///
    /// After an error the hierarchy is what it was before.
    pub async fn become_of(
        self: &Rc<Self>,
        members: Vec<Rc<Member>>,
        file: &str,
        known: &dyn Fn(&str) -> bool,
        now: &dyn Fn(&str, &str) -> Option<String>,
    ) -> Result<()> {
        let _turn = self.turn().await;
        let mut words = self.words.borrow().clone();
        words.retain(|device, _| known(device));
        for (device, value) in &mut words {
            words::rename(value, &|child| now(device, child));
        }
        self.write(members, file, words).await
    }

    /// Completes what could not be written before.
    pub async fn settle(&self) -> Result<()> {
        let _turn = self.turn().await;
        self.catch_up().await
    }

    /// Makes all of what a member's device has now the member's. The second copy goes to the new end.
    ///
    /// It is written there first: nobody looks for it before the first copy says so. That first copy is written after
    /// those of all other members, because what it said before is gone with it: the old second copy is not found then.
    pub(super) async fn grow(self: &Rc<Self>, grown: &Rc<Member>) -> Result<()> {
        let _turn = self.turn().await;
        self.catch_up().await?;
        let before = grown.superblock();
        let layout = Layout::of_size(grown.below().geometry().size).map_err(Error::invalid)?;
        if layout.data.end < before.layout.data.end + COPY_LEN {
            return Ok(());
        }
        let members = self.members();
        let generation = self.latest.get() + 1;
        self.latest.set(generation);
        let mut next = next(&members, generation, &before.description);
        let Some(at) = members.iter().position(|member| Rc::ptr_eq(member, grown)) else { return Ok(()) };
        next[at].layout.data.end = layout.data.end;
        write(grown.below(), &next[at], Place::Second).await?;
        let others = (0..members.len()).filter(|other| *other != at);
        for n in others.chain([at]) {
            write(members[n].below(), &next[n], Place::First).await.map_err(|e| e.on(&next[n].name))?;
        }
        members.iter().zip(next).for_each(|(member, superblock)| member.set_superblock(superblock));
        self.behind.set(true);
        self.catch_up().await
    }

    async fn keep_words(self: &Rc<Self>, device: &str, value: Value) -> Result<()> {
        let _turn = self.turn().await;
        let mut words = self.words.borrow().clone();
        words.insert(device.into(), value);
        let (members, file) = (self.members(), self.file.borrow().clone());
        self.write(members, &file, words).await
    }

    async fn write(self: &Rc<Self>, members: Vec<Rc<Member>>, file: &str, words: Words) -> Result<()> {
        let description = words::join(file, &words);
        if description.len() > DESCRIPTION_MAX {
            let message = format!(
                "the hierarchy and what its devices keep would take {} bytes, and its members have room for {DESCRIPTION_MAX}",
                description.len()
            );
            return Err(Error::new(ErrorKind::NoSpace, message));
        }
        self.catch_up().await?;
        let generation = self.latest.get() + 1;
        self.latest.set(generation);
        let next = next(&members, generation, &description);
        // New members first: when all of the others have the new state, all have it.
        let is_old = |member: &Rc<Member>| self.member(&member.name()).is_some();
        let (old, new): (Vec<_>, Vec<_>) = members.iter().zip(&next).partition(|(m, _)| is_old(m));
        for (member, superblock) in new.into_iter().chain(old) {
            write(member.below(), superblock, Place::First).await.map_err(|e| e.on(&superblock.name))?;
        }
        // From here on this is the hierarchy, whatever happens.
        members.iter().zip(next).for_each(|(member, superblock)| member.set_superblock(superblock));
        self.take_in(members);
        self.file.replace(file.to_owned());
        self.words.replace(words);
        self.behind.set(true);
        if let Err(e) = self.catch_up().await {
            tracing::warn!(error = %e, "second copies of the superblocks are not written yet");
        }
        Ok(())
    }

    /// Writes the second copies, if they are not what the first are.
    async fn catch_up(&self) -> Result<()> {
        if self.behind.get() {
            for member in self.members() {
                let superblock = member.superblock();
                write(member.below(), &superblock, Place::Second)
                    .await
                    .map_err(|e| e.on(&superblock.name))?;
            }
            self.behind.set(false);
        }
        Ok(())
    }

    async fn turn(&self) -> Turn<'_> {
        self.free.until(|| !self.busy.get()).await;
        self.busy.set(true);
        Turn(self)
    }
}

/// The superblocks that make `members` a hierarchy. Their numbers are the places of their names.
fn next(members: &[Rc<Member>], generation: u64, description: &str) -> Vec<Superblock> {
    let mut names: Vec<String> = members.iter().map(|member| member.name()).collect();
    names.sort();
    let numbered = |member: &Rc<Member>| {
        let superblock = member.superblock();
        Superblock {
            index: names.iter().position(|name| *name == superblock.name).unwrap_or_default() as u32,
            members: members.len() as u32,
            generation,
            clean: false,
            description: description.to_owned(),
            ..superblock
        }
    };
    members.iter().map(numbered).collect()
}

/// Only one writes while this lives.
struct Turn<'a>(&'a Roster);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.free.notify();
    }
}

struct KeptHere {
    roster: Rc<Roster>,
    device: String,
}

impl Keep for KeptHere {
    fn get(&self) -> Option<Value> {
        self.roster.words.borrow().get(&self.device).cloned()
    }

    fn set(&self, value: Value) -> Pending {
        let (roster, device) = (Rc::clone(&self.roster), self.device.clone());
        Box::pin(async move { roster.keep_words(&device, value).await })
    }
}
