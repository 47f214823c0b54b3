//! `cfq`: a queue for each client, and slices of the drive's time in turn.
//!
//! Follows Linux's completely fair queueing (block/cfq-iosched.c of 2.6.30; the functions are named below), for clients
//! of one class and priority, and a drive without command queueing of its own:
//!
//! * Each client ([`Queued::client`]) has a queue of reads, which are synchronous: a client waits for them; and one of
//!   writes, which are not. The kernel has one queue of writes for all.
//! * One queue is *active* for a slice of time (`slice-sync`, `slice-async`), which begins with the end of its first
//!   request. Then the next in the round is. Within a queue the nearest request goes first (`cfq_choose_req`), but once
//!   in a slice the oldest if it has waited for too long (`cfq_check_fifo`). A queue that leaves its slice early has
//!   its next turn later by what it left, and one that overran earlier: `slice_resid` has this sign in 2.6.30
//!   (`cfq_service_tree_add`).
//! * *Anticipation*: when an active queue of reads is empty and its client is known to come back soon, the drive idles
//!   for up to `slice-idle`, or `slice-idle-seeky` if the client seeks (`cfq_arm_slice_timer`), rather than go
//!   elsewhere and back.
//! * It does not idle if another client has a request as close as the active client's usually are
//!   (`cfq_close_cooperator`); and once a client has been waited for, a read of another as close ends its slice
//!   (`cfq_should_preempt`), as do reads that come while a queue of writes is active.
//! * A queue has at most `quantum` requests in the drive, or four times as many while it is the only one. Writes wait
//!   until the drive has no reads, and up to 16 of them go in a slice while others wait (`cfq_prio_to_maxrq`).
//!
//! Left out are the kernel's ticks (it waits until one of them: with `CONFIG_HZ` 100, up to 10 ms instead of 2 and 8),
//! its preference for reads of metadata, which no request here is marked as, and that it holds a first small request
//! back for others to be merged with it.
//!
//! Two rules are not the kernel's, so that nothing waits forever: clients close to each other get no favours once the
//! first queue of the round waits for a whole round, and a queue of writes whose turn it is, and whose oldest request
//! has waited for `fifo-expire-async`, is not preempted.

mod queue;
mod queues;
#[cfg(test)]
mod tests;

use super::keys::Keys;
use super::policy::{Choice, NEVER, Policy, Queued};
use lamina_block::{Interval, Time};
use lamina_drive::Op;
use queue::Slice;
use queues::{Key, Queues};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::num::NonZeroU32;
use std::time::Duration;

/// The most writes of a slice while others wait (`cfq_prio_to_maxrq` of the middle priority).
const ASYNC_REQUESTS: u32 = 16;
/// Queues beyond so many are forgotten while they are idle: clients come and go.
const QUEUES: usize = 256;

/// The tunables, with the kernel's defaults.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Parameters {
    /// A slice of a queue of reads.
    pub slice_sync: Interval,
    /// A slice of a queue of writes.
    pub slice_async: Interval,
    /// How long the drive idles for the next request of a client; 0 for never.
    pub slice_idle: Interval,
    /// The same if the client seeks, and `slice_idle` is not shorter (`CFQ_MIN_TT`).
    pub slice_idle_seeky: Interval,
    /// The most requests of a queue in the drive while others wait.
    pub quantum: NonZeroU32,
    /// The age from which a read goes out of turn in its queue.
    pub fifo_expire_sync: Interval,
    /// The same for a write.
    pub fifo_expire_async: Interval,
}

impl Default for Parameters {
    fn default() -> Parameters {
        let ms = |ms| Interval(Duration::from_millis(ms));
        Parameters {
            slice_sync: ms(100),
            slice_async: ms(40),
            slice_idle: ms(8),
            slice_idle_seeky: ms(2),
            quantum: NonZeroU32::MIN.saturating_add(3),
            fifo_expire_sync: ms(125),
            fifo_expire_async: ms(250),
        }
    }
}

impl Parameters {
    fn slice(&self, is_sync: bool) -> Duration {
        if is_sync { self.slice_sync.0 } else { self.slice_async.0 }
    }

    fn expire(&self, is_sync: bool) -> Duration {
        if is_sync { self.fifo_expire_sync.0 } else { self.fifo_expire_async.0 }
    }

    /// How much later than now the next turn of a queue is, while `busy` queues wait (`cfq_slice_offset`): a slice of
    /// the highest priority is 1.8 slices of the middle one.
    fn offset(&self, is_sync: bool, busy: usize) -> i64 {
        let highest = self.slice_sync.0 * 9 / 5;
        let each = highest.saturating_sub(self.slice(is_sync)).as_nanos() as i64;
        each.saturating_mul(busy.saturating_sub(1) as i64)
    }
}

