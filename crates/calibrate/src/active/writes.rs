//! Writes: whether the drive buffers them, how many sectors the buffer holds, what the arm takes longer before a write,
//! and what a flush costs.
//!
//! Only with [`super::Options::writes`]: the data of the drive are lost. A write that ends when its sector has passed
//! under the head went to the medium; one that does not was buffered. A longer write than the buffer goes to the medium
//! as well, so that bisecting over the length of a write after a pause finds the size. Behind a buffer the arm's time
//! cannot be seen, and is not guessed.

use super::Measured;
use super::layout::Layout;
use super::rotation::Rotation;
use super::seek::{self, Seeking};
use super::session::Session;
use crate::numbers::{fraction, median, signed};

/// Writes that say whether they are buffered.
const TRIES: usize = 15;
/// Sectors that the buffer is tried for.
const SECTORS_MAX: u64 = 65_536;
/// Sectors of the write that tells what each takes on the bus.
const LONG: u32 = 32;
/// The buffer is empty after this pause.
const IDLE_US: f64 = 2_000_000.0;
/// Writes to the medium end at most this part of a turn before or after reads of the same sector.
const LATE_MAX: f64 = 0.05;
/// The share of all cylinders that the arm moves before writes that tell the settling time.
const FAR: u64 = 8;

/// What writes told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writes {
    /// The buffer; `None` if writes end on the medium.
    pub buffer: Option<Buffer>,
    /// What positioning takes longer before a write, in microseconds; `None` if it was not seen.
    pub settle_us: Option<Measured>,
    /// What a flush takes after a write of one sector, in microseconds; `None` if the drive takes no flushes.
    pub flush_us: Option<f64>,
}

/// A buffer of writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buffer {
    /// Sectors that it holds, and whether the number was confirmed.
    pub sectors: (u64, bool),
    /// Microseconds of a write of one sector that finds room.
    pub write_us: f64,
    /// Microseconds of each further sector.
    pub sector_us: f64,
}

/// Writes all over the drive.
pub(super) fn find(session: &mut Session, rotation: &Rotation, layout: &Layout) -> Result<Writes, String> {
    session.say("writes: whether they are buffered");
    let (buffer, settle_us) = match ends(session, layout)? {
        Ends::Buffered { write_us } => (Some(buffer(session, write_us)?), None),
        Ends::Medium { late } => (None, settle(session, rotation, layout, late)?),
    };
    session.say("writes: flushes");
    let flush_us = flush(session);
    Ok(Writes { buffer, settle_us, flush_us })
}

/// Where writes end.
enum Ends {
    /// With their sectors, later than reads by so much of a turn.
    Medium { late: f64 },
    /// In the buffer, after so many microseconds.
    Buffered { write_us: f64 },
}

fn ends(session: &mut Session, layout: &Layout) -> Result<Ends, String> {
    let (mut late, mut times) = (Vec::new(), Vec::new());
    let count = TRIES.min(layout.tracks.len());
    for n in 0..count {
        let track = layout.tracks[n * layout.tracks.len() / count];
        let index = session.rng.u64(..track.sectors);
        let write = session.write_many(track.first + index, 1, IDLE_US / 20.0)?;
        let phase = fraction(track.phase + index as f64 / f64::from(track.slots));
        late.push(signed(session.phase(&write) - phase));
        times.push(write.service_us());
    }
    let near = 2.0 * session.tolerance();
    let agree = |one: &f64| late.iter().filter(|other| signed(*other - one).abs() <= near).count();
    // What a write takes to be acknowledged is a small part of a turn.
    let most = late.iter().copied().filter(|late| late.abs() < LATE_MAX).max_by_key(agree);
    let buffered = || Ends::Buffered { write_us: median(&times) };
    Ok(most.filter(|late| 2 * agree(late) > count).map_or_else(buffered, |late| Ends::Medium { late }))
}

/// The size of the buffer, and what a sector takes on the way to it.
fn buffer(session: &mut Session, write_us: f64) -> Result<Buffer, String> {
    session.say("writes: the size of the buffer");
    let most = SECTORS_MAX.min(session.sectors() / 4);
    let turn_us = session.clock.period_us;
    let mut took_us = |sectors: u64| -> Result<f64, String> {
        let lbn = session.anywhere().min(session.sectors() - sectors);
        Ok(session.write_many(lbn, sectors as u32, IDLE_US)?.service_us())
    };
    let mut long = Vec::new();
    for _ in 0..TRIES / 3 {
        long.push(took_us(u64::from(LONG))?);
    }
    let each = |sectors: u64, us: f64| ((us - write_us) / (sectors - 1) as f64).max(0.0);
    let mut sector_us = each(u64::from(LONG), median(&long));
    let near = |sectors: u64, us: f64, sector_us: f64| {
        let expected_us = write_us + (sectors - 1) as f64 * sector_us;
        (us - expected_us).abs() < turn_us / 8.0 + expected_us / 50.0
    };
    let (mut there, mut beyond) = (1, 2);
    while beyond <= most {
        let us = [took_us(beyond)?, took_us(beyond)?];
        if !us.iter().all(|us| near(beyond, *us, sector_us)) {
            break;
        }
        if beyond > u64::from(LONG) {
            // What a write differs by counts less the longer the write is.
            sector_us = each(beyond, (us[0] + us[1]) / 2.0);
        }
        (there, beyond) = (beyond, beyond * 2);
    }
    if beyond > most {
        return Ok(Buffer { sectors: (there, false), write_us, sector_us });
    }
    let mut fits = |sectors: u64| Ok::<bool, String>(near(sectors, took_us(sectors)?, sector_us));
    while beyond - there > 1 {
        let middle = (there + beyond) / 2;
        // A longer write may end in time by chance, but not twice.
        if fits(middle)? && fits(middle)? { there = middle } else { beyond = middle }
    }
    let is_confirmed = fits(there)? && !(fits(beyond)? && fits(beyond)?);
    Ok(Buffer { sectors: (there, is_confirmed), write_us, sector_us })
}

/// What writes over a long distance take longer than reads.
fn settle(
    session: &mut Session,
    rotation: &Rotation,
    layout: &Layout,
    late: f64,
) -> Result<Option<Measured>, String> {
    session.say("writes: settling");
    let distance = (layout.cylinders / FAR).max(1);
    let seeking = &mut Seeking::new(session, rotation);
    let read = seek::over(seeking, layout, distance, false)?;
    seeking.writes = Some(late);
    let write = seek::over(seeking, layout, distance, false)?;
    Ok(read.zip(write).map(|(read, write)| Measured {
        value: (write.us() - read.us()).max(0.0),
        uncertainty: (read.made_us - read.missed_us + write.made_us - write.missed_us) / 2.0,
    }))
}

/// What a flush takes after a write; `None` if it is refused.
fn flush(session: &mut Session) -> Option<f64> {
    let mut times = Vec::new();
    for _ in 0..TRIES {
        let lbn = session.anywhere();
        session.write_many(lbn, 1, 0.0).ok()?;
        times.push(session.flush().ok()?.service_us());
    }
    Some(median(&times))
}
