//! Reads from the flash of the host that had the volume before: what is there is as it was at the change of hands.
//!
//! ```text
//!      primary ── ReadFrom ──▶ the host before: is it of the generation that was given to this host?
//!              ── Read ──────▶ on its flash? ── yes ──▶ Found, with data
//!                                            ── no ───▶ Found, without
//! ```
//!
//! The primary knows which blocks have changed since, and does not ask for them. Whatever is wrong, or late, ends these
//! reads for good: the store has everything, or the primary's own flash.

use crate::conn::{receive, send};
use crate::link::in_time;
use crate::wire::{Asking, BLOCK, Found, Frame, READ_MAX, Read};
use futures_util::future::{Either, select};
use lamina_block::{Buf, Conn, Env, Error, ErrorKind, Pending, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// Reads that are carried out together for one host; further ones wait.
const TOGETHER: usize = 64;

/// What a host still has of a volume that it has given away.
pub trait Remains {
    /// Blocks as they were in `generation`: all of them, or nothing. Fails if the volume has changed hands again.
    fn read(&self, generation: u64, blocks: Range<u64>) -> Pending<Option<Buf>>;
}

/// Frames that are sent one after the other, whoever has them to say.
struct Outbox {
    conn: Rc<dyn Conn>,
    waiting: RefCell<VecDeque<(Frame, Buf)>>,
    moved: Signal,
}

impl Outbox {
    fn new(conn: &Rc<dyn Conn>) -> Rc<Outbox> {
        Rc::new(Outbox { conn: Rc::clone(conn), waiting: RefCell::default(), moved: Signal::new() })
    }

    fn say(&self, frame: Frame, data: Buf) {
        self.waiting.borrow_mut().push_back((frame, data));
        self.moved.notify();
    }

    /// Sends until that fails.
    async fn says(&self) -> Error {
        loop {
            self.moved.until(|| !self.waiting.borrow().is_empty()).await;
            let next = self.waiting.borrow_mut().pop_front();
            if let Some((frame, data)) = next
                && let Err(e) = send(&*self.conn, &frame, data).await
            {
                return e;
            }
        }
    }
}

/// Answers the reads of a primary until it ends the connection.
pub(crate) async fn answer(
    conn: Rc<dyn Conn>,
    env: Rc<dyn Env>,
    remains: Rc<dyn Remains>,
    generation: u64,
) -> Result<()> {
    let (outbox, under_way, failed) =
        (Outbox::new(&conn), Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
    let takes = async {
        loop {
            outbox.moved.until(|| under_way.get() + outbox.waiting.borrow().len() < TOGETHER).await;
            if let Some(e) = failed.take() {
                return Err(e);
            }
            let read = match receive(&*conn, &*env).await? {
                Some((Frame::Read(read), _)) => read,
                Some(_) => return Err(Error::new(ErrorKind::Corrupt, "a frame that no reader sends")),
                None => return Ok(()),
            };
            under_way.set(under_way.get() + 1);
            let (remains, outbox) = (Rc::clone(&remains), Rc::clone(&outbox));
            let (under_way, failed) = (Rc::clone(&under_way), Rc::clone(&failed));
            env.spawn(Box::pin(async move {
                match remains.read(generation, read.blocks()).await {
                    Ok(data) => {
                        let data = data.unwrap_or_else(Buf::empty);
                        outbox.say(Frame::Found(Found::new(read.number(), &data.to_vec())), data);
                    }
                    Err(e) => {
                        failed.replace(Some(e));
                        outbox.conn.shutdown();
                    }
                }
                under_way.set(under_way.get() - 1);
                outbox.moved.notify();
            }));
        }
    };
    let ended = match select(pin!(takes), pin!(outbox.says())).await {
        Either::Left((ended, _)) => ended,
        Either::Right((e, _)) => Err(e),
    };
    conn.shutdown();
    ended
}

/// A read that waits for its answer: the data, or nothing.
type Waiting = BTreeMap<u64, Option<Option<Buf>>>;

/// The flash of the host before, as its successor reads it.
pub struct Remote {
    env: Rc<dyn Env>,
    outbox: Rc<Outbox>,
    timeout: Duration,
    next: Cell<u64>,
    waiting: RefCell<Waiting>,
    has_ended: Cell<bool>,
    moved: Signal,
}

/// A read that waits, until it is dropped.
struct Waits<'a>(&'a Remote, u64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.waiting.borrow_mut().remove(&self.1);
    }
}

