//! `stripe`: devices side by side, in units distributed in rotation (RAID 0).
//!
//! Unit `u` here is unit `u / n` of device `u % n`: growing all devices adds at the end only. The smallest
//! device decides the size, rounded down to whole units; the rest of the others is not used. In a persistent
//! hierarchy the devices of the rotation, and their order, are recorded with it, and the order in `over`
//! means nothing from then on.
//!
//! ```text
//!      │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │      here: units in order
//!        a   b   c   a   b   c
//!      a: │ 0 │ 3 │                   below: units far apart here
//!      b: │ 1 │ 4 │                   lie side by side there
//!      c: │ 2 │ 5 │
//! ```
//!
//! Keys:
//! * `over`: the devices, in order.
//! * `unit` ("32KiB"): the length of a unit, a power of two, at least the largest logical block among the devices. It
//!   cannot change once the stripe holds data.
//!
//! A request inside one unit is handed on. The parts of a larger one lie side by side on each device, so that
//! each device gets one request at most, of any length; all at once. The layer deliberately has no
//! redundancy: one lost device loses all.
//!
//! The device changes while it is served (only in a persistent hierarchy, but for the first):
//! * All devices grow: so does this one, at once.
//! * A name is added to `over`: every unit is redistributed over all devices, and then this one is larger.
//! * A name is taken out of `over`: every unit is redistributed over those that stay, and then the device is
//!   detached. A device that replaces it in the same change gets its data. The rest must have room for all.
//! * `resize SIZE force=true` makes the device smaller, and the bytes beyond are lost: so a device is removed
//!   without another. `resize` without a size makes it as large as its devices allow.
//!
//! Redistribution is a job (`move`) that can be watched, slowed, paused and cancelled; a move goes on after a
//! restart or a crash, and after `move` if it was cancelled. A request waits for at most 4 MiB to be moved.

use crate::reshape::{Band, Joined, Layout, Location, Plan, Shape, Spread, UNIT_MAX, VERBS, Way};
use lamina_block::{
    Buf, Build, Bytes, Children, Config, Error, ErrorKind, Extent, Growth, Io, Made, Op, Over, Pending,
    Request, Result, Step, Traits,
};
use lamina_kit::fan_out;
use serde::Deserialize;
use std::cmp::Ordering;
use std::ops::Range;
use std::rc::Rc;

/// The keys; see the module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    #[serde(default = "unit_default")]
    unit: Bytes,
}

fn unit_default() -> Bytes {
    Bytes(32 << 10)
}

impl Config for Keys {
    const KIND: &'static str = "stripe";
    const SUMMARY: &'static str = "devices side by side, in units (RAID 0)";
    const CHILDREN: std::ops::RangeInclusive<usize> = 1..=usize::MAX;
    const TRAITS: Traits = Traits {
        keeps: true,
        growth: Growth::Each,
        verbs: VERBS,
        elsewhere: &["raid0", "raid-0", "striped"],
        ..Traits::NONE
    };

    fn check(&self, _: &Over<'_>) -> Result<()> {
        Units(self.unit).check(512)
    }

    fn build(self, with: Build) -> Pending<Made> {
        Box::pin(async move { Ok(Spread::build(Units(self.unit), with).await? as Made) })
    }
}

/// The kind, with the length of a unit.
struct Units(Bytes);

