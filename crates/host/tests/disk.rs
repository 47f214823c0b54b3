//! Files and block devices through the reactor, under a node as in a hierarchy.

use lamina_block::{
    Buf, Command, Durability, Env, ErrorKind, Extent, ExtentState, Io, Node, OpenDisk, Zero, all,
};
use lamina_host::{Host, Options, Reactor};
use serde_json::json;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::ptr::NonNull;
use std::rc::Rc;

const KIB: u64 = 1024;
const SIZE: u64 = 1 << 20;

fn reactor() -> Reactor {
    Reactor::new(Options::default()).unwrap()
}

fn disk(path: &Path) -> OpenDisk {
    OpenDisk { path: path.into(), read_only: false, direct: false, create: None, block: None }
}

async fn open(host: &Rc<Host>, open: OpenDisk) -> lamina_block::Result<Rc<Node>> {
    let layer = host.open_disk(open).await?;
    Ok(Node::new("disk", "file", Rc::clone(host) as Rc<dyn Env>, layer))
}

async fn refusal(host: &Rc<Host>, how: OpenDisk) -> lamina_block::Error {
    open(host, how).await.err().expect("it is refused")
}

/// A folder on the file system of temporary files, and one in memory.
fn folders() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")].map(Result::unwrap)
}

/// Folders for files, and whether these are read and written without the page cache.
fn kinds() -> [(tempfile::TempDir, bool); 3] {
    let ([disk, memory], direct) = (folders(), tempfile::tempdir().unwrap());
    [(disk, false), (direct, true), (memory, false)]
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

async fn write(node: &Rc<Node>, at: u64, bytes: Vec<u8>, durability: Durability) {
    node.submit(Io::write(at, Buf::from_vec(bytes), durability)).await.unwrap();
}

async fn read(node: &Rc<Node>, at: u64, len: usize) -> Vec<u8> {
    let into = Buf::from_vec(vec![0xee; len]);
    node.submit(Io::read(at, into.clone())).await.unwrap();
    into.to_vec()
}

/// The behaviour of every disk, wherever it lies.
async fn does_everything(host: &Rc<Host>, node: &Rc<Node>, direct: bool) {
    let g = node.geometry();
    let block = u64::from(g.block);
    // Memory that no device takes as it is: odd addresses, odd segments.
    let odd = |bytes: &[u8]| {
        let mut buf = Buf::empty();
        for part in bytes.chunks(1023) {
            let piece = host.pool().take(part.len() + 1).slice(1..part.len() + 1);
            piece.write(0, part);
            buf.append(piece);
        }
        buf
    };
    let bytes = pattern(128 * KIB as usize, 1);
    for (at, durability) in [(0, Durability::Cached), (128 * KIB, Durability::Fua)] {
        let from = host.pool().take(bytes.len());
        from.write(0, &bytes);
        node.submit(Io::write(at, from, durability)).await.unwrap();
    }
    node.submit(Io::write(256 * KIB, odd(&bytes), Durability::Fua)).await.unwrap();
    node.submit(Io::flush()).await.unwrap();
    for at in [0, 128 * KIB, 256 * KIB] {
        assert!(read(node, at, bytes.len()).await == bytes, "at {at}");
        let into = odd(&vec![0; bytes.len()]);
        node.submit(Io::read(at, into.clone())).await.unwrap();
        assert!(into.to_vec() == bytes, "at {at}");
    }
    // The last block, alone; and more than one bounce.
    write(node, g.size - block, pattern(block as usize, 2), Durability::Cached).await;
    assert_eq!(read(node, g.size - block, block as usize).await, pattern(block as usize, 2));
    let whole = pattern(g.size as usize, 3);
    node.submit(Io::write(0, odd(&whole), Durability::Cached)).await.unwrap();
    assert!(read(node, 0, g.size as usize).await == whole);

    let part = 4 * KIB..20 * KIB;
    for how in [
        Zero::default(),
        Zero { unmap: true, ..Zero::default() },
        Zero { unmap: true, durability: Durability::Fua, fast: false },
    ] {
        write(node, part.start, vec![7; 16 * KIB as usize], Durability::Cached).await;
        node.submit(Io::zero(part.clone(), how)).await.unwrap();
        assert_eq!(read(node, part.start, 16 * KIB as usize).await, vec![0; 16 * KIB as usize], "{how:?}");
    }
    write(node, 0, vec![9; 16 * KIB as usize], Durability::Cached).await;
    node.submit(Io::discard(0..16 * KIB)).await.unwrap();
    for bytes in read(node, 0, 16 * KIB as usize).await.chunks(block as usize) {
        assert!(bytes.iter().all(|b| *b == 9) || bytes.iter().all(|b| *b == 0));
    }
    node.submit(Io::flush()).await.unwrap();
    assert_eq!(node.info()["direct"], direct);
    many_at_once(node).await;
}

/// More requests in flight than the queue has places, each to its own place.
async fn many_at_once(node: &Rc<Node>) {
    let blocks = (node.geometry().size / 4096) as usize;
    let bytes = |i: usize| pattern(4096, i as u8);
    let mut requests: Vec<_> = (0..blocks)
        .map(|i| node.submit(Io::write(i as u64 * 4096, Buf::from_vec(bytes(i)), Durability::Cached)))
        .collect();
    all(requests.drain(..)).await.unwrap();
    let into: Vec<_> = (0..blocks).map(|_| Buf::zeroed(4096)).collect();
    all(into.iter().enumerate().map(|(i, buf)| node.submit(Io::read(i as u64 * 4096, buf.clone()))))
        .await
        .unwrap();
    for (i, buf) in into.iter().enumerate() {
        assert!(buf.to_vec() == bytes(i), "block {i}");
    }
}

#[test]
fn a_file_does_everything_cached_and_direct() {
    let reactor = Reactor::new(Options { entries: 16, ..Options::default() }).unwrap();
    let host = reactor.env();
    for (folder, direct) in kinds() {
        let path = folder.path().join("disk");
        let how = OpenDisk { direct, create: Some(3 * SIZE), ..disk(&path) };
        reactor.run(async {
            let node = open(&host, how).await.unwrap();
            assert_eq!(node.geometry().size, 3 * SIZE);
            assert!(node.geometry().fua && node.geometry().discard);
            does_everything(&host, &node, direct).await;
            let seen = read(&node, 0, SIZE as usize).await;
            node.close().await.unwrap();
            let mut there = vec![0; SIZE as usize];
            std::fs::File::open(&path).unwrap().read_exact_at(&mut there, 0).unwrap();
            assert!(seen == there);
            let late = node.submit(Io::flush()).await.unwrap_err();
            assert_eq!(late.kind(), ErrorKind::Offline);
        });
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * SIZE);
    }
}

