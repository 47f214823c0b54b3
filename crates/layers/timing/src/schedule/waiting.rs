//! Requests that wait, sorted by place and by age.

use super::policy::Queued;
use std::collections::BTreeMap;

/// Where a request stands among those that wait: its first sector, and its number among those that begin there.
pub type Place = (u64, u64);

/// The place of a request.
pub fn place(queued: &Queued) -> Place {
    (queued.request.lbn, queued.id)
}

/// Requests that wait. All operations take logarithmic time.
#[derive(Debug, Default)]
pub struct Waiting {
    by_place: BTreeMap<Place, Queued>,
    /// The first sector of each, by number: numbers rise with age.
    by_age: BTreeMap<u64, u64>,
}

impl Waiting {
    /// One more waits.
    pub fn insert(&mut self, queued: Queued) {
        self.by_age.insert(queued.id, queued.request.lbn);
        self.by_place.insert(place(&queued), queued);
    }

    /// Takes the request at this place out.
    pub fn remove(&mut self, place: Place) -> Option<Queued> {
        self.by_age.remove(&place.1);
        self.by_place.remove(&place)
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// All of them, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.by_place.values()
    }

    /// The places of all of them, oldest first.
    pub fn by_age(&self) -> impl Iterator<Item = Place> + '_ {
        self.by_age.iter().map(|(id, lbn)| (*lbn, *id))
    }

    /// The one at this place.
    pub fn get(&self, place: Place) -> Option<&Queued> {
        self.by_place.get(&place)
    }

    /// The one that came first.
    pub fn oldest(&self) -> Option<&Queued> {
        let (id, lbn) = self.by_age.first_key_value()?;
        self.by_place.get(&(*lbn, *id))
    }

    /// The first one at or behind a place.
    pub fn at_or_after(&self, place: Place) -> Option<&Queued> {
        self.by_place.range(place..).next().map(|(_, queued)| queued)
    }

    /// The last one before a place.
    pub fn before(&self, place: Place) -> Option<&Queued> {
        self.by_place.range(..place).next_back().map(|(_, queued)| queued)
    }

    /// The one with the lowest address.
    pub fn lowest(&self) -> Option<&Queued> {
        self.by_place.first_key_value().map(|(_, queued)| queued)
    }

    /// All of them, oldest first; none waits any more.
    pub fn drain(&mut self) -> Vec<Queued> {
        self.by_age.clear();
        let mut all: Vec<Queued> = std::mem::take(&mut self.by_place).into_values().collect();
        all.sort_unstable_by_key(|queued| queued.id);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::read;
    use super::*;

    #[test]
    fn they_are_found_by_place_and_by_age() {
        let mut waiting = Waiting::default();
        for (id, lbn) in [(1, 50), (2, 10), (3, 50), (4, 90)] {
            waiting.insert(read(id, lbn));
        }
        let id = |found: Option<&Queued>| found.map(|queued| queued.id);
        assert_eq!(id(waiting.oldest()), Some(1));
        assert_eq!(id(waiting.lowest()), Some(2));
        assert_eq!(id(waiting.at_or_after((50, 0))), Some(1));
        assert_eq!(id(waiting.at_or_after((50, 2))), Some(3));
        assert_eq!(id(waiting.before((50, 0))), Some(2));
        assert_eq!(id(waiting.before((10, 0))), None);
        assert_eq!(waiting.remove((50, 1)).map(|queued| queued.id), Some(1));
        assert_eq!(waiting.remove((50, 1)), None);
        assert_eq!((id(waiting.oldest()), waiting.len()), (Some(2), 3));
        let drained = waiting.drain().iter().map(|queued| queued.id).collect::<Vec<_>>();
        assert_eq!((drained, waiting.is_empty(), id(waiting.oldest())), (vec![2, 3, 4], true, None));
    }
}
