//! Check 7: healing. A disk gives other bytes than were written there, and something below it has them still, as a RAID
//! would: a layer above that asks for another copy has to get it, through whatever is between.
//!
//! Each try reads a block, records the disk reads for it, lets just these blocks rot, and reads again. The device may
//! have other copies itself, or heal by itself; otherwise [`lamina_block::Layer::heal`] has to reach the disk. A
//! block that is read in one place is also to be located there, by [`lamina_block::Layer::places`].

use super::load::Style;
use super::scene::Scene;
use super::subject::Subject;
use crate::env::SimEnv;
use fastrand::Rng;
use lamina_block::{Buf, ErrorKind, Healed, Io, Located, Node, Op};
use std::cell::RefCell;
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;

/// Requests before anything rots.
const REQUESTS: usize = 60;
/// Blocks that are tried.
const TRIES: usize = 12;
/// Bytes of each, as of a checksum.
const LEN: u64 = 4096;

pub(crate) fn check(subject: &Subject, seed: u64) -> Result<(), String> {
    let scene = Scene::new(subject, seed);
    let rng = &mut Rng::with_seed(seed);
    let style = Style::draw(rng, REQUESTS);
    let load = scene.load(subject, seed)?;
    let work = Rc::clone(&load);
    scene.drive(&load, async move { work.run(style).await })?;
    let blocks = load.top().geometry().size / LEN;
    let fails = scene.rig.nodes().iter().any(|node| node.kind() == "fault");
    if subject.heals && blocks > 0 {
        for _ in 0..TRIES {
            let start = rng.u64(0..blocks) * LEN;
            let disks = scene.rig.nodes().iter().map(|node| node.name().to_owned()).collect();
            let trial = trial(scene.rig.env(), load.top(), disks, start..start + LEN, fails);
            scene.drive(&load, trial)??;
        }
    }
    scene.finish(load)
}

/// Lets a block rot, and has it healed. `disks`: those with nodes; `fails`: a device on the way fails on purpose, and
/// may have the other copy.
async fn trial(
    env: Rc<SimEnv>,
    top: Rc<Node>,
    disks: Vec<String>,
    at: Range<u64>,
    fails: bool,
) -> Result<(), String> {
    // The metadata for finding the block is in memory afterwards.
    read(&top, &at).await?;
    let (written, asked) = seen(&env, read(&top, &at)).await;
    let written = written?;
    // Data in several places heals in several pieces, each by its own request.
    let [(disk, place)] = &asked[..] else { return Ok(()) };
    // A sink opens its disk itself: no node is called like it.
    let name = disks.contains(disk).then_some(disk.as_str());
    if !is_located(top.locate(at.start).await, name, place) && seen(&env, read(&top, &at)).await.1 == asked {
        return Err(format!("{at:?} was read at {place:?} of {disk}, and is not located there"));
    }
    let disk = env.disk(disk).ok_or("a request to a disk that is not there")?;
    disk.rot(place);
    if read(&top, &at).await.as_ref() != Ok(&written) {
        let name = disk.name();
        let expected = written.clone();
        let is_right = Rc::new(move |bytes: &Buf| bytes.to_vec() == expected);
        match top.heal(at.clone(), is_right).await {
            Ok(Some(Healed { bytes, .. })) if bytes.to_vec() == written => {}
            Ok(Some(_)) => return Err(format!("healing {at:?} returned wrong data")),
            // A layer that moves bytes has moved the wrong ones: there is no other copy in their present place.
            Ok(None) if seen(&env, read(&top, &at)).await.1 != asked => {
                disk.stop_rot();
                return Ok(());
            }
            Ok(None) => return Err(format!("healing {at:?} does not reach {name}, which has another copy")),
            Err(e) if fails && matches!(e.kind(), ErrorKind::Offline | ErrorKind::TimedOut) => {
                disk.stop_rot();
                return Ok(());
            }
            Err(e) => return Err(format!("healing {at:?} failed: {e}")),
        }
        if read(&top, &at).await.as_ref() != Ok(&written) {
            return Err(format!("{at:?} was healed, and reads still return the wrong data"));
        }
    }
    disk.stop_rot();
    Ok(())
}

/// Whether a byte has a place in `at` of a disk, which may have no name.
fn is_located(byte: Located, disk: Option<&str>, at: &Range<u64>) -> bool {
    match byte.below {
        Ok(below) if below.is_empty() => {
            disk.is_none_or(|disk| byte.node.name() == disk) && at.contains(&byte.at)
        }
        Ok(below) => below.into_iter().any(|byte| is_located(byte, disk, at)),
        Err(_) => false,
    }
}

/// A read of a disk, and where.
type Asked = (String, Range<u64>);

/// The result of `work`, and the reads of disks meanwhile.
async fn seen<T>(env: &SimEnv, work: impl Future<Output = T>) -> (T, Vec<Asked>) {
    let asked = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&asked);
    env.set_fault(Some(Box::new(move |_, disk, io| {
        if let Op::Read(_) = io.op {
            seen.borrow_mut().push((disk.to_owned(), io.at.clone()));
        }
        None
    })));
    let done = work.await;
    env.set_fault(None);
    (done, asked.take())
}

async fn read(top: &Rc<Node>, at: &Range<u64>) -> Result<Vec<u8>, String> {
    let buf = Buf::zeroed((at.end - at.start) as usize);
    let read = top.submit(Io::read(at.start, buf.clone())).await;
    read.map(|()| buf.to_vec()).map_err(|e| format!("a read of {at:?} failed: {e}"))
}
