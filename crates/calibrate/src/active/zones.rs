//! Zones: where the number of sectors around a track changes, and how tracks follow each other in between.
//!
//! Walks all over the drive say how many sectors a track has there. Between two that differ the boundary is bisected,
//! all boundaries at once; a third number in between is a zone of its own. Then a walk from each zone's begin shows its
//! skews: between tracks of a cylinder one, between cylinders another, and so how many heads there are.

use super::ask::{Asker, run};
use super::ends::next_track;
use super::rotation::Rotation;
use super::session::Session;
use super::track::{Edge, End, Walk, slope, walk};
use crate::numbers::signed;

/// Places where tracks are looked at first.
const PLACES: u64 = 96;
/// Edges of a walk there.
const EDGES: usize = 4;
/// Edges of the walk at the begin of a zone: two cylinders of 16 heads.
const EDGES_OF_ZONE: usize = 34;
/// Tracks from a boundary at which bisecting gives way to a walk.
const NEAR_TRACKS: u64 = 3;
/// A jump of the phase by less than so many sectors is none.
const JUMP_MIN: f64 = 0.5;
/// How often a place is moved whose tracks are not clear.
const MOVES: u64 = 5;

/// Tracks with the same number of sectors.
#[derive(Clone, Debug)]
pub(super) struct Zone {
    pub first: u64,
    /// Sectors around a track.
    pub slots: u32,
    /// The walk down to the begin of the zone; `None` if it did not get there.
    pub begin: Option<Walk>,
}

/// What is known of the whole drive.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub zones: Vec<Zone>,
    /// Walks all over the drive.
    pub walks: Vec<Walk>,
    /// Whether tracks have no skew: their ends are not seen, and follow from the zones' begins.
    pub skewless: bool,
}

/// Finds all zones of a drive that reads at most `ahead` sectors ahead.
pub(super) fn find(session: &mut Session, rotation: &mut Rotation, ahead: u64) -> Result<Map, String> {
    session.say("zones: tracks all over the drive");
    let walks = everywhere(session, rotation)?;
    if walks.len() < 2 {
        return Err("no tracks are seen: the phases of sectors that follow each other are on no line".into());
    }
    if 2 * walks.iter().filter(|walk| walk.is_broken()).count() > walks.len() {
        return Err("tracks hold no whole number of the blocks that the drive answers for".into());
    }
    let skewless = walks.iter().filter(|walk| walk.end == End::NoSkew).count() * 2 > walks.len();
    session.say("zones: boundaries");
    let mut firsts = boundaries(session, rotation, &walks, skewless)?;
    firsts.insert(0, First { lbn: 0, slots: walks[0].slots, is_seen: true });
    begin_tracks(session, &mut firsts, ahead)?;
    session.say(&format!("zones: {} of them, skews", firsts.len()));
    let begins = if skewless { vec![None; firsts.len()] } else { begins(session, rotation, &firsts)? };
    let zone = |(first, begin): (First, _)| Zone { first: first.lbn, slots: first.slots, begin };
    Ok(Map { zones: firsts.into_iter().zip(begins).map(zone).collect(), walks, skewless })
}

/// Walks at places all over the drive, ascending.
fn everywhere(session: &mut Session, rotation: &mut Rotation) -> Result<Vec<Walk>, String> {
    let sectors = session.sectors();
    let step = sectors / PLACES;
    let mut tops: Vec<u64> = (1..PLACES).map(|n| n * step + session.rng.u64(..step / 2)).collect();
    tops.push(sectors - 1);
    // Zone 0 has a walk near its begin, too.
    tops.insert(0, (step / 4).min(20_000));
    let walks = run(session, rotation, |ask| {
        tops.into_iter()
            .map(|top| {
                let ask = ask.clone();
                Box::pin(async move { walk(&ask, top, EDGES).await }) as _
            })
            .collect()
    })?;
    Ok(walks.into_iter().flatten().collect())
}

/// A place with a known number of sectors around its track.
#[derive(Clone, Copy, Debug)]
struct Known {
    lbn: u64,
    slots: u32,
}

