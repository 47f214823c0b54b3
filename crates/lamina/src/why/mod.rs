//! `lamina why`: where the time of an export's requests goes, in sentences.

use crate::api::{Job, OperationTimes, Share, SlowRequest, Why};
use crate::cli;
use crate::control::Client;
use crate::exit::Failure;
use crate::show::latency;
use crate::uri::encoded;
use lamina_block::Bytes;
use std::fmt::Write as _;
use std::io::Write;

/// Parts below this share of the time are not told.
const TOLD: f64 = 0.03;
/// Slow requests that are told.
const SLOWEST: usize = 3;

/// Runs `lamina why`.
pub fn run(args: &cli::Why) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let why: Why = client.get(&format!("/v1/exports/{}/why", encoded(&args.export, "")))?;
    let mut out = std::io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&why).map_err(Failure::failed)?)?,
        false => write!(out, "{}", text(&why))?,
    }
    Ok(())
}

/// What is known, for people.
pub fn text(why: &Why) -> String {
    let mut out = String::new();
    if why.samples == 0 {
        return "no request is looked at: `lamina serve` was started with `--samples 0`\n".into();
    }
    if why.operations.is_empty() {
        return format!("{}: no request has waited for anything yet\n", why.export);
    }
    why.jobs.iter().for_each(|job| out.push_str(&beside(job)));
    // What takes most of the time of all is told first.
    let total =
        |times: &OperationTimes| times.requests as f64 * times.mean.iter().map(|share| share.us).sum::<f64>();
    let mut operations: Vec<_> = why.operations.iter().collect();
    operations.sort_by(|(_, a), (_, b)| total(b).total_cmp(&total(a)));
    for (name, times) in operations {
        let _ = writeln!(
            out,
            "{name}: half take at most {}, 99% at most {} ({} of the last {:.0} s)",
            short(times.median_us),
            short(times.p99_us),
            times.requests,
            times.seconds.max(1.0)
        );
        shares(&mut out, "on average", &times.mean);
        shares(&mut out, "of the slowest 1%", &times.slow);
        if let Some(advice) = times.slow.first().and_then(|share| advice(&share.cause)) {
            let _ = writeln!(out, "  {advice}");
        }
    }
    if !why.slowest.is_empty() {
        let _ = writeln!(out, "slowest of the last five minutes:");
    }
    for slow in why.slowest.iter().take(SLOWEST) {
        let SlowRequest { operation, bytes, seconds_ago, us, parts } = slow;
        let parts: Vec<_> = parts.iter().filter(|part| part.us >= us * TOLD).map(part_of_way).collect();
        let (bytes, took) = (Bytes(*bytes), short(*us));
        let _ =
            writeln!(out, "  {operation} of {bytes}, {seconds_ago:.0} s ago: {took}: {}", parts.join(", "));
    }
    out
}

/// Work that uses the same devices.
fn beside(Job { device, name, done, total, rate, .. }: &Job) -> String {
    let percent = (*done as f64 * 100.0 / (*total).max(1) as f64).min(100.0).floor();
    format!(
        "meanwhile the job {name} of {device} uses the same devices: {}/s, {percent}% done; `lamina ctl {device} job \
         {name} limit=RATE` slows it down\n",
        Bytes(*rate).rounded()
    )
}

fn short(us: f64) -> String {
    latency((us * 1e3) as u64)
}

fn part_of_way(part: &Share) -> String {
    let what = if part.cause == "itself" { String::new() } else { format!(" {}", part.cause) };
    format!("{}{what} {}", part.device, short(part.us))
}

fn shares(out: &mut String, of: &str, shares: &[Share]) {
    let all: f64 = shares.iter().map(|share| share.us).sum();
    let _ = writeln!(out, "  {of} {}:", short(all));
    for share in shares.iter().filter(|share| share.us >= all * TOLD) {
        let percent = share.us / all * 100.0;
        let _ = writeln!(out, "    {percent:3.0}%  {:>9}  {}", short(share.us), sentence(share));
    }
}

/// What a part of the time is.
fn sentence(Share { device, kind, cause, .. }: &Share) -> String {
    match cause.as_str() {
        "lock" => format!("waits in {device} ({kind}) for other requests of the same bytes"),
        "room" => format!("waits in {device} ({kind}) for room"),
        "queue" => format!("waits in {device} ({kind}) for its turn"),
        "flow-control" => format!("is held back by {device} ({kind}), to the speed of what is below"),
        "hosts" => format!("waits in {device} ({kind}) for other hosts"),
        "change" => format!("waits at {device} ({kind}) for a change of the hierarchy"),
        _ => format!("is in {device} ({kind})"),
    }
}

/// What helps against what takes most of the time of slow requests.
fn advice(cause: &str) -> Option<&'static str> {
    Some(match cause {
        "flow-control" | "room" => {
            "More is written than what is below takes: more room (a larger share of a flash) bridges longer bursts, \
             and only something faster below, or less to write, helps in the long run."
        }
        "queue" => {
            "More requests come than the device is given at a time: its depth and its policy decide that."
        }
        "lock" => {
            "Requests of the same bytes follow one another: clients write the same blocks, or data is moved there."
        }
        "hosts" => "`lamina cluster` shows what other hosts do.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
