//! A server that says nothing: its connection is cut after `timeout`, and while this process ends it is given up.

use super::Link;
use futures_util::future::{Either, select};
use lamina_block::Error;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

/// How long a server may be silent, or away, while commands wait and this process ends.
const LAST: Duration = Duration::from_secs(3);

impl Link {
    /// Cuts a connection on which the server is silent although commands wait; while this process ends, for good.
    pub(super) async fn watch(self: Rc<Self>) {
        let env = &self.common.env;
        let mut asked = self.common.env.ending();
        while !self.ended.get() {
            let is_last = self.common.ending.get();
            let timeout = match (is_last, self.common.timeout) {
                (true, Duration::ZERO) => LAST,
                (true, timeout) => timeout.min(LAST),
                (false, timeout) => timeout,
            };
            // Within a quarter of the time allowed, so that an idle link costs next to nothing.
            let pause = async {
                match timeout.is_zero() {
                    true => self.end.until(|| self.ended.get()).await,
                    false => env.sleep(timeout / 4).await,
                }
            };
            match is_last {
                true => pause.await,
                false => {
                    if let Either::Right(_) = select(pin!(pause), &mut asked).await {
                        self.common.ending.set(true);
                        self.heard.set(env.now());
                        continue;
                    }
                }
            }
            let silent = env.now().since(self.heard.get());
            if self.flight.waiting() == 0 {
                self.heard.set(env.now());
            } else if silent >= timeout && is_last {
                return self.give_up(silent);
            } else if silent >= timeout
                && let Some(conn) = self.up.take()
            {
                tracing::warn!(server = %self.common.address, ?silent, "the server does not answer");
                conn.abort();
            }
        }
    }

    /// Fails everything, for good.
    fn give_up(&self, silent: Duration) {
        let (server, waiting) = (&self.common.address, self.flight.waiting());
        tracing::error!(%server, ?silent, waiting, "the server does not answer, and its requests are given up to end");
        let failure = Error::offline("the NBD server does not answer, and the daemon ends");
        if self.flight.fail_all(&failure) {
            self.note_open_changes(failure.clone());
        }
        *self.common.given_up.borrow_mut() = Some(failure);
        self.leave();
        if let Some(conn) = self.up.take() {
            conn.abort();
        }
    }
}