fn key(queued: &Queued) -> Key {
    (queued.client, queued.request.op == Op::Read)
}

/// The policy.
#[derive(Debug)]
pub struct Cfq {
    parameters: Parameters,
    queues: Queues,
    active: Option<(Key, Slice)>,
    /// The active queue is empty and its client is waited for, until then.
    idle_until: Option<Time>,
    /// The sector behind the request that was sent last.
    head: u64,
    /// Requests that the drive has, and how many of them are reads.
    in_drive: u32,
    sync_in_drive: u32,
    slices: u64,
    idled: u64,
}

impl Cfq {
    /// Nothing waits, and no client is known.
    pub fn new(keys: &Keys) -> Cfq {
        Cfq {
            parameters: keys.cfq.clone(),
            queues: Queues::default(),
            active: None,
            idle_until: None,
            head: 0,
            in_drive: 0,
            sync_in_drive: 0,
            slices: 0,
            idled: 0,
        }
    }

    /// Puts a queue that has something to send at its place in the round (`cfq_service_tree_add`).
    fn enter_round(&mut self, key: Key, now: Time) {
        let offset = self.parameters.offset(key.1, self.queues.busy());
        self.queues.change(key, |queue| {
            let left = std::mem::take(&mut queue.left);
            // The sign is that of 2.6.30: a queue that left its slice early comes later.
            queue.turn = (now.0 as i64).saturating_add(offset).saturating_add(left);
        });
    }

    /// Ends the slice of the active queue (`cfq_slice_expired`); what is left of it counts if `is_counted`.
    fn expire(&mut self, now: Time, is_counted: bool) {
        let Some((key, slice)) = self.active.take() else { return };
        self.idle_until = None;
        if let (true, Some(end)) = (is_counted, slice.end) {
            self.queues.change(key, |queue| queue.left = end.0 as i64 - now.0 as i64);
        }
        if self.queues.get(key).is_some_and(|queue| !queue.waiting.is_empty()) {
            self.enter_round(key, now);
        }
    }

    fn activate(&mut self, key: Key) {
        self.active = Some((key, Slice::NEW));
        self.idle_until = None;
        self.slices += 1;
    }

    /// The queue that may send now; `None` while the active one is waited for (`cfq_select_queue`).
    fn select(&mut self, now: Time) -> Option<Key> {
        if let Some((key, slice)) = self.active {
            let queue = self.queues.get(key)?;
            let is_over = slice.is_used_up(now) && !slice.must_send;
            if !is_over && !queue.waiting.is_empty() {
                return Some(key);
            }
            let close = if is_over { None } else { self.close_to_active(now) };
            let is_expected =
                queue.in_drive > 0 && queue.is_waited_for || self.idle_until.is_some_and(|t| now < t);
            if !is_over && close.is_none() && is_expected {
                return None;
            }
            self.expire(now, false);
            if let Some(close) = close {
                self.queues.change(close, |queue| queue.is_favoured = true)?;
                self.activate(close);
                return Some(close);
            }
        }
        let (_, next) = self.queues.first()?;
        self.queues.change(next, |queue| queue.is_favoured = false)?;
        self.activate(next);
        Some(next)
    }

    /// True if a request at `lbn` is as near as the active client's usually are (`cfq_rq_close`).
    fn is_close(&self, lbn: u64) -> bool {
        let active = self.active.and_then(|(key, _)| self.queues.get(key));
        active.is_some_and(|queue| lbn.abs_diff(self.head) <= queue.is_close_up_to())
    }

    /// True if the first of the round has waited for so long that nobody is favoured before it.
    fn is_round_late(&self, now: Time) -> bool {
        let slice = i64::try_from(self.parameters.slice_sync.0.as_nanos()).unwrap_or(i64::MAX);
        let round = slice.saturating_mul(self.queues.busy() as i64);
        self.queues.first().is_some_and(|(turn, _)| turn.saturating_add(round) < now.0 as i64)
    }

    /// The queue of another client whose next request is as near as those of the active one, which has none
    /// (`cfq_close_cooperator`).
    fn close_to_active(&self, now: Time) -> Option<Key> {
        let key = self.queues.nearest(self.head)?;
        let queue = self.queues.get(key)?;
        let is_close = queue.next_sector().is_some_and(|lbn| self.is_close(lbn));
        (is_close && !queue.is_favoured && !self.is_round_late(now)).then_some(key)
    }

