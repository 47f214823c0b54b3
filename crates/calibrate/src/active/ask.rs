//! Many questions about phases at once, each answered in its time.
//!
//! What is asked next at a place depends on the answers there, but the places do not depend on each other. Each place
//! has an async function that reads top to bottom; [`run`] collects what all of them want to know, and reads it in one
//! sweep over the drive. Seeks are short that way, and a cache has forgotten a place when its turn comes again.
//!
//! Sweeps go downwards, because drives read ahead upwards. An answer from the cache says nothing about a phase: its
//! question is asked again in the next sweep, after other sectors if few others are asked.

use super::rotation::Rotation;
use super::session::Session;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Hits in a row after which a question is given up: the cache holds more than can be pushed out of it.
const HITS_MAX: u32 = 6;
/// The clock is checked when so much time has passed.
const CHECK_US: f64 = 5e6;
/// Between so many questions the clock is set by an anchor near by.
const NUDGE_EVERY: usize = 25;

/// A question: about which sector, and its answer.
#[derive(Clone, Copy, Debug)]
struct Question {
    lbn: u64,
    phase: Option<f64>,
    hits: u32,
}

/// Where questions are put.
#[derive(Clone, Default)]
pub(super) struct Asker {
    questions: Rc<RefCell<Vec<Option<Question>>>>,
    /// How near two phases are if they are of one place.
    pub tolerance: f64,
    pub sectors: u64,
}

impl Asker {
    fn put(&self, lbn: u64) -> usize {
        let mut questions = self.questions.borrow_mut();
        let free = questions.iter().position(Option::is_none).unwrap_or(questions.len());
        if free == questions.len() {
            questions.push(None);
        }
        questions[free] = Some(Question { lbn, phase: None, hits: 0 });
        free
    }

    /// The phase of the end of the sector at `lbn`, in turns.
    pub(super) async fn phase(&self, lbn: u64) -> f64 {
        let at = self.put(lbn.min(self.sectors - 1));
        poll_fn(|_| {
            let mut questions = self.questions.borrow_mut();
            match questions[at].and_then(|q| q.phase) {
                Some(phase) => {
                    questions[at] = None;
                    Poll::Ready(phase)
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Two phases, asked in one sweep.
    pub(super) async fn phases(&self, a: u64, b: u64) -> (f64, f64) {
        let mut first = Box::pin(self.phase(a));
        let mut second = Box::pin(self.phase(b));
        let (mut x, mut y) = (None, None);
        poll_fn(|context| {
            if x.is_none()
                && let Poll::Ready(phase) = first.as_mut().poll(context)
            {
                x = Some(phase);
            }
            if y.is_none()
                && let Poll::Ready(phase) = second.as_mut().poll(context)
            {
                y = Some(phase);
            }
            x.zip(y).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// What one place came to.
type Work<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs `work`, made by a function that is given where to ask, to its end.
pub(super) fn run<'a, T>(
    session: &mut Session,
    rotation: &mut Rotation,
    work: impl FnOnce(Asker) -> Vec<Work<'a, T>>,
) -> Result<Vec<T>, String> {
    let asker = Asker { tolerance: session.tolerance(), sectors: session.sectors(), ..Asker::default() };
    let mut work: Vec<Option<Work<'a, T>>> = work(asker.clone()).into_iter().map(Some).collect();
    let mut done: Vec<Option<T>> = work.iter().map(|_| None).collect();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        for (work, done) in work.iter_mut().zip(&mut done) {
            let Some(running) = work else { continue };
            if let Poll::Ready(result) = running.as_mut().poll(&mut context) {
                (*work, *done) = (None, Some(result));
            }
        }
        if work.iter().all(Option::is_none) {
            return Ok(done.into_iter().flatten().collect());
        }
        rotation.check(session, CHECK_US)?;
        sweep(session, rotation, &asker)?;
    }
}

/// Reads what is asked, from the end of the drive to its begin.
fn sweep(session: &mut Session, rotation: &Rotation, asker: &Asker) -> Result<(), String> {
    let mut questions = asker.questions.borrow_mut();
    let mut open: Vec<&mut Question> = questions.iter_mut().flatten().filter(|q| q.phase.is_none()).collect();
    open.sort_by_key(|q| std::cmp::Reverse(q.lbn));
    if let Some(hits) = open.iter().map(|q| q.hits).max().filter(|hits| *hits > 0) {
        push_out(session, 16 << hits)?;
    }
    for (n, question) in open.into_iter().enumerate() {
        if n % NUDGE_EVERY == 0 {
            rotation.nudge(session, question.lbn)?;
        }
        let answer = session.read(question.lbn)?;
        if session.is_hit(&answer) && question.hits < HITS_MAX {
            question.hits += 1;
        } else {
            question.phase = Some(session.phase(&answer));
        }
    }
    Ok(())
}

/// Fills a cache of fewer than `count` segments with other sectors.
fn push_out(session: &mut Session, count: u64) -> Result<(), String> {
    let step = session.sectors() / count;
    let first = session.rng.u64(..step.max(1));
    (0..count).rev().try_for_each(|n| session.read(first + n * step).map(|_| ()))
}
