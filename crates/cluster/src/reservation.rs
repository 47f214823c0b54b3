//! A reservation: what a device of kind `reservation` shares with the layers above it that keep what the store lacks.
//!
//! The volume is taken by the first layer or request that needs it, and given back at close. A layer that acknowledges
//! writes from a flash of this host says so to the vault before it does ([`Held::change`]).

use crate::conn::{receive, send};
use crate::handover::{Gives, MOVES};
use crate::host::{Held, Host};
use crate::reach::Reach;
use crate::remote::answer;
use crate::secure::Caller;
use crate::serve::Member;
use crate::wire::{Asking, Frame, Refuse, agree};
use futures_util::future::{Either, select};
use lamina_block::{Address, Buf, Conn, Env, Error, ErrorKind, Node, Result, Signal};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;
use uuid::Uuid;

/// How long a device that is closed waits for the vault.
pub const LAST: Duration = Duration::from_secs(10);
/// How long a host that connects may take to say what it wants, and how many may be about to.
const GREETING: Duration = Duration::from_secs(5);
const GUESTS: usize = 16;
/// How often a request looks that waits for the vault.
const LOOK: Duration = Duration::from_millis(50);

/// A volume that this host takes when it is needed.
pub struct Reservation {
    host: Rc<Host>,
    /// Where the vault is, as commands are to name it.
    place: String,
    /// Where this host takes the writes of others.
    listen: Option<Address>,
    /// The store does nothing any more of a connection that ended so long ago.
    settles: Option<Duration>,
    held: RefCell<Option<Rc<Held>>>,
    is_taking: Cell<bool>,
    has_ended: Cell<bool>,
    /// How often it has begun to take writes of others, or ended that.
    serving: Cell<u64>,
    is_listening: Cell<bool>,
    /// Hosts that are about to say what they want.
    guests: Cell<usize>,
    /// The connection of the host that reads what is left here.
    reader: RefCell<Option<Rc<dyn Conn>>>,
    /// What keeps the writes of others, as long as the device above has it: that holds this reservation.
    member: RefCell<Weak<Member>>,
    /// The device above that reports the volume, if there is one.
    above: RefCell<Option<Weak<dyn Any>>>,
    /// What this host knows of the store.
    pub(crate) reach: Reach,
    moved: Signal,
}

/// The volume is being taken; perhaps nobody waits for the end of that.
struct Takes<'a>(&'a Reservation);

impl Drop for Takes<'_> {
    fn drop(&mut self) {
        self.0.is_taking.set(false);
        self.0.moved.notify();
    }
}

impl Reservation {
    /// Of a host that beats in the vault at `place`, and takes the writes of others at `listen`, in front of a store
    /// that does nothing any more of a connection that ended `settles` ago, if that is known.
    pub fn new(
        host: Rc<Host>,
        place: String,
        listen: Option<Address>,
        settles: Option<Duration>,
    ) -> Rc<Reservation> {
        Rc::new(Reservation {
            host,
            place,
            listen,
            settles,
            held: RefCell::default(),
            is_taking: Cell::new(false),
            has_ended: Cell::new(false),
            serving: Cell::new(0),
            is_listening: Cell::new(false),
            guests: Cell::new(0),
            reader: RefCell::default(),
            member: RefCell::default(),
            above: RefCell::default(),
            reach: Reach::default(),
            moved: Signal::new(),
        })
    }

    /// This host, as the vault sees it.
    pub fn host(&self) -> &Rc<Host> {
        &self.host
    }

    /// Where the vault is: a folder, or `etcd:` with its members.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// A device above reports the volume from now on, as long as it is there: it knows more of it.
    pub fn is_reported_by(&self, above: Weak<dyn Any>) {
        if !self.is_reported_above() {
            self.above.replace(Some(above));
        }
    }

    /// True if a device above reports the volume.
    pub fn is_reported_above(&self) -> bool {
        self.above.borrow().as_ref().is_some_and(|above| above.strong_count() > 0)
    }

