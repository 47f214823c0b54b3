//! Random reads that wait before a drive, and who goes next.

use crate::disk::Disk;
use lamina_block::Time;
use lamina_drive::{Op, Request};
use lamina_timing::schedule::policy::{Choice, Policy, Queued};
use std::time::Duration;

/// Sectors of a read: 4 KiB, as in DiskSim's figures.
pub const SECTORS: u32 = 8;

/// Mean and longest response times, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Responses {
    pub mean: f64,
    pub longest: f64,
}

/// `count` reads at uniform places, their arrivals a Poisson process of `rate` a second.
pub fn poisson(rate: f64, sectors: u64, seed: u64, count: u64) -> Vec<Queued> {
    let (mut random, mut at) = (fastrand::Rng::with_seed(seed), Time(0));
    let read = |id| {
        at = at.after(Duration::from_secs_f64(-(1.0 - random.f64()).ln() / rate));
        let lbn = random.u64(0..sectors / u64::from(SECTORS)) * u64::from(SECTORS);
        Queued { id, client: 1, arrived: at, request: Request { op: Op::Read, lbn, sectors: SECTORS } }
    };
    (1..=count).map(read).collect()
}

/// Sends `reads` to `disk`, one at a time, in the order of `policy`; without one in that of the shortest access by what
/// the drive itself would take: SPTF that knows everything.
pub fn run(disk: &mut dyn Disk, mut policy: Option<Box<dyn Policy>>, reads: &[Queued]) -> Responses {
    let (mut free, mut waiting, mut responses) = (Time(0), Vec::<Queued>::new(), Vec::new());
    let mut coming = reads.iter().copied().peekable();
    while responses.len() < reads.len() {
        let next = coming.peek().filter(|_| waiting.is_empty());
        let now = next.map_or(free, |next| free.max(next.arrived));
        while let Some(queued) = coming.next_if(|queued| queued.arrived <= now) {
            policy.iter_mut().for_each(|policy| policy.arrived(queued));
            waiting.push(queued);
        }
        let pause = us(now.since(free));
        let at = match &mut policy {
            Some(policy) => chosen(policy.choose(now), &waiting),
            None => shortest(disk, &waiting, pause),
        };
        let queued = waiting.swap_remove(at);
        let took = disk.ask(queued.request, pause).expect("an answer");
        free = now.after(Duration::from_nanos((took * 1e3).round() as u64));
        policy.iter_mut().for_each(|policy| policy.completed(free, now, &queued));
        responses.push(us(free.since(queued.arrived)) / 1e3);
    }
    let mean = responses.iter().sum::<f64>() / responses.len() as f64;
    Responses { mean, longest: responses.into_iter().fold(0.0, f64::max) }
}

fn us(of: Duration) -> f64 {
    of.as_nanos() as f64 / 1e3
}

fn chosen(choice: Choice, waiting: &[Queued]) -> usize {
    let Choice::Send(id) = choice else { panic!("{choice:?} while requests wait") };
    waiting.iter().position(|queued| queued.id == id).expect("it waits")
}

fn shortest(disk: &mut dyn Disk, waiting: &[Queued], pause: f64) -> usize {
    let mut cost = |queued: &Queued| disk.would(queued.request, pause);
    let costs: Vec<f64> = waiting.iter().map(&mut cost).collect();
    (0..costs.len()).min_by(|a, b| costs[*a].total_cmp(&costs[*b])).expect("requests wait")
}
