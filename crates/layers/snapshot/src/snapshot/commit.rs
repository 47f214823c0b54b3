//! Puts waiting entries into the map, together: at a flush, when many wait, and every few seconds.
//!
//! ```text
//!   freeze ─▶ child: flush ─▶ store: one change (pages of the map, entries, bitmap, head) ─▶ commit ─▶ requests go on
//!             data is durable                                                                  └▶ old extents: freed,
//!                                                                                                when no request is on
//!                                                                                                its way to them
//! ```
//!
//! At `lazy`, where a crash may keep any part of a change, there are three changes: new pages and extents in
//! use; then the entries that refer to them; after the commit, the freed extents. A crash between them loses
//! the use of some space until it is reclaimed, and nothing else.

use super::core::Core;
use super::format::Head;
use super::state::{PhysicalExtent, Ticket};
use lamina_block::{ErrorKind, Io, Level, Result};
use lamina_metadata::Change;
use lamina_metadata::extents::{Draft, Drawn, Entry, Pxb};
use std::collections::BTreeSet;
use std::rc::Rc;

/// The volume is nearly full when less than this part of all room is free: one in so many.
pub(super) const NEARLY_FULL: u64 = 10;
/// Bytes of a change for an extent: two bits, two counts.
const BITS_COST: usize = 4 * 40;

/// The effect of a change of the map on the extents of the child.
#[derive(Default)]
struct Moves {
    extents: Vec<u64>,
    takes: Vec<u64>,
    frees: Vec<u64>,
    /// Pages of the bitmap.
    pages: BTreeSet<(u64, u64)>,
}

/// A request that waits for a round.
struct Waiter<'a> {
    core: &'a Core,
    ticket: Option<Ticket>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.core.change(|state| state.rounds.abandon(ticket));
        }
    }
}

impl Core {
    /// Makes earlier writes durable, with their entries in the map.
    pub async fn flush(self: &Rc<Self>) -> Result<()> {
        let (ticket, spawn) = self.change(|state| state.rounds.ask());
        let mut waiter = Waiter { core: self, ticket: Some(ticket) };
        if spawn {
            self.run_rounds();
        }
        loop {
            if let Some(result) = self.change(|state| state.rounds.take(ticket)) {
                waiter.ticket = None;
                return result;
            }
            self.moved.wait().await;
        }
    }

