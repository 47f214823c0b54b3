//! `zoned`: a host-managed zoned block device of this machine (shingled disk, ZNS). A sink.
//!
//! Writes go where the write pointer of a zone is, and nowhere else: the device stands below a `sequentialize`, whose
//! segments are then zones.
//!
//! ```text
//!      device   │ conventional     │ end │ zone │ zone │ … │ smaller zone
//!               0 ────────────────       ───────────────
//!      shown    │ conventional     │ zone │ zone │ … │ end │
//! ```
//!
//! The last 64 KiB of the conventional zones are shown behind all others: a member of a hierarchy has the second copy
//! of its superblock at its end. A last zone that is smaller than the others is not used.
//!
//! Keys:
//! * `path`: the block device, such as `/dev/sdb`, which is opened without the page cache.
//!
//! Invariants:
//! * A write that is not at the write pointer of its zone, goes beyond its end, or opens more zones than the device
//!   allows, fails with an error that says so, and changes nothing.
//! * A discard of a whole zone resets the zone. What is behind a write pointer reads as zeroes and is a hole.
//!
//! The sink deliberately has no zone append, and opens no device without conventional zones: superblocks are written in
//! place. `lamina check` and `lamina inspect` look at the device as it is, and do not find the second copy of a
//! superblock.

use lamina_block::{
    Build, Config, Error, Extent, Geometry, Healed, Io, Judge, Layer, Made, Manage, Node, Outside,
    Passthrough, Pending, Result, Step, Traits, Zones,
};
use lamina_kit::fan_out::{Runs, is_flush, together};
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

/// Conventional bytes that are shown at the end: a copy of a superblock (`docs/formats/superblock.md`), which begins at
/// the last multiple of as much that has space behind it.
const TAIL: u64 = 64 << 10;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    path: PathBuf,
}

impl Config for Keys {
    const KIND: &'static str = "zoned";
    const SUMMARY: &'static str = "a host-managed zoned block device of this machine, below sequentialize";
    const CHILDREN: std::ops::RangeInclusive<usize> = 0..=0;
    const TRAITS: Traits = Traits {
        member: true,
        elsewhere: &["zbd", "zns", "smr", "host-managed"],
        outside: &[Outside::file("path")],
        ..Traits::NONE
    };

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move {
            let path = with.path(&self.path);
            let disk = with.env.open_zoned(path.clone()).await?;
            let zones = disk.zones().map(check).transpose();
            let zones =
                zones.map_err(|e| Error::new(e.kind(), format!("{}: {}", path.display(), e.message())))?;
            let zones =
                zones.ok_or_else(|| Error::unsupported(format!("{} has no zones", path.display())))?;
            let below = Node::new(&with.name, "zoned device", Rc::clone(&with.env), disk);
            Ok(Rc::new(Zoned { below, zones }) as Made)
        })
    }
}

/// The zones as they are shown, if the device can be used.
fn check(zones: Zones) -> Result<Zones> {
    if !zones.size.is_multiple_of(TAIL) || !zones.first.is_multiple_of(TAIL) {
        let size = zones.size;
        return Err(Error::unsupported(format!("its zones of {size} bytes are no multiple of {TAIL}")));
    }
    if zones.first <= TAIL {
        let message = "a conventional zone is missing, and superblocks and checkpoints need one. A device that is all \
                       sequential zones (most ZNS devices) cannot be used";
        return Err(Error::unsupported(message));
    }
    Ok(Zones { first: zones.first - TAIL, ..zones })
}

/// The device as it is shown.
struct Zoned {
    /// The device as it is.
    below: Rc<Node>,
    /// Their places as they are shown.
    zones: Zones,
}

impl Zoned {
    /// The parts of a range, each with its place on the device.
    fn runs(&self, at: &Range<u64>) -> Runs {
        let Range { start, end } = self.zones.range();
        let mut runs = Runs::default();
        for (shown, place) in [(0..start, 0), (start..end, start + TAIL), (end..end + TAIL, start)] {
            let part = shown.start.max(at.start)..shown.end.min(at.end);
            if !part.is_empty() {
                runs.add(&part, place + part.start - shown.start);
            }
        }
        runs
    }
}

impl Layer for Zoned {
    fn geometry(&self) -> Geometry {
        self.below.geometry().with_size(self.zones.range().end + TAIL)
    }

    fn zones(&self) -> Option<Zones> {
        Some(self.zones)
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if is_flush(io) {
            return Step::Forward(Rc::clone(&self.below));
        }
        let runs = self.runs(&io.at);
        let mut places = runs.iter();
        match (places.next(), places.next()) {
            (Some((_, place)), None) => {
                io.move_to(place);
                Step::Forward(Rc::clone(&self.below))
            }
            _ => together(runs.iter().map(|(part, to)| self.below.submit(io.part(part, to)))),
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let mut extents = Vec::new();
            for (part, to) in self.runs(&at).iter() {
                for extent in self.below.extents(to..to + (part.end - part.start)).await? {
                    Extent::push(&mut extents, extent.len, extent.state);
                }
            }
            Ok(extents)
        })
    }

    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            let runs = self.runs(&at);
            match runs.iter().next() {
                Some((part, to)) if part == at => {
                    self.below.heal(to..to + (part.end - part.start), is_right).await
                }
                Some(_) | None => Ok(None),
            }
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move { self.below.close().await })
    }
}

