//! Whose request a slow device takes next, where volumes with different weights share it.
//!
//! ```text
//!      volume 1, 300:  reads ▢▢  writes ▢▢▢▢  ─┐
//!      volume 2, 100:  reads ▢   writes ▢▢▢   ─┴─ the least start first ─▶ two under way ─▶ slow device
//! ```
//!
//! Start-time fair queueing with a depth (Jin, Chase and Kaur, *Interposed Proportional Sharing for a Storage Service
//! Utility*, SIGMETRICS 2004): a request starts, in virtual time, `1 / weight` after the one before of its line, but
//! not before the last request that began. What a volume reads for clients and what it writes home are lines of their
//! own, so that no read waits behind a batch. Starts follow from the weights of the moment: a changed weight counts for
//! requests that wait, too.
//!
//! Invariants: while a request waits, as many as may be are under way. A request that is dropped gives its place to the
//! next one. A request waits only for requests that end: where none has for a second, be it that the device hangs, or
//! that what lies between a volume and the device is quiesced, it goes on, so that a volume never waits for another one
//! to be let go.
//!
//! Volumes of one weight, and a volume beside which no other has asked for a second, deliberately never wait here: a
//! drive orders many requests better than few. Nor is a longer request dearer: on a disk the arm costs the most.
//!
//! The price of a request that does not wait is a look at the volumes that share its device; no memory is allocated.

use super::volume::Volume;
use futures_util::future::select;
use lamina_block::{Env, Node, Signal, Time};
use lamina_kit::flaw::flawed;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Requests under way: one that the device works on, and the next.
const DEPTH: usize = 2;
/// The virtual time that a request takes a volume of weight 1. Weights up to 10000 divide it with an error below 0.1%.
const COST: u128 = 1 << 24;
/// A volume that has asked for nothing for so long has no claim on the device.
const IDLE: Duration = Duration::from_secs(1);
/// A device of which no request has ended for so long gets those that wait, too.
const STALLED: Duration = Duration::from_secs(1);

/// What a request of a volume is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// A client waits for what is read.
    Read,
    /// The destager writes home.
    Home,
}

/// The slow devices of all volumes of a flash.
#[derive(Default)]
pub struct FairQueues {
    devices: RefCell<Vec<Rc<Device>>>,
}

/// A slow device.
struct Device {
    bottom: Weak<Node>,
    queue: RefCell<Queue>,
}

/// The plain state of a device.
#[derive(Default)]
struct Queue {
    /// The start of the last request that began.
    now: u128,
    under_way: usize,
    /// Requests that have ended.
    ended: u64,
    /// Numbers those that wait.
    number: u64,
    members: Vec<Member>,
}

/// A volume on a device.
struct Member {
    volume: Rc<Volume>,
    /// When it asked for something last.
    asked: Time,
    lines: [Line; 2],
}

/// Requests of a volume that are for the same.
#[derive(Default)]
struct Line {
    /// The start of the last one that began.
    last: Option<u128>,
    waiting: VecDeque<Rc<Waiter>>,
}

/// A request that waits, or did.
struct Waiter {
    number: u64,
    has_begun: Cell<bool>,
    begun: Signal,
}

/// A place among the requests under way, or the wait for one.
pub struct Permit {
    device: Rc<Device>,
    waiter: Option<Rc<Waiter>>,
}

impl Member {
    fn is_active(&self, now: Time) -> bool {
        now.since(self.asked) < IDLE || self.lines.iter().any(|line| !line.waiting.is_empty())
    }

    /// When the next request of a line starts, if the last one of all started at `now`.
    fn start(&self, line: &Line, now: u128) -> u128 {
        let weight = u128::from(self.volume.weight.get().max(1));
        line.last.map_or(now, |last| now.max(last + COST / weight))
    }
}

impl Queue {
    /// A volume asks for something at `now`: gives its place among the members. Those that are idle may go.
    fn ask(&mut self, volume: &Rc<Volume>, now: Time) -> usize {
        let known = self.members.iter().position(|member| Rc::ptr_eq(&member.volume, volume));
        let place = known.unwrap_or_else(|| {
            self.members.retain(|member| member.is_active(now));
            let (volume, lines) = (Rc::clone(volume), Default::default());
            self.members.push(Member { volume, asked: now, lines });
            self.members.len() - 1
        });
        self.members[place].asked = now;
        place
    }

    /// True if volumes with different weights share the device.
    fn is_weighed(&self, now: Time) -> bool {
        let active = self.members.iter().filter(|member| member.is_active(now));
        let mut weights = active.map(|member| member.volume.weight.get());
        let first = weights.next();
        weights.any(|weight| Some(weight) != first)
    }