#[test]
fn holes_and_data_are_told_apart() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse");
    reactor.run(async {
        let node = open(&host, OpenDisk { create: Some(SIZE), ..disk(&path) }).await.unwrap();
        let hole = |len| Extent { len, state: ExtentState::Hole };
        let data = |len| Extent { len, state: ExtentState::Data };
        assert_eq!(node.extents(0..SIZE).await.unwrap(), [hole(SIZE)]);
        write(&node, 256 * KIB, vec![1; 128 * KIB as usize], Durability::Fua).await;
        let all = [hole(256 * KIB), data(128 * KIB), hole(640 * KIB)];
        assert_eq!(node.extents(0..SIZE).await.unwrap(), all);
        assert_eq!(node.extents(300 * KIB..512 * KIB).await.unwrap(), [data(84 * KIB), hole(128 * KIB)]);
        node.submit(Io::discard(256 * KIB..320 * KIB)).await.unwrap();
        let all = [hole(320 * KIB), data(64 * KIB), hole(640 * KIB)];
        assert_eq!(node.extents(0..SIZE).await.unwrap(), all);
        assert_eq!(node.extents(SIZE..SIZE).await.unwrap(), []);
    });
}

#[test]
fn one_writer_or_many_readers() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let reading = || OpenDisk { read_only: true, ..disk(&path) };
    reactor.run(async {
        let writer = open(&host, OpenDisk { create: Some(SIZE), ..disk(&path) }).await.unwrap();
        for how in [disk(&path), reading()] {
            let refused = refusal(&host, how).await;
            assert!(refused.message().contains("is in use"), "{refused}");
            assert!(refused.message().contains(path.to_str().unwrap()), "{refused}");
        }
        writer.close().await.unwrap();
        let first = open(&host, reading()).await.unwrap();
        let second = open(&host, reading()).await.unwrap();
        assert!(refusal(&host, disk(&path)).await.message().contains("read-only = true"));
        let refused = first.submit(Io::write(0, Buf::zeroed(512), Durability::Cached)).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        assert_eq!(read(&second, 0, 512).await, [0; 512]);
    });
}

