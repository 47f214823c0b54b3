//! What has changed since a snapshot, step by step and against a model: no difference is left out, and what was not
//! touched does not count.

use super::scene::*;
use crate::testing::*;
use lamina_block::{Begin, Difference, Level};
use lamina_metadata::extents::FANOUT;
use std::collections::{BTreeMap, BTreeSet};

const KIB: u64 = 1 << 10;
const EXTENT: u64 = 4 * KIB;
/// The most extents of the volume of the random work.
const EXTENTS_MAX: usize = 4096;

fn run<F: Future<Output = ()> + 'static>(how: How, test: impl FnOnce(Open) -> F + 'static) {
    let world = world(&how, 7);
    let env = world.env();
    let open = async move { test(open(&env, &how, Begin::Format).await.expect("it is made")).await };
    world.run(open).expect("it ends");
}

/// Lengths in KiB, the first of what has not changed.
async fn changed(node: &Rc<Node>, since: &str, at: Range<u64>) -> Vec<u64> {
    let runs = node.changed(since.into(), at.clone()).await.expect("an answer");
    assert_eq!(runs.iter().map(|run| run.len).sum::<u64>(), at.end - at.start);
    assert!(runs.windows(2).all(|pair| pair[0].changed != pair[1].changed), "{runs:?}");
    let first = runs.first().is_some_and(|run| run.changed).then_some(0);
    first.into_iter().chain(runs.iter().map(|run| run.len / KIB)).collect()
}

#[test]
fn what_was_written_zeroed_or_discarded_has_changed() {
    for level in Level::ALL {
        run(How::new(level), |vol| async move {
            let (node, all) = (&vol.node, 0..512 * KIB);
            vol.write(0, 1, 64 << 10).await.unwrap();
            vol.command("snapshot", json!({"name": "one"})).await.unwrap();
            assert_eq!(changed(node, "one", all.clone()).await, [512]);
            vol.write(4096, 2, 4096).await.unwrap();
            node.submit(Io::zero(32 << 10..40 << 10, Zero::default())).await.unwrap();
            node.submit(Io::discard(48 << 10..56 << 10)).await.unwrap();
            for _ in 0..2 {
                assert_eq!(changed(node, "one", all.clone()).await, [0, 8, 24, 8, 8, 8, 456]);
                assert_eq!(changed(node, "one", 7 * KIB..33 * KIB).await, [0, 1, 24, 1]);
                vol.flush().await.unwrap();
            }
            vol.command("snapshot", json!({"name": "two"})).await.unwrap();
            // In place in a part, which counts as a whole.
            vol.write(100 << 10, 3, 512).await.unwrap();
            vol.write(101 << 10, 3, 512).await.unwrap();
            assert_eq!(node.snapshots(), ["one", "two"]);
            assert_eq!(changed(node, "two", all.clone()).await, [96, 8, 408]);
            assert_eq!(changed(node, "one", all.clone()).await, [0, 8, 24, 8, 8, 8, 40, 8, 408]);
            let view = vol.view("two").await;
            assert_eq!(view.snapshots(), ["one", "two"]);
            assert_eq!(changed(&view, "one", all.clone()).await, [0, 8, 24, 8, 8, 8, 456]);
            assert_eq!(changed(&view, "two", all.clone()).await, [512]);
            view.close().await.unwrap();
            vol.command("resize", json!({"size": "516KiB"})).await.unwrap();
            assert_eq!(changed(node, "two", 0..516 * KIB).await, [96, 8, 408, 4]);
            assert_eq!(changed(node, "two", 514 * KIB..516 * KIB).await, [0, 2]);
            vol.command("rollback", json!({"name": "one"})).await.unwrap();
            assert_eq!(changed(node, "one", all.clone()).await, [512]);
            vol.reclaimed().await;
            assert_eq!(changed(node, "two", all.clone()).await, [0, 8, 24, 8, 8, 8, 456]);
            vol.command("delete", json!({"name": "one"})).await.unwrap();
            let gone = node.changed("one".into(), all).await.unwrap_err();
            assert_eq!(gone.kind(), ErrorKind::Invalid);
            assert_eq!(gone.message(), "there is no snapshot \"one\"; there are two");
            vol.node.close().await.unwrap();
        });
    }
}

