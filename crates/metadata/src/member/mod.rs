//! Members: the devices that a hierarchy keeps its data on.
//!
//! ```text
//!                  0 ─────────────── size            what the layers above see
//!                  │    │    │    │
//! │ A │ metadata │ 1 MiB ─────────── data.end │ B │   the device below
//! ```
//!
//! [`Member`] is the layer that stands on a device and hides everything but its data. The layer moves addresses and
//! nothing else: requests are handed on and not seen again. [`judge`] decides whether devices belong together,
//! [`gather`] finds those that do among any; both only look at what was [found](crate::superblock::Found).
//!
//! Invariant: while a member is open for writing, its superblocks say that it is in use; they call it shut down cleanly
//! only after everything was flushed.
//!
//! A member that cannot be written any more is *evicted* if the hierarchy survives that: the others say so, and which
//! generation was its last. A hierarchy is whole without those that its own members call out, and with nothing less: a
//! member that is only missing might be the one that has the newest state.
//!
//! It deliberately knows no redundancy: only the caller, which knows the layers above, can tell whether the hierarchy
//! survives without a member ([`Survives`]), and those layers resync a member that was evicted.

mod blame;
mod draft;
mod found;
mod gather;
mod judge;
pub mod records;
mod roster;

pub use found::Candidate;
pub use gather::{Gathered, gather};
pub use judge::{Assembly, Note, Refusal, judge};
pub use roster::{Roster, Survives};

use crate::superblock::{Found, Place, Superblock, write, write_all};
use lamina_block::{
    Bytes, Command, Effect, Env, Error, Geometry, Io, Layer, Manage, Node, Passthrough, Pending, Result,
    Step, Zones,
};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use uuid::Uuid;

/// A UUID drawn from the environment's randomness.
pub fn draw(env: &dyn Env) -> Uuid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&env.random().to_le_bytes());
    bytes[8..].copy_from_slice(&env.random().to_le_bytes());
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// The data of a member.
pub struct Member {
    below: Rc<Node>,
    superblock: RefCell<Superblock>,
    /// Its data at the close may not be whole: the member stays marked as in use.
    spoilt: Cell<bool>,
    /// The hierarchy goes on without it since this generation, which was its last.
    evicted: Cell<Option<u64>>,
    /// The other members, once it is one of them.
    roster: RefCell<Weak<Roster>>,
}

impl Member {
    /// The data on `below`, which carries `superblock` already.
    pub fn new(below: Rc<Node>, superblock: Superblock) -> Rc<Member> {
        Rc::new(Member {
            below,
            superblock: RefCell::new(superblock),
            spoilt: Cell::new(false),
            evicted: Cell::new(None),
            roster: RefCell::default(),
        })
    }

    /// The name of its device in the hierarchy.
    pub fn name(&self) -> String {
        self.superblock.borrow().name.clone()
    }

    /// Its superblock.
    pub fn superblock(&self) -> Superblock {
        self.superblock.borrow().clone()
    }

    fn set_superblock(&self, superblock: Superblock) {
        self.superblock.replace(superblock);
        self.spoilt.set(false);
    }

    /// The device below.
    fn below(&self) -> &Rc<Node> {
        &self.below
    }

    /// True if the hierarchy goes on without it: its superblocks are not written any more. Whether its data is used is
    /// for the layers above to decide.
    pub fn is_evicted(&self) -> bool {
        self.evicted.get().is_some()
    }

    /// A layer above could not be closed well: the member must not be called clean, and its close writes nothing.
    pub fn spoil(&self) {
        self.spoilt.set(true);
    }

    /// Flushes, and marks the member on disk as shut down cleanly.
    async fn finish(&self) -> Result<()> {
        self.below.submit(Io::flush()).await?;
        if self.spoilt.get() {
            return Ok(());
        }
        let closed = Superblock { clean: true, ..self.superblock.borrow().clone() };
        for place in Place::ALL {
            write(&self.below, &closed, place).await?;
        }
        *self.superblock.borrow_mut() = closed;
        Ok(())
    }
}

/// Makes both copies of a member whole and the same: a copy that is damaged, left over, or of a change that was
/// interrupted becomes the one that was chosen. The chosen copy is not touched, so that it survives whatever happens.
///
/// Nothing may be written over a copy before this is done on *all* members. Otherwise a second accident, on top of the
/// first, could leave no state that all members have.
pub async fn repair_copies(node: &Rc<Node>, found: &Found, chosen: &Superblock) -> Result<()> {
    for (place, copy) in Place::ALL.into_iter().zip(&found.copies) {
        let same =
            |copy: &Superblock| (copy.hierarchy, copy.generation) == (chosen.hierarchy, chosen.generation);
        if !copy.as_ref().is_ok_and(same) {
            write(node, chosen, place).await?;
        }
    }
    Ok(())
}

/// Marks members as in use whose copies were repaired. Their superblocks may be of a new generation.
pub async fn take_into_use(members: &mut [(Rc<Node>, Superblock)]) -> Result<()> {
    for (_, superblock) in members.iter_mut() {
        superblock.clean = false;
    }
    write_all(members).await
}

impl Layer for Member {
    fn geometry(&self) -> Geometry {
        self.superblock.borrow().layout.shape(self.below.geometry())
    }

    fn zones(&self) -> Option<Zones> {
        let data = self.superblock.borrow().layout.data.clone();
        self.below.zones()?.part(data.start, data.end - data.start)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        io.move_to(self.superblock.borrow().layout.data.start + io.at.start);
        Step::Forward(Rc::clone(&self.below))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.below, self.superblock.borrow().layout.data.start)
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            let writable = !self.below.geometry().read_only && !self.is_evicted();
            let finished = if writable { self.finish().await } else { Ok(()) };
            finished.and(self.below.close().await)
        })
    }
}

impl Manage for Member {
    fn effect(&self, command: &Command) -> Effect {
        self.below.effect(command)
    }

    /// `resize`, as of the device below: only larger. Its second superblock moves to the new end.
    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            let Command { name, args } = &command;
            if name != "resize" {
                let message = format!("there is no command {name:?} here; there is \"resize\"");
                return Err(Error::unsupported(message));
            }
            let asked = args.get("size").filter(|size| !size.is_null());
            if let Some(size) = asked {
                let size: Bytes =
                    serde_json::from_value(size.clone()).map_err(|e| Error::invalid(format!("size: {e}")))?;
                let least = self.superblock.borrow().layout.end();
                if size.0 < least {
                    let message = format!("a member does not shrink: it needs at least {least} bytes");
                    return Err(Error::invalid(message));
                }
            }
            if self.is_evicted() {
                let message = "the hierarchy goes on without this member: `lamina apply` takes it in again";
                return Err(Error::offline(message));
            }
            let answer = self.below.control(command).await?;
            let roster = self.roster.borrow().upgrade();
            if let Some(roster) = roster {
                roster.grow(&self).await?;
            }
            Ok(answer)
        })
    }

    /// The figures of the device below, and those of the member.
    fn info(&self) -> Value {
        let superblock = self.superblock.borrow();
        let mut member = json!({
            "hierarchy": superblock.hierarchy.to_string(),
            "hierarchy_name": superblock.hierarchy_name,
            "member": superblock.member.to_string(),
            "index": superblock.index,
            "members": superblock.members,
            "generation": superblock.generation,
        });
        if let Some(last) = self.evicted.get() {
            member["evicted_after"] = last.into();
        }
        match self.below.info() {
            Value::Object(mut info) => {
                info.insert("member".into(), member);
                Value::Object(info)
            }
            _ => json!({ "member": member }),
        }
    }
}
