//! Making a log, and finding it.
//!
//! ```text
//!      log    │ superblock … segments …                                   │
//!      home   │ blocks of the volume, at home     │ superblock … segments … │
//!             0                                   region                   end of the device, when the log was made
//! ```
//!
//! The region stays where it was made when the device below grows: its place is in the state record of the device.
//!
//! Invariants:
//! * The superblock is written last: without it there is no log.
//! * A device in use keeps all that is not zeroes: where something else is, no region is made.

use super::format::{Checkpoint, Page, Row, RowState, SLOT, Super};
use super::{Keys, Mode, zones};
use lamina_block::{
    Begin, Build, Bytes, Durability, Env, Error, ErrorKind, ExtentState, Geometry, Io, Node, Result,
};
use lamina_kit::state_record;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::rc::Rc;

/// Percent of the log that are not shown unless a key says so.
const SPARE: u8 = 15;
/// Percent of the device that are the region unless a key says so.
const RESERVE: u8 = 10;
/// Bytes that are looked at together.
const PIECE: u64 = 1 << 20;
/// The version of the state record.
const VERSION: u64 = 1;

/// Where the region is, in bytes.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Record {
    version: u64,
    region: u64,
}

/// Makes a log if there is none: where its superblock is, in bytes.
pub(super) async fn begin(keys: &Keys, with: &Build) -> Result<u64> {
    let child = with.child();
    let on = |e: Error| Error::new(e.kind(), e.message()).on(child.name());
    match with.begin {
        Begin::Open => return find(keys, with),
        Begin::Format => {}
        Begin::Adopt if keys.mode == Mode::Home => {}
        Begin::Adopt => {
            let message = "what is on the device would be lost: only mode = \"home\" keeps it where it is, or make the \
                           layer over a new device, and copy it";
            return Err(Error::invalid(message).on(child.name()));
        }
    }
    let shape = shape(keys, &child, &with.env).map_err(on)?;
    if with.begin == Begin::Adopt {
        may_adopt(&with.env, &child, &shape).await?;
    }
    format(&with.env, &child, &shape).await?;
    record(keys, with, &shape).await?;
    Ok(shape.place(0))
}

/// Keeps where the region is, if there is one.
async fn record(keys: &Keys, with: &Build, shape: &Super) -> Result<()> {
    match (&with.keep, keys.mode) {
        (Some(keep), Mode::Home) => {
            let record = Record { version: VERSION, region: shape.place(0) };
            keep.set(state_record::write(&record)).await
        }
        (Some(keep), Mode::Log) if keep.get().is_some_and(|record| !record.is_null()) => {
            keep.set(serde_json::Value::Null).await
        }
        (Some(_) | None, Mode::Log) => Ok(()),
        (None, Mode::Home) => Err(Error::invalid(
            "mode: home keeps where its region is with the hierarchy: give the file a [hierarchy] section",
        )),
    }
}

/// Where the superblock of a log is that was made before.
fn find(keys: &Keys, with: &Build) -> Result<u64> {
    let record = with.keep.as_ref().and_then(|keep| keep.get()).filter(|record| !record.is_null());
    match (keys.mode, record) {
        (Mode::Log, None) => Ok(0),
        (Mode::Home, Some(record)) => Ok(state_record::read::<Record>(&record, VERSION, "region")?.region),
        (Mode::Log, Some(_)) => Err(Error::invalid("mode: the device was made with homes, and keeps that")),
        (Mode::Home, None) => Err(Error::invalid(
            "mode: there is no record of a region: the device was made as a log, or has no hierarchy that keeps it",
        )),
    }
}

/// The stripe of the device below, in bytes, or that of a slot.
fn stripe(geometry: Geometry) -> Result<u32> {
    let stripe = geometry.stripe.max(SLOT as u32);
    if geometry.block as usize > SLOT {
        return Err(Error::unsupported(format!(
            "its blocks of {} bytes are larger than {SLOT}",
            geometry.block
        )));
    }
    match (stripe as usize).is_multiple_of(SLOT) {
        true => Ok(stripe),
        false => Err(Error::unsupported(format!("its stripe of {stripe} bytes is no multiple of {SLOT}"))),
    }
}

/// Blocks before the region, which is the rest of the device: a multiple of the stripe.
fn homes(keys: &Keys, geometry: Geometry) -> Result<u32> {
    let stripe = u64::from(stripe(geometry)?);
    let shown = match keys.size {
        Some(size) if !size.0.is_multiple_of(stripe) => {
            return Err(Error::invalid(format!("size: {size} is not a multiple of {}", Bytes(stripe))));
        }
        Some(size) => size.0,
        None => {
            let reserve = geometry.size / 100 * u64::from(keys.reserve.unwrap_or(RESERVE));
            (geometry.size - reserve) / stripe * stripe
        }
    };
    let blocks = u32::try_from(shown / SLOT as u64);
    blocks.map_err(|_| Error::unsupported(format!("{} are too many for a map", Bytes(shown))))
}

