//! The members of a volume: the flashes that have its writes, as the host that has the volume sees them.
//!
//! ```text
//!      a member is lost       ── stop acknowledging ──▶ vault: without it ──▶ go on without it
//!      another one has all    ── count it ────────────▶ vault: with it    ──▶ it is a member
//! ```
//!
//! Invariants:
//! * A write is acknowledged when every flash has it that the vault names, or may name: while a change of the record is
//!   under way, those of the old record and of the new one count. So a host that reads the vault at any moment, and
//!   takes over with any member, has every acknowledged write (PacificA; I1 of the simulator).
//! * Only what is durable on all of these goes to the store: the store is never ahead of a member (I3).

use lamina_block::{Error, ErrorKind, Result};
use uuid::Uuid;

/// How far a flash is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// It has all writes up to this serial number.
    pub written: u64,
    /// And keeps these without power.
    pub durable: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Member {
    flash: Uuid,
    progress: Progress,
    /// The vault names it, as far as was answered.
    is_named: bool,
    /// It is on no connection any more, and is to leave.
    is_lost: bool,
}

/// A change of the record that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    to: Vec<Uuid>,
}

/// The members of a volume.
#[derive(Clone, Debug)]
pub struct Members {
    list: Vec<Member>,
    change: Option<Change>,
    /// The last serial number that was given to a write.
    serial: u64,
}

impl Members {
    /// Those that the vault names. `serial` is the last serial number, and all of them have it, durably.
    pub fn new(named: &[Uuid], serial: u64) -> Members {
        let progress = Progress { written: serial, durable: serial };
        let member = |flash: &Uuid| Member { flash: *flash, progress, is_named: true, is_lost: false };
        Members { list: named.iter().map(member).collect(), change: None, serial }
    }

    /// The write with this serial number begins; they rise.
    pub fn begun(&mut self, serial: u64) {
        debug_assert!(serial > self.serial, "serial numbers rise");
        self.serial = serial;
    }

    fn get(&mut self, flash: Uuid) -> Option<&mut Member> {
        self.list.iter_mut().find(|member| member.flash == flash)
    }

