//! The device on the reactor: the front-end's settings, and the queues that run with them.
//!
//! The control thread calls these methods one at a time and waits for each answer, so that no two of them interleave.
//! A queue runs when its size, addresses, kick and permission are there; it is stopped, and drained, before any of
//! them is taken away.

use crate::config::{self, EVENT_INDEX, FLUSH, LOG_ALL, PROTOCOL_FEATURES};
use crate::dirty::DirtyLog;
use crate::disposal::Disposal;
use crate::inflight;
use crate::memory::{Memory, Piece, Region, RegionAddress};
use crate::queue::{Parts, Queue, Turn};
use crate::request::Rules;
use crate::ring::{Ring, RingAddress};
use crate::server::Settings;
use lamina_block::{Budget, Durability, InUse, Node, Signal};
use lamina_host::{Bell, Event, Host};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::task::Poll;

/// A device with its queues.
pub(crate) struct Device {
    name: String,
    host: Rc<Host>,
    node: Rc<Node>,
    settings: Settings,
    /// The memory for requests of all queues.
    space: Rc<Budget>,
    /// The features that the guest and the front-end have agreed to.
    features: Cell<u64>,
    write_back: Cell<bool>,
    memory: RefCell<Rc<Memory>>,
    log: RefCell<Option<Rc<DirtyLog>>>,
    in_flight: RefCell<Option<inflight::Region>>,
    /// The channel on which we may speak first.
    channel: RefCell<Option<UnixStream>>,
    slots: Vec<RefCell<Slot>>,
    /// The disposal of descriptors and memory that are not needed any more.
    disposal: Disposal,
    /// The export ends, or has ended.
    pub closing: Signal,
    pub is_closing: Cell<bool>,
    pub closed: Cell<bool>,
}

/// The front-end's settings of one queue.
#[derive(Default)]
struct Slot {
    size: u16,
    address: Option<RingAddress>,
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    enabled: bool,
    running: Option<Running>,
}

/// A queue with its tasks.
#[derive(Clone)]
struct Running {
    queue: Rc<Queue>,
    /// The queue's task has ended.
    ended: Rc<Cell<bool>>,
    /// A guest that can ask for something uses the device.
    uses: Rc<InUse>,
}

fn invalid(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message.into())
}

impl Device {
    /// A device without a front-end.
    pub fn new(
        host: &Rc<Host>,
        node: Rc<Node>,
        settings: Settings,
        space: Rc<Budget>,
        disposal: Disposal,
    ) -> Rc<Device> {
        Rc::new(Device {
            name: settings.name.clone(),
            host: Rc::clone(host),
            node,
            features: Cell::new(0),
            write_back: Cell::new(true),
            memory: RefCell::default(),
            log: RefCell::default(),
            in_flight: RefCell::default(),
            channel: RefCell::default(),
            slots: (0..settings.queues).map(|_| RefCell::default()).collect(),
            settings,
            disposal,
            space,
            closing: Signal::new(),
            is_closing: Cell::new(false),
            closed: Cell::new(false),
        })
    }

    fn slot(&self, index: u32) -> io::Result<&RefCell<Slot>> {
        let slot = usize::try_from(index).ok().and_then(|index| self.slots.get(index));
        slot.ok_or_else(|| invalid(format!("there is no queue {index}")))
    }

    fn running(&self) -> Vec<Running> {
        self.slots.iter().filter_map(|slot| slot.borrow().running.clone()).collect()
    }

    /// The features of the device.
    pub fn features(&self) -> u64 {
        config::features(&self.node.geometry(), self.settings.read_only)
    }

    /// The features that the guest and the front-end have agreed to, which may change while queues run: a migration
    /// begins by it.
    pub async fn set_features(self: Rc<Self>, features: u64) -> io::Result<()> {
        let unknown = features & !self.features();
        if unknown != 0 {
            return Err(invalid(format!("features {unknown:#x} were not offered")));
        }
        let changed = features ^ self.features.replace(features);
        self.apply_rules();
        if changed & LOG_ALL != 0 {
            self.apply_log().await;
        }
        Ok(())
    }

    fn rules(&self) -> Rules {
        // Without flushes, and with the cache turned off, a completed write must be durable.
        let cached = self.write_back.get() && self.features.get() & FLUSH != 0;
        let durability = if cached { Durability::Cached } else { Durability::Fua };
        Rules { read_only: self.settings.read_only, durability }
    }

