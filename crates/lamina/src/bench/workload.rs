//! A workload on a device, instead of a constant load: the web file server, or the replay of a trace.
//!
//! The workload says when clients send, sleep and wait, and ends by itself. The run ends with the first request that
//! fails. The response time is measured, from the moment when a request was sent to its end; a scheduler or a
//! drive below is not told apart. Clients that wake up late send late: the report says how late, and in an open loop
//! that is an error of the load, not of the device.

use super::cpu;
use super::load::Clock;
use super::report::{ByOperation, Latencies, Report};
use crate::cli;
use crate::clients::{self, Ended, Observer};
use crate::exit::Failure;
use lamina_block::{Bytes, Env, Error, Node};
use lamina_drive::{Op, SECTOR};
use lamina_workload::{Prepared, Spec};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// The workload that the arguments name, made ready for a device. `nodes` are ways to it, at least one.
pub fn prepare(args: &cli::Bench, text: &str, nodes: &[Rc<Node>]) -> Result<Prepared, Failure> {
    let spec: Spec = text.parse().map_err(|e| Failure::usage(format!("--workload {text}: {e}")))?;
    let geometry = nodes[0].geometry();
    if let Some(other) = nodes.iter().find(|node| node.geometry() != geometry) {
        let (one, other) = (nodes[0].name(), other.name());
        return Err(Failure::usage(format!(
            "--device: {one} and {other} are not alike: one disk was expected"
        )));
    }
    let size = args.size.unwrap_or(Bytes(geometry.size)).0;
    if size > geometry.size {
        return Err(Failure::usage(format!("--size: the device has only {}", Bytes(geometry.size))));
    }
    // A request is made of whole blocks.
    let size = size - size % geometry.block as u64;
    let prepared = spec.prepare(size / SECTOR, args.seed);
    let prepared = prepared.map_err(|e| Failure::failed(format!("--workload {text}: {e}")))?;
    if geometry.read_only && prepared.changes() {
        return Err(Failure::usage("the device is read-only, and the workload writes"));
    }
    Ok(prepared)
}

/// The needs of a run besides its workload.
#[derive(Clone, Copy)]
pub struct Options {
    pub seed: u64,
    /// The process whose CPU time is reported too.
    pub server: Option<u32>,
}

impl Options {
    pub fn of(args: &cli::Bench) -> Options {
        Options { seed: args.seed, server: args.server_pid }
    }
}

/// Runs the workload to its end.
pub async fn run(
    env: Rc<dyn Env>,
    clock: Clock,
    nodes: Vec<Rc<Node>>,
    prepared: Prepared,
    options: Options,
) -> Report {
    let seen = Rc::new(Seen::default());
    let clock = Rc::new(clock);
    let used =
        |clock: &Clock| (clock.now(), crate::daemon::cpu_ns(), options.server.and_then(cpu::of_process));
    let before = used(&clock);
    let now = {
        let clock = Rc::clone(&clock);
        Box::new(move || clock.now())
    };
    clients::run(env, now, nodes, prepared.start(options.seed), Rc::clone(&seen), options.seed).await;
    let after = used(&clock);
    let seconds = after.0.since(before.0).as_secs_f64();
    let mut report =
        Report::of_workload(&seen.latencies.borrow(), &seen.late.borrow(), seen.bytes.get(), seconds);
    let server = after.2.zip(before.2).map(|(after, before)| after.saturating_sub(before));
    report.cpu(after.1.saturating_sub(before.1), server);
    report.errors = seen.errors.get();
    report.first_error = seen.first_error.borrow().as_ref().map(Error::to_string);
    report
}

/// The measurements.
#[derive(Default)]
struct Seen {
    latencies: RefCell<ByOperation>,
    late: RefCell<Latencies>,
    bytes: Cell<u64>,
    errors: Cell<u64>,
    first_error: RefCell<Option<Error>>,
}

impl Observer for Seen {
    fn ended(&self, ended: Ended) {
        if let Err(e) = ended.result {
            self.errors.set(self.errors.get() + 1);
            self.first_error.borrow_mut().get_or_insert(e);
            return;
        }
        let latency = ended.at.since(ended.sent);
        let mut latencies = self.latencies.borrow_mut();
        latencies.all.record(latency);
        match ended.request.op {
            Op::Read => latencies.read.record(latency),
            Op::Write => latencies.write.record(latency),
            Op::Flush => latencies.flush.record(latency),
            Op::Discard => latencies.discard.record(latency),
        }
        if matches!(ended.request.op, Op::Read | Op::Write) {
            self.bytes.set(self.bytes.get() + ended.bytes);
        }
    }

    fn late(&self, by: Duration) {
        self.late.borrow_mut().record(by);
    }

    fn is_over(&self) -> bool {
        self.errors.get() > 0
    }
}
