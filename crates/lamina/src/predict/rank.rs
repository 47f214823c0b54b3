//! Which policies are better than others, as far as several seeds can tell.
//!
//! All policies run with the same seeds, so that what chance does to one it does to all: the differences of two
//! policies, seed by seed, vary less than their values. A policy is better than another only if the 95% confidence
//! interval of the mean difference (Student's t) does not have 0 in it; otherwise the two are tied. One seed ranks
//! nothing.

/// Two-sided 95% quantiles of Student's t by degrees of freedom, from 1.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// A mean over seeds, and half the width of its 95% confidence interval; infinite for one seed.
pub fn interval(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    let Some(freedom) = values.len().checked_sub(2) else { return (mean, f64::INFINITY) };
    let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0);
    // Beyond the table the last entry is a little too careful.
    let t = T.get(freedom).or(T.last()).copied().unwrap_or(f64::INFINITY);
    (mean, t * (variance / n).sqrt())
}

/// Whether `a` is less than `b`, both by seed, with confidence.
pub fn is_less(a: &[f64], b: &[f64]) -> bool {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| b - a).collect();
    let (mean, half) = interval(&differences);
    mean - half > 0.0
}

/// The places of policies, from 1, by their values per seed: one more than the number of policies that are better.
pub fn places(values: &[Vec<f64>], more_is_better: bool) -> Vec<usize> {
    let better = |a: &[f64], b: &[f64]| if more_is_better { is_less(b, a) } else { is_less(a, b) };
    values.iter().map(|own| 1 + values.iter().filter(|other| better(other, own)).count()).collect()
}

/// Policies in the order of their means, the best first, with `<` (or `>`) between those that differ with confidence
/// and `=` between those that are tied.
pub fn order(names: &[&str], values: &[Vec<f64>], more_is_better: bool) -> String {
    let mut by_mean: Vec<usize> = (0..names.len()).collect();
    by_mean.sort_by(|a, b| {
        let (a, b) = (interval(&values[*a]).0, interval(&values[*b]).0);
        if more_is_better { b.total_cmp(&a) } else { a.total_cmp(&b) }
    });
    let mut text = String::new();
    for (at, policy) in by_mean.iter().enumerate() {
        if let Some(before) = at.checked_sub(1).map(|at| by_mean[at]) {
            let (first, second) = (&values[before], &values[*policy]);
            text.push_str(match more_is_better {
                true if is_less(second, first) => " > ",
                false if is_less(first, second) => " < ",
                true | false => " = ",
            });
        }
        text.push_str(names[*policy]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let (mean, half) = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(mean, 3.0);
        assert!((half - 2.776 * (2.5f64 / 5.0).sqrt()).abs() < 1e-9);
        assert_eq!(interval(&[7.0]), (7.0, f64::INFINITY));
        assert_eq!(interval(&[]).0, 0.0);
        assert!(interval(&[1.0; 100]).1 == 0.0);
    }

    #[test]
    fn a_steady_difference_ranks_though_the_values_vary_more() {
        let a = vec![10.0, 30.0, 20.0, 50.0, 40.0];
        let b: Vec<f64> = a.iter().map(|v| v + 1.0).collect();
        assert!(is_less(&a, &b) && !is_less(&b, &a));
        assert_eq!(places(&[b.clone(), a.clone()], false), [2, 1]);
        assert_eq!(places(&[b.clone(), a.clone()], true), [1, 2]);
        assert_eq!(order(&["b", "a"], &[b, a], false), "a < b");
    }

    #[test]
    fn what_seeds_disagree_about_is_a_tie() {
        let a = vec![1.0, 2.0, 1.0, 2.0, 1.0];
        let b = vec![2.0, 1.0, 2.0, 1.0, 1.0];
        assert_eq!(places(&[a.clone(), b.clone()], false), [1, 1]);
        assert!(order(&["a", "b"], &[a, b], false).contains(" = "));
        assert_eq!(places(&[vec![1.0], vec![9.0]], false), [1, 1], "one seed ranks nothing");
    }
}
