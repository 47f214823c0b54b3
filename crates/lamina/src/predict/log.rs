//! What is measured of a run, while it is counted.
//!
//! What happens before [`Log::begin`] (volumes are made and opened) is no part of the run. The first requests to end
//! warm caches and queues up and are not counted. After the last that is counted the run is over: clients do nothing
//! more, and what is in flight is done to its end.

use super::figures::{Measured, Response, Service};
use crate::clients::{Ended, Observer};
use lamina_block::{Error, Time};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What is counted of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Requests that end before counting begins.
    pub warmup: u64,
    /// Requests that are counted.
    pub requests: u64,
}

/// What is measured.
pub struct Log {
    counted: Counted,
    /// The run has begun.
    is_begun: Cell<bool>,
    /// Requests of clients that ended.
    ended: Cell<u64>,
    is_over: Cell<bool>,
    failure: RefCell<Option<Error>>,
    measured: RefCell<Measured>,
}

impl Log {
    /// Nothing yet.
    pub fn new(counted: Counted) -> Rc<Log> {
        Rc::new(Log {
            counted,
            is_begun: Cell::new(false),
            ended: Cell::new(0),
            is_over: Cell::new(false),
            failure: RefCell::default(),
            measured: RefCell::default(),
        })
    }

    /// The run begins.
    pub fn begin(&self, now: Time) {
        self.is_begun.set(true);
        self.measured.borrow_mut().began = now;
    }

    fn is_counting(&self) -> bool {
        self.is_begun.get() && self.ended.get() >= self.counted.warmup && !self.is_over.get()
    }

    /// A drive ended a request.
    pub fn served(&self, service: Service) {
        if self.is_counting() {
            self.measured.borrow_mut().services.push(service);
        }
    }

    /// What was measured, or the first failure.
    pub fn take(&self) -> Result<Measured, Error> {
        self.failure.borrow_mut().take().map_or_else(|| Ok(self.measured.take()), Err)
    }
}

impl Observer for Log {
    fn ended(&self, ended: Ended) {
        if let Err(e) = ended.result {
            self.failure.borrow_mut().get_or_insert(e);
            self.is_over.set(true);
        }
        let is_counted = self.is_counting();
        self.ended.set(self.ended.get() + 1);
        let mut measured = self.measured.borrow_mut();
        if is_counted {
            measured.responses.push(Response { arrived: ended.sent, ended: ended.at, bytes: ended.bytes });
            measured.ended = ended.at;
        } else if self.ended.get() == self.counted.warmup {
            measured.began = ended.at;
        }
        if measured.responses.len() as u64 >= self.counted.requests {
            self.is_over.set(true);
        }
    }

    /// In virtual time nobody is late.
    fn late(&self, _by: Duration) {}

    fn is_over(&self) -> bool {
        self.is_over.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_drive::{Op, Request};

    fn ended(at: u64, result: Result<(), Error>) -> Ended {
        let request = Request { op: Op::Read, lbn: 0, sectors: 8 };
        Ended { request, bytes: 4096, sent: Time(at - 1), at: Time(at), result }
    }

    #[test]
    fn what_comes_before_and_after_is_not_counted() {
        let log = Log::new(Counted { warmup: 2, requests: 3 });
        log.begin(Time(0));
        for at in 1..=9 {
            log.served(Service { sent: Time(at - 1), ended: Time(at), offset: 0 });
            log.ended(ended(at, Ok(())));
            assert_eq!(log.is_over(), at >= 5);
        }
        let measured = log.take().expect("no failure");
        assert_eq!((measured.began, measured.ended), (Time(2), Time(5)));
        assert_eq!((measured.responses.len(), measured.services.len()), (3, 3));
    }

    #[test]
    fn what_comes_before_the_run_is_not_counted_without_a_warmup_either() {
        let log = Log::new(Counted { warmup: 0, requests: 2 });
        log.served(Service { sent: Time(1), ended: Time(2), offset: 0 });
        log.begin(Time(5));
        for at in 6..=7 {
            log.served(Service { sent: Time(at - 1), ended: Time(at), offset: 0 });
            log.ended(ended(at, Ok(())));
        }
        let measured = log.take().expect("no failure");
        assert_eq!((measured.began, measured.ended, measured.services.len()), (Time(5), Time(7), 2));
    }

    #[test]
    fn a_failure_ends_the_run() {
        let log = Log::new(Counted { warmup: 0, requests: 3 });
        log.begin(Time(0));
        log.ended(ended(1, Err(Error::invalid("first"))));
        log.ended(ended(2, Err(Error::invalid("second"))));
        assert!(log.is_over());
        assert_eq!(log.take().expect_err("it failed").message(), "first");
    }
}
