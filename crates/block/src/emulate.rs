//! Operations that a layer lacks, as a node makes them of others that it has.

use crate::{Buf, Durability, Io, Layer, Result, Step};
use std::rc::Rc;

/// The most bytes of one write of emulated zeroes.
pub(crate) const ZEROES_MAX: u64 = 256 << 10;

/// Lets a layer do one request to the end.
pub(crate) async fn run(layer: &Rc<dyn Layer>, mut io: Io) -> Result<()> {
    match Rc::clone(layer).submit(&mut io) {
        Step::Forward(node) => node.submit(io).await,
        Step::Done(result) => result,
        Step::Control(work) => work.await,
    }
}

/// Does `parts` one after the other, then makes them durable if asked to.
pub(crate) async fn then_flush(layer: Rc<dyn Layer>, parts: Vec<Io>, durable: bool) -> Result<()> {
    for io in parts {
        run(&layer, io).await?;
    }
    if durable { run(&layer, Io::flush()).await } else { Ok(()) }
}

/// Writes of the same zeroes that cover the range of `io`.
pub(crate) fn writes_of_zeroes(zeroes: Buf, io: &Io) -> Vec<Io> {
    let at = &io.at;
    zeroes.fill(0);
    let step = zeroes.len() as u64;
    let write = |start: u64| {
        let len = step.min(at.end - start);
        Io::write(start, zeroes.slice(0..len as usize), Durability::Cached).by(io.client)
    };
    (at.start..at.end).step_by(step as usize).map(write).collect()
}
