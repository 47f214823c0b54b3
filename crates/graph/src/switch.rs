//! Putting other layers under nodes at work, all of them or none.
//!
//! ```text
//!   flush ─▶ hold, top down ─▶ flush ─▶ settle ─▶ what goes leaves ─▶ the members say the new ─▶ layers, bottom up ─▶ open
//!                                                                     └ it counts from here ┘
//! ```
//!
//! A node is opened as soon as it has its layer: those above are still held, and may need it to make theirs. A layer of
//! a kind that remembers something is closed before its successor is made, because only one may be open.

use crate::absent;
use crate::device::Device;
use crate::hierarchy::{Maker, blame};
use crate::plan::Plan;
use crate::report::{Report, Subject};
use lamina_block::{Begin, Bytes, Error, Geometry, Io, Made, Node, Quiesced, Result};
use std::collections::HashSet;
use std::rc::Rc;

/// Where a layer comes from.
pub(crate) enum Source {
    /// It is there.
    Layer(&'static str, Made),
    /// It is made when its turn comes, over these.
    Make(Rc<Device>, Vec<Rc<Node>>),
}

impl Source {
    /// The device that a layer is made for.
    fn device(&self) -> Option<Rc<Device>> {
        match self {
            Source::Layer(..) => None,
            Source::Make(device, _) => Some(Rc::clone(device)),
        }
    }
}

/// A node that gets another layer.
pub(crate) struct Exchange {
    pub node: Rc<Node>,
    pub to: Source,
    /// How the layer that it has could be made again; `None` if it stays as it is.
    pub from: Option<(Rc<Device>, Vec<Rc<Node>>)>,
}

impl Exchange {
    /// Closes what was made for it and is not used.
    pub async fn give_up(self) {
        if let Source::Layer(_, layer) = self.to {
            let _ = layer.close().await;
        }
    }
}

/// A node that has its new layer, and what it had.
struct Done {
    node: Rc<Node>,
    before: Source,
    /// The new layer must be closed before the one before is made again.
    keeps: bool,
}

/// The nodes of a change, held: those that get another layer, and those that go.
pub(crate) struct Standstill {
    /// From the top down.
    held: Vec<Quiesced>,
}

impl Standstill {
    /// Flushes and holds `nodes`, which are given bottom-up. Those that are `outside` need not be flushed: whatever is on
    /// them, nobody relies on it. So it is with one of `gone`, which are not to be used any more, if `plan` survives that it
    /// fails: who stood on it was flushed before. It is `outside` from then on.
    pub async fn of(
        nodes: &[Rc<Node>],
        plan: &Plan,
        gone: &[Rc<Node>],
        outside: &mut HashSet<String>,
        report: &mut Report,
    ) -> Option<Standstill> {
        let (known, mut failed) = (&*outside, Vec::new());
        let needed = |node: &Node| !known.contains(node.name());
        let mut can_go_on = |node: &Rc<Node>, flushed: Result<()>| {
            let Err(e) = flushed else { return true };
            failed.push(node.name().to_owned());
            let names: Vec<&str> = failed.iter().map(String::as_str).collect();
            let goes = gone.iter().any(|gone| Rc::ptr_eq(gone, node));
            if goes && absent::nothing_more(plan, known, &names) {
                return true;
            }
            let message = format!("nothing was changed, because it cannot be flushed: {e}");
            report.failed(e.kind(), Subject::Device(node.name().into()), None, None, &message);
            false
        };
        // Clients wait while a node is held: what they wrote up to now is flushed before.
        for node in nodes.iter().rev().filter(|node| needed(node) && !node.geometry().read_only) {
            if !can_go_on(node, node.submit(Io::flush()).await) {
                return None;
            }
        }
        let mut held = Vec::new();
        for node in nodes.iter().rev() {
            let hold = node.quiesce().await;
            if needed(node) && !can_go_on(node, hold.flush().await) {
                return None;
            }
            held.push(hold);
        }
        outside.extend(failed);
        Some(Standstill { held })
    }

    /// Lets the layers make lasting what followed from how they were built: their successors are to find it.
    pub async fn commit(&self, report: &mut Report) {
        for held in &self.held {
            if let Err(e) = held.layer().commit().await {
                let subject = Subject::Device(held.node().name().into());
                report.failed(e.kind(), subject, None, None, e.message());
            }
        }
    }

    /// Asks the layers of nodes that go whether their children may take their places.
    pub async fn detach(&self, leaving: &[Rc<Node>], report: &mut Report) {
        for held in &self.held {
            if leaving.iter().any(|node| Rc::ptr_eq(node, held.node()))
                && let Err(e) = held.layer().detach().await
            {
                let subject = Subject::Device(held.node().name().into());
                report.failed(e.kind(), subject, None, None, e.message());
            }
        }
    }