impl Units {
    /// Refuses a length that is impossible over logical blocks of `block` bytes.
    fn check(&self, block: u64) -> Result<()> {
        let unit = self.0.0;
        match unit.is_power_of_two() && (block..=UNIT_MAX).contains(&unit) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "unit: {} is not a power of two from {} to {}",
                self.0,
                Bytes(block),
                Bytes(UNIT_MAX)
            ))),
        }
    }

    /// A layout of `size` bytes over all of `legs`, in their order; over all their room if `size` is `None`.
    fn over(&self, legs: &[usize], children: &Children, size: Option<u64>) -> Result<Layout> {
        let unit = self.0.0;
        let smallest = legs.iter().map(|leg| children[*leg].geometry().size).min().unwrap_or(0);
        let room = (smallest / unit * unit).saturating_mul(legs.len() as u64);
        let len = size.unwrap_or(room);
        if len > room {
            let names: Vec<&str> = legs.iter().map(|leg| children[*leg].name()).collect();
            return Err(Error::new(
                ErrorKind::NoSpace,
                format!(
                    "over: it has {}, and {} have room for {}; make it smaller first (resize {room} \
                     force=true; the data beyond is lost)",
                    Bytes(len),
                    names.join(", "),
                    Bytes(room)
                ),
            ));
        }
        let on = legs.iter().map(|leg| Location { child: *leg, there: 0 }).collect();
        let mut layout = Layout::default();
        layout.push(Band { len, unit, on })?;
        Ok(layout)
    }
}

/// The children in rotation.
fn legs(layout: &Layout) -> Vec<usize> {
    layout.bands().iter().flat_map(|band| band.on.iter().map(|location| location.child)).collect()
}

impl Shape for Units {
    const KIND: &'static str = "stripe";
    type Way = Stripe;

    fn begin(&self, children: &Children) -> Result<Layout> {
        let unit = self.0.0;
        self.check(fan_out::geometry(children).block.into())?;
        if let Some(small) = children.iter().find(|child| child.geometry().size < unit) {
            return Err(Error::invalid(format!("unit: {} is smaller than one unit", small.name())));
        }
        self.over(&(0..children.len()).collect::<Vec<_>>(), children, None)
    }

    fn accepts(&self, layout: &Layout) -> Result<()> {
        match layout.bands() {
            [band] if band.unit != self.0.0 => Err(Error::invalid(format!(
                "unit: the device was made with {}, and its data lies like that",
                Bytes(band.unit)
            ))),
            [band] if band.on.iter().all(|location| location.there == 0) => Ok(()),
            _ => Err(Error::new(ErrorKind::Corrupt, "the kept layout is not that of a stripe")),
        }
    }

    fn widest(&self, layout: &Layout, children: &Children) -> Result<Layout> {
        Ok(layout.stretch(layout.stretches(children)))
    }

    /// Wider: unit `u` moves from row `u / n` to an earlier one, whose units have all been moved.
    fn join(&self, layout: &Layout, children: &Children, spare: &[usize]) -> Result<Joined> {
        let mut legs = legs(layout);
        legs.extend(spare);
        let to = self.over(&legs, children, Some(layout.size()))?;
        Ok(Joined::After(Plan { to, up: true }))
    }

    /// Each of `spare` replaces a device that goes. If more go than come, those after them move up, and each
    /// unit moves to a later row, whose units have all been moved if the move begins at the end.
    fn plan_evacuation(
        &self,
        layout: &Layout,
        children: &Children,
        gone: &[usize],
        spare: &[usize],
    ) -> Result<Plan> {
        let mut spare = spare.iter().copied();
        let before = legs(layout);
        let stays = |leg: &usize| if gone.contains(leg) { spare.next() } else { Some(*leg) };
        let mut legs: Vec<usize> = before.iter().filter_map(stays).collect();
        legs.extend(spare);
        let to = self.over(&legs, children, Some(layout.size()))?;
        Ok(Plan { to, up: legs.len() >= before.len() })
    }
}

/// Units in rotation.
struct Stripe {
    /// The devices of the rotation.
    legs: Children,
    unit_shift: u32,
}

impl Stripe {
    fn unit(&self) -> u64 {
        1 << self.unit_shift
    }

    #[inline]
    fn location(&self, at: u64) -> Location {
        let (unit, n) = (at >> self.unit_shift, self.legs.len() as u64);
        let within = at & (self.unit() - 1);
        Location { child: (unit % n) as usize, there: ((unit / n) << self.unit_shift) + within }
    }

