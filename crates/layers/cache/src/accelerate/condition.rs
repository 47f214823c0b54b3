//! How it is with the flash, and what becomes of a request that the flash fails: plain state. The tables
//! stand in `mod.rs`.

use super::Policy;
use lamina_block::Error;

/// How it is with the flash.
#[derive(Clone, Debug, Default)]
pub enum Condition {
    /// It works, or is not used.
    #[default]
    Fine,
    /// It is being given up: writes wait for that.
    Leaving(Error),
    /// Every request fails with this, but for reads of what the store has.
    Stopped(Error),
}

/// What is known when the flash fails a request.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// The state record says that the flash does not count.
    pub is_detached: bool,
    /// A write was acknowledged that the store does not have.
    pub is_unprotected: bool,
    /// The flash of a peer has it as well.
    pub is_at_peer: bool,
    /// The flash as a whole has failed, not this request alone.
    pub is_broken: bool,
    pub policy: Policy,
}

/// What is done then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The store has everything, or gets it while the flash is left: waits for the end of that.
    Wait,
    /// The device stops: this request fails, and all that follow.
    Stop,
    /// This request fails.
    Fail,
    /// The device leaves the flash: writes under way go to the store, and what a peer has.
    Leave,
}

impl Failed {
    /// What is done. Without the flash the store alone would be an older state that nobody notices, if that
    /// lacks a write.
    pub fn response(self) -> Response {
        match self {
            Failed { is_detached: true, .. } => Response::Wait,
            Failed { is_unprotected: true, is_broken: true, is_at_peer: true, .. } => Response::Leave,
            Failed { is_unprotected: true, is_broken: true, .. } => Response::Stop,
            Failed { is_unprotected: true, is_broken: false, .. } => Response::Fail,
            Failed { is_broken: true, .. } => Response::Leave,
            Failed { policy: Policy::WriteBack, .. } => Response::Fail,
            Failed { policy: Policy::WriteThrough | Policy::Uncached, .. } => Response::Leave,
        }
    }
}

impl Condition {
    /// Why requests fail, if they do.
    pub fn stopped(&self) -> Option<&Error> {
        match self {
            Condition::Stopped(why) => Some(why),
            Condition::Fine | Condition::Leaving(_) => None,
        }
    }

    /// Why it does not help to wait for the store, if it does not.
    pub fn hopeless(&self) -> Option<&Error> {
        match self {
            Condition::Stopped(why) | Condition::Leaving(why) => Some(why),
            Condition::Fine => None,
        }
    }

    pub fn is_leaving(&self) -> bool {
        matches!(self, Condition::Leaving(_))
    }

    /// The flash is being given up because of `why`: from `Fine` when it fails, from `Stopped` when the loss
    /// is accepted.
    pub fn leave(&mut self, why: Error) {
        debug_assert!(!self.is_leaving(), "one at a time gives it up");
        *self = Condition::Leaving(why);
    }

    /// Requests fail with `why` from now on; an earlier reason stays.
    pub fn stop(&mut self, why: Error) {
        if self.stopped().is_none() {
            *self = Condition::Stopped(why);
        }
    }

    /// It works, or is not used any more.
    pub fn go_on(&mut self) {
        *self = Condition::Fine;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_request_that_the_flash_fails() {
        use Policy::{Uncached, WriteBack, WriteThrough};
        use Response::{Fail, Leave, Stop, Wait};
        const ANY: [Policy; 3] = [WriteBack, WriteThrough, Uncached];
        const BOTH: [bool; 2] = [false, true];
        // Detached, unprotected and at a peer, broken, policies: what is done. Each row of `mod.rs`, with all that it
        // leaves open.
        type Row = (&'static [bool], &'static [(bool, bool)], &'static [bool], &'static [Policy], Response);
        const ALL: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];
        let rows: [Row; 7] = [
            (&[true], &ALL, &BOTH, &ANY, Wait),
            (&[false], &[(true, false)], &[true], &ANY, Stop),
            (&[false], &[(true, true)], &[true], &ANY, Leave),
            (&[false], &[(true, false), (true, true)], &[false], &ANY, Fail),
            (&[false], &[(false, false), (false, true)], &[true], &ANY, Leave),
            (&[false], &[(false, false), (false, true)], &[false], &[WriteThrough, Uncached], Leave),
            (&[false], &[(false, false), (false, true)], &[false], &[WriteBack], Fail),
        ];
        let mut cases = 0;
        for (detached, unprotected, broken, policies, expected) in rows {
            for is_detached in detached {
                for (is_unprotected, is_at_peer) in unprotected {
                    for is_broken in broken {
                        for policy in policies {
                            let failed = Failed {
                                is_detached: *is_detached,
                                is_unprotected: *is_unprotected,
                                is_at_peer: *is_at_peer,
                                is_broken: *is_broken,
                                policy: *policy,
                            };
                            assert_eq!(failed.response(), expected, "{failed:?}");
                            cases += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(cases, 2 * 2 * 2 * 2 * 3, "each case once");
    }

    #[test]
    fn conditions_follow_each_other() {
        let (first, second) = (Error::media("first"), Error::media("second"));
        let mut condition = Condition::default();
        assert!(condition.stopped().is_none() && condition.hopeless().is_none());
        condition.leave(first.clone());
        assert!(condition.is_leaving() && condition.stopped().is_none());
        assert_eq!(condition.hopeless(), Some(&first));
        // Something unprotected was found after all.
        condition.stop(second.clone());
        condition.stop(first.clone());
        assert_eq!(condition.stopped(), Some(&second), "the first reason stays");
        condition.leave(first);
        condition.go_on();
        assert!(condition.hopeless().is_none());
    }
}
