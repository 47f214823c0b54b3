//! The self time of devices: the part of a request's time that is spent in the device, without the devices below.
//!
//! The latency of a layer contains those of all layers below. The samples of exports give each moment of a request to
//! one device alone, so the self times below an export add up to the time of a request.

use crate::api::{Snapshot, Why};
use crate::show::{below, over};
use std::collections::BTreeMap;

/// The self time of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SelfTime {
    /// Of a request on average, in microseconds.
    pub us: f64,
    /// The part of a request's time.
    pub share: f64,
}

/// The self times of all devices below exports with samples. A device below several exports has the mean of their
/// requests; operations and exports weigh as much as they have requests a second that were looked at.
pub fn self_times(snapshot: &Snapshot, whys: &BTreeMap<String, Why>) -> BTreeMap<String, SelfTime> {
    #[derive(Default)]
    struct Sum {
        weight: f64,
        own: f64,
        total: f64,
    }
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for hierarchy in &snapshot.hierarchies {
        let over = over(hierarchy);
        let exports = hierarchy.exports.iter().filter_map(|export| whys.get(&export.name));
        for why in exports {
            let below = below(&over, &why.device);
            for times in why.operations.values() {
                let weight = times.requests as f64 / times.seconds.max(1.0);
                let total: f64 = times.mean.iter().map(|share| share.us).sum();
                for device in &below {
                    let sum = sums.entry(device).or_default();
                    let own = times.mean.iter().filter(|share| share.device == *device);
                    sum.weight += weight;
                    sum.own += weight * own.map(|share| share.us).sum::<f64>();
                    sum.total += weight * total;
                }
            }
        }
    }
    let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
    let time = |sum: Sum| SelfTime { us: ratio(sum.own, sum.weight), share: ratio(sum.own, sum.total) };
    sums.into_iter().map(|(device, sum)| (device.to_owned(), time(sum))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::tests::snapshot;
    use crate::top::tests::why;

    fn times(snapshot: &Snapshot, whys: &[Why]) -> BTreeMap<String, SelfTime> {
        let whys = whys.iter().map(|why| (why.export.clone(), why.clone())).collect();
        self_times(snapshot, &whys)
    }

    #[test]
    fn causes_of_a_device_are_added() {
        let of =
            why("vm1", 100, 1.0, &[("a", "itself", 60.0), ("vm1", "lock", 30.0), ("vm1", "itself", 10.0)]);
        let times = times(&snapshot(), &[of]);
        assert_eq!(times["a"], SelfTime { us: 60.0, share: 0.6 });
        assert_eq!(times["vm1"], SelfTime { us: 40.0, share: 0.4 });
        assert_eq!(times["b"], SelfTime::default());
        assert_eq!(times.len(), 3);
    }

    #[test]
    fn a_device_below_two_exports_has_the_mean_of_their_requests() {
        let mut shared = snapshot();
        let mut second = shared.hierarchies[0].exports[0].clone();
        (second.name, second.device) = ("only-a".into(), "a".into());
        shared.hierarchies[0].exports.push(second);
        let first = why("vm1", 300, 1.0, &[("a", "itself", 10.0), ("b", "itself", 90.0)]);
        let mut other = why("only-a", 100, 1.0, &[("a", "itself", 50.0)]);
        other.device = "a".into();
        let both = times(&shared, &[first.clone(), other.clone()]);
        // Three of four requests take 10 us there, and one takes 50: of 100, and of 50.
        assert_eq!(both["a"], SelfTime { us: 20.0, share: 8000.0 / 35_000.0 });
        assert_eq!(both["b"], SelfTime { us: 90.0, share: 0.9 });
        // Requests of long ago weigh little.
        other.operations.values_mut().for_each(|times| times.seconds = 1e9);
        assert!((times(&shared, &[first, other])["a"].us - 10.0).abs() < 0.001);
    }

    #[test]
    fn samples_of_an_export_that_is_gone_count_no_more() {
        assert!(times(&snapshot(), &[why("gone", 1, 1.0, &[("a", "itself", 1.0)])]).is_empty());
    }
}
