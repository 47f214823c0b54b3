//! An export: its socket, its control thread, its device.

use crate::control::{self, Link, Shared};
use crate::device::Device;
use crate::disposal::Disposal;
use crate::memory::Mapper;
use crate::socket::Socket;
use futures_util::future::{Either, select};
use lamina_block::{Budget, Node, Signal};
use lamina_host::{Access, Event, Host};
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use virtio_bindings::virtio_blk::VIRTIO_BLK_ID_BYTES;

/// The properties of an export.
#[derive(Clone, Debug)]
pub struct Settings {
    /// For logs: the export's name.
    pub name: String,
    /// The most queues that a front-end may use, 1 to 256.
    pub queues: u16,
    /// The disk's serial number in the guest; its first 20 bytes.
    pub serial: String,
    /// Refuse whatever changes the device, also when the node is writable.
    pub read_only: bool,
    /// Take any file as the guest's memory, not only memory (memfd, tmpfs, huge pages). Requests then wait for its
    /// disk, and all else of the same core with them.
    pub any_memory: bool,
    /// The rights to connect to the socket.
    pub access: Access,
}

impl Settings {
    /// A writable export with space for 64 queues, its serial number the name.
    pub fn new(name: &str) -> Settings {
        Settings {
            name: name.into(),
            queues: 64,
            serial: name.into(),
            read_only: false,
            any_memory: false,
            access: Access::default(),
        }
    }

    pub(crate) fn serial_bytes(&self) -> [u8; VIRTIO_BLK_ID_BYTES as usize] {
        let mut bytes = [0; VIRTIO_BLK_ID_BYTES as usize];
        let len = self.serial.len().min(bytes.len());
        bytes[..len].copy_from_slice(&self.serial.as_bytes()[..len]);
        bytes
    }
}

/// A node served at a Unix socket. Dropped without [`Server::stop`], the server stops at an unknown time.
pub struct Server {
    shared: Arc<Shared>,
    device: Rc<Device>,
    socket: Arc<Socket>,
    ended: Rc<Ended>,
}

#[derive(Default)]
struct Ended {
    now: Cell<bool>,
    signal: Signal,
}

impl Server {
    /// Serves `node` at `path`, for one front-end at a time (`front_end.rs`); requests take their memory from `memory`.
    /// A stale socket is replaced; an error if there is a listener, or if `path` is not a socket.
    pub fn start(
        host: &Rc<Host>,
        path: &Path,
        node: Rc<Node>,
        settings: Settings,
        memory: Rc<Budget>,
    ) -> io::Result<Server> {
        if !(1..=256).contains(&settings.queues) {
            let message = format!("a disk has 1 to 256 queues, not {}", settings.queues);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let socket = Arc::new(Socket::listen(path, &settings.access)?);
        let disposal = Disposal::start(&settings.name)?;
        let mapper = Mapper { any_file: settings.any_memory, disposal: disposal.clone() };
        let name = settings.name.clone();
        let queues = settings.queues;
        let (link, jobs, wake) = Link::new()?;
        let shared = Arc::new(Shared::new()?);
        {
            let (shared, socket) = (Arc::clone(&shared), Arc::clone(&socket));
            let named = std::thread::Builder::new().name(format!("vhost {name}"));
            named.spawn(move || control::run(&name, &socket, &shared, &link, &mapper, queues))?;
        }
        let ended = Rc::<Ended>::default();
        let device = Device::new(host, Rc::clone(&node), settings, memory, disposal);
        host.task(watch_size(Rc::clone(&device), node));
        host.task(serve(Rc::clone(&device), jobs, host.event(wake), Rc::clone(&ended)));
        Ok(Server { shared, device, socket, ended })
    }

    /// The front-end (a hypervisor) that is connected: ` (process 12 (qemu-system-x86))`, or an empty text if the
    /// kernel does not say.
    pub fn front_end(&self) -> Option<String> {
        self.shared.front_end()
    }

    /// Takes no more requests, lets those in flight complete, hangs up, and removes the socket. There is no wait for
    /// the control thread: a front-end may block it.
    pub async fn stop(self) {
        self.shared.stop();
        self.device.is_closing.set(true);
        self.device.closing.notify();
        self.ended.signal.until(|| self.ended.now.get()).await;
        self.socket.remove();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

/// Does the jobs of the control thread, one after the other, until that thread or the export ends.
async fn serve(device: Rc<Device>, jobs: Receiver<control::Job>, wake: Rc<Event>, ended: Rc<Ended>) {
    while !device.is_closing.get() {
        match jobs.try_recv() {
            Ok(job) => job(Rc::clone(&device)).await,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                if let Err(e) = wake.wait_unless(device.closing.wait()).await {
                    tracing::error!("a control thread cannot be heard: {e}");
                    break;
                }
            }
        }
    }
    // Later jobs of the control thread are answered with an error.
    drop(jobs);
    Rc::clone(&device).disconnect().await;
    device.closed.set(true);
    device.closing.notify();
    ended.now.set(true);
    ended.signal.notify();
}

/// Tells the front-end when the node's shape changes.
async fn watch_size(device: Rc<Device>, node: Rc<Node>) {
    while !device.closed.get() {
        let (resized, closing) = (pin!(node.resized()), pin!(device.closing.wait()));
        if let Either::Left(_) = select(resized, closing).await {
            device.announce_change();
        }
    }
}
