//! Making and opening legs, legs that join and are detached.

use super::background::Rebuild;
use super::findings::Findings;
use super::regions::nothing_of;
use super::roles::{Wanted, end_is_gone};
use super::state::State;
use super::state_record::{Kept, KeptLeg};
use super::{Content, LegState, Legs, Role, is_corrupt};
use lamina_block::{Begin, Build, Bytes, Error, ErrorKind, Geometry, Io, Node, Result, Signal, Time, Zero};
use lamina_kit::flaw::flawed;
use lamina_kit::intent::{Area, Intent, Shape, Sheets};
use lamina_kit::single_flight::SingleFlight;
use lamina_kit::state_record;
use serde_json::Value;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

/// The most bytes that are zeroed at once.
pub(super) const ZERO_MAX: u64 = 1 << 30;
/// Legs up to so many bytes are zeroed when they are made, also where zeroes have to be written for that.
const SMALL: u64 = 256 << 20;
/// Bytes that the intent takes at the end of a device whose size is not known yet.
const AREA: u64 = 96 << 10;

/// The demands of a kind on its legs.
pub struct Needs {
    pub kind: &'static str,
    /// With fewer legs in sync bytes are lost.
    pub legs: usize,
    /// So many of the devices, at the end of `over`, are spares when the device is made.
    pub spares: usize,
    /// Bytes of each leg that belong together, such as a unit of a stripe.
    pub unit: u64,
    pub region: Option<u64>,
    pub timeout: Duration,
    /// Bytes for each second of a rebuild.
    pub limit: Option<u64>,
    /// The number of columns, where each leg has a column because its bytes differ from those of the others;
    /// otherwise 0. It never changes; a device that joins is a spare.
    pub columns: usize,
    /// Bytes after the intent for the layer when the device is made, and the record of the layer then.
    pub tail: u64,
    pub own: Value,
}

/// Bytes of each leg that can be used, in whole `unit`s, if the smallest has `all` and the layer's own takes `tail`.
pub(super) fn usable(all: u64, tail: u64, unit: u64) -> u64 {
    all.saturating_sub(AREA + tail) / unit * unit
}

/// The geometry of all legs that are there, taken together; the size is that of the smallest.
fn shape(with: &Build) -> Result<Geometry> {
    let here = with.children.iter().filter(|child| !child.is_absent()).map(|child| child.geometry());
    let smallest = here.clone().map(|g| g.size).min().unwrap_or(0);
    let all = here.reduce(Geometry::and).map(|all| all.with_size(smallest));
    all.ok_or_else(|| Error::offline("none of its devices is there"))
}

/// Fails unless at least one of the `devices` is a leg.
pub fn not_all_spares(devices: usize, spares: usize) -> Result<()> {
    match spares < devices {
        true => Ok(()),
        false => Err(Error::invalid("spares: all of its devices; at least one must be a leg")),
    }
}

/// Refuses a device that is smaller than the used bytes of each leg.
pub fn enough(child: &Node, size: u64) -> Result<()> {
    let has = child.geometry().size;
    if has >= size {
        return Ok(());
    }
    let message = format!("over: {} has {} and {} are needed", child.name(), Bytes(has), Bytes(size));
    Err(Error::new(ErrorKind::NoSpace, message))
}

fn no_state_record() -> Error {
    Error::unsupported(
        "the device must remember which of its devices have every byte: give the file a [hierarchy] table",
    )
}