    fn apply_rules(&self) {
        for running in self.running() {
            running.queue.set_rules(self.rules(), self.features.get() & EVENT_INDEX != 0);
        }
    }

    fn active_log(&self) -> Option<Rc<DirtyLog>> {
        self.log.borrow().clone().filter(|_| self.features.get() & LOG_ALL != 0)
    }

    /// Lets every queue log, or not. Requests in flight have not recorded the pages to mark, so they end first.
    async fn apply_log(&self) {
        for running in self.running() {
            running.queue.hold();
            running.queue.drained.until(|| running.queue.in_flight() == 0).await;
            running.queue.set_log(self.active_log());
            running.queue.release();
        }
    }

    /// Where a migration's log is.
    pub async fn set_log_base(self: Rc<Self>, piece: Piece) {
        *self.log.borrow_mut() = Some(Rc::new(DirtyLog::new(piece)));
        self.apply_log().await;
    }

    /// Replaces all of the guest's memory.
    pub fn set_memory(&self, regions: Vec<(RegionAddress, Piece)>) -> io::Result<()> {
        let region = |(address, piece)| Region::new(address, piece);
        let regions = regions.into_iter().map(region).collect::<io::Result<_>>()?;
        self.use_memory(Memory::new(regions)?);
        Ok(())
    }

    /// Adds to the guest's memory.
    pub fn add_region(&self, address: RegionAddress, piece: Piece) -> io::Result<()> {
        let memory = self.memory.borrow().with(Region::new(address, piece)?)?;
        self.use_memory(memory);
        Ok(())
    }

    /// Takes from the guest's memory.
    pub fn remove_region(&self, address: RegionAddress) -> io::Result<()> {
        let memory = self.memory.borrow().without(address)?;
        self.use_memory(memory);
        Ok(())
    }

    fn use_memory(&self, memory: Memory) {
        tracing::debug!("{}: the guest's memory is {memory:?}", self.name);
        *self.memory.borrow_mut() = Rc::new(memory);
        for slot in &self.slots {
            let slot = slot.borrow();
            if let Some(running) = &slot.running {
                self.move_ring(&slot, &running.queue);
            }
        }
    }

    /// Lets a running queue use the present addresses and memory; stops the queue if they are gone.
    fn move_ring(&self, slot: &Slot, queue: &Queue) {
        let memory = Rc::clone(&*self.memory.borrow());
        match Ring::map(slot.size, &slot.address.unwrap_or_default(), &memory) {
            Ok(ring) => queue.set_memory(ring, memory),
            Err(reason) => queue.fail(&reason),
        }
    }

    /// The number of entries of a queue.
    pub fn set_size(&self, index: u32, size: u32) -> io::Result<()> {
        let mut slot = self.slot(index)?.borrow_mut();
        let size = u16::try_from(size).ok().filter(|size| size.is_power_of_two());
        match size {
            _ if slot.running.is_some() => Err(invalid("a running queue's size cannot change")),
            None => Err(invalid("a queue's size is a power of two up to 32768")),
            Some(size) => {
                slot.size = size;
                Ok(())
            }
        }
    }

    /// Where a queue's tables are. A running queue may move, and a migration lets it log its used ring.
    pub fn set_address(&self, index: u32, address: RingAddress) -> io::Result<()> {
        let mut slot = self.slot(index)?.borrow_mut();
        slot.address = Some(address);
        if let Some(running) = &slot.running {
            self.move_ring(&slot, &running.queue);
        }
        Ok(())
    }

    /// From where a queue takes chains.
    pub fn set_base(&self, index: u32, base: u32) -> io::Result<()> {
        let mut slot = self.slot(index)?.borrow_mut();
        if slot.running.is_some() {
            return Err(invalid("a running queue's base cannot change"));
        }
        slot.base = u16::try_from(base).map_err(|_| invalid("a queue's base is a 16-bit index"))?;
        Ok(())
    }

    /// Stops a queue, lets what is in flight complete, and returns from where to go on.
    pub async fn base(self: Rc<Self>, index: u32) -> io::Result<u16> {
        self.stop(index).await?;
        let mut slot = self.slot(index)?.borrow_mut();
        slot.kick = None;
        Ok(slot.base)
    }

