//! What the tests of policies share.

use super::policy::{Choice, Policy, Queued};
use lamina_block::Time;
use lamina_drive::{Op, Request};

/// A millisecond, in the units of [`Time`].
pub const MS: u64 = 1_000_000;

/// A read of 8 sectors that came at time 0.
pub fn read(id: u64, lbn: u64) -> Queued {
    Queued { id, client: 0, arrived: Time(0), request: Request { op: Op::Read, lbn, sectors: 8 } }
}

/// A write of 8 sectors that came at time 0.
pub fn write(id: u64, lbn: u64) -> Queued {
    Queued { request: Request { op: Op::Write, lbn, sectors: 8 }, ..read(id, lbn) }
}

/// A read without an extent, for examples that count distances between points.
pub fn point(id: u64, lbn: u64) -> Queued {
    Queued { request: Request { op: Op::Read, lbn, sectors: 0 }, ..read(id, lbn) }
}

/// The request that was chosen.
pub fn sent(choice: Choice) -> u64 {
    match choice {
        Choice::Send(id) => id,
        Choice::Wait(until) => panic!("it waits until {until:?}"),
        Choice::Idle => panic!("nothing waits"),
    }
}

/// The order in which `requests`, and those that wait, are sent at time 0, one after the other.
pub fn order(policy: &mut impl Policy, requests: impl IntoIterator<Item = Queued>) -> Vec<u64> {
    let mut all = Vec::new();
    requests.into_iter().for_each(|request| policy.arrived(request));
    loop {
        match policy.choose(Time(0)) {
            Choice::Send(id) => all.push(id),
            Choice::Wait(until) => panic!("it waits until {until:?}"),
            Choice::Idle => return all,
        }
    }
}

/// A client that asks again, some time after its last answer.
pub struct Client {
    /// What it asks.
    pub op: Op,
    /// From an answer to the next request.
    pub think_ms: u64,
    /// Its first address, and what is added for each next one.
    pub lbn: u64,
    pub stride: u64,
}

/// A request that was sent: when, whose, and how long it had waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub at_ms: u64,
    pub client: usize,
    pub waited_ms: u64,
}

/// What a drive that takes `service_ms` for everything, one after the other, is sent within `until_ms`. Clients are
/// numbered from 0, and begin together.
pub fn closed_loop(policy: &mut dyn Policy, clients: &[Client], service_ms: u64, until_ms: u64) -> Vec<Sent> {
    let (mut all, mut waiting, mut last) = (Vec::new(), Vec::<Queued>::new(), 0);
    let mut wakes: Vec<Option<u64>> = clients.iter().map(|_| Some(0)).collect();
    let mut asked = vec![0; clients.len()];
    let mut in_drive: Option<(u64, Queued)> = None;
    for now in 0..until_ms {
        if let Some((at, ended)) = in_drive.filter(|(at, _)| at + service_ms == now) {
            policy.completed(Time(now * MS), Time(at * MS), &ended);
            let client = ended.client as usize;
            wakes[client] = Some(now + clients[client].think_ms);
            in_drive = None;
        }
        for (number, client) in clients.iter().enumerate() {
            if wakes[number] != Some(now) {
                continue;
            }
            last += 1;
            let lbn = client.lbn + client.stride * asked[number];
            let request = Request { op: client.op, lbn, sectors: 8 };
            let queued = Queued { id: last, client: number as u32, arrived: Time(now * MS), request };
            (wakes[number], asked[number]) = (None, asked[number] + 1);
            policy.arrived(queued);
            waiting.push(queued);
        }
        if in_drive.is_none()
            && let Choice::Send(id) = policy.choose(Time(now * MS))
        {
            let at = waiting.iter().position(|queued| queued.id == id).expect("it waits, and is sent once");
            let queued = waiting.swap_remove(at);
            let waited_ms = now - queued.arrived.0 / MS;
            all.push(Sent { at_ms: now, client: queued.client as usize, waited_ms });
            in_drive = Some((now, queued));
        }
    }
    all
}