#[test]
fn creating_never_changes_what_is_there() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("there");
    std::fs::write(&path, vec![5; 8192]).unwrap();
    reactor.run(async {
        let node = open(&host, OpenDisk { create: Some(SIZE), ..disk(&path) }).await.unwrap();
        assert_eq!(node.geometry().size, 8192);
        assert_eq!(read(&node, 4096, 512).await, [5; 512]);
    });
}

#[test]
fn disks_that_cannot_be_are_refused_with_the_way_out() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let odd = folder.path().join("odd");
    std::fs::write(&odd, vec![5; 1000]).unwrap();
    let even = folder.path().join("even");
    std::fs::write(&even, vec![5; 1024]).unwrap();
    let cases = [
        (disk(&missing), "the key size = "),
        (OpenDisk { read_only: true, create: Some(SIZE), ..disk(&missing) }, "cannot be opened"),
        (OpenDisk { create: Some(1000), ..disk(&missing) }, "no multiple of its block of 512"),
        (OpenDisk { create: Some(SIZE), ..disk(Path::new("/nowhere/at/all")) }, "cannot be created"),
        (disk(&odd), "make it 1024 bytes"),
        (OpenDisk { block: Some(4096), ..disk(&even) }, "make it 4096 bytes"),
        (OpenDisk { block: Some(1000), ..disk(&even) }, "power of two"),
        (OpenDisk { block: Some(256), ..disk(&even) }, "power of two"),
        (disk(folder.path()), "neither a file nor a block device"),
        (disk(Path::new("/dev/null")), "neither a file nor a block device"),
    ];
    for (how, says) in cases {
        let refused = reactor.run(refusal(&host, how));
        assert!(refused.message().contains(says), "{refused}, not {says:?}");
        assert!(!missing.exists());
    }
}

/// Memory at every offset that a header before the data can cause, and data cut at every place.
#[test]
fn memory_of_any_alignment_is_taken_directly_or_copied() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("direct");
    reactor.run(async {
        let node = open(&host, OpenDisk { direct: true, create: Some(SIZE), ..disk(&path) }).await.unwrap();
        let bytes = pattern(8192, 1);
        for (turn, offset) in [0, 1, 2, 4, 8, 28, 256, 511, 512, 4095].into_iter().enumerate() {
            let at = turn as u64 * 8192;
            let memory = host.pool().take(8192 + offset).slice(offset..8192 + offset);
            memory.write(0, &bytes);
            let mut cut = memory.slice(0..offset);
            cut.append(memory.slice(offset..8192));
            node.submit(Io::write(at, cut, Durability::Cached)).await.unwrap();
            assert!(read(&node, at, 8192).await == bytes, "{offset}");
            memory.fill(0);
            node.submit(Io::read(at, memory.clone())).await.unwrap();
            assert!(memory.to_vec() == bytes, "{offset}");
        }
    });
}

fn cut(path: &Path, size: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(size).unwrap();
}

/// A file of ones that is open, and that another program cuts short.
async fn cut_short(host: &Rc<Host>, path: &Path, size: u64) -> Rc<Node> {
    std::fs::write(path, vec![1; SIZE as usize]).unwrap();
    let node = open(host, disk(path)).await.unwrap();
    node.submit(Io::flush()).await.unwrap();
    cut(path, size);
    node
}

/// Nothing is asked of it any more, whatever its size is now.
async fn is_lost(node: &Rc<Node>, path: &Path) {
    let first = node.submit(Io::read(0, Buf::zeroed(4096))).await.unwrap_err();
    assert!(first.message().contains("was cut short"), "{first}");
    cut(path, SIZE);
    for io in [
        Io::read(0, Buf::zeroed(4096)),
        Io::write(0, Buf::zeroed(4096), Durability::Cached),
        Io::zero(0..4096, Zero::default()),
        Io::discard(0..4096),
        Io::flush(),
    ] {
        assert_eq!(node.submit(io).await.unwrap_err().kind(), ErrorKind::Truncated);
    }
    assert_eq!(node.extents(0..SIZE).await.unwrap_err().kind(), ErrorKind::Truncated);
    let resize = Command { name: "resize".into(), args: json!({}) };
    assert_eq!(node.control(resize).await.unwrap_err().kind(), ErrorKind::Truncated);
    let again = node.submit(Io::read(0, Buf::zeroed(4096))).await.unwrap_err();
    assert_eq!(again.message(), first.message());
}

