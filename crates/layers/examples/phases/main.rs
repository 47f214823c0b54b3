//! What a `tier` makes of virtual machines that share a disk and an SSD: loads in steps, in virtual time, on simulated
//! drives.
//!
//! `cargo run --release -p lamina-layers --example phases -- [OPTION…] STEP…`
//!
//! Each step with a load prints a line of JSON.
//!
//! ```text
//!      client 1 ─▶ volume 1 ─┬─▶ part 1 ─┐              each client: one request after the other, of its own draws
//!      client 2 ─▶ volume 2 ─┼─▶ part 2 ─┴─▶ disk
//!                            └─▶ flash ────▶ SSD
//! ```
//!
//! Options: `--volumes=N` (1); `--on=` `tier` (the default), `disk` or `ssd`: those alone; `--placement=` of the tier
//! (heat); `--load=` `web` or `oltp`, those of *A Virtual Storage Environment for SSDs and HDDs in Xen Hypervisor*,
//! Table III, or `mixed`; `--places=` `zipf` (the default) or `uniform`; `--reads=PERCENT` of the requests instead of
//! the load's; `--scale=N`: volumes are an Nth of the load's (64); `--fast=PERCENT`: the flash has space for so much of
//! all volumes (50); `--depth=N` requests of a volume at a time (1); `--disk=`, `--ssd=` a model's name or file
//! (disk-7200, ssd-sata); `--seed=N` (1).
//!
//! Steps: `all`: each client makes the requests of its load once; `for:SECONDS:WINDOW`: all clients go on for so long,
//! counted by windows of so many seconds; `shift:VOLUME`: from now on the client asks for other places, as often as for
//! those before; `weight:VOLUME:N` and `place:PLACEMENT` (of all volumes) are commands of the tier. Volumes count from
//! 0.
//!
//! What is of a size is scaled with the load: the disk's buffer of writes, and how far it seeks for how long. Its cache
//! deliberately is not: it is one of a few streams, whatever the size.

mod clients;
mod devices;
mod load;
mod options;

use clients::Clients;
use devices::Devices;
use lamina_block::Error;
use lamina_sim::Simulation;
use options::{Step, Wanted};
use std::process::ExitCode;
use std::rc::Rc;

/// Slots of the smallest device that is tried.
const SMALLEST: u64 = 1024;

/// Runs the steps; what the flash lacks of the space that it is to have, if it lacks any, instead.
fn run_on(wanted: &Rc<Wanted>, steps: &Rc<[Step]>, slots: u64) -> Result<u64, String> {
    let world = Simulation::measuring(wanted.seed);
    let (env, wanted, steps) = (world.env(), Rc::clone(wanted), Rc::clone(steps));
    let work = async move {
        let devices = Devices::build(&env, &wanted, slots).await?;
        let lacks = devices.slots().map_or(0, |slots| wanted.slots().saturating_sub(slots));
        if lacks > 0 {
            return Ok(lacks);
        }
        let clients = Clients::new(&env, &wanted, &devices);
        for step in steps.iter() {
            match step {
                Step::All => println!("{}", clients.all().await?),
                Step::For { seconds, window } => println!("{}", clients.go_on(*seconds, *window).await?),
                Step::Shift { volume } => clients.shift(*volume),
                Step::Command { volumes, command } => devices.command(volumes.clone(), command).await?,
            }
        }
        Ok(0)
    };
    world.run(work).map_err(|hang| hang.to_string())?.map_err(|e: Error| e.to_string())
}

fn run(words: impl Iterator<Item = String>) -> Result<(), String> {
    let (options, steps): (Vec<String>, Vec<String>) = words.partition(|word| word.starts_with("--"));
    let wanted = Rc::new(Wanted::parse(&options)?);
    let steps = steps.iter().map(|word| Step::parse(word, wanted.volumes));
    let steps = steps.collect::<Result<Rc<[Step]>, _>>()?;
    // What the flash keeps free and says of itself comes on top: its device grows by what is lacking.
    let mut slots = wanted.slots().max(SMALLEST);
    while let lacks @ 1.. = run_on(&wanted, &steps, slots)? {
        slots += lacks;
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("phases: {e}");
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
    fn steps_run_on_all_devices() {
        for on in ["tier", "disk", "ssd"] {
            let line = format!("--on={on} --volumes=2 --load=oltp --scale=1024 for:2:1 shift:1 for:1:1");
            assert_eq!(ran(&line), Ok(()), "{on}");
        }
        let line = "--volumes=2 --scale=4096 --placement=lru for:1:1 weight:0:300 place:static:0 for:1:0.5";
        assert_eq!(ran(line), Ok(()));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for line in [
            "--on=tape all",
            "--disk=no-such all",
            "fall",
            "for:long:1",
            "shift:1",
            "--depth=0 all",
            "--scale=4096 weight:0:0",
            "--scale=4096 --on=disk weight:0:1",
        ] {
            assert!(ran(line).is_err(), "{line}");
        }
    }
}
