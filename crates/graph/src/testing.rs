//! Kinds for this crate's own tests: just enough to be parsed.

use crate::{Plan, Report};
use lamina_block::{Build, Bytes, Config, Error, Kind, Made, Outside, Pending, Traits};
use serde::Deserialize;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Kinds that can be parsed and not built.
macro_rules! kind {
    ($keys:ident, $name:literal, $children:expr, { $($key:ident: $type:ty),* } $(, $traits:expr)?) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        #[allow(dead_code, reason = "read, and not built")]
        struct $keys { $($key: $type),* }
        impl Config for $keys {
            const KIND: &'static str = $name;
            const SUMMARY: &'static str = "for tests";
            const CHILDREN: RangeInclusive<usize> = $children;
            $(const TRAITS: Traits = $traits;)?
            fn build(self, _: Build) -> Pending<Made> {
                Box::pin(async { Err(Error::unsupported("is for tests of the file only")) })
            }
        }
    };
}

const STORE: Traits = Traits { member: true, outside: &[Outside::file("path")], ..Traits::NONE };

kind!(Store, "store", 0..=0, { path: PathBuf, size: Option<Bytes>, read_only: Option<bool> }, STORE);
kind!(Slice, "slice", 1..=1, { offset: Option<Bytes> });
kind!(Join, "join", 1..=usize::MAX, {});
kind!(Pair, "pair", 2..=3, { rules: Option<Vec<Rule>> });

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "read, and not built")]
struct Rule {
    count: u64,
    range: Option<Vec<Bytes>>,
}

pub(crate) static KINDS: &[Kind] =
    &[Kind::of::<Store>(), Kind::of::<Slice>(), Kind::of::<Join>(), Kind::of::<Pair>()];

/// Parses `text` as `f.toml` in `/base`.
pub(crate) fn parse(text: &str) -> Result<Plan, Report> {
    Plan::parse(text, "f.toml", Path::new("/base"), KINDS)
}

/// The lines of what is wrong with `text`, without the name of the file.
pub(crate) fn wrong(text: &str) -> Vec<String> {
    let report = parse(text).err().unwrap_or_else(|| panic!("nothing is wrong with {text}"));
    lines(&report)
}

/// The lines of a report, without the name of the file.
pub(crate) fn lines(report: &Report) -> Vec<String> {
    report.to_string().lines().map(|l| l.trim_start_matches("f.toml:").trim_start().to_owned()).collect()
}

/// `n` stores and one slice over each of the pairs given; nothing is exported.
pub(crate) fn slices(edges: &[(&str, &[&str])]) -> String {
    let mut text = String::new();
    for (name, over) in edges {
        if over.is_empty() {
            text += &format!("[device.{name}]\ntype = \"store\"\npath = \"{name}.img\"\n");
        } else {
            text += &format!("[device.{name}]\ntype = \"join\"\nover = {over:?}\n");
        }
    }
    text
}