    /// What an earlier process of this host had begun on the store has ended when so long has passed, if that is known.
    pub fn settles(&self) -> Option<Duration> {
        self.settles
    }

    /// True if this host can take the writes of others.
    pub fn listens(&self) -> bool {
        self.listen.is_some()
    }

    /// Takes the writes of other hosts for `member`, hears hosts that want the volume for `gives`, and says in the
    /// vault where. Fails if this host cannot listen.
    pub async fn serve(
        self: &Rc<Self>,
        env: &Rc<dyn Env>,
        member: &Rc<Member>,
        gives: Weak<dyn Gives>,
    ) -> Result<()> {
        let Some(at) = self.listen.clone() else {
            return Err(Error::invalid("the reservation has no key `listen`"));
        };
        // A device that this one replaces may be about to end.
        self.stop_serving();
        self.moved.until(|| !self.is_listening.get()).await;
        let (listener, serving) = (env.listen(at)?, self.serving.get());
        self.is_listening.set(true);
        self.set_member(member);
        self.host.announce(listener.address());
        self.watch_store(env, move |me| me.has_ended.get() || me.serving.get() != serving);
        let (me, env) = (Rc::clone(self), Rc::clone(env));
        let spawns = Rc::clone(&env);
        spawns.spawn(Box::pin(async move {
            loop {
                let over = pin!(me.moved.until(|| me.has_ended.get() || me.serving.get() != serving));
                let conn = match select(listener.accept(), over).await {
                    Either::Left((Ok(conn), _)) => conn,
                    Either::Left((Err(e), _)) => {
                        tracing::warn!(error = %e, "a host could not connect");
                        env.sleep(GREETING).await;
                        continue;
                    }
                    Either::Right(_) => break,
                };
                if me.guests.get() == GUESTS {
                    conn.abort();
                    continue;
                }
                let (me, clock) = (Rc::clone(&me), Rc::clone(&env));
                let gives = gives.clone();
                env.spawn(Box::pin(async move {
                    let from = conn.peer();
                    match me.greet(&conn, &clock, &gives).await {
                        Ok(()) => tracing::info!(%from, "a host has ended its connection"),
                        Err(e) => tracing::warn!(%from, error = %e, "a connection of a host has ended"),
                    }
                }));
            }
            drop(listener);
            me.is_listening.set(false);
            me.moved.notify();
        }));
        Ok(())
    }

    /// Writes of hosts that connect from now on are for `member`, where this host listens already: its address stays.
    pub fn set_member(&self, member: &Rc<Member>) {
        self.member.replace(Rc::downgrade(member));
    }

    /// No host can connect any more.
    pub fn stop_serving(&self) {
        self.serving.set(self.serving.get() + 1);
        self.member.take();
        self.reader.take().into_iter().for_each(|reader| reader.abort());
        self.moved.notify();
    }