#[test]
fn a_file_that_others_cut_short_is_lost_whatever_notices_it() {
    let reactor = reactor();
    let host = reactor.env();
    let folders = folders();
    let ones = |len: u64| Buf::from_vec(vec![1; len as usize]);
    let requests: [fn(Buf) -> Io; 6] = [
        // Behind the cut; the second one meets it on the way.
        |buf| Io::read(SIZE / 2, buf),
        |buf| Io::read(SIZE / 2 - 6000 / 512 * 512, buf),
        // These make the file longer again: the last one as long as it was.
        |buf| Io::write(SIZE / 2 + 65536, buf, Durability::Cached),
        |buf| Io::write(SIZE / 2 + 65536, buf, Durability::Fua),
        |buf| Io::write(SIZE - buf.len() as u64, buf, Durability::Cached),
        // Nothing at the cut.
        |_| Io::flush(),
    ];
    let cases = requests.into_iter().enumerate();
    for ((number, request), folder) in cases.flat_map(|case| folders.each_ref().map(|folder| (case, folder)))
    {
        let path = folder.path().join(format!("cut-{number}"));
        reactor.run(async {
            let node = cut_short(&host, &path, SIZE / 2).await;
            let failed = node.submit(request(ones(8192))).await.unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Truncated, "request {number}: {failed}");
            is_lost(&node, &path).await;
            assert_eq!(node.close().await.unwrap_err().kind(), ErrorKind::Truncated);
            // Opened anew the disk has its present size.
            let node = open(&host, disk(&path)).await.unwrap();
            assert!(read(&node, 0, SIZE as usize / 2 - 8192).await.iter().all(|byte| *byte == 1));
        });
    }
}

#[test]
fn what_was_behind_a_cut_is_no_hole() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    reactor.run(async {
        let node = cut_short(&host, &path, SIZE / 2).await;
        assert_eq!(node.extents(0..SIZE).await.unwrap_err().kind(), ErrorKind::Truncated);
        is_lost(&node, &path).await;
    });
}

/// Writers and readers beside each other while the file is cut: a read has ones, or fails.
#[test]
fn no_read_finds_the_hole_that_a_write_makes() {
    let reactor = reactor();
    let host = reactor.env();
    let folders = folders();
    for turn in 0..40 {
        let path = folders[turn % 2].path().join(format!("cut-{turn}"));
        reactor.run(async {
            let node = cut_short(&host, &path, SIZE / 2).await;
            let write = node.submit(Io::write(SIZE - 8192, Buf::from_vec(vec![1; 4096]), Durability::Cached));
            let reads: Vec<_> = (0..16)
                .map(|n| {
                    let into = Buf::zeroed(4096);
                    (node.submit(Io::read(SIZE / 2 + n * 4096, into.clone())), into)
                })
                .collect();
            for (read, into) in reads {
                assert!(read.await.is_err() || into.to_vec().iter().all(|byte| *byte == 1), "zeroes");
            }
            assert_eq!(write.await.unwrap_err().kind(), ErrorKind::Truncated);
        });
    }
}

