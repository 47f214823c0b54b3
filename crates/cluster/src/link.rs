//! A connection of a primary to one peer: what is written here goes there, in order, as far as the peer grants.
//!
//! ```text
//!      put ──▶ waiting ──▶ Batch ───▶ peer
//!      flush ────────────▶ Flush ───▶
//!      every half timeout  Checkpoint ▶
//!                          Ack ◀─────     ──▶ Watcher: how far the flash is, or that it is lost
//! ```
//!
//! Invariants:
//! * A flush goes after all writes that it covers.
//! * A peer that does not speak for `timeout`, or gets no further for ten of these, is lost: the connection ends, and
//!   whoever watches is told once.

use crate::conn::{receive, send};
use crate::members::Progress;
use crate::sender::Sender;
use crate::wire::{Ack, BLOCK, Batch, Credit, DATA_MAX, ENTRIES_MAX, Entry, Frame, Hello, Welcome};
use futures_util::future::{Either, select};
use lamina_block::{Buf, Conn, Env, Error, ErrorKind, Result, Signal};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use uuid::Uuid;

/// Without progress for so many timeouts a peer is lost, although it speaks.
const STUCK: u32 = 10;

/// Is told of a peer.
pub trait Watcher {
    /// The flash has got further.
    fn progressed(&self, flash: Uuid, to: Progress);
    /// The connection has ended: nothing more is sent, nor heard.
    fn lost(&self, flash: Uuid, why: &Error);
}

/// A connection to a peer.
pub struct Link {
    env: Rc<dyn Env>,
    conn: Rc<dyn Conn>,
    /// The name of the host, for people.
    pub host: String,
    /// Its flash.
    pub flash: Uuid,
    /// So many blocks may be there that the store lacks.
    pub space: u64,
    /// The version of the protocol that both speak.
    pub version: u16,
    generation: u64,
    timeout: Duration,
    sender: RefCell<Sender>,
    waiting: RefCell<VecDeque<(Entry, Buf)>>,
    /// Everything up to this serial number has been given to it, or does not concern it.
    latest: Cell<u64>,
    /// Up to where it is to be durable; and that, with the last serial number that was sent when it was asked to.
    wanted: Cell<u64>,
    asked: Cell<(u64, u64)>,
    progress: Cell<Progress>,
    checkpoint: Cell<u64>,
    /// A question whether it is there is to be sent.
    asks: Cell<bool>,
    reaches_store: Cell<bool>,
    ended: RefCell<Option<Error>>,
    moved: Signal,
}

/// What `work` gives, or an error when that takes too long.
pub(crate) async fn in_time<T>(
    env: &dyn Env,
    time: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    match select(pin!(work), env.sleep(time)).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(Error::new(ErrorKind::TimedOut, "it does not answer")),
    }
}

impl Link {
    /// Begins a connection, over which nothing has been said yet. Fails with the peer's words if that refuses.
    pub async fn begin(
        env: Rc<dyn Env>,
        conn: Rc<dyn Conn>,
        host: String,
        hello: Hello,
        timeout: Duration,
    ) -> Result<Rc<Link>> {
        let greet = async {
            send(&*conn, &Frame::Hello(hello), Buf::empty()).await?;
            match receive(&*conn, &*env).await? {
                Some((Frame::Welcome(welcome), _)) => Ok(welcome),
                Some((Frame::Refuse(refuse), _)) => Err(Error::new(ErrorKind::Fenced, refuse.why)),
                Some(_) => {
                    Err(Error::new(ErrorKind::Corrupt, "it answers with another frame than a welcome"))
                }
                None => Err(Error::offline("it ends the connection")),
            }
        };
        let told = |e: Error| Error::new(e.kind(), format!("host {host}: {}", e.message()));
        // A peer forgets what it had, which takes its time.
        let welcome = in_time(&*env, timeout * STUCK, greet).await.map_err(told)?;
        if (welcome.written, welcome.durable) != (0, 0) {
            return Err(told(Error::new(ErrorKind::Corrupt, "it has writes that were not sent yet")));
        }
        let Welcome { flash, space, version, .. } = welcome;
        let sender = Sender::new(&welcome, env.now()).into();
        Ok(Rc::new(Link {
            env,
            conn,
            host,
            flash,
            space,
            version,
            generation: hello.generation,
            timeout,
            sender,
            waiting: RefCell::default(),
            latest: Cell::default(),
            wanted: Cell::default(),
            asked: Cell::default(),
            progress: Cell::default(),
            checkpoint: Cell::default(),
            asks: Cell::default(),
            reaches_store: Cell::new(true),
            ended: RefCell::default(),
            moved: Signal::new(),
        }))
    }

