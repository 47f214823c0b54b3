//! `crypt`: encrypts a device with AES-XTS, in the LUKS2 format that `cryptsetup` reads and writes.
//!
//! The device below has nothing but a LUKS2 header and encrypted sectors: a thief of the disk without a
//! passphrase sees noise, and the length of each write and its address. The volume's key is random, never
//! changes, and is stored in keyslots, each encrypted with a key derived from a passphrase; so passphrases
//! change without a byte of data being written again. The format is LUKS2 and nothing beside it: `cryptsetup
//! open` on the same device (on the loop device at a member's data, which `lamina inspect` names) shows the
//! same bytes.
//!
//! ```text
//!      write ──encrypt──▶ private memory ──▶ below      at + offset
//!      read  ◀──decrypt, where it is ◀────── below      flush, discard: handed on
//!
//!      below:  LUKS2 header, keyslots │ sectors, each with its number as the IV
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `key-file`: a file all of whose bytes are the key of a keyslot, as `cryptsetup --key-file`; or
//! * `passphrase-file`: a file whose first line is the passphrase; or
//! * `ask-passphrase` (false): the program that opens the device (`lamina serve`, `create`, `bench`, `repair` and
//!   `check --metadata`) asks for the passphrase at its terminal: three times if need be, and twice for the new
//!   passphrase of a new volume. A program without a terminal, and a daemon that serves already (`lamina apply`), need
//!   a file. One of the three keys is needed. Paths are relative to the hierarchy file. Keys and passphrases appear
//!   nowhere else, and are cleared from memory after use. A warning names a file that its group or everybody can read.
//!   A process that has a key leaves no core dump, and its memory is not swapped out; where it may not lock memory (it
//!   needs `LimitMEMLOCK=infinity`, or CAP_IPC_LOCK), a warning says so.
//! * `metadata`: a device for the header, which then is not on `over` (a detached header).
//! * `format` (false): in a hierarchy without `[hierarchy]`, makes the volume if there is none, and the
//!   device's first bytes, where the header will be, are zeroes. Anything else on the device is never
//!   overwritten. (`lamina create` makes the volumes of persistent hierarchies.)
//! * `cipher` ("aes-xts"), `header-size` ("16MiB"), `sector-size` (4096 where the device below handles 4 KiB
//!   best, else 512): the parameters of a new volume. An existing volume keeps its own. Sectors are the
//!   blocks of the volume: larger ones are faster, and if they are larger than the disk's unit of atomic
//!   writes, a power loss may leave a sector half old and half new. The ciphers "blowfish", "des" and "3des"
//!   are there to read old volumes: with blocks of 64 bits or keys of 56 they protect nobody any more.
//! * `allow-legacy` (false): makes volumes with them all the same.
//! * `kdf-memory` ("256MiB"): memory for trying one passphrase, in new keyslots (Argon2id, 4 passes).
//! * `kdf-memory-max` ("1GiB"): the most memory that an existing keyslot may ask for.
//! * `discard` (false): hands discards on, and zeroing as zeroes. The disk below then shows which sectors are
//!   in use, and sectors that were discarded or never written read as zeroes; without it they read as noise,
//!   and zeroing writes encrypted zeroes.
//!
//! Commands: `keyslots` lists; `keyslot-add` adds a keyslot for another key or passphrase;
//! `keyslot-remove NUMBER` removes one, other than the keyslot that the device was opened with; `key-change` adds a
//! keyslot, makes sure that it opens, and removes the keyslot that the device was opened with. The new key or
//! passphrase is in a file, or is typed: `lamina ctl vm1 key-change passphrase` asks for the passphrase, twice. A
//! crash never leaves the volume without a keyslot that opens; repeat a `key-change` that was interrupted.
//! Afterwards the hierarchy file must name the new file (`lamina apply` takes that over in a persistent hierarchy,
//! while clients work), or the file itself be replaced. With `ask-passphrase` there is nothing to change.
//!
//! `header-backup FILE` writes the header with its keyslots to a new file, as `cryptsetup luksHeaderBackup` does.
//! Without a header the data is lost, so keep the backup elsewhere. If the header on the device is destroyed, a
//! device over that file is `metadata` of the volume, which opens then; `cryptsetup luksHeaderRestore` puts the
//! header back. A backup opens with the keys of its time: after `keyslot-remove` and `key-change`, destroy older
//! backups.
//!
//! The device grows with the one below, at once. The new bytes read as noise until they are written (as
//! zeroes with `discard`, if they are zeroes below).
//!
//! Two copies of the header are kept. If one is damaged or stale the other one is used, with a warning; the
//! next command that changes keyslots, or `lamina repair`, makes them equal.
//!
//! A read is decrypted in the client's memory, as Linux' dm-crypt does it: a client that looks at, or
//! changes, this memory before the read is complete sees or spoils only its own bytes, and nothing is copied.
//! A read that fails leaves zeroes there, not the bytes below. A write is never encrypted in place: its
//! memory is still the writer's.
//!
//! The format is checked against dm-crypt's, but encryption is not authentication: an attacker who can write
//! to the disk can make sectors read as noise, or as their earlier bytes, unnoticed. The layer deliberately
//! does not read LUKS1 (`cryptsetup convert` makes it LUKS2), AES with 128 bits, `integrity` segments or
//! tokens, and it never encrypts a device in place.

