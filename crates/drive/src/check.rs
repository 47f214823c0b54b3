//! Ranges of the keys of a model file: every value is compared with what is allowed before a drive is made of it.
//!
//! Not a number is outside every range, and lists are bounded, so that a drive never meets either.

use crate::ModelError;
use std::fmt::Display;
use std::ops::RangeInclusive;

/// What checking says.
pub(crate) type Checked = Result<(), ModelError>;

/// The longest time of any key: ten seconds, in milliseconds.
pub(crate) const MS_MAX: f64 = 10_000.0;

/// The longest time of any key, in microseconds.
pub(crate) const US_MAX: f64 = 10_000_000.0;

/// A mistake at `key`.
pub(crate) fn wrong(key: impl Display, message: impl Display) -> ModelError {
    ModelError { key: key.to_string(), line: None, message: message.to_string() }
}

/// `value` is in `range`.
pub(crate) fn within<T: PartialOrd + Display>(
    key: impl Display,
    value: T,
    range: RangeInclusive<T>,
) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    Err(wrong(key, format_args!("{value} is outside {}..={}", range.start(), range.end())))
}

/// A time in milliseconds.
pub(crate) fn ms(key: impl Display, value: f64) -> Checked {
    within(key, value, 0.0..=MS_MAX)
}

/// A time in microseconds.
pub(crate) fn us(key: impl Display, value: f64) -> Checked {
    within(key, value, 0.0..=US_MAX)
}

/// A list has so many entries.
pub(crate) fn entries(key: impl Display, count: usize, range: RangeInclusive<usize>) -> Checked {
    if range.contains(&count) {
        return Ok(());
    }
    Err(wrong(key, format_args!("{count} entries: {}..={} are allowed", range.start(), range.end())))
}

/// `value` is more than `before`, its neighbour in a list.
pub(crate) fn ascends<T: PartialOrd + Display>(key: impl Display, before: T, value: T) -> Checked {
    if value > before {
        return Ok(());
    }
    Err(wrong(key, format_args!("{value} is not more than {before}, the entry before: entries ascend")))
}