impl Legs {
    /// Opens the legs, or makes them. The layer gives its [`Content`] later.
    pub async fn build(needs: Needs, with: &Build) -> Result<Rc<Legs>> {
        let keep = with.keep.clone().ok_or_else(no_state_record)?;
        let all = shape(with)?;
        let kept = match (with.begin, keep.get()) {
            (Begin::Open, Some(kept)) => Kept::read(needs.kind, &kept)?,
            (Begin::Open, None) => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "it is not known which of its devices have every byte",
                ));
            }
            (Begin::Format | Begin::Adopt, _) => first(&needs, with, &all)?,
        };
        let shape = Shape { id: kept.id, size: kept.size, region: kept.region };
        let intent = Intent::new(&with.env, shape, all.block)?;
        let area = kept.size.next_multiple_of(u64::from(all.block).max(4096));
        let legs = legs(with, &kept, &needs, area..area + intent.area() + kept.tail, all.block)?;
        let wanted = Wanted {
            needs: needs.legs,
            legs: match needs.columns {
                0 => legs.len().saturating_sub(needs.spares).max(needs.legs),
                columns => columns,
            },
            columns: needs.columns,
            timeout: needs.timeout,
        };
        let mut state = State::new(legs, wanted, kept.size, all.block);
        state.set_to_zero(kept.zero);
        state.findings = Findings::new(kept.scrub.map(|position| position.min(kept.size)));
        state.rebuild = Rebuild::new(needs.limit);
        state.check().map_err(|what| state_record::corrupt("legs", &what))?;
        // Nothing is known of a leg that was detached: it could come back with other bytes, or with none.
        let is_kept = |child: &Rc<Node>| kept.legs.iter().any(|leg| leg.device == child.name());
        let as_kept = kept.legs.len() == with.children.len() && with.children.iter().all(is_kept);
        let made = Rc::new_cyclic(|me| Legs {
            me: me.clone(),
            name: with.name.clone(),
            kind: needs.kind,
            env: Rc::clone(&with.env),
            keep,
            nodes: with.children.to_vec(),
            state: RefCell::new(state),
            unit: needs.unit,
            tail: kept.tail,
            own: RefCell::new(kept.own.clone()),
            block: all.block,
            content: RefCell::new(Weak::<Nothing>::new()),
            intent,
            locks: Rc::default(),
            read_only: all.read_only,
            recording: SingleFlight::new(with.begin == Begin::Open && as_kept),
            moved: Signal::new(),
            last: Cell::new(Time(0)),
            tasks: Rc::default(),
            rebuild: RefCell::default(),
            scrub: RefCell::default(),
        });
        match with.begin {
            Begin::Open => made.open(&kept).await?,
            Begin::Format => made.format().await?,
            Begin::Adopt => made.adopt().await?,
        }
        Ok(made)
    }

    /// Sets the content; background work may begin.
    pub fn start(self: &Rc<Self>, content: Weak<dyn Content>) {
        self.content.replace(content);
        self.wake();
        if self.ask(|state| state.findings.position().is_some()) && !self.read_only {
            self.start_scrub(None);
        }
    }

    /// Takes in the state that a crash, or another process, has left.
    async fn open(&self, kept: &Kept) -> Result<()> {
        self.load_intent().await?;
        for leg in self.in_sync().collect::<Vec<_>>() {
            if self.nodes[leg].is_absent() {
                self.put_out(leg, &Error::offline("the device is not there"));
            }
        }
        let needed = |leg: usize| self.nodes[leg].is_absent() && self.is_last(leg);
        if self.in_sync().any(needed) || self.covered(None) < self.wanted().needs {
            return Err(self.lost(kept));
        }
        let was = |leg: usize| {
            let known = kept.legs.iter().find(|known| known.device == self.nodes[leg].name());
            known.map(|known| known.is)
        };
        let dirty = self.intent.regions();
        self.change(|state| state.open(kept.needs_resync.as_deref(), &dirty, was));
        if !(0..self.nodes.len()).all(|leg| was(leg).is_none_or(|was| was == self.role(leg))) {
            self.changed();
        }
        match self.read_only {
            true => Ok(()),
            false => self.record().await,
        }
    }

    /// Loads the intent from the legs. Each leg in sync has all of it, so a damaged copy does not matter, as
    /// long as another leg has a good one.
    async fn load_intent(&self) -> Result<()> {
        let (mut known, mut damaged, mut gone) = (Sheets::default(), Vec::new(), Vec::new());
        for leg in 0..self.nodes.len() {
            if self.role(leg) == Role::Spare || self.has_nothing(leg) || self.nodes[leg].is_absent() {
                continue;
            }
            let Some(area) = self.area(leg) else { continue };
            match self.intent.load(&area).await {
                Ok(sheets) if sheets.gone && !flawed("a leg without its end is trusted") => {
                    gone.push((leg, area))
                }
                Ok(sheets) => {
                    if self.role(leg) == Role::Sync {
                        known.join(&sheets);
                    }
                    damaged.extend((!sheets.are_whole()).then_some((leg, area)));
                }
                Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
                Err(e) if is_corrupt(&e) => damaged.push((leg, area)),
                Err(e) if self.role(leg) == Role::Sync => self.put_out(leg, &e),
                Err(_) => {}
            }
        }
        damaged.extend(self.put_out_cut(gone));
        let is_sync = |(leg, _): &(usize, Area)| self.role(*leg) == Role::Sync;
        if !known.are_whole() && damaged.iter().any(is_sync) {
            tracing::warn!(device = %self.name, "the intent is not known everywhere: there every region \
                counts as written");
            self.intent.mark_damaged(&known);
        }
        for (leg, area) in damaged.into_iter().filter(|_| !self.read_only) {
            if let Err(e) = self.intent.write_all(&area).await {
                self.put_out(leg, &e);
            }
        }
        Ok(())
    }

    /// The intents of these legs are gone: the legs were cut short, or replaced by other devices. Their bytes
    /// are not trusted, if there are enough legs without them; otherwise they come back, as damaged legs.
    fn put_out_cut(&self, gone: Vec<(usize, Area)>) -> Vec<(usize, Area)> {
        let is_gone = |leg: &usize| gone.iter().any(|(other, _)| other == leg);
        if self.ask(|state| state.roles().covered_by(|leg| !is_gone(&leg))) < self.wanted().needs {
            return gone;
        }
        for (leg, area) in gone {
            self.put_out(leg, &end_is_gone().on(area.0.name()));
            self.end_is_gone(leg);
        }
        Vec::new()
    }

    /// Why the device cannot be opened.
    fn lost(&self, kept: &Kept) -> Error {
        let Wanted { needs, columns, .. } = self.wanted();
        if columns > 0 {
            let here = self.ask(|state| state.roles().covered_by(|leg| !self.nodes[leg].is_absent()));
            return Error::offline(format!(
                "only {here} of its {columns} parts are there, and {needs} are needed"
            ));
        }
        let good = kept.legs.iter().filter(|leg| leg.is == Role::Sync).map(|leg| &leg.device[..]);
        Error::offline(format!(
            "no device that has every byte is there (that would be {}); the others are older, and are not used",
            good.collect::<Vec<_>>().join(", ")
        ))
    }

    /// Makes all legs the same: by zeroing them where that is quick, otherwise by copying the first one.
    async fn format(&self) -> Result<()> {
        let mut zeroed = true;
        for leg in self.in_sync() {
            zeroed = zeroed && zero(&self.nodes[leg], self.size()).await?;
        }
        if !zeroed {
            self.intent.set_all();
            self.mark_for_resync(&(0..self.size()));
        }
        self.intent.write_all(self).await?;
        self.flush().await
    }

    /// The first leg has the bytes of the device from now on; they are copied to the others.
    async fn adopt(&self) -> Result<()> {
        self.those(|leg| leg.role == Role::Stale).for_each(|leg| self.end_is_gone(leg));
        self.intent.write_all(self).await?;
        self.record().await
    }

    /// Waits until every byte is on legs other than those called `names`, and detaches these.
    pub async fn evacuate(self: Rc<Self>, names: Vec<String>) -> Result<()> {
        let is_named = |leg: usize| names.iter().any(|name| name == self.nodes[leg].name());
        self.change(|state| state.of_roles(|roles| roles.detach(is_named)));
        self.take_spares();
        let is_there = |leg: usize| !self.nodes[leg].is_absent();
        let waits = || {
            !self.is_closing()
                && !self.ask(|state| state.rebuild.is_halted())
                && self.ask(|state| state.roles().is_catching_up(is_there))
        };
        self.wake();
        while waits() {
            self.moved.wait().await;
        }
        if waits() || !self.ask(|state| state.roles().can_detach()) {
            self.change(|state| state.of_roles(|roles| roles.cancel_detach()));
            return Err(Error::invalid(
                "the devices that are to stay do not have every byte: let others join, or rejoin, first",
            ));
        }
        let now = self.env.now();
        if self.change(|state| state.detached(now)) {
            self.changed();
        }
        self.record().await
    }
}

