//! The findings, as many as can be read.

use lamina_block::{Class, Finding};

/// The most findings that are listed one by one.
const SHOWN_MAX: usize = 100;

/// Findings.
#[derive(Default)]
pub(super) struct List {
    shown: Vec<Finding>,
    /// Lost, to be repaired, repaired: the numbers of findings that are not shown.
    more: [u64; 3],
    lost: bool,
}

impl List {
    pub fn add(&mut self, class: Class, message: impl Into<String>) {
        self.lost |= class == Class::Lost;
        if self.shown.len() < SHOWN_MAX {
            return self.shown.push(Finding::new(class, message));
        }
        match class {
            Class::Lost => self.more[0] += 1,
            Class::Repairable => self.more[1] += 1,
            Class::Repaired => self.more[2] += 1,
            Class::Good | Class::Leak => {}
        }
    }

    pub fn lost(&mut self, message: String) {
        self.add(Class::Lost, message);
    }

    /// Damage that can be repaired, or was repaired `so`.
    pub fn repairable(&mut self, repair: bool, message: String, so: &str) {
        let message = if repair { format!("{message}: {so}") } else { message };
        self.add(class(repair), message);
    }

    /// True if nothing is lost.
    pub fn is_whole(&self) -> bool {
        !self.lost
    }

    /// All findings; `good` if there are none.
    pub fn end(mut self, good: String) -> Vec<Finding> {
        let classes = [Class::Lost, Class::Repairable, Class::Repaired];
        for (class, more) in classes.into_iter().zip(self.more).filter(|(_, more)| *more > 0) {
            self.shown.push(Finding::new(class, format!("and {more} more such places")));
        }
        if !self.shown.iter().any(Finding::is_damage) {
            self.shown.push(Finding::new(Class::Good, good));
        }
        self.shown
    }
}

/// The class of damage that can be repaired.
fn class(repair: bool) -> Class {
    if repair { Class::Repaired } else { Class::Repairable }
}
