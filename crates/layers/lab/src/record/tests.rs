use super::state::{Content, Entry, Journal};
use super::{Bytes, flag};
use crate::testing::*;
use lamina_sim::Presence;

pub fn subject() -> Subject {
    Subject::layer(
        &Kind::of::<super::Keys>(),
        json!({ "log": "log", "log-size": "64MiB", "buffer": "64KiB" }),
        1,
    )
}

/// A reader of the log that shares nothing with the writer: offsets as `replay-log` has them.
struct Log<'a> {
    bytes: &'a [u8],
    sector: usize,
    entries: u64,
}

impl Log<'_> {
    fn open(bytes: &[u8]) -> Log<'_> {
        assert_eq!(u64_at(bytes, 0), 0x6a736677736872, "magic");
        assert_eq!(u64_at(bytes, 8), 1, "version");
        let sector = u32::from_le_bytes(bytes[24..28].try_into().unwrap()) as usize;
        Log { bytes, sector, entries: u64_at(bytes, 16) }
    }

    /// The head of each entry (sector, sectors, flags, length of the name), and where the head is.
    fn heads(&self) -> Vec<([u64; 4], usize)> {
        let mut heads = Vec::new();
        let mut at = self.sector;
        for _ in 0..self.entries {
            let head = [0, 8, 16, 24].map(|field| u64_at(self.bytes, at + field));
            heads.push((head, at));
            at += self.sector;
            if head[2] & 4 == 0 {
                at += head[1] as usize * self.sector;
            }
        }
        heads
    }

    /// A device of `size` bytes after the first `entries`.
    fn replay(&self, entries: usize, size: usize) -> Vec<u8> {
        let mut device = vec![0; size];
        for ([sector, sectors, flags, _], at) in self.heads().into_iter().take(entries) {
            let (start, len) = (sector as usize * self.sector, sectors as usize * self.sector);
            if flags & 4 != 0 {
                device[start..start + len].fill(0);
            } else {
                device[start..start + len].copy_from_slice(&self.bytes[at + self.sector..][..len]);
            }
        }
        device
    }

    /// The log in words, one entry each.
    fn lines(&self) -> Vec<String> {
        let word = |([sector, sectors, flags, name], at): ([u64; 4], usize)| match flags {
            8 => String::from_utf8(self.bytes[at + 32..at + 32 + name as usize].to_vec()).unwrap(),
            1 => "flush".into(),
            _ => format!("{flags}:{sector}+{sectors}"),
        };
        self.heads().into_iter().map(word).collect()
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

const SIZE: usize = 1 << 20;

async fn recorded(world: &World, keys: Value) -> (Rc<Node>, Rc<Node>) {
    let below = world.memory("1MiB").await;
    let node = world.over("record", keys, &[&below]).await;
    (below, node)
}

fn keys() -> Value {
    json!({"log": "the.log", "log-size": "16MiB"})
}

async fn log_bytes(world: &World) -> Vec<u8> {
    let log = world.over("file", json!({"path": "the.log", "read-only": true}), &[]).await;
    bytes_of(&log).await
}

async fn bytes_of(node: &Rc<Node>) -> Vec<u8> {
    let into = Buf::zeroed(node.geometry().size as usize);
    node.submit(Io::read(0, into.clone())).await.unwrap();
    into.to_vec()
}

fn write_of(at: u64, value: u8, len: usize, durability: Durability) -> Io {
    Io::write(at, Buf::from_vec(vec![value; len]), durability)
}

async fn mark(node: &Rc<Node>, name: &str) -> Result<Value> {
    node.control(Command { name: "mark".into(), args: json!({ "name": name }) }).await
}

/// One of everything, in a fixed order. Closing adds a flush.
async fn one_of_each(node: &Rc<Node>) {
    node.submit(write_of(4096, 1, 1024, Durability::Cached)).await.unwrap();
    node.submit(write_of(0, 2, 512, Durability::Fua)).await.unwrap();
    node.submit(Io::discard(8192..12288)).await.unwrap();
    assert_eq!(mark(node, "half-way").await.unwrap(), json!({"entry": 1}));
    node.submit(Io::zero(4608..5632, Zero::default())).await.unwrap();
    node.submit(Io::flush()).await.unwrap();
    node.submit(write_of(1 << 19, 3, 512, Durability::Cached)).await.unwrap();
}

#[test]
fn the_format_is_what_it_was() {
    simulated(|world| async move {
        let (_, node) = recorded(&world, json!({"log": "the.log", "log-size": "8KiB"})).await;
        one_of_each(&node).await;
        node.close().await.unwrap();
        let log = log_bytes(&world).await;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/record-1.log");
        if std::env::var_os("LAMINA_GOLDEN").is_some() {
            std::fs::write(path, &log).unwrap();
        }
        assert_eq!(log, std::fs::read(path).unwrap());
        let expected = ["2:0+1", "half-way", "0:8+2", "4:16+8", "0:9+2", "flush", "0:1024+1", "flush"];
        assert_eq!(Log::open(&log).lines(), expected);
    });
}

#[test]
fn the_order_is_that_of_dm_log_writes() {
    // Its own example: Wa,Wb,Wc,Cc,Ca,FLUSH,FUAd,Cb,CFLUSH,CFUAd gives c,a,flush,fuad,b.
    let write =
        |sector: u64| Entry { at: sector * 512..(sector + 1) * 512, flags: 0, content: Content::Zeroes };
    let (a, b, c, d) = (write(1), write(2), write(3), Entry { flags: flag::FUA, ..write(4) });
    let mut journal = Journal::default();
    journal.completed(c);
    journal.completed(a);
    let covers = journal.flush_begins();
    journal.completed(b);
    journal.flushed(covers);
    journal.durable(d);
    journal.release_all();
    let sectors = |journal: &Journal| -> Vec<u64> {
        journal.batch(9).iter().map(|entry| entry.at.start / 512).collect()
    };
    assert_eq!(sectors(&journal), [3, 1, 0, 4, 2]);
    // A forced write over an older one takes it along, and what is older still.
    let mut journal = Journal::default();
    for sector in [5, 1, 2] {
        journal.completed(write(sector));
    }
    let covers = journal.flush_begins();
    journal.durable(write(1));
    assert_eq!(sectors(&journal), [5, 1, 1]);
    journal.flushed(covers);
    assert_eq!(sectors(&journal), [5, 1, 1, 2, 0]);
}

#[test]
fn the_whole_log_is_the_device_and_each_flush_is_what_was_flushed() {
    for seed in 1..20 {
        simulated(move |world| async move {
            let (below, node) = recorded(&world, json!({"log": "the.log", "buffer": "64KiB"})).await;
            let mut random = xorshift(seed);
            let mut flushed = vec![vec![0; SIZE]];
            for step in 0..200u32 {
                let at = random() % 64 * 512;
                let len = (1 + random() as usize % 40) * 512;
                let durability =
                    if random().is_multiple_of(4) { Durability::Fua } else { Durability::Cached };
                let range = at..at + len as u64;
                match random() % 8 {
                    0..=4 => node.submit(write_of(at, step as u8, len, durability)).await.unwrap(),
                    5 => node.submit(Io::zero(range, Zero { durability, ..Zero::default() })).await.unwrap(),
                    6 => node.submit(Io::discard(range)).await.unwrap(),
                    _ => {
                        node.submit(Io::flush()).await.unwrap();
                        flushed.push(bytes_of(&below).await);
                    }
                }
                assert!(node.info()["held"].as_u64().unwrap() <= 64 << 10);
            }
            flushed.push(bytes_of(&below).await);
            node.close().await.unwrap();
            let bytes = log_bytes_of(&world, &node).await;
            let log = Log::open(&bytes);
            let heads = log.heads();
            assert!(log.replay(heads.len(), SIZE) == bytes_of(&below).await, "seed {seed}");
            let flushes = heads.iter().enumerate().filter(|(_, (head, _))| head[2] & 1 != 0);
            for (number, (entry, _)) in flushes.enumerate() {
                let same = log.replay(entry + 1, SIZE) == flushed[number + 1];
                assert!(same, "seed {seed}, flush {number}");
            }
        });
    }
}

/// The used part of a log that is much larger.
async fn log_bytes_of(world: &World, node: &Rc<Node>) -> Vec<u8> {
    let log = world.over("file", json!({"path": "the.log", "read-only": true}), &[]).await;
    let into = Buf::zeroed(node.info()["log_used"].as_u64().unwrap() as usize);
    log.submit(Io::read(0, into.clone())).await.unwrap();
    into.to_vec()
}

#[test]
fn many_requests_at_once_are_all_logged() {
    simulated(|world| async move {
        let (below, node) = recorded(&world, json!({"log": "the.log", "buffer": "8KiB"})).await;
        let slow = world.over("delay", json!({"write": {"exponential": {"mean": "1ms"}}}), &[&below]).await;
        let node_slow = world.over("record", json!({"log": "slow.log", "buffer": "8KiB"}), &[&slow]).await;
        for target in [&node, &node_slow] {
            let requests = (0..200u64).map(|i| match i % 10 {
                9 => Io::flush(),
                _ => write_of(i * 4096, i as u8, 4096, Durability::Cached),
            });
            all(requests.map(|io| target.submit(io))).await.unwrap();
            target.close().await.unwrap();
            assert_eq!(target.info()["entries"], 201);
            assert_eq!(target.info()["held"], 0);
        }
        let bytes = log_bytes_of(&world, &node).await;
        assert!(Log::open(&bytes).replay(201, SIZE) == bytes_of(&below).await);
    });
}

#[test]
fn a_log_is_continued() {
    simulated(|world| async move {
        let (below, node) = recorded(&world, keys()).await;
        one_of_each(&node).await;
        node.close().await.unwrap();
        let again = world.over("record", keys(), &[&below]).await;
        assert_eq!(
            (&again.info()["entries"], &again.info()["log_used"]),
            (&json!(8), &node.info()["log_used"])
        );
        assert_eq!(mark(&again, "second").await.unwrap(), json!({"entry": 8}));
        again.submit(write_of(512, 9, 512, Durability::Fua)).await.unwrap();
        let bytes = log_bytes(&world).await;
        assert_eq!(Log::open(&bytes).lines()[8..], ["second", "2:1+1"]);
        assert!(Log::open(&bytes).replay(10, SIZE) == bytes_of(&below).await);
    });
}

#[test]
fn a_file_that_is_no_log_is_refused_and_left_alone() {
    simulated(|world| async move {
        let (below, node) = recorded(&world, keys()).await;
        one_of_each(&node).await;
        node.close().await.unwrap();
        let good = log_bytes(&world).await;
        let file = world.over("file", json!({"path": "the.log"}), &[]).await;
        for (offset, byte, says) in [
            (0usize, 0xFF, "something else than a log"),
            (8, 2, "version 2"),
            (25, 0x10, "sectors have 4096 bytes"),
            (17, 1, "entry 8 of the log is empty"),
            (512 + 8, 0xFF, "entry 1 of the log is empty"),
            (512 + 15, 0xFF, "entry 0 of the log is not all there"),
            (512 + 16, 0x80, "flags"),
        ] {
            let mut bytes = good.clone();
            bytes[offset] = byte;
            file.submit(Io::write(0, Buf::from_vec(bytes.clone()), Durability::Cached)).await.unwrap();
            let message = world.try_over("record", keys(), &[&below]).await.err().expect("refused");
            assert!(message.contains(says), "{message}");
            assert!(log_bytes(&world).await == bytes);
        }
    });
}

#[test]
fn any_bytes_are_a_log_or_refused() {
    simulated(|world| async move {
        let (below, node) = recorded(&world, json!({"log": "the.log", "log-size": "8KiB"})).await;
        one_of_each(&node).await;
        node.close().await.unwrap();
        let good = log_bytes(&world).await;
        let file = world.over("file", json!({"path": "the.log"}), &[]).await;
        let mut random = xorshift(11);
        for _ in 0..500 {
            let mut bytes = good.clone();
            for _ in 0..1 + random() % 4 {
                let position = random() as usize % (bytes.len() / 512) * 512 + random() as usize % 32;
                bytes[position] = random() as u8;
            }
            file.submit(Io::write(0, Buf::from_vec(bytes), Durability::Cached)).await.unwrap();
            if let Ok(node) = world.try_over("record", json!({"log": "the.log"}), &[&below]).await {
                assert!(node.info()["log_used"].as_u64().unwrap() <= 8192);
            }
        }
    });
}

#[test]
fn what_the_log_cannot_take_fails_and_is_logged_later() {
    simulated(|world| async move {
        let (below, node) = recorded(&world, keys()).await;
        node.submit(write_of(0, 1, 512, Durability::Cached)).await.unwrap();
        let log = world.sim.disk("/the.log").unwrap();
        log.set_presence(Presence::Failing);
        let e = node.submit(Io::flush()).await.unwrap_err();
        assert_eq!((e.kind(), e.device()), (ErrorKind::Offline, Some("record.log")));
        assert!(node.submit(write_of(512, 2, 512, Durability::Fua)).await.is_err());
        node.submit(write_of(1024, 3, 512, Durability::Cached)).await.unwrap();
        log.set_presence(Presence::Here);
        node.submit(Io::flush()).await.unwrap();
        let bytes = log_bytes(&world).await;
        assert_eq!(Log::open(&bytes).lines(), ["0:0+1", "flush", "2:1+1", "0:2+1", "flush"]);
        assert!(Log::open(&bytes).replay(5, SIZE) == bytes_of(&below).await);
    });
}

#[test]
fn a_full_log_says_so() {
    simulated(|world| async move {
        let (_, node) = recorded(&world, json!({"log": "the.log", "log-size": "2KiB"})).await;
        node.submit(write_of(0, 1, 512, Durability::Fua)).await.unwrap();
        let e = node.submit(write_of(0, 1, 512, Durability::Fua)).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::NoSpace, "the log is full (2KiB)"));
        assert_eq!(Log::open(&log_bytes(&world).await).entries, 1);
    });
}

