//! Putting what was written into the map, together: at a flush, when much waits, and every few seconds.
//!
//! ```text
//!   freeze ─▶ child: flush ─▶ store: one change (pages of the map, entries, bitmap, head) ─▶ commit ─▶ who waits goes on
//!             data is durable                                                                  └▶ old extents: to others,
//!                                                                                                when no request is on
//!                                                                                                its way to them
//! ```
//!
//! At `lazy`, where a crash may keep any part of a change, it is made in three: new pages and extents in use; then what
//! refers to them; after the commit, which extents are free. A crash between them loses the use of some space until it is
//! reclaimed, and nothing else.

use super::core::{Answer, Core, Spot};
use super::format::Head;
use lamina_block::{ErrorKind, Io, Level, Result};
use lamina_metadata::Change;
use lamina_metadata::extents::{Draft, Drawn, Entry, Pxb};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Bytes of a change for an extent: two bits, two counts.
const BITS_COST: usize = 4 * 40;

/// What a change of the map does to the extents of the child.
#[derive(Default)]
struct Moves {
    extents: Vec<u64>,
    takes: Vec<u64>,
    frees: Vec<u64>,
    /// Pages of the bitmap.
    pages: BTreeSet<(u64, u64)>,
}

impl Core {
    /// Makes durable what was written before this was called, and that the map knows where it is.
    pub async fn flush(self: &Rc<Self>) -> Result<()> {
        let answer = Answer::default();
        self.waiting.borrow_mut().push(Rc::clone(&answer));
        self.work();
        loop {
            if let Some(result) = answer.borrow_mut().take() {
                return result;
            }
            self.moved.wait().await;
        }
    }