mod cipher;
mod evp;
mod luks;
mod open;
mod secret;
#[cfg(test)]
pub(crate) mod tests;
mod verbs;

use cipher::Cipher;
use lamina_block::{
    Buf, Build, Bytes, Class, Command, Config, Consent, Durability, Effect, Env, Error, Extent, ExtentState,
    Finding, Geometry, Healed, Io, Judge, Layer, Made, Manage, Node, Op, Outside, Over, Passthrough, Pending,
    Result, Signal, Step, Traits,
};
use lamina_kit::consent::unless_replaced;
use luks::{DataArea, Luks};
use secret::Secret;
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::task::Poll;

/// The most bytes that are encrypted before other tasks of the core run.
const PIECE: u64 = 128 << 10;
/// The most private memory of one write, in bytes. Longer writes go in rounds.
const ROUND: u64 = 1 << 20;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    key_file: Option<PathBuf>,
    passphrase_file: Option<PathBuf>,
    #[serde(default)]
    ask_passphrase: bool,
    #[serde(default)]
    format: bool,
    cipher: Option<Named>,
    sector_size: Option<u32>,
    header_size: Option<Bytes>,
    #[serde(default)]
    allow_legacy: bool,
    #[serde(default = "kdf_memory_default")]
    kdf_memory: Bytes,
    #[serde(default = "kdf_memory_max_default")]
    kdf_memory_max: Bytes,
    #[serde(default)]
    discard: bool,
}

/// The ciphers by their names in the file.
#[derive(Clone, Copy, Deserialize)]
enum Named {
    #[serde(rename = "aes-xts")]
    AesXts,
    #[serde(rename = "blowfish")]
    Blowfish,
    #[serde(rename = "des")]
    Des,
    #[serde(rename = "3des")]
    TripleDes,
}

fn kdf_memory_default() -> Bytes {
    Bytes(256 << 20)
}

fn kdf_memory_max_default() -> Bytes {
    Bytes(1 << 30)
}

impl Config for Keys {
    const KIND: &'static str = "crypt";
    const SUMMARY: &'static str = "encrypts a device, as LUKS2";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;
    const TRAITS: Traits = Traits {
        keeps: true,
        metadata: true,
        elsewhere: &[
            "luks",
            "luks1",
            "luks2",
            "dm-crypt",
            "cryptsetup",
            "encrypt",
            "encrypted",
            "encryption",
        ],
        // The way to the secret is this host's business, also where it is no file.
        outside: &[
            Outside::local("key-file"),
            Outside::local("passphrase-file"),
            Outside::local("ask-passphrase"),
        ],
        verbs: verbs::VERBS,
        computes: true,
        ..Traits::NONE
    };

    fn check(&self, over: &Over<'_>) -> Result<()> {
        open::check(self, over.persistent).map(drop)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(open::open(self, with).await?) as Made) })
    }
}

/// A volume that is open.
struct Crypt {
    child: Rc<Node>,
    env: Rc<dyn Env>,
    /// The base of relative paths.
    base: PathBuf,
    luks: Luks,
    data_area: DataArea,
    cipher: Cipher,
    /// The volume key, for new keyslots.
    key: Secret,
    /// A keyslot that opens.
    opened: Cell<u32>,
    discard: bool,
    /// True while a command changes keyslots.
    changing: Cell<bool>,
    moved: Signal,
}

