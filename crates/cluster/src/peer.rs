//! A peer's side of a volume: which writes it takes from the host that has the volume, and what it says of them.
//!
//! ```text
//!      Hello g ──▶ older than promised? ─▶ Refuse
//!              └─▶ same as what is here?  ─▶ Welcome: goes on behind its last write
//!              └─▶ newer                  ─▶ Welcome: what is here does not count, all that is dirty comes anew
//!      Batch ────▶ generation, order, credit ─▶ to the flash ─▶ Ack: written; flushed ─▶ Ack: durable
//! ```
//!
//! Invariants:
//! * It takes writes of one generation, and none of an older one than it has promised: a host that takes over promises
//!   the next one first, and from then on its predecessor gets no acknowledgement here.
//! * What it says to be written is written, with everything before it. Batches may end in any order.
//! * No more is under way than it has granted: a peer's memory is bounded whatever its primary sends.

use crate::wire::{Ack, Batch, Credit, Hello, Refuse, VERSIONS, Welcome, agree};
use lamina_block::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use uuid::Uuid;

/// What a peer has of a volume.
#[derive(Clone, Debug)]
pub struct Peer {
    flash: Uuid,
    /// The newest version of the protocol that it speaks.
    newest: u16,
    /// The generation of what is here; 0: nothing.
    generation: u64,
    /// Older generations get nothing any more.
    promised: u64,
    /// The last write that was taken; and up to which one everything is written, and durable.
    taken: u64,
    written: u64,
    durable: u64,
    /// Blocks that may be here and not on the store.
    space: u64,
    /// What may be under way, and how much is.
    limit: Credit,
    under_way: BTreeMap<u64, Part>,
}

/// A batch on its way to the flash.
#[derive(Clone, Copy, Debug)]
struct Part {
    of: Credit,
    ended: bool,
}

/// What is said to a host that begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may send.
    Welcome(Welcome),
    /// It may not.
    Refuse(Refuse),
}

fn credit_of(batch: &Batch) -> Credit {
    Credit { bytes: batch.data_bytes() as u64, writes: batch.entries.len() as u64 }
}

impl Peer {
    /// A peer whose flash has writes of a generation up to `serial`, durably; 0 and 0 for nothing. So much may be under
    /// way to it.
    pub fn new(flash: Uuid, (generation, serial): (u64, u64), limit: Credit) -> Peer {
        Peer {
            flash,
            newest: *VERSIONS.end(),
            generation,
            promised: generation,
            taken: serial,
            written: serial,
            durable: serial,
            space: 0,
            limit,
            under_way: BTreeMap::new(),
        }
    }

    /// It speaks no newer version of the protocol.
    pub fn speaks(&mut self, newest: u16) {
        self.newest = newest;
    }

    /// So many blocks may be here that the store lacks.
    pub fn set_space(&mut self, blocks: u64) {
        self.space = blocks;
    }

    /// From now on nothing of an older generation is taken. The promise has to be durable before anybody relies on it.
    pub fn promise(&mut self, generation: u64) {
        self.promised = self.promised.max(generation);
    }

    /// A host begins to send, on a new connection. Nothing of an older connection is under way.
    pub fn hello(&mut self, hello: &Hello) -> Result<Answer> {
        let version = agree(self.newest, hello.versions)?;
        if hello.generation < self.promised {
            let why = format!(
                "generation {} of volume {} is over: generation {} was promised",
                hello.generation, hello.volume, self.promised
            );
            return Ok(Answer::Refuse(Refuse { generation: self.promised, why }));
        }
        let (written, durable) = if hello.is_anew { (0, 0) } else { (self.written, self.durable) };
        let (flash, generation, credit, space) = (self.flash, self.generation, self.limit, self.space);
        let of = Welcome { version, flash, generation, written, durable, credit, space };
        // What did not get here before the connection was lost comes again.
        self.under_way.clear();
        self.taken = self.written;
        if hello.generation > self.generation || hello.is_anew {
            (self.generation, self.promised) = (hello.generation, hello.generation);
            (self.taken, self.written, self.durable) = (0, 0, 0);
        }
        Ok(Answer::Welcome(of))
    }

