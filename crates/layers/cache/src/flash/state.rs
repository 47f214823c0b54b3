//! The state of a flash: what is in memory, and the few facts that are written in place.

use super::Cache;
use super::fair::FairQueues;
use super::format::{SEGMENTS_MIN, SLOT, STATES, State, Super, VERSION, VOLUMES_MAX, VolumeState};
use super::health::Health;
use super::index::Index;
use super::segments::Segments;
use super::space::Space;
use super::volume::Volume;
use lamina_block::{Buf, Durability, Env, Error, ErrorKind, Io, Node, Result, Signal};
use lamina_cluster::Uuid;
use lamina_kit::single_flight::SingleFlight;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// The copies of the state.
#[derive(Default)]
pub struct Saving {
    /// Of what was written last.
    pub sequence: Cell<u64>,
    flight: SingleFlight,
}

impl Cache {
    pub(super) fn new(name: &str, env: &Rc<dyn Env>, child: Rc<Node>, shape: Super) -> Rc<Cache> {
        Rc::new_cyclic(|me| Cache::empty(me, name, env, child, shape))
    }

    /// In the place of one that cannot be opened because of `why`: it has nothing, and takes nothing.
    pub(crate) fn missing(name: &str, env: &Rc<dyn Env>, child: Rc<Node>, why: Error) -> Rc<Cache> {
        let shape = Super { version: VERSION, segment_slots: 16, segments: SEGMENTS_MIN, uuid: 0, key: 0 };
        Rc::new_cyclic(|me| Cache {
            health: RefCell::new(Health::Missing(why)),
            ..Cache::empty(me, name, env, child, shape)
        })
    }

    /// Drawn when it was made; none of a missing one.
    pub(crate) fn uuid(&self) -> Option<Uuid> {
        let uuid = Uuid::from_u128(self.shape.uuid);
        (!uuid.is_nil()).then_some(uuid)
    }

    fn empty(me: &Weak<Cache>, name: &str, env: &Rc<dyn Env>, child: Rc<Node>, shape: Super) -> Cache {
        Cache {
            me: me.clone(),
            name: name.into(),
            env: Rc::clone(env),
            child,
            index: RefCell::new(Index::new(shape.slots())),
            segments: RefCell::new(Segments::new(shape.segments)),
            log_of: (0..shape.segments).map(|_| Cell::new(0)).collect(),
            space: RefCell::new(Space::new(shape.segments, shape.batch_slots())),
            shape,
            volumes: RefCell::default(),
            generations: Cell::new(0),
            logs: Default::default(),
            saving: Saving::default(),
            reclaiming: Cell::new(false),
            wants_clean: Cell::new(false),
            checkpoints: Cell::new(0),
            first: Default::default(),
            moved: Signal::new(),
            health: RefCell::default(),
            lost: RefCell::default(),
            unreadable: RefCell::default(),
            closed: Cell::new(false),
            tasks: Rc::default(),
            scratch: RefCell::default(),
            written: Cell::new(0),
            flushes: Cell::default(),
            strikes: Cell::default(),
            failures: Cell::default(),
            hasty: Cell::default(),
            flushed: Signal::new(),
            hurried: Cell::default(),
            fair: FairQueues::default(),
        }
    }

    /// Makes a cache on `child`, whatever is there.
    pub async fn format(env: &Rc<dyn Env>, child: &Rc<Node>) -> Result<()> {
        let size = child.geometry().size;
        let uuid = u128::from(env.random()) << 64 | u128::from(env.random());
        let shape = Super::new(size, uuid, env.random()).ok_or_else(|| {
            Error::invalid(format!("{size} bytes are too few for a cache: it takes 1 MiB and some more"))
                .on(child.name())
        })?;
        if child.geometry().block as usize > SLOT {
            return Err(Error::unsupported("a cache needs blocks of 4 KiB or less").on(child.name()));
        }
        let write = |slot: u32, bytes: &[u8]| {
            let buf = env.pool().take(bytes.len());
            buf.write(0, bytes);
            child.submit(Io::write(u64::from(slot) * SLOT as u64, buf, Durability::Fua))
        };
        // Nothing that may lie there has the new key. The superblock comes last: without it there is no cache.
        let state = State { sequence: 1, tails: [1, 1], next_segment: 1, volumes: Vec::new() };
        // Each where its number says: the next one never takes the place of the one that counts.
        write(STATES[0], &State::default().encode(shape.key)).await?;
        write(STATES[1], &state.encode(shape.key)).await?;
        write(0, &shape.encode()).await
    }