fn shape(keys: &Keys, child: &Node, env: &Rc<dyn Env>) -> Result<Super> {
    let (geometry, zones) = (child.geometry(), child.zones());
    let uuid = u128::from(env.random()) << 64 | u128::from(env.random());
    let (stripe, key) = (stripe(geometry)? / SLOT as u32, env.random());
    match (keys.mode, zones) {
        (Mode::Log, Some(zones)) => sized(keys, zones::shape(&zones, uuid, key)?),
        (Mode::Log, None) => {
            let size = geometry.size;
            let shape = Super::new(size, stripe, uuid, key);
            let wrong = || Error::invalid(format!("{size} bytes are too few or too many for a log"));
            sized(keys, shape.ok_or_else(wrong)?)
        }
        (Mode::Home, Some(_)) => Err(Error::unsupported(
            "mode: home writes to homes in any order, which its zones do not take: make it with mode = \"log\"",
        )),
        (Mode::Home, None) => {
            let blocks = homes(keys, geometry)?;
            let region = geometry.size.saturating_sub(u64::from(blocks) * SLOT as u64);
            Super::beside(blocks, region, stripe, uuid, key).ok_or_else(|| {
                let (region, size) = (Bytes(region), Bytes(geometry.size));
                Error::invalid(format!(
                    "a region of {region} is too small or too large for the log of a device of {size}: say another \
                     reserve or size"
                ))
            })
        }
    }
}

/// The layout of a log with as many blocks as the keys say.
fn sized(keys: &Keys, shape: Super) -> Result<Super> {
    let most = Bytes(u64::from(shape.blocks) * SLOT as u64);
    let blocks = match keys.size {
        Some(size) if size.0 == 0 || size.0 > most.0 || !size.0.is_multiple_of(SLOT as u64) => {
            return Err(Error::invalid(format!("size: {size} is not a multiple of 4KiB up to {most}")));
        }
        Some(size) => (size.0 / SLOT as u64) as u32,
        None => {
            let shown = 100 - u64::from(keys.spare.unwrap_or(SPARE));
            let slots = u64::from(shape.segments) * u64::from(shape.segment_slots);
            shape.blocks.min((slots * shown / 100) as u32)
        }
    };
    Ok(Super { blocks, ..shape })
}

/// Makes an empty log, whatever is there.
async fn format(env: &Rc<dyn Env>, child: &Rc<Node>, shape: &Super) -> Result<()> {
    zones::empty(child).await?;
    let made = Checkpoint {
        sequence: 1,
        serial: 0,
        next_segment: 1,
        clock: 0,
        pages: vec![Page { slot: 0, checksum: 0 }; shape.pages() as usize],
        rows: vec![
            Row { sequence: 0, time: 0, end: 0, class: 0, state: RowState::Free };
            shape.segments as usize
        ],
        free: (0..shape.segments).collect(),
        window: 0,
    };
    let checkpoint = shape.place(shape.checkpoint_at(0));
    write_durably(env, child, checkpoint, &made.encode(shape.key)).await?;
    // The superblock comes last: without it there is no log.
    write_durably(env, child, shape.place(0), &shape.encode()).await
}

async fn write_durably(env: &Rc<dyn Env>, child: &Rc<Node>, place: u64, bytes: &[u8]) -> Result<()> {
    let buf = env.pool().take(bytes.len());
    buf.write(0, bytes);
    child.submit(Io::write(place, buf, Durability::Fua)).await
}

async fn read(env: &Rc<dyn Env>, child: &Rc<Node>, at: Range<u64>) -> Result<Vec<u8>> {
    let buf = env.pool().take((at.end - at.start) as usize);
    child.submit(Io::read(at.start, buf.clone())).await?;
    Ok(buf.to_vec())
}

/// Refuses a region in which something is.
async fn may_adopt(env: &Rc<dyn Env>, child: &Rc<Node>, shape: &Super) -> Result<()> {
    let (size, segments) = (child.geometry().size, shape.place(shape.segments_at));
    let first = read(env, child, shape.place(0)..segments).await?;
    if is_data(first, shape, size) {
        return Err(in_the_way(child, shape.place(0), shape.place(0)));
    }
    let mut at = segments;
    for extent in child.extents(segments..size).await? {
        let end = at + extent.len;
        while at < end && extent.state == ExtentState::Data {
            let piece = at..end.min(at + PIECE);
            if read(env, child, piece.clone()).await?.iter().any(|byte| *byte != 0) {
                return Err(in_the_way(child, shape.place(0), piece.start));
            }
            at = piece.end;
        }
        at = end;
    }
    Ok(())
}

/// Whether something is before the segments of a region that is no log that has been left, and none whose making was
/// not finished. These may be several, each with a key of its own.
fn is_data(mut bytes: Vec<u8>, shape: &Super, size: u64) -> bool {
    let is_same = |begun: Super| Super { uuid: shape.uuid, key: shape.key, ..begun } == *shape;
    if Super::decode(&bytes[..SLOT], size).is_ok_and(is_same) {
        bytes[..SLOT].fill(0);
    }
    for copy in [0, 1] {
        let start = shape.checkpoint_at(copy) as usize * SLOT;
        let copy = &mut bytes[start..start + shape.checkpoint_slots as usize * SLOT];
        if Checkpoint::is_of_some_log(copy, shape) {
            copy.fill(0);
        }
    }
    bytes.iter().any(|byte| *byte != 0)
}

fn in_the_way(child: &Node, region: u64, data: u64) -> Error {
    let size = child.geometry().size;
    let message = format!(
        "the last {} of {} become the log, and there are data from {} on: make the device larger first, zero or \
         discard what is behind {}, or say another reserve or size",
        Bytes(size - region),
        Bytes(size),
        Bytes(data),
        Bytes(region),
    );
    Error::new(ErrorKind::NoSpace, message).on(child.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_as_it_was() {
        let record = state_record::write(&Record { version: VERSION, region: 4096 });
        assert_eq!(record.to_string(), r#"{"region":4096,"version":1}"#);
    }
}