/// The first sector of a zone.
#[derive(Clone, Copy, Debug)]
struct First {
    lbn: u64,
    /// Sectors around the zone's tracks.
    slots: u32,
    /// Whether phases jump there. If they do not, the lines of both zones meet, and near there are one.
    is_seen: bool,
}

/// First sectors of all zones but the first, ascending.
fn boundaries(
    session: &mut Session,
    rotation: &mut Rotation,
    walks: &[Walk],
    skewless: bool,
) -> Result<Vec<First>, String> {
    let known = |walk: &Walk| Known { lbn: walk.line.lbn, slots: walk.slots };
    let pairs: Vec<(Known, Known)> = walks
        .windows(2)
        .map(|pair| (known(&pair[0]), known(&pair[1])))
        .filter(|(low, high)| low.slots != high.slots)
        .collect();
    let found: Vec<Vec<First>> = run(session, rotation, |ask| {
        pairs
            .into_iter()
            .map(|(low, high)| {
                let ask = ask.clone();
                Box::pin(async move { between(&ask, low, high, skewless).await }) as _
            })
            .collect()
    })?;
    let mut firsts = found.concat();
    firsts.sort_unstable_by_key(|first| first.lbn);
    firsts.dedup_by_key(|first| first.lbn);
    Ok(firsts)
}

/// The boundaries between two places that differ.
async fn between(ask: &Asker, low: Known, high: Known, skewless: bool) -> Vec<First> {
    let mut found = Vec::new();
    let mut open = vec![(low, high)];
    while let Some((mut low, mut high)) = open.pop() {
        let near = |low: &Known, high: &Known| {
            NEAR_TRACKS * u64::from(low.slots.max(high.slots)) > high.lbn - low.lbn
        };
        while !near(&low, &high) {
            let Some(middle) = look(ask, &low, &high).await else { break };
            if middle.slots == low.slots {
                low = middle;
            } else if middle.slots == high.slots {
                high = middle;
            } else {
                open.push((middle, high));
                high = middle;
            }
        }
        found.extend(first_sector(ask, low, high, skewless).await);
    }
    found
}

/// What is in the middle between two places.
async fn look(ask: &Asker, low: &Known, high: &Known) -> Option<Known> {
    let quarter = (high.lbn - low.lbn) / 4;
    for n in 0..MOVES {
        let middle = low.lbn + 2 * quarter + n * quarter / MOVES;
        let Some(slope) = slope(ask, middle).await else { continue };
        let line = slope.line;
        let distance = |known: &Known| (line.slots().0 - f64::from(known.slots)).abs();
        let nearer = if distance(low) < distance(high) { low } else { high };
        let slots = if line.may_have(nearer.slots) { nearer.slots } else { line.slots().0.round() as u32 };
        let certain = line.slots().1 < 0.5
            || line.may_have(nearer.slots)
                && line.slots().1 < f64::from(low.slots.abs_diff(high.slots)) / 2.0;
        if certain {
            return Some(Known { lbn: line.lbn, slots });
        }
    }
    None
}

/// The first sector of the zone of `high`, which is a few tracks above `low`. Without skew it is where the lines of
/// both meet.
async fn first_sector(ask: &Asker, low: Known, high: Known, skewless: bool) -> Option<First> {
    let edge = if skewless { None } else { edge(ask, low, high).await };
    let slots = high.slots;
    if let Some(edge) = edge {
        let is_seen = signed(edge.jump).abs() > JUMP_MIN / f64::from(slots) + 2.0 * ask.tolerance;
        return Some(First { lbn: edge.lbn, slots, is_seen });
    }
    let track = u64::from(low.slots.max(high.slots));
    let between = low.lbn.saturating_sub(track)..=high.lbn + track;
    let lbn = crossing(ask, low, high).await.filter(|first| between.contains(first))?;
    Some(First { lbn, slots, is_seen: false })
}