#[test]
fn a_file_grows_and_shrinks_only_by_force() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let resize = |args| Command { name: "resize".into(), args };
    reactor.run(async {
        let node = open(&host, OpenDisk { create: Some(SIZE), ..disk(&path) }).await.unwrap();
        let answer = node.control(resize(json!({ "size": "2MiB" }))).await.unwrap();
        assert_eq!((answer, node.geometry().size), (json!({ "size": 2 * SIZE }), 2 * SIZE));
        write(&node, 2 * SIZE - 512, vec![1; 512], Durability::Cached).await;
        for args in [
            json!({ "size": "1MiB" }),
            json!({ "size": 2 * SIZE + 1 }),
            json!({ "size": "big" }),
            json!({ "seize": "3MiB" }),
        ] {
            assert_eq!(node.control(resize(args)).await.unwrap_err().kind(), ErrorKind::Invalid);
            assert_eq!(node.geometry().size, 2 * SIZE);
        }
        node.control(resize(json!({ "size": "1MiB", "force": true }))).await.unwrap();
        assert_eq!(node.geometry().size, SIZE);
        // That was no cut.
        write(&node, SIZE - 512, vec![1; 512], Durability::Fua).await;
        assert_eq!(read(&node, SIZE - 512, 512).await, [1; 512]);
        // Another process made it larger.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3 * SIZE).unwrap();
        node.control(resize(json!({}))).await.unwrap();
        assert_eq!(node.geometry().size, 3 * SIZE);
        // And smaller again.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
        let refused = node.control(resize(json!({}))).await.unwrap_err();
        assert!(refused.message().contains("give the file its size back"), "{refused}");
        assert_eq!(node.geometry().size, 3 * SIZE);
        assert!(node.effect(&resize(json!({}))).loses.is_none());
        assert!(node.effect(&resize(json!({ "force": true }))).loses.is_some());
        node.control(resize(json!({ "force": true }))).await.unwrap();
        assert_eq!(node.geometry().size, SIZE);
        let unknown = Command { name: "explode".into(), args: json!({}) };
        assert_eq!(node.control(unknown).await.unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

/// Random requests, one after the other, against a plain copy in memory.
#[test]
fn random_requests_match_a_plain_copy() {
    let reactor = reactor();
    let host = reactor.env();
    for (folder, direct) in kinds() {
        let path = folder.path().join("disk");
        let how = OpenDisk { direct, create: Some(SIZE), block: Some(4096), ..disk(&path) };
        reactor.run(async {
            let node = open(&host, how).await.unwrap();
            let mut plain = vec![0u8; SIZE as usize];
            let mut draw = fastrand::Rng::with_seed(7);
            for turn in 0..400 {
                let (a, b) = (draw.u64(0..=256), draw.u64(0..=256));
                let at = a.min(b) * 4096..a.max(b) * 4096;
                let range = at.start as usize..at.end as usize;
                match draw.u8(0..4) {
                    0 => {
                        let got = read(&node, at.start, range.len()).await;
                        assert!(got == plain[range], "request {turn} at {at:?}");
                    }
                    1 | 2 => {
                        let bytes = pattern(range.len(), turn as u8);
                        plain[range].copy_from_slice(&bytes);
                        let fua = if draw.bool() { Durability::Fua } else { Durability::Cached };
                        write(&node, at.start, bytes, fua).await;
                    }
                    _ => {
                        plain[range].fill(0);
                        let how = Zero { unmap: draw.bool(), ..Zero::default() };
                        node.submit(Io::zero(at, how)).await.unwrap();
                    }
                }
            }
            assert!(read(&node, 0, SIZE as usize).await == plain);
        });
    }
}

/// A file system in memory of one size, unmounted when dropped.
struct Small(tempfile::TempDir);

impl Small {
    /// `None` where this process may not mount.
    fn mount(bytes: u64) -> Option<Small> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={bytes}");
        let mut mount = Process::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path());
        mount.status().is_ok_and(|s| s.success()).then(|| Small(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Process::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn data_lost_in_a_flush_is_not_forgotten() {
    let Some(small) = Small::mount(SIZE) else {
        eprintln!("skipped: no mounts here");
        return;
    };
    let file = small.0.path().join("below");
    std::fs::File::create(&file).unwrap().set_len(4 * SIZE).unwrap();
    let reactor = reactor();
    let host = reactor.env();
    reactor.run(async {
        // The file system is full before the file is.
        let node = open(&host, disk(&file)).await.unwrap();
        let whole = Io::write(0, Buf::zeroed(4 * SIZE as usize), Durability::Cached);
        assert_eq!(node.submit(whole).await.unwrap_err().kind(), ErrorKind::NoSpace);
        node.close().await.unwrap();
    });
    let Some(device) = Loop::over(&file) else {
        eprintln!("skipped: no loop devices here");
        return;
    };
    reactor.run(async {
        // The page cache of the device takes data that the file below cannot.
        let node = open(&host, disk(&device.0)).await.unwrap();
        write(&node, 0, vec![1; 3 * SIZE as usize], Durability::Cached).await;
        let failed = node.submit(Io::flush()).await.unwrap_err();
        for again in [
            node.submit(Io::flush()).await,
            node.submit(Io::write(0, Buf::zeroed(512), Durability::Fua)).await,
        ] {
            let again = again.unwrap_err();
            assert!(again.message().contains("an earlier flush failed"), "{failed}, then {again}");
        }
        assert!(node.close().await.is_err());
    });
}

/// A loop device over a file, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where this machine gives none (no root, no loop devices).
    fn over(file: &Path) -> Option<Loop> {
        let made = Process::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Loop(path.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Process::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_does_everything_cached_and_direct() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("below");
    std::fs::write(&file, vec![0; 3 * SIZE as usize]).unwrap();
    let Some(device) = Loop::over(&file) else {
        eprintln!("skipped: no loop devices here");
        return;
    };
    let reactor = reactor();
    let host = reactor.env();
    for direct in [false, true] {
        reactor.run(async {
            let node = open(&host, OpenDisk { direct, ..disk(&device.0) }).await.unwrap();
            assert_eq!(node.geometry().size, 3 * SIZE);
            assert_eq!(node.info()["on"], "block device");
            assert!(node.geometry().discard);
            does_everything(&host, &node, direct).await;
            let refused = refusal(&host, disk(&device.0)).await;
            assert!(refused.message().contains("is in use"), "{refused}");
            let resize = Command { name: "resize".into(), args: json!({ "size": "9MiB" }) };
            assert_eq!(node.control(resize).await.unwrap_err().kind(), ErrorKind::Invalid);
            let data = Extent { len: 3 * SIZE, state: ExtentState::Data };
            assert_eq!(node.extents(0..3 * SIZE).await.unwrap(), [data]);
            node.close().await.unwrap();
        });
    }
}

#[test]
fn a_file_has_no_zones() {
    let reactor = reactor();
    let host = reactor.env();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    for says in ["disk cannot be opened", "disk: this is no zoned block device"] {
        let refused = reactor.run(host.open_zoned(path.clone())).err().expect("it is refused");
        // Its kind has no keys that could be advised.
        assert!(refused.message().contains(says) && !refused.message().contains(" = "), "{refused}");
        std::fs::write(&path, [0; 8192]).unwrap();
    }
}

/// Memory of a file that its owner has cut to nothing, as a front-end may share it: the kernel cannot access it.
struct Gone(*mut std::ffi::c_void, usize);

impl Gone {
    fn memory(len: usize) -> Buf {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        assert!(start != libc::MAP_FAILED);
        file.set_len(0).unwrap();
        let memory = Rc::new(Gone(start, len));
        // SAFETY: mapped until its owner is dropped. Only the kernel touches it, and gets an error for missing pages.
        unsafe { Buf::from_raw(memory, NonNull::new(start.cast()).unwrap(), len) }
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        // SAFETY: mapped in `memory`, which is used no more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

#[test]
fn memory_that_is_gone_fails_its_request_alone() {
    let reactor = reactor();
    let host = reactor.env();
    let len = 64 * KIB as usize;
    for folder in folders() {
        let path = folder.path().join("disk");
        reactor.run(async {
            let node = open(&host, OpenDisk { create: Some(SIZE), ..disk(&path) }).await.unwrap();
            let bytes = pattern(SIZE as usize, 1);
            write(&node, 0, bytes.clone(), Durability::Cached).await;
            let beside = node.submit(Io::read(0, Buf::zeroed(len)));
            let from = node.submit(Io::write(0, Gone::memory(len), Durability::Cached));
            let fua = node.submit(Io::write(0, Gone::memory(len), Durability::Fua));
            let into = node.submit(Io::read(0, Gone::memory(len)));
            // The part in front is there.
            let mut half = Buf::from_vec(bytes[..len].to_vec());
            half.append(Gone::memory(len));
            let half = node.submit(Io::write(0, half, Durability::Cached));
            beside.await.unwrap();
            for request in [from, fua, into, half] {
                assert_eq!(request.await.unwrap_err().kind(), ErrorKind::BadMemory);
            }
            assert!(read(&node, 0, SIZE as usize).await == bytes);
            node.submit(Io::flush()).await.unwrap();
        });
    }
}
