//! The export as a store that several hosts share: questions to what keeps its records, and the key of this host.
//!
//! A question is a connection of its own, as short as its answer. With another key all connections are made anew:
//! the server lets none write that it does not know by the newest key. A connection whose key is not the
//! newest one any more comes back without: requests that it had under way are refused then, as reads alone are allowed.

use super::handshake::Purpose;
use super::link::{Common, Link};
use super::target;
use futures_util::future::{Either, join_all, select};
use lamina_block::{Error, ErrorKind, Pending, ReservationKey, SharedStore};
use std::pin::pin;
use std::rc::Rc;

/// The connections of a client.
pub struct Shared {
    /// What they have in common.
    pub common: Rc<Common>,
    /// Each.
    pub links: Vec<Rc<Link>>,
}

impl SharedStore for Shared {
    fn place(&self) -> String {
        target::uri(&self.common.address, &self.common.export, self.common.tls.is_some())
    }

    fn ask(&self, question: Vec<u8>) -> Pending<Vec<u8>> {
        let common = Rc::clone(&self.common);
        Box::pin(async move {
            let mut connected = common.connect(Purpose::Ask(question)).await?;
            let answer = connected.answer.take();
            connected.close();
            answer.ok_or_else(|| {
                let (server, export) = (&common.address, &common.export);
                let message = format!(
                    "export {export:?} of {server} keeps no records of hosts: give it the key `vault` there, if \
                     that is a Lamina, or give this device one"
                );
                Error::unsupported(message)
            })
        })
    }

    fn register(&self, key: ReservationKey) -> Pending {
        let (common, links) = (Rc::clone(&self.common), self.links.clone());
        Box::pin(async move {
            // One that serves nobody learns whether it would be.
            let go = Purpose::Go { session: common.session(), must: false, key: Some(key) };
            let tried = common.connect(go).await?;
            let is_registered = tried.facts.registered;
            tried.close();
            if !is_registered {
                let (server, generation) = (&common.address, key.generation);
                let message =
                    format!("{server} does not know generation {generation} of the volume as its newest one");
                return Err(Error::new(ErrorKind::Fenced, message));
            }
            common.key.set(Some(key));
            links.iter().for_each(|link| link.renew());
            let all = pin!(join_all(links.iter().map(|link| link.renewed())));
            match select(all, common.env.sleep(common.reconnect)).await {
                Either::Left(_) => Ok(()),
                Either::Right(_) => Err(Error::offline(format!("{}: no new connection", common.address))),
            }
        })
    }
}
