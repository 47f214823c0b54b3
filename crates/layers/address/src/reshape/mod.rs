//! The shared part of `concat` and `stripe`: a recorded layout, which can become another one while requests
//! go on.
//!
//! ```text
//!             ┌── steady: the kind's own way, as cheap as it can be; nothing is tracked ◀──┐
//!   request ──┤                                                                            │ the last window is moved
//!             └── moving: `Move` knows where each byte is now; everything is tracked ──────┘
//! ```
//!
//! The layout is recorded with the hierarchy ([`kept`]), by the names of the devices, so that the order of
//! `over` does not matter any more once it is made. In a hierarchy that is not persistent, the layout follows
//! from `over` whenever the layer is built, and changes that would have to move data are refused.
//!
//! Invariant: the layer goes from steady to moving only while its device is quiesced, so that every request
//! under way is tracked. It may go back at any time.
//!
//! A change at build (a device joined, a move that was interrupted) begins a second later: the change around
//! the build may yet fail, and go back to the old layer.

mod commands;
mod kept;
mod layout;
mod mover;
#[cfg(test)]
pub(crate) mod tests;
mod work;

pub use commands::VERBS;
pub use layout::{Band, Layout, Location, UNIT_MAX};

use kept::{State, Target};
use lamina_block::{
    Begin, Build, Bytes, Children, Class, Command, Consent, Effect, Env, Error, ErrorKind, Extent,
    ExtentState, Finding, Geometry, Healed, Io, Job, Judge, Keep, Layer, Manage, Node, Passthrough, Pending,
    Place, Result, Signal, Step,
};
use lamina_kit::command::{args, unknown};
use lamina_kit::consent::unless_replaced;
use lamina_kit::fan_out;
use mover::Move;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// A move that a kind asks for.
pub struct Plan {
    /// The new locations of all bytes: as many as now.
    pub to: Layout,
    /// From the first byte on, or from the last one down. Each byte's new location must be free when the byte
    /// is moved: it is free now, or has a byte that is moved earlier, or the byte itself.
    pub up: bool,
}

/// A kind of layout, with its keys.
pub trait Shape: 'static {
    /// The `type` in the hierarchy file.
    const KIND: &'static str;

    /// The way of requests while no byte moves.
    type Way: Way;

    /// The most bytes for each second of a move, by default.
    fn limit(&self) -> Option<u64> {
        None
    }

    /// The layout over all of `children`, in their order.
    fn begin(&self, children: &Children) -> Result<Layout>;

    /// Fails unless a recorded layout is of this kind, and agrees with the keys.
    fn accepts(&self, layout: &Layout) -> Result<()>;

    /// The largest layout in which every byte of `layout` stays where it is.
    fn widest(&self, layout: &Layout, children: &Children) -> Result<Layout>;

    /// Makes the children `spare`, which have no data, part of the layout.
    fn join(&self, layout: &Layout, children: &Children, spare: &[usize]) -> Result<Joined>;

    /// Plans to move everything off the children `gone`; `spare` are others without data.
    fn plan_evacuation(
        &self,
        layout: &Layout,
        children: &Children,
        gone: &[usize],
        spare: &[usize],
    ) -> Result<Plan>;
}

/// The requests of a kind while the layout stays.
pub trait Way: Sized + 'static {
    /// The way of `layout`.
    fn new(layout: &Layout, children: &Children) -> Self;

    /// Decides what happens to a request that is no flush.
    fn submit(&self, io: &mut Io, children: &Children) -> Step;

    /// The data and holes of `at`.
    fn extents(self: Rc<Self>, at: Range<u64>, children: Children) -> Pending<Vec<Extent>>;
}

/// The result of joining children without data.
pub enum Joined {
    /// The layout is longer from now on; nothing moves.
    Longer(Layout),
    /// Bytes move to the new children.
    After(Plan),
}

/// The state of requests.
enum Mode<W> {
    Steady(Rc<W>),
    Moving(Rc<Move>),
}

