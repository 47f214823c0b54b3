//! Members fail and come back, and the power fails before every change of any disk, with any one member missing
//! afterwards: the assembled state is never older than the last acknowledged one, and two halves that went on apart are
//! not assembled at all.
//!
//! The canaries are wrong in one way each, and this check must notice.

#[path = "common/members.rs"]
mod common;

use common::{NAMES, SIZE, superblock};
use lamina_block::{Env, Error, Io, Node, OpKind};
use lamina_metadata::member::records::{Trailer, split};
use lamina_metadata::member::{Assembly, Candidate, Member, Roster, judge, repair_copies, take_into_use};
use lamina_metadata::superblock::{self, Superblock};
use lamina_sim::{DiskOptions, Image, Images, Loss, SimEnv, Simulation};
use serde_json::json;
use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Every missing member counts as evicted.
    MissingIsOut,
    /// A change is called done although a member could not be written, and no other member calls it evicted.
    DoneBeforeOut,
    /// Of two halves the one with the higher generation is taken, and the other one is taken in again.
    HigherGenerationWins,
}

/// Two of the three may be evicted.
fn survives(out: &[&str]) -> bool {
    out.len() < NAMES.len()
}

fn node(env: &Rc<SimEnv>, name: &str) -> Rc<Node> {
    let disk = env.disk(name).expect("a disk");
    Node::new(name, "sim", Rc::clone(env) as Rc<dyn Env>, disk)
}

/// The members on the present disks.
async fn look(env: &Rc<SimEnv>) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for name in NAMES.into_iter().filter(|name| env.disk(name).is_some()) {
        candidates.push(Candidate::new(name, superblock::read(&node(env, name)).await));
    }
    candidates
}

/// The disks assembled by a judge that has a flaw.
fn judged(candidates: &[Candidate], degraded: bool, flaw: Flaw) -> Result<Assembly, String> {
    let there = |name: &&str| candidates.iter().any(|c| c.device == **name);
    let missing: Vec<&str> = NAMES.into_iter().filter(|name| !there(name)).collect();
    let degraded = degraded || flaw == Flaw::MissingIsOut;
    let judged = judge("vm1", candidates, &missing, degraded).map_err(|refusals| format!("{refusals:?}"));
    let newest = |c: &Candidate| c.found.newest().map_or(0, |s| s.generation);
    match (judged, flaw) {
        (Err(e), Flaw::HigherGenerationWins) if e.contains("apart") => {
            let best = candidates.iter().map(newest).max();
            let some: Vec<Candidate> =
                candidates.iter().filter(|c| Some(newest(c)) == best).cloned().collect();
            judge("vm1", &some, &[], true).map_err(|refusals| format!("{refusals:?}"))
        }
        (judged, _) => judged,
    }
}

/// The number that the members keep.
fn number(assembly: &Assembly) -> u64 {
    let (_, Trailer { records, .. }) = split(&assembly.members[0].description).expect("good lines");
    records.get("x").and_then(|value| value.as_u64()).unwrap_or(0)
}

/// Opens the members as a daemon does.
async fn open(env: &Rc<SimEnv>, degraded: bool, flaw: Flaw) -> Result<(Rc<Roster>, u64), String> {
    let candidates = look(env).await;
    let assembly = judged(&candidates, degraded, flaw)?;
    let number = number(&assembly);
    let mut members: Vec<(Rc<Node>, Superblock)> = Vec::new();
    for chosen in &assembly.members {
        let below = node(env, &chosen.name);
        let found = &candidates.iter().find(|c| c.device == chosen.name).expect("it was found").found;
        repair_copies(&below, found, chosen).await.map_err(|e| e.to_string())?;
        let mut next = chosen.clone();
        if !assembly.lost.is_empty() {
            let (file, mut trailer) = split(&chosen.description).expect("good lines");
            trailer.evicted.extend(assembly.lost.clone());
            next.description = lamina_metadata::member::records::join(file, &trailer);
            next.generation = assembly.latest + 1;
        }
        members.push((below, next));
    }
    take_into_use(&mut members).await.map_err(|e| e.to_string())?;
    let latest = members.iter().map(|(_, s)| s.generation).fold(assembly.latest, u64::max);
    let members = members.into_iter().map(|(below, superblock)| Member::new(below, superblock)).collect();
    let survives = move |out: &[&str]| flaw != Flaw::DoneBeforeOut && survives(out);
    let roster = Roster::new(members, latest, Rc::new(survives)).map_err(|e| e.to_string())?;
    for superblock in assembly.back {
        let below = node(env, &superblock.name);
        roster.rejoin(Member::new(below, superblock), None).await.map_err(|e| e.to_string())?;
    }
    Ok((roster, number))
}

