//! One partition: its ranges on the device, and the layer that shows them.

use lamina_block::{
    Consent, Effect, Error, Extent, Geometry, Healed, Io, Judge, Layer, Manage, Node, Passthrough, Pending,
    Place, Request, Result, Step,
};
use lamina_kit::fan_out;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// A run of a partition's bytes.
#[derive(Clone, Debug)]
struct Piece {
    /// The range in the partition.
    here: Range<u64>,
    /// The address on the device below.
    there: u64,
}

/// A partition, shared by the table and its views.
pub struct Part {
    name: String,
    number: Option<usize>,
    /// In the order of their addresses here, without gaps.
    pieces: RefCell<Vec<Piece>>,
    /// Open views.
    views: Cell<usize>,
    /// The partition is about to be renamed, or deleted: no view may be opened.
    views_blocked: Cell<bool>,
    /// Pieces below that it had while it was viewed: a request in flight may still write to them.
    lost: RefCell<Vec<Range<u64>>>,
}

impl Part {
    /// A partition in `ranges` below; `number` is its number in a GPT.
    pub fn new(name: &str, number: Option<usize>, ranges: &[Range<u64>]) -> Rc<Part> {
        let part = Part {
            name: name.into(),
            number,
            pieces: RefCell::default(),
            views: Cell::new(0),
            views_blocked: Cell::new(false),
            lost: RefCell::default(),
        };
        part.set_ranges(ranges);
        Rc::new(part)
    }

    /// The name.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// The number in a GPT, from 1.
    pub fn number(&self) -> Option<usize> {
        self.number
    }

    /// The name or number to ask for it by.
    pub fn called(&self) -> String {
        match self.number {
            Some(number) => format!("{number} ({:?})", self.name),
            None => self.name.clone(),
        }
    }

    /// Sets the `ranges` of its bytes below.
    pub fn set_ranges(&self, ranges: &[Range<u64>]) {
        let mut end = 0;
        let piece = |at: &Range<u64>| {
            let here = end..end + (at.end - at.start);
            end = here.end;
            Piece { here, there: at.start }
        };
        let pieces = ranges.iter().map(piece).collect();
        self.pieces.replace(pieces);
    }

    /// The ranges of its bytes below, in order.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let range = |p: &Piece| p.there..p.there + (p.here.end - p.here.start);
        self.pieces.borrow().iter().map(range).collect()
    }

    pub fn size(&self) -> u64 {
        self.pieces.borrow().last().map_or(0, |last| last.here.end)
    }

    /// True while a view of it is open.
    pub fn is_viewed(&self) -> bool {
        self.views.get() > 0
    }

    /// Lets no view be opened until the result is dropped.
    pub fn block_views(self: &Rc<Self>) -> ViewsBlocked {
        self.views_blocked.set(true);
        ViewsBlocked(Rc::clone(self))
    }

    /// The partition has lost `ranges`. Views that are open may still write to them.
    pub fn lose(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if self.is_viewed() {
            self.lost.borrow_mut().extend(ranges);
        }
    }

    /// Ranges that must not be reused before its views are closed.
    pub fn lost(&self) -> Vec<Range<u64>> {
        self.lost.borrow().clone()
    }

    /// The info of the partition.
    pub fn show(&self) -> Value {
        let pieces: Vec<Value> =
            self.ranges().iter().map(|at| json!([at.start, at.end - at.start])).collect();
        let (size, viewed) = (self.size(), self.is_viewed());
        let mut shown = json!({ "name": self.name, "size": size, "pieces": pieces, "viewed": viewed });
        if let Some(number) = self.number {
            shown["number"] = number.into();
        }
        shown
    }

    fn opened(&self) {
        self.views.set(self.views.get() + 1);
    }

    fn closed(&self) {
        self.views.set(self.views.get() - 1);
        if !self.is_viewed() {
            self.lost.take();
        }
    }
}

/// No view of a partition is opened while this lives.
pub struct ViewsBlocked(Rc<Part>);

impl Drop for ViewsBlocked {
    fn drop(&mut self) {
        self.0.views_blocked.set(false);
    }
}

/// A view of a partition.
pub struct View {
    part: Rc<Part>,
    child: Rc<Node>,
    open: Cell<bool>,
}