/// A device whose bytes lie on several others.
pub struct Spread<S: Shape> {
    /// The kind, with its keys.
    shape: S,
    name: String,
    env: Rc<dyn Env>,
    children: Children,
    keep: Option<Rc<dyn Keep>>,
    state: RefCell<State>,
    mode: RefCell<Mode<S::Way>>,
    job: RefCell<Option<Rc<Job>>>,
    /// True if the task that moves data runs, and is to begin at once.
    runs: Cell<bool>,
    hurry: Cell<bool>,
    /// The state after the build is not recorded yet.
    waits: Cell<bool>,
    closing: Cell<bool>,
    /// The task has ended.
    ended: Signal,
}

impl<S: Shape> Spread<S> {
    /// Opens the device, or makes it.
    pub async fn build(shape: S, with: Build) -> Result<Rc<Spread<S>>> {
        let children = with.children;
        let kept = with.keep.as_ref().filter(|_| with.begin == Begin::Open).and_then(|keep| keep.get());
        let fresh = kept.is_none();
        let mut state = match kept {
            Some(kept) => kept::read(S::KIND, &kept, &children)?,
            None => State {
                layout: shape.begin(&children)?,
                open: true,
                known: (0..children.len()).collect(),
                target: None,
            },
        };
        if with.begin == Begin::Adopt && !begins_with_first(&state.layout) {
            return Err(Error::unsupported(format!(
                "over: a {} cannot be put over devices that are in use: their bytes would change places",
                S::KIND
            )));
        }
        check(&shape, &state, &children)?;
        let before = state.clone();
        let new: Vec<usize> = (0..children.len()).filter(|child| !before.known.contains(child)).collect();
        if state.target.is_none() && !new.is_empty() {
            if with.leaving.is_empty() {
                join(&shape, &mut state, &children, &new)?;
            }
            state.known.extend(new);
        }
        let is_changed = state != before || state.target.is_some();
        let read_only = fan_out::geometry(&children).read_only;
        let spread = Rc::new(Spread {
            shape,
            mode: RefCell::new(mode(&with.env, &children, &state)),
            env: with.env,
            name: with.name,
            children,
            keep: with.keep.filter(|_| !read_only),
            state: RefCell::new(state),
            job: RefCell::default(),
            runs: Cell::new(false),
            hurry: Cell::new(false),
            waits: Cell::new(!fresh && is_changed),
            closing: Cell::new(false),
            ended: Signal::new(),
        });
        match spread.keep.is_some() {
            true if fresh => spread.remember().await?,
            true if is_changed => spread.start(false),
            true | false => {}
        }
        Ok(spread)
    }

    fn state_record(&self, state: &State) -> Value {
        kept::write(S::KIND, state, &self.children)
    }

    /// Records `state`.
    fn keep(&self, state: &State) -> Pending {
        match &self.keep {
            Some(keep) => keep.set(self.state_record(state)),
            None => Box::pin(async { Ok(()) }),
        }
    }

    /// Records the present state.
    fn remember(&self) -> Pending {
        self.keep(&self.state.borrow())
    }

    fn moving(&self) -> Option<Rc<Move>> {
        match &*self.mode.borrow() {
            Mode::Moving(moving) => Some(Rc::clone(moving)),
            Mode::Steady(_) => None,
        }
    }

    /// Children without data, except for those in `gone`.
    fn spare(&self, layout: &Layout, gone: &[usize]) -> Vec<usize> {
        (0..self.children.len()).filter(|child| !layout.uses(*child) && !gone.contains(child)).collect()
    }

    fn needs_keep(&self) -> Result<()> {
        match &self.keep {
            Some(_) => Ok(()),
            None => Err(Error::unsupported(
                "the layout follows from `over`, and is recorded nowhere; give the file a [hierarchy] table, so \
                 that this can change",
            )),
        }
    }
}