impl Crypt {
    /// The address below of byte `at` of the volume.
    fn below(&self, at: u64) -> u64 {
        self.data_area.offset + at
    }

    /// Encrypts `from`, which begins at byte `at`, into private memory.
    fn encrypt(&self, at: u64, from: &Buf) -> Result<Buf> {
        let private = self.env.pool().take(from.len());
        self.cipher.encrypt(at, from, &private)?;
        Ok(private)
    }

    /// A long write: in rounds, so that it takes little memory, and with pauses, so that other tasks go on.
    async fn write(self: Rc<Self>, io: Io, from: Buf, durability: Durability) -> Result<()> {
        let at = io.at;
        for round in pieces(at.clone(), ROUND) {
            let private = self.env.pool().take(length(&round));
            for piece in pieces(round.clone(), PIECE) {
                let (source, target) = (part(&from, &at, &piece), part(&private, &round, &piece));
                self.cipher.encrypt(piece.start, &source, &target)?;
                pause().await;
            }
            let write = Io::write(self.below(round.start), private, durability).by(io.client);
            self.child.submit(write).await?;
        }
        Ok(())
    }

    /// A read that is decrypted in one go.
    fn read_short(self: Rc<Self>, mut io: Io, into: Buf) -> Step {
        let at = io.at.start;
        io.move_to(self.below(at));
        let mut request = self.child.submit(io);
        match request.ready() {
            Some(done) => Step::Done(self.decrypt(done, at, &into)),
            None => Step::control(async move {
                let done = request.await;
                self.decrypt(done, at, &into)
            }),
        }
    }

    /// A long read: with pauses, so that other tasks go on.
    async fn read(self: Rc<Self>, mut io: Io, into: Buf) -> Result<()> {
        let at = io.at.clone();
        io.move_to(self.below(at.start));
        let mut done = self.child.submit(io).await;
        for piece in pieces(at.clone(), PIECE) {
            done = self.decrypt(done, piece.start, &part(&into, &at, &piece));
            pause().await;
        }
        done
    }

    /// Decrypts the bytes of a read, from byte `at` on. If the read failed no bytes from below stay in the
    /// memory.
    fn decrypt(&self, read: Result<()>, at: u64, bytes: &Buf) -> Result<()> {
        let done = read.and_then(|()| self.cipher.decrypt(at, bytes, self.discard));
        if done.is_err() {
            bytes.fill(0);
        }
        done
    }

    /// Decrypts `bytes` of byte `at` into other memory.
    fn opened(&self, at: u64, bytes: &Buf) -> Result<Buf> {
        let plain = self.env.pool().take(bytes.len());
        plain.copy_from(bytes);
        self.cipher.decrypt(at, &plain, self.discard).map(|()| plain)
    }

    /// The size of the volume in bytes, in blocks of `block`.
    fn size(&self, block: u32) -> u64 {
        let there = self.child.geometry().size.saturating_sub(self.data_area.offset);
        let size = self.data_area.size.map_or(there, |size| size.min(there));
        size - size % u64::from(block)
    }

    fn header_in_words(&self) -> String {
        match self.luks.fault() {
            None => "both copies are whole".into(),
            Some((copy, fault)) => {
                format!("the {} copy is used: of the {}, {fault}", copy.other().name(), copy.name())
            }
        }
    }
}

/// `at` in runs of at most `max` bytes.
fn pieces(at: Range<u64>, max: u64) -> impl Iterator<Item = Range<u64>> {
    let end = at.end;
    at.step_by(max as usize).map(move |start| start..end.min(start + max))
}

fn length(at: &Range<u64>) -> usize {
    (at.end - at.start) as usize
}

/// The part of `buf`, which is the memory of `of`, that is the memory of `at`.
fn part(buf: &Buf, of: &Range<u64>, at: &Range<u64>) -> Buf {
    buf.slice((at.start - of.start) as usize..(at.end - of.start) as usize)
}

