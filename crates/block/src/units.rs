//! Sizes and times as people write them: "64MiB", "5ms".

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes: a plain number, or a string with B, KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB
/// (powers of 1000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A length of time: a string with ns, us, ms, s, min or h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval(pub Duration);

const BYTE_UNITS: [(&str, u64); 10] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("kB", 1_000),
    ("B", 1),
];

const TIME_UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("s", 1_000_000_000),
];

/// Reads `NUMBER UNIT`, the number with up to nine decimals, exactly: 0.1 of a unit that has no tenth is refused.
fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, scale) =
        units.iter().find_map(|(unit, scale)| text.strip_suffix(unit).map(|n| (n.trim_end(), *scale)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.len() <= 20 && s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 || number.ends_with('.')
    {
        return None;
    }
    let ten = 10u128.pow(fraction.len() as u32);
    let units = whole.parse::<u128>().ok()? * ten + fraction.parse::<u128>().unwrap_or(0);
    let total = units.checked_mul(scale as u128)?;
    (total % ten == 0).then(|| u64::try_from(total / ten).ok()).flatten()
}

impl Bytes {
    /// For a person: three digits and the unit that reads best, such as `512B`, `4KiB`, `1.25TiB`.
    /// [`Display`](fmt::Display) is exact.
    pub fn rounded(self) -> String {
        let units = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1u64 << 40)];
        // A value that would be printed as 1024 of a unit is 1 of the next.
        let is_next = |scale: u64| scale == 1 || self.0 as f64 / scale as f64 >= 0.9995;
        let (unit, scale) = units.into_iter().rev().find(|(_, scale)| is_next(*scale)).unwrap_or(("B", 1));
        let value = self.0 as f64 / scale as f64;
        let digits = match value {
            _ if scale == 1 => 0,
            v if v < 9.995 => 2,
            v if v < 99.95 => 1,
            _ => 0,
        };
        let number = format!("{value:.digits$}");
        let number = if digits > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
        format!("{number}{unit}")
    }
}

impl FromStr for Bytes {
    type Err = String;
    fn from_str(s: &str) -> Result<Bytes, String> {
        s.parse().ok().or_else(|| parse(s, &BYTE_UNITS)).map(Bytes).ok_or_else(|| {
            format!(
                "{s:?} is no size: write a number of bytes or, for example, \"64MiB\", \"1.5GiB\", \"10GB\""
            )
        })
    }
}

impl FromStr for Interval {
    type Err = String;
    fn from_str(s: &str) -> Result<Interval, String> {
        parse(s, &TIME_UNITS)
            .map(|ns| Interval(Duration::from_nanos(ns)))
            .ok_or_else(|| format!("{s:?} is no time: write, for example, \"5ms\", \"1.5s\", \"10min\""))
    }
}

impl fmt::Display for Bytes {
    /// The largest binary unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match BYTE_UNITS[..4].iter().find(|(_, scale)| self.0 != 0 && self.0.is_multiple_of(*scale)) {
            Some((unit, scale)) => write!(f, "{}{unit}", self.0 / scale),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        match [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)]
            .iter()
            .find(|(_, s)| ns != 0 && ns.is_multiple_of(*s))
        {
            Some((unit, scale)) => write!(f, "{}{unit}", ns / scale),
            None => write!(f, "{ns}ns"),
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Bytes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"64MiB\" or a number of bytes")
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Bytes, E> {
                Ok(Bytes(n))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Bytes, E> {
                u64::try_from(n).map(Bytes).map_err(|_| E::custom(format!("a size cannot be negative ({n})")))
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Bytes, E> {
                s.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Interval, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Interval;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"5ms\"")
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Interval, E> {
                s.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(Visitor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0B"),
            (1000, "1000B"),
            (1023, "1023B"),
            (4096, "4KiB"),
            ((1 << 20) - 1, "1MiB"),
            (1277 << 30, "1.25TiB"),
            ((10 << 30) + 1, "10GiB"),
            (12_884_901_888 + (512 << 20), "12.5GiB"),
            (118 << 20, "118MiB"),
            (5000 << 40, "5000TiB"),
        ] {
            assert_eq!(Bytes(bytes).rounded(), text, "{bytes}");
        }
    }

    #[test]
    fn sizes() {
        let good =
            [("0", 0), ("512", 512), ("64MiB", 64 << 20), ("1.5GiB", 3 << 29), ("10 GB", 10_000_000_000)];
        for (text, bytes) in good {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "MiB", "-1", "1.MiB", "0.3B", "1e3", "64mib", "99999999999TiB", "1.2.3GiB", "+5KiB"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, ns) in [("5ms", 5_000_000), ("1.5s", 1_500_000_000), ("2min", 120_000_000_000), ("0s", 0)]
        {
            assert_eq!(text.parse(), Ok(Interval(Duration::from_nanos(ns))), "{text}");
        }
        for text in ["5", "ms", "5 parsecs", "0.5ns"] {
            assert!(text.parse::<Interval>().is_err(), "{text}");
        }
    }

    #[test]
    fn display_parses_back() {
        for bytes in [0, 1, 512, 1 << 20, 3 << 30, (1 << 40) + 1] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
        for ns in [0, 1, 1500, 2_000_000, 60_000_000_000] {
            let span = Interval(Duration::from_nanos(ns));
            assert_eq!(span.to_string().parse(), Ok(span));
        }
    }
}
