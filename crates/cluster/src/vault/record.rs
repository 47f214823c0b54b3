//! A record of the vault, and its bytes, version 1 (`docs/formats/vault.md`).
//!
//! Invariant: what is decoded has a right checksum, and says nothing impossible.

use lamina_block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use uuid::Uuid;

/// The longest record, in bytes.
pub const RECORD_MAX: usize = 16 << 10;
/// The first word of a record.
const MAGIC: &str = "lamina-vault";
const FORMAT: u32 = 1;
/// Flashes that have the writes of a volume, at most: the holder's, and those of three peers.
pub const MEMBERS_MAX: usize = 4;
/// The longest name of a host, or of a volume.
pub const NAME_MAX: usize = 64;

/// True for a name of a host or a volume: 1 to 64 letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_valid)
}

/// A host, as the one that has a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// Its name, for people. It says nothing about what the host has.
    pub host: String,
    /// Its flash, which says what the host has.
    pub flash: Option<Uuid>,
}

/// Where the writes of a volume are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Mode {
    /// On the store, all that was acknowledged.
    Through,
    /// On each of these flashes, all that was acknowledged and the store lacks.
    Back {
        /// The flashes; the holder's is one of them, unless it has failed.
        members: Vec<Uuid>,
    },
    /// As `Back`, and on their way to the store: the volume is recovered.
    Recovering {
        /// The flashes.
        members: Vec<Uuid>,
    },
}

impl Mode {
    /// The flashes that have what the store lacks.
    pub fn members(&self) -> &[Uuid] {
        match self {
            Mode::Through => &[],
            Mode::Back { members } | Mode::Recovering { members } => members,
        }
    }
}

/// What the vault says of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The volume.
    pub volume: Uuid,
    /// Its name, for people.
    pub name: String,
    /// One more than that of the record before.
    pub version: u64,
    /// Drawn for this record: its writer knows it by that.
    pub nonce: Uuid,
    /// Who has the volume; nobody after an orderly end.
    pub holder: Option<Holder>,
    /// Rises with each change of hands. Writes of an older one count no more.
    pub generation: u64,
    /// The generation in which the holder's flash began to have the volume, without another one in between: what that
    /// flash had of it before is older than the store.
    pub since: u64,
    /// Where its writes are.
    pub mode: Mode,
    /// The store has the writes up to this serial number, when the record was made.
    pub checkpoint: u64,
    /// The holder before.
    pub previous: Option<Holder>,
    /// Requests of this generation may still reach the store.
    pub unfenced: Option<u64>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.flash {
            Some(flash) => write!(f, "{} (flash {flash})", self.host),
            None => f.write_str(&self.host),
        }
    }
}

fn corrupt(why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("no valid record of a vault: {why}"))
}

impl Record {
    /// Fails if it says something impossible.
    pub fn check(&self) -> Result<()> {
        let names = [&self.holder, &self.previous].into_iter().flatten();
        if !is_name(&self.name) {
            return Err(corrupt(format!("{:?} is no name of a volume", self.name)));
        }
        if let Some(holder) = names.into_iter().find(|holder| !is_name(&holder.host)) {
            return Err(corrupt(format!("{:?} is no name of a host", holder.host)));
        }
        let members = self.mode.members();
        let is_twice = |(i, member)| members[..i].contains(member);
        if self.mode != Mode::Through && !(1..=MEMBERS_MAX).contains(&members.len()) {
            return Err(corrupt(format!("{} members are not from 1 to {MEMBERS_MAX}", members.len())));
        }
        if members.iter().enumerate().any(is_twice) {
            return Err(corrupt("a flash is a member twice"));
        }
        if [self.version, self.generation].contains(&u64::MAX)
            || self.version == 0
            || self.since > self.generation
            || self.unfenced.is_some_and(|generation| generation >= self.generation)
        {
            return Err(corrupt("its numbers contradict each other"));
        }
        Ok(())
    }

    /// Its bytes: a line with the checksum of what follows, then JSON.
    pub fn encode(&self) -> Vec<u8> {
        let json = serde_json::to_string_pretty(self).expect("it has no map with other keys than strings");
        format!("{MAGIC} {FORMAT} {:08x}\n{json}\n", crc32c::crc32c(json.as_bytes())).into_bytes()
    }

