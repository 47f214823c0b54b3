//! The task that moves data in the background, and its beginning and end.

use super::kept::State;
use super::layout::Layout;
use super::{Plan, Shape, Spread, busy, frozen, mode};
use lamina_block::{Error, ErrorKind, Job, JobState, Node, Result};
use std::rc::Rc;
use std::time::Duration;

/// So long after the layer is built the changes of the build begin.
const START_DELAY: Duration = Duration::from_secs(1);
/// The task checks so often meanwhile whether the layer was closed.
const CLOSE_POLL: Duration = Duration::from_millis(50);

impl<S: Shape> Spread<S> {
    /// Starts the task: at once, or after a second.
    pub fn start(self: &Rc<Self>, hurry: bool) {
        if let Some(moving) = self.moving() {
            let (done, total) = moving.progress();
            let limit = self.job.borrow().as_ref().map_or(self.shape.limit(), |job| job.limit());
            let job = Job::new(&self.env, "move", total, limit);
            job.set_progress(done, total);
            self.job.replace(Some(job));
        }
        self.hurry.set(hurry);
        if !self.runs.replace(true) {
            let this = Rc::clone(self);
            self.env.spawn(Box::pin(async move {
                this.work().await;
                this.runs.set(false);
                this.ended.notify();
            }));
        }
    }

    /// The job, while bytes move.
    pub fn job(&self) -> Option<Rc<Job>> {
        self.job.borrow().clone()
    }

    fn is_cancelled(&self) -> bool {
        self.closing.get() || self.job().is_some_and(|job| job.state() == JobState::Cancelled)
    }

    async fn work(&self) {
        let mut waited = Duration::ZERO;
        while waited < START_DELAY && !self.hurry.get() {
            if self.is_cancelled() {
                return;
            }
            self.env.sleep(CLOSE_POLL).await;
            waited += CLOSE_POLL;
        }
        let mut kept = false;
        while !self.is_cancelled() {
            match self.advance(&mut kept).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(e) => {
                    let Some(job) = self.job() else {
                        tracing::warn!(device = %self.name, error = %e, "the layout cannot be recorded now");
                        return;
                    };
                    if !self.is_cancelled() {
                        tracing::warn!(device = %self.name, error = %e, "moving data is paused");
                        job.fail(&e);
                        // Waits until the job is resumed or cancelled.
                        let _ = job.turn(0).await;
                    }
                }
            }
        }
    }

    /// One step; false if nothing is left to do.
    async fn advance(&self, kept: &mut bool) -> Result<bool> {
        if !*kept {
            self.remember().await?;
            self.waits.set(false);
        }
        let (Some(moving), Some(job)) = (self.moving(), self.job()) else { return Ok(false) };
        *kept = true;
        let at = |position: u64| {
            let mut state = self.state.borrow().clone();
            if let Some(target) = &mut state.target {
                target.position = position;
            }
            self.keep(&state)
        };
        if moving.step(&job, at).await? {
            if let Some(target) = &mut self.state.borrow_mut().target {
                target.position = moving.position();
            }
            return Ok(true);
        }
        let mut state = self.state.borrow().clone();
        if let Some(target) = state.target.take() {
            state.layout = target.to;
        }
        self.keep(&state).await?;
        self.mode.replace(mode(&self.env, &self.children, &state));
        self.state.replace(state);
        self.job.replace(None);
        Ok(false)
    }

    /// Waits until no background work is under way.
    pub async fn rest(&self) {
        self.hurry.set(true);
        self.ended.until(|| !self.runs.get()).await;
    }

    /// Begins to move as `plan` says, from `layout`. The device is quiesced.
    pub fn begin_move(self: &Rc<Self>, layout: Layout, plan: Plan) {
        let state = State { layout, target: Some(plan.target()), ..self.state.borrow().clone() };
        self.mode.replace(mode(&self.env, &self.children, &state));
        self.state.replace(state);
        self.start(true);
    }

    /// Begins to move everything off `names`. The device is quiesced.
    pub fn begin_evacuation(self: &Rc<Self>, names: &[String]) -> Result<()> {
        let named = |child: &usize| names.iter().any(|name| name == self.children[*child].name());
        let gone: Vec<usize> = (0..self.children.len()).filter(named).collect();
        let state = self.state.borrow().clone();
        let used = |layout: &Layout| gone.iter().any(|child| layout.uses(*child));
        match &state.target {
            Some(target) if used(&target.to) => return Err(busy()),
            Some(_) if used(&state.layout) && !self.runs.get() => self.start(true),
            Some(_) => self.hurry.set(true),
            None if !used(&state.layout) => {}
            None => {
                self.needs_keep()?;
                let layout = frozen(&state, &self.children);
                let spare = self.spare(&layout, &gone);
                let plan = self.shape.plan_evacuation(&layout, &self.children, &gone, &spare)?;
                self.begin_move(layout, plan);
            }
        }
        Ok(())
    }

    /// Fails unless [`begin_evacuation`](Spread::begin_evacuation) would find room, with the `joining`
    /// devices as well.
    pub fn has_room(&self, names: &[String], joining: &[Rc<Node>]) -> Result<()> {
        let named = |child: &usize| names.iter().any(|name| name == self.children[*child].name());
        let gone: Vec<usize> = (0..self.children.len()).filter(named).collect();
        let state = self.state.borrow().clone();
        let is_used = gone.iter().any(|child| state.layout.uses(*child));
        // A move that is under way is refused, or goes on, when the evacuation begins.
        if state.target.is_some() || !is_used {
            return Ok(());
        }
        let layout = frozen(&state, &self.children);
        let mut spare = self.spare(&layout, &gone);
        spare.extend(self.children.len()..self.children.len() + joining.len());
        let children = self.children.iter().chain(joining).cloned().collect();
        self.shape.plan_evacuation(&layout, &children, &gone, &spare).map(drop)
    }

    /// Waits until no bytes are on `names` any more.
    pub async fn evacuated(&self, names: &[String]) -> Result<()> {
        self.ended.until(|| !self.runs.get() || !self.is_on(names)).await;
        match self.is_on(names) {
            false => Ok(()),
            true => Err(Error::new(
                ErrorKind::Cancelled,
                "the move ended before all data was moved; the move goes on with the command `move`, or when the same \
                 change is made again",
            )),
        }
    }

    /// True while bytes are on one of `names`.
    fn is_on(&self, names: &[String]) -> bool {
        let state = self.state.borrow();
        let uses =
            |child| state.layout.uses(child) || state.target.as_ref().is_some_and(|t| t.to.uses(child));
        (0..self.children.len())
            .any(|child| names.iter().any(|n| n == self.children[child].name()) && uses(child))
    }
}
