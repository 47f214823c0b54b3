//! What a volume survives now, in one sentence: a plain function of what a host knows without asking anybody.
//!
//! ```text
//!      the vault says      this host has the volume              this host does not
//!      through             the store has everything              the same
//!      back, recovering    so many flashes have what it lacks    the same, and whether this is one of them
//! ```

use crate::vault::{Holder, Mode, Record};
use lamina_block::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Who gives the volume to another host if the one that has it is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takeover {
    /// Nobody has to: another host takes it by itself, or no host has it now.
    Automatic,
    /// A person, who says that the host is dead.
    Confirmed,
    /// Nobody can: only a flash that is away has what the store lacks.
    Impossible,
}

impl Takeover {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Takeover::Automatic => "automatic",
            Takeover::Confirmed => "confirmed",
            Takeover::Impossible => "impossible",
        }
    }
}

/// What a volume survives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The sentence, with what is missing.
    pub sentence: String,
    /// So many flashes, or hosts with their flashes, may be lost without an acknowledged write; `None`: all of them, as
    /// the store has every write.
    pub survives: Option<u32>,
    /// What happens if the host that has the volume is silent.
    pub takeover: Takeover,
    /// The command that helps, if one does.
    pub command: Option<String>,
}

/// What the host that has a volume knows of its own flash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// Bytes that the store lacks.
    pub dirty_bytes: u64,
    /// So many peers are to have each write.
    pub wanted: usize,
    /// So many that the vault names are connected, and get each write.
    pub there: usize,
    /// Why fewer are there, if it is known.
    pub waits: Option<String>,
    /// Every write waits for the store.
    pub is_through: bool,
    /// Why the device is stopped, if it is: its flash has failed.
    pub stopped: Option<String>,
}

/// What a host knows of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The name of the volume.
    pub volume: &'a str,
    /// The device that is the volume.
    pub device: &'a str,
    /// Where the vault is: a folder, or `etcd:` with its members.
    pub vault: &'a str,
    /// This host, and its flash.
    pub me: &'a Holder,
    /// What the vault says, as far as is known.
    pub record: Option<&'a Record>,
    /// The host that has the volume is silent.
    pub is_silent: bool,
    /// Another host has the volume, which this one had.
    pub is_fenced: bool,
    /// The vault keeps late writes from the store.
    pub fences: bool,
    /// The flash of the host that has the volume; `None` if that is another one.
    pub keeps: Option<&'a Keeps>,
}

fn promise(sentence: String, survives: Option<u32>, takeover: Takeover, command: Option<String>) -> Promise {
    Promise { sentence, survives, takeover, command }
}

/// Of a device that is stopped, as its flash has failed, and that no other host knows.
pub fn stopped_alone(why: &str, device: &str) -> String {
    format!(
        "the device is stopped: {why}; `lamina ctl {device} accept-loss` goes on without what only its flash has"
    )
}

/// Of a device that no other host knows, and that acknowledges writes from its flash, or does not.
pub fn alone(is_back: bool, dirty_bytes: u64) -> String {
    match (is_back, dirty_bytes) {
        (false, 0) => "every acknowledged write is on the store: it survives the loss of the flash".into(),
        (true, 0) => {
            "the store has everything now; the next writes are on this flash alone until it has them".into()
        }
        (_, dirty) => format!("{} are on this flash alone, and lost with it", Bytes(dirty).rounded()),
    }
}

fn times(count: u32, what: &str) -> String {
    if count == 1 {
        format!("1 {what}")
    } else {
        format!("{count} {what}{}", if what.ends_with('h') { "es" } else { "s" })
    }
}

