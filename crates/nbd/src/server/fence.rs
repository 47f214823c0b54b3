//! The fence: when a client comes back over a new connection, nothing of its lost one may happen any more.
//!
//! ```text
//!   old connection   write A ──▶ node ... done ── ended
//!                    write B (received, or still under way): dropped
//!   new connection       session? ──▶ acknowledged ─▶ write A again, write C ...
//! ```
//!
//! Without it, a write that the server still works on, or reads later from the old socket, could land on top of a
//! newer one that came over the new connection. A client names its session with a context of its own
//! ([`wire::Session`]); the acknowledgement is the promise.
//!
//! Invariants: a session is acknowledged only when every older connection of it to the same export has ended, the
//! requests it had handed to the node with it; an older claim never ends a newer connection; the wait is bounded by
//! [`Settings::fence_timeout`], after which the new connection is refused.
//!
//! A client that knows the 128 bits of a session and may use the export can end that session's connection, and no more:
//! the session's client comes back, and ends the other connection. Without TLS they can be read on the wire, as can
//! everything.

use super::{Client, Server};
use crate::wire::Session;
use futures_util::future::{Either, select};
use lamina_block::{Error, Interval, Result};
use std::pin::pin;

#[cfg(doc)]
use {super::Settings, crate::wire};

/// The claim of a connection to a session.
pub struct Claim {
    export: String,
    session: Session,
    /// Its place in the order of claims.
    turn: u64,
}

impl Server {
    /// Makes `client` the owner of `session`, and waits until all older ones are gone.
    pub(super) async fn fence(&self, client: &Client, export: &str, session: Session) -> Result<()> {
        let turn = self.claims.get() + 1;
        self.claims.set(turn);
        *client.claim.borrow_mut() = Some(Claim { export: export.into(), session, turn });
        let older =
            |other: &Client| {
                other.claim.borrow().as_ref().is_some_and(|claim| {
                    claim.session == session && claim.export == export && claim.turn < turn
                })
            };
        let whose = "the client's lost connection";
        self.end_all(export, older, "the client has come back: its old connection is ended", whose).await
    }

    /// Ends these connections to an export, and waits until all of them are gone with what they had handed to the node.
    /// Others that are `ended` then may come meanwhile. `whose` connections they are, for an error.
    pub(super) async fn end_all(
        &self,
        export: &str,
        ended: impl Fn(&Client) -> bool,
        why: &str,
        whose: &str,
    ) -> Result<()> {
        for (_, other) in self.clients.borrow().iter().filter(|(_, other)| ended(other)) {
            tracing::info!(export, peer = other.conn.peer(), "{why}");
            other.stop.fence();
            other.conn.shutdown();
        }
        let gone = pin!(self.left.until(|| !self.clients.borrow().iter().any(|(_, other)| ended(other))));
        match select(gone, self.env.sleep(self.settings.fence_timeout)).await {
            Either::Left(_) => Ok(()),
            Either::Right(_) => Err(Error::offline(format!(
                "requests of {whose} are still under way after {}",
                Interval(self.settings.fence_timeout)
            ))),
        }
    }
}
