//! The control thread: the front-end's messages, which block, become jobs for the reactor.
//!
//! One thread an export, one front-end at a time (`front_end.rs`). Every message waits for its job to be done, so that
//! answers to the front-end are true. When the front-end hangs up, its queues are stopped and drained before the next
//! one is let in: no write of an earlier connection can land on top of one of a later connection.
//!
//! Descriptors of a front-end may be anything, and to ask, map or close one may take as long as its owner likes. All of
//! that is done here; only memory, eventfds, and Unix sockets reach the reactor. An export whose thread is blocked so
//! serves no front-end any more; others notice nothing, and it can be stopped all the same.

use crate::device::Device;
use crate::eventfd;
use crate::front_end::{AGAIN, Entrance, FrontEnd};
use crate::memory::{Mapper, Piece, REGIONS_MAX, RegionAddress};
use crate::ring::RingAddress;
use crate::socket::Socket;
use lamina_host::holders::other_end;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::socket_domain;
use rustix::net::{AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use std::fs::File;
use std::io::{self, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::message::*;
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};

/// Something that the reactor does for the control thread.
pub(crate) type Job = Box<dyn FnOnce(Rc<Device>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// How the control thread reaches its device.
pub(crate) struct Link {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
}

impl Link {
    /// The link, and the reactor's end of it: jobs, and an eventfd that announces them.
    pub fn new() -> io::Result<(Link, Receiver<Job>, OwnedFd)> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, receiver) = channel();
        let link = Link { jobs: sender, wake: Arc::new(wake.try_clone()?) };
        Ok((link, receiver, wake))
    }

    /// Lets the reactor do `work`, and waits for the result. An error if the reactor is gone.
    fn ask<T, F>(&self, work: impl FnOnce(Rc<Device>) -> F + Send + 'static) -> io::Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the reactor has ended");
        let (sender, receiver) = sync_channel(1);
        let job: Job = Box::new(move |device| {
            Box::pin(async move {
                let _ = sender.send(work(device).await);
            })
        });
        self.jobs.send(job).map_err(|_| gone())?;
        ring(&self.wake);
        receiver.recv().map_err(|_| gone())
    }
}

impl Drop for Link {
    /// The reactor sees that no job will come any more.
    fn drop(&mut self) {
        let (sender, _) = channel();
        drop(std::mem::replace(&mut self.jobs, sender));
        ring(&self.wake);
    }
}

