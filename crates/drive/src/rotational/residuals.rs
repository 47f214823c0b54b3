//! What real requests take longer than the model says, by class.
//!
//! An arm that is expected just in time may be late, and one that is expected just too late may be in time: what a
//! request is off by depends on the wait for its first sector. So requests of the medium may have a distribution for
//! each part of the turn that they are expected to wait, whole turns that are lost or won included.

use crate::Quantiles;
use crate::chance::Chance;
use crate::check::{Checked, MS_MAX, entries};
use crate::machine::{MS, Nanos};
use crate::quantiles::Distribution;
use serde::{Deserialize, Serialize};

/// The most parts of a turn.
const PARTS_MAX: usize = 64;

/// Distributions of what real requests take longer than the model says, in milliseconds, -10000..=10000, by class.
/// A drive draws from them; expected costs have their means.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Residuals {
    /// Reads from the medium.
    #[serde(skip_serializing_if = "Quantiles::is_empty")]
    pub read_ms: Quantiles,
    /// Reads from the medium that wait for their first sector, instead of `read_ms`: one distribution for each of so
    /// many equal parts of a turn, at most 64, by the wait that is expected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_by_wait_ms: Vec<Quantiles>,
    /// Writes to the medium.
    #[serde(skip_serializing_if = "Quantiles::is_empty")]
    pub write_ms: Quantiles,
    /// Writes to the medium that wait for their first sector, as with reads.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub write_by_wait_ms: Vec<Quantiles>,
    /// Hits.
    #[serde(skip_serializing_if = "Quantiles::is_empty")]
    pub hit_ms: Quantiles,
    /// Writes that the buffer took.
    #[serde(skip_serializing_if = "Quantiles::is_empty")]
    pub buffered_ms: Quantiles,
}

impl Residuals {
    pub(super) fn is_empty(&self) -> bool {
        *self == Residuals::default()
    }

    /// The distribution of reads from the medium that wait for a part `wait` of a turn, 0 to 1.
    pub fn read(&self, wait: f64) -> &Quantiles {
        part(&self.read_by_wait_ms, wait).unwrap_or(&self.read_ms)
    }

    /// The same of writes to the medium.
    pub fn write(&self, wait: f64) -> &Quantiles {
        part(&self.write_by_wait_ms, wait).unwrap_or(&self.write_ms)
    }

    pub(super) fn check(&self) -> Checked {
        let check =
            |name: &str, of: &Quantiles| of.check(&format!("rotational.residuals.{name}"), -MS_MAX..=MS_MAX);
        check("read-ms", &self.read_ms)?;
        check("write-ms", &self.write_ms)?;
        check("hit-ms", &self.hit_ms)?;
        check("buffered-ms", &self.buffered_ms)?;
        for (name, parts) in
            [("read-by-wait-ms", &self.read_by_wait_ms), ("write-by-wait-ms", &self.write_by_wait_ms)]
        {
            entries(format_args!("rotational.residuals.{name}"), parts.len(), 0..=PARTS_MAX)?;
            for (i, of) in parts.iter().enumerate() {
                check(&format!("{name}[{i}]"), of)?;
            }
        }
        Ok(())
    }
}

/// The part of a turn that `wait` is in, of as many equal ones as there are.
fn part<T>(parts: &[T], wait: f64) -> Option<&T> {
    let last = parts.len().checked_sub(1)?;
    parts.get(((wait * parts.len() as f64) as usize).min(last))
}

/// The same, ready for use.
pub(super) struct Differences {
    pub hit: Distribution,
    pub buffered: Distribution,
    /// Reads that wait for no sector.
    pub passing: Distribution,
    pub read: ByWait,
    pub write: ByWait,
}

/// By the part of a turn that is waited.
pub(super) struct ByWait {
    all: Distribution,
    parts: Vec<Distribution>,
}

impl ByWait {
    fn new(all: &Quantiles, parts: &[Quantiles]) -> ByWait {
        ByWait {
            all: Distribution::new(all, MS),
            parts: parts.iter().map(|of| Distribution::new(of, MS)).collect(),
        }
    }

    fn after(&self, wait: f64) -> &Distribution {
        part(&self.parts, wait).unwrap_or(&self.all)
    }

    /// The mean after a wait of so much of a turn.
    pub(super) fn mean(&self, wait: f64) -> Nanos {
        self.after(wait).mean
    }

    /// A value after such a wait.
    pub(super) fn of(&self, wait: f64, chance: &mut Chance) -> Nanos {
        chance.of(self.after(wait))
    }
}

impl Differences {
    pub(super) fn new(keys: &Residuals) -> Differences {
        Differences {
            hit: Distribution::new(&keys.hit_ms, MS),
            buffered: Distribution::new(&keys.buffered_ms, MS),
            passing: Distribution::new(&keys.read_ms, MS),
            read: ByWait::new(&keys.read_ms, &keys.read_by_wait_ms),
            write: ByWait::new(&keys.write_ms, &keys.write_by_wait_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_turn() {
        for (wait, is) in [(-1e-6, 0), (0.0, 0), (0.24, 0), (0.26, 1), (0.99, 3), (1.0, 3)] {
            assert_eq!(part(&[0, 1, 2, 3], wait), Some(&is), "{wait}");
        }
        assert_eq!(part::<u8>(&[], 0.5), None);
        let one = |value| Quantiles(vec![[0.5, value]]);
        let mut residuals = Residuals { read_ms: one(1.0), ..Residuals::default() };
        assert_eq!(residuals.read(0.7), &one(1.0));
        residuals.read_by_wait_ms = vec![one(2.0), one(3.0)];
        assert_eq!((residuals.read(0.2), residuals.read(0.7)), (&one(2.0), &one(3.0)));
    }
}