impl View {
    pub fn new(part: Rc<Part>, child: Rc<Node>) -> Result<View> {
        if part.views_blocked.get() {
            return Err(Error::invalid(format!("name: {:?} is being renamed or deleted", part.name)));
        }
        part.opened();
        Ok(View { part, child, open: Cell::new(true) })
    }

    fn end(&self) {
        if self.open.replace(false) {
            self.part.closed();
        }
    }

    /// The pieces that `at` touches: the part of it in each, and its address below.
    fn parts(&self, at: Range<u64>) -> Vec<(Range<u64>, u64)> {
        let pieces = self.part.pieces.borrow();
        let first = pieces.partition_point(|piece| piece.here.end <= at.start);
        let touched = pieces[first..].iter().take_while(|piece| piece.here.start < at.end);
        let part = |piece: &Piece| {
            let part = at.start.max(piece.here.start)..at.end.min(piece.here.end);
            let there = piece.there + (part.start - piece.here.start);
            (part, there)
        };
        touched.map(part).collect()
    }

    fn split(&self, io: &Io) -> Step {
        if let Err(e) = self.reaches(&io.at).and(fan_out::refuse_fast_zero(io, [&self.child].into_iter())) {
            return e.into();
        }
        let parts = self.parts(io.at.clone());
        let submit =
            |(part, there): (Range<u64>, u64)| -> Request { self.child.submit(io.part(part, there)) };
        fan_out::together(parts.into_iter().map(submit))
    }

    /// Fails if the partition was cut while the request was in flight.
    fn reaches(&self, at: &Range<u64>) -> Result<()> {
        match at.end > self.part.size() {
            true => Err(Error::invalid("the partition ends before that").at(at.clone())),
            false => Ok(()),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.end();
    }
}

impl Layer for View {
    fn geometry(&self) -> Geometry {
        let below = self.child.geometry().with_size(self.part.size());
        let pieces = self.part.pieces.borrow();
        pieces.iter().fold(below, |below, piece| below.shifted(piece.there.abs_diff(piece.here.start)))
    }

    fn submit(self: Rc<Self>, io: &mut Io) -> Step {
        if fan_out::is_flush(io) {
            return Step::Forward(Rc::clone(&self.child));
        }
        let pieces = self.part.pieces.borrow();
        let first = pieces.partition_point(|piece| piece.here.end <= io.at.start);
        match pieces.get(first) {
            Some(piece) if fan_out::contains(&piece.here, &io.at) => {
                io.move_to(piece.there + (io.at.start - piece.here.start));
                Step::Forward(Rc::clone(&self.child))
            }
            _ => {
                drop(pieces);
                self.split(io)
            }
        }
    }

    fn passthrough(&self) -> Passthrough {
        Passthrough::None
    }

    fn extents(self: Rc<Self>, at: Range<u64>) -> Pending<Vec<Extent>> {
        Box::pin(async move {
            self.reaches(&at)?;
            let mut merged = Vec::new();
            for (part, there) in self.parts(at) {
                for run in self.child.extents(there..there + (part.end - part.start)).await? {
                    Extent::push(&mut merged, run.len, run.state);
                }
            }
            Ok(merged)
        })
    }

    fn places(self: Rc<Self>, at: u64) -> Pending<Vec<Place>> {
        let parts = self.parts(at..at + 1);
        let places = parts.iter().map(|(_, there)| Place::data(&self.child, *there)).collect();
        Box::pin(async { Ok(places) })
    }

    /// For bytes that lie in one piece.
    fn heal(self: Rc<Self>, at: Range<u64>, is_right: Judge) -> Pending<Option<Healed>> {
        Box::pin(async move {
            self.reaches(&at)?;
            match self.parts(at)[..] {
                [(ref part, there)] => {
                    self.child.heal(there..there + (part.end - part.start), is_right).await
                }
                _ => Ok(None),
            }
        })
    }

    fn close(self: Rc<Self>) -> Pending {
        Box::pin(async move {
            self.end();
            Ok(())
        })
    }
}

impl Manage for View {
    fn consent(self: Rc<Self>, _child: &Rc<Node>, effect: &Effect) -> Consent {
        match &effect.view {
            Some(view) if *view != self.part.name() => Consent::Untouched,
            Some(_) | None => Consent::Agrees,
        }
    }

    fn detach(self: Rc<Self>) -> Pending {
        Box::pin(async {
            Err(Error::unsupported(
                "a partition cannot be taken away from under those who use it: its bytes are elsewhere below",
            ))
        })
    }
}