    /// Begins a request, or lets it wait and gives its waiter.
    fn enter(&mut self, place: usize, flow: Flow) -> Option<Rc<Waiter>> {
        if self.under_way < DEPTH {
            self.begin(place, flow as usize);
            return None;
        }
        self.number += 1;
        let (number, has_begun, begun) = (self.number, Cell::new(false), Signal::new());
        let waiter = Rc::new(Waiter { number, has_begun, begun });
        self.members[place].lines[flow as usize].waiting.push_back(Rc::clone(&waiter));
        Some(waiter)
    }

    fn begin(&mut self, place: usize, line: usize) {
        let member = &self.members[place];
        self.now = member.start(&member.lines[line], self.now);
        self.members[place].lines[line].last = Some(self.now);
        self.under_way += 1;
    }

    /// Where the request waits that starts first; of those that start together, the one that came first.
    fn first(&self) -> Option<(usize, usize)> {
        let lines = self.members.iter().enumerate().flat_map(|(place, member)| {
            let lines = member.lines.iter().enumerate();
            lines.filter_map(move |(n, line)| {
                let number = line.waiting.front()?.number;
                Some((member.start(line, self.now), number, (place, n)))
            })
        });
        lines.min().map(|(.., at)| at)
    }

    /// A request has ended: the next one begins, and is given.
    fn end(&mut self) -> Option<Rc<Waiter>> {
        self.under_way -= 1;
        self.ended += 1;
        // More than may be are under way where the device was stalled.
        let (place, line) = self.first().filter(|_| self.under_way < DEPTH)?;
        self.begin(place, line);
        let next = self.members[place].lines[line].waiting.pop_front()?;
        next.has_begun.set(true);
        Some(next)
    }

    /// A request does not wait any more.
    fn leave(&mut self, waiter: &Rc<Waiter>) {
        let lines = self.members.iter_mut().flat_map(|member| &mut member.lines);
        lines.for_each(|line| line.waiting.retain(|other| !Rc::ptr_eq(other, waiter)));
    }

    /// A request goes on although it is not its turn.
    fn pass(&mut self, waiter: &Rc<Waiter>) {
        self.leave(waiter);
        waiter.has_begun.set(true);
        self.under_way += 1;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut queue = self.device.queue.borrow_mut();
        let next = match self.waiter.as_ref().filter(|waiter| !waiter.has_begun.get()) {
            Some(waiter) => {
                queue.leave(waiter);
                None
            }
            None => queue.end(),
        };
        drop(queue);
        next.iter().for_each(|next| next.begun.notify());
    }
}

impl Device {
    /// Waits until a request may begin.
    async fn turn_of(&self, waiter: &Rc<Waiter>, env: &dyn Env) {
        while !waiter.has_begun.get() {
            let ended = self.queue.borrow().ended;
            select(env.sleep(STALLED), pin!(waiter.begun.wait())).await;
            let mut queue = self.queue.borrow_mut();
            let is_stalled = queue.ended == ended && !flawed("a stalled device is waited for");
            if is_stalled && !waiter.has_begun.get() {
                queue.pass(waiter);
            }
        }
    }
}

impl FairQueues {
    fn device(&self, bottom: &Rc<Node>) -> Rc<Device> {
        let mut devices = self.devices.borrow_mut();
        let known = devices.iter().find(|device| std::ptr::eq(device.bottom.as_ptr(), Rc::as_ptr(bottom)));
        if let Some(known) = known {
            return Rc::clone(known);
        }
        devices.retain(|device| device.bottom.strong_count() > 0);
        let device = Device { bottom: Rc::downgrade(bottom), queue: RefCell::default() };
        devices.push(Rc::new(device));
        Rc::clone(&devices[devices.len() - 1])
    }

