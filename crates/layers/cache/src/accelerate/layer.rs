//! The device as its node calls it: requests, commands, and its end.

use super::policy::{SetPolicy, SetShare, permille};
use super::{Accelerate, Keys, Policy};
use crate::flash::SLOT;
use futures_util::future::select;
use lamina_block::{
    Command, Config, Consent, Effect, Error, Extent, Geometry, Healed, Io, Job, Judge, Layer, Manage, Node,
    Op, Passthrough, Pending, Place, Step,
};
use lamina_cluster::reservation::LAST;
use lamina_kit::command::{args, unknown};
use serde_json::{Value, json};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;

impl Layer for Accelerate {
    fn geometry(&self) -> Geometry {
        let store = self.store.geometry();
        Geometry {
            optimal: store.optimal.max(SLOT as u32),
            read_only: store.read_only || self.cache.is_read_only(),
            zero: false,
            fua: true,
            ..store
        }
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if let Some(why) = self.stops(io) {
            return why.at(io.at.clone()).into();
        }
        if self.policy.get() == Policy::Uncached {
            if !matches!(io.op, Op::Read(_) | Op::Flush) {
                // What is written past the flash is not marked.
                self.before.end();
            }
            return Step::Forward(Rc::clone(&self.store));
        }
        let Io { op, at, .. } = io.take();
        match op {
            Op::Read(into) => Step::control(async move { self.read(at, into).await }),
            Op::Write(from, durability) => {
                Step::control(async move { self.write_to_end(at, from, durability).await })
            }
            Op::Discard => Step::control(async move { self.discard(at).await }),
            Op::Flush => Step::control(async move { self.flush().await }),
            // The node writes zeroes instead: the geometry says that it is not done here.
            Op::Zero(_) => Error::unsupported("zeroes are written").into(),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            if let Some(why) = self.failure.stopped() {
                return Err(why);
            }
            self.extents_of(at).await
        })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        let mut places = self.cache.places(&self.volume, at);
        places.push(Place::data(&self.store, at));
        Box::pin(async { Ok(places) })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            if let Some(why) = self.failure.stopped() {
                return Err(why);
            }
            self.healed(at, is_right).await
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.drain_for_others().await;
            self.closed.set(true);
            self.before.end();
            self.peers.iter().for_each(|peers| peers.wake());
            self.volume.moved.notify();
            self.volume.hurry.notify();
            self.moved.notify();
            match self.kept.held() {
                None => self.tasks.ended().await,
                // The vault may not answer, and is asked until the reservation below is closed.
                Some(_) => {
                    select(pin!(self.tasks.ended()), self.env.sleep(LAST)).await;
                    // What the store still takes from here is not to come over what a later device writes there.
                    self.moved.until(|| !self.failure.batching.get()).await;
                }
            }
            self.volume.tap.take();
            self.volume.is_open.set(false);
            self.owes_nothing().await;
            Ok(())
        })
    }
}

impl Manage for Accelerate {
    fn consent(self: Rc<Self>, child: &Rc<Node>, effect: &Effect) -> Consent {
        self.consents(child, effect)
    }

    fn control(self: Rc<Self>, command: Command) -> Pending<Value> {
        Box::pin(async move {
            match command.name.as_str() {
                "set-policy" => self.set_policy(args::<SetPolicy>(command)?.policy).await,
                "set-share" => {
                    let share = args::<SetShare>(command)?.share;
                    self.volume.share.set(Some(permille(share)?));
                    Ok(json!({ "share_bytes": self.cache.share(&self.volume) * SLOT as u64 }))
                }
                "drain" => {
                    self.drained().await?;
                    Ok(json!({ "dirty_bytes": self.volume.dirty.get() * SLOT as u64 }))
                }
                "accept-loss" => self.accept_loss().await,
                "expect" if self.heat.is_none() => {
                    let message = "no other host can ask for the device: the key `listen` of a reservation below lets \
                                   hosts meet";
                    Err(Error::unsupported(message).on(&self.name))
                }
                _ if self.heat.is_some() => self.control_tier(command).await,
                _ => Err(unknown(&command, Keys::TRAITS.verbs)),
            }
        })
    }

    /// To or from a device that does not look at its flash, nothing may be under way that does not either.
    fn needs_quiesce(&self, command: &Command) -> bool {
        let to_uncached = args::<SetPolicy>(command.clone()).is_ok_and(|set| set.policy == Policy::Uncached);
        command.name == "set-policy" && (to_uncached || self.policy.get() == Policy::Uncached)
    }

    fn jobs(&self) -> Vec<Rc<Job>> {
        self.shown_jobs()
    }

    /// The store is to be the device by itself.
    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            if let Some(why) = self.failure.stopped() {
                return Err(why);
            }
            self.needs_no_quarantine()?;
            self.peers_leave(Policy::Uncached).await?;
            if !self.is_detached() {
                self.forget().await?;
            }
            self.policy.set(Policy::Uncached);
            Ok(())
        })
    }

    fn info(&self) -> Value {
        self.report()
    }
}
