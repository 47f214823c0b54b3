//! What a run measured, and its figures.
//!
//! *Service* is the time of a request at a drive, from its dispatch to its end; *response* is the time that a client
//! waits, from the arrival at the device that it uses. Over a hierarchy the two count different requests: one of a
//! client may become several, or none, at the drives.

use lamina_block::Time;
use lamina_drive::SECTOR;
use serde::Serialize;

/// A request as its client sees it.
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// When the request was made.
    pub arrived: Time,
    /// When it ended.
    pub ended: Time,
    /// Bytes; 0 for a flush.
    pub bytes: u64,
}

/// A request as a drive sees it.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// When the drive was given it.
    pub sent: Time,
    /// When the drive ended it.
    pub ended: Time,
    /// Its first byte.
    pub offset: u64,
}

/// All that one run measured. Both lists are in the order of the ends.
#[derive(Debug, Default)]
pub struct Measured {
    /// Of the clients.
    pub responses: Vec<Response>,
    /// Of all drives.
    pub services: Vec<Service>,
    /// When counting began.
    pub began: Time,
    /// When it ended.
    pub ended: Time,
}

/// The figures of one run. Times are milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Requests of clients that ended while counting was on.
    pub requests: u64,
    /// Requests of drives that did.
    pub served: u64,
    /// The counted time.
    pub seconds: f64,
    /// Mean time at the drive.
    pub mean_service_ms: f64,
    /// Its variance, in ms².
    pub variance_service: f64,
    /// Mean time of a client's request.
    pub mean_response_ms: f64,
    /// Its variance, in ms².
    pub variance_response: f64,
    /// Half of the responses took at most this.
    pub p50_response_ms: f64,
    /// 99 of 100 responses took at most this.
    pub p99_response_ms: f64,
    /// The longest response.
    pub longest_response_ms: f64,
    /// Sectors of 512 bytes that clients read and wrote in a millisecond.
    pub sectors_per_ms: f64,
    /// Requests of clients in a second.
    pub requests_per_s: f64,
}

const MS: f64 = 1e6;

impl Measured {
    /// Response times in ms, sorted.
    pub fn response_times(&self) -> Vec<f64> {
        let mut times: Vec<f64> =
            self.responses.iter().map(|r| r.ended.since(r.arrived).as_nanos() as f64 / MS).collect();
        times.sort_unstable_by(f64::total_cmp);
        times
    }

    /// The figures.
    pub fn figures(&self) -> Figures {
        let responses = self.response_times();
        let services = self.services.iter().map(|s| s.ended.since(s.sent).as_nanos() as f64 / MS);
        let (mean_service_ms, variance_service) = moments(services);
        let (mean_response_ms, variance_response) = moments(responses.iter().copied());
        let span_ms = self.ended.since(self.began).as_nanos() as f64 / MS;
        let rate = |count: f64| if span_ms > 0.0 { count / span_ms } else { 0.0 };
        let bytes: u64 = self.responses.iter().map(|r| r.bytes).sum();
        Figures {
            requests: self.responses.len() as u64,
            served: self.services.len() as u64,
            seconds: span_ms / 1e3,
            mean_service_ms,
            variance_service,
            mean_response_ms,
            variance_response,
            p50_response_ms: quantile(&responses, 0.5),
            p99_response_ms: quantile(&responses, 0.99),
            longest_response_ms: responses.last().copied().unwrap_or(0.0),
            sectors_per_ms: rate(bytes as f64 / SECTOR as f64),
            requests_per_s: rate(responses.len() as f64) * 1e3,
        }
    }
}

/// Mean and variance, which are 0 of nothing. Welford's algorithm (Technometrics 4(3), 1962).
fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut n, mut mean, mut squares) = (0.0, 0.0, 0.0);
    for value in values {
        n += 1.0;
        let before = value - mean;
        mean += before / n;
        squares += before * (value - mean);
    }
    (mean, if n > 1.0 { squares / (n - 1.0) } else { 0.0 })
}

/// The smallest value that `q` of all do not exceed; 0 of nothing.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// One figure: a row of the tables.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name with its unit.
    pub name: &'static str,
    /// More of it is better.
    pub more_is_better: bool,
    /// Its value.
    pub of: fn(&Figures) -> f64,
}

/// The rows of the paper's tables, in its order.
pub const PAPER: [Metric; 5] = [
    Metric { name: "mean service, ms", more_is_better: false, of: |f| f.mean_service_ms },
    Metric { name: "variance service, ms²", more_is_better: false, of: |f| f.variance_service },
    Metric { name: "mean response, ms", more_is_better: false, of: |f| f.mean_response_ms },
    Metric { name: "variance response, ms²", more_is_better: false, of: |f| f.variance_response },
    Metric { name: "throughput, sectors/ms", more_is_better: true, of: |f| f.sectors_per_ms },
];

/// The rows after those.
pub const MORE: [Metric; 4] = [
    Metric { name: "requests/s", more_is_better: true, of: |f| f.requests_per_s },
    Metric { name: "response p50, ms", more_is_better: false, of: |f| f.p50_response_ms },
    Metric { name: "response p99, ms", more_is_better: false, of: |f| f.p99_response_ms },
    Metric { name: "longest response, ms", more_is_better: false, of: |f| f.longest_response_ms },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn response(arrived: u64, ended: u64) -> Response {
        Response { arrived: Time(arrived * 1_000_000), ended: Time(ended * 1_000_000), bytes: 4096 }
    }

    #[test]
    fn figures_are_those_of_the_samples() {
        let service = |sent: u64, ended: u64| Service {
            sent: Time(sent * 1_000_000),
            ended: Time(ended * 1_000_000),
            offset: 0,
        };
        let measured = Measured {
            responses: vec![response(0, 2), response(1, 5), response(1, 7)],
            services: vec![service(0, 2), service(2, 5), service(5, 7)],
            began: Time(0),
            ended: Time(10_000_000),
        };
        let figures = measured.figures();
        assert_eq!((figures.requests, figures.served, figures.seconds), (3, 3, 0.01));
        assert!((figures.mean_service_ms - 7.0 / 3.0).abs() < 1e-12);
        assert!((figures.variance_service - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!((figures.mean_response_ms, figures.variance_response), (4.0, 4.0));
        assert_eq!((figures.p50_response_ms, figures.longest_response_ms), (4.0, 6.0));
        assert_eq!((figures.sectors_per_ms, figures.requests_per_s), (2.4, 300.0));
    }

    #[test]
    fn nothing_measured_is_zeroes() {
        assert_eq!(Measured::default().figures(), Figures::default());
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([0.0, 0.01, 0.5, 0.99, 1.0].map(|q| quantile(&values, q)), [1.0, 1.0, 50.0, 99.0, 100.0]);
    }
}
