//! The downhill simplex method, for functions of a few parameters that have no derivative.
//!
//! Source: Nelder and Mead: "A simplex method for function minimization", The Computer Journal 7, 1965, with their
//! coefficients: reflection 1, expansion 2, contraction and shrinking ½. It finds the minimum next to where it begins,
//! not the lowest one; the caller begins near the right one.

/// A corner: the parameters, and the value there.
type Corner = (Vec<f64>, f64);

/// The lowest point that `rounds` steps from `start` reach. `sizes` are first steps of the parameters, none of them 0;
/// a value that is no number counts as infinite.
pub fn minimize(start: &[f64], sizes: &[f64], rounds: usize, value: impl Fn(&[f64]) -> f64) -> Corner {
    let value = |at: &[f64]| Some(value(at)).filter(|v| !v.is_nan()).unwrap_or(f64::INFINITY);
    let corner = |at: Vec<f64>| {
        let height = value(&at);
        (at, height)
    };
    let mut corners = vec![corner(start.to_vec())];
    corners.extend((0..start.len()).map(|i| {
        let mut at = start.to_vec();
        at[i] += sizes[i];
        corner(at)
    }));
    for _ in 0..rounds {
        corners.sort_by(|a, b| a.1.total_cmp(&b.1));
        step(&mut corners, &corner);
    }
    corners.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((start.to_vec(), f64::INFINITY))
}

/// Moves the worst of the sorted `corners`, or shrinks all towards the best.
fn step(corners: &mut [Corner], corner: &impl Fn(Vec<f64>) -> Corner) {
    let Some(((worst, height), others)) = corners.split_last() else { return };
    let Some(second) = others.last().map(|c| c.1) else { return };
    let centre: Vec<f64> =
        (0..worst.len()).map(|i| others.iter().map(|c| c.0[i]).sum::<f64>() / others.len() as f64).collect();
    // The point on the line through the worst corner and the centre, `by` of the way behind the centre.
    let along = |by: f64| corner((0..worst.len()).map(|i| centre[i] + by * (centre[i] - worst[i])).collect());
    let (best, reflected) = (others[0].1, along(1.0));
    let moved = if reflected.1 < best {
        let expanded = along(2.0);
        if expanded.1 < reflected.1 { expanded } else { reflected }
    } else if reflected.1 < second {
        reflected
    } else {
        along(if reflected.1 < *height { 0.5 } else { -0.5 })
    };
    if moved.1 < second || moved.1 < *height {
        corners[others.len()] = moved;
    } else {
        shrink(corners, corner);
    }
}

fn shrink(corners: &mut [Corner], corner: &impl Fn(Vec<f64>) -> Corner) {
    let best = corners[0].0.clone();
    for moved in &mut corners[1..] {
        *moved = corner(moved.0.iter().zip(&best).map(|(x, b)| (x + b) / 2.0).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valley_is_followed_to_its_lowest_point() {
        // Rosenbrock's function: a curved, narrow valley with its minimum at (1, 1).
        let rosenbrock = |x: &[f64]| (1.0 - x[0]).powi(2) + 100.0 * (x[1] - x[0] * x[0]).powi(2);
        let (at, height) = minimize(&[-1.2, 1.0], &[0.1, 0.1], 400, rosenbrock);
        assert!((at[0] - 1.0).abs() < 1e-4 && (at[1] - 1.0).abs() < 1e-4, "{at:?}");
        assert!(height < 1e-8);
    }

    #[test]
    fn a_value_that_is_no_number_is_avoided() {
        let (at, _) = minimize(&[4.0], &[1.0], 100, |x| (x[0].sqrt() - 1.0).powi(2));
        assert!((at[0] - 1.0).abs() < 1e-3, "{at:?}");
    }

    #[test]
    fn no_parameters_are_a_point() {
        assert_eq!(minimize(&[], &[], 10, |_| 3.0), (vec![], 3.0));
    }
}
