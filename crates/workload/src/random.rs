//! Draws from the distributions of the web workload, by inversion (numbers in the paper on CATS, section 5).
//!
//! The formulas are our own, a line each, so that a seed means the same requests for as long as the generator of
//! uniform numbers stays.

use fastrand::Rng;

/// Pareto(α, k): F(x) = 1 − (k/x)^α for x ≥ k (the paper's equation 1).
pub fn pareto(random: &mut Rng, shape: f64, scale: f64) -> f64 {
    // 1 − u is never 0: u is below 1.
    scale * (1.0 - random.f64()).powf(-1.0 / shape)
}

/// Zipf over 0 … n−1 by the continuous approximation F(x) = log(x+1) / log(n+1) (the paper's equation 3).
pub fn zipf(random: &mut Rng, n: u32) -> u32 {
    let x = (n as f64 + 1.0).powf(random.f64()) - 1.0;
    // The end is only reached by rounding.
    (x as u32).min(n.saturating_sub(1))
}

/// Lognormal(μ, σ): exp(μ + σz), z normal by Box and Muller.
pub fn lognormal(random: &mut Rng, mu: f64, sigma: f64) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    let z = radius * (std::f64::consts::TAU * random.f64()).cos();
    (mu + sigma * z).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of draws that `is` holds for.
    fn share(draw: impl Fn(&mut Rng) -> f64, is: impl Fn(f64) -> bool) -> f64 {
        let mut random = Rng::with_seed(1);
        (0..20_000).filter(|_| is(draw(&mut random))).count() as f64 / 20_000.0
    }

    #[test]
    fn shares_are_those_of_the_distribution_functions() {
        let near = |got: f64, wanted: f64| assert!((got - wanted).abs() < 0.012, "{got}, not {wanted}");
        for (x, wanted) in [(1.0, 0.0), (2.0, 1.0 - 0.5f64.powf(2.43)), (5.0, 1.0 - 0.2f64.powf(2.43))] {
            near(share(|r| pareto(r, 2.43, 1.0), |v| v <= x), wanted);
        }
        for below in [1, 64, 1000, 1_000_000] {
            let wanted = (below as f64 + 1.0).ln() / 1_000_001f64.ln();
            near(share(|r| zipf(r, 1_000_000) as f64, |v| v < below as f64), wanted);
        }
        // One and two deviations around the median.
        for (z, wanted) in [(-1.0, 0.1587), (0.0, 0.5), (2.0, 0.9772)] {
            let x = (9.357f64 + 1.318 * z).exp();
            near(share(|r| lognormal(r, 9.357, 1.318), |v| v <= x), wanted);
        }
    }

    #[test]
    fn zipf_has_every_number_and_no_other() {
        let mut random = Rng::with_seed(2);
        let mut seen = [0; 3];
        (0..1000).for_each(|_| seen[zipf(&mut random, 3) as usize] += 1);
        assert!(seen[0] > seen[1] && seen[1] > seen[2] && seen[2] > 0, "{seen:?}");
        assert_eq!(zipf(&mut random, 0), 0);
    }
}
