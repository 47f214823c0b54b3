//! The classes of failure, as the control API and the command line tell them apart: one table.
//!
//! A layer, a device or the daemon gives a failure its class ([`ErrorKind`]); the API answers with the class's name and
//! status, and a command that asked the daemon ends with its exit code. The table in `docs/control-api.md`, the answers
//! in the OpenAPI document and the help of the command line are made from it, or compared with it by a test.
//!
//! Statuses are those of RFC 9110, and 507 of RFC 4918 (section 11.5). Exit codes stay below 126, where those of a
//! shell begin; 1 is a failure of no class, 3 and 4 are those of `lamina status`.

use lamina_block::ErrorKind;

/// A class of failure.
#[derive(Debug, PartialEq, Eq)]
pub struct Class {
    /// The name in the API: `kind` in a `Problem`.
    pub name: &'static str,
    /// The status of the API's answer.
    pub status: u16,
    /// The exit code of a command that got this answer.
    pub exit: u8,
    /// The meaning.
    pub meaning: &'static str,
}

const fn class(name: &'static str, status: u16, exit: u8, meaning: &'static str) -> Class {
    Class { name, status, exit, meaning }
}

// 400 Bad Request: RFC 9110, 15.5.1; 404 Not Found: 15.5.5.
const INVALID: Class = class("invalid", 400, 2, "the request, an argument or the file is wrong");
/// There is no such device, job or path.
pub const NOT_FOUND: Class = class("not-found", 404, 5, "there is no such device, job or path");

// 409 Conflict: 15.5.10. The request may be right at another time, or after something else.
/// A command that would lose something came without the argument `force`.
pub const UNCONFIRMED: Class = class(
    "unconfirmed",
    409,
    1,
    "the command would lose the data that the message names; the argument `force` confirms",
);
const BUSY: Class =
    class("busy", 409, 7, "the device is in use, or changes just now: a later attempt may succeed");
const READ_ONLY: Class = class("read-only", 409, 8, "the device is not to be written");
const FENCED: Class = class("fenced", 409, 9, "the device has another owner");
const CANCELLED: Class = class("cancelled", 409, 10, "the job was cancelled before it was done");

// 500 Internal Server Error: 15.6.1; 501 Not Implemented: 15.6.2.
const MEDIA: Class = class("media", 500, 14, "a medium could not be read or written");
const CORRUPT: Class = class("corrupt", 500, 15, "a read returned other data than was written");
const TRUNCATED: Class = class("truncated", 500, 16, "a device has fewer bytes than it had");
const BAD_MEMORY: Class = class("bad-memory", 500, 17, "the memory of the request cannot be accessed");
const UNSUPPORTED: Class =
    class("unsupported", 501, 6, "the device cannot do this, or not with these arguments");

// 503 Service Unavailable: 15.6.4; 504 Gateway Timeout: 15.6.5, for devices below the daemon that were not in time.
const OFFLINE: Class = class("offline", 503, 11, "a device, or a device below it, cannot be reached");
const TIMED_OUT: Class = class("timed-out", 504, 12, "a device did not answer in time");
const NO_SPACE: Class = class("no-space", 507, 13, "there is no space for the data");

/// All of them, by status and exit code.
pub const ALL: &[Class] = &[
    INVALID,
    NOT_FOUND,
    UNCONFIRMED,
    BUSY,
    READ_ONLY,
    FENCED,
    CANCELLED,
    MEDIA,
    CORRUPT,
    TRUNCATED,
    BAD_MEMORY,
    UNSUPPORTED,
    OFFLINE,
    TIMED_OUT,
    NO_SPACE,
];

impl Class {
    /// The class of an error.
    pub fn of(kind: ErrorKind) -> &'static Class {
        match kind {
            ErrorKind::Media => &MEDIA,
            ErrorKind::NoSpace => &NO_SPACE,
            ErrorKind::ReadOnly => &READ_ONLY,
            ErrorKind::Fenced => &FENCED,
            ErrorKind::Offline => &OFFLINE,
            ErrorKind::TimedOut => &TIMED_OUT,
            ErrorKind::Busy => &BUSY,
            ErrorKind::Invalid => &INVALID,
            ErrorKind::Unsupported => &UNSUPPORTED,
            ErrorKind::Cancelled => &CANCELLED,
            ErrorKind::Corrupt => &CORRUPT,
            ErrorKind::BadMemory => &BAD_MEMORY,
            ErrorKind::Truncated => &TRUNCATED,
        }
    }

    /// The class that an answer of the API names. A daemon of another version may have more.
    pub fn named(name: &str) -> Option<&'static Class> {
        ALL.iter().find(|class| class.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_of_error_has_its_status_and_its_exit_code() {
        use ErrorKind::*;
        for (kind, name, status, exit) in [
            (Invalid, "invalid", 400, 2),
            (Busy, "busy", 409, 7),
            (ReadOnly, "read-only", 409, 8),
            (Fenced, "fenced", 409, 9),
            (Cancelled, "cancelled", 409, 10),
            (Media, "media", 500, 14),
            (Corrupt, "corrupt", 500, 15),
            (Truncated, "truncated", 500, 16),
            (BadMemory, "bad-memory", 500, 17),
            (Unsupported, "unsupported", 501, 6),
            (Offline, "offline", 503, 11),
            (TimedOut, "timed-out", 504, 12),
            (NoSpace, "no-space", 507, 13),
        ] {
            let class = Class::of(kind);
            assert_eq!((class.name, class.status, class.exit), (name, status, exit), "{kind:?}");
            assert_eq!(Class::named(name), Some(class));
        }
        assert_eq!(Class::named("not-yet-known"), None);
    }

    #[test]
    fn exit_codes_tell_classes_apart_and_leave_others_alone() {
        let codes: BTreeSet<u8> = ALL.iter().map(|class| class.exit).collect();
        assert_eq!(codes.len(), ALL.len());
        assert!(codes.iter().all(|code| ![0, 3, 4].contains(code) && *code < 126), "{codes:?}");
        // A failure of no class ends with 1 as well, and so it did before there were classes.
        assert_eq!(ALL.iter().find(|class| class.exit == 1), Some(&UNCONFIRMED));
    }

    #[test]
    fn the_help_has_the_exit_codes() {
        let (help, others) = (crate::cli::EXIT_CODES, [0, 1]);
        for class in ALL.iter().filter(|class| !others.contains(&class.exit)) {
            let said =
                format!("{} {}", class.exit, class.name.replace('-', " ")).replace("read only", "read-only");
            assert!(help.contains(&said), "the help lacks {said:?}");
        }
    }

    #[test]
    fn the_manual_has_the_table() {
        let manual = include_str!("../../../docs/control-api.md");
        let row = |c: &Class| format!("| `{}` | {} | {} | {} |", c.name, c.status, c.exit, c.meaning);
        let rows: Vec<String> = ALL.iter().map(row).collect();
        assert!(manual.contains(&rows.join("\n")), "docs/control-api.md must have\n{}", rows.join("\n"));
    }
}
