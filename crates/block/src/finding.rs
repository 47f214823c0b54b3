//! What a layer says about what it keeps, when it is asked whether that is right.

use std::fmt;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// All is well; the words say what was looked at.
    Good,
    /// Space is taken that nobody uses. It happens in normal use, harms nobody, and can be given back.
    Leak,
    /// It is wrong, and what else is there says how it should be. Nothing was changed.
    Repairable,
    /// It was wrong, or taken in vain, and no longer is.
    Repaired,
    /// It is wrong, and nothing says how it should be.
    Lost,
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub class: Class,
    /// What it is, where it is, and what is lost with it or was repaired.
    pub words: String,
}

impl Finding {
    /// A finding.
    pub fn new(class: Class, words: impl Into<String>) -> Finding {
        Finding { class, words: words.into() }
    }

    /// True if somebody has to do something about it.
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
