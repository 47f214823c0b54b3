//! Where the time of an export's requests goes, copied from its node.

use crate::api::{Job, OperationTimes, ReadsFirst, Share, SlowRequest, Why};
use crate::files;
use lamina_block::{JobState, OpKind, Part, Reads, Sample, Time};
use lamina_graph::Hierarchy;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

/// A part of the requests is slow: this one.
const SLOW: f64 = 0.01;

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// What `samples` say. `kind` tells the kind of a device.
pub fn of(samples: &[Rc<Sample>], slowest: &[Rc<Sample>], now: Time, kind: impl Fn(&str) -> String) -> Why {
    let share = |part: &Part, us: f64| Share {
        device: part.device.to_string(),
        kind: kind(&part.device),
        cause: part.cause.name().into(),
        us,
    };
    let mut why = Why::default();
    for op in OpKind::ALL {
        let mut of: Vec<&Rc<Sample>> = samples.iter().filter(|sample| sample.op == op).collect();
        let Some(first) = of.first().map(|sample| sample.began) else { continue };
        of.sort_by_key(|sample| sample.took());
        let at = |part: f64| us(of[((of.len() as f64 * part) as usize).min(of.len() - 1)].took());
        let slow = ((of.len() as f64 * SLOW) as usize).max(1);
        let times = OperationTimes {
            requests: of.len() as u64,
            seconds: now.since(first).as_secs_f64(),
            median_us: at(0.5),
            p99_us: at(1.0 - SLOW),
            depth: of.iter().map(|sample| f64::from(sample.depth)).sum::<f64>() / of.len() as f64,
            reads: reads(&of, &kind),
            mean: mean(&of, share),
            slow: mean(&of[of.len() - slow..], share),
        };
        why.operations.insert(op.name().into(), times);
    }
    why.core.busy = busy(samples);
    why.slowest = slowest
        .iter()
        .map(|sample| SlowRequest {
            operation: sample.op.name().into(),
            bytes: sample.bytes,
            seconds_ago: now.since(sample.began).as_secs_f64(),
            us: us(sample.took()),
            parts: sample.parts.iter().map(|part| share(part, us(part.took))).collect(),
        })
        .collect();
    why
}

/// What computes with each byte below a device, and there.
pub fn computing(hierarchy: &Hierarchy, device: &str) -> Vec<String> {
    let kinds = files::kinds();
    let computes = |kind: &str| kinds.iter().any(|known| known.name == kind && known.traits.computes);
    let below = hierarchy.subtree(device).into_iter().filter(|node| computes(node.kind()));
    below.map(|node| node.name().to_owned()).collect()
}

/// Work in the background below the export of `why` that uses what takes most of the time of slow requests.
pub fn jobs(hierarchy: &Hierarchy, why: &Why) -> Vec<Job> {
    let slow: Vec<_> = why.operations.values().filter_map(|times| times.slow.first()).collect();
    let is_slow = |name: &str| slow.iter().any(|share| share.device == name);
    let mut jobs = Vec::new();
    for node in hierarchy.subtree(&why.device) {
        let mut running = node.jobs();
        running.retain(|job| job.state() == JobState::Running);
        let uses_it = || hierarchy.subtree(node.name()).iter().any(|below| is_slow(below.name()));
        if !running.is_empty() && uses_it() {
            jobs.extend(running.iter().map(|job| Job::of(node.name(), job)));
        }
    }
    jobs
}

/// The part of the time that the core has worked between the ends of the first and of the last of `samples`.
fn busy(samples: &[Rc<Sample>]) -> f64 {
    let ends = |sample: &Rc<Sample>| sample.began.after(sample.took());
    let (Some(first), Some(last)) =
        (samples.iter().min_by_key(|sample| ends(sample)), samples.iter().max_by_key(|sample| ends(sample)))
    else {
        return 0.0;
    };
    let (passed, worked) = (ends(last).since(ends(first)), last.worked.saturating_sub(first.worked));
    if passed.is_zero() { 0.0 } else { (worked.as_secs_f64() / passed.as_secs_f64()).min(1.0) }
}