/// Writes to these disks fail from now on.
fn break_disks(env: &Rc<SimEnv>, names: &'static [&'static str]) {
    let fault = move |_, disk: &str, io: &Io| {
        let hit = names.contains(&disk) && matches!(io.op.kind(), OpKind::Write | OpKind::Flush);
        hit.then(|| Error::media("broken"))
    };
    env.set_fault(Some(Box::new(fault)));
}

/// A member that failed, taken in again: it is opened, recognised, and rejoins.
async fn back(env: &Rc<SimEnv>, roster: &Rc<Roster>, name: &str) {
    let below = node(env, name);
    let found = superblock::read(&below).await;
    let own = roster.recognise(&Candidate::new(name, found)).expect("it is what it was");
    roster.rejoin(Member::new(below, own), None).await.expect("it can be written");
}

/// The image of a crash, the last acknowledged number, the one after it, and the members that were broken then.
struct Crash {
    images: Images,
    done: u64,
    next: u64,
    broken: &'static [&'static str],
}

/// Numbers are kept while members fail and come back; the crashes before every change.
fn crashes(flaw: Flaw, loss: Option<Loss>, seed: u64) -> Vec<Crash> {
    let world = Simulation::new(seed);
    let env = world.env();
    NAMES.iter().for_each(|name| drop(env.put_disk(name, Image::blank(DiskOptions::new(SIZE)))));
    let left: Rc<RefCell<Vec<Crash>>> = Rc::default();
    let into = Rc::clone(&left);
    let run = world.run(async move {
        let set = (0..3).map(|index| superblock(1, index, 1, "[hierarchy]\n"));
        let set: Vec<_> = set.map(|s| (node(&env, &s.name), s)).collect();
        superblock::write_all(&set).await.expect("writes");
        let (roster, _) = open(&env, false, flaw).await.expect("it opens");
        let now: Rc<Cell<(u64, u64, &'static [&'static str])>> = Rc::new(Cell::new((0, 0, &[])));
        let (seen, state) = (Rc::clone(&env), Rc::clone(&now));
        env.observe(Some(Rc::new(move || {
            let (done, next, broken) = state.get();
            let lost = |loss| seen.images(loss, seed ^ seen.tick());
            let images = loss.map_or_else(|| seen.orphans(), lost);
            into.borrow_mut().push(Crash { images, done, next, broken });
        })));
        let keep = roster.keep("x");
        let put = async |n: u64| {
            let (done, _, broken) = now.get();
            now.set((done, n, broken));
            match keep.set(json!(n)).await {
                Err(_) if flaw == Flaw::DoneBeforeOut => {}
                trailer => trailer.expect("the hierarchy survives"),
            }
            now.set((n, n, broken));
        };
        put(1).await;
        let steps: [&'static [&'static str]; 4] = [&["c"], &["a"], &["b", "c"], &["b"]];
        for (round, broken) in steps.into_iter().enumerate() {
            let n = 10 * (round as u64 + 1);
            break_disks(&env, broken);
            now.set((now.get().0, now.get().1, broken));
            put(n).await;
            put(n + 1).await;
            // A member that comes back is needed from then on.
            for (name, rest) in broken.iter().zip(1..) {
                now.set((now.get().0, now.get().1, &broken[rest..]));
                break_disks(&env, &broken[rest..]);
                if flaw != Flaw::DoneBeforeOut {
                    back(&env, &roster, name).await;
                }
            }
            env.set_fault(None);
            put(n + 2).await;
        }
        env.observe(None);
    });
    run.unwrap_or_else(|hang| panic!("{hang:?}"));
    left.take()
}

/// The hierarchy assembled from images, without the disks `gone`; if it is accepted, it is used, crashed and opened
/// again.
fn assembled(images: &Images, gone: &[&str], flaw: Flaw) -> Result<u64, String> {
    let there = |path: &PathBuf| !gone.iter().any(|name| *path == PathBuf::from(name));
    let images: Images =
        images.iter().filter(|(path, _)| there(path)).map(|(p, i)| (p.clone(), i.clone())).collect();
    let world = Simulation::from_images(5, &images);
    let env = world.env();
    let opened = world.run(async move {
        let (roster, number) = open(&env, false, flaw).await?;
        roster.keep("x").set(json!(1000)).await.map_err(|e| e.to_string())?;
        let again = judged(&look(&env).await, false, flaw)?;
        if self::number(&again) != 1000 || !again.back.is_empty() {
            return Err("what was kept after that is not there".into());
        }
        Ok(number)
    });
    opened.unwrap_or_else(|hang| panic!("{hang:?}"))
}

