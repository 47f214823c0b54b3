//! Clients in a closed loop, and what they measure.

use super::devices::{self, Devices};
use super::load::Load;
use super::options::Wanted;
use fastrand::Rng;
use lamina_block::{Buf, Durability, Env, Error, Io, Node, Result, Signal, Time};
use lamina_sim::SimEnv;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The time of a request that takes none: otherwise none would pass at all.
const ANSWERED: Duration = Duration::from_micros(1);
/// Bytes of the longest request.
const LONGEST: usize = 64 << 10;

/// A client of one volume.
struct Client {
    env: Rc<SimEnv>,
    volume: Rc<Node>,
    load: Load,
    random: RefCell<Rng>,
    shifts: Cell<u32>,
    zeroes: Buf,
    /// Requests that are still to begin, and until when they may.
    left: Cell<u64>,
    until: Cell<Time>,
    /// When each request of the step ended, and how long it took, in nanoseconds.
    ended: RefCell<Vec<(u64, u64)>>,
}

impl Client {
    /// One request after the other.
    async fn work(&self) -> Result<()> {
        while self.left.get() > 0 && self.env.now() < self.until.get() {
            self.left.set(self.left.get() - 1);
            let began = self.env.now();
            self.ask().await?;
            if self.env.now() == began {
                self.env.sleep(ANSWERED).await;
            }
            let now = self.env.now();
            self.ended.borrow_mut().push((now.0, now.since(began).as_nanos() as u64));
        }
        Ok(())
    }

    async fn ask(&self) -> Result<()> {
        let ask = self.load.draw(&mut self.random.borrow_mut(), self.shifts.get());
        let data = self.zeroes.slice(0..ask.len as usize);
        let io = match ask.is_write {
            true => Io::write(ask.at, data, Durability::Cached),
            false => Io::read(ask.at, data),
        };
        self.volume.submit(io).await
    }
}

/// The clients of all volumes.
pub struct Clients {
    env: Rc<SimEnv>,
    clients: Vec<Rc<Client>>,
    depth: u32,
    working: Rc<Cell<u32>>,
    failed: Rc<RefCell<Option<Error>>>,
    moved: Rc<Signal>,
}

impl Clients {
    pub fn new(env: &Rc<SimEnv>, wanted: &Wanted, devices: &Devices) -> Clients {
        let client = |(number, volume): (usize, &Rc<Node>)| {
            Rc::new(Client {
                env: Rc::clone(env),
                volume: Rc::clone(volume),
                load: wanted.load,
                random: RefCell::new(Rng::with_seed(wanted.seed ^ (number as u64 + 1) << 32)),
                shifts: Cell::new(0),
                zeroes: Buf::zeroed(LONGEST),
                left: Cell::new(0),
                until: Cell::new(Time(0)),
                ended: RefCell::default(),
            })
        };
        Clients {
            env: Rc::clone(env),
            clients: devices.volumes.iter().enumerate().map(client).collect(),
            depth: wanted.depth,
            working: Rc::default(),
            failed: Rc::default(),
            moved: Rc::new(Signal::new()),
        }
    }

    /// A client asks for other places from now on.
    pub fn shift(&self, volume: usize) {
        let shifts = &self.clients[volume].shifts;
        shifts.set(shifts.get() + 1);
    }

    /// Each client makes all requests of its load.
    pub async fn all(&self) -> Result<Value> {
        self.run(|load| load.requests(), Time(u64::MAX), None).await
    }

    /// All clients go on for so many seconds, counted by windows of so many.
    pub async fn go_on(&self, seconds: f64, window: f64) -> Result<Value> {
        let until = self.env.now().after(Duration::from_secs_f64(seconds));
        self.run(|_| u64::MAX, until, Some(window)).await
    }

    async fn run(&self, left: impl Fn(&Load) -> u64, until: Time, window: Option<f64>) -> Result<Value> {
        let begin = self.env.now();
        for client in &self.clients {
            client.left.set(left(&client.load));
            client.until.set(until);
            client.ended.borrow_mut().clear();
            (0..self.depth).for_each(|_| self.begin(client));
        }
        self.moved.until(|| self.working.get() == 0).await;
        self.failed.take().map_or(Ok(()), Err)?;
        let volumes: Vec<Value> = self.clients.iter().map(|client| report(client, begin, window)).collect();
        Ok(json!({ "seconds": self.env.now().since(begin).as_secs_f64(), "volumes": volumes }))
    }

    fn begin(&self, client: &Rc<Client>) {
        let client = Rc::clone(client);
        let (working, failed, moved) =
            (Rc::clone(&self.working), Rc::clone(&self.failed), Rc::clone(&self.moved));
        working.set(working.get() + 1);
        self.env.spawn(Box::pin(async move {
            if let Err(e) = client.work().await {
                failed.borrow_mut().get_or_insert(e);
            }
            working.set(working.get() - 1);
            moved.notify();
        }));
    }
}

/// The time in milliseconds that a share of requests did not take; they are sorted.
fn quantile(took: &[u64], share: f64) -> Option<f64> {
    let at = (took.len() as f64 * share) as usize;
    took.get(at).or(took.last()).map(|ns| *ns as f64 / 1e6)
}

/// What a client measured in a step, in all and by windows.
fn report(client: &Client, begin: Time, window: Option<f64>) -> Value {
    let ended = client.ended.borrow();
    let seconds = ended.iter().map(|(end, _)| end - begin.0).max().unwrap_or_default() as f64 / 1e9;
    let mut took: Vec<u64> = ended.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    json!({
        "seconds": seconds,
        "requests": took.len(),
        "iops": took.len() as f64 / seconds.max(1e-9),
        "mean_ms": took.iter().sum::<u64>() as f64 / 1e6 / took.len().max(1) as f64,
        "p50_ms": quantile(&took, 0.5),
        "p99_ms": quantile(&took, 0.99),
        "windows": window.map(|window| by_windows(&ended, begin, window)),
        "info": devices::shown(&client.volume),
    })
}

/// Requests a second and the 99th percentile in milliseconds, of each window in which a request ended.
fn by_windows(ended: &[(u64, u64)], begin: Time, window: f64) -> Vec<Value> {
    let number = |end: u64| ((end - begin.0) as f64 / 1e9 / window) as u64;
    let windows = ended.chunk_by(|a, b| number(a.0) == number(b.0));
    let measured = windows.map(|requests| {
        let mut took: Vec<u64> = requests.iter().map(|(_, took)| *took).collect();
        took.sort_unstable();
        json!({
            "begin": number(requests[0].0) as f64 * window,
            "iops": took.len() as f64 / window,
            "p99_ms": quantile(&took, 0.99),
        })
    });
    measured.collect()
}
