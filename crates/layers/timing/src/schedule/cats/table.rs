//! The interval table: the order of requests on a line that has the least total response time.
//!
//! Geist and Ross, *Disk Scheduling Revisited: Can O(N²) Algorithms Compete?*, 1997, by Bellman's dynamic programming.
//! A request on the way of the arm costs nothing to serve, so that what has been served is always an interval of the
//! sorted requests around the first place of the arm, and the arm is at its left or its right end. A move costs its
//! distance once for each request that still waits. With `a` requests served on the left and `b` on the right:
//!
//! ```text
//!      served      ◀────── a ──────▶ arm ◀────── b ──────▶
//!      ·····x──x──┤x────x─────x──────┼──────x───────x────┤x────x·····
//!                 left               0                   right
//!
//!      least(a, b, end) = min( distance(end, next left)  · waiting + least(a + 1, b, left),
//!                              distance(end, next right) · waiting + least(a, b + 1, right) )
//! ```
//!
//! Requests are points: the place of a request is its first sector. Distances are all that counts: a time that every
//! request takes alike (the R/2 of the linear model) adds the same to the total of each order, and a slope multiplies
//! all totals alike, so that the order of the least time is the order of the least distance.
//!
//! Time and memory are (l + 1)(r + 1) for l requests on the left and r on the right: at most (N/2 + 1)². The table
//! deliberately knows nothing of arrivals: its order is the best one as long as nothing comes.

/// The most requests of a table. With it all sums stay inside of 64 bits: the least total is at most that of a sweep to
/// one side and back, N · 3 · 2⁵¹ for drives of up to 2⁶⁰ bytes.
pub const REQUESTS_MAX: usize = 1024;

/// Which way to go from the left and from the right end of an interval: whether to the left.
type Ways = (bool, bool);

/// The order in which requests at `places`, ascending and at most [`REQUESTS_MAX`], are served from `arm` on with the
/// least total response time: indices into `places`. Of two equally good orders the one that goes upwards first.
pub fn order(arm: u64, places: &[u64]) -> Vec<usize> {
    let below = places.partition_point(|place| *place < arm);
    let (left, right) = places.split_at(below);
    // Distances from the first place of the arm, which is at 0 on both sides.
    let left: Vec<u64> = [0].into_iter().chain(left.iter().rev().map(|place| arm - place)).collect();
    let right: Vec<u64> = [0].into_iter().chain(right.iter().map(|place| place - arm)).collect();
    walk(&ways(&left, &right), left.len() - 1, right.len() - 1)
}

/// The table: the ways from each interval with `a` requests on the left and `b` on the right, at `a · right.len() + b`.
fn ways(left: &[u64], right: &[u64]) -> Vec<Ways> {
    let mut ways = vec![(false, false); left.len() * right.len()];
    // The least totals at the left ends of the intervals with one more request on the left.
    let mut lefts = vec![u64::MAX; right.len()];
    for a in (0..left.len()).rev() {
        let to_left = left.get(a + 1);
        // The least total at the right end of the interval with one more request on the right.
        let mut right_end = u64::MAX;
        for b in (0..right.len()).rev() {
            let waiting = (left.len() - 1 - a + right.len() - 1 - b) as u64;
            if waiting == 0 {
                (lefts[b], right_end) = (0, 0);
                continue;
            }
            let via_left = |from: u64| to_left.map_or(u64::MAX, |_| from * waiting + lefts[b]);
            let via_right = |from: u64| right.get(b + 1).map_or(u64::MAX, |_| from * waiting + right_end);
            let (l, r) = (to_left.copied().unwrap_or(0), right.get(b + 1).copied().unwrap_or(0));
            let at_left = (via_left(l.saturating_sub(left[a])), via_right(left[a] + r));
            let at_right = (via_left(right[b] + l), via_right(r.saturating_sub(right[b])));
            ways[a * right.len() + b] = (at_left.0 < at_left.1, at_right.0 < at_right.1);
            (lefts[b], right_end) = (at_left.0.min(at_left.1), at_right.0.min(at_right.1));
        }
    }
    ways
}