    /// Puts the layers in place, and opens the nodes. `exchanges` are given bottom-up. The layers that were there come
    /// back, to be closed; after an error everything is as before, and the report says so.
    pub async fn exchange(
        mut self,
        exchanges: Vec<Exchange>,
        new: &Maker<'_>,
        old: &Maker<'_>,
        report: &mut Report,
    ) -> Option<Vec<Made>> {
        let mut done: Vec<Done> = Vec::new();
        let mut exchanges = exchanges.into_iter();
        while let Some(exchange) = exchanges.next() {
            let is_its = |held: &Quiesced| Rc::ptr_eq(held.node(), &exchange.node);
            let Some(at) = self.held.iter().position(is_its) else { continue };
            let held = self.held.remove(at);
            let device = exchange.to.device();
            match put(&held, exchange, new).await {
                Ok(finished) => done.push(finished),
                Err((e, before)) => {
                    let subject = Subject::Device(held.node().name().into());
                    match device {
                        Some(device) => blame(new.plan, &device, &e, report),
                        None => report.failed(e.kind(), subject, None, None, &e.to_string()),
                    }
                    if let Some(before) = before {
                        put_back(&held, before, old, report).await;
                    }
                    drop(held);
                    undo(done, old, report).await;
                    for exchange in exchanges {
                        exchange.give_up().await;
                    }
                    return None;
                }
            }
        }
        Some(done.into_iter().filter_map(Done::layer_before).collect())
    }
}

impl Done {
    fn layer_before(self) -> Option<Made> {
        match self.before {
            Source::Layer(_, layer) => Some(layer),
            Source::Make(..) => None,
        }
    }
}

/// What went wrong, and what the node must get back if its layer is closed already.
type Failed = (Error, Option<Source>);

/// Puts a layer under a held node.
async fn put(held: &Quiesced, exchange: Exchange, maker: &Maker<'_>) -> std::result::Result<Done, Failed> {
    let Exchange { node, to, from } = exchange;
    let (kind, geometry) = (node.kind(), node.geometry());
    let keeps =
        matches!(&to, Source::Make(device, _) if device.kind.traits.keeps || device.kind.traits.shares);
    let again = from.filter(|(device, _)| device.kind.traits.keeps || device.kind.traits.shares);
    let before = match again {
        Some((device, children)) => {
            held.layer().close().await.map_err(|e| (e, None))?;
            Source::Make(device, children)
        }
        None => Source::Layer(kind, held.layer()),
    };
    let back = |before: Source| match before {
        // It was not closed: it is still there.
        Source::Layer(..) => None,
        Source::Make(..) => Some(before),
    };
    let (kind, layer) = match to {
        Source::Layer(kind, layer) => (kind, layer),
        Source::Make(device, children) => match maker.layer(&device, children, Begin::Open).await {
            Ok(layer) => (device.kind.name, layer),
            Err(e) => return Err((e, back(before))),
        },
    };
    if let Err(e) = fits(&geometry, &layer.geometry()) {
        let _ = layer.close().await;
        return Err((e, back(before)));
    }
    held.replace(kind, layer);
    Ok(Done { node, before, keeps })
}

/// Gives nodes back what they had. They are held again, from the top down.
async fn undo(done: Vec<Done>, old: &Maker<'_>, report: &mut Report) {
    let mut held = Vec::new();
    for done in done.iter().rev() {
        held.push(done.node.quiesce().await);
    }
    for (done, held) in done.into_iter().zip(held.into_iter().rev()) {
        let new = held.layer();
        if done.keeps {
            let _ = new.close().await;
            put_back(&held, done.before, old, report).await;
        } else {
            put_back(&held, done.before, old, report).await;
            let _ = new.close().await;
        }
    }
}

/// Puts the layer under a node that it had before.
async fn put_back(held: &Quiesced, before: Source, old: &Maker<'_>, report: &mut Report) {
    let made = match before {
        Source::Layer(kind, layer) => Ok((kind, layer)),
        Source::Make(device, children) => {
            old.layer(&device, children, Begin::Open).await.map(|layer| (device.kind.name, layer))
        }
    };
    match made {
        Ok((kind, layer)) => drop(held.replace(kind, layer)),
        Err(e) => {
            let message =
                format!("could not be opened again after that: {e}. It is offline; restart the daemon");
            report.failed(e.kind(), Subject::Device(held.node().name().into()), None, None, &message);
        }
    }
}

/// Whoever uses a device relies on what it was: requests that were good must stay good.
pub(crate) fn fits(before: &Geometry, after: &Geometry) -> Result<()> {
    if after.size < before.size {
        let (now, then) = (Bytes(before.size), Bytes(after.size));
        return Err(Error::invalid(format!("it would shrink from {now} to {then} under those who use it")));
    }
    if after.block > before.block {
        let (now, then) = (before.block, after.block);
        return Err(Error::invalid(format!(
            "its blocks would grow from {now} to {then} bytes under those who use it"
        )));
    }
    if after.read_only && !before.read_only {
        return Err(Error::invalid("it would become read-only under those who use it"));
    }
    Ok(())
}
