//! The two copies of a header: which one counts, and the order of their writes.
//!
//! A copy whose checksum is right counts; of two, the one with the higher number of change. While one copy is written
//! the other one is whole, and the one that is written first is never the only one that is whole:
//!
//! ```text
//!      both the same:           write the first, flush, write the second, flush
//!      one stale or damaged:    write that one,  flush, write the other,  flush
//! ```

use super::binary::{Binary, Copy, LEN, LENGTHS};
use super::meta::Meta;
use lamina_block::{Buf, Durability, Env, Error, ErrorKind, Io, Node, Result};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A header: both copies have the same fields.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) binary: Binary,
    pub meta: Meta,
}

impl Header {
    fn decode(bytes: &[u8], copy: Copy) -> Result<Header> {
        let (binary, json) = Binary::decode(bytes, copy)?;
        let meta = Meta::decode(json, binary.length)?;
        Ok(Header { binary, meta })
    }

    fn encode(&self, copy: Copy, salt: [u8; 64]) -> Result<Vec<u8>> {
        self.binary.encode(copy, salt, &self.meta.encode())
    }
}

/// The state of the copies on a device.
pub(super) struct Copies {
    node: Rc<Node>,
    env: Rc<dyn Env>,
    /// The header in the good copy.
    header: RefCell<Header>,
    /// A copy that is whole.
    good: Cell<Copy>,
    /// The fault of the other copy.
    fault: RefCell<Option<String>>,
    /// The number of the last change that was tried.
    seqid: Cell<u64>,
}

/// The bytes in the place of a copy.
enum Found {
    /// Something else.
    Nothing,
    Damaged(Error),
    Whole(Box<Header>),
}