    /// The bytes of a child before byte `end` here, which is at `location`.
    fn before(&self, child: usize, end: u64, location: Location) -> u64 {
        let within = end & (self.unit() - 1);
        match child.cmp(&location.child) {
            Ordering::Less => location.there - within + self.unit(),
            Ordering::Equal => location.there,
            Ordering::Greater => location.there - within,
        }
    }

    /// The children that `at` touches, in the order of addresses, and the one range of each.
    fn touched(&self, at: &Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let n = self.legs.len();
        let (start, end) = (at.start, at.end);
        let (first, last) = (self.location(start), self.location(end));
        (first.child..n)
            .chain(0..first.child)
            .map(move |child| (child, self.before(child, start, first)..self.before(child, end, last)))
            .take_while(|(_, there)| !there.is_empty())
    }

    /// The pieces of a buffer for `at` that belong to the touched child number `index`, joined.
    fn column(&self, bytes: &Buf, at: &Range<u64>, index: usize) -> Buf {
        let (within, row) = (self.unit() - 1, (self.legs.len() as u64) << self.unit_shift);
        let mut column = Buf::empty();
        let mut unit = (at.start & !within) + ((index as u64) << self.unit_shift);
        while unit < at.end {
            let piece = unit.max(at.start)..at.end.min((unit | within) + 1);
            column.append_part(bytes, (piece.start - at.start) as usize..(piece.end - at.start) as usize);
            unit += row;
        }
        column
    }

    /// Submits the one request of each touched child.
    fn split(&self, io: &Io) -> impl Iterator<Item = Request> {
        let part = move |(index, (child, at)): (usize, (usize, Range<u64>))| {
            let part = |op| Io { op, at, client: io.client };
            self.legs[child].submit(match &io.op {
                Op::Read(bytes) => part(Op::Read(self.column(bytes, &io.at, index))),
                Op::Write(bytes, durability) => {
                    part(Op::Write(self.column(bytes, &io.at, index), *durability))
                }
                Op::Zero(how) => part(Op::Zero(*how)),
                Op::Discard => part(Op::Discard),
                Op::Flush => part(Op::Flush),
            })
        };
        self.touched(&io.at).enumerate().map(part)
    }
}

impl Way for Stripe {
    fn new(layout: &Layout, children: &Children) -> Stripe {
        let unit_shift = layout.bands().first().map_or(0, |band| band.unit.trailing_zeros());
        Stripe { legs: legs(layout).into_iter().map(|leg| Rc::clone(&children[leg])).collect(), unit_shift }
    }

    // A call of its own would cost 5% of a request through it (docs/price-of-layers.md).
    #[inline(always)]
    fn submit(&self, io: &mut Io, _children: &Children) -> Step {
        if (io.at.start ^ (io.at.end - 1)) >> self.unit_shift == 0 {
            let Location { child, there } = self.location(io.at.start);
            io.move_to(there);
            return Step::Forward(Rc::clone(&self.legs[child]));
        }
        if let Err(e) = fan_out::refuse_fast_zero(io, self.legs.iter()) {
            return e.into();
        }
        fan_out::together(self.split(io))
    }

    fn extents(self: Rc<Self>, at: Range<u64>, _children: Children) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            let mut below = Vec::new();
            for (leg, there) in self.touched(&at) {
                below.push(Runs::new(self.legs[leg].extents(there).await?));
            }
            Ok(self.interleave(at, below))
        })
    }
}

/// The runs of one child that have not been merged yet.
struct Runs {
    list: std::vec::IntoIter<Extent>,
    run: Option<Extent>,
}

impl Runs {
    fn new(list: Vec<Extent>) -> Runs {
        let mut list = list.into_iter();
        Runs { run: list.next(), list }
    }

