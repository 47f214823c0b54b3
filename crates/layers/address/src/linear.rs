//! `linear`: a part of a device.
//!
//! Byte `x` here is byte `offset + x` of the device below, always: growing the device below adds at the end only.
//!
//! ```text
//!                 0 ──── size                 here
//!                 │  │  │  │
//!      0 ───── offset ──────────── end        below
//! ```
//!
//! Keys:
//! * `over`: the device below.
//! * `offset` (0): where the part begins, such as "1MiB"; a multiple of the logical block below.
//! * `size` (the rest): how long it is. Without it the device grows with the one below.
//!
//! The layer only moves addresses: requests are handed on and not seen again. It deliberately does not check
//! that parts of one device do not overlap.

use lamina_block::{
    Build, Bytes, Config, Consent, Effect, Error, Geometry, Io, Layer, Made, Manage, Node, Over, Passthrough,
    Pending, Result, Step, Zones,
};
use lamina_kit::size::device_size;
use serde::Deserialize;
use std::ops::Range;
use std::rc::Rc;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default)]
    offset: Bytes,
    size: Option<Bytes>,
}

impl Config for Keys {
    const KIND: &'static str = "linear";
    const SUMMARY: &'static str = "a part of a device";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=1;

    fn check(&self, _: &Over<'_>) -> Result<()> {
        if !self.offset.0.is_multiple_of(512) {
            return Err(Error::invalid(format!("offset: {} is not a multiple of 512 bytes", self.offset)));
        }
        self.size.map_or(Ok(()), |size| device_size(size, 512).map(drop))
    }

    fn part(&self) -> Option<Range<u64>> {
        let end = self.size.map_or(u64::MAX, |size| self.offset.0.saturating_add(size.0));
        Some(self.offset.0..end)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Rc::new(Linear::new(self, with.child())?) as Made) })
    }
}

struct Linear {
    child: Rc<Node>,
    offset: u64,
    /// The rest of the device when `None`.
    size: Option<u64>,
}

impl Linear {
    fn new(keys: Keys, child: Rc<Node>) -> Result<Linear> {
        let (below, offset) = (child.geometry(), keys.offset.0);
        let name = child.name();
        if !offset.is_multiple_of(below.block as u64) {
            let block = below.block;
            return Err(Error::invalid(format!(
                "offset: not a multiple of the {block} byte blocks of {name}"
            )));
        }
        let size = keys.size.map(|size| device_size(size, below.block)).transpose()?;
        let rest = below.size.saturating_sub(offset);
        if rest == 0 {
            return Err(Error::invalid(format!("offset: {name} ends at {}", Bytes(below.size))));
        }
        if size.is_some_and(|size| size > rest) {
            return Err(Error::invalid(format!("size: {name} has only {} from there on", Bytes(rest))));
        }
        Ok(Linear { child, offset, size })
    }
}

impl Layer for Linear {
    fn geometry(&self) -> Geometry {
        let below = self.child.geometry();
        let rest = below.size.saturating_sub(self.offset);
        below.with_size(self.size.map_or(rest, |size| size.min(rest))).shifted(self.offset)
    }

    fn zones(&self) -> Option<Zones> {
        self.child.zones()?.part(self.offset, self.geometry().size)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        io.move_to(self.offset + io.at.start);
        Step::Forward(Rc::clone(&self.child))
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::shifted(&self.child, self.offset)
    }
}

impl Manage for Linear {
    fn consent(self: Rc<Self>, _child: &Rc<Node>, _effect: &Effect) -> Consent {
        Consent::Agrees
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({ "offset": "16KiB", "size": "64KiB" }), 1)
    }

    #[test]
    fn moves_addresses_only() {
        let below = memory("1MiB");
        let part = over("linear", json!({"offset": "64KiB", "size": "128KiB"}), &[&below]);
        write(&part, 0, b'a', 4096);
        write(&part, (128 << 10) - 512, b'z', 512);
        assert_eq!(read(&below, 64 << 10, 4096), [b'a'; 4096]);
        assert_eq!(read(&below, (192 << 10) - 512, 512), [b'z'; 512]);
        assert_eq!(extents(&part, 0..128 << 10), [data(128 << 10)]);
        assert!(submit(&part, Io::read(128 << 10, Buf::zeroed(512))).is_err());
    }

    #[test]
    fn takes_the_rest_by_default_and_refuses_what_does_not_fit() {
        let below = memory("1MiB");
        assert_eq!(over("linear", json!({"offset": 512}), &[&below]).geometry().size, (1 << 20) - 512);
        for (keys, key) in [
            (json!({"offset": 100}), "offset"),
            (json!({"offset": "1MiB"}), "offset"),
            (json!({"offset": "2MiB"}), "offset"),
            (json!({"size": "1025KiB"}), "size"),
            (json!({"offset": 512, "size": "1MiB"}), "size"),
            (json!({"size": 0}), "size"),
            (json!({"size": 1000}), "size"),
        ] {
            let message = refused("linear", keys, &[&below]);
            assert!(message.starts_with(key), "{message}");
        }
    }
}
