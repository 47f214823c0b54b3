//! Check 5: the ends of the device, wrong requests, read-only disks, the geometry.
//!
//! Disks that do nothing natively are drawn by the rig for every check; here, requests are made one by one and their
//! results are compared with the contract.

use super::scene::Scene;
use super::subject::{Keeps, Subject};
use lamina_block::{Buf, Durability, ErrorKind, Geometry, Io, Node, Op, Zero};
use std::ops::Range;
use std::rc::Rc;

type Outcome = Result<(), ErrorKind>;

pub(crate) fn check(subject: &Subject, seed: u64) -> Result<(), String> {
    let scene = Scene::new(subject, seed);
    let top = scene.build(subject)?;
    geometry(top.geometry())?;
    wrong_requests(&scene, &top)?;
    last_block(&scene, &top, subject)?;
    whole_device(&scene, &top)?;
    close(&scene, top)?;
    read_only(subject, seed)
}

fn geometry(g: Geometry) -> Result<(), String> {
    let right = g.block.is_power_of_two()
        && (512..=65536).contains(&g.block)
        && g.optimal.is_power_of_two()
        && g.optimal >= g.block
        && g.size > 0
        && g.size.is_multiple_of(g.block.into());
    if right { Ok(()) } else { Err(format!("the geometry is wrong in itself: {g:?}")) }
}

/// Makes one request and compares; returns how many requests reached a disk meanwhile.
fn expect(scene: &Scene, top: &Rc<Node>, io: Io, expected: Outcome) -> Result<u64, String> {
    let what = format!("{} of {:?}", io.op.kind().name(), io.at);
    let (top, env) = (Rc::clone(top), scene.rig.env());
    let submitted = async move {
        // Counted around the request alone: a layer's own work (cleaning, healing) goes on before and after it, and not
        // meanwhile, because a refusal comes at once.
        let before = env.disk_requests();
        let result = top.submit(io).await;
        (result, env.disk_requests() - before)
    };
    let (result, reached) = scene.run(submitted).map_err(|e| format!("{what}: {e}"))?;
    if let Some(finding) = scene.rig.env().take_finding() {
        return Err(finding);
    }
    if matches!(expected, Err(ErrorKind::Invalid | ErrorKind::ReadOnly)) && reached != 0 {
        return Err(format!("{what} is wrong, and reached a disk"));
    }
    match (&result, expected) {
        (Ok(()), Ok(())) => Ok(reached),
        (Err(e), Err(kind)) if e.kind() == kind => Ok(reached),
        _ => Err(format!("{what} ended with {result:?}, not {expected:?}")),
    }
}

/// Every operation with data or without, on a range of any kind.
fn each_op(at: Range<u64>, buf_len: u64) -> Vec<Io> {
    let buf = || Buf::zeroed(buf_len as usize);
    let ops = [
        Op::Read(buf()),
        Op::Write(buf(), Durability::Cached),
        Op::Write(buf(), Durability::Fua),
        Op::Zero(Zero::default()),
        Op::Discard,
    ];
    ops.into_iter().map(|op| Io { op, at: at.clone(), client: 0 }).collect()
}

fn wrong_requests(scene: &Scene, top: &Rc<Node>) -> Result<(), String> {
    let Geometry { size, block, .. } = top.geometry();
    let block = u64::from(block);
    let wrong: [(Range<u64>, u64); 9] = [
        (size..size + block, block),
        (size - block..size + block, 2 * block),
        (size + block..size + 2 * block, block),
        (u64::MAX - block + 1..u64::MAX, block),
        (u64::MAX - 2 * block + 1..u64::MAX - block + 1, block),
        (0..u64::MAX, block),
        (1..1 + block, block),
        (0..block - 1, block - 1),
        (block / 2..block, block / 2),
    ];
    for (at, len) in wrong {
        for io in each_op(at, len) {
            expect(scene, top, io, Err(ErrorKind::Invalid))?;
        }
    }
    // An end before the start, and buffers that are too short, too long, absent.
    #[expect(clippy::reversed_empty_ranges, reason = "the request is one of those tried")]
    let reversed = 4096..0;
    for io in each_op(reversed, 0) {
        expect(scene, top, io, Err(ErrorKind::Invalid))?;
    }
    for len in [0, block - 1, 2 * block] {
        for op in
            [Op::Read(Buf::zeroed(len as usize)), Op::Write(Buf::zeroed(len as usize), Durability::Cached)]
        {
            expect(scene, top, Io { op, at: 0..block, client: 0 }, Err(ErrorKind::Invalid))?;
        }
    }
    // Nothing to do is done at once, anywhere on the device.
    for place in [0, block, size] {
        for io in each_op(place..place, 0) {
            if expect(scene, top, io, Ok(()))? != 0 {
                return Err(format!("a request of no length at {place} reached a disk"));
            }
        }
    }
    expect(scene, top, Io::flush(), Ok(())).map(drop)
}