    /// Hears what a host wants that has connected.
    async fn greet(&self, conn: &Rc<dyn Conn>, env: &Rc<dyn Env>, gives: &Weak<dyn Gives>) -> Result<()> {
        self.guests.set(self.guests.get() + 1);
        let met = async {
            // What is wrong with a certificate is still being said to the other end.
            let (conn, caller) = self.host.meet(conn).await?;
            let heard = receive(&*conn, &**env).await.inspect_err(|_| conn.abort())?;
            Ok((conn, caller, heard))
        };
        let met = match select(pin!(met), env.sleep(GREETING)).await {
            Either::Left((met, _)) => met,
            Either::Right(_) => {
                conn.abort();
                Err(Error::new(ErrorKind::TimedOut, "it says nothing"))
            }
        };
        self.guests.set(self.guests.get() - 1);
        let (conn, caller, heard) = met?;
        // An older Lamina does not know these frames.
        let knows = self.host.versions().1 >= MOVES;
        match heard {
            Some((Frame::Take(_) | Frame::ReadFrom(_), _)) if !knows => Err(Error::unsupported(
                "a host asks for a volume, which version 1 of the protocol does not know",
            )),
            Some((Frame::Hello(hello), _)) if hello.volume == self.host.volume().uuid => {
                tracing::info!(
                    from = conn.peer(),
                    generation = hello.generation,
                    "a host sends its writes here"
                );
                let member = self.member.borrow().upgrade();
                match member {
                    Some(member) => member.serve(conn, hello, caller).await,
                    None => Err(Error::offline("its device is closed")),
                }
            }
            Some((Frame::Take(take), _)) if take.volume == self.host.volume().uuid => {
                let given = match self.heard_of(&take, &caller, gives) {
                    Ok(gives) => give(&*gives, take).await,
                    Err(e) => Err(e),
                };
                let answer = match &given {
                    Ok(generation) => Frame::Given(*generation),
                    Err(e) => Frame::Refuse(Refuse { generation: 0, why: e.message().into() }),
                };
                send(&*conn, &answer, Buf::empty()).await?;
                conn.shutdown();
                given.map(drop)
            }
            Some((Frame::ReadFrom(asking), _)) if asking.volume == self.host.volume().uuid => {
                let generation = asking.generation;
                let remains = match self.heard_of(&asking, &caller, gives) {
                    Ok(gives) => gives.remains(asking).await,
                    Err(e) => Err(e),
                };
                let frame = match &remains {
                    Ok(_) => Frame::Given(generation),
                    Err(e) => Frame::Refuse(Refuse { generation: 0, why: e.message().into() }),
                };
                send(&*conn, &frame, Buf::empty()).await?;
                let remains = remains?;
                // One host at a time has been given the volume.
                let before = self.reader.replace(Some(Rc::clone(&conn)));
                before.into_iter().for_each(|before| before.abort());
                answer(conn, Rc::clone(env), remains, generation).await
            }
            Some((Frame::Hello(_) | Frame::Take(_) | Frame::ReadFrom(_), _)) => {
                let why = format!("volume {:?} alone is kept here", self.host.volume().name);
                let refuse = Frame::Refuse(Refuse { generation: 0, why: why.clone() });
                send(&*conn, &refuse, Buf::empty()).await?;
                Err(Error::new(ErrorKind::Fenced, why))
            }
            Some(_) => Err(Error::new(ErrorKind::Corrupt, "a frame that no host begins with")),
            None => Ok(()),
        }
    }

    /// The device that a host may ask.
    fn heard_of(&self, asking: &Asking, caller: &Caller, gives: &Weak<dyn Gives>) -> Result<Rc<dyn Gives>> {
        agree(self.host.versions().1, asking.versions)?;
        caller.calls_itself(&asking.host)?;
        gives.upgrade().ok_or_else(|| Error::offline("its device is closed"))
    }

    /// Nobody has the volume from now on, if this host had it; it can be taken again. Fails with `Fenced` if another
    /// host has it: it stays so; and with `Busy` if what this host has begun on the store may not have ended.
    pub async fn give_back(&self) -> Result<()> {
        if let Some(why) = self.fenced() {
            return Err(why);
        }
        let Some(held) = self.held() else { return Ok(()) };
        self.has_ended_below().await?;
        let given = match held.give_back().await {
            // The vault has given it away, and its answer was lost; or another host has taken it: that has it by now.
            Err(_) if held.fenced().is_some() => Ok(()),
            given => given,
        };
        if given.is_ok() {
            self.host.count(|counts| counts.given += 1);
        }
        self.held.take();
        given
    }

    /// The volume, if this host has it.
    pub fn held(&self) -> Option<Rc<Held>> {
        self.held.borrow().clone()
    }

    /// True if the device is closed.
    pub(crate) fn is_over(&self) -> bool {
        self.has_ended.get()
    }

    /// True if this host has taken it, and has not given it back.
    pub fn is_held(&self) -> bool {
        self.held.borrow().is_some()
    }

