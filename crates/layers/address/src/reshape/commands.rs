//! The commands of volumes whose layout can change.

use super::layout::Layout;
use super::{Joined, Shape, Spread, busy, frozen, mode};
use lamina_block::{Arg, ArgType, Bytes, Command, Effect, Error, ErrorKind, Layer, Manage, Result, Verb};
use lamina_kit::command::args;
use lamina_kit::fan_out;
use serde::Deserialize;
use serde_json::Value;
use std::rc::Rc;

/// The commands of all kinds.
pub const VERBS: &[Verb] = &[
    Verb::new("resize", "makes the device as large as its devices allow, or as large as given").with(&[
        Arg::optional("size", ArgType::Size, "the new size; without it, all free space"),
        Arg::optional("force", ArgType::Flag, "yes, the bytes beyond a smaller size are lost"),
    ]),
    Verb::new("move", "goes on with a move of data that was cancelled, or begins one at once"),
];

/// The arguments of `resize`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    size: Option<Bytes>,
    #[serde(default)]
    force: bool,
}

impl<S: Shape> Spread<S> {
    /// Changes the size; the device is quiesced.
    pub async fn resize(self: &Rc<Self>, Resize { size, force }: Resize) -> Result<Value> {
        self.needs_keep()?;
        if self.moving().is_some() {
            return Err(busy());
        }
        self.rest().await;
        let mut state = self.state.borrow().clone();
        let now = frozen(&state, &self.children);
        state.layout = match size {
            Some(Bytes(size)) => self.sized(&now, size, force)?,
            None => {
                let spare = self.spare(&now, &[]);
                let joined = match spare.is_empty() {
                    true => Joined::Longer(self.shape.widest(&now, &self.children)?),
                    false => self.shape.join(&now, &self.children, &spare)?,
                };
                match joined {
                    Joined::Longer(longer) => self.shape.widest(&longer, &self.children)?,
                    Joined::After(plan) => {
                        self.state.borrow_mut().open = true;
                        self.begin_move(now, plan);
                        return Ok(self.info());
                    }
                }
            }
        };
        state.open = size.is_none();
        self.keep(&state).await?;
        self.mode.replace(mode(&self.env, &self.children, &state));
        self.state.replace(state);
        Ok(self.info())
    }

    /// The effect of a command on those above, and the data lost with it.
    pub fn effect_of(&self, command: &Command) -> Effect {
        let asked = args::<Resize>(command.clone()).ok().filter(|_| command.name == "resize");
        let before = self.geometry().size;
        match asked.and_then(|resize| resize.size) {
            Some(Bytes(size)) if size < before => Effect::replaces(format!(
                "the data beyond {}, of the {} that it has now",
                Bytes(size),
                Bytes(before)
            )),
            Some(_) | None => Effect::default(),
        }
    }

    /// The layout `now` with another size.
    fn sized(&self, now: &Layout, size: u64, force: bool) -> Result<Layout> {
        let block = u64::from(fan_out::geometry(&self.children).block);
        if size == 0 || !size.is_multiple_of(block) {
            return Err(Error::invalid(format!("size: not a multiple of its blocks of {block} bytes")));
        }
        if size < now.size() && !force {
            return Err(Error::invalid(format!(
                "size: the device has {}, and the bytes beyond {} would be lost; say force=true if nothing \
                 there is needed",
                Bytes(now.size()),
                Bytes(size)
            )));
        }
        if size <= now.size() {
            return Ok(now.cut(size));
        }
        let widest = self.shape.widest(now, &self.children)?;
        if widest.size() < size {
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!("size: its devices have room for {}", Bytes(widest.size())),
            ));
        }
        Ok(widest.cut(size))
    }

    /// Lets a move begin now, or go on.
    pub fn go_on(self: &Rc<Self>) -> Result<Value> {
        match (self.moving(), self.runs.get()) {
            (None, _) => return Err(Error::invalid("move: there is nothing to move")),
            (Some(_), true) => self.hurry.set(true),
            (Some(_), false) => {
                self.needs_keep()?;
                self.start(true);
            }
        }
        Ok(self.info())
    }
}