/// Every operation on the first and the last block works, and changes that block only.
fn last_block(scene: &Scene, top: &Rc<Node>, subject: &Subject) -> Result<(), String> {
    let Geometry { size, block, .. } = top.geometry();
    let block = u64::from(block);
    for at in [0..block, size - block..size] {
        let beside = if at.start == 0 { block..(2 * block).min(size) } else { (at.start - block)..at.start };
        let neighbour = scene.read(top, beside.clone())?;
        for (value, durability) in [(0x11, Durability::Cached), (0x22, Durability::Fua)] {
            let data = Buf::from_vec(vec![value; block as usize]);
            expect(scene, top, Io::write(at.start, data, durability), Ok(()))?;
            if subject.keeps != Keeps::Nothing && scene.read(top, at.clone())?.iter().any(|b| *b != value) {
                return Err(format!("a write of {at:?} cannot be read back"));
            }
        }
        for durability in [Durability::Cached, Durability::Fua] {
            let how = Zero { durability, unmap: durability == Durability::Fua, fast: false };
            expect(scene, top, Io::zero(at.clone(), how), Ok(()))?;
            if scene.read(top, at.clone())?.iter().any(|b| *b != 0) {
                return Err(format!("{at:?} was zeroed and is not zero"));
            }
        }
        expect(scene, top, Io::discard(at.clone()), Ok(()))?;
        if scene.read(top, at.clone())?.iter().any(|b| *b != 0) {
            return Err(format!("{at:?} was zero, was discarded and is not zero"));
        }
        if size >= 2 * block && scene.read(top, beside.clone())? != neighbour {
            return Err(format!("requests for {at:?} changed {beside:?}"));
        }
    }
    Ok(())
}

/// The largest request there is, unless the device is too large for one buffer.
fn whole_device(scene: &Scene, top: &Rc<Node>) -> Result<(), String> {
    let size = top.geometry().size;
    if size > 8 << 20 {
        return Ok(());
    }
    let ops = each_op(0..size, size);
    ops.into_iter().try_for_each(|io| expect(scene, top, io, Ok(())).map(drop))?;
    match scene.read(top, 0..size)?.iter().all(|b| *b == 0) {
        true => Ok(()),
        false => Err("the whole device was zeroed and is not zero".into()),
    }
}

fn close(scene: &Scene, top: Rc<Node>) -> Result<(), String> {
    scene.close_all(&top)?.map_err(|e| format!("close failed: {e}"))?;
    let block = top.geometry().block.into();
    for io in each_op(0..block, block) {
        expect(scene, &top, io, Err(ErrorKind::Offline))?;
    }
    expect(scene, &top, Io::flush(), Err(ErrorKind::Offline))?;
    scene.idle()?;
    scene.freed(top)
}

/// Over disks that have become read-only a device is read-only, and can be read.
fn read_only(subject: &Subject, seed: u64) -> Result<(), String> {
    let made = Scene::new(subject, seed);
    let top = made.build(subject)?;
    made.close_all(&top)?.map_err(|e| format!("close failed: {e}"))?;
    let mut disks = made.rig.env().twins();
    if disks.is_empty() {
        return Ok(());
    }
    for (_, disk) in disks.iter_mut().filter(|(path, _)| path.to_string_lossy().starts_with("disk")) {
        let mut options = *disk.options();
        options.geometry.read_only = true;
        *disk = disk.clone().with_options(options);
    }
    let scene = Scene::after(subject, seed, &disks);
    let top = scene.build(subject)?;
    if !top.geometry().read_only {
        return Err("its disks are read-only, and the device claims to be writable".into());
    }
    let block = top.geometry().block.into();
    for io in each_op(0..block, block) {
        let expected = match &io.op {
            Op::Read(_) | Op::Flush => Ok(()),
            Op::Write(..) | Op::Zero(_) | Op::Discard => Err(ErrorKind::ReadOnly),
        };
        expect(&scene, &top, io, expected)?;
    }
    expect(&scene, &top, Io::flush(), Ok(())).map(drop)
}
