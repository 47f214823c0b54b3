//! The on-board cache, from which reads were too short for the medium.
//!
//! Each set of parameters predicts which reads hit, by the same observer that will predict with the model later. The
//! search goes over one parameter at a time and keeps what is wrong about the fewest reads. Parameters between which
//! the trace cannot tell come out as the smallest.

use super::media::Media;
use crate::Sample;
use crate::score::replay;
use lamina_drive::{Cache, Mechanism, Model, Op};

const SEGMENTS: [u32; 11] = [1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32];
const SECTORS: [u32; 10] = [32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048];
const PREFETCH: [u32; 13] = [0, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024];
/// Rounds over the parameters.
const ROUNDS: usize = 2;

/// A cache, and whether it reads whole tracks.
type Way = (Cache, bool);

/// A way, and the reads that it is wrong about.
type Counted = (Way, usize);

/// Gives `model` the cache with which it predicts the hits of `samples` best, if better than without. Returns the reads
/// that it is wrong about.
pub(crate) fn add(model: &mut Model, samples: &[Sample], media: &Media) -> usize {
    let wrong = |way: Option<&Way>| {
        let mut tried = model.clone();
        set(&mut tried, way);
        let is_wrong = |s: &Sample, hit: bool| match s.request.op {
            Op::Read => hit == media.has(s),
            Op::Write | Op::Flush | Op::Discard => false,
        };
        replay(&tried, samples).iter().zip(samples).filter(|(p, s)| is_wrong(s, p.hit)).count()
    };
    let without = wrong(None);
    let best = [false, true].map(|whole_tracks| searched(whole_tracks, &wrong));
    let least = best.into_iter().min_by_key(|(_, count)| *count).filter(|(_, count)| *count < without);
    set(model, least.as_ref().map(|(way, _)| way));
    least.map_or(without, |(_, count)| count)
}

fn set(model: &mut Model, way: Option<&Way>) {
    if let Mechanism::Rotational(disk) = &mut model.mechanism {
        disk.cache = way.map(|way| way.0.clone());
        disk.whole_tracks = way.is_some_and(|way| way.1);
    }
}

/// The best cache that reads whole tracks, or that does not.
fn searched(whole_tracks: bool, wrong: &impl Fn(Option<&Way>) -> usize) -> Counted {
    let way = |cache: Cache| {
        let way = (cache, whole_tracks);
        let count = wrong(Some(&way));
        (way, count)
    };
    let fewest = |best: Counted, tried: &[Cache]| {
        tried.iter().cloned().map(way).min_by_key(|tried| tried.1).unwrap_or(best)
    };
    let mut best = way(Cache { segments: 4, segment_sectors: 512, prefetch_sectors: 64 });
    for _ in 0..ROUNDS {
        let prefetch = PREFETCH.map(|prefetch_sectors| Cache { prefetch_sectors, ..best.0.0.clone() });
        // Whole tracks replace the prefetch.
        best = fewest(best, if whole_tracks { &prefetch[..1] } else { &prefetch });
        let segments = SEGMENTS.map(|segments| Cache { segments, ..best.0.0.clone() });
        best = fewest(best, &segments);
        let sectors = SECTORS.map(|segment_sectors| Cache { segment_sectors, ..best.0.0.clone() });
        best = fewest(best, &sectors);
    }
    best
}