    /// Reads whole slots.
    pub async fn read_slots(&self, slots: Range<u32>) -> Result<Buf> {
        let buf = self.env.pool().take((slots.end - slots.start) as usize * SLOT);
        let read = self.child.submit(Io::read(u64::from(slots.start) * SLOT as u64, buf.clone())).await;
        self.suspect(&read);
        read.map(|()| buf)
    }

    /// Keeps the state as it is now, or a later one. Durable when it returns.
    pub async fn save(&self) -> Result<()> {
        self.saving.flight.change();
        self.saving.flight.save(async || self.write_state().await).await
    }

    async fn write_state(&self) -> Result<()> {
        let sequence = self.saving.sequence.get() + 1;
        let state = {
            let segments = self.segments.borrow();
            let volumes = self.volumes.borrow();
            let state = |volume: &Option<Rc<Volume>>| {
                volume.as_ref().map_or(VolumeState::default(), |volume| volume.state())
            };
            State {
                sequence,
                tails: segments.tails(),
                next_segment: segments.next,
                volumes: volumes.iter().map(state).collect(),
            }
        };
        let bytes = state.encode(self.shape.key);
        let buf = self.env.pool().take(bytes.len());
        buf.write(0, &bytes);
        let place = u64::from(STATES[sequence as usize % 2]) * SLOT as u64;
        // What failed is written to the same place again: the other one is whole.
        self.child.submit(Io::write(place, buf, Durability::Fua)).await?;
        self.saving.sequence.set(sequence);
        Ok(())
    }

    /// The volume with this UUID, of `size` blocks. Fails if it is not there: what was written to it would be missing.
    pub fn known(&self, uuid: u128, size: u64) -> Result<Rc<Volume>> {
        let known = self.volumes.borrow().iter().flatten().find(|volume| volume.uuid.get() == uuid).cloned();
        let Some(volume) = known else {
            let message = "the cache does not know this volume: the cache is another one, or was made anew; data that \
                           the store does not have is on the cache before";
            return Err(Error::new(ErrorKind::Corrupt, message).on(&self.name));
        };
        if volume.queue.borrow().iter().any(|record| record.blocks().end > size) {
            let message = "the store has become smaller, and the cache has data that was written behind its end: give \
                           it its size back";
            return Err(Error::new(ErrorKind::Corrupt, message).on(&self.name));
        }
        if volume.is_open.replace(true) {
            return Err(Error::invalid("it is open already").on(&self.name));
        }
        volume.size.set(size);
        Ok(volume)
    }

    /// True if it has the volume with this UUID.
    pub fn has(&self, uuid: u128) -> bool {
        self.volumes.borrow().iter().flatten().any(|volume| volume.uuid.get() == uuid)
    }

