//! The tables, and whether a policy is as good as is asked of it.

use super::POLICIES;
use super::engine::Score;
use super::table::Table;

/// All policies on one trace and one size of the fast device.
pub struct Row {
    pub name: String,
    pub percent: usize,
    /// In the order of [`POLICIES`].
    pub scores: Vec<Score>,
}

const SHARES: usize = 2;
const LRU: usize = 4;
const ACCELERATE: usize = 5;
const HEAT: usize = 7;
const BELADY: usize = 8;
const PLACED: usize = 9;

impl Row {
    fn least(&self, of: &[usize], pick: fn(&Score) -> f64) -> f64 {
        of.iter().map(|policy| pick(&self.scores[*policy])).fold(f64::INFINITY, f64::min)
    }

    /// What the policy takes, as a part of what another does.
    fn against(&self, others: &[usize], pick: fn(&Score) -> f64) -> f64 {
        pick(&self.scores[HEAT]) / self.least(others, pick)
    }

    /// How far the policy is on the way from LRU to the better oracle; `None` where LRU is as good as both.
    fn way(&self, pick: fn(&Score) -> f64) -> Option<f64> {
        let (lru, oracle) = (pick(&self.scores[LRU]), self.least(&[BELADY, PLACED], pick));
        (oracle < lru).then(|| (lru - pick(&self.scores[HEAT])) / (lru - oracle))
    }

    fn cells(&self, cell: impl Fn(&Score) -> String) -> impl Iterator<Item = String> {
        [self.name.clone(), self.percent.to_string()].into_iter().chain(self.scores.iter().map(cell))
    }
}

/// The middle of some values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// All tables, and the verdict.
pub fn verdict(rows: &[Row]) -> String {
    let head = || ["trace", "%"].into_iter().chain(POLICIES);
    let mut text = String::new();
    let mut table = |title: &str, cell: fn(&Score) -> String| {
        let mut table = Table::new(head());
        rows.iter().for_each(|row| table.row(row.cells(cell)));
        text += &table.show(title, false);
    };
    table("Seconds", |score| format!("{:.1}", score.seconds));
    table("Seconds until all dirty blocks are at home", |score| format!("{:.1}", score.drained));
    table("Megabytes moved", |score| format!("{:.0}", score.moved() as f64 / 1e6));
    table("Percent of blocks that the fast device served", |score| {
        format!("{:.1}", 100.0 * score.hits as f64 / score.asked.max(1) as f64)
    });
    text += &judged("Seconds", rows, |score| score.seconds);
    text += &judged("Seconds until all dirty blocks are at home", rows, |score| score.drained);
    text
}

/// The verdict by one measure of time.
fn judged(title: &str, rows: &[Row], pick: fn(&Score) -> f64) -> String {
    let mut table = Table::new(["trace", "%", "to best", "to LRU", "way to oracle", "bytes to LRU"]);
    let peers = [LRU, ACCELERATE, SHARES];
    let moved = |score: &Score| score.moved() as f64;
    for row in rows {
        let figures = [
            row.against(&peers, pick),
            row.against(&[LRU], pick),
            row.way(pick).unwrap_or(f64::NAN),
            row.against(&[LRU], moved),
        ];
        let front = [row.name.clone(), row.percent.to_string()];
        table.row(front.into_iter().chain(figures.map(|figure| format!("{figure:.3}"))));
    }
    let best: Vec<f64> = rows.iter().map(|row| row.against(&peers, pick)).collect();
    let wins = best.iter().filter(|ratio| **ratio <= 1.0).count();
    let worst = best.iter().copied().fold(0.0, f64::max);
    let ways: Vec<f64> = rows.iter().filter_map(|row| row.way(pick)).collect();
    let far = ways.iter().filter(|way| **way >= 0.25).count();
    table.show(&format!("{title}: heat as a part of others"), false)
        + &format!(
            "at most the best in {wins} of {} cells, at worst {worst:.3}; to LRU in the median {:.3}\n\
             a quarter of the way to the better oracle in {far} of {} cells, median {:.2}; bytes to LRU in the \
             median {:.3}\n\n",
            rows.len(),
            median(rows.iter().map(|row| row.against(&[LRU], pick)).collect()),
            ways.len(),
            median(ways.clone()),
            median(rows.iter().map(|row| row.against(&[LRU], moved)).collect()),
        )
}
