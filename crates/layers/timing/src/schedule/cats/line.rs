//! The cost of requests by their distance: the line X = R/2 + S·d/D of the paper, taken from any model.

use lamina_block::Time;
use lamina_drive::{Model, Op, Request, Tracker};
use std::time::Duration;

/// The time of a request by its distance from the last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// The time of a request right behind the last one: R/2.
    near: Duration,
    /// Nanoseconds that each sector of distance adds: S/D.
    per_sector: f64,
    /// The time of a hit; `None` for a drive without a cache.
    pub hit: Option<Duration>,
}

impl Line {
    /// The line through the model's times for a request where the arm is, and for one a third of the drive away: the
    /// mean distance of random requests. For a linear model the line is its own. Rotational waits are half
    /// a turn.
    pub fn of(model: &Model) -> Line {
        let mut drive = Tracker::new(model);
        let at = |lbn| Request { op: Op::Read, lbn, sectors: 8.min(model.sectors()) as u32 };
        let third = (model.sectors() / 3).min(model.sectors().saturating_sub(8));
        let [near, far] = [0, third].map(|lbn| drive.cost(Time(0), &at(lbn)));
        drive.dispatched(Time(0), &at(0));
        // After a second the drive is idle.
        let later = Time(0).after(Duration::from_secs(1));
        drive.completed(Time(0), later, &at(0));
        let hit = drive.is_hit(&at(0)).then(|| drive.cost(later, &at(0)));
        let per_sector = far.saturating_sub(near).as_nanos() as f64 / third.max(1) as f64;
        Line { near, per_sector, hit }
    }

    /// The time of a request `distance` sectors away.
    pub fn cost(&self, distance: u64) -> Duration {
        self.near + Duration::from_nanos((self.per_sector * distance as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_model_has_its_own_line() {
        let model = Model::named("cheetah-15k4").expect("a model");
        let line = Line::of(&model);
        assert_eq!(line.hit, Some(Duration::from_micros(250)));
        for (distance, us) in [(0, 4250), (model.sectors() / 2, 6875), (model.sectors(), 9500)] {
            assert!(
                line.cost(distance).as_micros().abs_diff(us) <= 1,
                "{distance} {:?}",
                line.cost(distance)
            );
        }
    }

    #[test]
    fn other_drives_have_a_line_too() {
        let of = |name| Line::of(&Model::named(name).expect("a model"));
        let rotational = of("cheetah-15k5");
        // Half a turn is 2 ms.
        assert!((2000..2200).contains(&rotational.cost(0).as_micros()), "{rotational:?}");
        assert!(rotational.per_sector > 0.0);
        let mut small = Model::named("cheetah-15k4").expect("a model");
        small.size.0 = 4096;
        assert_eq!(Line::of(&small).per_sector, 0.0);
        let ssd = of("nvme");
        assert_eq!(ssd.cost(0), ssd.cost(1_000_000), "{ssd:?}");
    }
}