/// Follows the table from the empty interval on. `l` requests are on the left, `r` on the right.
fn walk(ways: &[Ways], l: usize, r: usize) -> Vec<usize> {
    let (mut a, mut b, mut is_left) = (0, 0, false);
    let next = |_| {
        let (from_left, from_right) = ways[a * (r + 1) + b];
        is_left = if is_left { from_left } else { from_right };
        if is_left {
            a += 1;
            return l - a;
        }
        b += 1;
        l + b - 1
    };
    (0..l + r).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean service and mean response time of an order, where time is distance.
    fn means(arm: u64, order: &[u64]) -> (f64, f64) {
        let (mut at, mut clock, mut sum) = (arm, 0, 0);
        for place in order {
            clock += place.abs_diff(at);
            (at, sum) = (*place, sum + clock);
        }
        (clock as f64 / order.len() as f64, sum as f64 / order.len() as f64)
    }

    /// The places in the table's order.
    fn sorted(arm: u64, places: &[u64]) -> Vec<u64> {
        order(arm, places).into_iter().map(|index| places[index]).collect()
    }

    /// The least total response time of all orders of `rest` from `at` on, at `clock`, when `sum` is the total of those
    /// before; `best` if that is less.
    fn least(at: u64, clock: u64, sum: u64, rest: &mut Vec<u64>, best: u64) -> u64 {
        if rest.is_empty() || sum >= best {
            return sum.min(best);
        }
        (0..rest.len()).fold(best, |best, index| {
            let place = rest.remove(index);
            let ended = clock + place.abs_diff(at);
            let found = least(place, ended, sum + ended, rest, best);
            rest.insert(index, place);
            found
        })
    }

    #[test]
    fn the_papers_table_1() {
        assert_eq!(means(100, &[82, 120, 200, 20]), (79.0, 131.5), "greedy");
        let best = sorted(100, &[20, 82, 120, 200]);
        assert_eq!(best, [120, 82, 20, 200]);
        assert_eq!(means(100, &best), (75.0, 124.5));
    }

    #[test]
    fn the_edges() {
        for (arm, places, expected) in [
            (5, &[][..], &[][..]),
            (5, &[5], &[5]),
            (0, &[3, 7], &[3, 7]),
            (9, &[3, 7], &[7, 3]),
            (5, &[4, 6], &[6, 4]),
            (5, &[4, 5, 6], &[5, 6, 4]),
            (5, &[3, 4, 7], &[4, 3, 7]),
            (0, &[0, u64::MAX >> 13], &[0, u64::MAX >> 13]),
        ] {
            assert_eq!(sorted(arm, places), expected, "{arm} {places:?}");
        }
    }

    #[test]
    fn no_permutation_is_better() {
        let mut random = lamina_testing::xorshift(1);
        for round in 0..10_000 {
            // Small ranges have ties, and large ones have none.
            let range = [10, 100, 100_000][round % 3];
            let mut places: Vec<u64> = (0..=random() % 8).map(|_| random() % range).collect();
            places.sort_unstable();
            let arm = random() % range;
            let total = means(arm, &sorted(arm, &places)).1 * places.len() as f64;
            let best = least(arm, 0, 0, &mut places.clone(), u64::MAX);
            assert_eq!(total.round() as u64, best, "{arm} {places:?}");
        }
    }

    #[test]
    fn every_request_once_and_no_sum_overflows() {
        let most = (1 << 51) - 1;
        let mut random = lamina_testing::xorshift(2);
        for arm in [0, most / 2, most] {
            let mut places: Vec<u64> =
                (0..REQUESTS_MAX).map(|_| [0, most, random() % most][(random() % 3) as usize]).collect();
            places.sort_unstable();
            let mut found = order(arm, &places);
            found.sort_unstable();
            assert!(found.into_iter().eq(0..REQUESTS_MAX));
        }
    }
}