fn trial(flaw: Flaw, seed: u64) -> Result<(), String> {
    let mut count = 0;
    // The last one is the death of the process.
    for loss in [Some(Loss::All), Some(Loss::Torn), Some(Loss::Nothing), None] {
        for Crash { images, done, next, broken } in crashes(flaw, loss, seed) {
            count += 1;
            let good = |n: u64| n == done || n == next;
            let all = assembled(&images, &[], flaw).map_err(|e| format!("{done}: not assembled: {e}"))?;
            if !good(all) {
                return Err(format!("{all} is assembled, and {done} was called done"));
            }
            for gone in [&["a"][..], &["b"], &["c"], &["a", "b"], &["b", "c"], &["a", "c"]] {
                match assembled(&images, gone, flaw) {
                    Ok(n) if !good(n) => {
                        return Err(format!("without {gone:?} {n} is assembled, and {done} was called done"));
                    }
                    // Numbers that were acknowledged while these were broken do not need them.
                    Err(e) if gone == broken && done == next && done % 10 == 1 && done > 1 => {
                        return Err(format!("without {gone:?}, which are evicted: {e}"));
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }
    assert!(count >= 100, "{count} crashes are too few");
    Ok(())
}

#[test]
fn what_was_called_done_is_there_whoever_is_missing() {
    for seed in 0..4 {
        trial(Flaw::None, seed).unwrap();
    }
}

#[test]
fn who_is_missing_and_not_out_is_caught() {
    let said = trial(Flaw::MissingIsOut, 1).expect_err("the canary was not caught");
    assert!(said.contains("was called done"), "{said}");
}

#[test]
fn a_change_called_done_before_the_rest_say_who_is_out_is_caught() {
    let said = trial(Flaw::DoneBeforeOut, 1).expect_err("the canary was not caught");
    assert!(said.contains("was called done"), "{said}");
}

/// Serves `names` alone, asked for or not, and keeps some numbers; the disks afterwards.
fn alone(images: &Images, names: &[&str], numbers: &[u64]) -> Images {
    let some = images.iter().filter(|(path, _)| names.iter().any(|name| **path == PathBuf::from(name)));
    let world = Simulation::from_images(9, &some.map(|(p, i)| (p.clone(), i.clone())).collect());
    let (env, numbers) = (world.env(), numbers.to_vec());
    let run = world.run(async move {
        let (roster, _) = open(&env, true, Flaw::None).await.expect("it was asked for");
        for n in numbers {
            roster.keep("x").set(json!(n)).await.expect("the hierarchy survives");
        }
        env.images(Loss::All, 1)
    });
    run.unwrap_or_else(|hang| panic!("{hang:?}"))
}

/// Two halves go on apart, and meet again.
fn halves(flaw: Flaw) -> Result<(), String> {
    let start = crashes(Flaw::None, Some(Loss::All), 3).swap_remove(0).images;
    for one in [&["a"][..], &["a", "b"], &["b", "c"]] {
        let other: Vec<&str> = NAMES.into_iter().filter(|name| !one.contains(name)).collect();
        for (left, right) in [(0, 0), (1, 0), (0, 3), (2, 2), (1, 2)] {
            let numbers = |from: u64, count: u64| (from..from + count).collect::<Vec<u64>>();
            let mut both = alone(&start, one, &numbers(100, left));
            both.extend(alone(&start, &other, &numbers(200, right)));
            match assembled(&both, &[], flaw) {
                Err(e) if e.contains("apart") => {}
                done => return Err(format!("{one:?} {left} and {other:?} {right}: {done:?}")),
            }
            // Either half can be gone on with.
            assembled(&both, one, flaw)?;
            assembled(&both, &other, flaw)?;
        }
    }
    Ok(())
}

#[test]
fn halves_that_went_on_apart_are_refused() {
    halves(Flaw::None).unwrap();
}

#[test]
fn a_half_that_is_taken_for_the_whole_is_caught() {
    halves(Flaw::HigherGenerationWins).expect_err("the canary was not caught");
}

/// An older copy of a member is not the member that was left out.
#[test]
fn an_older_copy_of_a_member_is_not_taken_in() {
    let all = crashes(Flaw::None, Some(Loss::All), 3);
    let old = all[0].images.clone();
    let mut now = alone(&all.last().expect("crashes").images, &["a", "b"], &[500]);
    now.insert("c".into(), old[&PathBuf::from("c")].clone());
    let world = Simulation::from_images(9, &now);
    let env = world.env();
    let assembly = world.run(async move { judged(&look(&env).await, false, Flaw::None) });
    let assembly = assembly.expect("it ends").expect("it goes on without c");
    assert!(assembly.back.is_empty());
    assert!(assembly.notes.iter().any(|note| note.message.contains("older copy")), "{:?}", assembly.notes);
}
