//! Damage found on legs, and the position of a scrub: plain state.
//!
//! ```text
//!                 begin           advance      end                        cancel   count, note
//!  no scrub       scrub from 0    -            -                          -        counted
//!  to go on       scrub, from     -            -                          none     counted
//!                 where it was
//!  scrub          scrub           further      none; what was counted     none     counted
//!                                              since it began is the last
//! ```
//!
//! *To go on* is the position recorded when the device was closed, or crashed.
//!
//! Invariants ([`Findings::check`]): a scrub is inside the legs; only a scrub that goes on has counts from
//! before it, and counts never get smaller; few places are remembered.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ops::Range;

/// So many places are remembered.
const PLACES: usize = 32;

/// The kinds of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A range of a leg was wrong, and was written again.
    Healed,
    /// Legs differ in a range, and nothing says which leg is right.
    Different,
    /// A block that a leg cannot read and the others do not have.
    Lost,
}

/// The damage found since the device was opened.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// The count of each [`Found`].
    counts: [u64; 3],
    places: VecDeque<Value>,
    /// The position up to which a scrub has compared; recorded.
    position: Option<u64>,
    /// The counts when the scrub under way began.
    before: Option<[u64; 3]>,
    /// The findings of the last scrub that came to its end.
    last: Option<[u64; 3]>,
}

impl Findings {
    /// The findings of a device whose scrub is to go on at `position`.
    pub fn new(position: Option<u64>) -> Findings {
        Findings { position, ..Findings::default() }
    }

    /// The position up to which an unfinished scrub has compared.
    pub fn position(&self) -> Option<u64> {
        self.position
    }

    /// How much was healed, different and lost.
    pub fn counts(&self) -> [u64; 3] {
        self.counts
    }

    pub fn has_lost(&self) -> bool {
        self.counts[Found::Lost as usize] > 0
    }

    pub fn count(&mut self, found: Found) {
        self.counts[found as usize] += 1;
    }

    /// Remembers where something was wrong on leg `leg`.
    pub fn note(&mut self, leg: &str, at: &Range<u64>, what: &str) {
        if self.places.len() == PLACES {
            self.places.pop_front();
        }
        self.places.push_back(json!({ "leg": leg, "start": at.start, "end": at.end, "what": what }));
    }

    /// A scrub begins, or goes on; from the byte returned.
    pub fn begin(&mut self) -> u64 {
        self.before = Some(self.counts);
        *self.position.get_or_insert(0)
    }

    /// The scrub has compared all bytes before `position`.
    pub fn advance(&mut self, position: u64) {
        debug_assert!(self.before.is_some(), "only a scrub under way gets further");
        self.position = Some(position);
    }

    /// The scrub has compared everything: returns its findings.
    pub fn end(&mut self) -> [u64; 3] {
        let before = self.before.take().unwrap_or(self.counts);
        let found = std::array::from_fn(|i| self.counts[i] - before[i]);
        (self.position, self.last) = (None, Some(found));
        found
    }

    /// The scrub is not to go on.
    pub fn cancel(&mut self) {
        (self.position, self.before) = (None, None);
    }

    pub fn info(&self) -> Value {
        let mut info = named(self.counts);
        info["places"] = self.places.iter().cloned().collect();
        info["last_scrub"] = self.last.map_or(Value::Null, named);
        info
    }

    /// Says which invariant does not hold, if the legs have `size` bytes.
    pub fn check(&self, size: u64) -> Result<(), String> {
        if self.position.is_some_and(|position| position > size) {
            return Err("a scrub is beyond the end of the legs".into());
        }
        if self.before.is_some() && self.position.is_none() {
            return Err("a scrub is under way without a position".into());
        }
        if self.before.is_some_and(|before| (0..3).any(|i| before[i] > self.counts[i])) {
            return Err("a scrub began with higher counts than there are".into());
        }
        match self.places.len() <= PLACES {
            true => Ok(()),
            false => Err("too many places are remembered".into()),
        }
    }
}