    /// Why nothing may be read or written any more, if another host has the volume.
    pub fn fenced(&self) -> Option<Error> {
        self.held.borrow().as_ref().and_then(|held| held.fenced())
    }

    /// Takes the volume, unless this host has it already; `flash` is what keeps writes that the store lacks. Waits as
    /// long as it takes to see that another host is silent.
    pub async fn take(self: &Rc<Self>, flash: Option<Uuid>) -> Result<Rc<Held>> {
        self.moved.until(|| !self.is_taking.replace(true)).await;
        let _takes = Takes(self);
        self.take_alone(flash).await
    }

    async fn take_alone(self: &Rc<Self>, flash: Option<Uuid>) -> Result<Rc<Held>> {
        if let Some(held) = self.held() {
            if let Some(why) = held.fenced() {
                return Err(why);
            }
            if flash.is_some() && held.record().holder.is_none_or(|holder| holder.flash != flash) {
                // What this flash had of the volume before is older than the store; and so is, from now on, what the
                // host before has.
                held.take_giver();
                held.begins_with_flash();
                held.change(|record| {
                    record.since = record.generation;
                    if let Some(holder) = &mut record.holder {
                        holder.flash = flash;
                    }
                })
                .await?;
            }
            return Ok(held);
        }
        self.host.set_flash(flash);
        let held = self.host.take(self.longest_wait()).await?;
        self.register(held.record().generation).await?;
        self.tells_of_its_end(&held);
        self.fences_the_host_before(&held);
        self.held.replace(Some(Rc::clone(&held)));
        Ok(held)
    }

    /// Long enough to see a host's silence.
    fn longest_wait(&self) -> Duration {
        self.host.lease() * 2
    }

    /// True if requests need not be held back until the vault has been asked: no other host can have the volume yet.
    pub fn is_safe(&self) -> bool {
        self.host.is_safe()
    }

    /// Waits until no other host can have the volume, for so long at most. Fails with `Fenced` if another one has it.
    pub async fn until_safe(&self, patience: Duration) -> Result<()> {
        let mut waits = Duration::ZERO;
        while !self.is_safe() {
            if let Some(why) = self.fenced() {
                return Err(why);
            }
            if waits >= patience {
                return Err(Error::offline("the vault does not answer: another host may have the volume"));
            }
            self.host.sleep(LOOK).await;
            waits += LOOK;
        }
        Ok(())
    }

    /// True if another host takes the volume without a word about this one: late writes do not get to the store.
    pub fn fences(&self) -> bool {
        self.host.vault().fences()
    }

    /// Nobody has the volume from now on, if this host had it, and the vault answers in time; the host beats no more.
    pub async fn end(&self) {
        self.has_ended.set(true);
        self.moved.notify();
        if let Some(held) = self.held.take().filter(|held| held.fenced().is_none()) {
            let gives = async {
                self.has_ended_below().await?;
                held.give_back().await
            };
            let e = match select(pin!(gives), pin!(self.host.sleep(LAST))).await {
                Either::Left((given, _)) => given.err(),
                Either::Right(_) => Some(Error::offline("there was no answer in time")),
            };
            if let Some(e) = e {
                tracing::warn!(error = %e, "the vault was not told that this host has given back its volume");
            }
        }
        self.host.stop();
    }
}

/// Gives a volume to the host that asks; the generation in which it had it.
async fn give(gives: &dyn Gives, take: Asking) -> Result<u64> {
    let generation = take.generation;
    tracing::info!(host = take.host, generation, "a host asks for the volume");
    let host = take.host.clone();
    gives.give(take).await.map(|()| generation).inspect(|_| {
        tracing::info!(host, generation, "the volume is given to the host that has asked for it");
    })
}

/// The reservation that a device is, if it is one.
pub fn reservation_of(node: &Rc<Node>) -> Option<Rc<Reservation>> {
    node.shared().and_then(|shared| shared.downcast::<Reservation>().ok())
}
