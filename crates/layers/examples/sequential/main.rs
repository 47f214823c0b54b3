//! What `sequentialize` makes of a drive: loads in phases, in virtual time, on simulated drives.
//!
//! `cargo run --release -p lamina-layers --example sequential -- [OPTION…] PHASE…`: a line of JSON for each phase.
//!
//! Options: `--stack=` `direct`, `log` (the default), `parity` or `log-parity` (five drives); `--model=` a model's name
//! or file (`none`, the default: requests take no time); `--size=` of each drive (1GiB); `--stroke`: the seeks of a
//! hard disk are as long as if the drive were used from end to end; `--no-buffer`: a hard disk has no buffer of writes;
//! `--unit=` of the parity (64KiB); `--spare=` of the log (15); `--depth=` requests at a time (8); `--flush=` after so
//! many writes (never); `--for=FILE:COPIES`: the log shows just the blocks that copies of a trace write, and the
//! drive is as large as the spare part wants it.
//!
//! Phases: `fill` writes every block, in order, `fill:SIZE` those of the first SIZE bytes; `write:N`, `zipf:N` write
//! N times as many blocks as the volume has, at random, each 4 KiB; `first:N:SIZE` does so within the first SIZE
//! bytes, N times as many; `trace:FILE:N:COPIES` writes what a trace writes, N times, so many clients side by side,
//! each in blocks of its own; `rate:IOPS:N` is `write:N`, and so many writes begin in a second, whatever becomes of
//! them; `read:SIZE` reads all in order, SIZE at a time; `random:N` reads at random; `idle:SECONDS` waits.
//!
//! Drives keep no data but what was there when the load began, which is the metadata of layers: bytes that were
//! written since are zeroes when they are read. No layer here looks at them before it is opened again.

mod drives;
#[path = "../amplification/loads.rs"]
mod loads;
mod phase;
mod stack;
// Of these `hit_rates` uses more.
#[allow(dead_code)]
#[path = "../hit_rates/trace.rs"]
mod trace;

use lamina_sim::Simulation;
use phase::Phase;
use stack::{Stack, Wanted};
use std::process::ExitCode;

fn run(words: impl Iterator<Item = String>) -> Result<(), String> {
    let (options, phases): (Vec<String>, Vec<String>) = words.partition(|word| word.starts_with("--"));
    let wanted = Wanted::parse(&options)?;
    let phases = phases.iter().map(|word| Phase::parse(word)).collect::<Result<Vec<_>, _>>()?;
    let world = Simulation::measuring(1);
    let (env, load) = (world.env(), wanted.load);
    let work = async move {
        let stack = Stack::build(env, wanted).await.map_err(|e| e.to_string())?;
        for phase in phases {
            println!("{}", phase.run(&stack, load).await?);
        }
        Ok(())
    };
    world.run(work).map_err(|hang| hang.to_string())?
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("sequential: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(line: &str) -> Result<(), String> {
        run(line.split(' ').map(String::from))
    }

    #[test]
    fn phases_run_on_every_stack() {
        for stack in ["direct", "log", "parity", "log-parity"] {
            let line =
                format!("--stack={stack} --size=16MiB --model=ssd-sata fill write:1 read:64KiB idle:1");
            assert_eq!(ran(&line), Ok(()), "{stack}");
        }
        assert_eq!(ran("--size=16MiB zipf:0.5 rate:1000:0.1 first:0.5:1MiB random:0.1"), Ok(()));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for line in ["--stack=tower fill", "--model=no-such fill", "fall", "write:much", "--depth=0 fill"] {
            assert!(ran(line).is_err(), "{line}");
        }
    }
}