/// The begin of the zone of `high`, by a walk.
async fn edge(ask: &Asker, low: Known, high: Known) -> Option<Edge> {
    let edges = (high.lbn - low.lbn) / u64::from(high.slots.min(low.slots)) + 4;
    for n in 0..MOVES {
        // From another place of another track: from near its begin the line of a track is not exact.
        let top = high.lbn + n * u64::from(high.slots) * 4 / 3;
        let found = walk(ask, top, edges.min(64) as usize).await;
        if let Some(Walk { edges, end: End::Zone, .. }) = found {
            return edges.last().copied();
        }
    }
    None
}

/// The sector at which the lines of two places meet.
async fn crossing(ask: &Asker, low: Known, high: Known) -> Option<u64> {
    let (below, above) = (slope(ask, low.lbn).await?, slope(ask, high.lbn).await?);
    let per = |known: Known| 1.0 / f64::from(known.slots);
    let behind = (above.line.lbn - below.line.lbn) as f64;
    let each = per(high) - per(low);
    // Each sector behind the last one that both lines have adds the difference, up to nearly a turn.
    let most = 0.45 * each.signum();
    let off = most + signed(above.line.phase - below.line.phase - behind * per(low) - most);
    let meeting = above.line.lbn as f64 - off / each;
    Some((meeting + 1.0).round() as u64)
}

/// Moves boundaries at which phases do not jump to where tracks begin: defects and noise may have moved them.
fn begin_tracks(session: &mut Session, firsts: &mut Vec<First>, ahead: u64) -> Result<(), String> {
    for n in 1..firsts.len() {
        let (below, First { lbn, slots, is_seen }) = (firsts[n - 1].slots, firsts[n]);
        if is_seen {
            continue;
        }
        let Some(low) = lbn.checked_sub(u64::from(below.min(slots)) / 2) else { continue };
        match next_track(session, low, below, ahead)? {
            Some(found) => firsts[n].lbn = found,
            None => session.say(&format!("zones: that one begins at {lbn} is not confirmed")),
        }
    }
    // Of two at one place the lower zone was none.
    firsts.reverse();
    firsts.dedup_by_key(|first| first.lbn);
    firsts.reverse();
    Ok(())
}

/// Walks down to the begins of zones.
fn begins(
    session: &mut Session,
    rotation: &mut Rotation,
    firsts: &[First],
) -> Result<Vec<Option<Walk>>, String> {
    let ends = firsts.iter().skip(1).map(|first| first.lbn).chain([session.sectors()]);
    let zones: Vec<(First, u64)> = firsts.iter().copied().zip(ends).collect();
    run(session, rotation, |ask| {
        zones
            .into_iter()
            .map(|(first, end)| {
                let ask = ask.clone();
                Box::pin(async move { begin(&ask, first, end).await }) as _
            })
            .collect()
    })
}

async fn begin(ask: &Asker, first: First, end: u64) -> Option<Walk> {
    let slots = u64::from(first.slots);
    let tracks = ((end - first.lbn) / slots).min(EDGES_OF_ZONE as u64);
    for n in 0..MOVES {
        let tracks = tracks.checked_sub(n).filter(|tracks| *tracks > 1)?;
        let top = first.lbn + tracks * slots - slots / 2;
        let found = walk(ask, top, tracks as usize + 2).await;
        if let Some(walk) = found.and_then(|walk| down_to(walk, first)) {
            return Some(walk);
        }
    }
    None
}

/// A walk that ends with the first sector of a zone; `None` if it does not get there.
fn down_to(mut walk: Walk, first: First) -> Option<Walk> {
    if walk.end == End::Start {
        return (first.lbn == 0).then_some(walk);
    }
    let last = walk.edges.last_mut()?;
    let off = last.lbn.abs_diff(first.lbn);
    // Where phases do not jump, the walk sees the end of the zone less well than a read over it.
    let is_there = off == 0 || !first.is_seen && off < u64::from(first.slots) / 4;
    if walk.end != End::Zone || !is_there {
        return None;
    }
    last.phase += (first.lbn as f64 - last.lbn as f64) / f64::from(first.slots);
    last.lbn = first.lbn;
    Some(walk)
}
