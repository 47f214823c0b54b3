//! The power fails before every change of the disk, also while the store is opened after a power failure: the state
//! found is one that the level promises.

mod common;

use common::{Dies, contents, crash_run, nothing, open, recover, work};
use lamina_metadata::Level;
use lamina_sim::{Loss, Simulation};

fn seeds(default: u64) -> std::ops::Range<u64> {
    let set = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    match set("LAMINA_SEED") {
        Some(one) => one..one + 1,
        None => 0..set("LAMINA_SEEDS").unwrap_or(default),
    }
}

fn every_write(level: Level) {
    for seed in seeds(12) {
        // All of a few, some of many.
        let (steps, one_in) = if seed < 2 { (40, 1) } else { (150, 12) };
        if let Err(e) = crash_run(level, seed, steps, one_in, &nothing()) {
            panic!("{e}\nto see it again: LAMINA_SEED={seed}");
        }
    }
}

#[test]
fn lazy() {
    every_write(Level::Lazy);
}

#[test]
fn shadow() {
    every_write(Level::Shadow);
}

#[test]
fn atomic() {
    every_write(Level::Atomic);
}

/// The process dies, and its writes are in a cache. Data that is read after that stays, also if the power fails then.
#[test]
fn what_was_read_stays() {
    for (level, seed) in Level::ALL.into_iter().flat_map(|level| seeds(8).map(move |seed| (level, seed))) {
        let (history, crashes) = work(level, seed, 100, 10, &nothing(), Dies::Process).expect("it works");
        for (i, crash) in crashes.iter().enumerate() {
            let world = Simulation::from_images(seed, &crash.images);
            let env = world.env();
            let opened = world.run(async move {
                let store = open(&env, &nothing()).await.map_err(|e| e.to_string())?;
                let found = contents(&store).await?;
                Ok::<_, String>((found, env.images(Loss::ALL[i % 4], seed)))
            });
            let (found, images) = opened.expect("it ends").expect("it opens");
            crash.check(&history, level, &found).expect("what was promised");
            let after = recover(&images, &nothing(), 1, seed).expect("it opens again");
            assert!(after == found, "{level:?}, seed {seed}, death {i}: something else is found");
        }
    }
}
