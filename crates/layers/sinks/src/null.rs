//! `null`: reads give zeroes, writes vanish. A sink for measuring everything above it.
//!
//! Every request completes at once, without error.
//!
//! ```text
//!      write ──▶ (nothing)
//!      flush ──▶ (nothing)
//!      read  ◀── 0 0 0 0 0
//! ```
//!
//! Keys:
//! * `size`: size of the device, such as "1TiB".
//! * `block` (512): the logical block in bytes, a power of two from 512 to 64KiB.
//!
//! The sink deliberately remembers nothing: reads do not return the bytes that were written.

use lamina_block::{
    Build, Bytes, Config, Extent, ExtentState, Geometry, Io, Layer, Made, Manage, Op, Passthrough, Pending,
    Step,
};
use lamina_kit::size::all_native;
use serde::Deserialize;
use std::ops::Range;
use std::rc::Rc;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    size: Bytes,
    block: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "null";
    const SUMMARY: &'static str = "reads zeroes, forgets writes";
    const CHILDREN: std::ops::RangeInclusive<usize> = 0..=0;

    fn build(self, _with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(Null { geometry: all_native(self.size, self.block)? }) as Made) })
    }
}

struct Null {
    geometry: Geometry,
}

impl Layer for Null {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        match &io.op {
            Op::Read(into) => into.fill(0),
            Op::Write(..) | Op::Zero(_) | Op::Discard | Op::Flush => {}
        }
        Step::Done(Ok(()))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        let mut extents = Vec::new();
        Extent::push(&mut extents, at.end - at.start, ExtentState::Hole);
        Box::pin(async { Ok(extents) })
    }
}

impl Manage for Null {}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({ "size": "256KiB" }), 0).forgetful()
    }

    #[test]
    fn reads_zeroes_and_forgets() {
        let node = built("null", json!({"size": "1TiB", "block": 4096}));
        write(&node, (1 << 40) - 4096, 1, 4096);
        assert_eq!(read(&node, (1 << 40) - 4096, 4096), [0; 4096]);
        assert_eq!(extents(&node, 0..1 << 40), [hole(1 << 40)]);
        assert_eq!(node.geometry().optimal, 4096);
    }
}