    fn work(self: &Rc<Self>) {
        if self.working.replace(true) {
            return;
        }
        let me = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            while !me.waiting.borrow().is_empty() {
                let turn = me.turn.lock().await;
                if me.atomic() {
                    me.grace.drained().await;
                }
                // Who asked by now has had its writes completed: they are in what is frozen next, or in their places.
                let answers = me.waiting.take();
                let result = me.round().await;
                drop(turn);
                answers.iter().for_each(|answer| *answer.borrow_mut() = Some(result.clone()));
                me.moved.notify();
            }
            me.working.set(false);
            me.moved.notify();
        }));
    }

    /// Puts everything into the map that waits for it. It is the caller's turn.
    pub async fn round(self: &Rc<Self>) -> Result<()> {
        self.overlay.borrow_mut().freeze();
        if self.atomic() && !self.overlay.borrow().is_empty() && !self.grace.is_draining() {
            // What is frozen is not written in its place any more; who copies it waits for those who do.
            self.grace.swap();
        }
        let result = self.write_down().await;
        if result.is_err() {
            let replaced = self.overlay.borrow_mut().thaw();
            for entry in replaced {
                let Entry::At { place, .. } = entry else { continue };
                if self.taken.borrow_mut().remove(&place) {
                    self.note_garbage();
                } else {
                    self.limbo.borrow_mut().push(place);
                }
            }
            self.set_timer();
        }
        self.let_go();
        self.moved.notify();
        result
    }

    async fn write_down(self: &Rc<Self>) -> Result<()> {
        self.child.submit(Io::flush()).await?;
        loop {
            let waiting = self.overlay.borrow().frozen();
            if waiting.is_empty() {
                break;
            }
            self.put(waiting).await?;
        }
        self.commit().await
    }

    /// Commits what the store was told; what that frees is free from then on.
    pub async fn commit(self: &Rc<Self>) -> Result<()> {
        if !self.behind.get() {
            return Ok(());
        }
        self.store.commit().await?;
        self.behind.set(false);
        self.shared.set(self.shared_by_snapshots());
        let freed = self.freed.take();
        self.limbo.borrow_mut().extend(freed);
        for (change, freed) in self.afterwards.take() {
            match self.store.change(change.clone()).await {
                Ok(()) => self.limbo.borrow_mut().extend(freed),
                Err(e) => {
                    tracing::warn!(device = %self.name, "space could not be given back, and will be later: {e}");
                    self.afterwards.borrow_mut().push((change, freed));
                }
            }
        }
        self.let_go();
        Ok(())
    }

    /// A change of the store that is durable after the next commit.
    pub async fn change(&self, change: Change) -> Result<()> {
        if change.is_empty() {
            return Ok(());
        }
        self.behind.set(true);
        match self.store.change(change.clone()).await {
            // An earlier commit failed, and what it was to make durable takes the room.
            Err(e) if e.kind() == ErrorKind::NoSpace && self.atomic() => {
                self.store.commit().await?;
                self.store.change(change).await
            }
            result => result,
        }
    }

    /// Adds to `change`: the head is `head`.
    pub fn with_head(&self, change: Change, head: Head) -> Change {
        change.write(self.head_id, 0, head.encode())
    }

    /// There may be garbage from now on; the next change of the head says so on disk.
    pub fn note_garbage(&self) {
        self.head.set(Head { garbage: true, ..self.head.get() });
    }

    /// Puts entries into the map, as many as fit into one change.
    async fn put(self: &Rc<Self>, waiting: Vec<(u64, Entry)>) -> Result<()> {
        let (head, shared) = (self.head.get(), self.shared.get());
        let space = Rc::clone(&self.space.borrow());
        let mut draft = Draft::new(&self.tree, &self.pages, head.root, head.epoch, shared);
        let mut moves = Moves::default();
        for (extent, entry) in waiting {
            if !moves.extents.is_empty() && !self.has_room(&draft, &moves) {
                break;
            }
            let to = if entry == Entry::Hole { self.nothing(extent) } else { entry };
            let before = self.meaning(extent, draft.set(extent, to).await?);
            let own = before.filter(|spot| spot.born >= shared);
            self.stale.set(self.stale.get() || before != own);
            moves.add(extent, to, own, space.physical());
        }
        let drawn = draft.end()?;
        let fresh = drawn.fresh.clone();
        let put = self.make(&space, drawn, &moves).await;
        match &put {
            Ok(()) => self.overlay.borrow_mut().mapped(&moves.extents),
            Err(_) => self.pages.release(&fresh),
        }
        put
    }

    /// Whether one more entry fits into a change. At `atomic` all have room: it was reserved.
    fn has_room(&self, draft: &Draft<'_>, moves: &Moves) -> bool {
        let (pages, bytes) = draft.cost();
        // The way to one more leaf, perhaps all of it new, with its bits and counts.
        let more = 6;
        let bytes = bytes + (moves.takes.len() + moves.frees.len() + 2) * BITS_COST + more * 4200 + 512;
        let pages = pages + moves.pages.len() + more + 8;
        self.atomic() || (bytes <= self.store.change_max() && pages <= self.store.pages_max())
    }

    async fn make(self: &Rc<Self>, space: &Pxb, drawn: Drawn, moves: &Moves) -> Result<()> {
        let Drawn { mut pages, mut links, root, .. } = drawn;
        for extent in &moves.takes {
            if !self.taken.borrow().contains(extent) {
                pages = space.take(pages, *extent)?;
            }
        }
        let head = Head { root, ..self.head.get() };
        if head != self.head.get() {
            links = self.with_head(links, head);
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
            false => self.change(pages.and(links).and(frees.clone())).await,
        };
        if made.is_err() {
            space.keep(&freed);
            return made;
        }
        self.head.set(Head { root, ..self.head.get() });
        match lazy {
            true if freed.is_empty() => {}
            true => self.afterwards.borrow_mut().push((frees, freed)),
            false => self.freed.borrow_mut().extend(freed),
        }
        Ok(())
    }

    async fn make_in_order(&self, pages: Change, links: Change, moves: &Moves) -> Result<()> {
        self.change(pages).await?;
        self.taken.borrow_mut().extend(&moves.takes);
        let linked = match self.store.commit().await {
            Ok(()) => self.change(links).await,
            failed => failed,
        };
        if let Err(e) = linked {
            // The bitmaps know pages and extents that the map does not.
            self.note_garbage();
            return Err(e);
        }
        let mut taken = self.taken.borrow_mut();
        moves.takes.iter().for_each(|extent| {
            taken.remove(extent);
        });
        Ok(())
    }
}

impl Moves {
    /// An extent goes from `before`, which is nobody else's, to what `to` says.
    fn add(&mut self, extent: u64, to: Entry, before: Option<Spot>, physical: u64) {
        self.extents.push(extent);
        let now = match to {
            Entry::At { place, .. } => Some(place),
            Entry::Hole | Entry::Absent => None,
        };
        let before = before.map(|spot| spot.extent);
        if before == now {
            return;
        }
        self.takes.extend(now);
        // What a device had behind its last whole extent is used for nothing else.
        self.frees.extend(before.filter(|extent| *extent < physical));
        self.pages.extend(now.iter().chain(&before).map(|extent| Pxb::places(*extent)));
    }
}

/// A change that gives extents back; `freed` are those in it.
///
/// Those of which nothing says any more whether they are in use stay in use until that is mended.
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
    /// Closes the store; `whole`: everything is in the map.
    pub async fn close_store(self: &Rc<Self>, whole: bool) -> Result<()> {
        if whole && self.head.get().open {
            let head = Head { open: false, ..self.head.get() };
            self.change(self.with_head(Change::new(), head)).await?;
            self.head.set(head);
        }
        self.store.close().await
    }
}
