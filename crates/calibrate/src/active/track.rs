//! Tracks, from the phases of their sectors.
//!
//! Along a track the phase grows by the same for each sector; from one track to the next it jumps by the skew. So a
//! few sectors give the sectors around a track, and bisecting gives its ends: Talagala, Arpaci-Dusseau, Patterson:
//! "Microbenchmark-based extraction of local and global disk characteristics", 1999, and Schindler, Ganger: "Automated
//! disk drive characterization", 1999, for the idea. Both read many sectors and look at differences of times; with the
//! rotation known, each read gives its phase, and fewer are enough.

use super::ask::Asker;
use crate::numbers::{fraction, signed};

/// Distances from a track's sector at which its line is looked for, in sectors. Each is four times the one before, so
/// that the line of the shorter one says enough about the longer.
const STEPS: [u64; 8] = [16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144];
/// Tracks of a line without a jump after which there is none: more than the heads of any drive.
const TURNS_MAX: f64 = 34.0;
/// A track has more sectors than this.
const SECTORS_MIN: f64 = 24.0;
/// A number of sectors around a track that is off by less than this is whole when it is rounded.
const SLOTS_ERROR: f64 = 0.3;
/// A walk over more slips than this sees no tracks.
const SLIPS_MAX: usize = 100;
/// The least part of a sector that a track may have: an eighth, where blocks are eight sectors, less what rounds it.
const BROKEN_MIN: f64 = 0.1;
/// A track with a defective sector has more sectors below it than this, or is followed from it.
const NEAR_SLIP: u64 = 18;
/// How often a place is tried again a little lower when its first sectors are on two tracks.
const ATTEMPTS: u64 = 8;

/// The phases of a track.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// A sector and the phase of its end.
    pub lbn: u64,
    pub phase: f64,
    /// Turns of a sector, and what they may be off by.
    pub per_sector: f64,
    pub error: f64,
}

impl Line {
    /// The phase that a sector has if it is on the track.
    pub(super) fn at(&self, lbn: u64) -> f64 {
        fraction(self.phase + (lbn as f64 - self.lbn as f64) * self.per_sector)
    }

    fn off(&self, lbn: u64, phase: f64) -> f64 {
        signed(phase - self.at(lbn))
    }

    /// Whether a sector of the phase `phase` follows one of the phase `below` over one or two slots that hold none.
    fn slips(&self, phase: f64, below: f64, tolerance: f64) -> bool {
        let slots = fraction(phase - below) / self.per_sector - 1.0;
        let exact = tolerance / self.per_sector;
        exact < 0.25 && (slots - slots.round()).abs() <= 2.0 * exact && (1.0..=2.0).contains(&slots.round())
    }

    fn fits(&self, lbn: u64, phase: f64, tolerance: f64) -> bool {
        self.off(lbn, phase).abs() <= tolerance + lbn.abs_diff(self.lbn) as f64 * self.error
    }

    /// A sector that is on the track makes the line more exact, if it is far from the line's own.
    fn learn(&mut self, lbn: u64, phase: f64, tolerance: f64) {
        let distance = lbn as f64 - self.lbn as f64;
        let error = tolerance / distance.abs();
        if error < self.error {
            self.per_sector += self.off(lbn, phase) / distance;
            self.error = error;
        }
    }

    /// Sectors around the track, and what they may be off by.
    pub(super) fn slots(&self) -> (f64, f64) {
        let slots = 1.0 / self.per_sector;
        (slots, slots * slots * self.error)
    }

    /// Whether the track may have so many sectors around it.
    pub(super) fn may_have(&self, slots: u32) -> bool {
        let (found, error) = self.slots();
        (found - f64::from(slots)).abs() <= error + 0.5
    }
}

/// A line, how far down it was seen, and where it was not seen any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slope {
    pub line: Line,
    on: u64,
    off: Option<u64>,
}

/// The line of the track of `top`, or of a track a little below.
pub(super) async fn slope(ask: &Asker, top: u64) -> Option<Slope> {
    for attempt in 0..ATTEMPTS {
        // Steps that are no multiple of anything that tracks have.
        if let Some(slope) = slope_at(ask, top.checked_sub(attempt * 29)?).await {
            return Some(slope);
        }
    }
    None
}

