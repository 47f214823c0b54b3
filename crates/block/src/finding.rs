//! The findings of a layer that verifies its metadata.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// All is well; the text names the checked parts.
    Good,
    /// Leaked space. It happens in normal use, does no harm, and can be given back.
    Leak,
    /// Damage that can be repaired from other metadata. Nothing was changed.
    Repairable,
    /// Repaired damage, or freed space.
    Repaired,
    /// Damage that cannot be repaired.
    Lost,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub class: Class,
    /// The damage, its place, and the data that is lost with it or was repaired.
    pub words: String,
}

impl Finding {
    /// A finding.
    pub fn new(class: Class, words: impl Into<String>) -> Finding {
        Finding { class, words: words.into() }
    }

    /// True if the finding needs attention.
    pub fn is_damage(&self) -> bool {
        match self.class {
            Class::Lost | Class::Repairable => true,
            Class::Good | Class::Leak | Class::Repaired => false,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}
