//! Very many seeds over every layer and the stacked graphs, all read from hierarchy files.
//!
//! `LAMINA_SEEDS` is the number of seeds (1,000), `LAMINA_SEED` the first one. A million: `cargo run --release -p
//! lamina-graph --example soak -- --seeds 1000000`.

#[path = "common/stacks.rs"]
mod stacks;

/// A number from the environment, decimal or 0x-hexadecimal.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{name} is no number: {text:?}")))
}

#[test]
fn every_layer_and_graph_stands_every_seed() {
    let seeds = number("LAMINA_SEEDS").unwrap_or(1_000);
    let from = number("LAMINA_SEED").unwrap_or(0);
    match lamina_sim::soak(&stacks::all(), seeds, from) {
        Ok(soaked) => println!("{soaked:?}"),
        Err(failure) => panic!(
            "{failure}\n\nto see it again: LAMINA_SEEDS=1 LAMINA_SEED={:#x} cargo test -p lamina-graph --test soak\n",
            failure.seed
        ),
    }
}
