//! The effects of commands on the users of a partition.

use super::table::{self, UNIT};
use super::{Partition, Resize};
use lamina_block::{Bytes, Command, Effect};
use lamina_kit::command::args;

impl Partition {
    /// The effect of a command on the view of a partition, and the data lost with it.
    pub(super) fn effect_of(&self, command: &Command) -> Effect {
        let is_resize = command.name == "resize";
        let Some(Resize { name, size, .. }) = args(command.clone()).ok().filter(|_| is_resize) else {
            return Effect::default();
        };
        let (Ok(part), Ok(units)) = (self.part(&name), table::units(size)) else { return Effect::default() };
        match units * UNIT < part.size() {
            true => {
                let (before, after) = (Bytes(part.size()), Bytes(units * UNIT));
                Effect::replaces(format!("the data beyond {after}, of the {before} of {name:?}"))
                    .of_view(&part.name())
            }
            false => Effect::default(),
        }
    }
}
