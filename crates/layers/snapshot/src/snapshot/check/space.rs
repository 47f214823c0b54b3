//! Compares the bitmaps with the versions.

use super::super::core::Core;
use super::super::reclaim::BATCH;
use super::list::List;
use lamina_block::{Class, Result};
use lamina_metadata::Change;
use lamina_metadata::extents::{Bits, Count, Pxb};
use std::ops::Range;
use std::rc::Rc;

pub(super) struct Sweep<'a> {
    pub core: &'a Rc<Core>,
    pub repair: bool,
    /// All of every version could be read: extents that none of them refers to have no owner.
    pub whole: bool,
    pub list: &'a mut List,
    /// Extents and pages that are in use without an owner.
    pub leaked: [u64; 2],
}

/// Runs of the numbers.
fn runs(numbers: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == *number => run.end += 1,
            _ => runs.push(*number..number + 1),
        }
    }
    runs
}

fn name(extents: bool) -> &'static str {
    if extents { "extents" } else { "pages of the map" }
}

impl Sweep<'_> {
    /// Compares the bits and counts of a range with the owners.
    pub async fn compare(
        &mut self,
        of: &Pxb,
        range: Range<u64>,
        extents: bool,
        refers: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let mut from = range.start;
        let mut counts_said = false;
        while from < range.end {
            let (bits, next) = of.bits(from).await?;
            let used = match bits {
                Bits::Used(used) => Some(used),
                Bits::Damaged => self.remake(of, from..next, extents, &refers).await?,
            };
            self.count(of, from, used.as_ref().map(|used| used.len() as u64), extents, &mut counts_said)
                .await?;
            let Some(used) = used else {
                from = next;
                continue;
            };
            let in_use = |number: &u64| used.binary_search(number).is_ok();
            let missing: Vec<u64> = (from..next).filter(|n| refers(*n) && !in_use(n)).collect();
            let leaked: Vec<u64> = used.iter().copied().filter(|n| !refers(*n)).collect();
            self.claim(of, &missing, extents).await?;
            self.free(of, &leaked, extents).await?;
            from = next;
        }
        Ok(())
    }

    /// A page of the bitmap is damaged: rebuilds it, and lists the damage.
    async fn remake(
        &mut self,
        of: &Pxb,
        range: Range<u64>,
        extents: bool,
        refers: &impl Fn(u64) -> bool,
    ) -> Result<Option<Vec<u64>>> {
        let message = format!("the bits of {} {} to {} are damaged", name(extents), range.start, range.end);
        let so = match self.whole {
            true => "made again from the versions",
            false => "all count as in use, as a part of a version is lost",
        };
        if !self.repair {
            self.list.repairable(false, message, so);
            return Ok(None);
        }
        let is_used = |number| !self.whole || refers(number);
        of.restore_bits(range.start, is_used).await?;
        let used: Vec<u64> = range.filter(|number| is_used(*number)).collect();
        self.list.repairable(true, message, so);
        Ok(Some(used))
    }

    /// Checks a count of the bits that are set, if that is known.
    async fn count(
        &mut self,
        of: &Pxb,
        from: u64,
        used: Option<u64>,
        extents: bool,
        said: &mut bool,
    ) -> Result<()> {
        let count = of.count(from, used.unwrap_or(0)).await?;
        if count == Count::Damaged {
            if self.repair {
                of.restore_counts(from).await?;
            }
            if !std::mem::replace(said, !self.repair) {
                let message = format!("counts of {} in use are damaged", name(extents));
                self.list.repairable(self.repair, message, "counted again");
            }
        }
        if self.repair {
            // A right count may not be trusted yet.
            let (change, _) = of.recount(Change::new(), from).await?;
            if count == Count::Wrong || of.lost() > 0 {
                self.core.stage(change).await?;
                self.core.commit().await?;
            }
        }
        if let (Count::Wrong, Some(used)) = (count, used) {
            let message = format!("the count of {} in use from {from} on is wrong", name(extents));
            self.list.repairable(self.repair, message, &format!("{used} are"));
        }
        Ok(())
    }

    /// Extents with an owner are called free, and would get another one.
    async fn claim(&mut self, of: &Pxb, missing: &[u64], extents: bool) -> Result<()> {
        if self.repair {
            for batch in runs(missing).chunks(BATCH) {
                let mut change = Change::new();
                for run in batch {
                    change = of.claim(change, run.clone())?;
                }
                self.core.stage(change).await?;
                self.core.commit().await?;
            }
        }
        for run in runs(missing) {
            let message =
                format!("{} {} to {} are in use, and called free", name(extents), run.start, run.end);
            self.list.repairable(self.repair, message, "called in use now");
        }
        Ok(())
    }

    async fn free(&mut self, of: &Pxb, leaked: &[u64], extents: bool) -> Result<()> {
        if !self.whole {
            return Ok(());
        }
        if self.repair {
            for batch in leaked.chunks(BATCH) {
                self.core.give_back(of, batch, extents).await?;
            }
        }
        self.leaked[usize::from(!extents)] += leaked.len() as u64;
        Ok(())
    }

    /// Lists the leaked space.
    pub fn end(self) {
        for (extents, leaked) in [true, false].into_iter().zip(self.leaked).filter(|(_, n)| *n > 0) {
            let message = format!("{leaked} {} are in use without an owner", name(extents));
            match self.repair {
                true => self.list.add(Class::Repaired, format!("{message}: given back")),
                false => self.list.add(
                    Class::Leak,
                    format!("{message}: they are given back when the volume looks for space, or by a repair"),
                ),
            }
        }
    }
}