    /// Takes `len` bytes, which may be of several runs.
    fn take(&mut self, mut len: u64, into: &mut Vec<Extent>) {
        while let Some(run) = self.run.as_mut().filter(|_| len > 0) {
            let now = len.min(run.len);
            Extent::push(into, now, run.state);
            len -= now;
            run.len -= now;
            if run.len == 0 {
                self.run = self.list.next();
            }
        }
    }
}

impl Stripe {
    /// Merges the children's runs in the order of the units here. Where all are in the same state for many
    /// units, these are taken in one step, so that a large empty device costs little.
    fn interleave(&self, at: Range<u64>, mut below: Vec<Runs>) -> Vec<Extent> {
        let (unit, n) = (self.unit(), self.legs.len());
        let (mut merged, mut next, mut index) = (Vec::new(), at.start, 0);
        while next < at.end {
            let rows =
                if index == 0 && next % unit == 0 && below.len() == n { same_rows(&below, unit) } else { 0 };
            if rows > 0 {
                for runs in &mut below {
                    runs.take(rows * unit, &mut merged);
                }
                next += rows * unit * n as u64;
            } else {
                let end = at.end.min((next | (unit - 1)) + 1);
                below[index].take(end - next, &mut merged);
                (next, index) = (end, (index + 1) % n);
            }
        }
        merged
    }
}

