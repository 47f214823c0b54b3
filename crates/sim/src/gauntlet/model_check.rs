//! Check 1: random requests against a model of the allowed contents.

use super::load::Style;
use super::scene::Scene;
use super::subject::Subject;
use fastrand::Rng;
use std::rc::Rc;

/// Requests of one run.
const REQUESTS: usize = 200;

pub(crate) fn check(subject: &Subject, seed: u64) -> Result<(), String> {
    let scene = Scene::new(subject, seed);
    let style = Style::draw(&mut Rng::with_seed(seed), REQUESTS);
    let load = scene.load(subject, seed)?;
    scene.drive(&load, {
        let load = Rc::clone(&load);
        async move {
            load.run(style).await;
            load.read_all().await;
        }
    })?;
    scene.finish(load)
}
