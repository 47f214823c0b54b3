//! What a decision costs: prints, for `cats` and `satf` and several lengths of the queue, the time that the policy
//! takes to choose after a request came, and when none came.
//!
//! `cargo run --release -p lamina-timing --example decision_time`

use lamina_block::Time;
use lamina_drive::{Model, Op, Request};
use lamina_timing::schedule::policy::{Choice, Policy, Queued};
use lamina_timing::schedule::{Keys, Name};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 4000;

/// A queue of random reads that stays as long as it is.
struct Queue {
    policy: Box<dyn Policy>,
    random: fastrand::Rng,
    sectors: u64,
    waiting: Vec<Queued>,
    last: u64,
}

impl Queue {
    fn new(policy: Name, model: &Model, length: usize) -> Queue {
        let mut keys = Keys { policy, ..Keys::default() };
        // Decisions by the table, whatever has waited.
        keys.cats.read_delay.0 = Duration::from_secs(3600);
        keys.age_limit.0 = Duration::from_secs(3600);
        let policy = keys.policy(Some(model)).expect("a policy");
        let random = fastrand::Rng::with_seed(1);
        let mut queue = Queue { policy, random, sectors: model.sectors(), waiting: Vec::new(), last: 0 };
        (0..length).for_each(|_| queue.ask(Time(0)));
        queue
    }

    fn ask(&mut self, now: Time) {
        self.last += 1;
        let request = Request { op: Op::Read, lbn: self.random.u64(0..self.sectors - 8), sectors: 8 };
        let queued = Queued { id: self.last, client: 1 + self.last as u32 % 50, arrived: now, request };
        self.waiting.push(queued);
        self.policy.arrived(queued);
    }

    /// How long one decision takes.
    fn decide(&mut self, now: Time) -> Duration {
        let before = Instant::now();
        let choice = self.policy.choose(now);
        let took = before.elapsed();
        let Choice::Send(id) = choice else { return took };
        let place = self.waiting.iter().position(|queued| queued.id == id).expect("it waits");
        let queued = self.waiting.swap_remove(place);
        self.policy.completed(now.after(Duration::from_millis(5)), now, &queued);
        took
    }
}

/// Median and 99th percentile in microseconds.
fn percentiles(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    (at(50), at(99))
}

fn main() {
    let models = [(Name::Cats, "cheetah-15k4"), (Name::Cats, "cheetah-15k5"), (Name::Satf, "cheetah-15k5")];
    println!("microseconds of a decision, median and 99th percentile: after an arrival; without one");
    for (policy, name) in models {
        let model = Model::named(name).expect("a model that comes with Lamina");
        for length in [16, 64, 256, 1000] {
            let mut queue = Queue::new(policy, &model, length);
            let (mut after, mut without) = (Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let now = Time(0).after(Duration::from_millis(10) * round);
                after.push(queue.decide(now));
                without.push(queue.decide(now.after(Duration::from_millis(5))));
                queue.ask(now.after(Duration::from_millis(10)));
                queue.ask(now.after(Duration::from_millis(10)));
            }
            let ((a, a99), (b, b99)) = (percentiles(after), percentiles(without));
            println!("{:5} {name:12} queue {length:4}: {a:7.1} {a99:7.1}; {b:7.1} {b99:7.1}", policy.text());
        }
    }
}
