//! The hierarchy file: any bytes are read, checked, drawn, and if they make a plan, built and closed.
//!
//! What must hold: no panic, no hang, no leak; the same report twice; every problem has a place inside the file; what
//! is printed is safe for a terminal.

#![no_main]

use lamina_graph::{Hierarchy, PROBLEMS_MAX, Plan, Report};
use lamina_sim::Simulation;
use libfuzzer_sys::fuzz_target;
use std::path::Path;

/// The most devices that are built: the file's own limit is higher, and only slower.
const BUILT_MAX: usize = 64;

fn parse(text: &str) -> Result<Plan, Report> {
    Plan::parse(text, "f.toml", Path::new("/srv"), &lamina_layers::KINDS)
}

/// A report is bounded, in order, inside the file, and printable.
fn check(report: &Report, text: &str) {
    assert!(report.problems().len() <= PROBLEMS_MAX);
    let places: Vec<_> = report.problems().iter().filter_map(|p| report.place(p)).collect();
    assert!(places.is_sorted());
    let lines = text.split('\n').count();
    assert!(places.iter().all(|(line, column)| *line <= lines && *column >= 1));
    for printed in [report.to_string(), report.pictures()] {
        assert!(!printed.chars().any(|c| c.is_control() && c != '\n'));
    }
    assert!(report.to_string().lines().all(|line| line.starts_with("f.toml")));
}

fn build(plan: Plan) {
    let devices = plan.devices().len();
    let world = Simulation::new(1);
    let env = world.env();
    let built = world.run(async move { Hierarchy::build(plan, env).await });
    match built.expect("building ends") {
        Err(report) => assert!(report.has_errors()),
        Ok(hierarchy) => {
            assert_eq!(hierarchy.nodes().len(), devices);
            assert!(hierarchy.tree().lines().count() >= devices);
            let closed = world.run(async move { hierarchy.close().await });
            closed.expect("closing ends").expect("what was not used can be closed");
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    match (parse(&text), parse(&text)) {
        (Err(report), Err(again)) => {
            assert!(report.has_errors());
            assert_eq!(report.to_string(), again.to_string());
            check(&report, &text);
        }
        (Ok(plan), Ok(_)) => {
            check(plan.warnings(), &text);
            assert!(plan.tree().lines().count() >= plan.devices().len());
            let devices = plan.devices().len();
            let parts = plan.clone().components();
            assert_eq!(parts.iter().map(|part| part.devices().len()).sum::<usize>(), devices);
            if devices <= BUILT_MAX {
                build(plan);
            }
        }
        _ => panic!("the same text is not read alike"),
    }
});
