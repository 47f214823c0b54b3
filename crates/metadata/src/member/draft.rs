//! The next state of a hierarchy: its members, its description, the evicted members.

use super::Member;
use super::records::{self, Trailer};
use super::roster::{Failed, Roster, Survives};
use crate::superblock::{DESCRIPTION_MAX, Superblock};
use lamina_block::{Error, ErrorKind, Result};
use std::rc::Rc;

/// The most bytes that are kept free for lines about members that are evicted.
const RESERVE_MAX: usize = 4096;

/// The next state of a hierarchy.
#[derive(Clone)]
pub(super) struct Draft {
    pub members: Vec<Rc<Member>>,
    pub file: String,
    pub trailer: Trailer,
    pub survives: Survives,
}

impl Draft {
    /// The same without members that could not be written; an error if the hierarchy does not survive their loss, or if
    /// they are not members yet.
    pub fn without(mut self, failed: Vec<Failed>, now: &Roster) -> Result<Draft> {
        let mut first = None;
        for (member, e) in failed {
            let name = member.name();
            if now.member(&name).is_none_or(|known| !Rc::ptr_eq(&known, &member)) {
                return Err(e.on(&name));
            }
            tracing::warn!(member = name, error = %e, "cannot be written: going on without it");
            self.members.retain(|other| !Rc::ptr_eq(other, &member));
            first.get_or_insert(e.on(&name));
            self.trailer.evicted.insert(name, now.generation());
        }
        match (self.check_survival(), first) {
            (Err(_), Some(e)) => Err(e),
            (done, _) => done.map(|()| self),
        }
    }

    /// Fails if the hierarchy is not whole without the members that are evicted.
    pub fn check_survival(&self) -> Result<()> {
        let evicted: Vec<&str> = self.trailer.evicted.keys().map(String::as_str).collect();
        if evicted.is_empty() || !self.members.is_empty() && (self.survives)(&evicted) {
            return Ok(());
        }
        Err(Error::offline(format!(
            "the hierarchy would not be whole without {}, which failed or is evicted",
            evicted.join(" and ")
        )))
    }

    /// Fails with `NoSpace` if there is no space for it, or none left for later lines about evicted members.
    pub fn check_space(&self) -> Result<()> {
        let line = |member: &Rc<Member>| {
            records::join("", &Trailer { evicted: [(member.name(), u64::MAX)].into(), ..Trailer::default() })
                .len()
        };
        let reserve = self.members.iter().map(line).sum::<usize>().min(RESERVE_MAX);
        let len = records::join(&self.file, &self.trailer).len();
        if len + reserve <= DESCRIPTION_MAX {
            return Ok(());
        }
        let space = DESCRIPTION_MAX - reserve;
        let message = format!(
            "the hierarchy and what its devices keep would take {len} bytes, and its members have space for {space}"
        );
        Err(Error::new(ErrorKind::NoSpace, message))
    }

    /// The superblocks that make its members a hierarchy. Their numbers are the places of their names among those of
    /// all members, evicted ones included.
    pub fn superblocks(&self, generation: u64) -> Vec<Superblock> {
        let description = records::join(&self.file, &self.trailer);
        let mut names: Vec<String> = self.members.iter().map(|member| member.name()).collect();
        names.extend(self.trailer.evicted.keys().cloned());
        names.sort();
        let numbered = |member: &Rc<Member>| {
            let superblock = member.superblock();
            Superblock {
                index: names.iter().position(|name| *name == superblock.name).unwrap_or_default() as u32,
                members: names.len() as u32,
                generation,
                clean: false,
                description: description.clone(),
                ..superblock
            }
        };
        self.members.iter().map(numbered).collect()
    }
}