/// Lets other tasks of the core go on.
async fn pause() {
    let mut paused = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Layer for Crypt {
    /// Where discards do not pass, zeroes are encrypted as all other bytes, so that they are not visible: the
    /// node writes them. Where they do, a sector of zeroes below reads as zeroes.
    fn geometry(&self) -> Geometry {
        let below = self.child.geometry();
        let block = below.block.max(self.data_area.sector);
        Geometry {
            size: self.size(block),
            block,
            optimal: below.optimal.max(block),
            discard: self.discard && below.discard,
            zero: self.discard && below.zero,
            ..below.shifted(self.data_area.offset)
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let at = io.at.clone();
        match &io.op {
            // Most writes are encrypted here and now, and cost nothing on the way up.
            Op::Write(from, durability) if io.len() <= PIECE => match self.encrypt(at.start, from) {
                Ok(private) => {
                    io.op = Op::Write(private, *durability);
                    io.move_to(self.below(at.start));
                    Step::Forward(Rc::clone(&self.child))
                }
                Err(e) => e.at(at).into(),
            },
            Op::Write(from, durability) => {
                let (from, durability) = (from.clone(), *durability);
                Step::control(self.write(io.take(), from, durability))
            }
            Op::Read(into) if io.len() <= PIECE => {
                let into = into.clone();
                self.read_short(io.take(), into)
            }
            Op::Read(into) => {
                let into = into.clone();
                Step::control(self.read(io.take(), into))
            }
            Op::Discard | Op::Zero(_) => {
                io.move_to(self.below(at.start));
                Step::Forward(Rc::clone(&self.child))
            }
            Op::Flush => Step::Forward(Rc::clone(&self.child)),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.child, self.below(0))
    }

    /// Where discards pass, holes below read as zeroes; otherwise everything is data.
    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let mut runs = Vec::new();
            if !self.discard {
                Extent::push(&mut runs, at.end - at.start, ExtentState::Data);
                return Ok(runs);
            }
            let sector = self.cipher.sector() as u64;
            let mut position = at.start;
            for run in self.child.extents(self.below(at.start)..self.below(at.end)).await? {
                let run_end = position + run.len;
                // A sector reads as zeroes if all of it does below.
                let whole = position.next_multiple_of(sector).min(run_end)..run_end / sector * sector;
                if run.state == ExtentState::Data || whole.is_empty() {
                    Extent::push(&mut runs, run.len, ExtentState::Data);
                } else {
                    Extent::push(&mut runs, whole.start - position, ExtentState::Data);
                    Extent::push(&mut runs, whole.end - whole.start, run.state);
                    Extent::push(&mut runs, run_end - whole.end, ExtentState::Data);
                }
                position = run_end;
            }
            Ok(runs)
        })
    }

    /// Copies from below are judged by their decrypted bytes.
    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            let (me, start) = (Rc::clone(&self), at.start);
            let judge =
                Rc::new(move |bytes: &Buf| me.opened(start, bytes).is_ok_and(|plain| is_right(&plain)));
            let healed = self.child.heal(self.below(at.start)..self.below(at.end), judge).await?;
            let Some(Healed { bytes, copies }) = healed else { return Ok(None) };
            let plain = self.opened(at.start, &bytes)?;
            Ok(Some(Healed { bytes: plain, copies }))
        })
    }
}

impl Manage for Crypt {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        match Rc::ptr_eq(child, &self.child) {
            true => Consent::Agrees,
            false => unless_replaced(effect, || format!("its header is on {}", child.name())),
        }
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(self.carry_out(command))
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async {
            Err(Error::unsupported(
                "the bytes below are encrypted: without this device they are noise. Copy the data to another \
                 device instead",
            ))
        })
    }

    fn check(self: Rc<Self>, repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move {
            let Some((copy, fault)) = self.luks.fault() else {
                return Ok(vec![Finding::new(Class::Good, "both copies of the LUKS header are whole")]);
            };
            let message = format!("the {} copy of the LUKS header: {fault}", copy.name());
            if !repair {
                return Ok(vec![Finding::new(Class::Repairable, message)]);
            }
            self.luks.repair().await?;
            Ok(vec![Finding::new(
                Class::Repaired,
                format!("{message}; it was written again from the other one"),
            )])
        })
    }

    fn info(&self) -> Value {
        let mut info = self.luks.info();
        info["cipher"] = self.data_area.algorithm.name().into();
        info["legacy"] = self.data_area.algorithm.is_legacy().into();
        info["sector"] = self.data_area.sector.into();
        info["opened_with"] = self.opened.get().into();
        info["header"] = json!(self.header_in_words());
        info
    }
}