/// The first state record.
fn first(needs: &Needs, with: &Build, all: &Geometry) -> Result<Kept> {
    let unit = u64::from(all.block).max(4096).max(needs.unit);
    let adopts = with.begin == Begin::Adopt;
    let size = match adopts {
        true => with.child().geometry().size,
        false => usable(all.size, needs.tail, unit),
    };
    let region = needs.region.unwrap_or_else(|| Shape::region_for(size));
    let id = with.env.random();
    let asked = Shape { id, size, region };
    if size == 0 {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!("over: {} is too few: a device needs more than {}", Bytes(all.size), Bytes(AREA)),
        ));
    }
    asked.check()?;
    let page = u64::from(all.block).max(4096);
    let area = size.next_multiple_of(page) + asked.area(page as usize) + needs.tail;
    let room = with.children.iter().any(|child| child.geometry().size >= area);
    if !room || all.size < size {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "over: {} is in use to its end, so another device must have room for the intent: {}",
                with.child().name(),
                Bytes(area)
            ),
        ));
    }
    let mut kept = Kept::new(needs.kind, id, size, region);
    (kept.tail, kept.own) = (needs.tail, needs.own.clone());
    let spares_from = with.children.len().saturating_sub(needs.spares);
    kept.legs = with
        .children
        .iter()
        .enumerate()
        .map(|(number, child)| match number {
            number if number >= spares_from => leg(child, Role::Spare, None, None),
            _ if needs.columns > 0 => leg(child, Role::Sync, None, Some(number)),
            0 => leg(child, Role::Sync, None, None),
            _ if adopts => leg(child, Role::Stale, Some(0), None),
            _ => leg(child, Role::Sync, None, None),
        })
        .collect();
    Ok(kept)
}