impl Plan {
    fn target(self) -> Target {
        let position = if self.up { 0 } else { self.to.size() };
        Target { to: self.to, up: self.up, position }
    }
}

fn busy() -> Error {
    Error::busy("its data is being moved: wait until that is done (or cancelled and done again)")
}

fn mode<W: Way>(env: &Rc<dyn Env>, children: &Children, state: &State) -> Mode<W> {
    match &state.target {
        None => Mode::Steady(Rc::new(W::new(&state.layout, children))),
        Some(Target { to, up, position }) => {
            Mode::Moving(Move::new(env, children, (state.layout.clone(), to.clone()), *up, *position))
        }
    }
}

/// The layout with its present length, in whole blocks.
fn frozen(state: &State, children: &Children) -> Layout {
    let more = if state.open { state.layout.stretches(children) } else { 0 };
    let (had, block) = (state.layout.size(), u64::from(fan_out::geometry(children).block));
    let size = had.saturating_add(more);
    let size = size - size % block;
    if size > had { state.layout.stretch(size - had) } else { state.layout.cut(size) }
}

/// Makes children without data part of the layout.
fn join<S: Shape>(shape: &S, state: &mut State, children: &Children, new: &[usize]) -> Result<()> {
    let layout = frozen(state, children);
    match shape.join(&layout, children, new)? {
        Joined::Longer(longer) => state.layout = longer,
        Joined::After(plan) => (state.layout, state.target) = (layout, Some(plan.target())),
    }
    state.open = true;
    Ok(())
}

/// True if the layout begins with the whole first child, and every byte of that stays where it is.
fn begins_with_first(layout: &Layout) -> bool {
    let first = layout.bands().first().map(|band| &band.on[..]);
    first == Some(&[Location { child: 0, there: 0 }])
}

/// True if every byte is where it is on the first child.
fn is_identity(layout: &Layout) -> bool {
    matches!(layout.bands(), [Band { on, .. }] if on[..] == [Location { child: 0, there: 0 }])
}

fn check<S: Shape>(shape: &S, state: &State, children: &Children) -> Result<()> {
    let block = u64::from(fan_out::geometry(children).block);
    let target = state.target.iter().map(|target| &target.to);
    for layout in std::iter::once(&state.layout).chain(target) {
        layout.check(children, block)?;
        shape.accepts(layout)?;
    }
    let Some(Target { to, up, position }) = &state.target else { return Ok(()) };
    let (before, after) = if *up { (to, &state.layout) } else { (&state.layout, to) };
    match position.is_multiple_of(block) && state.layout.size().is_multiple_of(block) {
        false => Err(Error::new(ErrorKind::Corrupt, "a move of its data has stopped inside a block")),
        true if before.is_apart(after, *position, children.len()) => Ok(()),
        true => Err(Error::new(
            ErrorKind::Corrupt,
            "a move of its data has stopped where bytes that were moved lie on others that were not",
        )),
    }
}

impl<S: Shape> Layer for Spread<S> {
    fn geometry(&self) -> Geometry {
        let state = self.state.borrow();
        let together = fan_out::geometry(&self.children);
        let size = match state.target {
            None => frozen(&state, &self.children).size(),
            Some(_) => state.layout.size(),
        };
        let unit = state.layout.bands().iter().map(|band| band.unit).max().unwrap_or(0);
        Geometry { size, optimal: together.optimal.max(unit as u32), stripe: 0, ..together }
    }

    #[inline]
    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if fan_out::is_flush(io) {
            return fan_out::flush(&self.children);
        }
        match &*self.mode.borrow() {
            Mode::Steady(steady) => steady.submit(io, &self.children),
            Mode::Moving(moving) => moving.submit(io),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        match &*self.mode.borrow() {
            Mode::Steady(steady) => Rc::clone(steady).extents(at, self.children.clone()),
            // A move copies data.
            Mode::Moving(_) => {
                let all = Extent { len: at.end - at.start, state: ExtentState::Data };
                Box::pin(async move { Ok(vec![all]) })
            }
        }
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        let span = match self.moving() {
            Some(moving) => moving.span(at),
            None => frozen(&self.state.borrow(), &self.children).span(at),
        };
        let Location { child, there } = span.location(at);
        let place = Place::data(&self.children[child], there);
        Box::pin(async { Ok(vec![place]) })
    }