#[test]
fn zeroes_take_no_memory_and_come_in_pieces() {
    simulated(|world| async move {
        let below = world.over("null", json!({"size": "1TiB"}), &[]).await;
        let log = json!({"log": "the.log", "log-size": "100GiB"});
        let node = world.over("record", log, &[&below]).await;
        node.submit(Io::zero(512..(40 << 20) + 512, Zero::default())).await.unwrap();
        node.submit(Io::flush()).await.unwrap();
        assert_eq!(node.info()["entries"], 4);
        assert_eq!(node.info()["log_used"], (40 << 20) + 5 * 512);
    });
}

#[test]
fn marks_and_keys_are_checked() {
    simulated(|world| async move {
        let (below, node) = recorded(&world, keys()).await;
        for name in ["", "a\0b", &"x".repeat(480)] {
            assert_eq!(mark(&node, name).await.unwrap_err().kind(), ErrorKind::Invalid);
        }
        mark(&node, &"x".repeat(479)).await.unwrap();
        let wrong = json!({"log": "the.log", "log-size": 1000});
        let message = world.try_over("record", wrong, &[&below]).await.err().unwrap();
        assert!(message.starts_with("log-size: "), "{message}");
        assert!(world.try_over("record", json!({}), &[&below]).await.is_err());
        assert_eq!(Bytes(512).to_string(), "512B");
    });
}