    /// A flash says how far it is. Fails if that cannot be: it has more than there is, or less than it had. Nothing
    /// happens for a flash that is no member, and is not becoming one.
    pub fn progressed(&mut self, flash: Uuid, to: Progress) -> Result<()> {
        let serial = self.serial;
        let Some(member) = self.get(flash) else { return Ok(()) };
        let Progress { written, durable } = member.progress;
        if to.written > serial || to.durable > to.written || to.written < written || to.durable < durable {
            let message = format!(
                "flash {flash} says that it has {} writes, {} of them durable: it had {written} and {durable}, and \
                 there are {serial}",
                to.written, to.durable
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        member.progress = to;
        Ok(())
    }

    /// A flash is on no connection any more. It counts until the vault does not name it.
    pub fn lost(&mut self, flash: Uuid) {
        if let Some(member) = self.get(flash) {
            member.is_lost = true;
        }
        // One that the vault never named, and is not about to, counted for nobody.
        let change = self.change.clone();
        let is_coming = |flash: &Uuid| change.as_ref().is_some_and(|change| change.to.contains(flash));
        self.list.retain(|member| member.is_named || !member.is_lost || is_coming(&member.flash));
    }

    /// A flash is to become a member: it has all writes up to some serial number, and gets the others as they come. It
    /// counts as soon as the vault is asked to name it (`wanted`).
    pub fn joins(&mut self, flash: Uuid, progress: Progress) -> Result<()> {
        match self.get(flash) {
            Some(member) => member.is_lost = false,
            None => {
                let none = Progress::default();
                self.list.push(Member { flash, progress: none, is_named: false, is_lost: false });
            }
        }
        self.progressed(flash, progress)
    }

    /// The members that the vault should name, if those are others than it names, and no change is under way. A flash
    /// that joins is among them when it has all that was acknowledged, and that the store may have: the vault may name
    /// it from the moment on in which it is asked to.
    pub fn wanted(&self) -> Option<Vec<Uuid>> {
        let (acknowledged, durable) = (self.acknowledged(), self.durable());
        let has_all = |of: &Progress| of.written >= acknowledged && of.durable >= durable;
        let is_wanted = |member: &&Member| !member.is_lost && (member.is_named || has_all(&member.progress));
        let wanted: Vec<Uuid> = self.list.iter().filter(is_wanted).map(|member| member.flash).collect();
        (self.change.is_none() && wanted != self.named()).then_some(wanted)
    }

    /// The vault is asked to name these.
    pub fn change_begins(&mut self, to: Vec<Uuid>) {
        debug_assert!(self.change.is_none(), "one change at a time");
        self.change = Some(Change { to });
    }

    /// The vault names those that it was asked to name, and no others any more.
    pub fn change_is_done(&mut self) {
        let Some(Change { to }) = self.change.take() else { return };
        for member in &mut self.list {
            member.is_named = to.contains(&member.flash);
        }
        self.list.retain(|member| member.is_named || !member.is_lost);
    }

    /// The flashes that the vault names, as far as was answered.
    pub fn named(&self) -> Vec<Uuid> {
        self.list.iter().filter(|member| member.is_named).map(|member| member.flash).collect()
    }

    /// Those that count: what the vault names, or may name.
    fn counted(&self) -> impl Iterator<Item = &Member> {
        let may_be = |flash: &Uuid| self.change.as_ref().is_some_and(|change| change.to.contains(flash));
        self.list.iter().filter(move |member| member.is_named || may_be(&member.flash))
    }

    /// The last serial number that was given to a write.
    pub fn last(&self) -> u64 {
        self.serial
    }

    /// True if no flash counts: nothing has to be waited for.
    pub fn is_nobody(&self) -> bool {
        self.counted().next().is_none()
    }

    /// Writes up to this serial number can be acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.counted().map(|member| member.progress.written).min().unwrap_or(self.serial)
    }

    /// Writes up to this one are durable on all: a flush that covers no more has ended, and the store may have them.
    pub fn durable(&self) -> u64 {
        self.counted().map(|member| member.progress.durable).min().unwrap_or(self.serial)
    }

    /// Why writes wait, for people: the lost flashes that the vault still names.
    pub fn waits_for_vault(&self) -> Vec<Uuid> {
        self.counted().filter(|member| member.is_lost).map(|member| member.flash).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const OWN: Uuid = Uuid::from_u128(1);
    const PEER: Uuid = Uuid::from_u128(2);
    const OTHER: Uuid = Uuid::from_u128(3);

    fn at(written: u64, durable: u64) -> Progress {
        Progress { written, durable }
    }

    #[test]
    fn a_write_is_acknowledged_when_all_have_it() {
        let mut of = Members::new(&[OWN, PEER], 10);
        (11..=12).for_each(|serial| of.begun(serial));
        of.progressed(OWN, at(12, 12)).expect("it has");
        assert_eq!((of.acknowledged(), of.durable()), (10, 10));
        of.progressed(PEER, at(11, 10)).expect("it has");
        assert_eq!((of.acknowledged(), of.durable()), (11, 10));
    }

    #[test]
    fn without_a_member_only_when_the_vault_says_so() {
        let mut of = Members::new(&[OWN, PEER], 0);
        of.begun(1);
        of.progressed(OWN, at(1, 1)).expect("it has");
        of.lost(PEER);
        assert_eq!((of.acknowledged(), of.waits_for_vault()), (0, vec![PEER]));
        assert_eq!(of.wanted(), Some(vec![OWN]));
        of.change_begins(vec![OWN]);
        assert_eq!((of.acknowledged(), of.wanted()), (0, None));
        of.change_is_done();
        assert_eq!((of.acknowledged(), of.wanted(), of.named()), (1, None, vec![OWN]));
    }

    #[test]
    fn one_that_joins_counts_before_the_vault_names_it() {
        let mut of = Members::new(&[OWN], 5);
        of.joins(OTHER, at(5, 5)).expect("it has");
        of.begun(6);
        of.progressed(OWN, at(6, 6)).expect("it has");
        assert_eq!((of.acknowledged(), of.wanted()), (6, None), "nobody may take over with it");
        of.progressed(OTHER, at(6, 5)).expect("it has");
        assert_eq!(of.wanted(), None, "the store may have what it lacks after a loss of power");
        of.progressed(OTHER, at(6, 6)).expect("it has");
        of.change_begins(of.wanted().expect("another one"));
        of.begun(7);
        of.progressed(OWN, at(7, 6)).expect("it has");
        assert_eq!(of.acknowledged(), 6, "the vault may name it by now");
        of.progressed(OTHER, at(7, 7)).expect("it has");
        of.change_is_done();
        assert_eq!((of.acknowledged(), of.named()), (7, vec![OWN, OTHER]));
    }

    #[test]
    fn a_peer_that_lies_is_found_out() {
        let mut of = Members::new(&[OWN, PEER], 5);
        of.begun(6);
        for wrong in [at(7, 5), at(6, 7), at(4, 4), at(5, 4)] {
            let e = of.progressed(PEER, wrong).expect_err("a lie");
            assert!(e.message().contains("it had 5 and 5, and there are 6"), "{e}");
        }
        of.progressed(PEER, at(6, 6)).expect("no lie");
        of.progressed(OTHER, at(99, 99)).expect("it is nobody's concern");
    }

    /// A world of flashes that are lost and come back, and a vault whose answers come late: whatever it names has all
    /// that was acknowledged, and what is durable where it counts goes to the store.
    #[test]
    fn whatever_the_vault_names_has_what_was_acknowledged() {
        let flashes = [OWN, PEER, OTHER, Uuid::from_u128(4)];
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut of = Members::new(&[OWN, PEER], 0);
            let mut there: BTreeMap<Uuid, Progress> = [(OWN, at(0, 0)), (PEER, at(0, 0))].into();
            // What the vault names, and what it was asked to name and has not answered.
            let (mut named, mut asked) = (vec![OWN, PEER], None::<Vec<Uuid>>);
            let (mut serial, mut acknowledged) = (0, 0);
            for _ in 0..200 {
                let flash = flashes[random.usize(0..4)];
                match random.u32(0..10) {
                    0..=2 => {
                        serial += 1;
                        of.begun(serial);
                    }
                    3..=5 => {
                        if let Some(progress) = there.get_mut(&flash) {
                            progress.written = random.u64(progress.written..=serial);
                            progress.durable = random.u64(progress.durable..=progress.written);
                            of.progressed(flash, *progress).expect("no lie");
                        }
                    }
                    6 if flash != OWN && random.u32(0..3) == 0 => {
                        there.remove(&flash);
                        of.lost(flash);
                    }
                    7 if !there.contains_key(&flash)
                        && !of.list.iter().any(|member| member.flash == flash) =>
                    {
                        there.insert(flash, at(serial, serial));
                        of.joins(flash, at(serial, serial)).expect("no lie");
                    }
                    8 if asked.is_none() => {
                        if let Some(to) = of.wanted() {
                            of.change_begins(to.clone());
                            asked = Some(to);
                        }
                    }
                    _ => {
                        // It may be done long before its answer comes.
                        if let Some(to) = asked.clone() {
                            named = to;
                            if random.bool() {
                                of.change_is_done();
                                asked = None;
                            }
                        }
                    }
                }
                assert!(of.durable() <= of.acknowledged(), "seed {seed}");
                acknowledged = acknowledged.max(of.acknowledged());
                for flash in named.iter().chain(asked.iter().flatten()) {
                    if let Some(progress) = there.get(flash) {
                        assert!(
                            progress.written >= acknowledged,
                            "seed {seed}: {flash} lacks {acknowledged}"
                        );
                    }
                }
            }
        }
    }
}
