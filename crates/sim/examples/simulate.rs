//! Soaks the bare simulated disk: how fast is the simulator itself?
//!
//! `cargo run --release -p lamina-sim --example simulate -- --seeds 1000000`

use lamina_sim::{Subject, simulate};
use std::process::ExitCode;

fn main() -> ExitCode {
    simulate(|| vec![Subject::new("bare disk", |rig| async move { Ok(rig.disk(0)) })])
}