    /// For bytes that lie on one child.
    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        if let Some(moving) = self.moving() {
            return Box::pin(moving.heal(at, is_right));
        }
        Box::pin(async move {
            let span = frozen(&self.state.borrow(), &self.children).span(at.start);
            if span.at.end < at.end {
                return Ok(None);
            }
            let Location { child, there } = span.location(at.start);
            self.children[child].heal(there..there + (at.end - at.start), is_right).await
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        self.closing.set(true);
        if let Some(job) = self.job() {
            job.cancel();
        }
        Box::pin(async move {
            self.rest().await;
            Ok(())
        })
    }
}

impl<S: Shape> Manage for Spread<S> {
    fn effect(&self, command: &Command) -> Effect {
        self.effect_of(command)
    }

    /// The locations of bytes are recorded elsewhere.
    fn consent(self: Rc<Self>, _child: &Rc<Node>, effect: &Effect) -> Consent {
        match self.moving() {
            Some(_) => unless_replaced(effect, || "its data is being moved: wait until that is done".into()),
            None => Consent::Agrees,
        }
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "resize" => self.resize(args(command)?).await,
                "move" => self.go_on(),
                _ => Err(unknown(&command, VERBS)),
            }
        })
    }

    fn needs_quiesce(&self, command: &Command) -> bool {
        command.name == "resize"
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.job().into_iter().collect()
    }

    fn evacuate(self: Rc<Self>, names: Vec<String>) -> Pending {
        let begun = self.begin_evacuation(&names);
        Box::pin(async move {
            begun?;
            self.evacuated(&names).await
        })
    }

    fn can_evacuate(&self, gone: &[String], joining: &[Rc<Node>]) -> Result<()> {
        self.has_room(gone, joining)
    }

    fn commit(self: Rc<Self>) -> Pending {
        match self.waits.get() {
            true => Box::pin(async move { self.remember().await }),
            false => Box::pin(async { Ok(()) }),
        }
    }

    fn detach(self: Rc<Self>) -> Pending {
        let state = self.state.borrow();
        let allowed = state.target.is_none() && is_identity(&state.layout);
        Box::pin(async move {
            match allowed {
                true => Ok(()),
                false => Err(Error::unsupported(
                    "its bytes lie on several devices: none of them can take its place",
                )),
            }
        })
    }

    fn check(self: Rc<Self>, _repair: bool) -> Pending<Vec<Finding>> {
        Box::pin(async move {
            let state = self.state.borrow();
            let finding = match check(&self.shape, &state, &self.children) {
                Err(e) => Finding::new(Class::Lost, e.message()),
                // The layout follows from the keys.
                Ok(()) if self.keep.as_ref().and_then(|keep| keep.get()).is_none() => return Ok(Vec::new()),
                Ok(()) => {
                    let (bands, size) = (state.layout.bands().len(), Bytes(state.layout.size()));
                    let more = if state.target.is_some() { ", and data is being moved" } else { "" };
                    Finding::new(Class::Good, format!("its layout is good: {size} in {bands} bands{more}"))
                }
            };
            Ok(vec![finding])
        })
    }

    fn info(&self) -> Value {
        let state = self.state.borrow();
        let mut record = self.state_record(&state);
        let spare = self.spare(&state.layout, &[]).into_iter().map(|child| self.children[child].name());
        let mut info = json!({ "layout": record["layout"].take(), "reserve": spare.collect::<Vec<_>>() });
        if let Some(target) = record.get_mut("move") {
            info["move"] = target.take();
        }
        info
    }
}
