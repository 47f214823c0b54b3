//! A device of several hosts as its node calls it: requests, commands, and its end.
//!
//! A read or a write takes the volume if need be, and waits until no other host can have it.

use super::{LOOK, Standby};
use crate::flash::SLOT;
use futures_util::future::select;
use lamina_block::{
    Cause, Command, Consent, Effect, Extent, Geometry, Healed, Io, Job, Judge, Layer, Manage, Node, Op,
    Passthrough, Pending, Place, Result, Step, wait,
};
use lamina_cluster::reservation::LAST;
use lamina_cluster::vault::{Mode, Record};
use lamina_kit::flaw::flawed;
use serde_json::Value;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

impl Standby {
    /// The device as the host has it that has the volume, which no other one can have now.
    async fn safe_primary(&self) -> Result<Rc<Node>> {
        let _waits = wait(Cause::Hosts);
        loop {
            let node = self.primary().await?;
            let patience = self.keys.store_timeout.0;
            self.reservation.until_safe(patience).await.map_err(|e| e.on(&self.name))?;
            // It may have been given away meanwhile.
            if !self.is_leaving.get() && self.now_primary().is_some_and(|(_, now)| Rc::ptr_eq(&now, &node)) {
                return Ok(node);
            }
        }
    }

    /// A flush of a client that has neither read nor written here since the process began: it takes the volume from no
    /// host that has it. What the process before has acknowledged may be undurable on peers, which may take the volume
    /// later: so it covers that when this host has the volume again, and they have no part in it any more.
    async fn flush(self: Rc<Self>) -> Result<()> {
        let began = self.with.env.now();
        let record = loop {
            match self.record().await {
                Ok(record) => break record,
                Err(e) if self.with.env.now().since(began) >= self.keys.store_timeout.0 => return Err(e),
                Err(_) => self.with.env.sleep(LOOK).await,
            }
        };
        let may_be_owed = record.is_some_and(|Record { holder, mode, .. }| {
            mode != Mode::Through && holder.is_none_or(|holder| holder.host == self.reservation.host().name())
        });
        match may_be_owed && !flawed("a flush does not wait for the volume") {
            true => self.safe_primary().await?.submit(Io::flush()).await,
            false => self.store.submit(Io::flush()).await,
        }
    }
}

impl Layer for Standby {
    fn geometry(&self) -> Geometry {
        let store = self.store.geometry();
        Geometry {
            optimal: store.optimal.max(SLOT as u32),
            read_only: store.read_only || self.cache.is_read_only(),
            // One that comes late would discard what another host has written since.
            discard: false,
            zero: false,
            fua: true,
            ..store
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        let is_flush = matches!(io.op, Op::Flush) && !self.reservation.is_held();
        match &*self.primary.borrow() {
            Some((_, node))
                if !self.is_leaving.get()
                    && (self.reservation.is_safe() || flawed("a generation that has ended answers")) =>
            {
                return Step::Forward(Rc::clone(node));
            }
            // A device that nobody uses is being closed.
            None if is_flush && !self.is_in_use() => return Step::Done(Ok(())),
            None if is_flush && self.follower().is_some() => {
                let me = Rc::clone(&self);
                return Step::control(async move { me.flush().await });
            }
            Some(_) | None => {}
        }
        let io = io.take();
        let me = Rc::clone(&self);
        Step::control(async move { me.safe_primary().await?.submit(io).await })
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move { self.safe_primary().await?.extents(at).await })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        Box::pin(async move {
            let primary = self.safe_primary().await?;
            Ok(vec![Place::data(&primary, at)])
        })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move { self.safe_primary().await?.heal(at, is_right).await })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.is_closed.set(true);
            self.reservation.stop_serving();
            let taken = pin!(self.moved.until(|| !self.is_taking.get() && !self.is_leaving.get()));
            select(taken, self.with.env.sleep(LAST)).await;
            match self.now_primary() {
                Some((accelerate, _)) => accelerate.close().await,
                None => {
                    self.follow_no_more().await;
                    Ok(())
                }
            }
        })
    }
}

impl Manage for Standby {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        match self.now_primary() {
            Some((accelerate, _)) => accelerate.consents(child, effect),
            None => Consent::Refuses(self.not_here().message().to_owned()),
        }
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        match self.now_primary() {
            Some((accelerate, _)) if command.name == "expect" => {
                Box::pin(async move { self.commanded(self.expect(&accelerate, command)).await })
            }
            Some((accelerate, _)) => {
                Box::pin(async move { self.commanded(accelerate.control(command)).await })
            }
            None => Box::pin(async move { Err(self.not_here()) }),
        }
    }

    fn needs_quiesce(&self, command: &Command) -> bool {
        self.now_primary().is_some_and(|(accelerate, _)| accelerate.needs_quiesce(command))
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.now_primary().map_or(Vec::new(), |(accelerate, _)| accelerate.jobs())
    }

    fn detach(self: Rc<Self>) -> Pending {
        match self.now_primary() {
            Some((accelerate, _)) => Box::pin(async move { self.commanded(accelerate.detach()).await }),
            None => Box::pin(async move { Err(self.not_here()) }),
        }
    }

    fn info(&self) -> Value {
        if let Some((accelerate, _)) = self.now_primary() {
            return accelerate.info();
        }
        self.report()
    }
}
