//! The shadow cache: the believed contents of the drive's on-board cache.

use lamina_block::Time;
use lamina_drive::{Cache, Model, Request, SegmentCache, Tracker};

/// The believed contents of the drive's cache.
pub enum Shadow {
    /// The paper's: the span of each request that was sent, with the prefetch, in segments that are replaced first in,
    /// first out.
    Segments(SegmentCache),
    /// The belief of an observer with the drive's model. For a linear model that is the paper's cache; a rotational one
    /// knows besides that reading ahead takes time, and ends when the arm is needed.
    Observed(Box<Tracker>),
}

impl Shadow {
    /// The cache that is described, or else the one of the model, empty; `None` if there is neither.
    pub fn new(cache: Option<&Cache>, model: Option<&Model>) -> Option<Shadow> {
        let observed =
            || Some(Shadow::Observed(Box::new(Tracker::new(model.filter(|model| model.cache().is_some())?))));
        cache.map(|cache| Shadow::Segments(SegmentCache::new(cache))).or_else(observed)
    }

    /// A request goes to the drive.
    pub fn dispatched(&mut self, now: Time, request: &Request) {
        match self {
            Shadow::Segments(cache) => cache.dispatched(request),
            Shadow::Observed(drive) => drive.dispatched(now, request),
        }
    }

    /// A request that went to the drive at `sent` has ended.
    pub fn completed(&mut self, now: Time, sent: Time, request: &Request) {
        match self {
            Shadow::Segments(_) => {}
            Shadow::Observed(drive) => drive.completed(sent, now, request),
        }
    }

    /// Whether `request` is predicted to be a hit.
    pub fn is_hit(&self, request: &Request) -> bool {
        match self {
            Shadow::Segments(cache) => cache.is_hit(request),
            Shadow::Observed(drive) => drive.is_hit(request),
        }
    }
}
