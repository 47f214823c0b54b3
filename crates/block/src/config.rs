//! Keys of a device, read and not yet built.

use crate::{Build, Config, Made, Over, Pending, believe};
use serde_json::Value;
use std::borrow::Cow;
use std::ops::Range;

/// A mistake in a device's keys, and the place of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    /// Path of the key inside the device's table (`units[2].size`); empty if the table as a whole is meant.
    pub path: String,
    /// The mistake.
    pub message: String,
}

/// The keys of a device, valid in themselves.
pub struct Keys(Box<dyn Parsed>);

/// A [`Config`] of any kind.
trait Parsed {
    fn survives(&self, children: usize) -> usize;
    fn may_miss(&self, child: usize) -> bool;
    fn check(&self, over: &Over<'_>) -> crate::Result<()>;
    fn part(&self) -> Option<Range<u64>>;
    fn build(self: Box<Self>, with: Build) -> Pending<Made>;
}

impl<C: Config> Parsed for C {
    fn survives(&self, children: usize) -> usize {
        Config::survives(self, children)
    }

    fn may_miss(&self, child: usize) -> bool {
        Config::may_miss(self, child)
    }

    fn check(&self, over: &Over<'_>) -> crate::Result<()> {
        Config::check(self, over)
    }

    fn part(&self) -> Option<Range<u64>> {
        Config::part(self)
    }

    fn build(self: Box<Self>, with: Build) -> Pending<Made> {
        if !C::TRAITS.keeps {
            return Config::build(*self, with);
        }
        Box::pin(async move {
            believe(with.children.iter().chain(&with.metadata)).await;
            Config::build(*self, with).await
        })
    }
}

impl Keys {
    pub(crate) fn parse<C: Config>(keys: &Value) -> Result<Keys, KeyError> {
        let current = renamed(keys, C::TRAITS.renamed)?;
        let config: C = serde_path_to_error::deserialize(&*current).map_err(|e| {
            let path = e.path().to_string();
            let path = if path == "." { String::new() } else { path };
            KeyError { path: as_given(path, keys, C::TRAITS.renamed), message: e.inner().to_string() }
        })?;
        Ok(Keys(Box::new(config)))
    }

    /// How many of `children` may be absent: see [`Config::survives`]. Always fewer than there are, except that there
    /// are none.
    pub fn survives(&self, children: usize) -> usize {
        self.0.survives(children).min(children.saturating_sub(1))
    }

    /// Whether the device may be built without the child number `child`: see [`Config::may_miss`].
    pub fn may_miss(&self, child: usize) -> bool {
        self.0.may_miss(child)
    }

    /// Refuses what the file alone shows to be wrong: see [`Config::check`].
    pub fn check(&self, over: &Over<'_>) -> crate::Result<()> {
        self.0.check(over)
    }

    /// The part of its child that it shows: see [`Config::part`].
    pub fn part(&self) -> Option<Range<u64>> {
        self.0.part()
    }

    /// Builds the layer. For a layer with state ([`crate::Traits::keeps`]) the data below is made durable before.
    pub fn build(self, with: Build) -> Pending<Made> {
        self.0.build(with)
    }
}

/// The path of a key as `keys` have it, perhaps under its old name.
fn as_given(path: String, keys: &Value, names: &[(&str, &str)]) -> String {
    let given = names.iter().filter(|(before, _)| keys.get(before).is_some());
    let rest =
        |now: &str| path.strip_prefix(now).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let old = given.into_iter().find_map(|(before, now)| Some(format!("{before}{}", rest(now)?)));
    old.unwrap_or(path)
}

/// The keys under the names that they have now.
fn renamed<'a>(keys: &'a Value, names: &[(&str, &str)]) -> Result<Cow<'a, Value>, KeyError> {
    let given = keys;
    let mut keys = Cow::Borrowed(given);
    for (before, now) in names.iter().filter(|(before, _)| given.get(before).is_some()) {
        if given.get(now).is_some() {
            let message = format!("is the old name of {now}, which is given as well");
            return Err(KeyError { path: (*before).into(), message });
        }
        if let Some(table) = keys.to_mut().as_object_mut()
            && let Some(value) = table.remove(*before)
        {
            table.insert((*now).into(), value);
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use std::ops::RangeInclusive;

    #[derive(serde::Deserialize)]
    struct Legs {
        may_miss: usize,
    }

    impl Config for Legs {
        const KIND: &'static str = "legs";
        const SUMMARY: &'static str = "says what it survives";
        const CHILDREN: RangeInclusive<usize> = 1..=9;
        const TRAITS: crate::Traits =
            crate::Traits { renamed: &[("may-lack", "may_miss")], ..crate::Traits::NONE };

        fn survives(&self, _children: usize) -> usize {
            self.may_miss
        }

        fn build(self, _: Build) -> Pending<Made> {
            Box::pin(async { Err(crate::Error::unsupported("not here")) })
        }
    }

    #[test]
    fn nothing_survives_the_loss_of_all() {
        let keys = Kind::of::<Legs>().parse(&serde_json::json!({ "may_miss": 2 })).ok().unwrap();
        assert_eq!([0, 1, 2, 3, 4].map(|children| keys.survives(children)), [0, 0, 1, 2, 2]);
    }

    #[test]
    fn an_old_name_is_taken_unless_the_new_one_is_there_too() {
        let parse = |keys| Kind::of::<Legs>().parse(&keys);
        let keys = parse(serde_json::json!({ "may-lack": 2 })).ok().unwrap();
        assert_eq!(keys.survives(4), 2);
        let refused = parse(serde_json::json!({ "may-lack": 2, "may_miss": 1 })).err().unwrap();
        assert_eq!(refused.path, "may-lack");
        assert!(refused.message.contains("may_miss"), "{}", refused.message);
        let wrong = parse(serde_json::json!({ "may-lack": "many" })).err().unwrap();
        assert_eq!(wrong.path, "may-lack");
    }
}
