//! Frames between hosts, version 2 (`docs/formats/replication.md`).
//!
//! ```text
//!      primary ── Hello ──▶ peer          which volume, in which generation
//!              ◀─ Welcome ─               what the peer has of it, and how much may be under way
//!              ── Batch ──▶               writes with their data, and the checkpoint
//!              ── Flush ──▶
//!              ── Checkpoint ▶         how far the store is, and a question whether the peer is there
//!              ◀─ Ack ─────               up to which serial number: written, durable; more credit
//!              ◀─ Refuse ──               a newer generation is known, or there is no space: with words
//!
//!      any host ── Take ───▶ primary      it wants the volume (version 2)
//!              ◀─ Given ───               nobody has it now; or Refuse
//!
//!      primary ── ReadFrom ▶ the host before   it wants what that one's flash has (version 2)
//!              ◀─ Given ───               as it was in this generation; or Refuse
//!              ── Read ────▶              again and again
//!              ◀─ Found ───               the blocks, or none of them
//! ```
//!
//! Invariant: what is decoded has a right checksum and lengths within bounds, which were checked before memory was
//! taken. The checksum of data goes with it, end to end: the peer compares before its flash has the data.

mod asking;

pub use asking::{Asking, Found, READ_MAX, Read};
use lamina_block::{Error, ErrorKind, Result};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Versions of the protocol that this Lamina speaks: neighbours understand each other.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=2;
/// Bytes of a frame's head.
pub const HEAD: usize = size_of::<Head>();
/// Bytes of data of a batch, at most.
pub const DATA_MAX: usize = 4 << 20;
/// Writes of a batch, at most.
pub const ENTRIES_MAX: usize = 1024;
/// Bytes of a message in words, at most.
const WORDS_MAX: usize = 1024;
/// The unit of data: a block of 4096 bytes.
pub const BLOCK: usize = 4096;

/// Serial numbers are below this one: they can always be counted on from.
const SERIALS: u64 = 1 << 62;

const MAGIC: [u8; 4] = *b"LMRP";

/// The first bytes of each frame.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 4],
    kind: U16,
    /// Zero.
    flags: U16,
    /// Bytes after the head, without data.
    len: U32,
    /// Bytes of data after these.
    data: U32,
    /// CRC-32C of the `len` bytes.
    checksum: U32,
    /// CRC-32C of the head, as if this were zero.
    head_checksum: U32,
}

/// What a host says first on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The versions that it speaks.
    pub versions: (u16, u16),
    /// The volume, in bytes of its size, that the connection is about.
    pub volume: Uuid,
    /// Bytes of the volume.
    pub size: u64,
    /// The generation in which it has the volume.
    pub generation: u64,
    /// Its flash.
    pub flash: Uuid,
    /// Nothing counts that the peer has of the volume.
    pub is_anew: bool,
}

/// What a peer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The version that both speak from now on.
    pub version: u16,
    /// Its flash.
    pub flash: Uuid,
    /// The generation of what it has of the volume; 0: nothing.
    pub generation: u64,
    /// It has all writes up to this serial number that are after the checkpoint.
    pub written: u64,
    /// And keeps those up to this one without power.
    pub durable: u64,
    /// Bytes and writes that may be under way to it.
    pub credit: Credit,
    /// So many blocks may be on it that the store lacks.
    pub space: u64,
}

/// What may be sent before more is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Bytes of data.
    pub bytes: u64,
    /// Writes.
    pub writes: u64,
}

/// A write of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The serial number; rising within a batch.
    pub serial: u64,
    /// The first block.
    pub block: u64,
    /// Blocks.
    pub count: u32,
    /// Sectors of the first block that are not in the data, a bit each; only of a single block.
    pub absent: u8,
    /// CRC-32C of its data.
    pub checksum: u32,
}

impl Entry {
    /// A write of whole blocks, `data`, of a single one without its `absent` sectors.
    pub fn of(serial: u64, block: u64, absent: u8, data: &[u8]) -> Entry {
        Entry { serial, block, count: (data.len() / BLOCK) as u32, absent, checksum: crc32c::crc32c(data) }
    }
}

/// Writes; their data follows in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// In which generation they were acknowledged, or will be.
    pub generation: u64,
    /// The store has everything up to this serial number, durably.
    pub checkpoint: u64,
    /// The writes.
    pub entries: Vec<Entry>,
}

/// How far a peer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Its flash has completed everything up to this serial number.
    pub written: u64,
    /// And keeps it without power.
    pub durable: u64,
    /// What it grants beyond what it granted before.
    pub credit: Credit,
    /// It reaches the store.
    pub reaches_store: bool,
}