/// How many whole units all of `below` have in front of them in the same state.
fn same_rows(below: &[Runs], unit: u64) -> u64 {
    let front = |runs: &Runs| runs.run.map_or((None, 0), |run| (Some(run.state), run.len / unit));
    let (state, _) = front(&below[0]);
    below.iter().map(front).map(|(s, rows)| if s == state { rows } else { 0 }).min().unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::reshape::tests::format::walk;
    use crate::testing::*;

    pub fn subject() -> Subject {
        Subject::layer(&Kind::of::<super::Keys>(), json!({ "unit": "4KiB" }), 3)
    }

    fn three() -> (Vec<Rc<Node>>, Rc<Node>) {
        let legs: Vec<_> = ["1MiB", "900KiB", "1MiB"].map(memory).to_vec();
        let node = over("stripe", json!({"unit": "4KiB"}), &legs.iter().collect::<Vec<_>>());
        (legs, node)
    }

    #[test]
    fn the_smallest_rules() {
        let (_, striped) = three();
        assert_eq!(striped.geometry().size, 3 * (900 << 10));
        assert_eq!(striped.geometry().optimal, 4096);
    }

    #[test]
    fn every_unit_is_in_its_place() {
        let (legs, striped) = three();
        let bytes = pattern(12 * 4096);
        write_bytes(&striped, 0, &bytes);
        for unit in 0..12usize {
            let there = read(&legs[unit % 3], (unit / 3 * 4096) as u64, 4096);
            assert_eq!(there, bytes[unit * 4096..][..4096], "unit {unit}");
        }
    }

    #[test]
    fn each_device_gets_one_request_at_most() {
        let (legs, striped) = three();
        for (start, len) in [(512u64, 40960usize), (0, 12288), (4096, 8192), (3584, 1024), (8192, 4096)] {
            let before: Vec<u64> = legs.iter().map(writes).collect();
            let bytes = pattern(len);
            write_bytes(&striped, start, &bytes);
            assert_eq!(read(&striped, start, len), bytes);
            for (leg, before) in legs.iter().zip(before) {
                assert!(writes(leg) <= before + 1);
            }
        }
    }

    fn writes(node: &Rc<Node>) -> u64 {
        node.stats().of(OpKind::Write).completed.get()
    }

    #[test]
    fn zeroes_and_discards_are_split_too() {
        let (legs, striped) = three();
        write(&striped, 0, 7, 24576);
        submit(&striped, Io::zero(4096..20480, Zero::default())).unwrap();
        let left = read(&striped, 0, 24576);
        assert!(left[..4096].iter().all(|b| *b == 7) && left[20480..].iter().all(|b| *b == 7));
        assert!(left[4096..20480].iter().all(|b| *b == 0));
        submit(&striped, Io::discard(0..24576)).unwrap();
        assert!(legs.iter().all(|leg| leg.stats().of(OpKind::Discard).completed.get() == 1));
    }

    #[test]
    fn runs_come_back_in_order() {
        let (legs, striped) = three();
        // Memory is allocated in chunks of 64 KiB: the first 16 units of the second leg.
        write(&legs[1], 0, 1, 512);
        let size = striped.geometry().size;
        let mut expected = Vec::new();
        for unit in 0..size / 4096 {
            let state = if unit % 3 == 1 && unit / 3 < 16 { ExtentState::Data } else { ExtentState::Hole };
            Extent::push(&mut expected, 4096, state);
        }
        assert_eq!(extents(&striped, 0..size), expected);
        assert_eq!(extents(&striped, 512..9216), [hole(3584), data(4096), hole(1024)]);
        assert_eq!(extents(&striped, 4096 * 60..size), [hole(size - 4096 * 60)]);
    }

    #[test]
    fn runs_of_a_huge_empty_device_are_quick() {
        let legs = [0; 2].map(|_| built("memory", json!({"size": 1u64 << 60})));
        let striped = over("stripe", json!({}), &[&legs[0], &legs[1]]);
        assert_eq!(extents(&striped, 0..1 << 61), [hole(1 << 61)]);
    }

    #[test]
    fn a_wrong_unit_is_refused() {
        let leg = built("memory", json!({"size": "1MiB", "block": 4096}));
        for unit in ["2KiB", "3MiB", "12KiB", "2MiB", "4GiB"] {
            assert!(refused("stripe", json!({"unit": unit}), &[&leg]).starts_with("unit"), "{unit}");
        }
    }

    /// Every change of up to four devices to up to four, whichever stay.
    #[test]
    fn nothing_is_written_where_something_lies_that_has_not_been_moved() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let children: Vec<_> = names.iter().map(|_| memory("64KiB")).collect();
        let units = Units(Bytes(4096));
        let mut tried = 0;
        for (before, gone, come) in (1..=4usize)
            .flat_map(|before| (0..1u32 << before).map(move |gone| (before, gone)))
            .flat_map(|(before, gone)| (0..=3usize).map(move |come| (before, gone, come)))
        {
            let gone: Vec<usize> = (0..before).filter(|leg| gone >> leg & 1 == 1).collect();
            let spare: Vec<usize> = (before..before + come).collect();
            let after = before - gone.len() + come;
            if after == 0 || gone.is_empty() && come == 0 {
                continue;
            }
            let legs: Vec<usize> = (0..before).collect();
            let size = before.min(after) as u64 * (64 << 10) - 4096 - 512;
            let from = units.over(&legs, &children, Some(size)).unwrap();
            let plan = match gone.is_empty() {
                false => units.plan_evacuation(&from, &children, &gone, &spare).unwrap(),
                true => match units.join(&from, &children, &spare).unwrap() {
                    Joined::After(plan) => plan,
                    Joined::Longer(_) => panic!("a stripe does not get longer"),
                },
            };
            assert!(!gone.iter().any(|leg| plan.to.uses(*leg)));
            let windows = walk(&children, &from, plan);
            assert!(windows <= 40, "{windows} windows from {before} without {gone:?} and with {come} more");
            tried += 1;
        }
        assert_eq!(tried, 112);
    }

    #[test]
    fn one_broken_device_fails_the_request_and_the_rest_completes() {
        let (good, bad) = (memory("1MiB"), over("fault", json!({"rules": [{}]}), &[&memory("1MiB")]));
        let striped = over("stripe", json!({"unit": "4KiB"}), &[&good, &bad]);
        let e = submit(&striped, Io::write(0, Buf::zeroed(8192), Durability::Cached)).unwrap_err();
        assert_eq!((e.device(), e.range()), (Some("fault"), Some(&(0..4096))));
        assert_eq!(writes(&good), 1);
    }
}
