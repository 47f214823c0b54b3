//! Putting other layers under nodes at work, all of them or none.
//!
//! ```text
//!   flush ─▶ from the top down: quiesce ─▶ flush ─▶ commit ─▶ detach
//!     ─▶ superblocks (from here the change counts) ─▶ layers, bottom up ─▶ open
//! ```
//!
//! A layer that commits, or is detached, may write to the nodes below, which are not quiesced yet.
//!
//! A node is opened as soon as it has its layer: the nodes above are still quiesced, and their layers may need this
//! node. A layer that remembers something is closed before its successor is made, because only one may be open.

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
    /// The layer is there.
    Layer(&'static str, Made),
    /// The layer is made in its turn, over these nodes.
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
    /// The way to make the present layer again; `None` if the layer stays.
    pub from: Option<(Rc<Device>, Vec<Rc<Node>>)>,
}

impl Exchange {
    /// Closes a layer that was made for the node and is not used.
    pub async fn give_up(self) {
        if let Source::Layer(_, layer) = self.to {
            let _ = layer.close().await;
        }
    }
}

/// A node that has its new layer, and the earlier one.
struct Done {
    node: Rc<Node>,
    before: Source,
    /// The new layer must be closed before the one before is made again.
    keeps: bool,
}

/// The quiesced nodes of a change: those that get another layer, and those that go.
pub(crate) struct Standstill {
    /// From the top down.
    quiesced: Vec<Quiesced>,
}

impl Standstill {
    /// Flushes and quiesces `nodes`, which are given bottom-up. Nodes that are `outside` need not be flushed: no device
    /// relies on their data. The same holds for a node of `gone`, which are not to be used any more, if `plan` survives
    /// its failure: the devices over it were flushed before. Such a node is `outside` from then on. Nodes of `leaving`
    /// go as well, and their children take their places.
    pub async fn of(
        nodes: &[Rc<Node>],
        plan: &Plan,
        (gone, leaving): (&[Rc<Node>], &[Rc<Node>]),
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
            let message = format!("cannot be flushed, so nothing was changed: {e}");
            report.failed(e.kind(), Subject::Device(node.name().into()), None, None, &message);
            false
        };
        // Clients wait while a node is quiesced: their writes up to now are flushed before.
        for node in nodes.iter().rev().filter(|node| needed(node) && !node.geometry().read_only) {
            if !can_go_on(node, node.submit(Io::flush()).await) {
                return None;
            }
        }
        let (mut all, mut refused) = (Vec::new(), None);
        for node in nodes.iter().rev() {
            let quiesced = node.quiesce().await;
            if needed(node) && !can_go_on(node, quiesced.flush().await) {
                return None;
            }
            if let Err(e) = let_go(&quiesced, leaving).await {
                refused = Some((node.name(), e));
                break;
            }
            all.push(quiesced);
        }
        if let Some((name, e)) = refused {
            report.failed(e.kind(), Subject::Device(name.into()), None, None, e.message());
            return None;
        }
        outside.extend(failed);
        Some(Standstill { quiesced: all })
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
            let is_its = |quiesced: &Quiesced| Rc::ptr_eq(quiesced.node(), &exchange.node);
            let Some(at) = self.quiesced.iter().position(is_its) else { continue };
            let quiesced = self.quiesced.remove(at);
            let device = exchange.to.device();
            match put(&quiesced, exchange, new).await {
                Ok(finished) => done.push(finished),
                Err((e, before)) => {
                    let subject = Subject::Device(quiesced.node().name().into());
                    match device {
                        Some(device) => blame(new.plan, &device, &e, report),
                        None => report.failed(e.kind(), subject, None, None, &e.to_string()),
                    }
                    if let Some(before) = before {
                        put_back(&quiesced, before, old, report).await;
                    }
                    drop(quiesced);
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

/// Lets a layer make lasting what followed from how it was built: its successor is to find it. If its node goes, asks
/// whether its children may take its place.
async fn let_go(quiesced: &Quiesced, leaving: &[Rc<Node>]) -> Result<()> {
    quiesced.layer().commit().await?;
    match leaving.iter().any(|node| Rc::ptr_eq(node, quiesced.node())) {
        true => quiesced.layer().detach().await,
        false => Ok(()),
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

/// The error, and the layer that the node must get back if the present one is closed already.
type Failed = (Error, Option<Source>);

/// Puts a layer under a quiesced node.
async fn put(
    quiesced: &Quiesced,
    exchange: Exchange,
    maker: &Maker<'_>,
) -> std::result::Result<Done, Failed> {
    let Exchange { node, to, from } = exchange;
    let (kind, geometry) = (node.kind(), node.geometry());
    let keeps =
        matches!(&to, Source::Make(device, _) if device.kind.traits.keeps || device.kind.traits.shares);
    let again = from.filter(|(device, _)| device.kind.traits.keeps || device.kind.traits.shares);
    let before = match again {
        Some((device, children)) => {
            quiesced.layer().close().await.map_err(|e| (e, None))?;
            Source::Make(device, children)
        }
        None => Source::Layer(kind, quiesced.layer()),
    };
    let back = |before: Source| match before {
        // The layer was not closed: it is still there.
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
    quiesced.replace(kind, layer);
    Ok(Done { node, before, keeps })
}

/// Gives nodes their earlier layers back. The nodes are quiesced again, from the top down.
async fn undo(done: Vec<Done>, old: &Maker<'_>, report: &mut Report) {
    let mut all = Vec::new();
    for done in done.iter().rev() {
        all.push(done.node.quiesce().await);
    }
    for (done, quiesced) in done.into_iter().zip(all.into_iter().rev()) {
        let new = quiesced.layer();
        if done.keeps {
            let _ = new.close().await;
            put_back(&quiesced, done.before, old, report).await;
        } else {
            put_back(&quiesced, done.before, old, report).await;
            let _ = new.close().await;
        }
    }
}

/// Puts the earlier layer under a node again.
async fn put_back(quiesced: &Quiesced, before: Source, old: &Maker<'_>, report: &mut Report) {
    let made = match before {
        Source::Layer(kind, layer) => Ok((kind, layer)),
        Source::Make(device, children) => {
            old.layer(&device, children, Begin::Open).await.map(|layer| (device.kind.name, layer))
        }
    };
    match made {
        Ok((kind, layer)) => drop(quiesced.replace(kind, layer)),
        Err(e) => {
            let message = format!(
                "could not be opened again after that: {e}. The device is offline; restart the daemon"
            );
            report.failed(e.kind(), Subject::Device(quiesced.node().name().into()), None, None, &message);
        }
    }
}

/// The users of a device rely on its geometry: requests that were good must stay good.
pub(crate) fn fits(before: &Geometry, after: &Geometry) -> Result<()> {
    if after.size < before.size {
        let (now, then) = (Bytes(before.size), Bytes(after.size));
        return Err(Error::invalid(format!("the device would shrink from {now} to {then} under its users")));
    }
    if after.block > before.block {
        let (now, then) = (before.block, after.block);
        return Err(Error::invalid(format!(
            "the blocks would grow from {now} to {then} bytes under the device's users"
        )));
    }
    if after.read_only && !before.read_only {
        return Err(Error::invalid("the device would become read-only under its users"));
    }
    Ok(())
}