impl Remote {
    /// Begins over a connection. Fails with the other host's words if it has nothing.
    pub async fn begin(
        env: Rc<dyn Env>,
        conn: Rc<dyn Conn>,
        asking: Asking,
        timeout: Duration,
    ) -> Result<Rc<Remote>> {
        let greet = async {
            send(&*conn, &Frame::ReadFrom(asking), Buf::empty()).await?;
            match receive(&*conn, &*env).await? {
                Some((Frame::Given(_), _)) => Ok(()),
                Some((Frame::Refuse(refuse), _)) => Err(Error::offline(refuse.why)),
                Some(_) => Err(Error::new(ErrorKind::Corrupt, "a frame that answers no reader")),
                None => Err(Error::offline("it ends the connection")),
            }
        };
        in_time(&*env, timeout, greet).await.inspect_err(|_| conn.abort())?;
        let remote = Rc::new(Remote {
            env: Rc::clone(&env),
            outbox: Outbox::new(&conn),
            timeout,
            next: Cell::new(1),
            waiting: RefCell::default(),
            has_ended: Cell::new(false),
            moved: Signal::new(),
        });
        let me = Rc::clone(&remote);
        env.spawn(Box::pin(async move {
            let why = match select(pin!(me.hears()), pin!(me.outbox.says())).await {
                Either::Left((why, _)) | Either::Right((why, _)) => why,
            };
            tracing::debug!(error = %why, "reads from the host before have ended");
            me.end();
        }));
        Ok(remote)
    }

    /// Blocks, if the other host has all of them. `None` also when these reads have ended.
    pub async fn read(&self, blocks: Range<u64>) -> Option<Buf> {
        let count = u32::try_from(blocks.end - blocks.start).ok().filter(|count| *count <= READ_MAX)?;
        if self.has_ended.get() {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        self.waiting.borrow_mut().insert(number, None);
        let _waits = Waits(self, number);
        self.outbox.say(Frame::Read(Read::new(number, blocks.start, count)), Buf::empty());
        let asks = async {
            let is_there = || self.waiting.borrow().get(&number).is_some_and(Option::is_some);
            self.moved.until(|| is_there() || self.has_ended.get()).await;
            self.waiting.borrow_mut().remove(&number).flatten().flatten()
        };
        let found = match select(pin!(asks), self.env.sleep(self.timeout)).await {
            Either::Left((found, _)) => found,
            Either::Right(_) => {
                self.end();
                None
            }
        };
        found.filter(|data| data.len() == count as usize * BLOCK)
    }

    /// True if nothing can be read any more.
    pub fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// Ends the connection.
    pub fn end(&self) {
        if !self.has_ended.replace(true) {
            self.outbox.conn.abort();
            self.moved.notify();
        }
    }

    async fn hears(&self) -> Error {
        loop {
            match receive(&*self.outbox.conn, &*self.env).await {
                Ok(Some((Frame::Found(found), data))) => {
                    if !found.is_of(&data.to_vec()) {
                        return Error::new(
                            ErrorKind::Corrupt,
                            "data have another checksum than they were sent with",
                        );
                    }
                    // One that nobody waits for any more is no matter.
                    if let Some(waits) = self.waiting.borrow_mut().get_mut(&found.number()) {
                        *waits = Some((!found.is_empty()).then_some(data));
                    }
                    self.moved.notify();
                }
                Ok(Some(_)) => return Error::new(ErrorKind::Corrupt, "a frame that answers no read"),
                Ok(None) => return Error::offline("the other host has ended the connection"),
                Err(e) => return e,
            }
        }
    }
}
