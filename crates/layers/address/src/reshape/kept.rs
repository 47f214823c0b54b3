//! The state record of a layout, kept with the hierarchy: see `docs/formats/kept.md`.
//!
//! Devices are recorded by their names, so that their order in `over` may change. The reader trusts nothing:
//! unknown fields, a later version, another kind and names that `over` does not have are refused;
//! [`Layout::check`] decides whether the layout itself is possible.

use super::layout::{Band, Layout, Location};
use lamina_block::{Children, Error, Result};
use lamina_kit::state_record;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version that is written.
const VERSION: u32 = 1;

/// The state of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The locations of its bytes.
    pub layout: Layout,
    /// The last band reaches as far as its devices do.
    pub open: bool,
    /// The children that the device has seen. Those without data are in reserve.
    pub known: Vec<usize>,
    /// The new locations of its bytes, and the position of the move.
    pub target: Option<Target>,
}

/// A move that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The new locations of the bytes.
    pub to: Layout,
    /// The move begins at the first byte, otherwise at the last.
    pub up: bool,
    /// The byte up to which, or from which on, all bytes are at their new location.
    pub position: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    kind: String,
    devices: Vec<String>,
    open: bool,
    layout: Vec<KeptBand>,
    #[serde(rename = "move", default, skip_serializing_if = "Option::is_none")]
    target: Option<KeptTarget>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeptBand {
    len: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    unit: u64,
    on: Vec<KeptLocation>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeptLocation {
    device: String,
    start: u64,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeptTarget {
    to: Vec<KeptBand>,
    up: bool,
    position: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Encodes `state`.
pub fn write(kind: &str, state: &State, children: &Children) -> Value {
    let name = |child: usize| children[child].name().to_owned();
    let location = |location: &Location| KeptLocation { device: name(location.child), start: location.there };
    let band =
        |band: &Band| KeptBand { len: band.len, unit: band.unit, on: band.on.iter().map(location).collect() };
    let bands = |layout: &Layout| layout.bands().iter().map(band).collect();
    let kept = Kept {
        version: VERSION,
        kind: kind.into(),
        devices: state.known.iter().map(|child| name(*child)).collect(),
        open: state.open,
        layout: bands(&state.layout),
        target: state.target.as_ref().map(|target| KeptTarget {
            to: bands(&target.to),
            up: target.up,
            position: target.position,
        }),
    };
    state_record::write(&kept)
}

/// Decodes the record `kept` of a device of `kind` over `children`.
pub fn read(kind: &str, kept: &Value, children: &Children) -> Result<State> {
    let Kept { kind: was, devices, open, layout, target, .. } =
        state_record::read(kept, VERSION.into(), "layout")?;
    if was != kind {
        return Err(Error::invalid(format!(
            "type: the device was made as {was:?}, and its data lies like that"
        )));
    }
    let find = |name: &String| children.iter().position(|child| child.name() == name);
    let location = |location: KeptLocation| match find(&location.device) {
        Some(child) => Ok(Location { child, there: location.start }),
        None => Err(Error::invalid(format!(
            "over: {} is missing, and holds data of it; leave it there, and take it away while the hierarchy is \
             served (lamina apply), so that its data is moved off first",
            location.device
        ))),
    };
    let bands = |bands: Vec<KeptBand>| {
        let mut layout = Layout::default();
        for KeptBand { len, unit, on } in bands {
            layout.push(Band { len, unit, on: on.into_iter().map(location).collect::<Result<_>>()? })?;
        }
        Ok::<_, Error>(layout)
    };
    let layout = bands(layout)?;
    let target = match target {
        None => None,
        Some(KeptTarget { to, up, position }) => Some(Target { to: bands(to)?, up, position }),
    };
    if target.as_ref().is_some_and(|t| t.position > layout.size() || t.to.size() != layout.size()) {
        return Err(state_record::corrupt("layout", "a move to another size, or beyond the end"));
    }
    Ok(State { layout, open, known: devices.iter().filter_map(find).collect(), target })
}
