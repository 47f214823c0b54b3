//! The power fails before every change of any disk while members are created and while their generation is raised: the
//! remaining disks can be assembled, to the old state or to the new one, and to no other.
//!
//! The canaries are wrong in one way each, and this check must notice.

#[path = "common/members.rs"]
mod common;

use common::{NAMES, SIZE, superblock};
use lamina_block::{Buf, Durability, Env, Io, Node};
use lamina_metadata::member::{Assembly, Candidate, judge, repair_copies};
use lamina_metadata::superblock::{self, COPY_LEN, Found, Place, Superblock, decode, encode};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use std::cell::RefCell;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The reader does not look at checksums.
    TornSuperblockAccepted,
    /// The new description is written with the old generation.
    GenerationNotRaised,
    /// Both copies of a member are written before the first copy of the next.
    MemberAfterMember,
    /// The copies are written without a flush between them.
    NothingFlushed,
    /// After an interrupted change, the next one is made on top of it.
    NotSettled,
}

/// A description long enough to tear, unlike any other in every sector.
fn description(what: &str) -> String {
    what.repeat(3000 / what.len())
}

fn set(hierarchy: u128, generation: u64, what: &str) -> Vec<Superblock> {
    (0..3).map(|index| superblock(hierarchy, index, generation, &description(what))).collect()
}

fn node(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let disk = env.disk(name).expect("a disk");
    Node::new(name, "sim", Rc::clone(env) as Rc<dyn Env>, disk)
}

async fn put(node: &Rc<Node>, superblock: &Superblock, place: Place) {
    let mut bytes = encode(superblock, place);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    let at = place.offset(&superblock.layout);
    node.submit(Io::write(at, Buf::from_vec(bytes), Durability::Cached)).await.expect("a write");
}

async fn write(env: &Rc<SimEnv>, set: Vec<Superblock>, flaw: Flaw) {
    let members: Vec<(Rc<Node>, Superblock)> = set.into_iter().map(|s| (node(env, &s.name), s)).collect();
    match flaw {
        Flaw::None | Flaw::TornSuperblockAccepted | Flaw::GenerationNotRaised | Flaw::NotSettled => {
            superblock::write_all(&members).await.expect("writes");
        }
        Flaw::MemberAfterMember => {
            for (node, superblock) in &members {
                for place in Place::ALL {
                    superblock::write(node, superblock, place).await.expect("a write");
                }
            }
        }
        Flaw::NothingFlushed => {
            for (node, superblock) in &members {
                put(node, superblock, Place::First).await;
                put(node, superblock, Place::Second).await;
            }
            for (node, _) in &members {
                node.submit(Io::flush()).await.expect("a flush");
            }
        }
    }
}

/// The member on a disk, for a reader with a flaw.
async fn found(node: &Rc<Node>, flaw: Flaw) -> Found {
    if flaw != Flaw::TornSuperblockAccepted {
        return superblock::read(node).await;
    }
    let mut copies = Vec::new();
    for (place, at) in [(Place::First, 0), (Place::Second, SIZE - COPY_LEN)] {
        let buf = Buf::zeroed(COPY_LEN as usize);
        node.submit(Io::read(at, buf.clone())).await.expect("a read");
        let mut bytes = buf.to_vec();
        let len = u32::from_le_bytes(bytes[112..116].try_into().expect("four bytes")) as usize;
        let description = crc32c::crc32c(&bytes[4096..(4096 + len).min(65536)]);
        bytes[116..120].copy_from_slice(&description.to_le_bytes());
        bytes[16..20].fill(0);
        let header = crc32c::crc32c(&bytes[..4096]);
        bytes[16..20].copy_from_slice(&header.to_le_bytes());
        copies.push(decode(&bytes, place));
    }
    Found { size: SIZE, copies: [copies.remove(0), copies.remove(0)] }
}