    /// True if a request that came ends the slice of another client (`cfq_should_preempt`).
    fn preempts(&self, request: &Queued) -> bool {
        let Some((active, slice)) = self.active.filter(|(active, _)| *active != key(request)) else {
            return false;
        };
        let Some(queue) = self.queues.get(active) else { return false };
        let now = request.arrived;
        if slice.is_used_up(now) {
            return true;
        }
        let is_read = request.request.op == Op::Read;
        if is_read && !queue.is_sync {
            let expire = self.parameters.expire(false);
            return queue.waiting.oldest().is_none_or(|oldest| now.since(oldest.arrived) <= expire);
        }
        is_read && slice.has_idled && self.is_close(request.request.lbn) && !self.is_round_late(now)
    }

    /// Whether and until when the drive idles for the active client, whose last request has ended
    /// (`cfq_arm_slice_timer`).
    fn idle(&mut self, now: Time) {
        let Some(queue) = self.active.and_then(|(key, _)| self.queues.get(key)) else { return };
        let is_worth = queue.waiting.is_empty() && queue.is_sync && queue.is_waited_for && self.in_drive == 0;
        if is_worth && self.close_to_active(now).is_none() {
            let longest = if queue.is_seeky() { self.parameters.slice_idle_seeky.0 } else { Duration::MAX };
            self.idle_until = Some(now.after(self.parameters.slice_idle.0.min(longest)));
            self.idled += 1;
            if let Some((_, slice)) = &mut self.active {
                slice.has_idled = true;
            }
        }
    }

    /// Takes the next request of a queue, which is active and has one (`cfq_dispatch_requests`).
    fn send(&mut self, from: Key, now: Time) -> Option<u64> {
        let (busy, is_sync) = (self.queues.busy(), from.1);
        let (_, slice) = self.active.as_mut()?;
        let expire = self.parameters.expire(is_sync);
        let taken = self.queues.change(from, |queue| queue.take(now, slice, expire, self.head))??;
        (slice.sent, slice.must_send) = (slice.sent + 1, false);
        let has_had_enough = !is_sync && slice.sent >= ASYNC_REQUESTS && busy > 1;
        self.head = taken.request.end();
        self.in_drive += 1;
        self.sync_in_drive += is_sync as u32;
        if has_had_enough {
            self.expire(now, false);
        }
        Some(taken.id)
    }

    /// True if a queue may not send although it has the slice: the drive has enough of it, or reads, which writes wait
    /// for.
    fn is_held(&self, key: Key) -> bool {
        let Some(queue) = self.queues.get(key) else { return true };
        let quantum = self.parameters.quantum.get();
        let most = if self.queues.busy() > 1 { quantum } else { quantum.saturating_mul(4) };
        queue.in_drive >= most || !queue.is_sync && self.sync_in_drive > 0
    }

    /// Forgets clients of which nothing is under way, if there are many.
    fn forget(&mut self) {
        if self.queues.len() > QUEUES {
            self.queues.forget(self.active.map(|(key, _)| key));
        }
    }
}

impl Policy for Cfq {
    fn arrived(&mut self, request: Queued) {
        let (key, now) = (key(&request), request.arrived);
        self.forget();
        self.queues.make(key);
        let busy = self.queues.busy();
        self.queues.change(key, |queue| queue.insert(request, self.head, &self.parameters));
        if self.queues.busy() > busy {
            self.enter_round(key, now);
        }
        if let Some((active, slice)) = &mut self.active
            && *active == key
        {
            self.idle_until = None;
            slice.must_send |= slice.has_idled;
        } else if self.preempts(&request) {
            self.expire(now, true);
            self.queues.change(key, |queue| queue.turn = i64::MIN);
        }
    }

    fn choose(&mut self, now: Time) -> Choice {
        if self.queues.busy() == 0 {
            return Choice::Idle;
        }
        let Some(from) = self.select(now) else { return Choice::Wait(self.idle_until.unwrap_or(NEVER)) };
        if self.is_held(from) {
            return Choice::Wait(NEVER);
        }
        self.send(from, now).map_or(Choice::Idle, Choice::Send)
    }

    fn completed(&mut self, now: Time, _sent: Time, request: &Queued) {
        let key = key(request);
        self.in_drive = self.in_drive.saturating_sub(1);
        self.sync_in_drive = self.sync_in_drive.saturating_sub(key.1 as u32);
        self.queues.change(key, |queue| queue.ended(now));
        let Some((active, slice)) = &mut self.active else { return };
        if *active != key {
            return;
        }
        let end = *slice.end.get_or_insert(now.after(self.parameters.slice(key.1)));
        if now >= end {
            self.expire(now, true);
        } else {
            self.idle(now);
        }
    }

    fn drain(&mut self) -> Vec<Queued> {
        (self.active, self.idle_until) = (None, None);
        self.queues.drain()
    }

    fn tune(&mut self, keys: &Keys) {
        self.parameters = keys.cfq.clone();
    }

    fn info(&self) -> Value {
        json!({ "clients": self.queues.len(), "slices": self.slices, "idled": self.idled })
    }
}