impl Copies {
    /// Looks for the copies. `None` says that there is no LUKS header at all.
    pub async fn find(node: &Rc<Node>, env: &Rc<dyn Env>) -> Result<Option<Copies>> {
        let first = look(node, 0, Copy::First).await?;
        let candidates: &[u64] = match &first {
            Found::Whole(header) => &[header.binary.length],
            Found::Nothing | Found::Damaged(_) => &LENGTHS,
        };
        let mut second = Found::Nothing;
        for at in candidates {
            match look(node, *at, Copy::Second).await? {
                Found::Nothing => {}
                found @ Found::Whole(_) => {
                    second = found;
                    break;
                }
                found @ Found::Damaged(_) => second = found,
            }
        }
        let missing = || "its magic is missing".to_owned();
        let (good, header, fault) = match (first, second) {
            (Found::Whole(a), Found::Whole(b)) if a.binary.seqid < b.binary.seqid => {
                (Copy::Second, b, Some("it is stale".into()))
            }
            (Found::Whole(a), Found::Whole(b)) if a.binary.seqid > b.binary.seqid => {
                (Copy::First, a, Some("it is stale".into()))
            }
            (Found::Whole(a), Found::Whole(_)) => (Copy::First, a, None),
            (Found::Whole(a), Found::Damaged(e)) => (Copy::First, a, Some(e.message().into())),
            (Found::Whole(a), Found::Nothing) => (Copy::First, a, Some(missing())),
            (Found::Damaged(e), Found::Whole(b)) => (Copy::Second, b, Some(e.message().into())),
            (Found::Nothing, Found::Whole(b)) => (Copy::Second, b, Some(missing())),
            (Found::Nothing, Found::Nothing) => return Ok(None),
            (Found::Damaged(e), other) => {
                let second = if let Found::Damaged(e) = other { e.message().to_owned() } else { missing() };
                let message =
                    format!("both copies of the LUKS header are damaged: {}; {second}", e.message());
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
            (Found::Nothing, Found::Damaged(e)) => {
                let message =
                    format!("both copies of the LUKS header are damaged: {}; {}", missing(), e.message());
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        };
        Ok(Some(Copies {
            node: Rc::clone(node),
            env: Rc::clone(env),
            seqid: Cell::new(header.binary.seqid),
            header: RefCell::new(*header),
            good: Cell::new(good),
            fault: RefCell::new(fault),
        }))
    }

    /// The copies of a new header, which are not written yet.
    pub fn new(node: &Rc<Node>, env: &Rc<dyn Env>, uuid: &str, meta: Meta) -> Copies {
        let binary = Binary::new(meta.length(), uuid);
        Copies {
            node: Rc::clone(node),
            env: Rc::clone(env),
            header: RefCell::new(Header { binary, meta }),
            // So the first copy is written last, and completes the header.
            good: Cell::new(Copy::First),
            fault: RefCell::new(Some("it is new".into())),
            seqid: Cell::new(0),
        }
    }

    /// The present header.
    pub fn header(&self) -> Header {
        self.header.borrow().clone()
    }

    /// Calls `f` with the header.
    pub fn with<T>(&self, f: impl FnOnce(&Header) -> T) -> T {
        f(&self.header.borrow())
    }

    /// The copy with a fault, and the fault.
    pub fn fault(&self) -> Option<(Copy, String)> {
        self.fault.borrow().clone().map(|fault| (self.good.get().other(), fault))
    }

    /// Writes `meta` to both copies. If that fails, the header is the old or the new one, as
    /// [`Copies::header`] says from then on.
    pub async fn write(&self, meta: Meta) -> Result<()> {
        self.seqid.set(self.seqid.get() + 1);
        let mut header = self.header();
        (header.binary.seqid, header.meta) = (self.seqid.get(), meta);
        let is_equal = self.fault.borrow().is_none();
        let first = if is_equal { Copy::First } else { self.good.get().other() };
        self.good.set(first.other());
        self.fault.replace(Some("it was not written".into()));
        self.write_copy(&header, first).await?;
        self.header.replace(header.clone());
        self.good.set(first);
        self.write_copy(&header, first.other()).await?;
        self.fault.replace(None);
        Ok(())
    }

    /// Makes both copies the same.
    pub async fn repair(&self) -> Result<()> {
        if self.fault.borrow().is_none() {
            return Ok(());
        }
        let meta = self.with(|header| header.meta.clone());
        self.write(meta).await
    }

    /// See [`super::Luks::take_the_other_for_good`].
    #[cfg(test)]
    pub fn take_the_other_for_good(&self) {
        self.good.set(self.good.get().other());
    }

    async fn write_copy(&self, header: &Header, copy: Copy) -> Result<()> {
        let mut salt = [0; 64];
        self.env.secret(&mut salt)?;
        let bytes = header.encode(copy, salt)?;
        let at = copy.offset(header.binary.length);
        self.node.submit(Io::write(at, Buf::from_vec(bytes), Durability::Cached)).await?;
        self.node.submit(Io::flush()).await
    }
}

/// Reads a copy at `at`. A whole copy that is not understood is an error: the other copy, perhaps older, must
/// not be used instead.
async fn look(node: &Rc<Node>, at: u64, copy: Copy) -> Result<Found> {
    let size = node.geometry().size;
    let room = |len: u64| at.checked_add(len).is_some_and(|end| end <= size);
    if !room(LEN as u64) {
        return Ok(Found::Nothing);
    }
    let head = Buf::zeroed(LEN);
    node.submit(Io::read(at, head.clone())).await?;
    let length = match Binary::length_of(&head.to_vec(), copy) {
        Ok(Some(length)) if copy.offset(length) == at && room(length) => length,
        Ok(Some(_)) => return Ok(Found::Damaged(Error::new(ErrorKind::Corrupt, "it is cut off"))),
        Ok(None) => return Ok(Found::Nothing),
        Err(e) => return damaged(e),
    };
    let whole = Buf::zeroed(length as usize);
    node.submit(Io::read(at, whole.clone())).await?;
    Header::decode(&whole.to_vec(), copy).map_or_else(damaged, |header| Ok(Found::Whole(header.into())))
}

fn damaged(e: Error) -> Result<Found> {
    if e.kind() == ErrorKind::Corrupt { Ok(Found::Damaged(e)) } else { Err(e) }
}