fn named([healed, different, lost]: [u64; 3]) -> Value {
    json!({ "healed": healed, "different": different, "lost": lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 100;

    /// A change, and its answer.
    fn apply(findings: &mut Findings, change: &str) -> Vec<u64> {
        let answer = match change {
            "begin" => vec![findings.begin()],
            "advance" => {
                findings.advance(60);
                Vec::new()
            }
            "end" => findings.end().to_vec(),
            "cancel" => {
                findings.cancel();
                Vec::new()
            }
            "healed" | "different" | "lost" => {
                let found = match change {
                    "healed" => Found::Healed,
                    "different" => Found::Different,
                    _ => Found::Lost,
                };
                findings.count(found);
                Vec::new()
            }
            other => panic!("{other}"),
        };
        findings.check(SIZE).expect("a good state");
        answer
    }

    #[test]
    fn every_change_is_as_the_table_says() {
        let none = || Findings::new(None);
        let to_go_on = || Findings::new(Some(40));
        let under_way = || {
            let mut findings = Findings::new(Some(40));
            findings.count(Found::Lost);
            findings.begin();
            findings
        };
        type Row = (Findings, &'static [&'static str], Option<u64>, bool, Vec<u64>, [u64; 3]);
        // The change; then the position, whether a scrub is under way, the last answer, and the counts.
        let rows: [Row; 10] = [
            (none(), &["begin"], Some(0), true, vec![0], [0; 3]),
            (none(), &["cancel"], None, false, vec![], [0; 3]),
            (none(), &["healed", "different", "lost"], None, false, vec![], [1; 3]),
            (to_go_on(), &["begin"], Some(40), true, vec![40], [0; 3]),
            (to_go_on(), &["cancel"], None, false, vec![], [0; 3]),
            (to_go_on(), &["healed"], Some(40), false, vec![], [1, 0, 0]),
            (under_way(), &["advance"], Some(60), true, vec![], [0, 0, 1]),
            (under_way(), &["advance", "lost", "end"], None, false, vec![0, 0, 1], [0, 0, 2]),
            (under_way(), &["healed", "begin", "different", "end"], None, false, vec![0, 1, 0], [1, 1, 1]),
            (under_way(), &["different", "cancel"], None, false, vec![], [0, 1, 1]),
        ];
        for (number, (mut findings, changes, position, is_under_way, answer, counts)) in
            rows.into_iter().enumerate()
        {
            let answers: Vec<_> = changes.iter().map(|change| apply(&mut findings, change)).collect();
            let found = (findings.position(), findings.before.is_some(), answers.last().cloned());
            assert_eq!(found, (position, is_under_way, Some(answer)), "row {number}");
            assert_eq!((findings.counts(), findings.has_lost()), (counts, counts[2] > 0), "row {number}");
        }
    }

    #[test]
    fn the_last_places_are_remembered() {
        let mut findings = Findings::new(None);
        (0..100).for_each(|n| findings.note("a", &(n..n + 1), "wrong"));
        findings.check(SIZE).expect("a good state");
        let info = findings.info();
        let places = info["places"].as_array().expect("a list");
        assert_eq!((places.len(), &places[31]["start"]), (PLACES, &json!(99)));
        assert_eq!((&info["healed"], &info["last_scrub"]), (&json!(0), &Value::Null));
    }

    #[test]
    fn a_broken_state_is_noticed() {
        let mut good = Findings::new(Some(40));
        good.begin();
        good.check(SIZE).expect("a good state");
        let breaks: [fn(&mut Findings); 4] = [
            |findings| findings.position = Some(SIZE + 1),
            |findings| findings.position = None,
            |findings| findings.before = Some([0, 1, 0]),
            |findings| findings.places = vec![Value::Null; PLACES + 1].into(),
        ];
        for (number, change) in breaks.into_iter().enumerate() {
            let mut broken = good.clone();
            change(&mut broken);
            broken.check(SIZE).expect_err(&format!("break {number} is not noticed"));
        }
    }
}