/// The members on the disks, judged.
async fn look(env: &Rc<SimEnv>, flaw: Flaw) -> (Vec<Found>, Result<Assembly, String>) {
    let mut candidates = Vec::new();
    for name in NAMES {
        candidates.push(Candidate::new(name, found(&node(env, name), flaw).await));
    }
    let assembly = judge("vm1", &candidates, &[], false).map_err(|refusals| format!("{refusals:?}"));
    (candidates.into_iter().map(|c| c.found).collect(), assembly)
}

/// The image of a crash, assembled: the description that all members carry.
fn assembled(images: &Images, flaw: Flaw) -> Result<String, String> {
    let world = Simulation::from_images(1, images);
    let env = world.env();
    let looked = world.run(async move { look(&env, flaw).await });
    let assembly = looked.expect("it ends").1?;
    let first = assembly.members[0].clone();
    let same = |m: &Superblock| (m.generation, &m.description) == (first.generation, &first.description);
    if !assembly.members.iter().all(same) {
        return Err("the members carry different things".into());
    }
    Ok(first.description)
}

/// Writes `new` over `old` (nothing: blank disks), and loses power before every change. Returns the fault in the
/// images, if there is one.
fn trial(old: Option<Vec<Superblock>>, new: Vec<Superblock>, flaw: Flaw, seed: u64) -> Result<(), String> {
    let mut crashes = 0;
    for loss in Loss::ALL {
        let world = Simulation::new(seed);
        let env = world.env();
        let left: Rc<RefCell<Vec<Images>>> = Rc::default();
        for name in NAMES {
            env.put_disk(name, Image::blank(DiskOptions::new(SIZE)));
        }
        let (before, after, into) = (old.clone(), new.clone(), Rc::clone(&left));
        let run = world.run(async move {
            if let Some(old) = before {
                write(&env, old, Flaw::None).await;
            }
            let seen = Rc::clone(&env);
            let take = move || {
                let number = into.borrow().len() as u64;
                into.borrow_mut().push(seen.images(loss, seed ^ number));
            };
            env.observe(Some(Rc::new(take)));
            write(&env, after, flaw).await;
            env.observe(None);
            env.images(Loss::All, seed)
        });
        let end = run.map_err(|hang| format!("{hang:?}"))?;
        let wanted = &new[0].description;
        if assembled(&end, flaw)? != *wanted {
            return Err("what was written is not there".into());
        }
        for images in left.take() {
            crashes += 1;
            match (assembled(&images, flaw), &old) {
                (Ok(now), _) if now == *wanted => {}
                (Ok(now), Some(old)) if now == old[0].description => {}
                (Err(_), None) => {}
                (Ok(_), _) => return Err("it is assembled to what never was".into()),
                (Err(e), Some(_)) => return Err(format!("it cannot be assembled: {e}")),
            }
        }
    }
    assert!(crashes >= 4 * 12, "{crashes} crashes are too few");
    Ok(())
}

fn create(flaw: Flaw, seed: u64) -> Result<(), String> {
    trial(None, set(1, 1, "new"), flaw, seed)
}

fn create_over(flaw: Flaw, seed: u64) -> Result<(), String> {
    trial(Some(set(1, 7, "old")), set(2, 1, "new"), flaw, seed)
}

fn raise(flaw: Flaw, seed: u64) -> Result<(), String> {
    let generation = if flaw == Flaw::GenerationNotRaised { 7 } else { 8 };
    trial(Some(set(1, 7, "old")), set(1, generation, "new"), flaw, seed)
}

