//! Soaks every layer and the stacked graphs, as hierarchy files, in simulated worlds.
//!
//! `cargo run --release -p lamina-graph --example soak -- --seeds 1000000`; `--from N` begins elsewhere, so that
//! several machines can divide the seeds. A failure is printed with the arguments that show it again.

#[path = "../tests/common/stacks.rs"]
mod stacks;

use std::process::ExitCode;

fn main() -> ExitCode {
    lamina_sim::simulate(stacks::all)
}