    /// Waits until a request of a volume may begin on what `store` stands on; the request ends when the permit is
    /// dropped. None: it is not counted.
    pub async fn permit(
        &self,
        env: &dyn Env,
        store: &Rc<Node>,
        volume: &Rc<Volume>,
        flow: Flow,
    ) -> Option<Permit> {
        let device = self.device(&store.bottom());
        let waiter = {
            let (mut queue, now) = (device.queue.borrow_mut(), env.now());
            let place = queue.ask(volume, now);
            if !queue.is_weighed(now) {
                return None;
            }
            queue.enter(place, flow)
        };
        let permit = Permit { device, waiter };
        if let Some(waiter) = &permit.waiter {
            permit.device.turn_of(waiter, env).await;
        }
        Some(permit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_once, memory};
    use futures_util::future::join;
    use lamina_sim::Simulation;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    fn volume(weight: u32) -> Rc<Volume> {
        let volume = Volume::nowhere(1, 64);
        volume.weight.set(weight);
        Rc::new(volume)
    }

    /// A device with as many requests under way as may be, and lines that wait for it.
    struct Busy {
        queue: Queue,
        lines: Vec<(Rc<Volume>, Flow)>,
        waiting: Vec<(Rc<Waiter>, usize)>,
    }

    impl Busy {
        fn new(lines: &[(&Rc<Volume>, Flow)]) -> Busy {
            let lines = lines.iter().map(|(volume, flow)| (Rc::clone(volume), *flow)).collect();
            let mut busy = Busy { queue: Queue::default(), lines, waiting: Vec::new() };
            let place = busy.queue.ask(&volume(100), Time(0));
            (0..DEPTH)
                .for_each(|_| assert!(busy.queue.enter(place, Flow::Read).is_none(), "a place is free"));
            busy
        }

        /// Reads of volumes with these weights.
        fn reads(weights: &[u32]) -> Busy {
            let volumes: Vec<_> = weights.iter().map(|weight| volume(*weight)).collect();
            Busy::new(&volumes.iter().map(|volume| (volume, Flow::Read)).collect::<Vec<_>>())
        }

        fn ask(&mut self, line: usize) {
            let (volume, flow) = &self.lines[line];
            let place = self.queue.ask(volume, Time(0));
            let waiter = self.queue.enter(place, *flow).expect("no place is free");
            self.waiting.push((waiter, line));
        }

        /// The line whose request begins when another one ends.
        fn serve(&mut self) -> usize {
            let next = self.queue.end().expect("one waits");
            let at = self.waiting.iter().position(|(waiter, _)| Rc::ptr_eq(waiter, &next)).expect("it waits");
            self.waiting.remove(at).1
        }

        /// How often each line is served of `count` times, while each always has a request that waits.
        fn served(&mut self, count: usize) -> Vec<usize> {
            (0..self.lines.len()).for_each(|line| self.ask(line));
            let mut served = vec![0; self.lines.len()];
            for _ in 0..count {
                let line = self.serve();
                served[line] += 1;
                self.ask(line);
            }
            served
        }
    }

    fn is_near(served: &[usize], expected: &[usize]) -> bool {
        served.len() == expected.len() && served.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 1)
    }

    #[test]
    fn lines_are_served_as_weights_say() {
        let table: [(&[u32], &[usize]); 6] = [
            (&[100, 300], &[100, 300]),
            (&[300, 100], &[300, 100]),
            (&[100, 100, 100], &[100, 100, 100]),
            (&[1, 2, 7], &[10, 20, 70]),
            // The bounds.
            (&[1, 10_000], &[1, 10_000]),
            (&[1, 1, 10_000, 10_000], &[1, 1, 10_000, 10_000]),
        ];
        for (weights, expected) in table {
            let served = Busy::reads(weights).served(expected.iter().sum());
            assert!(is_near(&served, expected), "{weights:?}: {served:?}");
        }
    }

    #[test]
    fn what_is_read_and_what_is_written_are_lines_of_their_own() {
        let (heavy, light) = (volume(300), volume(100));
        let mut busy = Busy::new(&[(&heavy, Flow::Read), (&light, Flow::Read), (&light, Flow::Home)]);
        let served = busy.served(500);
        assert!(is_near(&served, &[300, 100, 100]), "{served:?}");
    }

    #[test]
    fn requests_of_a_line_keep_their_order() {
        let mut busy = Busy::reads(&[100, 300]);
        (0..10).for_each(|_| [0, 1].into_iter().for_each(|line| busy.ask(line)));
        while !busy.waiting.is_empty() {
            let next = busy.queue.first().map(|(place, line)| {
                busy.queue.members[place].lines[line].waiting.front().map(|waiter| waiter.number)
            });
            let (number, line) = (next.flatten().expect("one waits"), busy.serve());
            assert!(busy.waiting.iter().all(|(waiter, other)| *other != line || waiter.number > number));
        }
    }

    #[test]
    fn a_late_volume_has_nothing_saved_up() {
        let mut busy = Busy::reads(&[100, 100]);
        busy.ask(0);
        for _ in 0..100 {
            assert_eq!(busy.serve(), 0);
            busy.ask(0);
        }
        busy.ask(0);
        (0..2).for_each(|_| busy.ask(1));
        let order: Vec<_> = (0..4).map(|_| busy.serve()).collect();
        assert!(order[0] != order[1] && order[2] != order[3], "{order:?}");
    }

