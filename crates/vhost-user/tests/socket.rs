//! Over a real socket, by a third-party driver: no virtual machine, but everything between.

use lamina_block::{Build, Env, Node};
use lamina_host::{Options, Reactor};
use lamina_layers::KINDS;
use lamina_vhost_user::{Server, Settings};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use vhost::VhostBackend;
use vhost::vhost_user::message::{BackendReq, VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostUserMemoryRegionInfo, VringConfigData};
use virtio_driver::{EventFd, VhostUser, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags};

const SIZE: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A served memory device in a thread of its own.
struct Served {
    socket: PathBuf,
    end: Option<futures_channel::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl Served {
    fn start(settings: Settings) -> Served {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("disk.sock");
        let (end, ended) = futures_channel::oneshot::channel();
        let (ready, is_ready) = channel();
        let path = socket.clone();
        let thread = std::thread::spawn(move || {
            let reactor = Reactor::new(Options::default()).unwrap();
            let host = reactor.env();
            reactor.run(async {
                let env: Rc<dyn Env> = host.clone();
                let kind = KINDS.iter().find(|kind| kind.name == "memory").unwrap();
                let keys = kind.parse(&serde_json::json!({ "size": SIZE })).unwrap();
                let base = "/".into();
                let with = Build { base, ..Build::new("disk", &env, Vec::new()) };
                let node = Node::new("disk", "memory", env, keys.build(with).await.unwrap());
                let server = Server::start(&host, &path, Rc::clone(&node), settings, Rc::default()).unwrap();
                ready.send(()).unwrap();
                let _ = ended.await;
                server.stop().await;
                node.close().await.unwrap();
            });
        });
        is_ready.recv_timeout(PATIENCE).unwrap();
        Served { socket, end: Some(end), thread: Some(thread), _folder: folder }
    }

    fn stop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A driver with memory for data, and its queues.
struct Client {
    transport: Box<VirtioBlkTransport>,
    queues: Vec<VirtioBlkQueue<'static, u64>>,
    data: memmap2::MmapMut,
    _file: File,
}

const FLUSH: u64 = 1 << 9;

impl Client {
    fn connect(path: &Path, queues: usize, features: VirtioFeatureFlags) -> Client {
        // The server lets the next front-end in when the last one's requests are done.
        let all = features.bits() | VirtioFeatureFlags::VERSION_1.bits() | FLUSH | 1 << 12;
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(VhostUser::new(path.to_str().unwrap(), all).unwrap());
        let file: File = rustix::fs::memfd_create("data", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(1 << 20).unwrap();
        // SAFETY: the file is not shrunk.
        let mut data = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
        transport.map_mem_region(data.as_mut_ptr() as usize, data.len(), file.as_raw_fd(), 0).unwrap();
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, queues, 64).unwrap();
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        Client { transport, queues, data, _file: file }
    }

    fn kick(&mut self, queue: usize) {
        if self.queues[queue].avail_notif_needed() {
            self.transport.get_submission_notifier(queue).notify().unwrap();
        }
    }

    /// Waits for as many completions, by interrupts; their contexts and results.
    fn wait(&mut self, queue: usize, count: usize) -> Vec<(u64, i32)> {
        let call = self.transport.get_completion_fd(queue);
        let mut done: Vec<_> = self.queues[queue].completions().map(|c| (c.context, c.ret)).collect();
        while done.len() < count {
            interrupt(&call);
            done.extend(self.queues[queue].completions().map(|c| (c.context, c.ret)));
        }
        done
    }

    /// Queues one request on queue 0 and waits for it.
    fn one(&mut self, request: impl FnOnce(&mut VirtioBlkQueue<'static, u64>, &mut [u8])) -> i32 {
        request(&mut self.queues[0], &mut self.data);
        self.kick(0);
        self.wait(0, 1)[0].1
    }
}

fn interrupt(call: &EventFd) {
    let mut ready = [rustix::event::PollFd::new(call, rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut ready, Some(&limit)).unwrap(), 1, "no interrupt");
    call.read().unwrap();
}

#[test]
fn every_request() {
    for features in [VirtioFeatureFlags::empty(), VirtioFeatureFlags::RING_EVENT_IDX] {
        let served = Served::start(Settings::new("disk"));
        let mut client = Client::connect(&served.socket, 1, features);
        let config = client.transport.get_config().unwrap();
        assert_eq!(u64::from(config.capacity), SIZE / 512);
        assert_eq!((config.writeback, u16::from(config.num_queues)), (1, 64));
        client.data[..8192].fill(0x5a);
        assert_eq!(client.one(|q, data| q.write(4096, &data[..8192], 0).unwrap()), 0);
        assert_eq!(client.one(|q, _| q.flush(0).unwrap()), 0);
        assert_eq!(client.one(|q, _| q.write_zeroes(8192, 2048, false, 0).unwrap()), 0);
        assert_eq!(client.one(|q, _| q.discard(0, 4096, 0).unwrap()), 0);
        assert_eq!(client.one(|q, data| q.read(4096, &mut data[..8192], 0).unwrap()), 0);
        assert!(client.data[..4096].iter().all(|b| *b == 0x5a));
        assert!(client.data[4096..6144].iter().all(|b| *b == 0));
        assert!(client.data[6144..8192].iter().all(|b| *b == 0x5a));
        let read_behind = client.one(|q, data| q.read(SIZE, &mut data[..512], 0).unwrap());
        assert!(read_behind < 0);
    }
}

#[test]
fn many_queues_and_requests_keep_their_data_apart() {
    const QUEUES: usize = 4;
    const EACH: usize = 20;
    let served = Served::start(Settings::new("disk"));
    let mut client = Client::connect(&served.socket, QUEUES, VirtioFeatureFlags::RING_EVENT_IDX);
    let place = |queue: usize, n: usize| (queue * EACH + n) * 4096;
    for round in 0..20u8 {
        for (write, expected) in [(true, 0), (false, 0)] {
            for queue in 0..QUEUES {
                for n in 0..EACH {
                    let at = place(queue, n);
                    let part = &mut client.data[at..at + 4096];
                    part.fill(if write { round ^ (at >> 12) as u8 } else { 0xff });
                    let q = &mut client.queues[queue];
                    let context = at as u64;
                    let added = if write {
                        q.write(at as u64, part, context)
                    } else {
                        q.read(at as u64, part, context)
                    };
                    added.unwrap();
                }
                client.kick(queue);
            }
            for queue in 0..QUEUES {
                let done = client.wait(queue, EACH);
                assert!(done.iter().all(|(_, result)| *result == expected));
                assert_eq!(done.len(), EACH);
            }
        }
        for page in 0..QUEUES * EACH {
            let bytes = &client.data[page * 4096..(page + 1) * 4096];
            assert!(bytes.iter().all(|b| *b == round ^ page as u8), "page {page} in round {round}");
        }
    }
}

#[test]
fn one_front_end_after_the_other() {
    let served = Served::start(Settings::new("disk"));
    for round in 0..5u8 {
        let mut client = Client::connect(&served.socket, 2, VirtioFeatureFlags::RING_EVENT_IDX);
        assert_eq!(client.one(|q, data| q.read(0, &mut data[..512], 0).unwrap()), 0);
        assert_eq!(client.data[0], round);
        client.data[..512].fill(round + 1);
        assert_eq!(client.one(|q, data| q.write(0, &data[..512], 0).unwrap()), 0);
        // The client leaves with requests in flight.
        for _ in 0..10 {
            let Client { queues, data, .. } = &mut client;
            queues[1].read(4096, &mut data[4096..8192], 0).unwrap();
        }
        client.kick(1);
    }
}

/// A descriptor of the first connection in another process, perhaps a hypervisor's child, keeps the connection open for
/// ever.
#[test]
fn a_process_that_connects_anew_is_not_kept_out_by_its_own_connection() {
    let served = Served::start(Settings::new("disk"));
    let first = UnixStream::connect(&served.socket).unwrap();
    let held = first.try_clone().unwrap();
    let front_end = Frontend::from_stream(first, 1);
    front_end.set_owner().unwrap();
    assert_ne!(front_end.get_features().unwrap(), 0);
    drop(front_end);
    let mut client = Client::connect(&served.socket, 1, VirtioFeatureFlags::empty());
    assert_eq!(client.one(|q, _| q.flush(0).unwrap()), 0);
    // The first one is told.
    held.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!((&held).read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_read_only_export_refuses_writes() {
    let served = Served::start(Settings { read_only: true, ..Settings::new("disk") });
    let mut client = Client::connect(&served.socket, 1, VirtioFeatureFlags::empty());
    assert!(client.one(|q, data| q.write(0, &data[..512], 0).unwrap()) < 0);
    assert_eq!(client.one(|q, data| q.read(0, &mut data[..512], 0).unwrap()), 0);
}

#[test]
fn a_stopped_server_hangs_up_and_leaves_no_socket() {
    let mut served = Served::start(Settings::new("disk"));
    let mut client = Client::connect(&served.socket, 1, VirtioFeatureFlags::empty());
    assert_eq!(client.one(|q, _| q.flush(0).unwrap()), 0);
    let begin = Instant::now();
    served.stop();
    assert!(begin.elapsed() < PATIENCE);
    assert!(!served.socket.exists());
    assert!(client.transport.get_config().is_err());
}

/// Sends bytes to the control socket; true if the server hung up without an answer.
fn is_sent_away(socket: &Path, bytes: &[u8]) -> bool {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // A server that closes with unread bytes resets the connection.
    let _ = stream.read_to_end(&mut answer);
    answer.is_empty()
}

#[test]
fn a_hostile_front_end_loses_its_connection_and_nothing_else() {
    let served = Served::start(Settings::new("disk"));
    let state = |index: u32, num: u32| [index.to_ne_bytes(), num.to_ne_bytes()].concat();
    let cases = [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        vec![1],
        message(999, 1, &[]),
        message(5, 1, &[0; 8]),
        message(5, 1, &[0xff; 200]),
        message(8, 1, &state(64, 128)),
        message(8, 1, &state(0, 100)),
        message(8, 1, &state(0, 1 << 16)),
        message(9, 1, &[0xff; 40]),
        message(10, 1, &state(0, 1 << 16)),
        message(11, 1, &state(u32::MAX, 0)),
        message(12, 1, &0u64.to_ne_bytes()),
        message(12, 1, &0x100u64.to_ne_bytes()),
        message(2, 1, &u64::MAX.to_ne_bytes()),
        message(21, 1, &[]),
        message(21, 1, &[0; 16]),
        message(31, 1, &[0; 24]),
        message(32, 1, &[0; 24]),
        message(37, 1, &[0; 40]),
        message(6, 1, &[0xff; 16]),
        message(24, 1, &[0xff; 12]),
        message(25, 1, &[0; 13]),
    ];
    for bytes in &cases {
        assert!(is_sent_away(&served.socket, bytes), "{bytes:?}");
    }
    let mut client = Client::connect(&served.socket, 1, VirtioFeatureFlags::empty());
    assert_eq!(client.one(|q, _| q.flush(0).unwrap()), 0);
}

/// A disk that grows.
struct Growing(std::cell::Cell<u64>);

impl lamina_block::Layer for Growing {
    fn geometry(&self) -> lamina_block::Geometry {
        lamina_block::Geometry::new(self.0.get())
    }

    fn submit(self: Rc<Self>, _: &mut lamina_block::Io) -> lamina_block::Step {
        lamina_block::Step::Done(Ok(()))
    }

    fn passthrough(&self) -> lamina_block::Passthrough {
        lamina_block::Passthrough::None
    }
}

impl lamina_block::Manage for Growing {}

/// Connects as a front-end that can be told of changes, by the channel `sent`.
fn front_end(path: &Path, sent: &UnixStream) -> Frontend {
    let mut front_end = Frontend::connect(path, 1).unwrap();
    front_end.set_owner().unwrap();
    front_end.set_features(front_end.get_features().unwrap()).unwrap();
    let protocol = front_end.get_protocol_features().unwrap();
    front_end.set_protocol_features(protocol).unwrap();
    front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    front_end.set_backend_request_fd(sent).unwrap();
    front_end
}

fn expect_change(heard: &mut UnixStream) {
    heard.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut message = [0; 12];
    heard.read_exact(&mut message).unwrap();
    assert_eq!(message[..4], u32::from(BackendReq::CONFIG_CHANGE_MSG).to_ne_bytes());
}

/// The disk may have grown in a change that ended with the server's process. The front-end comes back with the size it
/// knows, and starts its queues.
#[test]
fn a_front_end_that_comes_back_looks_at_the_size_again() {
    let served = Served::start(Settings::new("disk"));
    let (mut heard, sent) = UnixStream::pair().unwrap();
    let mut front_end = front_end(&served.socket, &sent);
    let memory: File = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
    memory.set_len(1 << 16).unwrap();
    share(&mut front_end, &memory).unwrap();
    front_end.set_vring_num(0, 64).unwrap();
    front_end.set_vring_addr(0, &rings()).unwrap();
    front_end.set_vring_base(0, 0).unwrap();
    front_end.set_vring_kick(0, &vmm_sys_util::eventfd::EventFd::new(0).unwrap()).unwrap();
    front_end.set_vring_enable(0, true).unwrap();
    expect_change(&mut heard);
}

#[test]
fn the_front_end_hears_of_a_new_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.sock");
    let reactor = Reactor::new(Options::default()).unwrap();
    let host = reactor.env();
    let layer = Rc::new(Growing(std::cell::Cell::new(SIZE)));
    let node = Node::new("disk", "growing", host.clone(), layer.clone());
    let server = Server::start(&host, &path, Rc::clone(&node), Settings::new("disk"), Rc::default()).unwrap();
    let (mut heard, sent) = UnixStream::pair().unwrap();
    let (connected, is_connected) = futures_channel::oneshot::channel();
    let (grown, has_grown) = channel();
    let (done, is_done) = futures_channel::oneshot::channel();
    let front_end = std::thread::spawn(move || {
        let mut front_end = front_end(&path, &sent);
        let mut capacity = || {
            let (_, bytes) = front_end.get_config(0, 8, VhostUserConfigFlags::WRITABLE, &[0; 8]).unwrap();
            u64::from_le_bytes(bytes.try_into().unwrap()) * 512
        };
        assert_eq!(capacity(), SIZE);
        connected.send(()).unwrap();
        has_grown.recv_timeout(PATIENCE).unwrap();
        expect_change(&mut heard);
        assert_eq!(capacity(), 2 * SIZE);
        done.send(()).unwrap();
    });
    reactor.run(async {
        is_connected.await.unwrap();
        layer.0.set(2 * SIZE);
        node.refresh();
        grown.send(()).unwrap();
        is_done.await.unwrap();
        server.stop().await;
    });
    front_end.join().unwrap();
}

/// A kick that others read as well, and a queue that is stopped again and again: the server's own signals do not go
/// through eventfds of the front-end.
#[test]
fn a_queue_ends_though_others_read_its_kick() {
    let served = Served::start(Settings::new("disk"));
    let (_heard, sent) = UnixStream::pair().unwrap();
    let mut front_end = front_end(&served.socket, &sent);
    let memory: File = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
    memory.set_len(1 << 16).unwrap();
    share(&mut front_end, &memory).unwrap();
    let kick = vmm_sys_util::eventfd::EventFd::new(0).unwrap();
    let (stolen, ended) =
        (kick.try_clone().unwrap(), std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let thief = {
        let ended = ended.clone();
        std::thread::spawn(move || {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                stolen.read().unwrap();
            }
        })
    };
    for _ in 0..50 {
        front_end.set_vring_num(0, 64).unwrap();
        front_end.set_vring_addr(0, &rings()).unwrap();
        front_end.set_vring_base(0, 0).unwrap();
        front_end.set_vring_kick(0, &kick).unwrap();
        front_end.set_vring_enable(0, true).unwrap();
        assert_eq!(front_end.get_vring_base(0).unwrap(), 0);
    }
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    kick.write(1).unwrap();
    thief.join().unwrap();
}

fn share(front_end: &mut Frontend, memory: &File) -> vhost::Result<()> {
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0x10_0000,
        memory_size: 1 << 16,
        userspace_addr: 0x10_0000,
        mmap_offset: 0,
        mmap_handle: memory.as_raw_fd(),
    };
    front_end.set_mem_table(&[region]).map(drop)
}

fn rings() -> VringConfigData {
    VringConfigData {
        queue_max_size: 64,
        queue_size: 64,
        flags: 0,
        desc_table_addr: 0x10_0000,
        used_ring_addr: 0x10_3000,
        avail_ring_addr: 0x10_2000,
        log_addr: None,
    }
}

/// A TCP socket with unsent data whose close takes `seconds`, and its peer.
fn lingering(seconds: u16) -> (std::net::TcpStream, std::net::TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    sender.set_nonblocking(true).unwrap();
    while (&sender).write(&[0; 65536]).is_ok() {}
    sender.set_nonblocking(false).unwrap();
    let time = Some(Duration::from_secs(seconds.into()));
    rustix::net::sockopt::set_socket_linger(&sender, time).unwrap();
    (sender, peer)
}

/// A message of a front-end.
fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
    [&header[..], body].concat()
}

/// All descriptors from the front-end are closed in time: not on the reactor, and the server's stop does not wait for
/// that.
#[test]
fn a_descriptor_that_is_slow_to_close_holds_up_nobody() {
    let long = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_ne_bytes()).collect::<Vec<u8>>();
    for (what, request, body) in [
        ("memory", 5, long(&[1, 0x10_0000, 1 << 16, 0x10_0000, 0])),
        ("more memory", 37, long(&[0, 0x10_0000, 1 << 16, 0x10_0000, 0])),
        ("a kick", 12, long(&[0])),
        ("an interrupt", 13, long(&[0])),
        ("an error", 14, long(&[0])),
        ("a channel", 21, Vec::new()),
        ("a migration's log", 6, long(&[4096, 0])),
        ("an in-flight region", 32, long(&[4096, 0, 64 << 16 | 1])),
    ] {
        let mut served = Served::start(Settings::new("disk"));
        // While another front-end is in the middle of a message this is not read: the server closes last.
        let mut before = UnixStream::connect(&served.socket).unwrap();
        before.write_all(&message(1, 1, &[])).unwrap();
        before.read_exact(&mut [0; 20]).unwrap();
        before.write_all(&message(2, 1, &[0; 8])[..12]).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let mut stream = UnixStream::connect(&served.socket).unwrap();
        let features = long(&[VirtioFeatureFlags::VERSION_1.bits() | 1 << 30 | 1 << 26]);
        // Every feature of the protocol: the server takes those it knows.
        let all = long(&[u64::MAX]);
        let begin = [message(1, 1, &[]), message(2, 1, &features), message(15, 1, &[]), message(16, 1, &all)]
            .concat();
        stream.write_all(&begin).unwrap();
        let (slow, _peer) = lingering(30);
        send_with(&stream, &message(request, 1, &body), slow);
        drop(before);
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        served.stop();
        assert!(begin.elapsed() < Duration::from_secs(5), "{what}: {:?}", begin.elapsed());
    }
}

/// Sends a message with a descriptor, which is closed here.
fn send_with(stream: &UnixStream, message: &[u8], descriptor: impl AsFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let sent = sendmsg(stream, &[IoSlice::new(message)], &mut ancillary, SendFlags::empty());
    assert_eq!(sent.unwrap(), message.len());
}

#[test]
fn a_file_on_a_disk_is_no_guest_memory_unless_the_export_says_so() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let file =
        File::options().create(true).truncate(true).read(true).write(true).open(folder.path().join("m"));
    let file = file.unwrap();
    file.set_len(1 << 16).unwrap();
    for any_memory in [false, true] {
        let served = Served::start(Settings { any_memory, ..Settings::new("disk") });
        let (_heard, sent) = UnixStream::pair().unwrap();
        let mut front_end = front_end(&served.socket, &sent);
        assert_eq!(share(&mut front_end, &file).is_ok(), any_memory);
    }
}