/// Turns of a sector on the longest track that is believed.
const PER_SECTOR_MIN: f64 = 1e-5;

async fn slope_at(ask: &Asker, top: u64) -> Option<Slope> {
    const FIRST: u64 = 4;
    let low = top.checked_sub(FIRST)?;
    let (phase, below) = ask.phases(top, low).await;
    let per_sector = fraction(phase - below) / FIRST as f64;
    let tolerance = ask.tolerance;
    if per_sector > 1.0 / SECTORS_MIN || per_sector < tolerance / FIRST as f64 {
        return None;
    }
    let mut line = Line { lbn: top, phase, per_sector, error: tolerance / FIRST as f64 };
    let mut on = low;
    for step in STEPS {
        let Some(lbn) = top.checked_sub(step) else { return Some(Slope { line, on, off: None }) };
        let phase = ask.phase(lbn).await;
        if !line.fits(lbn, phase, tolerance) {
            return (on != low).then_some(Slope { line, on, off: Some(lbn) });
        }
        line.learn(lbn, phase, tolerance);
        if !(PER_SECTOR_MIN..=1.0 / SECTORS_MIN).contains(&line.per_sector) {
            // Phases that jitter so much say nothing.
            return None;
        }
        on = lbn;
        if step as f64 * line.per_sector > TURNS_MAX {
            break;
        }
    }
    Some(Slope { line, on, off: None })
}

/// The first sector of the track of a slope; `None` if the line has no end where tracks must have one.
async fn first_sector(ask: &Asker, slope: &mut Slope) -> Option<u64> {
    let Slope { line, on, off } = slope;
    let turns = (line.lbn - *on) as f64 * line.per_sector;
    let mut off = match off {
        Some(off) => *off as i64,
        None if turns > TURNS_MAX => return None,
        // The begin of the drive is nearer than the next step.
        None => -1,
    };
    loop {
        while *on as i64 - off > 1 {
            let middle = ((*on as i64 + off) / 2) as u64;
            let phase = ask.phase(middle).await;
            if line.fits(middle, phase, ask.tolerance) {
                line.learn(middle, phase, ask.tolerance);
                *on = middle;
            } else {
                off = middle as i64;
            }
        }
        // Where the line of a track crosses the line of another zone, sectors below the end seem to be on the track.
        let Some(missing) = missing(ask, line, *on).await else { return Some(*on) };
        (*on, off) = (line.lbn, missing as i64);
    }
}

/// A sector between `first` and the line's own that is not on the line.
async fn missing(ask: &Asker, line: &Line, first: u64) -> Option<u64> {
    for ahead in [2, 8, 32, 128, 512].into_iter().map(|ahead| first + ahead).take_while(|at| *at < line.lbn) {
        if !line.fits(ahead, ask.phase(ahead).await, ask.tolerance) {
            return Some(ahead);
        }
    }
    None
}

/// The begin of a track, or of several that follow each other without skew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Edge {
    /// Its first sector, and the phase of that.
    pub lbn: u64,
    pub phase: f64,
    /// By how much of a turn it begins later than right behind the last sector of the track below.
    pub jump: f64,
}

/// Why a walk ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    /// It was long enough.
    Enough,
    /// Below the last edge tracks have another number of sectors.
    Zone,
    /// The begin of the drive.
    Start,
    /// The line of the track goes on where it must have ended: there is no skew.
    NoSkew,
    /// Nothing fits.
    Lost,
}

/// Tracks that follow each other, from above downwards.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// The line of the highest track.
    pub line: Line,
    /// Sectors around a track.
    pub slots: u32,
    pub edges: Vec<Edge>,
    pub end: End,
}

