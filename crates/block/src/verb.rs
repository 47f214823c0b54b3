//! The commands of a kind of layer, so that they can be listed, checked and completed before a device is asked.

/// A command that the devices of a kind understand: `lamina ctl DEVICE NAME ARGS`.
#[derive(Clone, Copy, Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// A description in one line.
    pub summary: &'static str,
    /// Its arguments. The required ones come first, in the order in which they are given without their names.
    pub args: &'static [Arg],
    /// It changes nothing, and so is no event.
    pub asks: bool,
}

/// An argument of a command.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub is: ArgType,
    /// The command does not work without it.
    pub required: bool,
    /// A description in one line.
    pub summary: &'static str,
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgType {
    /// Text.
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
    /// Text that is not shown and not logged: `lamina ctl` asks for it.
    Secret,
}

impl Verb {
    /// A command without arguments.
    pub const fn new(name: &'static str, summary: &'static str) -> Verb {
        Verb { name, summary, args: &[], asks: false }
    }

    /// A command without arguments that changes nothing.
    pub const fn asks(name: &'static str, summary: &'static str) -> Verb {
        Verb { asks: true, ..Verb::new(name, summary) }
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
