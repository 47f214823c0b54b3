//! New devices whose data a change would overwrite, although they are no members.
//!
//! A new member gets superblocks, and its path says where to look first. A disk of another machine gets none: it is
//! written to as a leg of a device that is there, or by a new layer that puts its own data there. Below new layers that
//! keep their data elsewhere, such a disk shows what it has.

use crate::hierarchy::Maker;
use crate::{Device, Hierarchy, Plan};
use lamina_block::{Begin, Env, Node, Result};
use std::rc::Rc;

impl Hierarchy {
    /// The new devices of `plan` that are no members, and that the change to it would write to.
    pub fn overwrites<'a>(&self, plan: &'a Plan) -> Vec<&'a Device> {
        let is_sink = |device: &&Device| device.over.is_empty() && !device.kind.traits.member;
        let is_new = |device: &&Device| self.node(&device.name).is_none();
        let sinks = plan.devices().iter().filter(is_sink).filter(is_new);
        sinks.filter(|sink| self.is_written(plan, &sink.name)).collect()
    }

    /// True if a device above is there already, or has its own data below it.
    fn is_written(&self, plan: &Plan, name: &str) -> bool {
        let mut above = plan.devices().iter().filter(|device| device.over.iter().any(|below| below == name));
        above.any(|device| {
            let traits = &device.kind.traits;
            let writes = traits.signature.is_some() || traits.store;
            writes || self.node(&device.name).is_some() || self.is_written(plan, &device.name)
        })
    }
}

impl Plan {
    /// A device without children, opened by itself to be read, if its kind can do that.
    pub async fn opened_alone(&self, device: &Device, env: &Rc<dyn Env>) -> Result<Rc<Node>> {
        let mut read_only = device.clone();
        read_only.keys["read-only"] = true.into();
        let device = if device.kind.parse(&read_only.keys).is_ok() { &read_only } else { device };
        let maker = Maker { plan: self, env, roster: None };
        maker.node(device, Vec::new(), Begin::Open).await
    }
}
