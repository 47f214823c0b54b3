//! Who may have a volume, by what the vault says of it: plain functions, and a watch that knows which host is silent.
//!
//! ```text
//!      the vault says          this host                     it may have the volume
//!      nobody, or this host    -                             at once, if it has what the store lacks
//!      through                 any other                     when the holder is silent; late writes are to be fenced
//!      back, recovering        has the flash of a member     when the holder is silent; what is there is replayed
//!      back, recovering        has none of them              never: the store lacks what they have
//! ```
//!
//! Leases are for liveness alone. That a host is silent is judged by its counter, which does not change over one's own
//! time: clocks of two machines are never compared, and a host that was stopped finds its record superseded.

use crate::vault::{Beat, Holder, Mode, Record};
use lamina_block::Time;
use std::time::Duration;

/// Sees whether a host's beats go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    seen: Option<(Option<Beat>, Time)>,
}

impl Watch {
    /// The last beat was read at `now`; `None` if there is none.
    pub fn saw(&mut self, beat: Option<Beat>, now: Time) {
        if self.seen.as_ref().is_none_or(|(before, _)| *before != beat) {
            self.seen = Some((beat, now));
        }
    }

    /// For how long there has been no other beat, as far as is known; zero before somebody looked.
    pub fn silent_for(&self, now: Time) -> Duration {
        self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| now.since(*since))
    }
}

/// What a host may do with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum May {
    /// Append this record, whose version and nonce are still to be set, and have it.
    Have(Box<Record>),
    /// Ask again later: the holder is alive, or has not been silent for long enough.
    Wait(String),
    /// Not without somebody's help.
    Not(String),
}

/// Whether `me` may have the volume of `record`, whose holder has been silent for so long.
pub fn may_have(record: &Record, me: &Holder, silent: Duration, lease: Duration) -> May {
    let is_member = me.flash.is_some_and(|flash| record.mode.members().contains(&flash));
    let holder = record.holder.as_ref();
    let is_mine = holder.is_none_or(|holder| holder.host == me.host);
    if let Some(holder) = holder.filter(|_| !is_mine && silent < lease) {
        return May::Wait(format!(
            "{holder} has the volume in generation {}, and is alive",
            record.generation
        ));
    }
    if record.mode != Mode::Through && !is_member {
        let flashes: Vec<String> = record.mode.members().iter().map(|flash| flash.to_string()).collect();
        let last = holder.or(record.previous.as_ref()).map_or("nobody".into(), |holder| holder.to_string());
        return May::Not(format!(
            "the store lacks writes of volume {:?} that only flash {} has; it was last held by {last}. Start that \
             host, or connect its flash to this one; if the flash is lost, `lamina vault VAULT accept-loss {}` gives \
             these writes up, where VAULT is what the key `vault` says, or the URI of a \
             store that is the vault",
            record.name,
            flashes.join(" and "),
            record.name
        ));
    }
    May::Have(Box::new(taken(record, me, is_mine)))
}