/// Why a peer takes no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refuse {
    /// The generation that it knows, which may be a newer one.
    pub generation: u64,
    /// The reason, for people.
    pub why: String,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first one of the primary.
    Hello(Hello),
    /// The answer.
    Welcome(Welcome),
    /// Writes. So many bytes of data follow.
    Batch(Batch),
    /// Everything up to this serial number is to be durable.
    Flush(u64),
    /// The store has everything up to this serial number, durably. The peer answers at once.
    Checkpoint(u64),
    /// How far the peer is.
    Ack(Ack),
    /// The peer takes no more, or the volume is not given.
    Refuse(Refuse),
    /// The first one of a host that wants a volume.
    Take(Asking),
    /// What was asked for: the generation in which the host had the volume that says so.
    Given(u64),
    /// The first one of a primary that wants to read what the host before it has on its flash.
    ReadFrom(Asking),
    /// A read.
    Read(Read),
    /// Its answer, whose data follow.
    Found(Found),
}

/// What the head of a frame says of what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    kind: u16,
    /// Bytes after the head, without data.
    pub body: usize,
    /// Bytes of data after these.
    pub data: usize,
    checksum: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HelloBytes {
    versions: [U16; 2],
    is_anew: U32,
    volume: [u8; 16],
    size: U64,
    generation: U64,
    flash: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct WelcomeBytes {
    version: U16,
    zero: [u8; 6],
    flash: [u8; 16],
    generation: U64,
    written: U64,
    durable: U64,
    credit: CreditBytes,
    space: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CreditBytes {
    bytes: U64,
    writes: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BatchBytes {
    generation: U64,
    checkpoint: U64,
    entries: U32,
    zero: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryBytes {
    serial: U64,
    block: U64,
    count: U32,
    checksum: U32,
    absent: u8,
    zero: [u8; 7],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct AckBytes {
    written: U64,
    durable: U64,
    credit: CreditBytes,
    reaches_store: u8,
    zero: [u8; 7],
}

/// The longest body.
const BODY_MAX: usize = size_of::<BatchBytes>() + ENTRIES_MAX * size_of::<EntryBytes>();

fn wrong(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("no frame of the replication protocol: {why}"))
}

impl From<Credit> for CreditBytes {
    fn from(of: Credit) -> CreditBytes {
        CreditBytes { bytes: of.bytes.into(), writes: of.writes.into() }
    }
}

impl From<CreditBytes> for Credit {
    fn from(of: CreditBytes) -> Credit {
        Credit { bytes: of.bytes.get(), writes: of.writes.get() }
    }
}

impl Batch {
    /// Bytes of data.
    pub fn data_bytes(&self) -> usize {
        self.entries.iter().map(|entry| entry.count as usize * BLOCK).sum()
    }

    fn check(&self) -> Result<()> {
        if self.entries.is_empty() || self.entries.len() > ENTRIES_MAX {
            return Err(wrong(format!("{} writes are not from 1 to {ENTRIES_MAX}", self.entries.len())));
        }
        let rises = self.entries.windows(2).all(|pair| pair[0].serial < pair[1].serial);
        if !rises || self.entries[0].serial <= self.checkpoint {
            return Err(wrong("serial numbers do not rise from the checkpoint on"));
        }
        let is_possible = |entry: &Entry| {
            entry.serial < SERIALS
                && (1..=(DATA_MAX / BLOCK) as u32).contains(&entry.count)
                && entry.block.checked_add(entry.count.into()).is_some()
                && (entry.absent == 0 || entry.count == 1 && entry.absent != u8::MAX)
        };
        match self.entries.iter().find(|entry| !is_possible(entry)) {
            Some(entry) => Err(wrong(format!("write {} is impossible", entry.serial))),
            None => Ok(()),
        }
    }
}

impl Frame {
    fn kind(&self) -> u16 {
        match self {
            Frame::Hello(_) => 1,
            Frame::Welcome(_) => 2,
            Frame::Batch(_) => 3,
            Frame::Flush(_) => 4,
            Frame::Ack(_) => 5,
            Frame::Refuse(_) => 6,
            Frame::Checkpoint(_) => 7,
            Frame::Take(_) => 8,
            Frame::Given(_) => 9,
            Frame::ReadFrom(_) => 10,
            Frame::Read(_) => 11,
            Frame::Found(_) => 12,
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Frame::Hello(of) => HelloBytes {
                versions: [of.versions.0.into(), of.versions.1.into()],
                is_anew: u32::from(of.is_anew).into(),
                volume: of.volume.into_bytes(),
                size: of.size.into(),
                generation: of.generation.into(),
                flash: of.flash.into_bytes(),
            }
            .as_bytes()
            .to_vec(),
            Frame::Welcome(of) => WelcomeBytes {
                version: of.version.into(),
                zero: [0; 6],
                flash: of.flash.into_bytes(),
                generation: of.generation.into(),
                written: of.written.into(),
                durable: of.durable.into(),
                credit: of.credit.into(),
                space: of.space.into(),
            }
            .as_bytes()
            .to_vec(),
            Frame::Batch(of) => {
                let (entries, zero) = ((of.entries.len() as u32).into(), 0.into());
                let (generation, checkpoint) = (of.generation.into(), of.checkpoint.into());
                let mut bytes = BatchBytes { generation, checkpoint, entries, zero }.as_bytes().to_vec();
                for of in &of.entries {
                    let entry = EntryBytes {
                        serial: of.serial.into(),
                        block: of.block.into(),
                        count: of.count.into(),
                        checksum: of.checksum.into(),
                        absent: of.absent,
                        zero: [0; 7],
                    };
                    bytes.extend_from_slice(entry.as_bytes());
                }
                bytes
            }
            Frame::Flush(number) | Frame::Checkpoint(number) | Frame::Given(number) => {
                number.to_le_bytes().to_vec()
            }
            Frame::Take(of) | Frame::ReadFrom(of) => of.body(),
            Frame::Read(of) => of.as_bytes().to_vec(),
            Frame::Found(of) => of.as_bytes().to_vec(),
            Frame::Ack(of) => AckBytes {
                written: of.written.into(),
                durable: of.durable.into(),
                credit: of.credit.into(),
                reaches_store: of.reaches_store.into(),
                zero: [0; 7],
            }
            .as_bytes()
            .to_vec(),
            Frame::Refuse(of) => {
                let end = of.why.floor_char_boundary(WORDS_MAX);
                [&of.generation.to_le_bytes()[..], &of.why.as_bytes()[..end]].concat()
            }
        }
    }

    /// Bytes of data that follow.
    fn data_bytes(&self) -> usize {
        match self {
            Frame::Batch(batch) => batch.data_bytes(),
            Frame::Found(found) => found.len(),
            _ => 0,
        }
    }

    /// Head and body. The data of a batch, or of an answer to a read, are to be sent after them.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.body();
        let data = self.data_bytes();
        let mut head = Head {
            magic: MAGIC,
            kind: self.kind().into(),
            flags: 0.into(),
            len: (body.len() as u32).into(),
            data: (data as u32).into(),
            checksum: crc32c::crc32c(&body).into(),
            head_checksum: 0.into(),
        };
        head.head_checksum = crc32c::crc32c(head.as_bytes()).into();
        [head.as_bytes(), &body].concat()
    }

    /// The frame whose head said `of`, and whose body is `body`.
    pub fn decode(of: &Lengths, body: &[u8]) -> Result<Frame> {
        if body.len() != of.body || crc32c::crc32c(body) != of.checksum {
            return Err(wrong("the checksum of its body is another one"));
        }
        let short = || wrong(format!("a frame of kind {} has {} bytes", of.kind, body.len()));
        let frame = match of.kind {
            1 => {
                let bytes = HelloBytes::read_from_bytes(body).map_err(|_| short())?;
                let versions = (bytes.versions[0].get(), bytes.versions[1].get());
                Frame::Hello(Hello {
                    versions,
                    volume: Uuid::from_bytes(bytes.volume),
                    size: bytes.size.get(),
                    generation: bytes.generation.get(),
                    flash: Uuid::from_bytes(bytes.flash),
                    is_anew: bytes.is_anew == 1,
                })
            }
            2 => {
                let bytes = WelcomeBytes::read_from_bytes(body).map_err(|_| short())?;
                Frame::Welcome(Welcome {
                    version: bytes.version.get(),
                    flash: Uuid::from_bytes(bytes.flash),
                    generation: bytes.generation.get(),
                    written: bytes.written.get(),
                    durable: bytes.durable.get(),
                    credit: bytes.credit.into(),
                    space: bytes.space.get(),
                })
            }
            3 => Frame::Batch(decode_batch(body).ok_or_else(short)?),
            4 => Frame::Flush(u64::from_le_bytes(body.try_into().map_err(|_| short())?)),
            5 => {
                let bytes = AckBytes::read_from_bytes(body).map_err(|_| short())?;
                Frame::Ack(Ack {
                    written: bytes.written.get(),
                    durable: bytes.durable.get(),
                    credit: bytes.credit.into(),
                    reaches_store: bytes.reaches_store == 1,
                })
            }
            6 => {
                let (generation, why) = body.split_first_chunk().ok_or_else(short)?;
                let why = std::str::from_utf8(why).map_err(|_| wrong("its words are no text"))?.to_owned();
                Frame::Refuse(Refuse { generation: u64::from_le_bytes(*generation), why })
            }
            7 => Frame::Checkpoint(u64::from_le_bytes(body.try_into().map_err(|_| short())?)),
            8 => Frame::Take(Asking::decode(body, |why| wrong(why))?),
            9 => Frame::Given(u64::from_le_bytes(body.try_into().map_err(|_| short())?)),
            10 => Frame::ReadFrom(Asking::decode(body, |why| wrong(why))?),
            11 => Frame::Read(Read::read_from_bytes(body).map_err(|_| short())?.check(|why| wrong(why))?),
            12 => Frame::Found(Found::read_from_bytes(body).map_err(|_| short())?.check(|why| wrong(why))?),
            kind => return Err(wrong(format!("kind {kind} is not known"))),
        };
        if let Frame::Batch(batch) = &frame {
            batch.check()?;
        }
        let data = frame.data_bytes();
        match data == of.data {
            true => Ok(frame),
            false => Err(wrong(format!("{} bytes of data are announced, and {data} belong to it", of.data))),
        }
    }
}

fn decode_batch(body: &[u8]) -> Option<Batch> {
    let (head, rest) = BatchBytes::read_from_prefix(body).ok()?;
    if rest.len() != head.entries.get() as usize * size_of::<EntryBytes>() {
        return None;
    }
    let entry = |bytes: &[u8]| {
        let of = EntryBytes::read_from_bytes(bytes).ok()?;
        let (serial, block, count) = (of.serial.get(), of.block.get(), of.count.get());
        Some(Entry { serial, block, count, absent: of.absent, checksum: of.checksum.get() })
    };
    let entries = rest.chunks(size_of::<EntryBytes>()).map(entry).collect::<Option<_>>()?;
    Some(Batch { generation: head.generation.get(), checkpoint: head.checkpoint.get(), entries })
}

/// What a head says of its frame; fails if that is too long, or no frame.
pub fn lengths(head: &[u8; HEAD]) -> Result<Lengths> {
    let mut of = Head::read_from_bytes(head).expect("its length is that of a head");
    let checksum = std::mem::replace(&mut of.head_checksum, 0.into());
    if of.magic != MAGIC || crc32c::crc32c(of.as_bytes()) != checksum.get() {
        return Err(wrong("it has another beginning"));
    }
    let (kind, body, data) = (of.kind.get(), of.len.get() as usize, of.data.get() as usize);
    if body > BODY_MAX || data > DATA_MAX {
        return Err(wrong(format!("{body} bytes and {data} of data are too long")));
    }
    Ok(Lengths { kind, body, data, checksum: of.checksum.get() })
}

/// The version that both sides speak, of which this one speaks none newer than `newest`; fails with words for people if
/// there is none.
pub fn agree(newest: u16, versions: (u16, u16)) -> Result<u16> {
    let (oldest, version) = (*VERSIONS.start(), newest.min(versions.1));
    match version >= versions.0 && version >= oldest {
        true => Ok(version),
        false => Err(Error::unsupported(format!(
            "the other host speaks versions {} to {} of the replication protocol, this one {oldest} to {newest}: \
             upgrade the older one of them, or take its key `protocol` away",
            versions.0, versions.1,
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let entry = |serial, block, count, absent| Entry { serial, block, count, absent, checksum: 7 };
        Batch { generation: 3, checkpoint: 9, entries: vec![entry(10, 5, 2, 0), entry(12, 900, 1, 0b101)] }
    }

    fn frames() -> Vec<Frame> {
        let (volume, flash) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let credit = Credit { bytes: 1 << 20, writes: 256 };
        let hello = Hello { versions: (1, 2), volume, size: 1 << 40, generation: 3, flash, is_anew: false };
        vec![
            Frame::Hello(hello),
            Frame::Welcome(Welcome {
                version: 1,
                flash,
                generation: 2,
                written: 77,
                durable: 70,
                credit,
                space: 5000,
            }),
            Frame::Batch(batch()),
            Frame::Flush(12),
            Frame::Ack(Ack { written: 12, durable: 10, credit, reaches_store: true }),
            Frame::Refuse(Refuse { generation: 4, why: "the flash is full".into() }),
            Frame::Hello(Hello { is_anew: true, ..hello }),
            Frame::Checkpoint(9),
        ]
    }

    /// What version 2 has besides.
    fn frames_of_2() -> Vec<Frame> {
        let (volume, flash) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let asking = Asking { versions: (1, 2), volume, generation: 3, flash, host: "host-b.1".into() };
        vec![
            Frame::Take(asking.clone()),
            Frame::Given(3),
            Frame::ReadFrom(asking),
            Frame::Read(Read::new(5, 900, 2)),
            Frame::Found(Found::new(5, &[7; 2 * BLOCK])),
            Frame::Found(Found::new(6, &[])),
        ]
    }

    fn read(bytes: &[u8]) -> Result<Frame> {
        let (head, body) = bytes.split_first_chunk().ok_or_else(|| wrong("it is cut off"))?;
        Frame::decode(&lengths(head)?, body)
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        for frame in frames().into_iter().chain(frames_of_2()) {
            let bytes = frame.encode();
            assert_eq!(read(&bytes), Ok(frame.clone()));
            for at in 0..bytes.len() {
                assert!(read(&bytes[..at]).is_err(), "{frame:?} cut at {at}");
                let mut wrong = bytes.clone();
                wrong[at] ^= 0x10;
                assert!(read(&wrong).is_err(), "{frame:?}, byte {at}");
            }
        }
    }

    #[test]
    fn the_golden_transcripts() {
        let hex = |frame: &Frame| {
            frame.encode().iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n"
        };
        let text = |frames: Vec<Frame>| frames.iter().map(hex).collect::<String>();
        let first = text(frames());
        assert_eq!(first, include_str!("../tests/golden/replication-1.txt"));
        assert_eq!(first + &text(frames_of_2()), include_str!("../tests/golden/replication-2.txt"));
    }

    #[test]
    fn reads_are_bounded() {
        for (block, count) in [(0, 0), (0, READ_MAX + 1), (u64::MAX, 1)] {
            let e = read(&Frame::Read(Read::new(1, block, count)).encode()).expect_err("impossible");
            assert!(e.message().contains("a read is impossible"), "{e}");
        }
        let found = Found::new(1, &[3; BLOCK]);
        assert!(found.is_of(&[3; BLOCK]) && !found.is_of(&[4; BLOCK]) && !found.is_of(&[]));
    }

    #[test]
    fn a_host_that_asks_has_a_name() {
        let Frame::Take(take) = frames_of_2().remove(0) else { panic!("it is the first one") };
        for host in ["", "a b", &"x".repeat(65)] {
            let frame = Frame::Take(Asking { host: host.into(), ..take.clone() });
            assert!(
                read(&frame.encode()).expect_err(host).message().contains("the name of a host"),
                "{host:?}"
            );
        }
    }

    #[test]
    fn batches_are_bounded() {
        type Change = fn(&mut Batch);
        let with = |change: Change| {
            let mut of = batch();
            change(&mut of);
            read(&Frame::Batch(of).encode()).map_err(|e| e.message().to_owned())
        };
        let cases: [(Change, &str); 9] = [
            (|of| of.entries[1].serial = 1 << 62, "is impossible"),
            (|of| of.entries.clear(), "not from 1"),
            (|of| of.entries[1].serial = 10, "do not rise"),
            (|of| of.checkpoint = 10, "do not rise"),
            (|of| of.entries[0].count = 0, "write 10 is impossible"),
            (|of| of.entries[0].absent = 1, "write 10 is impossible"),
            (|of| of.entries[1].absent = u8::MAX, "write 12 is impossible"),
            (|of| of.entries[0].block = u64::MAX, "write 10 is impossible"),
            (|of| of.entries[0].count = 2000, "too long"),
        ];
        for (change, words) in cases {
            assert!(with(change).expect_err(words).contains(words), "{words}");
        }
        assert!(with(|_| {}).is_ok());
    }

    #[test]
    fn neighbours_speak_what_both_know() {
        assert_eq!(agree(2, (1, 1)), Ok(1));
        assert_eq!(agree(2, (1, 9)), Ok(2));
        assert_eq!(agree(1, (1, 2)), Ok(1));
        assert!(agree(1, (2, 2)).is_err_and(|e| e.message().contains("this one 1 to 1")));
        let e = agree(2, (3, 9)).expect_err("none");
        assert!(e.message().contains("versions 3 to 9") && e.message().contains("upgrade the older"), "{e}");
    }
}
