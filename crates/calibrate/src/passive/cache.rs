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

/// The cache with which `model` predicts the hits of `samples` best, if better than without; and the reads that it is
/// wrong about.
pub(crate) fn cache(model: &Model, samples: &[Sample], media: &Media) -> (Option<Cache>, usize) {
    let wrong = |cache: Option<&Cache>| {
        let mut tried = model.clone();
        if let Mechanism::Rotational(disk) = &mut tried.mechanism {
            disk.cache = cache.cloned();
            disk.corrections.clear();
        }
        let is_wrong = |s: &Sample, hit: bool| match s.request.op {
            Op::Read => hit == media.has(s),
            Op::Write | Op::Flush | Op::Discard => false,
        };
        replay(&tried, samples).iter().zip(samples).filter(|(p, s)| is_wrong(s, p.hit)).count()
    };
    let without = wrong(None);
    let mut best = Cache { segments: 4, segment_sectors: 256, prefetch_sectors: 64 };
    let mut least = wrong(Some(&best));
    for _ in 0..ROUNDS {
        let prefetch = PREFETCH.map(|prefetch_sectors| Cache { prefetch_sectors, ..best.clone() });
        (best, least) = fewest(&prefetch, best, least, &wrong);
        let segments = SEGMENTS.map(|segments| Cache { segments, ..best.clone() });
        (best, least) = fewest(&segments, best, least, &wrong);
        let sectors = SECTORS.map(|segment_sectors| Cache { segment_sectors, ..best.clone() });
        (best, least) = fewest(&sectors, best, least, &wrong);
    }
    if least < without { (Some(best), least) } else { (None, without) }
}

fn fewest(
    tried: &[Cache],
    best: Cache,
    least: usize,
    wrong: &impl Fn(Option<&Cache>) -> usize,
) -> (Cache, usize) {
    let counted = tried.iter().map(|cache| (cache.clone(), wrong(Some(cache))));
    counted.fold((best, least), |best, tried| if tried.1 < best.1 { tried } else { best })
}