    /// From now on it has everything up to `serial`, durably, as the store has, and gets what comes after.
    pub fn start(self: &Rc<Link>, serial: u64, watcher: Rc<dyn Watcher>) {
        self.latest.set(serial);
        self.checkpoint.set(serial);
        self.progress.set(Progress { written: serial, durable: serial });
        let me = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            let e = {
                let (hears, says, watches) = (pin!(me.hears(&*watcher)), pin!(me.says()), pin!(me.watches()));
                match select(select(hears, says), watches).await {
                    Either::Left((Either::Left((e, _)) | Either::Right((e, _)), _))
                    | Either::Right((e, _)) => e,
                }
            };
            me.conn.abort();
            me.waiting.borrow_mut().clear();
            let e = me.ended.borrow_mut().get_or_insert(e).clone();
            watcher.lost(me.flash, &e);
        }));
    }

    /// A write, with its own copy of the data. They come in the order of their serial numbers.
    pub fn put(&self, entry: Entry, data: Buf) {
        self.latest.set(entry.serial);
        if self.ended.borrow().is_none() {
            self.waiting.borrow_mut().push_back((entry, data));
            self.moved.notify();
        }
    }

    /// It is asked to make everything up to `serial` durable, which has been put.
    pub fn flush(&self, serial: u64) {
        if serial > self.wanted.get() {
            self.latest.set(self.latest.get().max(serial));
            self.wanted.set(serial);
            self.moved.notify();
        }
    }

    /// The store has everything up to `upto`, durably.
    pub fn stored(&self, upto: u64) {
        self.checkpoint.set(self.checkpoint.get().max(upto));
    }

    /// Why it has ended, if it has.
    pub fn ended(&self) -> Option<Error> {
        self.ended.borrow().clone()
    }

    /// Whether the peer reaches the store, as it said last.
    pub fn reaches_store(&self) -> bool {
        self.reaches_store.get()
    }

    /// For how long the peer has owed an answer.
    pub fn silent_for(&self) -> Duration {
        self.sender.borrow().silent_for(self.env.now())
    }

    /// How many serial numbers lie between the last write that was given to it and the last one that it has; zero when
    /// it has all. Fills after reads have numbers, too.
    pub fn lag_writes(&self) -> u64 {
        self.latest.get().saturating_sub(self.progress.get().written)
    }

    /// Ends the connection. It is lost then.
    pub fn end(&self, why: Error) {
        self.ended.borrow_mut().get_or_insert(why);
        self.moved.notify();
    }

    /// What can be sent now.
    fn next_batch(&self) -> Option<(Batch, Buf)> {
        let (mut waiting, sender) = (self.waiting.borrow_mut(), self.sender.borrow());
        let (mut entries, mut data, mut of) = (Vec::new(), Buf::empty(), Credit::default());
        while let Some((entry, _)) = waiting.front() {
            let more =
                Credit { bytes: of.bytes + u64::from(entry.count) * BLOCK as u64, writes: of.writes + 1 };
            if entries.len() == ENTRIES_MAX || more.bytes > DATA_MAX as u64 || !sender.may_send(more) {
                break;
            }
            let (entry, bytes) = waiting.pop_front().expect("it is the first");
            entries.push(entry);
            data.append(bytes);
            of = more;
        }
        let first = entries.first()?.serial;
        let checkpoint = self.checkpoint.get().min(first - 1);
        Some((Batch { generation: self.generation, checkpoint, entries }, data))
    }

    /// A flush that is to be sent now: nothing waits that it covers.
    fn next_flush(&self) -> Option<u64> {
        let (wanted, sender) = (self.wanted.get(), self.sender.borrow());
        let is_covered = self.waiting.borrow().front().is_none_or(|(entry, _)| entry.serial > wanted);
        (is_covered && wanted > self.asked.get().0 && !sender.is_flushing()).then_some(sender.serial())
    }

    /// Says what there is to say, until the connection ends.
    async fn says(&self) -> Error {
        loop {
            let moved = self.moved.wait();
            let now = self.env.now();
            let frame = if let Some((batch, data)) = self.next_batch() {
                let of = Credit { bytes: data.len() as u64, writes: batch.entries.len() as u64 };
                let last = batch.entries.last().map_or(0, |entry| entry.serial);
                self.sender.borrow_mut().sends(of, last, now);
                Some((Frame::Batch(batch), data))
            } else if let Some(serial) = self.next_flush() {
                self.asked.set((self.wanted.get(), serial));
                self.sender.borrow_mut().flushes(now);
                match self.sender.borrow().is_flushing() {
                    true => Some((Frame::Flush(serial), Buf::empty())),
                    false => {
                        // All that was ever sent is durable.
                        self.asks.set(true);
                        None
                    }
                }
            } else {
                None
            };
            let frame = frame.or_else(|| {
                self.asks.replace(false).then(|| {
                    self.sender.borrow_mut().asks(now);
                    (Frame::Checkpoint(self.checkpoint.get()), Buf::empty())
                })
            });
            match frame {
                Some((frame, data)) => {
                    if let Err(e) = send(&*self.conn, &frame, data).await {
                        return e;
                    }
                }
                None => moved.await,
            }
        }
    }

    async fn hears(&self, watcher: &dyn Watcher) -> Error {
        loop {
            match receive(&*self.conn, &*self.env).await {
                Ok(Some((Frame::Ack(ack), _))) => {
                    if let Err(e) = self.acked(ack) {
                        return e;
                    }
                    watcher.progressed(self.flash, self.progress.get());
                    self.moved.notify();
                }
                Ok(Some((Frame::Refuse(refuse), _))) => return Error::new(ErrorKind::Fenced, refuse.why),
                Ok(Some(_)) => return Error::new(ErrorKind::Corrupt, "a frame that a peer does not send"),
                Ok(None) => return Error::offline("the peer has ended the connection"),
                Err(e) => return e,
            }
        }
    }

    /// The peer has said how far it is: in serial numbers of what it was sent, some of which are left out.
    fn acked(&self, ack: Ack) -> Result<()> {
        let mut sender = self.sender.borrow_mut();
        sender.acked(ack, self.env.now())?;
        self.reaches_store.set(ack.reaches_store);
        let Progress { mut written, mut durable } = self.progress.get();
        let has_all = ack.written == sender.serial() && self.waiting.borrow().is_empty();
        written = written.max(if has_all { self.latest.get() } else { ack.written });
        let (wanted, asked) = self.asked.get();
        durable = durable.max(if ack.durable >= asked { wanted } else { ack.durable });
        self.progress.set(Progress { written: written.max(durable), durable });
        Ok(())
    }

    /// Asks again and again whether the peer is there; ends when it is not, or when the connection is to end.
    async fn watches(&self) -> Error {
        loop {
            {
                let over = pin!(self.moved.until(|| self.ended.borrow().is_some()));
                select(self.env.sleep(self.timeout / 4), over).await;
            }
            if let Some(e) = self.ended() {
                return e;
            }
            let (now, sender) = (self.env.now(), self.sender.borrow());
            let (silent, stuck) = (sender.silent_for(now), sender.stuck_for(now));
            drop(sender);
            if silent >= self.timeout || stuck >= self.timeout * STUCK {
                let message = format!("no answer for {:?}", silent.max(stuck));
                return Error::new(ErrorKind::TimedOut, message);
            }
            self.asks.set(true);
            self.moved.notify();
        }
    }
}