    /// How the guest says that chains are available.
    pub async fn set_kick(self: Rc<Self>, index: u32, kick: Option<OwnedFd>) -> io::Result<()> {
        let kick = kick.ok_or_else(|| invalid("queues are not polled: a kick needs an eventfd"))?;
        self.stop(index).await?;
        self.slot(index)?.borrow_mut().kick = Some(kick);
        self.start(index)
    }

    /// How the guest hears that chains are used.
    pub fn set_call(&self, index: u32, call: Option<OwnedFd>) -> io::Result<()> {
        let mut slot = self.slot(index)?.borrow_mut();
        if let Some(running) = &slot.running {
            running.queue.set_call(bell(&call)?);
        }
        slot.call = call;
        Ok(())
    }

    /// How the front-end hears that a queue is broken.
    pub fn set_error(&self, index: u32, error: Option<OwnedFd>) -> io::Result<()> {
        let mut slot = self.slot(index)?.borrow_mut();
        if let Some(running) = &slot.running {
            running.queue.set_error(bell(&error)?);
        }
        slot.error = error;
        Ok(())
    }

    /// Lets a queue run, or not.
    pub async fn set_enabled(self: Rc<Self>, index: u32, enabled: bool) -> io::Result<()> {
        self.slot(index)?.borrow_mut().enabled = enabled;
        if enabled { self.start(index) } else { self.stop(index).await }
    }

    /// A new in-flight region; its file and length.
    pub fn new_in_flight(&self, queues: u16, size: u16) -> io::Result<(File, u64)> {
        if queues as usize > self.slots.len() || size > 1 << 15 {
            return Err(invalid(format!("{queues} queues of {size} cannot be in flight")));
        }
        inflight::create(queues, size)
    }

    /// The region in which a predecessor may have left what was in flight.
    pub fn set_in_flight(&self, piece: Piece, queues: u16, size: u16) -> io::Result<()> {
        let region = inflight::Region::new(piece, queues, size)?;
        tracing::info!("{}: the front-end keeps the in-flight region (INFLIGHT_SHMFD)", self.name);
        *self.in_flight.borrow_mut() = Some(region);
        Ok(())
    }

    /// Part of the configuration space.
    pub fn config(&self, offset: u32, len: u32) -> Vec<u8> {
        let space = config::space(&self.node.geometry(), self.settings.queues, self.write_back.get());
        config::read(&space, offset, len)
    }

