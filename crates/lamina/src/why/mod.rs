//! `lamina why`: where the time of an export's requests goes, in sentences.

pub(crate) mod self_time;
mod trace;

use crate::api::{CoreLoad, Job, OperationTimes, ReadsFirst, Share, SlowRequest, Why};
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
/// From here on requests wait for a core more than it works for them.
const BUSY: f64 = 0.9;
/// Reads that take this part of the time of a write are what it waits for.
const READS: f64 = 0.3;
/// A client with fewer requests under way makes one at a time. If they take less than the time, no device is slow.
const ONE: f64 = 1.2;
const QUICK_US: f64 = 2000.0;
/// Slow requests that are told.
const SLOWEST: usize = 3;

/// Runs `lamina why`.
pub fn run(args: &cli::Why) -> Result<(), Failure> {
    let client = Client::find(args.daemon.control.as_deref())?;
    let why: Why = client.get(&format!("/v1/exports/{}/why", encoded(&args.export, "")))?;
    if let Some(path) = &args.trace {
        let failed = |e| Failure::failed(format!("{}: {e}", path.display()));
        std::fs::write(path, trace::trace(&why).to_string()).map_err(failed)?;
        return Ok(());
    }
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
    if let Some(reason) = unknown(why) {
        return reason + "\n";
    }
    why.jobs.iter().for_each(|job| out.push_str(&beside(job)));
    if why.core.busy >= BUSY {
        out.push_str(&loaded(&why.core));
    }
    for (name, times) in by_time(why) {
        let _ = writeln!(
            out,
            "{name}: half take at most {}, 99% at most {} ({} of the last {:.0} s)",
            short(times.median_us),
            short(times.p99_us),
            times.requests,
            times.seconds.max(1.0)
        );
        let took: f64 = times.mean.iter().map(|share| share.us).sum();
        if is_one(times, took) {
            out.push_str(&one_at_a_time(took));
        }
        let reads = times.reads.iter().filter(|reads| reads.us >= took * READS);
        reads.for_each(|reads| out.push_str(&reads_first(name, reads, took)));
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

/// Everything waits for the core.
fn loaded(CoreLoad { number, busy, computing }: &CoreLoad) -> String {
    let percent = busy * 100.0;
    let by = match &computing[..] {
        [] => String::new(),
        [device] => format!(", where {device} computes with each byte"),
        devices => format!(", where {} compute with each byte", devices.join(" and ")),
    };
    format!(
        "core {number} works {percent:.0}% of the time{by}: requests wait for it; `lamina serve --cores N` gives \
         hierarchies cores of their own, and `lamina show` tells what else this one serves\n"
    )
}

/// The client makes one request at a time, and no device takes long.
fn is_one(times: &OperationTimes, took_us: f64) -> bool {
    times.depth > 0.0 && times.depth < ONE && took_us < QUICK_US
}

/// The client is what makes it slow.
fn one_at_a_time(took_us: f64) -> String {
    let most = (1e6 / took_us.max(1e-3)) as u64;
    format!(
        "  the client has one request under way at a time, and waits for it: no more than {most} a second can be made \
         so; several at a time, or larger ones, would do more\n"
    )
}

/// Requests that are none read first.
fn reads_first(name: &str, ReadsFirst { device, kind, count, us, why }: &ReadsFirst, took_us: f64) -> String {
    let (percent, why) = (us / took_us * 100.0, why.as_deref().unwrap_or("its layer needs them"));
    format!(
        "  {percent:.0}% of the time of a {name} are reads first, {count:.1} for each, by {device} ({kind}): {why}\n"
    )
}

/// The reason why nothing is known of the time.
fn unknown(why: &Why) -> Option<String> {
    if why.samples == 0 {
        return Some("no request is looked at: `lamina serve` was started with `--samples 0`".into());
    }
    why.operations.is_empty().then(|| format!("{}: no request has waited for anything yet", why.export))
}

/// The operations: what takes most of the time of all is told first.
fn by_time(why: &Why) -> Vec<(&String, &OperationTimes)> {
    let total =
        |times: &OperationTimes| times.requests as f64 * times.mean.iter().map(|share| share.us).sum::<f64>();
    let mut operations: Vec<_> = why.operations.iter().collect();
    operations.sort_by(|(_, a), (_, b)| total(b).total_cmp(&total(a)));
    operations
}

/// The largest part of the slowest requests, in one sentence: of the operation that takes most of the time.
pub(crate) fn largest(why: &Why) -> String {
    if let Some(reason) = unknown(why) {
        return reason;
    }
    let operations = by_time(why);
    let Some((name, times, part)) =
        operations.first().and_then(|(name, times)| Some((name, times, times.slow.first()?)))
    else {
        return format!("{}: no request has waited for anything yet", why.export);
    };
    let all: f64 = times.slow.iter().map(|share| share.us).sum();
    let percent = part.us / all.max(f64::MIN_POSITIVE) * 100.0;
    let took: f64 = times.mean.iter().map(|share| share.us).sum();
    let beside = match why.jobs.first() {
        Some(job) => Some(format!("; the job {} of {} uses the same devices", job.name, job.device)),
        None if why.core.busy >= BUSY => Some(format!("; core {} has no time left", why.core.number)),
        None if is_one(times, took) => Some("; the client has one request under way at a time".into()),
        None => None,
    };
    format!(
        "{}: {name}: of the slowest 1% {}, {percent:.0}% {}{}",
        why.export,
        short(all),
        sentence(part),
        beside.unwrap_or_default()
    )
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
        "metadata" => format!("waits in {device} ({kind}) until its metadata are on disk"),
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
        "metadata" => {
            "A first write to a place is recorded before it completes, such as after a snapshot, or in a region that \
             rested: later ones there are not."
        }
        "hosts" => "`lamina cluster` shows what other hosts do.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
