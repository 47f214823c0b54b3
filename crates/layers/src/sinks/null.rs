//! `null`: reads give zeroes, writes vanish. A sink for measuring everything above it.
//!
//! Every request completes at once and well.
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
//! It deliberately remembers nothing: what is read is not what was written.

use lamina_block::{
    Build, Bytes, Config, Error, Extent, ExtentState, Geometry, Io, Layer, Made, Manage, Op, Passthrough,
    Pending, Result, Step,
};
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

/// A logical block from the file: a power of two from 512 to 64 KiB.
pub(crate) fn block(block: Bytes) -> Result<u32> {
    match u32::try_from(block.0) {
        Ok(block) if block.is_power_of_two() && (512..=64 << 10).contains(&block) => Ok(block),
        _ => Err(Error::invalid(format!("block: {block} is not a power of two from 512 to 64KiB"))),
    }
}

/// The size of a sink from the file: at least one `block`, whole blocks, and an offset that a kernel can express.
pub(crate) fn size(size: Bytes, block: u32) -> Result<u64> {
    if size.0 == 0 || !size.0.is_multiple_of(block as u64) || size.0 > i64::MAX as u64 {
        return Err(Error::invalid(format!(
            "size: {size} is not a multiple of {block} bytes, from {block} to 2^63"
        )));
    }
    Ok(size.0)
}

/// The shape of a sink that does every operation itself.
pub(crate) fn all_native(bytes: Bytes, unit: Option<Bytes>) -> Result<Geometry> {
    let unit = unit.map_or(Ok(512), block)?;
    let native = Geometry::new(size(bytes, unit)?);
    Ok(Geometry {
        block: unit,
        optimal: native.optimal.max(unit),
        discard: true,
        zero: true,
        fua: true,
        ..native
    })
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