/// Opens the image of a crash and raises the generation again, and crashes again before every change.
fn again(left: &Images, flaw: Flaw, seed: u64) -> Result<(), String> {
    let before = assembled(left, flaw)?;
    for loss in [Loss::All, Loss::Torn, Loss::Nothing] {
        let world = Simulation::from_images(seed, left);
        let env = world.env();
        let crashes: Rc<RefCell<Vec<Images>>> = Rc::default();
        let into = Rc::clone(&crashes);
        let run = world.run(async move {
            let (found, assembly) = look(&env, flaw).await;
            let Assembly { members, latest, .. } = assembly?;
            let seen = Rc::clone(&env);
            let take = move || {
                let number = into.borrow().len() as u64;
                into.borrow_mut().push(seen.images(loss, seed ^ number));
            };
            env.observe(Some(Rc::new(take)));
            if flaw != Flaw::NotSettled {
                for (found, chosen) in found.iter().zip(&members) {
                    repair_copies(&node(&env, &chosen.name), found, chosen).await.expect("writes");
                }
            }
            let next = (0..3).map(|index| superblock(1, index, latest + 1, &description("third"))).collect();
            write(&env, next, flaw).await;
            env.observe(None);
            Ok::<_, String>(())
        });
        run.map_err(|hang| format!("{hang:?}"))??;
        for images in crashes.take() {
            let now = assembled(&images, flaw)?;
            if now != before && now != description("third") {
                return Err("it is assembled to what never was".into());
            }
        }
    }
    Ok(())
}

/// Raises the generation, and crashes before every change, or its process dies; each time, crashes again while that is
/// put right.
fn raise_twice(flaw: Flaw, seed: u64) -> Result<(), String> {
    for loss in [Some(Loss::All), Some(Loss::Torn), None] {
        let world = Simulation::new(seed);
        let env = world.env();
        for name in NAMES {
            env.put_disk(name, Image::blank(DiskOptions::new(SIZE)));
        }
        let left: Rc<RefCell<Vec<Images>>> = Rc::default();
        let into = Rc::clone(&left);
        let run = world.run(async move {
            write(&env, set(1, 7, "old"), Flaw::None).await;
            let seen = Rc::clone(&env);
            let take = move || loss.map_or_else(|| seen.orphans(), |loss| seen.images(loss, seed));
            env.observe(Some(Rc::new(move || into.borrow_mut().push(take()))));
            write(&env, set(1, 8, "new"), Flaw::None).await;
            env.observe(None);
        });
        run.map_err(|hang| format!("{hang:?}"))?;
        for images in left.take() {
            again(&images, flaw, seed)?;
        }
    }
    Ok(())
}

#[test]
fn a_crash_while_a_crash_is_put_right_leaves_the_old_or_the_new() {
    for seed in 0..5 {
        raise_twice(Flaw::None, seed).unwrap();
    }
}

#[test]
fn a_change_on_top_of_an_interrupted_one_is_caught() {
    let said = caught(|seed| raise_twice(Flaw::NotSettled, seed));
    assert!(said.contains("stale") || said.contains("never was"), "{said}");
}

#[test]
fn a_crash_leaves_the_old_or_the_new() {
    for seed in 0..20 {
        create(Flaw::None, seed).unwrap();
        create_over(Flaw::None, seed).unwrap();
        raise(Flaw::None, seed).unwrap();
    }
}

/// Within a few seeds, a trial must fail.
fn caught(trial: impl Fn(u64) -> Result<(), String>) -> String {
    (0..20).find_map(|seed| trial(seed).err()).expect("the canary was not caught")
}

#[test]
fn a_torn_superblock_that_is_accepted_is_caught() {
    let said = caught(|seed| raise(Flaw::TornSuperblockAccepted, seed));
    assert!(said.contains("never was") || said.contains("changed apart"), "{said}");
}

#[test]
fn a_generation_that_is_not_raised_is_caught() {
    let said = caught(|seed| raise(Flaw::GenerationNotRaised, seed));
    assert!(said.contains("changed apart"), "{said}");
}

#[test]
fn one_member_after_the_other_is_caught() {
    let said = caught(|seed| raise(Flaw::MemberAfterMember, seed));
    assert!(said.contains("stale"), "{said}");
}

#[test]
fn copies_that_are_not_flushed_are_caught() {
    let said = caught(|seed| raise(Flaw::NothingFlushed, seed));
    assert!(said.contains("cannot be assembled"), "{said}");
}
