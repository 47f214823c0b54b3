//! A workload, a policy and a drive in virtual time, without layers: the next thing happens when its time comes.

use lamina_block::Time;
use lamina_drive::{Completion, Drive, Request};
use lamina_timing::schedule::policy::{Choice, Policy, Queued};
use lamina_workload::{Action, Workload};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub queued: Queued,
    pub sent: Time,
    pub ended: Time,
    /// Whether the drive's cache had it.
    pub hit: bool,
    /// Whether the policy knew that.
    pub predicted: bool,
}

impl Served {
    pub fn response(&self) -> Duration {
        self.ended.since(self.queued.arrived)
    }

    pub fn service(&self) -> Duration {
        self.ended.since(self.sent)
    }
}

/// A drive, or a stand-in for one: the calls of [`Drive`].
pub trait Disk {
    fn submit(&mut self, now: Time, id: u64, request: Request);
    fn next(&self) -> Option<Time>;
    fn completed(&mut self, now: Time) -> Option<Completion>;
    fn in_flight(&self) -> usize;
}

impl Disk for Drive {
    fn submit(&mut self, now: Time, id: u64, request: Request) {
        self.submit(now, id, request);
    }
    fn next(&self) -> Option<Time> {
        self.next()
    }
    fn completed(&mut self, now: Time) -> Option<Completion> {
        self.completed(now)
    }
    fn in_flight(&self) -> usize {
        self.in_flight()
    }
}

/// A client: its requests are numbered from 0.
#[derive(Default)]
struct Client {
    asked: u64,
    open: BTreeSet<u64>,
    /// It goes on when its first so many requests have ended.
    waits_for: Option<u64>,
}

impl Client {
    fn is_free(&self, until: u64) -> bool {
        self.open.first().is_none_or(|first| *first >= until)
    }
}

/// Everything at a moment.
pub struct World<'a> {
    now: Time,
    workload: &'a mut dyn Workload,
    policy: &'a mut dyn Policy,
    drive: &'a mut dyn Disk,
    clients: Vec<Client>,
    wakes: BinaryHeap<Reverse<(Time, u32)>>,
    /// Requests that have not ended, by number, with the client's number for each and when it was sent.
    open: HashMap<u64, (Queued, u64, Time)>,
    asked: u64,
    served: Vec<Served>,
}

/// What `drive` is asked by `workload` in the order of `policy`, `depth` at a time, until `count` have ended.
pub fn run(
    workload: &mut dyn Workload,
    policy: &mut dyn Policy,
    drive: &mut dyn Disk,
    depth: usize,
    count: usize,
) -> Vec<Served> {
    let clients: Vec<Client> = (0..workload.clients()).map(|_| Client::default()).collect();
    let wakes = (0..workload.clients()).map(|client| Reverse((Time(0), client))).collect();
    let (now, open, asked, served) = (Time(0), HashMap::new(), 0, Vec::new());
    let mut world = World { now, workload, policy, drive, clients, wakes, open, asked, served };
    while world.served.len() < count {
        world.collect();
        while let Some(Reverse((_, client))) =
            world.wakes.peek().copied().filter(|next| next.0.0 <= world.now)
        {
            world.wakes.pop();
            world.go_on(client);
        }
        let asked_again = world.fill(depth);
        let next = [world.drive.next(), world.wakes.peek().map(|next| next.0.0), asked_again];
        match next.into_iter().flatten().min() {
            Some(next) => world.now = next,
            None => break,
        }
    }
    world.served
}

impl World<'_> {
    /// What has ended by now.
    fn collect(&mut self) {
        while let Some(end) = self.drive.completed(self.now) {
            let (queued, number, sent) = self.open.remove(&end.id).expect("it was sent, and ends once");
            let known = self.policy.hits();
            self.policy.completed(self.now, sent, &queued);
            let predicted = self.policy.hits().map(|hits| hits.predicted) > known.map(|hits| hits.predicted);
            self.served.push(Served { queued, sent, ended: self.now, hit: end.hit, predicted });
            // Clients are numbered from 1 here: 0 is no client.
            let client = &mut self.clients[queued.client as usize - 1];
            client.open.remove(&number);
            if client.waits_for.is_some_and(|until| client.is_free(until)) {
                client.waits_for = None;
                self.wakes.push(Reverse((self.now, queued.client - 1)));
            }
        }
    }

    /// What a client does until it waits for something.
    fn go_on(&mut self, number: u32) {
        loop {
            let until = match self.workload.next(number, self.now) {
                Action::Submit { request, wait } => {
                    self.ask(number, request);
                    if wait { self.clients[number as usize].asked } else { 0 }
                }
                Action::Sleep(pause) => return self.wakes.push(Reverse((self.now.after(pause), number))),
                Action::WaitFor(until) => until,
                Action::Join => u64::MAX,
                Action::End => return,
            };
            let client = &mut self.clients[number as usize];
            if !client.is_free(until) {
                client.waits_for = Some(until);
                return;
            }
        }
    }

    fn ask(&mut self, number: u32, request: Request) {
        self.asked += 1;
        let client = &mut self.clients[number as usize];
        let queued = Queued { id: self.asked, client: number + 1, arrived: self.now, request };
        client.open.insert(client.asked);
        self.open.insert(queued.id, (queued, client.asked, self.now));
        client.asked += 1;
        self.policy.arrived(queued);
    }

    /// Fills the drive; when the policy wants to be asked again.
    fn fill(&mut self, depth: usize) -> Option<Time> {
        while self.drive.in_flight() < depth {
            match self.policy.choose(self.now) {
                Choice::Send(id) => {
                    let (queued, _, sent) = self.open.get_mut(&id).expect("it waits");
                    *sent = self.now;
                    self.drive.submit(self.now, id, queued.request);
                }
                Choice::Wait(until) => return Some(until),
                Choice::Idle => return None,
            }
        }
        None
    }
}