/// The extents of the volume and of its snapshots: each has the number of its last write, 0 for zeroes.
#[derive(Clone, Default)]
struct Model {
    now: Vec<usize>,
    kept: BTreeMap<String, Vec<usize>>,
    /// Extents that may count as changed since a snapshot.
    touched: BTreeMap<String, BTreeSet<usize>>,
}

impl Model {
    fn set(&mut self, extents: Range<usize>, value: usize) {
        self.now[extents.clone()].fill(value);
        self.touched.values_mut().for_each(|touched| touched.extend(extents.clone()));
    }

    fn roll_back(&mut self, name: &str) {
        self.now = self.kept[name].clone();
        for (since, touched) in &mut self.touched {
            // Between two other snapshots, anything may have been.
            *touched = if since == name { BTreeSet::new() } else { (0..EXTENTS_MAX).collect() };
        }
    }
}

/// Whether an answer is right for `now` after `then`. `touched`: the only extents that may count as changed.
fn judge(
    runs: &[Difference],
    now: &[usize],
    then: &[usize],
    touched: Option<&BTreeSet<usize>>,
) -> std::result::Result<(), String> {
    let each = |run: &Difference| std::iter::repeat_n(run.changed, (run.len / EXTENT) as usize);
    let changed: Vec<bool> = runs.iter().flat_map(each).collect();
    if changed.len() != now.len() {
        return Err(format!("{} extents were told of {}", changed.len(), now.len()));
    }
    for (extent, changed) in changed.into_iter().enumerate() {
        if !changed && then.get(extent) != Some(&now[extent]) {
            return Err(format!("extent {extent} has changed, and that was not told"));
        }
        let may = touched.is_none_or(|touched| extent >= then.len() || touched.contains(&extent));
        if changed && !may {
            return Err(format!("extent {extent} was not touched, and counts as changed"));
        }
    }
    Ok(())
}

async fn judge_all(vol: &Open, model: &Model) -> std::result::Result<(), String> {
    let size = vol.node.geometry().size;
    for (since, then) in &model.kept {
        let runs = vol.node.changed(since.clone(), 0..size).await.expect("an answer");
        judge(&runs, &model.now, then, Some(&model.touched[since]))?;
        for (name, of) in &model.kept {
            let view = vol.view(name).await;
            let runs = view.changed(since.clone(), 0..view.geometry().size).await.expect("an answer");
            view.close().await.expect("closed");
            judge(&runs, of, then, None)?;
        }
    }
    Ok(())
}