impl Manage for Zoned {
    fn info(&self) -> Value {
        self.below.info()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{Buf, Durability, ErrorKind, Kind, Subject, data, hole, json, simulated};
    use lamina_sim::{DiskOptions, Image};

    const OF: Zones = Zones { first: 256 << 10, count: 3, size: 64 << 10, capacity: 64 << 10, open_max: 2 };

    /// The conventional zones of a device, which have no rules.
    struct Conventional(Rc<Node>);

    impl Layer for Conventional {
        fn geometry(&self) -> Geometry {
            self.0.geometry().with_size(OF.first - TAIL)
        }

        fn submit(self: Rc<Self>, _: &mut Io) -> Step {
            Step::Forward(Rc::clone(&self.0))
        }

        fn passthrough(&self) -> Passthrough {
            Passthrough::to(&self.0)
        }
    }

    impl Manage for Conventional {}

    pub fn subject() -> Subject {
        Subject::new("zoned", |rig| async move {
            rig.sim_zoned(0, OF);
            let zoned = rig.build(&Kind::of::<Keys>(), "zoned", json!({ "path": "disk0" }), vec![]).await?;
            Ok(rig.node("top", "conventional", Rc::new(Conventional(zoned))))
        })
    }

    #[test]
    fn the_rules_of_zones_are_told() {
        simulated(|world| async move {
            let options = DiskOptions::new(OF.range().end + (16 << 10));
            world.sim.put_disk("/dev/zoned", Image::zoned(options, OF));
            let node = world.over("zoned", json!({ "path": "/dev/zoned" }), &[]).await;
            let (first, size) = (OF.first - TAIL, OF.size);
            assert_eq!((node.geometry().size, node.zones()), (448 << 10, Some(Zones { first, ..OF })));
            let write = |at: u64, len: u64, value: u8| {
                let (node, buf) = (Rc::clone(&node), Buf::from_vec(vec![value; len as usize]));
                async move { node.submit(Io::write(at, buf, Durability::Cached)).await }
            };
            write(first, 8192, 1).await.expect("at the pointer");
            write(first + 3 * size, TAIL, 2).await.expect("the end is conventional");
            write(0, first, 3).await.expect("so is the beginning");
            for (at, len, kind, says) in [
                (first, 4096, ErrorKind::Invalid, "the write pointer of zone 0, which is at 270336"),
                (first + 8192, size, ErrorKind::Invalid, "does not lie within zone 0"),
                (
                    first + size + 512,
                    512,
                    ErrorKind::Invalid,
                    "the write pointer of zone 1, which is at 327680",
                ),
            ] {
                let e = write(at, len, 4).await.expect_err("a rule is broken");
                assert!(e.kind() == kind && e.message().contains(says), "{e:?}");
                assert!(world.sim.take_finding().is_some_and(|finding| finding.contains(says)));
            }
            write(first + size, 4096, 5).await.expect("the second zone");
            let e = write(first + 2 * size, 4096, 6).await.expect_err("too many are open");
            assert!(
                e.kind() == ErrorKind::Busy && e.message().contains("zone 2 cannot be opened: 2 zones are")
            );
            assert!(world.sim.take_finding().is_some());
            let all = node.extents(0..448 << 10).await.expect("extents");
            let zone = |written: u64| [data(written), hole(size - written)];
            let [a, b] = zone(4096);
            assert_eq!(all, [data(first + 8192), hole(size - 8192), a, hole(b.len + size), data(TAIL)]);
            node.submit(Io::discard(first..first + size)).await.expect("reset");
            write(first, 4096, 7).await.expect("at the beginning again");
            let into = Buf::from_vec(vec![0xEE; 448 << 10]);
            node.submit(Io::read(0, into.clone())).await.expect("read");
            let bytes = into.to_vec();
            let at = |place: u64| bytes[place as usize];
            assert_eq!([0, first - 1, first, first + 4096].map(at), [3, 3, 7, 0]);
            assert_eq!(
                [first + size, first + size + 4096, first + 3 * size, bytes.len() as u64 - 1].map(at),
                [5, 0, 2, 2]
            );
        });
    }

    #[test]
    fn a_device_that_cannot_be_used_is_refused() {
        simulated(|world| async move {
            let options = DiskOptions::new(1 << 20);
            world.sim.put_disk("/dev/plain", Image::blank(options));
            world.sim.put_disk("/dev/all", Image::zoned(options, Zones { first: 0, ..OF }));
            world
                .sim
                .put_disk("/dev/odd", Image::zoned(options, Zones { size: 40 << 10, capacity: 4096, ..OF }));
            for (path, says) in [
                ("/dev/plain", "no sequential zones"),
                ("/dev/all", "a conventional zone is missing"),
                ("/dev/odd", "no multiple of 65536"),
                ("/dev/none", "there is no simulated disk"),
            ] {
                let refused = world.try_over("zoned", json!({ "path": path }), &[]).await.err();
                assert!(refused.as_ref().is_some_and(|e| e.contains(says)), "{path}: {refused:?}");
            }
        });
    }
}
