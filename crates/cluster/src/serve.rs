//! A volume at a peer, as its primary reaches it over a connection.
//!
//! ```text
//!      connection ──▶ Batch ──▶ Peer: may it be taken? ──▶ replica: put ──┐
//!                 ──▶ Flush ──────────────────────────────▶ replica: flush ┤
//!                 ◀── Ack ◀── one that says the newest, with all credit ◀──┘
//! ```
//!
//! Invariants:
//! * One connection at a time: another one ends it, and waits until nothing of it is under way.
//! * A host that sends and does not read is held back: there is one answer that waits, however much there is to say.
//! * Whatever is wrong ends this connection, and nothing else.

use crate::conn::{receive, send};
use crate::peer::{Answer, Peer};
use crate::secure::Caller;
use crate::wire::{Ack, Batch, Frame, Hello, Refuse};
use futures_util::future::{Either, select};
use lamina_block::{Buf, Conn, Env, Error, ErrorKind, Pending, Result, Signal};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

/// Flushes under way, at most.
const FLUSHES: usize = 64;

/// What keeps the writes of a volume at a peer.
pub trait Replica {
    /// Fails if a host may not send its writes, or not so.
    fn admit(&self, hello: Hello, caller: &Caller) -> Pending;
    /// Nothing that is here counts any more, and what comes is what this host says; durable when it returns.
    fn begin(&self, hello: Hello, caller: &Caller) -> Pending;
    /// Puts writes where they survive the death of the process. Several are under way together, and are called in the
    /// order of their serial numbers: of two of the same block the later one counts, in whatever order they end.
    fn put(&self, batch: Batch, data: Buf) -> Pending;
    /// Makes durable what was put.
    fn flush(&self) -> Pending;
    /// The store has everything up to this serial number, durably.
    fn stored(&self, upto: u64);
    /// So many blocks may be here that the store lacks.
    fn space(&self) -> u64;
    /// Whether the store can be reached from here.
    fn reaches_store(&self) -> bool;
}

/// A volume at a peer.
pub struct Member {
    env: Rc<dyn Env>,
    peer: RefCell<Peer>,
    replica: Rc<dyn Replica>,
    /// The connection that is served, or is the next one; its number, and that of the last one that has come.
    current: RefCell<Option<Rc<dyn Conn>>>,
    number: Cell<u64>,
    last: Cell<u64>,
    is_served: Cell<bool>,
    /// Nothing is taken any more.
    has_ended: Cell<bool>,
    moved: Signal,
}

/// A connection that is served.
struct Session {
    member: Rc<Member>,
    conn: Rc<dyn Conn>,
    /// What is still to be said.
    answer: Cell<Option<Ack>>,
    puts: Cell<usize>,
    flushes: Cell<usize>,
    failed: RefCell<Option<Error>>,
    has_ended: Cell<bool>,
    moved: Signal,
}

impl Member {
    /// A volume at a peer.
    pub fn new(env: Rc<dyn Env>, peer: Peer, replica: Rc<dyn Replica>) -> Rc<Member> {
        Rc::new(Member {
            env,
            peer: peer.into(),
            replica,
            current: RefCell::default(),
            number: Cell::new(0),
            last: Cell::new(0),
            is_served: Cell::new(false),
            has_ended: Cell::new(false),
            moved: Signal::new(),
        })
    }

    /// From now on nothing of an older generation is taken, and the connection of its host ends.
    pub fn promise(&self, generation: u64) {
        self.peer.borrow_mut().promise(generation);
        self.current.take().into_iter().for_each(|conn| conn.shutdown());
    }

    /// Takes nothing any more. What was acknowledged is here, and nothing is under way, when this returns.
    pub async fn end(&self) {
        self.has_ended.set(true);
        self.current.take().into_iter().for_each(|conn| conn.shutdown());
        self.moved.until(|| !self.is_served.get()).await;
    }

    /// True while a host sends its writes here.
    pub fn is_served(&self) -> bool {
        self.is_served.get()
    }

    /// Everything up to this serial number is here.
    pub fn written(&self) -> u64 {
        self.peer.borrow().written()
    }

    /// Serves a connection whose first frame was `hello`, until it ends.
    pub async fn serve(self: &Rc<Self>, conn: Rc<dyn Conn>, hello: Hello, caller: Caller) -> Result<()> {
        let number = self.last.get() + 1;
        self.last.set(number);
        // Whoever may not send does not end the connection of the host that may.
        let admitted = match self.replica.admit(hello, &caller).await {
            Ok(()) if number < self.number.get() => {
                Err(Error::offline("a later connection has taken its place"))
            }
            admitted => admitted,
        };
        if let Err(e) = admitted {
            let refuse = Refuse { generation: self.peer.borrow().promised(), why: e.message().into() };
            send(&*conn, &Frame::Refuse(refuse), Buf::empty()).await?;
            return Err(e);
        }
        self.number.set(number);
        if let Some(before) = self.current.replace(Some(Rc::clone(&conn))) {
            before.shutdown();
        }
        let is_over = || self.has_ended.get() || number != self.number.get();
        self.moved.until(|| is_over() || !self.is_served.get()).await;
        if is_over() {
            conn.shutdown();
            return Err(Error::new(ErrorKind::Fenced, "no writes of other hosts are taken here any more"));
        }
        self.is_served.set(true);
        let ended = self.serve_alone(&conn, hello, &caller).await;
        conn.shutdown();
        self.is_served.set(false);
        self.moved.notify();
        ended
    }

