use super::*;
use std::collections::BTreeMap;

fn share(device: &str, kind: &str, cause: &str, us: f64) -> Share {
    Share { device: device.into(), kind: kind.into(), cause: cause.into(), us }
}

fn why(operations: &[(&str, OperationTimes)], slowest: Vec<SlowRequest>) -> Why {
    let operations: BTreeMap<_, _> =
        operations.iter().map(|(name, times)| ((*name).to_owned(), times.clone())).collect();
    Why { export: "disk".into(), device: "vm1".into(), samples: 100, operations, slowest, ..Why::default() }
}

#[test]
fn work_on_the_same_devices_is_told_first() {
    let slow = || vec![share("raid", "mirror", "itself", 12.0)];
    let reads = OperationTimes { requests: 1, mean: slow(), slow: slow(), ..OperationTimes::default() };
    let rebuild = Job {
        device: "raid".into(),
        name: "rebuild".into(),
        state: "running".into(),
        done: 30,
        total: 90,
        rate: 40 << 20,
        limit: None,
        seconds_left: None,
        error: None,
    };
    let told = text(&Why { jobs: vec![rebuild], ..why(&[("read", reads)], Vec::new()) });
    let first = "meanwhile the job rebuild of raid uses the same devices: 40MiB/s, 33% done; `lamina ctl raid job \
                 rebuild limit=RATE` slows it down\nread: half";
    assert!(told.starts_with(first), "{told}");
}

#[test]
fn the_largest_parts_are_told_first_with_what_helps() {
    let mean = vec![share("san", "file", "itself", 300.0), share("vm1", "accelerate", "flow-control", 100.0)];
    let slow = vec![
        share("vm1", "accelerate", "flow-control", 31_000.0),
        share("san", "file", "itself", 7_000.0),
        share("cache", "flash", "itself", 10.0),
    ];
    let writes = OperationTimes {
        requests: 900,
        seconds: 9.0,
        median_us: 380.0,
        p99_us: 38_000.0,
        mean,
        slow,
        ..Default::default()
    };
    let reads = OperationTimes {
        requests: 100,
        seconds: 9.0,
        median_us: 10.0,
        p99_us: 12.0,
        mean: vec![share("raid", "parity", "lock", 11.0)],
        slow: vec![share("raid", "parity", "lock", 12.0)],
        ..OperationTimes::default()
    };
    let slowest = vec![SlowRequest {
        operation: "write".into(),
        bytes: 4096,
        seconds_ago: 12.3,
        us: 61_000.0,
        parts: vec![
            share("vm1", "accelerate", "room", 40_000.0),
            share("san", "file", "itself", 20_900.0),
            share("vm1", "accelerate", "itself", 100.0),
        ],
    }];
    let expected = "\
write: half take at most 380us, 99% at most 38ms (900 of the last 9 s)
  on average 400us:
     75%      300us  is in san (file)
     25%      100us  is held back by vm1 (accelerate), to the speed of what is below
  of the slowest 1% 38ms:
     82%       31ms  is held back by vm1 (accelerate), to the speed of what is below
     18%      7.0ms  is in san (file)
  More is written than what is below takes: more room (a larger share of a flash) bridges longer bursts, and only \
something faster below, or less to write, helps in the long run.
read: half take at most 10us, 99% at most 12us (100 of the last 9 s)
  on average 11us:
    100%       11us  waits in raid (parity) for other requests of the same bytes
  of the slowest 1% 12us:
    100%       12us  waits in raid (parity) for other requests of the same bytes
  Requests of the same bytes follow one another: clients write the same blocks, or data is moved there.
slowest of the last five minutes:
  write of 4KiB, 12 s ago: 61ms: vm1 room 40ms, san 21ms
";
    assert_eq!(text(&why(&[("read", reads), ("write", writes)], slowest)), expected);
}