/// Random work in a volume whose map has many leaves, with questions all the time. `wrong`: extents of snapshots count
/// as the volume's own, and are written in place.
fn random_work(level: Level, seed: u64, wrong: bool) -> std::result::Result<(), String> {
    let keys = json!({ "extent": "4KiB", "size": "1MiB" });
    let how = How { keys, level, disk: 16 << 20, meta: Some(4 << 20) };
    let world = world(&how, seed);
    let env = world.env();
    let work = async move {
        let mut draw = xorshift(seed * 2 + 77);
        let mut draw = move |n: usize| (draw() >> 4) as usize % n;
        let mut vol = open(&env, &how, Begin::Format).await.expect("made");
        let mut model = Model { now: vec![0; 256], ..Model::default() };
        for step in 1..150 {
            let before = model.clone();
            let since = model.kept.keys().nth(draw(model.kept.len().max(1))).cloned();
            let asked = since.clone().map(|since| {
                let (node, size) = (Rc::clone(&vol.node), vol.node.geometry().size);
                env.start(async move { node.changed(since, 0..size).await })
            });
            let leaf = draw(model.now.len().div_ceil(FANOUT as usize)) * FANOUT as usize;
            let first = (leaf + draw(12)).min(model.now.len() - 1);
            let extents = first..(first + 1 + draw(4)).min(model.now.len());
            let at = extents.start as u64 * EXTENT..extents.end as u64 * EXTENT;
            let (len, name) = ((at.end - at.start) as usize, format!("s{step}"));
            match draw(24) {
                0..9 => {
                    vol.write(at.start, step as u8, len).await.expect("written");
                    model.set(extents, step);
                }
                9 | 10 => {
                    vol.write(at.start + 512, step as u8, 1024).await.expect("written");
                    model.set(extents.start..extents.start + 1, step);
                }
                11 | 12 => {
                    vol.node.submit(Io::zero(at, Zero::default())).await.expect("zeroed");
                    model.set(extents, 0);
                }
                13 => {
                    vol.node.submit(Io::discard(at)).await.expect("discarded");
                    model.set(extents, 0);
                }
                14 | 15 => vol.flush().await.expect("flushed"),
                16 => vol.reclaimed().await,
                17 if model.now.len() < EXTENTS_MAX => {
                    model.now.resize((model.now.len() * 2).max(1024), 0);
                    let size = model.now.len() as u64 * EXTENT;
                    vol.command("resize", json!({ "size": size })).await.expect("larger");
                }
                18 => {
                    if let Some(asked) = asked {
                        asked.ended().await.expect("an answer");
                    }
                    vol.node.close().await.expect("closed");
                    vol = open(&env, &how, Begin::Open).await.expect("opened");
                    continue;
                }
                19 | 20 if model.kept.len() < 4 => {
                    vol.command("snapshot", json!({ "name": name })).await.expect("kept");
                    model.kept.insert(name.clone(), model.now.clone());
                    model.touched.insert(name, BTreeSet::new());
                }
                21 if since.is_some() => {
                    let name = since.clone().unwrap_or_default();
                    vol.command("rollback", json!({ "name": name })).await.expect("rolled back");
                    model.roll_back(&name);
                }
                22 if since.is_some() => {
                    let name = since.clone().unwrap_or_default();
                    vol.command("delete", json!({ "name": name })).await.expect("deleted");
                    model.kept.remove(&name);
                    model.touched.remove(&name);
                }
                _ => {}
            }
            if wrong {
                vol.core.state.borrow_mut().versions.pretend_to_be_old();
            }
            if let (Some(asked), Some(since)) = (asked, since) {
                match asked.ended().await {
                    Ok(runs) => {
                        // What happened meanwhile may be in the answer: an extent may be again what it was.
                        let (then, after) = (&before.kept[&since], &model.now);
                        let again =
                            |extent: usize| after.get(extent).filter(|now| then.get(extent) == Some(now));
                        let now = |(extent, now)| again(extent).copied().unwrap_or(now);
                        let now: Vec<usize> = before.now.iter().copied().enumerate().map(now).collect();
                        judge(&runs, &now, then, None)?;
                    }
                    Err(e) => {
                        let smaller = model.now.len() < before.now.len();
                        assert!(smaller || !model.kept.contains_key(&since), "{e}");
                    }
                }
            }
            judge_all(&vol, &model).await?;
        }
        vol.node.close().await.expect("closed");
        Ok(())
    };
    world.run(work).expect("it ends").map_err(|e: String| format!("{level:?}, seed {seed}: {e}"))
}

#[test]
fn every_difference_is_told_and_nothing_else() {
    for (seed, level) in (0..4).flat_map(|seed| Level::ALL.map(|level| (seed, level))) {
        random_work(level, seed, false).unwrap();
    }
}

/// A canary: the test above can fail.
#[test]
fn a_shared_extent_written_in_place_is_found_out() {
    let found = (0..6).find_map(|seed| random_work(Level::Shadow, seed, true).err());
    assert!(found.is_some_and(|found| found.contains("has changed, and that was not told")));
}
