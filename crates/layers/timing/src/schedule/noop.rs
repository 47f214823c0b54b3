//! `noop`: requests in the order of their arrival, as Linux's elevator of that name (block/noop-iosched.c) without its
//! merging. For drives that order requests better by themselves, and to compare with.

use super::policy::{Choice, Policy, Queued};
use lamina_block::Time;
use std::collections::VecDeque;

/// First come, first served.
#[derive(Debug, Default)]
pub struct Noop {
    waiting: VecDeque<Queued>,
}

impl Policy for Noop {
    fn arrived(&mut self, request: Queued) {
        self.waiting.push_back(request);
    }

    fn choose(&mut self, _now: Time) -> Choice {
        self.waiting.pop_front().map_or(Choice::Idle, |next| Choice::Send(next.id))
    }

    fn completed(&mut self, _now: Time, _sent: Time, _request: &Queued) {}

    fn drain(&mut self) -> Vec<Queued> {
        std::mem::take(&mut self.waiting).into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{order, read};
    use super::*;

    #[test]
    fn the_order_of_arrival() {
        let mut noop = Noop::default();
        assert_eq!(order(&mut noop, [read(1, 90), read(2, 10), read(3, 50)]), [1, 2, 3]);
    }
}