#[test]
fn what_is_no_wait_for_a_device_is_told_before_the_devices() {
    let mean = || vec![share("raid", "parity", "itself", 150.0), share("a", "file", "itself", 50.0)];
    let reads = |us| ReadsFirst {
        device: "raid".into(),
        kind: "parity".into(),
        count: 2.0,
        us,
        why: Some("a write of less than a row of stripes reads old data".into()),
    };
    let times = |depth, reads| OperationTimes {
        requests: 9,
        depth,
        reads,
        mean: mean(),
        slow: mean(),
        ..Default::default()
    };
    let told = |depth, reads| text(&why(&[("write", times(depth, reads))], Vec::new()));
    let lines = |text: String| text.lines().skip(1).take(2).map(String::from).collect::<Vec<_>>();
    let one = "  the client has one request under way at a time, and waits for it: no more than 5000 a second can be \
               made so; several at a time, or larger ones, would do more";
    let first = "  40% of the time of a write are reads first, 2.0 for each, by raid (parity): a write of less than a \
                 row of stripes reads old data";
    assert_eq!(lines(told(1.0, vec![reads(80.0)])), [one, first]);
    assert_eq!(lines(told(8.0, vec![reads(80.0)])), [first, "  on average 200us:"]);
    assert!(lines(told(8.0, vec![reads(20.0)]))[0].starts_with("  on average"));
    let slow =
        OperationTimes { mean: vec![share("far", "delay", "itself", 20_000.0)], ..times(1.0, Vec::new()) };
    assert!(!text(&why(&[("write", slow)], Vec::new())).contains("the client"), "the device is slow");
    let core = |busy| CoreLoad { number: 2, busy, computing: vec!["enc".into(), "sums".into()] };
    let of = |busy| text(&Why { core: core(busy), ..why(&[("write", times(8.0, Vec::new()))], Vec::new()) });
    let busy =
        "core 2 works 96% of the time, where enc and sums compute with each byte: requests wait for it; ";
    assert!(of(0.96).starts_with(busy), "{}", of(0.96));
    assert!(of(0.7).starts_with("write: "), "{}", of(0.7));
}

#[test]
fn one_sentence_has_the_largest_part() {
    let slow =
        vec![share("vm1", "accelerate", "flow-control", 31_000.0), share("san", "file", "itself", 7_000.0)];
    let writes = OperationTimes { requests: 900, mean: slow.clone(), slow, ..OperationTimes::default() };
    let reads = OperationTimes {
        requests: 9,
        mean: vec![share("san", "file", "itself", 1.0)],
        slow: vec![share("san", "file", "itself", 1.0)],
        ..OperationTimes::default()
    };
    let mut why = why(&[("read", reads), ("write", writes)], Vec::new());
    let sentence = "disk: write: of the slowest 1% 38ms, 82% is held back by vm1 (accelerate), to the speed of what is \
                    below";
    assert_eq!(largest(&why), sentence);
    why.jobs.push(Job {
        device: "raid".into(),
        name: "scrub".into(),
        state: "running".into(),
        done: 0,
        total: 1,
        rate: 0,
        limit: None,
        seconds_left: None,
        error: None,
    });
    assert_eq!(largest(&why), format!("{sentence}; the job scrub of raid uses the same devices"));
}

#[test]
fn nothing_is_said_of_nothing() {
    assert_eq!(largest(&why(&[], Vec::new())), "disk: no request has waited for anything yet");
    assert_eq!(text(&why(&[], Vec::new())), "disk: no request has waited for anything yet\n");
    let off = Why { samples: 0, ..why(&[], Vec::new()) };
    assert!(text(&off).contains("`--samples 0`"));
}

#[test]
fn a_trace_has_a_track_for_each_request() {
    let request = |seconds_ago, us, parts| SlowRequest {
        operation: "write".into(),
        bytes: 4096,
        seconds_ago,
        us,
        parts,
    };
    let parts = vec![share("vm1", "accelerate", "flow-control", 30.0), share("san", "file", "itself", 10.0)];
    let found = trace::trace(&why(&[], vec![request(1.0, 40.0, parts), request(3.0, 5.0, Vec::new())]));
    let events = found["traceEvents"].as_array().expect("a list");
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let names: Vec<_> = of("M").map(|event| event["args"]["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["disk of vm1", "write of 4KiB", "write of 4KiB"]);
    let spans: Vec<_> = of("X")
        .map(|event| {
            let number = |name: &str| event[name].as_f64().expect("a number");
            (event["name"].as_str().expect("a name"), number("tid"), number("ts"), number("dur"))
        })
        .collect();
    let expected = [
        ("write of 4KiB", 1.0, 2_000_000.0, 40.0),
        ("vm1: flow-control", 1.0, 2_000_000.0, 30.0),
        ("san", 1.0, 2_000_030.0, 10.0),
        ("write of 4KiB", 2.0, 0.0, 5.0),
    ];
    assert_eq!(spans, expected);
    assert_eq!(trace::trace(&Why::default())["traceEvents"].as_array().map(Vec::len), Some(1));
}
