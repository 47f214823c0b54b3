//! Chains whose requests do not end at once: completed when they end, or given up when no caller waits for them any
//! more.

use super::{Queue, Taken};
use crate::request::Status;
use lamina_block::{ErrorKind, Io, Op, Request, Result};
use std::any::Any;
use std::rc::Rc;

/// Bytes that are zeroed between two checks whether the request is still wanted: zeroes may have to be written.
const ZEROES_A_STEP: u64 = 32 << 20;

impl Queue {
    /// Completes a chain when its request does; drops it when that was given up.
    pub(super) fn wait_for(
        self: &Rc<Self>,
        request: impl Future<Output = Option<Result<()>>> + 'static,
        taken: Taken,
        owner: Rc<dyn Any>,
    ) {
        let queue = Rc::clone(self);
        self.env.spawn(Box::pin(async move {
            let Some(result) = request.await else { return queue.forget(&taken) };
            queue.note(&result);
            // A store that was away is no fault of the request's: a successor repeats the request, if there will be
            // one.
            let is_away = result.as_ref().is_err_and(|e| e.kind() == ErrorKind::Offline);
            if is_away && queue.abandoned.get() && queue.tracker.is_some() {
                return queue.forget(&taken);
            }
            let ring = Rc::clone(&*queue.ring.borrow());
            queue.complete(&ring, &taken, Status::from(&result));
            drop(owner);
            if !queue.publish_due.replace(true) {
                queue.completed.notify();
            }
        }));
    }

    /// Does `ios` one after the other, also when one fails; the first error. `None` if no caller waits for the rest.
    pub(super) async fn several(self: Rc<Self>, ios: Vec<Io>) -> Option<Result<()>> {
        let mut all = Ok(());
        for io in ios {
            let step = if matches!(io.op, Op::Zero(_)) { ZEROES_A_STEP } else { u64::MAX };
            let mut start = io.at.start;
            while start < io.at.end {
                if self.abandoned.get() {
                    return None;
                }
                let end = io.at.end.min(start.saturating_add(step));
                let request: Request = self.node.submit(io.part(start..end, start));
                all = all.and(request.await);
                start = end;
            }
        }
        Some(all)
    }

    /// Lets a chain be in flight without working on it.
    fn forget(&self, taken: &Taken) {
        self.space.give(taken.cost);
        self.in_flight.update(|n| n - 1);
        if self.in_flight.get() == 0 {
            self.drained.notify();
        }
        self.completed.notify();
    }
}
