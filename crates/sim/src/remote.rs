//! A disk that a host reaches over a network: requests that are under way there go on when their host does not.
//!
//! ```text
//!      host ──▶ request ──▶ here: done, answered                       (also if the host dies meanwhile)
//!                           lost: an error at once, not done
//!                           late: an error, done later; what the host changes next waits for that
//!                           held: no answer, done when the network is whole again, however late that is
//! ```
//!
//! A process that has ended leaves nothing behind for longer than [`SETTLES`]: what was held is done within that time,
//! or never.

use crate::disk::SimDisk;
use crate::env::SimEnv;
use lamina_block::{
    Buf, Env, Error, ErrorKind, Extent, Geometry, Healed, Io, Judge, Layer, Manage, Op, Passthrough, Pending,
    Result, Signal, Step,
};
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

/// The longest that a request is done after the process has ended that made it.
pub const SETTLES: Duration = Duration::from_millis(900);
/// The longest that a request is done after it was answered with an error.
const LATE: Duration = Duration::from_secs(2);
/// How long an answer takes that says that there is no network.
const NO_ROUTE: Duration = Duration::from_millis(1);

/// How a host reaches a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// As it should.
    #[default]
    Here,
    /// Requests fail, and are not done.
    Lost,
    /// Requests fail, and are done later.
    Late,
    /// Requests have no answer until that changes, and are done then.
    Held,
}

/// A disk, as one process of a host reaches it.
pub struct SimRemote {
    world: Rc<SimEnv>,
    disk: Rc<SimDisk>,
    reach: Cell<Reach>,
    /// Its process has ended.
    is_over: Cell<bool>,
    /// Requests that have failed, and are still to be done.
    unresolved: Cell<usize>,
    moved: Signal,
}

impl SimRemote {
    /// The disk called `name`, which another machine has.
    pub fn open(world: &Rc<SimEnv>, name: &str) -> Option<Rc<SimRemote>> {
        Some(Rc::new(SimRemote {
            world: Rc::clone(world),
            disk: world.disk(name)?,
            reach: Cell::default(),
            is_over: Cell::new(false),
            unresolved: Cell::new(0),
            moved: Signal::new(),
        }))
    }

    /// From now on it is reached so.
    pub fn set_reach(&self, reach: Reach) {
        self.reach.set(reach);
        self.moved.notify();
    }

    /// The process has ended that used it.
    pub fn end(&self) {
        self.is_over.set(true);
        self.moved.notify();
    }

    fn way(&self, most: Duration) -> Duration {
        Duration::from_nanos(self.world.random() % most.as_nanos() as u64)
    }

    /// Does a request where it gets to.
    async fn perform(&self, mut io: Io) -> Result<()> {
        match Rc::clone(&self.disk).submit(&mut io) {
            Step::Done(done) => done,
            Step::Control(work) => work.await,
            Step::Forward(_) => Err(Error::unsupported("a disk has nothing below")),
        }
    }

    async fn request(self: Rc<Self>, io: Io) -> Result<()> {
        let is_read = matches!(io.op, Op::Read(_));
        if !is_read {
            self.moved.until(|| self.unresolved.get() == 0).await;
        }
        let me = Rc::clone(&self);
        match self.reach.get() {
            Reach::Here => self.world.start(async move { me.perform(io).await }).ended().await,
            Reach::Late if !is_read => {
                self.unresolved.set(self.unresolved.get() + 1);
                self.world.spawn(Box::pin(async move {
                    me.world.sleep(me.way(LATE)).await;
                    // One whose process has ended is not done later than it may be.
                    if !me.is_over.get() {
                        let _nobody_waits = me.perform(io).await;
                    }
                    me.unresolved.set(me.unresolved.get() - 1);
                    me.moved.notify();
                }));
                self.world.sleep(NO_ROUTE).await;
                Err(Error::new(ErrorKind::TimedOut, "the store has not answered in time"))
            }
            Reach::Lost | Reach::Late => {
                self.world.sleep(NO_ROUTE).await;
                Err(Error::offline("the store cannot be reached"))
            }
            Reach::Held => {
                let held = async move {
                    me.moved.until(|| me.reach.get() != Reach::Held || me.is_over.get()).await;
                    if me.is_over.get() {
                        if me.world.random().is_multiple_of(2) {
                            return Err(Error::offline("it never got there"));
                        }
                        me.world.sleep(me.way(SETTLES)).await;
                    }
                    me.perform(io).await
                };
                self.world.start(held).ended().await
            }
        }
    }
}

impl Layer for SimRemote {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let io = io.take();
        Step::control(async move {
            // What is given to a task of the world outlives the host, and so does its memory.
            let (io, into) = match io.op {
                Op::Read(into) => {
                    let own = Buf::zeroed(into.len());
                    (Io::read(io.at.start, own.clone()), Some((own, into)))
                }
                Op::Write(from, durability) => {
                    (Io::write(io.at.start, Buf::from_vec(from.to_vec()), durability), None)
                }
                _ => (io, None),
            };
            self.request(io).await?;
            into.iter().for_each(|(own, into)| into.copy_from(own));
            Ok(())
        })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Rc::clone(&self.disk).extents(at)
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Rc::clone(&self.disk).heal(at, is_right)
    }
}

impl Manage for SimRemote {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskOptions, Image, SimHost, Simulation};
    use lamina_block::{Durability, Node};

    fn filled(value: u8) -> Io {
        Io::write(0, Buf::from_vec(vec![value; 4096]), Durability::Cached)
    }

    async fn byte(node: &Rc<Node>) -> u8 {
        let buf = Buf::zeroed(4096);
        node.submit(Io::read(0, buf.clone())).await.expect("read");
        buf.to_vec()[0]
    }

    #[test]
    fn what_is_under_way_outlives_its_host_for_a_while() {
        for (reach, answer) in
            [(Reach::Here, None), (Reach::Late, Some(ErrorKind::TimedOut)), (Reach::Held, None)]
        {
            let world = Simulation::new(3);
            let env = world.env();
            let run = async move {
                env.put_disk("store", Image::blank(DiskOptions::new(1 << 20)));
                let node = |remote: &Rc<SimRemote>| {
                    Node::new(
                        "store",
                        "simulated",
                        Rc::clone(&env) as Rc<dyn Env>,
                        Rc::clone(remote) as Rc<_>,
                    )
                };
                let remote = SimRemote::open(&env, "store").expect("it is there");
                let other = node(&SimRemote::open(&env, "store").expect("it is there"));
                let (host, here) = (SimHost::new(&env, "a"), node(&remote));
                remote.set_reach(reach);
                let answered = Rc::new(Cell::new(None));
                let (told, writes) = (Rc::clone(&answered), Rc::clone(&here));
                host.spawn(Box::pin(async move {
                    told.set(writes.submit(filled(1)).await.err().map(|e| e.kind()));
                }));
                env.sleep(Duration::from_millis(2)).await;
                host.stop();
                other.submit(filled(2)).await.expect("written");
                assert_eq!((answered.get(), byte(&other).await), (answer, 2));
                remote.set_reach(Reach::Here);
                env.sleep(LATE).await;
                // A late write of the stopped host, over what was written since.
                assert_eq!(byte(&other).await, if reach == Reach::Here { 2 } else { 1 });
                remote.set_reach(Reach::Lost);
                let e = here.submit(filled(3)).await.expect_err("no network");
                assert_eq!((e.kind(), byte(&other).await == 3), (ErrorKind::Offline, false));
            };
            world.run(run).expect("it ends");
        }
    }
}