    /// A batch has come. Fails if it must not be taken: then nothing more is to be taken from this connection.
    pub fn takes(&mut self, batch: &Batch) -> Result<()> {
        if batch.generation != self.generation || batch.generation < self.promised {
            let message = format!("generation {} is over: {} was promised", batch.generation, self.promised);
            return Err(Error::new(ErrorKind::Fenced, message));
        }
        let (first, last) = match &batch.entries[..] {
            [first, .., last] => (first.serial, last.serial),
            [only] => (only.serial, only.serial),
            [] => return Err(Error::invalid("a batch without writes")),
        };
        if first <= self.taken {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("write {first} comes after write {}", self.taken),
            ));
        }
        let of = credit_of(batch);
        let under_way = self.under_way.values().fold(of, |sum, part| Credit {
            bytes: sum.bytes + part.of.bytes,
            writes: sum.writes + part.of.writes,
        });
        if under_way.bytes > self.limit.bytes || under_way.writes > self.limit.writes {
            let message = format!(
                "{} bytes and {} writes are under way: {} and {} were granted",
                under_way.bytes, under_way.writes, self.limit.bytes, self.limit.writes
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        self.taken = last;
        self.under_way.insert(last, Part { of, ended: false });
        Ok(())
    }

    /// The flash has completed the batch whose last write this is: what there is to say, if anything.
    pub fn wrote(&mut self, last: u64, reaches_store: bool) -> Option<Ack> {
        self.under_way.get_mut(&last)?.ended = true;
        let mut credit = Credit::default();
        while let Some(first) = self.under_way.first_entry().filter(|first| first.get().ended) {
            let (serial, part) = first.remove_entry();
            self.written = serial;
            credit.bytes += part.of.bytes;
            credit.writes += part.of.writes;
        }
        (credit != Credit::default()).then(|| self.ack(credit, reaches_store))
    }

    /// The flash was flushed when everything up to `written` was on it.
    pub fn flushed(&mut self, written: u64, reaches_store: bool) -> Ack {
        self.durable = self.durable.max(written.min(self.written));
        self.ack(Credit::default(), reaches_store)
    }

    /// How far it is, for who asks.
    pub fn progress(&self, reaches_store: bool) -> Ack {
        self.ack(Credit::default(), reaches_store)
    }

    /// The oldest generation of which writes are taken.
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// The last write that was taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Everything up to this serial number is on the flash.
    pub fn written(&self) -> u64 {
        self.written
    }

    fn ack(&self, credit: Credit, reaches_store: bool) -> Ack {
        Ack { written: self.written, durable: self.durable, credit, reaches_store }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sender::Sender;
    use crate::wire::Entry;
    use lamina_block::Time;

    const FLASH: Uuid = Uuid::from_u128(2);
    const LIMIT: Credit = Credit { bytes: 16 * 4096, writes: 8 };

    fn hello(generation: u64) -> Hello {
        let (volume, flash) = (Uuid::from_u128(1), Uuid::from_u128(9));
        Hello { versions: (1, 1), volume, size: 1 << 30, generation, flash, is_anew: false }
    }

    fn batch(generation: u64, serials: std::ops::RangeInclusive<u64>) -> Batch {
        let entry = |serial| Entry { serial, block: serial, count: 1, absent: 0, checksum: 0 };
        Batch { generation, checkpoint: 0, entries: serials.map(entry).collect() }
    }

    fn welcome(of: &mut Peer, generation: u64) -> Welcome {
        match of.hello(&hello(generation)).expect("the same version") {
            Answer::Welcome(welcome) => welcome,
            Answer::Refuse(why) => panic!("{why:?}"),
        }
    }

    #[test]
    fn what_is_written_is_said_in_order() {
        let mut of = Peer::new(FLASH, (0, 0), LIMIT);
        assert_eq!(
            welcome(&mut of, 3),
            Welcome {
                version: 1,
                flash: FLASH,
                generation: 0,
                written: 0,
                durable: 0,
                credit: LIMIT,
                space: 0
            }
        );
        of.takes(&batch(3, 1..=2)).expect("the first");
        of.takes(&batch(3, 3..=3)).expect("the next");
        assert_eq!(of.wrote(3, true), None, "the one before is under way");
        let ack = of.wrote(2, true).expect("both");
        assert_eq!((ack.written, ack.durable, ack.credit), (3, 0, Credit { bytes: 3 * 4096, writes: 3 }));
        of.takes(&batch(3, 7..=7)).expect("numbers may be left out");
        assert_eq!(
            of.flushed(3, false),
            Ack { written: 3, durable: 3, credit: Credit::default(), reaches_store: false }
        );
    }

    #[test]
    fn a_generation_that_is_over_gets_nothing() {
        let mut of = Peer::new(FLASH, (3, 10), LIMIT);
        assert_eq!(welcome(&mut of, 3).written, 10);
        of.takes(&batch(3, 11..=11)).expect("it goes on");
        of.promise(4);
        assert_eq!(of.takes(&batch(3, 12..=12)).map_err(|e| e.kind()), Err(ErrorKind::Fenced));
        let answer = of.hello(&hello(3)).expect("the same version");
        assert!(matches!(answer, Answer::Refuse(why) if why.generation == 4 && why.why.contains("is over")));
        // The next one begins anew, as what is here is of the one before.
        let next = welcome(&mut of, 4);
        assert_eq!((next.generation, next.written), (3, 10));
        of.takes(&batch(4, 1..=1)).expect("from the beginning");
        assert_eq!(welcome(&mut of, 4).written, 0, "it was under way when the connection was lost");
        of.takes(&batch(4, 1..=1)).expect("it comes again");
        of.wrote(1, true).expect("it is there");
        let anew = of.hello(&Hello { is_anew: true, ..hello(4) }).expect("the same version");
        assert!(matches!(anew, Answer::Welcome(of) if (of.written, of.durable) == (0, 0)), "{anew:?}");
        of.takes(&batch(4, 1..=1)).expect("nothing is here any more");
    }

    #[test]
    fn a_host_that_breaks_the_rules_is_found_out() {
        let mut of = Peer::new(FLASH, (0, 0), LIMIT);
        welcome(&mut of, 1);
        of.takes(&batch(1, 1..=4)).expect("the first");
        for (wrong, words) in [(batch(1, 4..=5), "comes after"), (batch(1, 5..=9), "were granted")] {
            let e = of.takes(&wrong).expect_err(words);
            assert!(e.message().contains(words) && e.kind() == ErrorKind::Corrupt, "{e}");
        }
        let long = Entry { count: 13, ..batch(1, 5..=5).entries[0] };
        let e = of.takes(&Batch { entries: vec![long], ..batch(1, 5..=5) }).expect_err("too many bytes");
        assert!(e.message().contains("were granted"), "{e}");
        assert!(of.hello(&Hello { versions: (7, 9), ..hello(1) }).is_err());
    }

    /// A primary that sends as much as it may, and a flash that ends batches in any order: nobody breaks the rules, and
    /// everything arrives, also over connections that are lost.
    #[test]
    fn both_ends_agree() {
        for seed in 0..500 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut of = Peer::new(FLASH, (0, 0), LIMIT);
            let (mut serial, mut connections) = (0, 0);
            while serial < 200 {
                connections += 1;
                let begin = welcome(&mut of, 1);
                let mut sender = Sender::new(&begin, Time(0));
                serial = begin.written;
                let mut flying: Vec<u64> = Vec::new();
                for _ in 0..random.usize(1..100) {
                    let size = random.u64(1..=4);
                    let next = batch(1, serial + 1..=serial + size);
                    match random.u32(0..4) {
                        0 | 1 if sender.may_send(credit_of(&next)) => {
                            sender.sends(credit_of(&next), serial + size, Time(0));
                            serial += size;
                            of.takes(&next).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                            flying.push(serial);
                        }
                        2 if !flying.is_empty() => {
                            let ended = flying.swap_remove(random.usize(0..flying.len()));
                            if let Some(ack) = of.wrote(ended, true) {
                                sender.acked(ack, Time(1)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                            }
                        }
                        _ => {
                            let ack = of.flushed(of.written(), true);
                            sender.acked(ack, Time(1)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                        }
                    }
                }
                assert!(connections < 1000, "seed {seed}: nothing arrives");
            }
        }
    }
}