fn leg(child: &Rc<Node>, is: Role, copied: Option<u64>, column: Option<usize>) -> KeptLeg {
    KeptLeg { device: child.name().to_owned(), is, copied, column }
}

/// The legs: those that are known, and those that have joined, whose bytes are all stale. Recorded legs that
/// are not among the children were detached.
fn legs(
    with: &Build,
    kept: &Kept,
    needs: &Needs,
    area: std::ops::Range<u64>,
    block: u32,
) -> Result<Vec<LegState>> {
    let want = match needs.columns {
        0 => with.children.len().saturating_sub(needs.spares),
        columns => columns,
    };
    let active: Vec<&KeptLeg> = with
        .children
        .iter()
        .filter_map(|child| kept.legs.iter().find(|leg| leg.device == child.name()))
        .filter(|leg| matches!(leg.is, Role::Sync | Role::Stale) && !with.leaving.contains(&leg.device))
        .collect();
    let mut free = (0..needs.columns).filter(|column| active.iter().all(|leg| leg.column != Some(*column)));
    let mut active = active.len();
    let mut legs = Vec::new();
    for child in &with.children {
        let known = kept.legs.iter().find(|leg| leg.device == child.name());
        let (role, copied, column) = match known {
            Some(leg) => (leg.is, leg.copied, leg.column),
            None if active < want => {
                active += 1;
                (Role::Stale, Some(0), free.next())
            }
            None => (Role::Spare, None, None),
        };
        let size = child.geometry().size;
        let is_short = !child.is_absent() && size < kept.size && role != Role::Failed;
        if is_short && known.is_none() {
            enough(child, kept.size)?;
        }
        // All bytes of a leg that was cut short are stale; it may have its size back one day.
        let (role, copied) = match (is_short, role) {
            (true, Role::Sync | Role::Stale) => (Role::Stale, Some(0)),
            _ => (role, copied),
        };
        let has_area = child.is_absent() || is_short || size >= area.end;
        let is_out_of_sync = matches!(role, Role::Stale | Role::Failed);
        legs.push(LegState {
            role,
            here: false,
            stale: is_out_of_sync.then(|| nothing_of(kept.size, block)),
            copied: copied.filter(|_| is_out_of_sync),
            area: has_area.then_some(area.start),
            column,
            detaching: false,
            since: with.env.now(),
            why: is_short.then(end_is_gone),
        });
    }
    Ok(legs)
}

/// Makes the first `size` bytes zeroes, if that is quick.
async fn zero(node: &Rc<Node>, size: u64) -> Result<bool> {
    let how = Zero { unmap: true, fast: size > SMALL, ..Zero::default() };
    let mut from = 0;
    while from < size {
        let to = size.min(from + ZERO_MAX);
        match node.submit(Io::zero(from..to, how)).await {
            Ok(()) => from = to,
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// A content before the layer gives its own.
struct Nothing;

impl Content for Nothing {
    fn agree(self: Rc<Self>, _: std::ops::Range<u64>) -> lamina_block::Pending {
        Box::pin(async { Ok(()) })
    }
    fn right(
        self: Rc<Self>,
        _: std::ops::Range<u64>,
        _: usize,
        _: Vec<usize>,
    ) -> lamina_block::Pending<lamina_block::Buf> {
        Box::pin(async { Err(Error::offline("the layer is not open")) })
    }
    fn compare(self: Rc<Self>, _: std::ops::Range<u64>, _: Option<usize>) -> lamina_block::Pending {
        Box::pin(async { Ok(()) })
    }
}
