//! The shape of an export: a server's description, checked and made into a [`Geometry`], and kept over reconnects.

use super::handshake::Facts;
use super::link::Connected;
use crate::wire::{self, flag};
use lamina_block::{Error, ErrorKind, Geometry, Result};
use std::cell::Cell;

/// Block sizes and abilities of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Able {
    /// As a device. Its size is in whole blocks.
    pub geometry: Geometry,
    /// The most data in one command, in bytes; a multiple of the block.
    pub payload: u32,
    /// The server has a flush.
    pub flush: bool,
    /// The server fails a zeroing that would be slow, when asked to.
    pub fast_zero: bool,
    /// A flush on one connection covers writes on all.
    pub multi: bool,
    /// Block status can be asked for.
    pub status: bool,
    /// The server ends the requests of a lost connection before it lets the client go on.
    pub fence: bool,
}

impl Able {
    /// A server's description, if it makes sense.
    pub fn new(facts: &Facts) -> Result<Able> {
        let (minimum, preferred, payload) = facts.blocks.unwrap_or((1, 4096, wire::PAYLOAD_MAX));
        if !minimum.is_power_of_two() || minimum > 64 << 10 || !preferred.is_power_of_two() {
            return Err(Error::new(
                ErrorKind::Offline,
                format!("the server's block sizes ({minimum}, {preferred}) make no sense"),
            ));
        }
        let block = minimum.max(512);
        let has = |flags: u16| facts.flags & flags == flags;
        // A server without flags of its own has an export that is only read and written.
        let geometry = Geometry {
            size: facts.size / u64::from(block) * u64::from(block),
            block,
            optimal: preferred.clamp(block, 1 << 20),
            stripe: 0,
            read_only: has(flag::READ_ONLY),
            discard: has(flag::SEND_TRIM),
            zero: has(flag::SEND_WRITE_ZEROES),
            fua: has(flag::SEND_FUA),
        };
        let payload = payload.min(wire::PAYLOAD_MAX) / block * block;
        if payload == 0 {
            return Err(Error::offline("the server takes no data at all"));
        }
        Ok(Able {
            geometry,
            payload,
            flush: has(flag::SEND_FLUSH),
            fast_zero: has(flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO),
            multi: has(flag::CAN_MULTI_CONN),
            status: facts.context.is_some(),
            fence: facts.fenced,
        })
    }
}

/// The export when it was first seen, or at the user's last refresh.
pub struct Shape {
    able: Cell<Option<Able>>,
    /// Its size in bytes when a connection was last made.
    there: Cell<u64>,
}

impl Shape {
    /// Not seen yet.
    pub const fn new() -> Shape {
        Shape { able: Cell::new(None), there: Cell::new(0) }
    }

    /// Takes over `able` as the export's shape.
    pub fn set(&self, able: Able) {
        self.able.set(Some(able));
        self.there.set(able.geometry.size);
    }

    /// The export's shape, once it was seen.
    pub fn get(&self) -> Option<Able> {
        self.able.get()
    }

    /// The server's latest size in bytes, which is not taken over yet if it differs.
    pub fn there(&self) -> u64 {
        self.there.get()
    }

    /// A new connection must lead to the same export: it may have grown or gained abilities, but not shrunk or lost
    /// some.
    pub fn check(&self, connected: Connected) -> Result<Connected> {
        let changed = Able::new(&connected.facts).and_then(|now| {
            let Some(before) = self.get() else { return Ok(()) };
            before.lives_on_in(&now)?;
            let (was, is) = (before.geometry.size, now.geometry.size);
            if self.there.replace(is) != is {
                tracing::warn!(was, is, "the export has grown: `lamina ctl DEVICE refresh` takes it over");
            }
            Ok(())
        });
        match changed {
            Ok(()) => Ok(connected),
            Err(e) => {
                connected.close();
                Err(e)
            }
        }
    }
}

impl Able {
    fn lives_on_in(&self, now: &Able) -> Result<()> {
        let (was, is) = (self.geometry, now.geometry);
        let changed =
            |what: String| Err(Error::offline(format!("the server came back with another export: {what}")));
        if is.size < was.size {
            return changed(format!("the size was {} bytes and is {}", was.size, is.size));
        }
        if is.read_only && !was.read_only {
            return changed("the export is read-only now".to_owned());
        }
        if is.block > was.block || now.payload < self.payload {
            return changed("its block sizes allow less than before".to_owned());
        }
        let lost = [
            ("discard", was.discard && !is.discard),
            ("zeroing", was.zero && !is.zero),
            ("forced unit access", was.fua && !is.fua),
            ("flush", self.flush && !now.flush),
            ("fast zeroing", self.fast_zero && !now.fast_zero),
            ("block status", self.status && !now.status),
            ("fence for lost connections", self.fence && !now.fence),
        ];
        match lost.iter().find(|(_, lost)| *lost) {
            Some((what, _)) => changed(format!("the export has no {what} any more")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(size: u64, flags: u16) -> Facts {
        Facts { size, flags: flags | flag::HAS_FLAGS, ..Facts::default() }
    }

    #[test]
    fn sizes_and_abilities() {
        let able = Able::new(&facts(1_000_000, flag::SEND_FUA | flag::SEND_TRIM)).expect("fine");
        let g = able.geometry;
        assert_eq!((g.size, g.block, g.optimal), (999_936, 512, 4096));
        assert_eq!((g.fua, g.discard, g.zero, g.read_only), (true, true, false, false));
        assert!(!able.flush && !able.multi && !able.fast_zero);
        let blocks = |blocks| Able::new(&Facts { blocks: Some(blocks), ..facts(1 << 20, 0) });
        let large = blocks((4096, 65536, u32::MAX)).expect("fine");
        assert_eq!((large.geometry.block, large.geometry.optimal), (4096, 65536));
        assert_eq!(large.payload, wire::PAYLOAD_MAX);
        for bad in [(0, 4096, 1 << 25), (3, 4096, 1 << 25), (1 << 17, 1 << 17, 1 << 25), (512, 5000, 1 << 25)]
        {
            assert!(blocks(bad).is_err(), "{bad:?}");
        }
        assert!(blocks((4096, 4096, 100)).is_err());
    }

    #[test]
    fn an_export_may_grow_but_not_shrink_or_forget() {
        let able = |size, flags| Able::new(&facts(size, flags)).expect("fine");
        let before = able(1 << 20, flag::SEND_FLUSH);
        assert!(before.lives_on_in(&able(1 << 21, flag::SEND_FLUSH | flag::SEND_TRIM)).is_ok());
        for (size, flags, word) in [
            (1 << 19, flag::SEND_FLUSH, "bytes"),
            (1 << 20, 0, "flush"),
            (1 << 20, flag::SEND_FLUSH | flag::READ_ONLY, "read-only"),
        ] {
            let e = before.lives_on_in(&able(size, flags)).expect_err("changed");
            assert!(e.message().contains(word), "{e}");
        }
    }
}