impl Situation<'_> {
    /// What the volume survives now.
    pub fn promise(&self) -> Promise {
        match (self.record, self.keeps) {
            (Some(record), _) if self.is_fenced => self.fenced(record),
            (Some(record), Some(keeps)) => self.here(record, keeps),
            (Some(record), None) => match &record.holder {
                Some(holder) => self.elsewhere(record, holder),
                None => self.nowhere(record),
            },
            (None, _) => {
                let sentence = "no host has had the volume, as far as is known: the first host that reads or writes it \
                                takes it";
                promise(sentence.into(), None, Takeover::Automatic, None)
            }
        }
    }

    fn vault(&self, what: &str) -> String {
        match self.vault.contains(char::is_whitespace) {
            true => format!("lamina vault '{}' {what}", self.vault),
            false => format!("lamina vault {} {what}", self.vault),
        }
    }

    /// How another host follows one that is silent when the store has everything, and the command for that.
    fn silent_through(&self, host: &str) -> (String, Takeover, Option<String>) {
        if self.fences {
            return ("by itself".into(), Takeover::Automatic, None);
        }
        let command = self.is_dead(host);
        (format!("after `{command}`"), Takeover::Confirmed, Some(command))
    }

    fn is_dead(&self, host: &str) -> String {
        self.vault(&format!("host-is-dead {host}"))
    }

    /// Late writes of the host before may come: that, with the command that ends it, and the command.
    fn late_writes(&self, record: &Record) -> (String, String) {
        let previous = record.previous.as_ref().map_or("NAME", |previous| &previous.host[..]);
        let command = self.is_dead(previous);
        (format!("late writes of host {previous} may come; when it is off, `{command}` ends that"), command)
    }

    /// What `members` flashes with the same writes survive.
    fn survives(members: usize) -> (u32, String) {
        let losses = members.saturating_sub(1) as u32;
        let (flashes, hosts) = (times(losses, "flash"), times(losses, "host"));
        match losses {
            0 => (0, "every acknowledged write is on one flash, and lost with it".into()),
            _ => (losses, format!("every acknowledged write survives the loss of {flashes} or {hosts}")),
        }
    }

    fn fenced(&self, record: &Record) -> Promise {
        let who = record.holder.as_ref().map_or("nobody", |holder| &holder.host[..]);
        let sentence = format!(
            "this host is fenced, and answers nothing: {who} has the volume in generation {}; start `lamina serve` \
             here again when no client uses it",
            record.generation
        );
        let survives = record.mode.members().len().checked_sub(1).map(|losses| losses as u32);
        promise(sentence, survives, Takeover::Automatic, None)
    }

    /// This host has the volume.
    fn here(&self, record: &Record, keeps: &Keeps) -> Promise {
        if let Some(why) = &keeps.stopped {
            // Also one that is not connected now: it is named as long as it has everything.
            let others = record.mode.members().iter().filter(|flash| Some(**flash) != self.me.flash);
            return self.stopped(why, others.count());
        }
        let members = record.mode.members().len();
        let me = &self.me.host;
        if record.mode == Mode::Through {
            let (takes, takeover, command) = self.silent_through(me);
            let mut sentence = format!(
                "every acknowledged write is on the store, and survives the loss of all flashes and hosts; if this \
                 host is silent, another one takes over {takes}"
            );
            if keeps.wanted > 0 {
                let why = keeps.waits.as_deref().unwrap_or("peers are about to join");
                sentence += &format!("; {} wanted: {why}", times(keeps.wanted as u32, "peer"));
            }
            return promise(sentence, None, takeover, command);
        }
        if members > 1 {
            if keeps.there + 1 < members {
                return self.out_of_reach(members, keeps);
            }
            let (losses, survives) = Situation::survives(members);
            return match record.unfenced {
                None => {
                    let sentence = format!("{survives}; another host takes over by itself");
                    promise(sentence, Some(losses), Takeover::Automatic, None)
                }
                Some(_) => {
                    let (why, command) = self.late_writes(record);
                    let sentence = format!("{survives}; the next takeover waits for a person: {why}");
                    promise(sentence, Some(losses), Takeover::Confirmed, Some(command))
                }
            };
        }
        let (mut sentence, mut command) = (alone(!keeps.is_through, keeps.dirty_bytes), None);
        if record.unfenced.is_some() {
            let (why, over) = self.late_writes(record);
            sentence += &format!("; {why}");
            command = Some(over);
        } else if keeps.wanted > 0 {
            let why = keeps.waits.as_deref().unwrap_or("they are about to join");
            sentence += &format!("; {} wanted: {why}", times(keeps.wanted as u32, "peer"));
        } else if !keeps.is_through {
            let through = format!("lamina ctl {} set-policy write-through", self.device);
            sentence += "; no other host takes over without it: ";
            sentence += &format!("the key `peers` changes that, or `{through}`");
            command = Some(through);
        }
        promise(sentence, Some(0), Takeover::Impossible, command)
    }

    /// The flash of this host has failed, which has the volume.
    fn stopped(&self, why: &str, there: usize) -> Promise {
        let sentence = format!("the device is stopped on this host: {why}");
        if there > 0 {
            let flashes = times(there as u32, "other flash");
            let sentence = format!(
                "{sentence}; {flashes} had every acknowledged write: stop this host, and another one takes over"
            );
            return promise(sentence, Some(there as u32 - 1), Takeover::Automatic, None);
        }
        let command = format!("lamina ctl {} accept-loss", self.device);
        let sentence = format!("{sentence}; `{command}` goes on without what only its flash has");
        promise(sentence, Some(0), Takeover::Impossible, Some(command))
    }

    /// The vault names peers that are lost.
    fn out_of_reach(&self, members: usize, keeps: &Keeps) -> Promise {
        let reached = keeps.there + 1;
        let (losses, survives) = Situation::survives(reached);
        let why = keeps.waits.as_deref().unwrap_or("the vault is about to name them no more");
        let sentence = format!(
            "the vault names {members} flashes, and this host reaches {reached} of them: without the others \
             {survives}; {why}"
        );
        let takeover = if reached > 1 { Takeover::Automatic } else { Takeover::Impossible };
        promise(sentence, Some(losses), takeover, None)
    }

    fn is_member(&self, record: &Record) -> bool {
        self.me.flash.is_some_and(|flash: Uuid| record.mode.members().contains(&flash))
    }

    /// Another host has the volume.
    fn elsewhere(&self, record: &Record, holder: &Holder) -> Promise {
        let (host, members) = (&holder.host, record.mode.members().len());
        let is = if self.is_silent { "is silent" } else { "has the volume" };
        let is_without =
            self.is_silent && holder.flash.is_some_and(|flash| record.mode.members().contains(&flash));
        let (losses, survives) = match is_without {
            true => {
                let (losses, survives) = Situation::survives(members - 1);
                (losses, format!("without it {survives}"))
            }
            false => Situation::survives(members),
        };
        let dead = self.is_dead(host);
        if record.mode == Mode::Through {
            let (takes, takeover, command) = self.silent_through(host);
            let sentence = match self.is_silent {
                true if self.fences => format!(
                    "the store has every write of host {host}, which is silent: this host takes over with the first \
                     read or write"
                ),
                true => format!(
                    "the store has every write of host {host}, which is silent: when it is off, `{dead}` lets another \
                     host take over"
                ),
                false => format!(
                    "host {host} has the volume, and the store every write; another host takes over when {host} gives \
                     it away, or, if it is silent, {takes}"
                ),
            };
            return promise(sentence, None, takeover, command);
        }
        if record.unfenced.is_some() && members > 1 {
            let (why, command) = match self.is_silent {
                true => (format!("when {host} is off, `{dead}` lets another host take over"), dead),
                false => self.late_writes(record),
            };
            let sentence =
                format!("host {host} {is}; {survives}; the next takeover waits for a person: {why}");
            return promise(sentence, Some(losses), Takeover::Confirmed, Some(command));
        }
        if self.is_member(record) {
            let takes = match self.is_silent {
                true => "this host takes over with the first read or write",
                false => "this host takes over by itself if it is silent",
            };
            let sentence = format!("host {host} {is}; {survives}; {takes}");
            return promise(sentence, Some(losses), Takeover::Automatic, None);
        }
        if members > 1 {
            let sentence = format!(
                "host {host} {is}; {survives}; another host takes over by itself, and this one cannot"
            );
            return promise(sentence, Some(losses), Takeover::Automatic, None);
        }
        let sentence = format!(
            "host {host} {is}; only its flash has some writes: no other host takes over without it; start {host} if it \
             is off"
        );
        promise(sentence, Some(0), Takeover::Impossible, None)
    }

    /// No host has the volume.
    fn nowhere(&self, record: &Record) -> Promise {
        let members = record.mode.members().len();
        if record.mode == Mode::Through {
            let sentence = "no host has the volume, and the store has every write: the first host that reads or writes \
                            it takes it";
            return promise(sentence.into(), None, Takeover::Automatic, None);
        }
        let (losses, survives) = Situation::survives(members);
        if self.is_member(record) {
            let sentence =
                format!("no host has the volume; {survives}; this host takes it with a read or write");
            return promise(sentence, Some(losses), Takeover::Automatic, None);
        }
        let last = record.previous.as_ref().map_or("NAME", |previous| &previous.host[..]);
        let give_up = self.vault(&format!("accept-loss {}", self.volume));
        let sentence = format!(
            "no host has the volume, and only a flash that is not here has some writes: start host {last}; if its \
             flash is lost, `{give_up}` gives them up"
        );
        promise(sentence, Some(losses), Takeover::Impossible, Some(give_up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(host: &str, flash: u128) -> Holder {
        Holder { host: host.into(), flash: Some(Uuid::from_u128(flash)) }
    }

    fn record(host: Option<Holder>, members: &[u128], unfenced: Option<u64>) -> Record {
        let members: Vec<Uuid> = members.iter().copied().map(Uuid::from_u128).collect();
        Record {
            volume: Uuid::from_u128(9),
            name: "vm1".into(),
            version: 3,
            nonce: Uuid::from_u128(8),
            holder: host,
            generation: 2,
            since: 1,
            mode: if members.is_empty() { Mode::Through } else { Mode::Back { members } },
            checkpoint: 50,
            previous: Some(holder("z", 26)),
            unfenced,
        }
    }

    /// What host b, with flash 2, says.
    fn said(record: &Record, is_silent: bool, keeps: Option<&Keeps>) -> Promise {
        let me = holder("b", 2);
        let of = Situation {
            volume: "vm1",
            device: "top",
            vault: "/v",
            me: &me,
            record: Some(record),
            is_silent,
            is_fenced: false,
            fences: false,
            keeps,
        };
        of.promise()
    }

    #[test]
    fn the_host_that_has_the_volume() {
        let keeps = |wanted, dirty_bytes, waits: Option<&str>, is_through| Keeps {
            dirty_bytes,
            wanted,
            there: wanted,
            waits: waits.map(str::to_owned),
            is_through,
            stopped: None,
        };
        use Takeover::{Automatic, Confirmed, Impossible};
        let dead = |host: &str| Some(format!("lamina vault /v host-is-dead {host}"));
        let through = Some("lamina ctl top set-policy write-through".to_owned());
        for (members, unfenced, keeps, survives, takeover, words, command) in [
            (&[][..], None, keeps(0, 0, None, true), None, Confirmed, "is on the store", dead("b")),
            (
                &[][..],
                None,
                keeps(1, 0, Some("b is lost"), true),
                None,
                Confirmed,
                "1 peer wanted: b is lost",
                dead("b"),
            ),
            (
                &[2, 3][..],
                None,
                keeps(1, 9, None, false),
                Some(1),
                Automatic,
                "the loss of 1 flash or 1 host; another host takes over by itself",
                None,
            ),
            (
                &[2, 3, 4][..],
                None,
                keeps(2, 9, None, false),
                Some(2),
                Automatic,
                "the loss of 2 flashes or 2 hosts; another",
                None,
            ),
            (
                &[2, 3][..],
                Some(1),
                keeps(1, 9, None, false),
                Some(1),
                Confirmed,
                "late writes of host z",
                dead("z"),
            ),
            (
                &[2][..],
                None,
                keeps(0, 4096, None, false),
                Some(0),
                Impossible,
                "4KiB are on this flash alone",
                through,
            ),
            (
                &[2][..],
                None,
                keeps(1, 4096, Some("none is there"), true),
                Some(0),
                Impossible,
                "1 peer wanted: none is there",
                None,
            ),
            (
                &[2][..],
                Some(1),
                keeps(1, 4096, None, true),
                Some(0),
                Impossible,
                "late writes of host z",
                dead("z"),
            ),
        ] {
            let said = said(&record(Some(holder("b", 2)), members, unfenced), false, Some(&keeps));
            assert_eq!(
                (said.survives, said.takeover, &said.command),
                (survives, takeover, &command),
                "{said:?}"
            );
            assert!(said.sentence.contains(words), "{said:?}");
            let names_it = command.is_none_or(|command| said.sentence.contains(&command));
            assert!(names_it, "{said:?}");
        }
    }

    #[test]
    fn a_member_that_is_out_of_reach_is_not_counted() {
        let record = record(Some(holder("b", 2)), &[2, 3, 4], None);
        for (there, survives, takeover) in [(1, 1, Takeover::Automatic), (0, 0, Takeover::Impossible)] {
            let waits = Some("the vault does not answer".to_owned());
            let said = said(&record, false, Some(&Keeps { wanted: 2, there, waits, ..Keeps::default() }));
            assert_eq!((said.survives, said.takeover), (Some(survives), takeover), "{said:?}");
            assert!(said.sentence.ends_with("; the vault does not answer"), "{said:?}");
        }
    }

    #[test]
    fn a_device_whose_flash_has_failed_is_stopped() {
        for (members, there, survives, takeover, words) in [
            (&[2, 3, 4][..], 2, 1, Takeover::Automatic, "2 other flashes had every acknowledged write"),
            (&[2, 3], 0, 0, Takeover::Automatic, "1 other flash had every acknowledged write"),
            (&[2], 0, 0, Takeover::Impossible, "`lamina ctl top accept-loss`"),
        ] {
            let stopped = Some("nvme is gone".to_owned());
            let keeps = Keeps { wanted: 2, there, stopped, ..Keeps::default() };
            let said = said(&record(Some(holder("b", 2)), members, None), false, Some(&keeps));
            assert_eq!((said.survives, said.takeover), (Some(survives), takeover), "{said:?}");
            assert!(said.sentence.contains("nvme is gone") && said.sentence.contains(words), "{said:?}");
        }
        assert!(stopped_alone("nvme is gone", "top").contains("nvme is gone; `lamina ctl top accept-loss`"));
    }

    #[test]
    fn a_host_that_does_not_have_it() {
        use Takeover::{Automatic, Confirmed, Impossible};
        for (host, members, unfenced, is_silent, survives, takeover, words) in [
            (
                Some("a"),
                &[1, 2][..],
                None,
                false,
                Some(1),
                Automatic,
                "this host takes over by itself if it is silent",
            ),
            (
                Some("a"),
                &[1, 2][..],
                None,
                true,
                Some(0),
                Automatic,
                "host a is silent; without it every acknowledged write is on one flash",
            ),
            (Some("a"), &[1, 2][..], Some(1), true, Some(0), Confirmed, "`lamina vault /v host-is-dead a`"),
            (Some("a"), &[1, 3][..], None, false, Some(1), Automatic, "and this one cannot"),
            (
                Some("a"),
                &[1][..],
                None,
                true,
                Some(0),
                Impossible,
                "host a is silent; only its flash has some writes",
            ),
            (Some("a"), &[][..], None, false, None, Confirmed, "when a gives it away"),
            (
                Some("a"),
                &[][..],
                None,
                true,
                None,
                Confirmed,
                "which is silent: when it is off, `lamina vault /v host-is-dead a`",
            ),
            (None, &[][..], None, false, None, Automatic, "the first host that reads or writes"),
            (None, &[1, 2][..], None, false, Some(1), Automatic, "this host takes it with"),
            (
                None,
                &[1][..],
                None,
                false,
                Some(0),
                Impossible,
                "start host z; if its flash is lost, `lamina vault /v accept-loss vm1`",
            ),
        ] {
            let said = said(&record(host.map(|host| holder(host, 1)), members, unfenced), is_silent, None);
            assert_eq!((said.survives, said.takeover), (survives, takeover), "{said:?}");
            assert!(said.sentence.contains(words), "{said:?}");
        }
    }

    #[test]
    fn a_fenced_host_says_who_has_the_volume() {
        let (me, record) = (holder("b", 2), record(Some(holder("a", 1)), &[1], None));
        let keeps = Keeps::default();
        let of = Situation {
            volume: "vm1",
            device: "top",
            vault: "/my vault",
            me: &me,
            record: Some(&record),
            is_silent: false,
            is_fenced: true,
            fences: false,
            keeps: Some(&keeps),
        };
        assert!(of.promise().sentence.contains("a has the volume in generation 2"), "{of:?}");
        let none = Situation { record: None, is_fenced: false, keeps: None, ..of };
        assert!(none.promise().sentence.contains("no host has had the volume"), "{none:?}");
        assert_eq!(of.is_dead("a"), "lamina vault '/my vault' host-is-dead a");
    }

    #[test]
    fn a_vault_that_fences_needs_no_person() {
        let (me, host) = (holder("b", 2), holder("a", 1));
        let record = record(Some(host), &[], None);
        let of = Situation {
            volume: "vm1",
            device: "top",
            vault: "nbd://store/disk",
            me: &me,
            record: Some(&record),
            is_silent: false,
            is_fenced: false,
            fences: true,
            keeps: None,
        };
        let keeps = Keeps { is_through: true, ..Keeps::default() };
        for (of, words) in [
            (
                Situation { keeps: Some(&keeps), ..of },
                "if this host is silent, another one takes over by itself",
            ),
            (of, "when a gives it away, or, if it is silent, by itself"),
            (Situation { is_silent: true, ..of }, "this host takes over with the first read or write"),
        ] {
            let said = of.promise();
            assert_eq!((said.takeover, said.command), (Takeover::Automatic, None));
            assert!(said.sentence.contains(words), "{}", said.sentence);
        }
    }

    #[test]
    fn a_volume_of_one_host() {
        assert!(alone(false, 0).contains("is on the store"));
        assert!(alone(true, 0).contains("on this flash alone"));
        assert_eq!(alone(true, 1 << 20), "1MiB are on this flash alone, and lost with it");
    }
}
