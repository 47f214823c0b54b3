//! One request to each leg, and its result.

use super::is_corrupt;
use lamina_block::{Request, Result};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The result of a leg's part.
pub struct Part {
    /// The number of the leg.
    pub leg: usize,
    /// The result of the part.
    pub result: Result<()>,
}

impl Part {
    /// True if the leg answered that its bytes are corrupt.
    pub fn is_corrupt(&self) -> bool {
        self.result.as_ref().is_err_and(is_corrupt)
    }
}

/// Parts under way.
pub struct Parts {
    ended: Vec<Part>,
    waiting: Vec<(usize, Request)>,
}

impl Parts {
    /// The requests of some legs, already submitted.
    pub fn new(requests: impl Iterator<Item = (usize, Request)>) -> Parts {
        let mut parts = Parts { ended: Vec::new(), waiting: Vec::new() };
        for (leg, mut request) in requests {
            match request.ready() {
                Some(result) => parts.ended.push(Part { leg, result }),
                None => parts.waiting.push((leg, request)),
            }
        }
        parts
    }

    /// True if all parts have ended without error.
    pub fn are_good(&self) -> bool {
        self.waiting.is_empty() && self.ended.iter().all(|part| part.result.is_ok())
    }

    /// Waits for one part, and forgets the others: wrong.
    #[cfg(test)]
    pub fn spawn_rest(mut self, env: &dyn lamina_block::Env) {
        let mut rest = std::mem::take(&mut self.waiting);
        rest.truncate(usize::MAX);
        for (_, request) in rest {
            env.spawn(Box::pin(async move { drop(request.await) }));
        }
    }

    /// Waits for all parts.
    pub async fn all(mut self) -> Vec<Part> {
        poll_fn(|cx| {
            self.waiting.retain_mut(|(leg, request)| match Pin::new(request).poll(cx) {
                Poll::Ready(result) => {
                    self.ended.push(Part { leg: *leg, result });
                    false
                }
                Poll::Pending => true,
            });
            if self.waiting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.ended
    }
}