    fn run_rounds(self: &Rc<Self>) {
        let me = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            loop {
                let guard = me.map_lock.lock().await;
                if me.atomic() {
                    me.grace.drained().await;
                }
                // Requests that asked by now had their writes completed: their entries are frozen next, or
                // they were in place.
                me.change(|state| state.rounds.begin());
                let result = me.round().await;
                drop(guard);
                let again = me.change(|state| state.rounds.end(&result));
                me.moved.notify();
                if !again {
                    break;
                }
            }
        }));
    }

    /// Puts all waiting entries into the map. The caller holds the lock of the map.
    async fn round(self: &Rc<Self>) -> Result<()> {
        self.change(|state| state.overlay.freeze());
        if self.atomic() && !self.state().overlay.is_empty() && !self.grace.is_draining() {
            // A frozen entry is not overwritten in place any more; a copy of its extent waits for earlier
            // writes in place.
            self.grace.swap();
        }
        let result = self.write_down().await;
        if result.is_err() {
            self.change(|state| state.thaw());
            self.set_timer();
        }
        self.let_go();
        self.moved.notify();
        result
    }

    async fn write_down(self: &Rc<Self>) -> Result<()> {
        self.child.submit(Io::flush()).await?;
        loop {
            let waiting = self.state().overlay.frozen();
            if waiting.is_empty() {
                break;
            }
            self.put(waiting).await?;
        }
        self.commit().await
    }

    /// Commits the staged changes; the extents they free are free from then on.
    pub async fn commit(self: &Rc<Self>) -> Result<()> {
        if !self.state().rounds.is_uncommitted() {
            return Ok(());
        }
        self.store.commit().await?;
        for (change, freed) in self.change(|state| state.committed()) {
            let done = self.store.change(change.clone()).await;
            if let Err(e) = &done {
                tracing::warn!(device = %self.name, "space could not be given back, and will be later: {e}");
            }
            self.change(|state| match done {
                Ok(()) => state.frees.retire(freed),
                Err(_) => state.frees.clear_later(change, freed),
            });
        }
        self.let_go();
        self.tell_of_room();
        Ok(())
    }

    /// Says when there is hardly any room left, again whenever that is a percent less, and when there is some again:
    /// events, which may call somebody, or a program that makes space.
    fn tell_of_room(&self) {
        let (free, all) = (self.space.borrow().free_extents(), self.head().physical);
        let percent = free * 100 / all.max(1);
        match self.told.get() {
            told if self.is_nearly_full() && told.is_none_or(|told| percent < told) => {
                self.told.set(Some(percent));
                let are_there = !self.state().versions.snapshots().is_empty();
                let delete =
                    if are_there { "delete snapshots (`space` says what each takes), or " } else { "" };
                tracing::warn!(
                    device = %self.name,
                    "nearly full: {percent}% of the space is free; {delete}make the device below larger and `grow`"
                );
            }
            // Not at each change about the limit.
            Some(_) if free * (NEARLY_FULL - 2) >= all => {
                self.told.set(None);
                tracing::info!(device = %self.name, "{percent}% of the space is free again");
            }
            Some(_) | None => {}
        }
    }

    /// True if there is hardly any room left.
    pub fn is_nearly_full(&self) -> bool {
        self.space.borrow().free_extents() * NEARLY_FULL < self.head().physical
    }

    /// A change of the store that is durable after the next commit.
    pub async fn stage(&self, change: Change) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        self.change(|state| state.rounds.stage());
        match self.store.change(change.clone()).await {
            // An earlier commit failed, and its staged changes take the room.
            Err(e) if e.kind() == ErrorKind::NoSpace && self.atomic() => {
                self.store.commit().await?;
                self.store.change(change).await
            }
            result => result,
        }
    }

    /// The same, of `change` and a head, which come into force together.
    pub async fn stage_head(&self, change: Change, head: Head) -> Result<()> {
        self.stage(self.with_head(change, head)).await?;
        self.change(|state| state.versions.set_head(head));
        Ok(())
    }

    /// Adds to `change`: the head is `head`.
    pub fn with_head(&self, change: Change, head: Head) -> Change {
        change.write(self.head_id, 0, head.encode())
    }

    /// Puts entries into the map, as many as fit into one change.
    async fn put(self: &Rc<Self>, waiting: Vec<(u64, Entry)>) -> Result<()> {
        let (head, shared) = (self.head(), self.state().versions.shared());
        let space = Rc::clone(&self.space.borrow());
        let mut draft = Draft::new(&self.tree, &self.pages, head.root, head.epoch, shared);
        let mut moves = Moves::default();
        for (extent, entry) in waiting {
            if !moves.extents.is_empty() && !self.has_room(&draft, &moves) {
                break;
            }
            let to = if entry == Entry::Hole { self.state().versions.nothing(extent) } else { entry };
            let found = draft.set(extent, to).await?;
            let before = self.state().versions.resolve(extent, found);
            let own = before.filter(|physical| physical.born >= shared);
            if before != own {
                self.change(|state| state.garbage.replaced());
            }
            moves.add(extent, to, own, space.physical());
        }
        let drawn = draft.end()?;
        let fresh = drawn.fresh.clone();
        let put = self.make(&space, drawn, &moves).await;
        match &put {
            Ok(()) => self.change(|state| state.overlay.mapped(&moves.extents)),
            Err(_) => self.pages.release(&fresh),
        }
        put
    }

    /// True if one more entry fits into a change. At `atomic` all have room: it was reserved.
    fn has_room(&self, draft: &Draft<'_>, moves: &Moves) -> bool {
        let (pages, bytes) = draft.cost();
        // The path to one more leaf, perhaps all of it new, with its bits and counts.
        let more = 6;
        let bytes = bytes + (moves.takes.len() + moves.frees.len() + 2) * BITS_COST + more * 4200 + 512;
        let pages = pages + moves.pages.len() + more + 8;
        self.atomic() || (bytes <= self.store.change_max() && pages <= self.store.pages_max())
    }

    async fn make(self: &Rc<Self>, space: &Pxb, drawn: Drawn, moves: &Moves) -> Result<()> {
        let Drawn { mut pages, mut links, root, .. } = drawn;
        for extent in &moves.takes {
            if !self.state().frees.is_ahead(*extent) {
                pages = space.take(pages, *extent)?;
            }
        }
        let head = self.head();
        if head.root != root {
            links = self.with_head(links, Head { root, ..head });
        }
        let mut freed = Vec::new();
        let frees = match free(space, &moves.frees, &mut freed).await {
            Ok(frees) => frees,
            Err(e) => {
                space.keep(&freed);
                return Err(e);
            }
        };
        let lazy = self.store.level() == Level::Lazy;
        let made = match lazy {
            true => self.make_in_order(pages, links, moves).await,
            false => self.stage(pages.and(links).and(frees.clone())).await,
        };
        if made.is_err() {
            space.keep(&freed);
            return made;
        }
        self.change(|state| {
            state.versions.set_root(root);
            match lazy {
                true => state.frees.clear_later(frees, freed),
                false => state.frees.cleared(freed),
            }
        });
        Ok(())
    }

    async fn make_in_order(&self, pages: Change, links: Change, moves: &Moves) -> Result<()> {
        self.stage(pages).await?;
        self.change(|state| state.frees.go_ahead(&moves.takes));
        let linked = match self.store.commit().await {
            Ok(()) => self.stage(links).await,
            failed => failed,
        };
        self.change(|state| match &linked {
            Ok(()) => state.frees.linked(&moves.takes),
            // The bitmaps have pages and extents that the map does not refer to.
            Err(_) => state.versions.note_garbage(),
        });
        linked
    }
}

