//! Colours: what is not well stands out at a terminal. Elsewhere, and with `NO_COLOR`, text has none: `anstream` takes
//! them off, whose output is to be used.

use anstyle::{AnsiColor, Style};
use std::fmt::Display;

/// All is well.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// All works, and something is missing or wrong.
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
/// Something does not work.
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// A text in a style.
pub fn painted(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}
