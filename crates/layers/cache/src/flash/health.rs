//! Whether the device of a flash can be used: plain state.
//!
//! ```text
//!             break_down                  repaired   lose
//!  works      failed, repair begins       -          -
//!  failed     the first cause stays       works      lost
//!  lost       the cause stays             -          -          until the device is opened again
//!  missing    the cause stays             -          -          as lost
//! ```

use lamina_block::{Error, ErrorKind, Result};

/// The state of the device.
#[derive(Clone, Debug, Default)]
pub enum Health {
    #[default]
    Works,
    /// A write failed, and may be found all the same; a repair tries again and again to end that.
    Failed(Error),
    /// It works again, without some of what was not durable.
    Lost(Error),
    /// It could not be opened: it has nothing, and takes nothing.
    Missing(Error),
}

impl Health {
    /// Why nothing can be put.
    pub fn cause(&self) -> Option<&Error> {
        match self {
            Health::Works => None,
            Health::Failed(why) | Health::Lost(why) | Health::Missing(why) => Some(why),
        }
    }

    pub fn works(&self) -> bool {
        matches!(self, Health::Works)
    }

    pub fn is_missing(&self) -> bool {
        matches!(self, Health::Missing(_))
    }

    /// Fails if nothing can be put.
    pub fn check(&self) -> Result<()> {
        self.cause().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Fails if what was put cannot be relied on. A device that is full can be read.
    pub fn check_reads(&self) -> Result<()> {
        match self.cause() {
            Some(why) if why.kind() != ErrorKind::NoSpace => Err(why.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// The device has failed because of `why`: true if a repair is to begin.
    pub fn break_down(&mut self, why: &Error) -> bool {
        let had_worked = self.works();
        if had_worked {
            *self = Health::Failed(why.clone());
        }
        had_worked
    }

    /// A repair has succeeded.
    pub fn repaired(&mut self) {
        debug_assert!(matches!(self, Health::Failed(_)), "only what has failed is repaired");
        *self = Health::Works;
    }

    /// A repair has found that something is gone.
    pub fn lose(&mut self, why: Error) {
        debug_assert!(matches!(self, Health::Failed(_)), "a repair finds it");
        *self = Health::Lost(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let (first, second) = (Error::media("first"), Error::media("second"));
        let mut health = Health::default();
        assert!(health.works() && health.check().is_ok());
        assert!(health.break_down(&first), "a repair begins");
        assert!(!health.break_down(&second), "one repair at a time");
        assert_eq!(health.check(), Err(first.clone()));
        health.repaired();
        assert!(health.works() && health.break_down(&second));
        health.lose(Error::new(ErrorKind::Corrupt, "gone"));
        for mut health in [health, Health::Missing(Error::new(ErrorKind::Corrupt, "gone"))] {
            assert!(!health.break_down(&first), "no repair helps");
            assert_eq!(health.check().expect_err("gone").message(), "gone");
        }
    }

    #[test]
    fn a_full_device_is_read() {
        let full = Health::Failed(Error::new(ErrorKind::NoSpace, "full"));
        assert!(full.check().is_err() && full.check_reads().is_ok());
        let broken = Health::Failed(Error::media("broken"));
        assert!(broken.check_reads().is_err());
    }
}
