//! `lamina bench`: load on a device, with rates, latencies and CPU time.
//!
//! The device is opened by this process, on one reactor; for an NBD server that is our own client, the same against
//! every server. The clients of a workload may reach it by several ways: connections, or devices. Every worker has one
//! request in flight and a buffer of its own. Latencies are taken with the real clock around each request, so that time
//! spent waiting for this process's own turn counts; in virtual time ([`virtual_time`]) there is no such waiting.

mod cpu;
mod load;
mod report;
pub mod target;
mod virtual_time;
mod workload;

use crate::cli;
use crate::confirm::confirm;
use crate::exit::Failure;
use lamina_block::{Bytes, Env, Extent, ExtentState, Geometry, Node};
use lamina_graph::Hierarchy;
use lamina_host::{Asker, Host, Options, Reactor};
use load::{Clock, Load};
use report::Report;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;
use target::Target;

/// Runs `lamina bench`.
pub fn run(args: &cli::Bench) -> Result<(), Failure> {
    checked(args)?;
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

/// Fails if options contradict each other.
fn checked(args: &cli::Bench) -> Result<(), Failure> {
    match args.device.as_slice() {
        [_, _, ..] if args.workload.is_none() => {
            Err(Failure::usage("--device: only a --workload takes several devices"))
        }
        _ => Ok(()),
    }
}

fn real(args: &cli::Bench) -> Result<Report, Failure> {
    let (connections, apart) = (args.connections, args.workload.is_some());
    let target = Target::read(&args.target, &args.device, connections, apart)?;
    let options = Options { spin: args.spin.0, asker: Some(Asker::at_terminal()), ..Options::default() };
    let reactor =
        Reactor::new(options).map_err(|e| Failure::failed(format!("the reactor cannot start: {e}")))?;
    reactor.run(measure(reactor.env(), target, args))
}

/// Opens the target, loads it, and closes it again.
async fn measure(host: Rc<Host>, target: Target, args: &cli::Bench) -> Result<Report, Failure> {
    let Target { plan, devices } = target;
    let env = Rc::clone(&host) as Rc<dyn Env>;
    let hierarchy =
        Hierarchy::build(plan, env).await.map_err(|report| Failure::File(crate::files::shown(&report)))?;
    let nodes = nodes(&hierarchy, &devices)?;
    let measured = match &args.workload {
        Some(text) => work(host, &hierarchy, nodes, args, text).await,
        None => put_load(host, &hierarchy, Rc::clone(&nodes[0]), args).await,
    };
    let closed = hierarchy.close().await.map_err(Failure::failed);
    let report = measured?;
    closed?;
    Ok(report)
}

/// The nodes of devices, at least one.
fn nodes(hierarchy: &Hierarchy, devices: &[String]) -> Result<Vec<Rc<Node>>, Failure> {
    let node =
        |device| hierarchy.node(device).ok_or_else(|| Failure::failed(format!("no device {device:?}")));
    devices.iter().map(|device| node(device)).collect()
}

/// Puts a constant load on a device.
async fn put_load(
    host: Rc<Host>,
    hierarchy: &Hierarchy,
    node: Rc<Node>,
    args: &cli::Bench,
) -> Result<Report, Failure> {
    let size = size(&node.geometry(), args);
    let size = size.map_err(|wrong| Failure::usage(format!("{}: {wrong}", node.name())))?;
    let cause = match args.rw {
        cli::Mix::Read => None,
        cli::Mix::Write => Some("--rw write"),
        cli::Mix::Mixed => Some("--rw mixed"),
    };
    spares_data(hierarchy, &node, args, size, cause).await?;
    Ok(load(args, size).run(host, Clock::Machine(Instant::now()), node).await)
}

/// Puts a workload on a device. `nodes` are ways to it.
async fn work(
    host: Rc<Host>,
    hierarchy: &Hierarchy,
    nodes: Vec<Rc<Node>>,
    args: &cli::Bench,
    text: &str,
) -> Result<Report, Failure> {
    let prepared = workload::prepare(args, text, &nodes)?;
    let size = args.size.unwrap_or(Bytes(nodes[0].geometry().size)).0;
    let cause = format!("--workload {text}");
    for node in &nodes {
        spares_data(hierarchy, node, args, size, prepared.changes().then_some(&cause)).await?;
    }
    Ok(workload::run(host, Clock::Machine(Instant::now()), nodes, prepared, workload::Options::of(args))
        .await)
}

/// Fails if `cause`, an option, would overwrite data that may be needed, and this is not confirmed.
async fn spares_data(
    hierarchy: &Hierarchy,
    node: &Rc<Node>,
    args: &cli::Bench,
    size: u64,
    cause: Option<&str>,
) -> Result<(), Failure> {
    let Some(cause) = cause.filter(|_| !args.force) else { return Ok(()) };
    let what = match hierarchy.plan().persistent() {
        Some(_) => "the device belongs to a persistent hierarchy",
        None if has_data(node, size).await => "there is data",
        None => return Ok(()),
    };
    confirm(&format!("{}: {cause} overwrites the first {}, and {what}", node.name(), Bytes(size)))
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
        let target = Target { plan: plan.expect("a plan"), devices: vec!["a".into()] };
        let line =
            ["lamina", "bench", "x", "--rw", "mixed", "--depth", "4", "--time", "30ms", "--ramp", "1ms"];
        let cli::Command::Bench(args) = cli::Cli::parse_from(line).command else { panic!("bench") };
        let report = reactor.run(measure(reactor.env(), target, &args)).expect("a report");
        let (read, write) = (report.read.expect("reads").requests, report.write.expect("writes").requests);
        assert!(read > 0 && write > 0);
        assert_eq!(report.requests, read + write);
        assert_eq!(report.errors, 0);
    }
    #[test]
    fn a_workload_takes_the_place_of_the_load() {
        let reactor = Reactor::new(Options::default()).expect("a reactor");
        let text = "[device.a]\ntype = \"null\"\nsize = \"1GiB\"\n";
        let plan = lamina_graph::Plan::parse(text, "x", std::path::Path::new("/"), &crate::files::kinds());
        let target = || Target { plan: plan.clone().expect("a plan"), devices: vec!["a".into()] };
        let run = |workload: &str| {
            let line = ["lamina", "bench", "x", "--force", "--workload", workload];
            let cli::Command::Bench(args) = cli::Cli::parse_from(line).command else { panic!("bench") };
            reactor.run(measure(reactor.env(), target(), &args))
        };
        let report = run("web:cached,clients=20,requests=200,files=1000").expect("a report");
        let read = report.read.as_ref().expect("reads").requests;
        assert_eq!((report.requests, read, report.errors), (200, 200, 0));
        let text = report.text();
        assert!(
            text.contains(" sectors/ms, response mean ") && text.contains("\nread  200 requests"),
            "{text}"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("t.csv");
        let lines = "0,W,0,0,4096\n1,R,0,4096,512\n2,F,0,0,0\n3,D,0,0,1048576\n4,W,0,0,3145728\n";
        std::fs::write(&trace, lines).expect("a trace");
        let report = run(&format!("trace:{},depth=3", trace.display())).expect("a report");
        assert_eq!((report.requests, report.errors), (5, 0));
        let workload = report.workload.expect("a workload");
        assert_eq!(workload.flush.expect("a flush").requests, 1);
        assert_eq!(workload.discard.expect("a discard").requests, 1);
        for (workload, says) in [("web:x", "web:direct and web:cached"), ("trace:/none/x", "/none/x")] {
            let message = format!("{:?}", run(workload).expect_err("it is wrong"));
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn clients_of_a_workload_share_devices_that_are_alike() {
        let device = |name, size| format!("[device.{name}]\ntype = \"null\"\nsize = \"{size}\"\n");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a.toml");
        let text = [device("a", "1GiB"), device("b", "1GiB"), device("c", "2GiB")].concat();
        std::fs::write(&file, text).expect("a file");
        let work = |devices: &[&str], workload: &[&str]| {
            let devices = devices.iter().flat_map(|device| ["--device", device]);
            let line = ["lamina", "bench", file.to_str().expect("a path in UTF-8")].into_iter();
            let line = line.chain(devices).chain(workload.iter().copied());
            let cli::Command::Bench(args) = cli::Cli::parse_from(line).command else { panic!("bench") };
            checked(&args).and_then(|()| real(&args)).map_err(|e| format!("{e:?}"))
        };
        let web = ["--workload", "web,clients=4,requests=100,files=1000,sleep=0"];
        assert_eq!(work(&["a,b"], &web).expect("a report").requests, 100);
        assert!(work(&["a", "c"], &web).expect_err("two sizes").contains("a and c are not alike"));
        assert!(work(&["a", "b"], &[]).expect_err("a load").contains("only a --workload"));
    }
}