/// The record of a volume that `me` has from now on.
fn taken(record: &Record, me: &Holder, is_mine: bool) -> Record {
    let mode = match &record.mode {
        Mode::Through => Mode::Through,
        Mode::Back { members } | Mode::Recovering { members } => {
            Mode::Recovering { members: members.clone() }
        }
    };
    let last = record.holder.as_ref().or(record.previous.as_ref());
    let is_same_flash = me.flash.is_some() && last.is_some_and(|last| last.flash == me.flash);
    Record {
        holder: Some(me.clone()),
        generation: record.generation + 1,
        since: if is_same_flash { record.since } else { record.generation + 1 },
        mode,
        // While late writes of the one before may come, its name stays: it is asked for when it has ended.
        previous: match &record.holder {
            Some(holder) if !is_mine || record.unfenced.is_none() => Some(holder.clone()),
            Some(_) | None => record.previous.clone(),
        },
        // Requests of the host's own past ended with its process; those of another one may be anywhere.
        unfenced: if is_mine { record.unfenced } else { Some(record.generation) },
        ..record.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const LEASE: Duration = Duration::from_secs(5);

    fn host(name: &str, flash: u128) -> Holder {
        Holder { host: name.into(), flash: (flash > 0).then(|| Uuid::from_u128(flash)) }
    }

    fn record(holder: Option<Holder>, mode: Mode) -> Record {
        Record {
            volume: Uuid::from_u128(9),
            name: "vm1".into(),
            version: 3,
            nonce: Uuid::from_u128(8),
            holder,
            generation: 2,
            since: 1,
            mode,
            checkpoint: 50,
            previous: None,
            unfenced: None,
        }
    }

    fn back(members: &[u128]) -> Mode {
        Mode::Back { members: members.iter().copied().map(Uuid::from_u128).collect() }
    }

    #[test]
    fn a_counter_that_does_not_move_is_silence() {
        let at = |seconds: u64| Time(seconds * 1_000_000_000);
        let beat = |process: u128, counter| {
            Some(Beat {
                process: Uuid::from_u128(process),
                counter,
                lease: 0,
                address: None,
                domain: None,
                room: None,
            })
        };
        let mut watch = Watch::default();
        assert_eq!(watch.silent_for(at(9)), Duration::ZERO);
        watch.saw(beat(1, 7), at(10));
        watch.saw(beat(1, 7), at(14));
        assert_eq!(watch.silent_for(at(16)), Duration::from_secs(6));
        // Whatever the counter does, it lives: a host that was started anew begins at another number.
        watch.saw(beat(2, 1), at(17));
        assert_eq!(watch.silent_for(at(18)), Duration::from_secs(1));
        // One that never beat is silent from the first look on.
        let mut never = Watch::default();
        never.saw(None, at(20));
        never.saw(None, at(25));
        assert_eq!(never.silent_for(at(25)), Duration::from_secs(5));
    }

    #[test]
    fn the_table() {
        let (a, b, c) = (host("a", 1), host("b", 2), host("c", 0));
        // Holder, mode, who asks, the holder is silent: whether it may, the generation that is not fenced.
        let cases = [
            (None, Mode::Through, &c, false, Some(None)),
            (Some(&a), Mode::Through, &a, false, Some(None)),
            (Some(&a), Mode::Through, &c, true, Some(Some(2))),
            (Some(&a), back(&[1, 2]), &b, true, Some(Some(2))),
            (Some(&a), back(&[1]), &a, false, Some(None)),
            (None, back(&[1]), &a, false, Some(None)),
            // A surrogate that was given the flash.
            (Some(&a), back(&[1]), &host("d", 1), true, Some(Some(2))),
        ];
        for (holder, mode, me, is_silent, expected) in cases {
            let silent = if is_silent { LEASE } else { Duration::ZERO };
            let of = record(holder.cloned(), mode.clone());
            let found = match may_have(&of, me, silent, LEASE) {
                May::Have(taken) => {
                    assert_eq!(
                        (taken.generation, &taken.holder, &taken.mode.members()),
                        (3, &Some(me.clone()), &mode.members())
                    );
                    assert_eq!(taken.previous, holder.cloned());
                    Some(taken.unfenced)
                }
                May::Wait(_) | May::Not(_) => None,
            };
            assert_eq!(found, expected, "{holder:?} {mode:?} {me}");
        }
    }

    #[test]
    fn a_holder_that_is_alive_is_waited_for() {
        let of = record(Some(host("a", 1)), back(&[1, 2]));
        let waits = may_have(&of, &host("b", 2), LEASE - Duration::from_nanos(1), LEASE);
        assert!(matches!(waits, May::Wait(why) if why.contains("a (flash") && why.contains("generation 2")));
    }

    #[test]
    fn without_a_member_nobody_may() {
        for (holder, me) in
            [(Some(host("a", 1)), host("b", 2)), (None, host("a", 0)), (Some(host("a", 1)), host("a", 3))]
        {
            // The third one has formatted its flash.
            let May::Not(why) = may_have(&record(holder, back(&[1])), &me, LEASE, LEASE) else {
                panic!("{me} may")
            };
            assert!(why.contains("only flash") && why.contains("Start that host"), "{why}");
        }
    }
}
