//! The commands of a kind of layer, so that they can be listed, checked and completed before a device is asked.

/// A command that the devices of a kind understand: `lamina ctl DEVICE NAME ARGS`.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// What it is called.
    pub name: &'static str,
    /// One line about it.
    pub summary: &'static str,
    /// Its arguments. Those that are required come first, in the order in which they are given without their names.
    pub args: &'static [Arg],
}

/// An argument of a command.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// What it is called.
    pub name: &'static str,
    /// What it is.
    pub is: ArgType,
    /// The command does not work without it.
    pub required: bool,
    /// One line about it.
    pub summary: &'static str,
}

/// What an argument may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgType {
    /// Words.
    Text,
    /// Bytes, as a number or as text with a unit: `"4KiB"`.
    Size,
    /// A number that is not negative.
    Count,
    /// A time with its unit: `"10ms"`.
    Time,
    /// Yes or no.
    Flag,
    /// Any JSON, as the summary says.
    Json,
}

impl Verb {
    /// A command without arguments.
    pub const fn new(name: &'static str, summary: &'static str) -> Verb {
        Verb { name, summary, args: &[] }
    }

    /// The same command with these arguments.
    pub const fn with(self, args: &'static [Arg]) -> Verb {
        Verb { args, ..self }
    }
}

impl Arg {
    /// An argument that must be given.
    pub const fn required(name: &'static str, is: ArgType, summary: &'static str) -> Arg {
        Arg { name, is, required: true, summary }
    }

    /// An argument that may be given.
    pub const fn optional(name: &'static str, is: ArgType, summary: &'static str) -> Arg {
        Arg { name, is, required: false, summary }
    }
}