    #[test]
    fn a_changed_weight_counts_for_what_waits() {
        let mut busy = Busy::reads(&[1, 10_000]);
        (0..10).for_each(|_| busy.ask(0));
        let served = busy.served(100);
        assert!(is_near(&served, &[0, 100]), "{served:?}");
        busy.lines[0].0.weight.set(10_000);
        let after: usize = (0..20)
            .map(|_| {
                let line = busy.serve();
                busy.ask(line);
                1 - line
            })
            .sum();
        assert!(after.abs_diff(10) <= 1, "{after} of 20");
        busy.lines[1].0.weight.set(1);
        let again: Vec<_> = (0..10).map(|_| busy.serve()).collect();
        assert_eq!(again, [0; 10], "the other one waits now");
    }

    #[test]
    fn only_volumes_of_different_weights_that_ask_are_weighed() {
        let (mut queue, [a, b, c]) = (Queue::default(), [100, 100, 300].map(volume));
        let at = |micros: u64| Time(0).after(Duration::from_micros(micros));
        queue.ask(&a, at(0));
        queue.ask(&b, at(0));
        assert!(!queue.is_weighed(at(0)), "all weights are the same");
        queue.ask(&c, at(1));
        assert!(queue.is_weighed(at(2)));
        queue.ask(&a, at(900_000));
        assert!(queue.is_weighed(at(1_000_000)));
        assert!(!queue.is_weighed(at(1_000_001)), "the other one has been idle for a second");
        b.weight.set(7);
        queue.ask(&b, at(1_100_000));
        assert!(queue.is_weighed(at(1_100_000)));
        assert_eq!(queue.ask(&volume(1), at(5_000_000)), 0, "the idle ones have gone");
    }

    fn is_pending<F: Future + ?Sized>(wait: Pin<&mut F>) -> bool {
        wait.poll(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    #[test]
    fn a_request_that_is_dropped_gives_its_place_to_the_next() {
        let (fair, store, [a, b]) = (FairQueues::default(), memory("1MiB"), [100, 300].map(volume));
        let env = Simulation::new(1).env();
        let permit = |volume| fair.permit(&*env, &store, volume, Flow::Read);
        assert!(at_once(permit(&a)).is_none(), "it has the device for itself");
        let under_way = [at_once(permit(&b)), at_once(permit(&a))];
        assert!(under_way.iter().all(Option::is_some));
        let mut waits: Vec<_> = (0..4).map(|_| Box::pin(permit(&b))).collect();
        waits.iter_mut().for_each(|wait| assert!(is_pending(wait.as_mut())));
        // One that waits.
        drop(waits.remove(0));
        assert!(is_pending(waits[0].as_mut()), "both places are taken");
        let [first, second] = under_way;
        drop(first);
        // One that could go on, and does not know it.
        drop(waits.remove(0));
        let third = at_once(waits.remove(0));
        assert!(is_pending(waits[0].as_mut()));
        drop(second);
        let fourth = at_once(waits.remove(0));
        drop((third, fourth));
        assert_eq!(fair.devices.borrow()[0].queue.borrow().under_way, 0);
        assert!(at_once(permit(&a)).is_some());
    }

    fn ask(fair: &FairQueues, store: &Rc<Node>, volume: &Rc<Volume>) -> bool {
        at_once(fair.permit(&*Simulation::new(1).env(), store, volume, Flow::Home)).is_some()
    }

    #[test]
    fn a_device_that_is_stalled_gets_those_that_wait() {
        let world = Simulation::new(1);
        let env = world.env();
        let run = async move {
            let (fair, store, [a, b]) = (FairQueues::default(), memory("1MiB"), [100, 300].map(volume));
            let permit = |volume| fair.permit(&*env, &store, volume, Flow::Read);
            let mut under_way = vec![permit(&a).await, permit(&b).await, permit(&b).await];
            let began = env.now();
            under_way.extend(<[_; 2]>::from(join(permit(&a), permit(&b)).await));
            assert_eq!(env.now().since(began), STALLED);
            assert_eq!(fair.devices.borrow()[0].queue.borrow().under_way, 4);
            // Both ask again.
            drop(permit(&b).await);
            let mut waits = Box::pin(permit(&a));
            assert!(is_pending(waits.as_mut()));
            (0..2).for_each(|_| assert!(under_way.pop().is_some() && is_pending(waits.as_mut())));
            drop(under_way.pop());
            waits.await.expect("it is its turn");
        };
        world.run(run).expect("it ends");
    }

    #[test]
    fn devices_that_are_gone_are_forgotten() {
        let (fair, [a, b]) = (FairQueues::default(), [100, 300].map(volume));
        let (one, two) = (memory("1MiB"), memory("1MiB"));
        assert_eq!([ask(&fair, &one, &a), ask(&fair, &two, &b), ask(&fair, &one, &b)], [false, false, true]);
        drop(one);
        let three = memory("1MiB");
        assert!(!ask(&fair, &three, &a));
        assert_eq!(fair.devices.borrow().len(), 2);
    }
}