    /// Forgets the volume with this UUID, which nobody has open. What is dirty is lost, and has to be
    /// accepted. Durable when it returns: its number can be given again, and its blocks are of a generation
    /// that then does not count.
    pub async fn drop_volume(&self, uuid: u128, accept_loss: bool) -> Result<Value> {
        self.check()?;
        if self.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "the device cannot be written").on(&self.name));
        }
        let (volume, number) = {
            let volumes = self.volumes.borrow();
            let known = volumes.iter().flatten().find(|volume| volume.uuid.get() == uuid);
            let Some(volume) = known else {
                return Err(Error::invalid(format!("uuid: there is no volume {uuid:032x}")).on(&self.name));
            };
            (Rc::clone(volume), usize::from(volume.number))
        };
        if volume.is_open.get() {
            return Err(Error::invalid("it is open: a device of kind \"accelerate\" uses it").on(&self.name));
        }
        let (blocks, dirty) = (volume.blocks.get() * SLOT as u64, volume.dirty.get() * SLOT as u64);
        if dirty > 0 && !accept_loss {
            let message = format!(
                "{dirty} bytes of the volume are not on its store, and are lost if the volume is forgotten: open its \
                 device and drain it, or give accept-loss"
            );
            return Err(Error::invalid(message).on(&self.name));
        }
        // Entries that are still there have generations up to this one, and whoever gets the number a later one.
        self.generations.set(self.generations.get().max(volume.generation.get()));
        self.volumes.borrow_mut()[number] = None;
        self.let_go(&volume);
        self.save().await?;
        tracing::info!(flash = %self.name, volume = format!("{uuid:032x}"), dirty, "a volume was forgotten");
        Ok(json!({ "uuid": format!("{uuid:032x}"), "bytes": blocks, "lost_bytes": dirty }))
    }

    /// The volume with this UUID, of `size` blocks; made if it is not there.
    pub async fn volume(&self, uuid: u128, size: u64) -> Result<Rc<Volume>> {
        let is_known = self.volumes.borrow().iter().flatten().any(|volume| volume.uuid.get() == uuid);
        if is_known {
            return self.known(uuid, size);
        }
        let volume = {
            let mut volumes = self.volumes.borrow_mut();
            let free = volumes.iter().position(Option::is_none).unwrap_or(volumes.len());
            if free == VOLUMES_MAX {
                let message = format!("a flash has {VOLUMES_MAX} volumes at most");
                return Err(Error::new(ErrorKind::NoSpace, message).on(&self.name));
            }
            // Entries of who had the number before do not count.
            let generation = self.generations.get() + 1;
            self.generations.set(generation);
            let state = VolumeState { uuid, size, generation, valid: generation, ..VolumeState::default() };
            let volume = Rc::new(Volume::new(free as u16, state));
            volume.is_open.set(true);
            match volumes.get_mut(free) {
                Some(place) => *place = Some(Rc::clone(&volume)),
                None => volumes.push(Some(Rc::clone(&volume))),
            }
            volume
        };
        if !self.child.geometry().read_only {
            self.save().await?;
        }
        Ok(volume)
    }

    /// Runs `work` in the background; [`Cache::close`] waits for it.
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, work: impl FnOnce(Rc<Cache>) -> F) {
        let Some(me) = self.me.upgrade() else { return };
        self.tasks.spawn(&*self.env, work(me));
    }

    /// Fails if nothing can be put any more.
    pub fn check(&self) -> Result<()> {
        self.health.borrow().check()
    }

    /// Fails if what was put cannot be relied on any more. A device that is full can be read.
    pub fn check_reads(&self) -> Result<()> {
        self.health.borrow().check_reads()
    }

    /// Ends what goes on in the background, and makes it quick to open again.
    pub async fn close(self: &Rc<Cache>) -> Result<()> {
        self.closed.set(true);
        self.flushed.notify();
        self.moved.notify();
        self.tasks.ended().await;
        if self.health.borrow().is_missing() || self.child.geometry().read_only {
            return Ok(());
        }
        let mut result = Ok(());
        for this in &self.logs {
            if let Some(open) = this.open.take() {
                result = result.and(self.finish(open).await);
            }
        }
        result.and(self.save().await)
    }
}

/// A segment that is not used again while this lives. Its holder waits for devices only: neither for space,
/// which may have to come from this segment, nor for another holder, which may wait for that.
pub struct Pin {
    of: Rc<Cache>,
    number: u32,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut segments = self.of.segments.borrow_mut();
        let segment = segments.get(self.number);
        segment.pins -= 1;
        let is_free = segment.pins == 0;
        drop(segments);
        if is_free {
            self.of.moved.notify();
        }
    }
}

impl Cache {
    pub fn pin(self: &Rc<Cache>, number: u32) -> Pin {
        self.segments.borrow_mut().get(number).pins += 1;
        Pin { of: Rc::clone(self), number }
    }
}