/// Rings an eventfd of our own.
fn ring(fd: &OwnedFd) {
    // A full eventfd has been rung already.
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// How the control thread is told to end.
pub(crate) struct Shared {
    stopping: AtomicBool,
    wake: OwnedFd,
    connection: Mutex<Option<(UnixStream, String)>>,
}

impl Shared {
    pub fn new() -> io::Result<Shared> {
        Ok(Shared {
            stopping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            connection: Mutex::new(None),
        })
    }

    /// Ends the thread, soon.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        ring(&self.wake);
        if let Some((stream, _)) = &*self.connection.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// The front-end that is connected: its process, as far as the kernel says it.
    pub fn front_end(&self) -> Option<String> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().map(|(_, process)| process.clone())
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Lets [`Shared::stop`] interrupt this connection.
    fn set_connection(&self, stream: Option<UnixStream>) {
        // Once for each connection: whoever asks for it later is a core at work.
        let connection = stream.map(|stream| {
            let process = other_end(&stream);
            (stream, process)
        });
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}

/// The control thread of an export.
pub(crate) fn run(name: &str, socket: &Socket, shared: &Shared, link: &Link, mapper: &Mapper, queues: u16) {
    let entrance = Entrance::new(socket);
    while !shared.is_stopping() {
        match entrance.next(&shared.wake) {
            Ok(Some(front_end)) => {
                tracing::info!("{name}: a front-end has connected");
                let end = converse(front_end, &entrance, shared, link, mapper, queues);
                // Its queues end before the next one begins.
                if link.ask(Device::disconnect).is_err() {
                    return;
                }
                shared.set_connection(None);
                match end {
                    Err(Error::Disconnected) | Ok(()) => tracing::info!("{name}: the front-end has left"),
                    Err(e) => tracing::warn!("{name}: the front-end is sent away: {e}"),
                }
            }
            Ok(None) => {}
            Err(e) => {
                tracing::warn!("{name}: a connection was not accepted: {e}");
                // Out of descriptors, most likely: trying again at once would not help.
                std::thread::sleep(AGAIN);
            }
        }
    }
}

/// Answers one front-end until it leaves, or another one takes its place.
fn converse(
    front_end: FrontEnd,
    entrance: &Entrance,
    shared: &Shared,
    link: &Link,
    mapper: &Mapper,
    queues: u16,
) -> Result<()> {
    let own = &front_end.stream;
    shared.set_connection(Some(own.try_clone().map_err(Error::ReqHandlerError)?));
    if shared.is_stopping() {
        return Ok(());
    }
    let stream = own.try_clone().map_err(Error::ReqHandlerError)?;
    let session =
        Arc::new(Mutex::new(Session { link, mapper, queues, protocol: VhostUserProtocolFeatures::empty() }));
    let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&session));
    while entrance.hear(&front_end).map_err(Error::SocketBroken)? {
        let Some(header) = Header::peek(own)? else { return Err(Error::Disconnected) };
        let protocol = session.lock().unwrap_or_else(PoisonError::into_inner).protocol;
        let acknowledged = header.need_reply() && protocol.contains(VhostUserProtocolFeatures::REPLY_ACK);
        tracing::trace!(request = ?FrontendReq::try_from(header.request()), acknowledged);
        let handled = if header.request() == u32::from(FrontendReq::SET_BACKEND_REQ_FD) {
            take_channel(own, link, acknowledged)
        } else {
            handler.handle_request()
        };
        match handled {
            // The front-end has been told that it was refused, and may go on.
            Err(Error::ReqHandlerError(e)) if acknowledged => tracing::warn!("a request was refused: {e}"),
            other => other?,
        }
    }
    tracing::info!("its process has connected anew, or has ended and another one waits");
    Ok(())
}

/// The first bytes of a message.
struct Header([u8; 8]);

impl Header {
    /// Looks at the next message without taking it; `None` if there will be none.
    fn peek(stream: &UnixStream) -> Result<Option<Header>> {
        let mut bytes = [0; 8];
        loop {
            match recv(stream, &mut bytes[..], RecvFlags::PEEK) {
                // A message in pieces this small is not worth waiting for: it is judged by its first part.
                Ok((0, _)) => return Ok(None),
                Ok(_) => return Ok(Some(Header(bytes))),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::SocketBroken(e.into())),
            }
        }
    }

    fn request(&self) -> u32 {
        u32::from_ne_bytes([self.0[0], self.0[1], self.0[2], self.0[3]])
    }

    fn need_reply(&self) -> bool {
        self.0[4] & VhostUserHeaderFlag::NEED_REPLY.bits() as u8 != 0
    }
}

/// Takes the message that brings the channel on which we may speak first. The `vhost` crate would keep it to itself,
/// and has no message about a changed configuration.
fn take_channel(stream: &UnixStream, link: &Link, acknowledge: bool) -> Result<()> {
    let mut header = [0; 12];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut header)];
    let received = recvmsg(stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        .map_err(|e| Error::SocketBroken(e.into()))?;
    let mut files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let channel = files.next().and_then(|mut files| files.next()).ok_or(Error::IncorrectFds)?;
    if received.bytes != header.len() || header[8..] != [0; 4] {
        return Err(Error::InvalidMessage);
    }
    if !matches!(socket_domain(&channel), Ok(AddressFamily::UNIX)) {
        return Err(Error::IncorrectFds);
    }
    let channel = UnixStream::from(channel);
    link.ask(async move |device: Rc<Device>| device.set_channel(channel)).map_err(Error::ReqHandlerError)?;
    if acknowledge {
        let reply_flags = 1 | VhostUserHeaderFlag::REPLY.bits();
        let mut reply = [0; 20];
        reply[..4].copy_from_slice(&header[..4]);
        reply[4..8].copy_from_slice(&reply_flags.to_ne_bytes());
        reply[8..12].copy_from_slice(&8u32.to_ne_bytes());
        (&*stream).write_all(&reply).map_err(Error::SocketBroken)?;
    }
    Ok(())
}

