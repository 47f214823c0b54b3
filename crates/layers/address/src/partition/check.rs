//! The findings of a check of the table. The table was verified when it was read.

use super::{Partition, Table, gpt};
use lamina_block::{Bytes, Class, Finding};

impl Partition {
    /// See [`lamina_block::Manage::check`].
    pub(super) fn look(&self) -> Vec<Finding> {
        if self.copy.get() == Some(gpt::Copy::Backup) {
            let message = "the first copy of its GPT is damaged, and the second is used: repair it with a \
                tool for GPTs, \
                         as it is never changed from here";
            return vec![Finding::new(Class::Lost, message)];
        }
        let parts = self.parts.borrow().len();
        if self.copy.get().is_some() {
            return vec![Finding::new(Class::Good, format!("its GPT is good: {parts} partitions"))];
        }
        let kept = self.keep.as_ref().and_then(|keep| keep.get());
        vec![match kept.map(|record| Table::read(&record, self.room())) {
            Some(Err(e)) => Finding::new(Class::Lost, e.message()),
            Some(Ok(_)) | None => {
                let used = self
                    .parts
                    .borrow()
                    .iter()
                    .flat_map(|part| part.ranges())
                    .map(|at| at.end - at.start)
                    .sum();
                Finding::new(Class::Good, format!("its table is good: {parts} partitions, {}", Bytes(used)))
            }
        }]
    }
}