/// Reads that were made for requests which are none, on average, the longest first.
fn reads(of: &[&Rc<Sample>], kind: impl Fn(&str) -> String) -> Vec<ReadsFirst> {
    let mut sums: BTreeMap<&str, (u32, Duration)> = BTreeMap::new();
    for Reads { device, count, took } in of.iter().flat_map(|sample| &sample.reads) {
        let sum = sums.entry(device).or_default();
        *sum = (sum.0 + count, sum.1 + *took);
    }
    let (each, kinds) = (of.len() as f64, files::kinds());
    let mut reads: Vec<ReadsFirst> = sums
        .into_iter()
        .map(|(device, (count, took))| {
            let kind = kind(device);
            let why = kinds.iter().find(|known| known.name == kind).and_then(|k| k.traits.reads_to_write);
            let (count, us) = (f64::from(count) / each, us(took) / each);
            ReadsFirst { device: device.into(), kind, count, us, why: why.map(str::to_owned) }
        })
        .collect();
    reads.sort_by(|a, b| b.us.total_cmp(&a.us));
    reads
}

/// Where their time went on average, the largest part first.
fn mean(of: &[&Rc<Sample>], share: impl Fn(&Part, f64) -> Share) -> Vec<Share> {
    let mut sums: HashMap<_, (&Part, Duration)> = HashMap::new();
    for part in of.iter().flat_map(|sample| &sample.parts) {
        sums.entry((&part.device, part.cause)).or_insert((part, Duration::ZERO)).1 += part.took;
    }
    let mut shares: Vec<Share> =
        sums.into_values().map(|(part, sum)| share(part, us(sum) / of.len() as f64)).collect();
    shares.sort_by(|a, b| {
        b.us.total_cmp(&a.us).then_with(|| (&a.device, &a.cause).cmp(&(&b.device, &b.cause)))
    });
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use lamina_block::Cause;

    fn sample(op: OpKind, began: u64, parts: &[(&str, Cause, u64)]) -> Rc<Sample> {
        let part = |(device, cause, us): &(&str, Cause, u64)| Part {
            device: (*device).into(),
            cause: *cause,
            took: Duration::from_micros(*us),
        };
        let parts = parts.iter().map(part).collect();
        let reads = vec![Reads { device: "raid".into(), count: 2, took: Duration::from_micros(30) }];
        let worked = Duration::from_nanos(began / 4);
        Rc::new(Sample { op, bytes: 4096, began: Time(began), depth: 3, parts, reads, worked })
    }

    #[test]
    fn the_slow_ones_are_told_apart_from_the_others() {
        let mut samples = vec![sample(OpKind::Flush, 0, &[("disk", Cause::Itself, 7)])];
        for n in 0..200 {
            let parts =
                [("disk", Cause::Itself, 100), ("vm1", Cause::Room, if n % 100 == 3 { 9000 } else { 0 })];
            samples.push(sample(OpKind::Write, n * 1_000_000, &parts));
        }
        let slowest = [Rc::clone(&samples[4])];
        let why = of(&samples, &slowest, Time(1_000_000_000), |device| format!("kind of {device}"));
        let writes = &why.operations["write"];
        assert_eq!((writes.requests, writes.seconds, writes.median_us), (200, 1.0, 100.0));
        assert_eq!(writes.p99_us, 9100.0);
        let told = |shares: &[Share]| -> Vec<String> {
            shares.iter().map(|s| format!("{} ({}) {} {}", s.device, s.kind, s.cause, s.us)).collect()
        };
        assert_eq!(told(&writes.mean), ["disk (kind of disk) itself 100", "vm1 (kind of vm1) room 90"]);
        assert_eq!(told(&writes.slow), ["vm1 (kind of vm1) room 9000", "disk (kind of disk) itself 100"]);
        assert_eq!(why.operations["flush"].requests, 1);
        let [reads] = &writes.reads[..] else { panic!("{:?}", writes.reads) };
        assert_eq!((&*reads.device, reads.count, reads.us, writes.depth), ("raid", 2.0, 30.0, 3.0));
        assert!((why.core.busy - 0.25).abs() < 0.01, "{} of 200 ms", why.core.busy);
        assert!(!why.operations.contains_key("read"));
        assert_eq!((why.slowest[0].us, why.slowest[0].bytes), (9100.0, 4096));
        assert_eq!(
            told(&why.slowest[0].parts),
            ["disk (kind of disk) itself 100", "vm1 (kind of vm1) room 9000"]
        );
    }
}