impl Moves {
    /// The entry of an extent changes from `before`, which no snapshot has, to `to`.
    fn add(&mut self, extent: u64, to: Entry, before: Option<PhysicalExtent>, physical: u64) {
        self.extents.push(extent);
        let now = match to {
            Entry::At { place, .. } => Some(place),
            Entry::Hole | Entry::Absent => None,
        };
        let before = before.map(|physical| physical.number);
        if before == now {
            return;
        }
        self.takes.extend(now);
        // The rest of a device after its last whole extent is used for nothing else.
        self.frees.extend(before.filter(|extent| *extent < physical));
        self.pages.extend(now.iter().chain(&before).map(|extent| Pxb::places(*extent)));
    }
}

/// A change that frees extents; `freed` are those in it.
///
/// Extents whose bits are damaged stay in use until a repair.
async fn free(space: &Pxb, extents: &[u64], freed: &mut Vec<u64>) -> Result<Change> {
    let mut change = Change::new();
    for extent in extents {
        match space.free(Change::new(), *extent).await {
            Ok(more) => change = change.and(more),
            Err(e) if e.kind() == ErrorKind::Corrupt => continue,
            Err(e) => return Err(e),
        }
        freed.push(*extent);
    }
    Ok(change)
}

impl Core {
    /// Closes the store; `whole`: all entries are in the map.
    pub async fn close_store(self: &Rc<Self>, whole: bool) -> Result<()> {
        let head = self.head();
        if whole && head.open {
            self.stage_head(Change::new(), Head { open: false, ..head }).await?;
        }
        self.store.close().await
    }
}