/// A conversation with one front-end.
struct Session<'a> {
    link: &'a Link,
    mapper: &'a Mapper,
    queues: u16,
    /// The features that both sides understand.
    protocol: VhostUserProtocolFeatures,
}

impl Session<'_> {
    /// Lets the reactor do something that may be refused.
    fn ask<T, F>(&self, work: impl FnOnce(Rc<Device>) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = io::Result<T>> + 'static,
    {
        self.link.ask(work).and_then(|answer| answer).map_err(Error::ReqHandlerError)
    }

    fn map(&self, file: &File, offset: u64, len: u64) -> Result<Piece> {
        self.mapper.map(file, offset, len).map_err(Error::ReqHandlerError)
    }
}

fn event(file: Option<File>) -> Result<Option<OwnedFd>> {
    file.map(eventfd::check).transpose().map_err(Error::ReqHandlerError)
}

fn address(region: &VhostUserMemoryRegion) -> RegionAddress {
    RegionAddress { guest: region.guest_phys_addr, user: region.user_addr, len: region.memory_size }
}

const UNKNOWN: Result<()> = Err(Error::InvalidOperation("not a block device's"));

impl VhostUserBackendReqHandlerMut for Session<'_> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Obsolete; the specification asks to ignore it.
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.link.ask(Device::reset).map_err(Error::ReqHandlerError)
    }

    fn get_features(&mut self) -> Result<u64> {
        self.ask(async |device: Rc<Device>| Ok(device.features()))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.ask(move |device| device.set_features(features))
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let map = |(region, file): (&VhostUserMemoryRegion, &File)| {
            let address = address(region);
            self.mapper.map(file, region.mmap_offset, address.len).map(|piece| (address, piece))
        };
        let mapped: io::Result<Vec<_>> = regions.iter().zip(&files).map(map).collect();
        let regions = mapped.map_err(Error::ReqHandlerError)?;
        self.ask(async move |device: Rc<Device>| device.set_memory(regions))?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        self.ask(async move |device: Rc<Device>| device.set_size(index, size))
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        let address = RingAddress { descriptors, available, used, log };
        self.ask(async move |device: Rc<Device>| device.set_address(index, address))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ask(async move |device: Rc<Device>| device.set_base(index, base))
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let base = self.ask(move |device| device.base(index))?;
        Ok(VhostUserVringState::new(index, base as u32))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = event(file)?;
        self.ask(move |device| device.set_kick(index as u32, kick))
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = event(file)?;
        self.ask(async move |device: Rc<Device>| device.set_call(index as u32, call))
    }

    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let error = event(file)?;
        self.ask(async move |device: Rc<Device>| device.set_error(index as u32, error))
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let known = VhostUserProtocolFeatures::from_bits_truncate(features);
        self.protocol = known & self.get_protocol_features()?;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ask(move |device| device.set_enabled(index, enable))
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        self.ask(async move |device: Rc<Device>| Ok(device.config(offset, size)))
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], flags: VhostUserConfigFlags) -> Result<()> {
        if flags.contains(VhostUserConfigFlags::LIVE_MIGRATION) {
            // The destination has the configuration from its own device.
            return Ok(());
        }
        let bytes = bytes.to_vec();
        self.ask(async move |device: Rc<Device>| device.set_config(offset, &bytes))
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        UNKNOWN
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk has no shared objects"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        let (file, len) = self.ask(async move |device: Rc<Device>| device.new_in_flight(queues, size))?;
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        let piece = self.map(&file, region.mmap_offset, region.mmap_size)?;
        let (queues, size) = (region.num_queues, region.queue_size);
        self.ask(async move |device: Rc<Device>| device.set_in_flight(piece, queues, size))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let address = address(region);
        let piece = self.map(&file, region.mmap_offset, address.len)?;
        self.ask(async move |device: Rc<Device>| device.add_region(address, piece))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let address = address(region);
        self.ask(async move |device: Rc<Device>| device.remove_region(address))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("a disk has no state besides its queues"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        UNKNOWN
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(0, &[]))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let piece = self.map(&file, log.mmap_offset, log.mmap_size)?;
        self.link.ask(move |device| device.set_log_base(piece)).map_err(Error::ReqHandlerError)
    }
}