/// Follows the tracks from the one of `top` downwards, for at most `tracks` edges.
pub(super) async fn walk(ask: &Asker, top: u64, tracks: usize) -> Option<Walk> {
    let mut slope = slope(ask, top).await?;
    let mut first = first_sector(ask, &mut slope).await;
    let line = slope.line;
    let mut walk = Walk { line, slots: line.slots().0.round() as u32, edges: Vec::new(), end: End::Enough };
    let mut lengths: Vec<u64> = vec![u64::from(walk.slots)];
    let mut line = slope.line;
    let mut slips: Vec<u64> = Vec::new();
    loop {
        let Some(lbn) = first else {
            walk.end = End::NoSkew;
            break;
        };
        if lbn == 0 {
            walk.end = End::Start;
            break;
        }
        let below = ask.phase(lbn - 1).await;
        let phase = line.at(lbn);
        if line.slips(phase, below, ask.tolerance) {
            slips.push(lbn);
            if slips.len() > SLIPS_MAX {
                walk.end = End::Lost;
                break;
            }
            if !are_regular(&slips) {
                line = Line { lbn: lbn - 1, phase: below, ..line };
                first = below_slip(ask, &line).await;
                continue;
            }
        }
        walk.edges.push(Edge { lbn, phase, jump: fraction(phase - below - line.per_sector) });
        if walk.edges.len() >= tracks {
            break;
        }
        line = Line { lbn: lbn - 1, phase: below, ..line };
        first = match known(ask, &mut line, &lengths).await {
            Some(found) => Some(found),
            None => match unknown(ask, &mut line, lbn - 1).await {
                Below::Track(found) => Some(found),
                Below::Zone => {
                    walk.end = End::Zone;
                    break;
                }
                Below::Lost => {
                    walk.end = End::Lost;
                    break;
                }
            },
        };
        if let Some(found) = first {
            let length = lbn - found;
            lengths.retain(|known| *known != length);
            lengths.insert(0, length);
        }
    }
    walk.settle();
    Some(walk)
}

impl Walk {
    /// Whether the track certainly has no whole number of sectors.
    pub(super) fn is_broken(&self) -> bool {
        let (slots, error) = self.line.slots();
        (slots - slots.round()).abs() > error.max(BROKEN_MIN)
    }

    /// Where the slope leaves several numbers of sectors, a length that was seen tells; spares and slips shorten
    /// tracks.
    fn settle(&mut self) {
        let (slots, error) = self.line.slots();
        let is_whole = error < 1.0 && (slots - slots.round()).abs() < SLOTS_ERROR / 3.0;
        if error < SLOTS_ERROR || is_whole {
            return;
        }
        let longest = self.edges.windows(2).map(|pair| pair[0].lbn - pair[1].lbn).max();
        let near = |length: &u64| (*length as f64 - slots).abs() <= error + 0.6;
        if let Some(length) = longest.filter(near) {
            self.slots = length as u32;
        }
    }
}

/// Whether the last slips, from above downwards, are equally far from each other: then they all are none, but ends of
/// tracks with spare sectors and without skew.
fn are_regular(slips: &[u64]) -> bool {
    matches!(slips, [.., a, b, c] if a - b == b - c)
}

/// The first sector of the track of `line`, which begins right below a defective sector.
async fn below_slip(ask: &Asker, line: &Line) -> Option<u64> {
    let near = Slope { line: *line, on: line.lbn, off: line.lbn.checked_sub(NEAR_SLIP) };
    let mut slope = slope_at(ask, line.lbn).await.unwrap_or(near);
    first_sector(ask, &mut slope).await
}

/// The first sector of the track of `line`, whose last sector is the line's, if it has one of `lengths`.
async fn known(ask: &Asker, line: &mut Line, lengths: &[u64]) -> Option<u64> {
    for length in lengths {
        let Some(first) = (line.lbn + 1).checked_sub(*length) else { continue };
        let (on, off) = ask.phases(first, first.saturating_sub(1)).await;
        let ends = first == 0 || !line.fits(first - 1, off, ask.tolerance);
        if line.fits(first, on, ask.tolerance) && ends {
            line.learn(first, on, ask.tolerance);
            return Some(first);
        }
    }
    None
}

/// What is below an edge.
enum Below {
    Track(u64),
    Zone,
    Lost,
}

/// The first sector of the track that ends at `last`, of which nothing is known; `line` is what the track above had.
async fn unknown(ask: &Asker, line: &mut Line, last: u64) -> Below {
    let Some(mut slope) = slope(ask, last).await else { return Below::Lost };
    let (old, new) = (line.slots(), slope.line.slots());
    if (old.0 - new.0).abs() > old.1 + new.1 + 0.3 {
        return Below::Zone;
    }
    let Some(first) = first_sector(ask, &mut slope).await else { return Below::Lost };
    *line = slope.line;
    Below::Track(first)
}
