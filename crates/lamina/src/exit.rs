//! How a command ends: its message and its exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done; for `serve`: stopped by a signal, everything drained and flushed |
//! | 1 | it failed: a peer did not answer, an address is taken, a device failed, draining took too long |
//! | 2 | the command line or a hierarchy file is wrong, or a device is in use or cannot be opened; nothing was done |
//! | 3, 4 | of `status`: a hierarchy is degraded, or has failed |
//! | 5 to 17, also 2 | of `apply`, `ctl` and others that ask a daemon: refused or failed, by its [class](Class) |

use crate::class::Class;
use crate::colour::{BAD, painted};
use std::fmt::Display;
use std::io;
use std::process::ExitCode;

/// Why a command did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// A valid command that failed: exit code 1.
    Failed(String),
    /// The command line or a file is wrong: exit code 2.
    Usage(String),
    /// A hierarchy file is wrong, or cannot be opened: its report, which names the file on each line. Exit code 2.
    File(String),
    /// The printed state is not well: this exit code, and no message.
    State(u8),
    /// A daemon refused it or failed, for a reason of this class.
    Answered(&'static Class, String),
    /// A loss of data that the message names, and that was not confirmed: exit code 1.
    Unconfirmed(String),
    /// The reader of the output has gone away; there is nothing left to do or to say: exit code 0.
    Unread,
}

impl Failure {
    /// A failure: `message` describes it and, where there is one, the remedy.
    pub fn failed(message: impl Display) -> Failure {
        Failure::Failed(message.to_string())
    }

    /// The message.
    pub fn into_message(self) -> String {
        match self {
            Failure::Failed(message)
            | Failure::Usage(message)
            | Failure::File(message)
            | Failure::Answered(_, message)
            | Failure::Unconfirmed(message) => message,
            Failure::State(_) | Failure::Unread => String::new(),
        }
    }

    /// A wrong command line or file.
    pub fn usage(message: impl Display) -> Failure {
        Failure::Usage(message.to_string())
    }

    /// Prints the message, if there is one, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        let (message, code) = match self {
            Failure::Failed(message) | Failure::Unconfirmed(message) => (message, 1),
            Failure::Usage(message) => (message, 2),
            Failure::Answered(class, message) => (message, class.exit),
            Failure::File(report) => {
                eprint!("{report}");
                return ExitCode::from(2);
            }
            Failure::State(code) => return ExitCode::from(*code),
            Failure::Unread => return ExitCode::SUCCESS,
        };
        anstream::eprintln!("{}: {}", painted(BAD, "lamina"), message.trim_end());
        ExitCode::from(code)
    }
}

impl From<io::Error> for Failure {
    /// For writing to standard output: a closed pipe is no failure.
    fn from(e: io::Error) -> Failure {
        match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::Unread,
            _ => Failure::failed(e),
        }
    }
}