    async fn serve_alone(self: &Rc<Self>, conn: &Rc<dyn Conn>, hello: Hello, caller: &Caller) -> Result<()> {
        let mut next = self.peer.borrow().clone();
        next.set_space(self.replica.space());
        let refused = |e: Error| Frame::Refuse(Refuse { generation: 0, why: e.message().into() });
        let mut answer = match next.hello(&hello) {
            Ok(Answer::Welcome(welcome)) => Frame::Welcome(welcome),
            Ok(Answer::Refuse(refuse)) => Frame::Refuse(refuse),
            Err(e) => refused(e),
        };
        if let Frame::Welcome(welcome) = &answer
            && (hello.is_anew || hello.generation > welcome.generation)
            && let Err(e) = self.replica.begin(hello, caller).await
        {
            answer = refused(e);
        }
        if let Frame::Welcome(_) = &answer {
            // What was promised meanwhile holds.
            next.promise(self.peer.borrow().promised());
            self.peer.replace(next);
        }
        send(&**conn, &answer, Buf::empty()).await?;
        if let Frame::Refuse(refuse) = answer {
            return Err(Error::new(ErrorKind::Fenced, refuse.why));
        }
        let session = Rc::new(Session {
            member: Rc::clone(self),
            conn: Rc::clone(conn),
            answer: Cell::new(None),
            puts: Cell::new(0),
            flushes: Cell::new(0),
            failed: RefCell::default(),
            has_ended: Cell::new(false),
            moved: Signal::new(),
        });
        let result = {
            let (takes, answers) = (pin!(session.takes()), pin!(session.answers()));
            match select(takes, answers).await {
                Either::Left((ended, _)) | Either::Right((ended, _)) => ended,
            }
        };
        session.has_ended.set(true);
        session.moved.notify();
        session.moved.until(|| session.puts.get() + session.flushes.get() == 0).await;
        result
    }
}

impl Session {
    /// Takes what comes.
    async fn takes(self: &Rc<Self>) -> Result<()> {
        while let Some((frame, data)) = receive(&*self.conn, &*self.member.env).await? {
            if let Some(e) = self.failed.borrow().clone() {
                return Err(e);
            }
            match frame {
                Frame::Batch(batch) => {
                    self.member.peer.borrow_mut().takes(&batch)?;
                    self.stored(batch.checkpoint);
                    self.put(batch, data);
                }
                Frame::Flush(serial) => self.flush(serial)?,
                Frame::Checkpoint(upto) => {
                    self.stored(upto);
                    let ack = self.member.peer.borrow().progress(self.member.replica.reaches_store());
                    self.say(ack);
                }
                _ => {
                    return Err(Error::new(ErrorKind::Corrupt, "a frame that a primary does not send now"));
                }
            }
        }
        Ok(())
    }

    /// Says what there is to say.
    async fn answers(&self) -> Result<()> {
        loop {
            self.moved.until(|| self.has_answer() || self.failed.borrow().is_some()).await;
            if let Some(e) = self.failed.borrow().clone() {
                return Err(e);
            }
            if let Some(ack) = self.answer.take() {
                send(&*self.conn, &Frame::Ack(ack), Buf::empty()).await?;
            }
        }
    }

    fn has_answer(&self) -> bool {
        let answer = self.answer.take();
        self.answer.set(answer);
        answer.is_some()
    }

    /// What is said later takes the place of what was not said yet.
    fn say(&self, mut ack: Ack) {
        if let Some(before) = self.answer.take() {
            ack.credit.bytes += before.credit.bytes;
            ack.credit.writes += before.credit.writes;
        }
        self.answer.set(Some(ack));
        self.moved.notify();
    }

    fn fails(&self, e: Error) {
        self.failed.borrow_mut().get_or_insert(e);
        self.moved.notify();
    }

    fn put(self: &Rc<Self>, batch: Batch, data: Buf) {
        let (me, last) = (Rc::clone(self), batch.entries.last().map_or(0, |entry| entry.serial));
        // It begins in the order of what comes, and not in that of the tasks.
        let put = self.member.replica.put(batch, data);
        self.puts.set(self.puts.get() + 1);
        self.member.env.spawn(Box::pin(async move {
            let member = &me.member;
            match put.await {
                Ok(()) => {
                    let ack = member.peer.borrow_mut().wrote(last, member.replica.reaches_store());
                    ack.into_iter().for_each(|ack| me.say(ack));
                }
                Err(e) => me.fails(e),
            }
            me.puts.set(me.puts.get() - 1);
            me.moved.notify();
        }));
    }

    /// The store has everything up to `upto`, of what was ever put here.
    fn stored(&self, upto: u64) {
        let written = self.member.written();
        self.member.replica.stored(upto.min(written));
    }

    /// Flushes when everything up to `serial` has been put.
    fn flush(self: &Rc<Self>, serial: u64) -> Result<()> {
        if serial > self.member.peer.borrow().taken() || self.flushes.get() >= FLUSHES {
            let message = format!("a flush of writes up to {serial}, which did not come, or one too many");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let me = Rc::clone(self);
        self.flushes.set(self.flushes.get() + 1);
        self.member.env.spawn(Box::pin(async move {
            let member = &me.member;
            let is_there = || member.written() >= serial;
            me.moved.until(|| is_there() || me.has_ended.get() || me.failed.borrow().is_some()).await;
            if is_there() {
                let written = member.written();
                match member.replica.flush().await {
                    Ok(()) => {
                        let ack = member.peer.borrow_mut().flushed(written, member.replica.reaches_store());
                        me.say(ack);
                    }
                    Err(e) => me.fails(e),
                }
            }
            me.flushes.set(me.flushes.get() - 1);
            me.moved.notify();
        }));
        Ok(())
    }
}