    /// The guest turns the write cache on or off; nothing else can be written.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        match (offset, bytes) {
            (config::WRITE_BACK_OFFSET, [mode @ 0..=1]) => {
                self.write_back.set(*mode == 1);
                self.apply_rules();
                Ok(())
            }
            _ => Err(invalid("only the cache mode of the configuration can be written")),
        }
    }

    /// The channel on which we may speak first.
    pub fn set_channel(&self, channel: UnixStream) {
        let before = self.channel.borrow_mut().replace(channel);
        self.disposal.take(before);
    }

    /// Tells the front-end that the configuration space has changed.
    pub fn announce_change(&self) {
        const CONFIG_CHANGE: u32 = 2;
        const VERSION: u32 = 1;
        let mut message = [0; 12];
        message[..4].copy_from_slice(&CONFIG_CHANGE.to_ne_bytes());
        message[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        let Some(channel) = &*self.channel.borrow() else { return };
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        match rustix::net::send(channel, &message, flags) {
            Ok(12) => {}
            Ok(_) => tracing::warn!("{}: the front-end takes no messages", self.name),
            Err(e) => tracing::warn!("{}: the front-end did not hear of the new size: {e}", self.name),
        }
    }

    /// Stops all queues and forgets what the guest has set up. The front-end goes on from what it has shared: memory,
    /// eventfds, its channel (QEMU does not send them again).
    pub async fn reset(self: Rc<Self>) {
        for index in 0..self.slots.len() as u32 {
            // There is a queue of this index.
            let _ = self.stop(index).await;
        }
        for slot in &self.slots {
            let mut slot = slot.borrow_mut();
            let (call, error) = (slot.call.take(), slot.error.take());
            *slot = Slot { call, error, ..Slot::default() };
        }
        self.features.set(0);
        self.write_back.set(true);
        self.in_flight.take();
    }

    /// No caller waits any more for requests in flight.
    pub fn abandon(&self) {
        self.running().iter().for_each(|running| running.queue.abandon());
    }

    /// The front-end is gone: stops all queues, and drops all its settings.
    pub async fn disconnect(self: Rc<Self>) {
        self.disposal.take(self.channel.take());
        self.abandon();
        Rc::clone(&self).reset().await;
        for slot in &self.slots {
            slot.take();
        }
        self.memory.take();
        self.log.take();
    }

    /// Starts a queue, if its settings are complete.
    fn start(self: &Rc<Self>, index: u32) -> io::Result<()> {
        let first = self.running().is_empty();
        let mut slot = self.slot(index)?.borrow_mut();
        let permitted = slot.enabled || self.features.get() & PROTOCOL_FEATURES == 0;
        let (Some(address), Some(kick), None, true) = (slot.address, &slot.kick, &slot.running, permitted)
        else {
            return Ok(());
        };
        let event = self.host.event(kick.try_clone()?);
        let queue = self.make_queue(index, &slot, &address).map_err(invalid)?;
        if queue.to_repeat() > 0 {
            tracing::info!("{}: queue {index} repeats {} requests in flight", self.name, queue.to_repeat());
        }
        queue.set_error(bell(&slot.error)?);
        queue.set_call(bell(&slot.call)?);
        let ended = Rc::new(Cell::new(false));
        self.host.task(serve(Rc::clone(&queue), event, Rc::clone(&ended)));
        self.host.task(publish(Rc::clone(&queue)));
        slot.running = Some(Running { queue, ended, uses: Rc::new(self.node.use_it()) });
        if first {
            // A front-end that comes back to a restarted server goes on with the size it was told before. The guest
            // looks again only when told, and QEMU only after the start of the device.
            self.announce_change();
        }
        Ok(())
    }

    fn make_queue(&self, index: u32, slot: &Slot, address: &RingAddress) -> Result<Rc<Queue>, String> {
        let memory = Rc::clone(&*self.memory.borrow());
        let ring = Ring::map(slot.size, address, &memory)?;
        let tracker = match &*self.in_flight.borrow() {
            Some(region) => Some(
                region
                    .tracker(index as usize, slot.size)
                    .ok_or_else(|| format!("the in-flight region has no space for queue {index}"))?,
            ),
            None => None,
        };
        Queue::new(Parts {
            name: format!("{} queue {index}", self.name),
            env: self.host.clone(),
            node: Rc::clone(&self.node),
            ring,
            memory,
            tracker,
            base: slot.base,
            event_index: self.features.get() & EVENT_INDEX != 0,
            rules: self.rules(),
            serial: self.settings.serial_bytes(),
            log: self.active_log(),
            space: self.space.taker(),
        })
    }

    /// Stops a queue if it runs, and waits until none of its requests is in flight.
    async fn stop(&self, index: u32) -> io::Result<()> {
        let slot = self.slot(index)?;
        let Some(Running { queue, ended, uses }) = slot.borrow_mut().running.take() else { return Ok(()) };
        // Its task takes its wait for a kick with it: the next one may wait on the same eventfd.
        queue.stop();
        queue.drained.until(|| queue.in_flight() == 0 && ended.get()).await;
        slot.borrow_mut().base = queue.next_available();
        drop(uses);
        Ok(())
    }
}

fn bell(fd: &Option<OwnedFd>) -> io::Result<Option<Bell>> {
    fd.as_ref().map(Bell::new).transpose()
}

/// A queue's task: takes chains, and waits for kicks.
async fn serve(queue: Rc<Queue>, kick: Rc<Event>, ended: Rc<Cell<bool>>) {
    loop {
        let roused = queue.roused.wait();
        let turn = queue.turn();
        queue.check_memory();
        match turn {
            Turn::Stopped => break,
            Turn::More => yield_once().await,
            Turn::Full => queue.space.freed().await,
            Turn::Idle => {
                if let Err(e) = kick.wait_unless(roused).await {
                    queue.fail(&format!("its kicks cannot be heard: {e}"));
                    break;
                }
            }
        }
    }
    ended.set(true);
    queue.drained.notify();
}

/// A queue's other task: publishes what tasks have completed, once for all that complete together.
async fn publish(queue: Rc<Queue>) {
    while !(queue.is_stopped() && queue.in_flight() == 0) {
        queue.completed.wait().await;
        queue.publish();
    }
}

/// Lets others run.
async fn yield_once() {
    let mut yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