    /// The record that these bytes are. `Corrupt` if they are none, `Unsupported` if a later Lamina wrote them.
    pub fn decode(bytes: &[u8]) -> Result<Record> {
        let text = std::str::from_utf8(bytes).map_err(|_| corrupt("it is no text"))?;
        let (head, json) = text.split_once('\n').ok_or_else(|| corrupt("its first line has no end"))?;
        let words: Vec<&str> = head.split(' ').collect();
        let &[MAGIC, format, checksum] = &words[..] else {
            return Err(corrupt(format!("its first line is not \"{MAGIC} VERSION CHECKSUM\"")));
        };
        match format.parse::<u32>() {
            Ok(FORMAT) => {}
            Ok(later) => {
                let message =
                    format!("a record of a vault of format {later}: this is a Lamina for format {FORMAT}");
                return Err(Error::unsupported(message));
            }
            Err(_) => return Err(corrupt("its first line has no format")),
        }
        let json = json.strip_suffix('\n').ok_or_else(|| corrupt("it is cut off"))?;
        if format!("{:08x}", crc32c::crc32c(json.as_bytes())) != checksum {
            return Err(corrupt("its checksum is another one"));
        }
        let record: Record = serde_json::from_str(json).map_err(corrupt)?;
        record.check()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let uuid = Uuid::from_u128;
        Record {
            volume: uuid(1),
            name: "vm1".into(),
            version: 7,
            nonce: uuid(2),
            holder: Some(Holder { host: "a".into(), flash: Some(uuid(3)) }),
            generation: 4,
            since: 2,
            mode: Mode::Back { members: vec![uuid(3), uuid(5)] },
            checkpoint: 1000,
            previous: Some(Holder { host: "b.example".into(), flash: None }),
            unfenced: Some(3),
        }
    }

    #[test]
    fn bytes_are_read_as_they_were_written() {
        let modes = [Mode::Through, Mode::Recovering { members: vec![Uuid::from_u128(9)] }, record().mode];
        for mode in modes {
            let of = Record { mode, ..record() };
            assert_eq!(Record::decode(&of.encode()), Ok(of));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let bytes = record().encode();
        for at in 0..bytes.len() {
            assert!(Record::decode(&bytes[..at]).is_err(), "cut at {at}");
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(Record::decode(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn what_is_impossible_is_refused() {
        let host = |host: &str| Some(Holder { host: host.into(), flash: None });
        let twice = Mode::Back { members: vec![Uuid::from_u128(1); 2] };
        let many = Mode::Back { members: (0..5).map(Uuid::from_u128).collect() };
        let cases = [
            (Record { holder: host(""), ..record() }, "no name"),
            (Record { previous: host("a b"), ..record() }, "no name"),
            (Record { mode: twice, ..record() }, "twice"),
            (Record { mode: many, ..record() }, "not from 1 to 4"),
            (Record { mode: Mode::Back { members: vec![] }, ..record() }, "not from 1 to 4"),
            (Record { name: "vm 1".into(), ..record() }, "no name of a volume"),
            (Record { version: 0, ..record() }, "contradict"),
            (Record { since: 5, ..record() }, "contradict"),
            (Record { unfenced: Some(4), ..record() }, "contradict"),
            (Record { generation: u64::MAX, ..record() }, "contradict"),
        ];
        for (wrong, words) in cases {
            let e = Record::decode(&wrong.encode()).expect_err(words);
            assert!(e.message().contains(words) && e.kind() == ErrorKind::Corrupt, "{e}");
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let text = String::from_utf8(record().encode()).expect("text").replacen(" 1 ", " 2 ", 1);
        let e = Record::decode(text.as_bytes()).expect_err("later");
        assert!(e.kind() == ErrorKind::Unsupported && e.message().contains("format 2"), "{e}");
    }

    #[test]
    fn the_golden_file() {
        let golden = include_str!("../../tests/golden/vault-1.txt");
        assert_eq!(Record::decode(golden.as_bytes()), Ok(record()));
        assert_eq!(String::from_utf8(record().encode()).expect("text"), golden);
    }
}
