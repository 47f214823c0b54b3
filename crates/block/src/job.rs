//! Work in the background that people can see and steer.
//!
//! A layer with such work makes a [`Job`] of it, shows it in [`crate::Manage::jobs`], and calls [`Job::step`] before
//! every piece. Everything else (the pause, the limit, the figures) is here.

use crate::{Env, Error, ErrorKind, Result, Signal, Time};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// The job works.
    Running,
    /// The job waits for [`Job::resume`].
    Paused,
    /// The job was told to end before it is done.
    Cancelled,
}

/// How a job may be steered. Later variants allow more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Steering {
    /// The job is only shown: it has to be done.
    Nothing,
    /// The job can be told to end; it has no limit.
    Cancel,
    /// The job calls [`Job::step`]: every action is allowed.
    All,
}

/// Background work of a device: how far it is, and how fast it may go.
pub struct Job {
    name: &'static str,
    steering: Steering,
    env: Rc<dyn Env>,
    state: Cell<JobState>,
    /// Why it paused by itself.
    error: RefCell<Option<Error>>,
    /// Bytes of the whole work, and of the finished part.
    total: Cell<u64>,
    done: Cell<u64>,
    /// Bytes for each second.
    limit: Cell<Option<u64>>,
    /// When the next piece may begin under the limit.
    next: Cell<Time>,
    /// The time of its start or resumption, and the bytes done by then: the rate is since then.
    since: Cell<(Time, u64)>,
    steered: Signal,
}

impl Job {
    /// A job called `name` (a word, such as `reclaim`) of `total` bytes, with at most `limit` bytes for each second.
    pub fn new(env: &Rc<dyn Env>, name: &'static str, total: u64, limit: Option<u64>) -> Rc<Job> {
        Job::made(env, name, total, limit, Steering::All)
    }

    /// A job of `total` bytes that has no pieces to wait before: its layer says how far it is.
    pub fn shown(env: &Rc<dyn Env>, name: &'static str, total: u64, steering: Steering) -> Rc<Job> {
        Job::made(env, name, total, None, steering)
    }

    fn made(
        env: &Rc<dyn Env>,
        name: &'static str,
        total: u64,
        limit: Option<u64>,
        steering: Steering,
    ) -> Rc<Job> {
        let now = env.now();
        Rc::new(Job {
            name,
            steering,
            env: Rc::clone(env),
            state: Cell::new(JobState::Running),
            error: RefCell::default(),
            total: Cell::new(total),
            done: Cell::new(0),
            limit: Cell::new(limit),
            next: Cell::new(now),
            since: Cell::new((now, 0)),
            steered: Signal::new(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Fails if the job does not allow that.
    pub fn check(&self, steering: Steering) -> Result<()> {
        match self.steering {
            may if steering <= may => Ok(()),
            Steering::Cancel => Err(Error::unsupported(format!("{} can only be cancelled", self.name))),
            Steering::Nothing | Steering::All => {
                Err(Error::unsupported(format!("{} has to be done, and ends by itself", self.name)))
            }
        }
    }

    /// Its state.
    pub fn state(&self) -> JobState {
        self.state.get()
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.total.get()
    }

    /// The most bytes for each second; `None`: no limit.
    pub fn limit(&self) -> Option<u64> {
        self.limit.get()
    }

    /// Says how far it is: `done` of `total` bytes. Progress that is reported at the moment of the start was made
    /// before, and does not count into the rate.
    pub fn set_progress(&self, done: u64, total: u64) {
        self.total.set(total);
        let now = self.env.now();
        if done < self.done.replace(done) || now == self.since.get().0 {
            self.since.set((now, done));
        }
    }

    /// Waits until a piece of `bytes` may be done: while the job is paused, and as its limit says. Counts nothing.
    ///
    /// Fails with `Cancelled` when the job was told to end.
    pub async fn turn(&self, bytes: u64) -> Result<()> {
        loop {
            let steered = self.steered.wait();
            match self.state.get() {
                JobState::Cancelled => {
                    return Err(Error::new(ErrorKind::Cancelled, format!("{} was cancelled", self.name)));
                }
                JobState::Paused => steered.await,
                JobState::Running => {
                    let (now, next) = (self.env.now(), self.next.get());
                    if next <= now || self.limit.get().is_none() {
                        let cost = self.limit.get().map_or(0, |limit| nanos(bytes, limit));
                        self.next.set(now.after(Duration::from_nanos(cost)));
                        return Ok(());
                    }
                    // A change of the limit is seen soon, without a wait for two things at once.
                    self.env.sleep(next.since(now).min(Duration::from_millis(200))).await;
                }
            }
        }
    }

    /// [`Job::turn`], and then counts the bytes as done.
    pub async fn step(&self, bytes: u64) -> Result<()> {
        self.turn(bytes).await?;
        self.done.set(self.done.get() + bytes);
        Ok(())
    }

    /// Lets it wait before its next piece.
    pub fn pause(&self) {
        if self.state.get() == JobState::Running {
            self.state.set(JobState::Paused);
        }
    }

    /// Pauses the job because of `error`, which is shown until it goes on.
    pub fn fail(&self, error: &Error) {
        self.pause();
        *self.error.borrow_mut() = Some(error.clone());
    }

    /// Lets it go on.
    pub fn resume(&self) {
        if self.state.get() == JobState::Paused {
            self.state.set(JobState::Running);
            self.error.take();
            self.since.set((self.env.now(), self.done.get()));
            self.steered.notify();
        }
    }

    /// Ends it before its next piece. Its layer defines the meaning.
    pub fn cancel(&self) {
        self.state.set(JobState::Cancelled);
        self.steered.notify();
    }

    /// Waits until the job is told to end.
    pub async fn cancelled(&self) {
        self.steered.until(|| self.state.get() == JobState::Cancelled).await;
    }

    /// Changes its limit, in bytes for each second.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.limit.set(limit);
        self.next.set(self.env.now());
        self.steered.notify();
    }

    /// Its info: name, state, bytes done and in all, bytes for each second, the seconds that are left, and the error
    /// that paused it.
    pub fn info(&self) -> Value {
        let (since, before) = self.since.get();
        let (done, total) = (self.done.get(), self.total.get());
        let running = self.state.get() == JobState::Running;
        let seconds = self.env.now().since(since).as_secs_f64();
        let rate = if running && seconds > 0.0 { done.saturating_sub(before) as f64 / seconds } else { 0.0 };
        let left = (rate > 0.0).then(|| (total.saturating_sub(done) as f64 / rate).ceil() as u64);
        json!({
            "name": self.name,
            "state": match self.state.get() {
                JobState::Running => "running",
                JobState::Paused => "paused",
                JobState::Cancelled => "cancelled",
            },
            "done": done,
            "total": total,
            "rate": rate as u64,
            "limit": self.limit.get(),
            "seconds_left": left,
            "error": self.error.borrow().as_ref().map(|e| e.to_string()),
        })
    }
}

/// The nanoseconds that `bytes` take at `limit` bytes for each second.
fn nanos(bytes: u64, limit: u64) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(limit.max(1))).unwrap_or(u64::MAX)
}
