//! `lamina bench`: load on a device, with rates, latencies and CPU time.
//!
//! The device is opened by this process, on one reactor; for an NBD server that is our own client, the same against
//! every server. Every worker has one request in flight and a buffer of its own. Latencies are taken with the
//! real clock around each request, so that time spent waiting for this process's own turn counts; in virtual time
//! ([`virtual_time`]) there is no such waiting.

mod cpu;
mod load;
mod report;
pub mod target;
mod virtual_time;

use crate::cli;
use crate::confirm::confirm;
use crate::exit::Failure;
use lamina_block::{Bytes, Env, Extent, ExtentState, Geometry, Node};
use lamina_graph::Hierarchy;
use lamina_host::{Host, Options, Reactor};
use load::{Clock, Load};
use report::Report;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;
use target::Target;

/// Runs `lamina bench`.
pub fn run(args: &cli::Bench) -> Result<(), Failure> {
    let report = if args.virtual_time { virtual_time::measure(args)? } else { real(args)? };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    match &report.first_error {
        None => Ok(()),
        Some(e) => Err(Failure::failed(format!("{} requests failed, the first: {e}", report.errors))),
    }
}

fn real(args: &cli::Bench) -> Result<Report, Failure> {
    let target = Target::read(&args.target, args.device.as_deref(), args.connections)?;
    let options = Options { spin: args.spin.0, ..Options::default() };
    let reactor =
        Reactor::new(options).map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))?;
    reactor.run(measure(reactor.env(), target, args))
}

/// Opens the target, loads it, and closes it again.
async fn measure(host: Rc<Host>, target: Target, args: &cli::Bench) -> Result<Report, Failure> {
    let Target { plan, device } = target;
    let env = Rc::clone(&host) as Rc<dyn Env>;
    let hierarchy =
        Hierarchy::build(plan, env).await.map_err(|report| Failure::File(crate::files::shown(&report)))?;
    let node = hierarchy.node(&device).ok_or_else(|| Failure::failed(format!("no device {device:?}")))?;
    let measured = match size(&node.geometry(), args) {
        Ok(size) => match spares_data(&hierarchy, &node, args, size).await {
            Ok(()) => {
                let clock = Clock::Machine(Instant::now());
                Ok(load(args, size).run(host, clock, node).await)
            }
            Err(e) => Err(e),
        },
        Err(wrong) => Err(Failure::usage(format!("{device}: {wrong}"))),
    };
    let closed = hierarchy.close().await.map_err(Failure::failed);
    let report = measured?;
    closed?;
    Ok(report)
}

/// Fails if the load would overwrite data that may be needed, and this is not confirmed.
async fn spares_data(
    hierarchy: &Hierarchy,
    node: &Rc<Node>,
    args: &cli::Bench,
    size: u64,
) -> Result<(), Failure> {
    if args.rw == cli::Mix::Read || args.force {
        return Ok(());
    }
    let what = match hierarchy.plan().persistent() {
        Some(_) => "the device belongs to a persistent hierarchy",
        None if has_data(node, size).await => "there is data",
        None => return Ok(()),
    };
    let (name, rw) = (node.name(), if args.rw == cli::Mix::Write { "write" } else { "mixed" });
    confirm(&format!("{name}: --rw {rw} overwrites the first {}, and {what}", Bytes(size)))
}

/// True if anything but zeroes may be there.
async fn has_data(node: &Rc<Node>, size: u64) -> bool {
    let is_data = |run: &Extent| run.state == ExtentState::Data;
    node.extents(0..size).await.map_or(true, |runs| runs.iter().any(is_data))
}

fn load(args: &cli::Bench, size: u64) -> Load {
    Load {
        mix: args.rw,
        reads: args.reads,
        block: args.block_size.0,
        depth: args.depth,
        sequential: args.sequential,
        flush_every: args.flush_every,
        size,
        ramp: args.ramp.0,
        time: args.time.0,
        seed: args.seed,
        server: args.server_pid,
    }
}

/// The bytes from the start that are used: whole blocks. Or memory that does not suffice.
fn size(geometry: &Geometry, args: &cli::Bench) -> Result<u64, String> {
    let block = args.block_size.0;
    if block == 0 || !block.is_multiple_of(geometry.block as u64) {
        return Err(format!("--block-size must be a multiple of {} bytes here", geometry.block));
    }
    if block > 32 << 20 {
        return Err("--block-size: at most 32MiB".into());
    }
    if geometry.read_only && args.rw != cli::Mix::Read {
        return Err("the device is read-only: only --rw read is possible".into());
    }
    if args.time.0.is_zero() {
        return Err("--time cannot be zero".into());
    }
    let wanted = args.size.unwrap_or(Bytes(geometry.size)).0;
    if wanted > geometry.size {
        return Err(format!("--size: the device has only {}", Bytes(geometry.size)));
    }
    match wanted - wanted % block {
        0 => Err(format!("a block of {} does not fit", Bytes(block))),
        size => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn wrong(words: &[&str], geometry: Geometry) -> String {
        let line = ["lamina", "bench", "x"].iter().chain(words);
        let cli::Command::Bench(args) = cli::Cli::parse_from(line).command else { panic!("bench") };
        size(&geometry, &args).expect_err("it does not fit")
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let disk = Geometry { block: 4096, ..Geometry::new(1 << 20) };
        for (words, geometry, says) in [
            (&["--block-size", "512"][..], disk, "multiple of 4096"),
            (&["--block-size", "0"], disk, "multiple of"),
            (&["--block-size", "64MiB"], disk, "at most 32MiB"),
            (&["--block-size", "2MiB"], disk, "does not fit"),
            (&["--size", "2MiB"], disk, "only 1MiB"),
            (&["--time", "0s"], disk, "zero"),
            (&["--rw", "mixed"], Geometry { read_only: true, ..disk }, "read-only"),
        ] {
            let message = wrong(words, geometry);
            assert!(message.contains(says), "{words:?}: {message}");
        }
    }

    #[test]
    fn a_null_device_takes_the_load() {
        let reactor = Reactor::new(Options::default()).expect("a reactor");
        let text = "[device.a]\ntype = \"null\"\nsize = \"1MiB\"\n";
        let plan = lamina_graph::Plan::parse(text, "x", std::path::Path::new("/"), &crate::files::kinds());
        let target = Target { plan: plan.expect("a plan"), device: "a".into() };
        let line =
            ["lamina", "bench", "x", "--rw", "mixed", "--depth", "4", "--time", "30ms", "--ramp", "1ms"];
        let cli::Command::Bench(args) = cli::Cli::parse_from(line).command else { panic!("bench") };
        let report = reactor.run(measure(reactor.env(), target, &args)).expect("a report");
        let (read, write) = (report.read.expect("reads").requests, report.write.expect("writes").requests);
        assert!(read > 0 && write > 0);
        assert_eq!(report.requests, read + write);
        assert_eq!(report.errors, 0);
    }
}
